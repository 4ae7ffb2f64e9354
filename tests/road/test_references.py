"""torch_npu's operators are judged by compositions on the CPU; each finds the operator right, a planted fault wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.cases import references
from pytest_ascend.cases.references import _HOME, lookup

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Call(NamedTuple):
    """A call: floating arguments are drawn for a tuple of sizes, what else there is comes as it is."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = MappingProxyType({})
    gradients: bool = True
    dtypes: tuple[torch.dtype, ...] = DTYPES


def shape(*sizes: int) -> tuple[str, tuple[int, ...]]:
    return "shape", sizes


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


MASK = torch.ones(6, 8).triu(3).bool()
HALF = (torch.float16, torch.bfloat16)
CALLS = [
    Call("fast_gelu", (shape(5, 33),)),
    Call("npu_fast_gelu", (shape(5, 33),)),
    Call("npu_fast_gelu_backward", (shape(5, 33), shape(5, 33)), gradients=False),
    Call("npu_gelu", (shape(5, 33),)),
    Call("npu_gelu", (shape(5, 33),), {"approximate": "tanh"}),
    Call("npu_mish", (shape(5, 33),)),
    Call("npu_silu", (shape(5, 33),)),
    Call("npu_silu_", (shape(5, 33),), gradients=False),
    Call("npu_swiglu", (shape(4, 3, 64),)),
    Call("npu_swiglu", (shape(4, 6, 5),), {"dim": 1}),
    Call("npu_geglu", (shape(4, 64),)),
    Call("npu_geglu", (shape(4, 64), -1, 0, True)),
    Call("npu_rms_norm", (shape(4, 6, 128), shape(128))),
    Call("npu_rms_norm", (shape(4, 6, 32), shape(6, 32)), {"epsilon": 1e-3}),
    Call("npu_gemma_rms_norm", (shape(4, 128), shape(128))),
    Call("npu_add_rms_norm", (shape(4, 128), shape(4, 128), shape(128)), {"epsilon": 1e-5}),
    Call("npu_layer_norm_eval", (shape(4, 6, 32), [32], shape(32), shape(32)), gradients=False),
    Call("npu_layer_norm_eval", (shape(4, 6, 32), [6, 32]), gradients=False),
    Call("npu_deep_norm", (shape(4, 64), shape(4, 64), shape(64), shape(64)), {"alpha": 0.7}),
    Call("npu_group_norm_silu", (shape(2, 12, 5, 5), shape(12), shape(12), 3)),
    Call("npu_fusion_attention", (shape(2, 6, 32), shape(2, 8, 32), shape(2, 8, 32), 4, "BSH"), {"scale": 0.35}),
    Call(
        "npu_fusion_attention",
        (shape(2, 4, 6, 16), shape(2, 2, 8, 16), shape(2, 2, 8, 16), 4, "BNSD", shape(2, 4, 6, 8)),
        {"scale": 0.25, "atten_mask": MASK},
    ),
    Call(
        "npu_fusion_attention",
        (shape(9, 2, 16), shape(9, 2, 16), shape(9, 2, 16), 2, "TND"),
        {"scale": 0.25, "actual_seq_qlen": [4, 9], "actual_seq_kvlen": [4, 9], "sparse_mode": 3},
    ),
    Call(
        "npu_prompt_flash_attention",
        (shape(2, 6, 32), shape(2, 8, 16), shape(2, 8, 16)),
        {
            "num_heads": 4,
            "num_key_value_heads": 2,
            "scale_value": 0.35,
            "sparse_mode": 3,
            "actual_seq_lengths": [6, 3],
            "actual_seq_lengths_kv": [8, 5],
        },
        gradients=False,
    ),
    Call(
        "npu_incre_flash_attention",
        (shape(2, 1, 32), shape(2, 8, 32), shape(2, 8, 32)),
        {"num_heads": 4, "scale_value": 0.35, "actual_seq_lengths": [8, 3]},
        gradients=False,
    ),
    Call("npu_scaled_masked_softmax", (shape(2, 4, 6, 8), MASK, 0.5)),
    Call("npu_scaled_masked_softmax", (shape(2, 4, 8, 8), torch.zeros(8, 8).bool(), 0.5, True)),
    Call("npu_rotary_mul", (shape(2, 3, 5, 16), shape(1, 1, 5, 16), shape(1, 1, 5, 16))),
    Call("npu_rotary_mul", (shape(2, 3, 5, 16), shape(1, 1, 5, 16), shape(1, 1, 5, 16), "interleave")),
    Call("npu_apply_rotary_pos_emb", (shape(2, 5, 3, 16), shape(2, 5, 1, 16), shape(2, 5, 1, 16), shape(2, 5, 1, 16))),
    Call("npu_interleave_rope", (shape(2, 3, 5, 16), shape(1, 1, 5, 16), shape(1, 1, 5, 16)), gradients=False),
    Call("npu_confusion_transpose", (shape(2, 3, 4, 5), [0, 2, 1, 3], [2, 4, 15], True)),
    Call("npu_confusion_transpose", (shape(2, 12, 5), [0, 2, 1, 3], [2, 3, 4, 5], False)),
    Call("npu_transpose", (shape(2, 3, 4), [2, 0, 1])),
    Call("npu_reshape", (shape(2, 3, 4), [6, 4])),
    Call("npu_broadcast", (shape(1, 3), [4, 3])),
    Call("npu_slice", (shape(5, 6), [1, 2], [3, -1])),
    Call("npu_pad", (shape(2, 3), [1, 0, 2, 1])),
    Call("npu_dtype_cast", (shape(4, 5), 5), dtypes=(torch.float32, torch.bfloat16)),
    Call("npu_dtype_cast_", (shape(4, 5), torch.linspace(-1, 1, 20).reshape(4, 5)), gradients=False),
    Call("npu_format_cast", (shape(2, 16, 4, 4), 29)),
    Call("npu_format_cast_", (shape(2, 16, 4, 4), torch.linspace(0, 1, 512).reshape(2, 16, 4, 4)), gradients=False),
    Call("npu_one_hot", (ints(0, 2, 5, 1),), {"depth": 4, "on_value": 2}, dtypes=(torch.float32,)),
    Call("npu_sort_v2", (shape(4, 9),), {"descending": True}),
    Call("npu_max", (shape(4, 9), 1)),
    Call("npu_min", (shape(4, 9), 1, True)),
    Call("npu_scatter", (shape(4, 9), ints(3, 0, 8, 1), shape(4), 1)),
    Call("npu_scatter_nd_update", (shape(6, 5), ints(3, 0).reshape(2, 1), shape(2, 5))),
    Call("npu_scatter_nd_update_", (shape(6, 5), ints(3, 0).reshape(2, 1), shape(2, 5)), gradients=False),
    Call("npu_linear", (shape(3, 4, 32), shape(16, 32), shape(16))),
    Call("npu_bmmV2", (shape(3, 4, 32), shape(3, 32, 8), [])),
    Call("npu_conv2d", (shape(2, 4, 9, 9), shape(6, 2, 3, 3), shape(6), [2, 2], [1, 1], [1, 1], 2)),
    Call("npu_convolution", (shape(2, 4, 9, 9), shape(6, 4, 3, 3), None, [1, 1], [1, 0, 1, 0], [1, 1], 1)),
    Call("npu_conv3d", (shape(1, 4, 5, 5, 5), shape(6, 4, 3, 3, 3), None, [1] * 3, [1] * 3, [1] * 3, 1)),
    Call("npu_moe_gating_top_k_softmax", (shape(6, 16),), {"k": 3}, gradients=False),
    Call(
        "npu_moe_gating_top_k_softmax", (shape(2, 3, 16), torch.tensor([[1, 0, 0], [0, 0, 1]]).bool()), {"k": 2}, False
    ),
    Call("npu_quantize", (shape(4, 8), torch.tensor([0.1]), torch.tensor([3.0]), 12), gradients=False),
    Call("npu_quantize", (shape(4, 8), torch.full((8,), 9.0), None, 13, 1, False), gradients=False),
    Call("npu_dynamic_quant", (shape(4, 3, 32),), gradients=False),
]
NO_OPERATOR = {"npu_grouped_matmul"}  # the emulated device hasn't it


def made(value: Any, dtype: torch.dtype, gradients: bool, generator: torch.Generator) -> Any:
    if isinstance(value, tuple) and value and value[0] == "shape":
        drawn = torch.randn(value[1], generator=generator).to(dtype)
        return drawn.requires_grad_(gradients)
    return value


def run(call: Call, dtype: torch.dtype, check: Callable[..., Any]) -> Any:
    generator = torch.Generator().manual_seed(7)
    args = [made(value, dtype, call.gradients, generator) for value in call.args]
    return check(getattr(torch_npu, call.name), *args, **call.kwargs)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_the_operator_is_right(call: Call, check) -> None:
    for dtype in call.dtypes:
        result = run(call, dtype, check)
        expected = [pa.Verdict.PASS]
        if "conv" in call.name and dtype is torch.float32:
            expected.append(pa.Verdict.MODE_DIFF)  # the device convolves in HF32 unless told otherwise
        assert result.verdict in expected, f"{dtype}: {result}"
        if call.gradients:
            floating = [o for o in result.outputs if o.path.startswith("grad(")]
            assert floating or dtype is torch.float32, result


def wrong(call: Call) -> Callable[..., Any]:
    """The operator's own result on the CPU, computed by the reference, with one element off."""
    reference = lookup(f"npu::{call.name}")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = reference(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        flat = first.detach().clone().reshape(-1)
        flat[-1] = flat[-1] + (1 + flat[-1].abs() / 4).to(flat.dtype)
        first.detach().copy_(flat.reshape(first.shape))
        return result

    return kernel


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_planted_fault_is_noticed(call: Call, check) -> None:
    with pa.emulator.override(f"npu::{call.name}", wrong(call)) as planted:
        result = run(call._replace(gradients=False), call.dtypes[0], check)
    assert planted.calls
    assert result.verdict is pa.Verdict.FAIL, result
    assert "that comes with pytest-ascend" in result.environment["reference"]


def test_every_reference_is_tested_and_has_the_operators_own_signature() -> None:
    names = {name.removeprefix("npu.") for name in _HOME}
    assert names - NO_OPERATOR == {call.name for call in CALLS}
    for name in names - NO_OPERATOR:
        packet = getattr(torch.ops.npu, name)
        reference = inspect.signature(lookup(f"npu.{name}"))
        overload = getattr(packet, packet.overloads()[0])
        schema = [argument.name for argument in overload._schema.arguments if not argument.is_out]
        if name not in ("npu_format_cast", "npu_format_cast_"):  # overloads with different arguments
            assert list(reference.parameters) == schema, name


@pytest.mark.parametrize("ends", [[2, 2, 6], torch.tensor([2, 2, 6])], ids=["list", "tensor"])
def test_grouped_products(ends) -> None:
    grouped = lookup("torch_npu.npu_grouped_matmul")
    x, w, b = torch.randn(6, 4), torch.randn(3, 4, 5), torch.randn(3, 5)
    (one,) = grouped([x], [w], bias=[b], group_list=ends, split_item=3, group_type=0)
    assert torch.allclose(one, torch.cat([x[:2] @ w[0] + b[0], x[2:] @ w[2] + b[2]]), atol=1e-5)
    sizes = grouped([x], [w], group_list=[2, 0, 4], split_item=0, group_list_type=1)
    assert [tuple(y.shape) for y in sizes] == [(2, 5), (0, 5), (4, 5)]
    apart = grouped([x[:2], x[2:]], [w[0], w[1]])
    assert torch.allclose(apart[1], x[2:] @ w[1], atol=1e-5)
    with pytest.raises(NotImplementedError, match="scale"):
        grouped([x], [w], group_list=[6], scale=[x])


# ------------------------------------------------------------------------------------------------ the registry


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_registered", {})


@pytest.mark.parametrize(
    "name",
    ["torch_npu.npu_max", "npu::npu_max", "npu::npu_max.dim", "NPU.npu_max", "torch.ops.npu.npu_max",
     "torch.ops.npu.npu_max.dim", "npu.npu_max"],
)  # fmt: skip
def test_an_operator_has_many_names(name: str) -> None:
    found = lookup(name)
    assert found is not None
    assert found.__name__ == "npu_max"


def test_no_name_no_reference() -> None:
    assert lookup("torch.softmax") is None
    assert lookup("torch_npu.npu_never_heard_of") is None


library = torch.library.Library("test_references", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.define("twice.scaled(Tensor x, float by) -> Tensor")
library.impl("twice", lambda x: x * 2, "PrivateUse1")
library.impl("twice.scaled", lambda x, by: x * 2 * by, "PrivateUse1")


def test_an_operator_without_a_cpu_kernel_says_what_to_do(check) -> None:
    with pytest.raises(NotImplementedError) as raised:
        check(torch.ops.test_references.twice, torch.ones(3))
    assert "register_reference" in "".join(getattr(raised.value, "__notes__", ["register_reference"]))


@pytest.mark.parametrize("name", ["test_references.twice", "test_references::twice", "torch.ops.test_references.twice"])
def test_a_registered_reference_judges(name: str, check) -> None:
    @pa.register_reference(name)
    def double(x, by=1.0):
        return x + x * (2 * by - 1)

    for fn, args in (
        (torch.ops.test_references.twice, ()),
        (torch.ops.test_references.twice.default, ()),
        (torch.ops.test_references.twice.scaled, (3.0,)),
    ):
        result = check(fn, torch.randn(40), *args)
        assert result.verdict is pa.Verdict.PASS, result
        assert result.environment["reference"] == "the one registered for test_references.twice"
        assert "judged by: the one registered for" in str(result)
    pa.register_reference(name, lambda x: x * 3)  # a later one replaces it
    assert check(torch.ops.test_references.twice, torch.randn(40)).verdict is pa.Verdict.FAIL
    assert check(torch.ops.test_references.twice, torch.randn(40), options={"reference": double}).passed


def python_op(x):
    return x.half().float() if x.device.type == "npu" else x


def test_a_python_function_by_its_module(check) -> None:
    exact = pa.register_reference(f"{__name__}.python_op", lambda x: x)
    assert lookup(f"{__name__}.python_op") is exact
    assert not check(python_op, torch.randn(100)).passed


def test_a_custom_op_object(check) -> None:
    @torch.library.custom_op("test_references::plus_one", mutates_args=())
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    pa.register_reference("test_references::plus_one", lambda x: x + 1)
    assert "registered for" in check(plus_one, torch.randn(5)).environment["reference"]


def test_built_in_ones_can_be_replaced(check) -> None:
    pa.register_reference("torch_npu.npu_silu", lambda x: x * 0)
    assert not check(torch_npu.npu_silu, torch.randn(30)).passed


@pytest.mark.parametrize("name", ["", "mlp", "a b.c", "a..b", "a.", 3, "a.b-c"])
def test_a_bad_name_is_refused(name) -> None:
    with pytest.raises(ValueError, match="no operator's name"):
        pa.register_reference(name, abs)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="can't be called"):
        pa.register_reference("my_ops.f", 3)
