"""Arguments written as JSON and made again."""

from __future__ import annotations

import json
import math

import pytest
import torch

from pytest_ascend.cases.catalogue.laid import relaid, tensors_of
from pytest_ascend.cases.catalogue.names import public_name, resolve
from pytest_ascend.cases.catalogue.specs import Unwritable, decode, encode


def again(value: object, dtype: torch.dtype = torch.float32, seed: int = 0) -> object:
    return decode(json.loads(json.dumps(encode(value, torch.float32))), dtype, seed)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.5, "mean", (1, (2, 3)), [1, 2], {"a": 1, 2: (3,)}, slice(1, None, 2), ..., 1 + 2j,
     math.inf, torch.float64, torch.channels_last, torch.strided, torch.nn.functional.relu],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)  # fmt: skip
def test_plain_values_come_back(value: object) -> None:
    assert again(value) == value


def test_nan_comes_back() -> None:
    assert math.isnan(again(math.nan))


def test_own_dtype_follows_the_case() -> None:
    made = again((torch.randn(4), torch.float32, torch.tensor([1, 2]), torch.float64), torch.bfloat16)
    assert made[0].dtype is made[1] is torch.bfloat16
    assert made[2].dtype is torch.int64
    assert made[3] is torch.float64


def test_indices_masks_and_few_values_are_listed() -> None:
    for value in (torch.tensor([3, 0, 2]), torch.tensor([True, False]), torch.tensor([0.25, -1.0, math.inf])):
        assert torch.equal(again(value), value)


def test_many_values_are_drawn_from_the_same_range_and_the_same_in_each_dtype() -> None:
    value = torch.rand(50) * 3 + 1
    made, half = again(value, seed=5), again(value, torch.float16, seed=5)
    assert made.shape == value.shape
    assert made.min() >= value.min()
    assert made.max() <= value.max()
    assert torch.allclose(made, half.float(), atol=2e-3)
    assert not torch.equal(made, again(value, seed=6))


def test_rounding_stays_within_the_range() -> None:
    spec = {"T": {"s": [4000], "d": "*", "v": ["u", -0.9999, 0.9999]}}
    for dtype in (torch.float16, torch.bfloat16):
        made = decode(spec, dtype, 0)
        assert made.abs().max() < 1


def test_layout_and_grad_come_back() -> None:
    base = torch.randn(6, 8)
    for value in (base.t(), base[1:, 2:], base[:1].expand(6, 8), base.t().requires_grad_()):
        made = again(value)
        assert made.stride() == value.stride()
        assert made.requires_grad == value.requires_grad


def test_positive_definite_stays_so() -> None:
    root = torch.randn(3, 4, 4)
    made = again(root @ root.mT + torch.eye(4))
    torch.linalg.cholesky(made)


def test_what_has_no_words_is_named() -> None:
    for value in (torch.eye(3).to_sparse(), object(), lambda x: x):
        with pytest.raises(Unwritable, match=r"a (tensor that isn't dense|object|function)"):
            encode(value, torch.float32)


def test_every_16_bit_pattern() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        made = decode({"T": {"s": [65536], "d": "*", "v": ["every"]}}, dtype, 0)
        assert made.view(torch.int16).unique().numel() == 65536


def test_special_values_are_all_there() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        made = decode({"T": {"s": [7, 7], "d": "*", "v": ["special"]}}, dtype, 0)
        assert made.isnan().any()
        assert made.isposinf().any()
        assert made.isneginf().any()
        assert ((made == 0) & made.signbit()).any()
        assert ((made != 0) & (made.abs() < torch.finfo(dtype).tiny)).any()
        assert (made == torch.finfo(dtype).max).any()


def test_a_large_mean_has_a_spread_in_each_dtype() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        made = decode({"T": {"s": [200], "d": "*", "v": ["mean"]}}, dtype, 0).double()
        assert 450 < made.mean() < 550
        assert made.unique().numel() > 5


@pytest.mark.parametrize("layout", ["transposed", "sliced", "channels_last"])
def test_other_layouts_keep_the_values_and_who_requires_grad(layout: str) -> None:
    args = (torch.randn(2, 3, 4, 5, requires_grad=True), [torch.randn(2, 3, 4, 5)], 2)
    new, _ = relaid(args, {}, layout)
    for old, laid in zip(tensors_of(args), tensors_of(new), strict=True):
        assert torch.equal(old, laid)
        assert old.requires_grad == laid.requires_grad
        assert laid.stride() != old.stride() or laid.storage_offset() != old.storage_offset()


def test_expanded_repeats_the_first_row_and_no_argument_can_be_nothing() -> None:
    x = torch.randn(4, 3)
    (new,), _ = relaid((x,), {}, "expanded")
    assert new.stride() == (0, 1)
    assert torch.equal(new, x[:1].expand(4, 3))
    assert relaid((torch.tensor(1.0), 3), {}, "transposed") is None


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (torch.softmax, "torch.softmax"),
        (torch.nn.functional.gelu, "torch.nn.functional.gelu"),
        (torch.Tensor.add_, "torch.Tensor.add_"),
        (torch.linalg.qr, "torch.linalg.qr"),
        (torch.fft.rfft, "torch.fft.rfft"),
        (torch.ops.aten.slice.Tensor, "torch.ops.aten.slice.Tensor"),
    ],
)
def test_public_names_lead_there_and_back(fn: object, name: str) -> None:
    assert public_name(fn) == name
    assert resolve(name) == fn


def test_a_property_is_a_function_and_an_unknown_name_says_so() -> None:
    x = torch.randn(2, 3)
    assert torch.equal(resolve("torch.Tensor.mT")(x), x.mT)
    with pytest.raises(AttributeError, match=r"has no torch\.sofmax|no attribute .sofmax."):
        resolve("torch.sofmax")
