"""A dump recorded on an NPU, with operators that only torch_npu has: each call runs, and its reference judges it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pytest_ascend as pa
import pytest_ascend.cases.from_dump
import pytest_ascend.dumps.statistics
import pytest_ascend.dumps.tensors
from pytest_ascend import cli

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed


def step(device: torch.device, dtype: torch.dtype) -> None:
    """What a model on the card calls; each result has a backward pass where the operator has one."""

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(device, dtype).requires_grad_()

    def back(output: Any) -> None:
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        able = [one for one in outputs if one.requires_grad]
        torch.autograd.backward(able, [torch.randn_like(one) for one in able])

    torch.manual_seed(3)
    back(torch_npu.npu_rms_norm(leaf(4, 64), leaf(64), epsilon=1e-5))
    back(torch_npu.npu_add_rms_norm(leaf(4, 64), leaf(4, 64), leaf(64)))
    back(torch_npu.npu_swiglu(leaf(4, 3, 64), dim=-1))
    back(torch_npu.npu_fast_gelu(leaf(5, 33)))
    back(torch_npu.npu_gelu(leaf(5, 33), approximate="tanh"))
    back(torch_npu.npu_rotary_mul(leaf(2, 3, 5, 16), leaf(1, 1, 5, 16), leaf(1, 1, 5, 16)))
    back(torch_npu.npu_fusion_attention(leaf(2, 6, 32), leaf(2, 8, 32), leaf(2, 8, 32), 4, "BSH", scale=0.35)[0])
    ends = {"actual_seq_qlen": [4, 9], "actual_seq_kvlen": [4, 9], "sparse_mode": 3}
    back(torch_npu.npu_fusion_attention(*(leaf(9, 2, 16) for _ in range(3)), 2, "TND", scale=0.25, **ends)[0])
    mask = torch.ones(6, 8, device=device).triu(3).bool()
    back(torch_npu.npu_scaled_masked_softmax(leaf(2, 4, 6, 8), mask, 0.5))
    back(torch_npu.npu_confusion_transpose(leaf(2, 3, 4, 5), [0, 2, 1, 3], [2, 4, 15], True))
    back(torch_npu.npu_dtype_cast(leaf(4, 5), torch.float16))
    back(torch_npu.npu_linear(leaf(3, 4, 32), leaf(16, 32), leaf(16)))
    with torch.no_grad():
        torch_npu.npu_layer_norm_eval(leaf(4, 6, 32), [32], leaf(32), leaf(32))
        torch_npu.npu_moe_gating_top_k_softmax(leaf(6, 16), k=3)
        torch_npu.npu_dynamic_quant(leaf(4, 3, 32))
        torch_npu.npu_format_cast_(leaf(2, 16, 4, 4), 29)
        torch_npu.npu_scatter_nd_update_(leaf(6, 5), torch.tensor([[3], [0]], device=device), leaf(2, 5))
        torch_npu.npu_iou(leaf(3, 4).abs(), leaf(2, 4).abs())


CALLS, BACKWARD = 18, 12


def record(tmp_path: Any, task: str, dtype: torch.dtype = torch.float32) -> Any:
    with pa.record(None, tmp_path / "dump", task=task, apis=("NPU.*",)) as recording:
        step(torch.device("npu"), dtype)
    return recording.path


def results(pytester: pytest.Pytester, *arguments: str) -> dict[str, dict[str, Any]]:
    """Result by call."""
    options = (
        "--ascend-compare=emulated",
        "--ascend-json=r.json",
        "--ascend-reproducers=none",
        "-p",
        "no:hypothesispytest",
    )
    pytester.runpytest_inprocess(*options, "-p", "no:hypothesispytest", *arguments)
    found = json.loads((pytester.path / "r.json").read_text())["results"]
    return {one["nodeid"].rpartition("::")[2].partition("[")[0]: one for one in found}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_every_call_is_judged_by_its_reference(pytester, tmp_path, task, dtype) -> None:
    found = results(pytester, record(tmp_path, task, dtype))
    assert len(found) == CALLS + BACKWARD
    without = found.pop("NPU.npu_iou.0.forward")
    assert without["verdict"] == "UNSUPPORTED"
    assert (
        "torch_npu.npu_iou has no reference on the CPU: give one with pytest_ascend.register_ref" in without["reason"]
    )
    wrong = {name: (one["verdict"], one["reason"]) for name, one in found.items() if one["verdict"] != "PASS"}
    assert not wrong
    assert all("comes with pytest-ascend" in one["reference"] for one in found.values())


def off(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is 5 % too large."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        right = reference(*args, **kwargs)
        return (right[0] * 1.05, *right[1:]) if isinstance(right, tuple) else right * 1.05

    return kernel


@pytest.mark.parametrize("name", ["npu_rms_norm", "npu_swiglu", "npu_fusion_attention", "npu_rotary_mul"])
def test_a_broken_operator_fails_in_the_dump(pytester, tmp_path, name) -> None:
    path = record(tmp_path, "tensor")
    with pa.emulator.override(f"npu::{name}", off(pa.cases.references.lookup(f"npu.{name}"))):
        found = results(pytester, path)
    failed = {call for call, one in found.items() if one["verdict"] == "FAIL"}
    assert f"NPU.{name}.0.forward" in failed
    assert all(name in call for call in failed)


def test_a_registered_reference_takes_its_place(pytester, tmp_path, monkeypatch) -> None:
    path = record(tmp_path, "tensor")
    monkeypatch.setattr(pa.cases.references, "_registered", {})
    pa.register_reference("torch_npu.npu_iou", lambda boxes, others, mode=0: torch.zeros(len(others), len(boxes)))
    found = results(pytester, path, "-k", "npu_iou")
    assert found["NPU.npu_iou.0.forward"]["verdict"] == "FAIL"
    assert found["NPU.npu_iou.0.forward"]["reference"] == "the one registered for npu.npu_iou"


def test_the_generated_file_gives_the_same_verdicts(pytester, tmp_path) -> None:
    path = record(tmp_path, "tensor")
    file = pytester.path / "test_generated.py"
    assert cli.main(["generate", path, "-o", str(file)]) == 0
    text = file.read_text()
    assert "import torch_npu" in text
    assert (
        "torch_npu.npu_iou has no reference on the CPU: give one with"
        in text.partition("def test_npu_npu_iou")[0][-300:]
    )
    collected = {
        "test_" + re.sub(r"[\W_]+", "_", name.lower()): one["verdict"] for name, one in results(pytester, path).items()
    }
    found = results(pytester, str(file))
    generated = {re.sub(r"_+", "_", name): one["verdict"] for name, one in found.items()}
    assert generated == {name: verdict for name, verdict in collected.items() if verdict != "UNSUPPORTED"}
    assert len(generated) == CALLS + BACKWARD - 1
