"""Layouts change where values lie, never what they are."""

from __future__ import annotations

import pytest
import torch

from pytest_ascend.cases.layouts import is_plain_layout, relay, relay_all
from pytest_ascend.options import LAYOUTS

SHAPES = [(), (1,), (5,), (3, 4), (0, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)]
DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8]


def sample(shape, dtype):
    return torch.randn(shape).mul(4).to(dtype) if dtype is not torch.complex64 else torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_shape_and_dtype_stay(layout, dtype):
    for shape in SHAPES:
        value = sample(shape, dtype)
        new = relay(value, layout)
        if new is not None:
            assert new.shape == value.shape
            assert new.dtype == dtype
            assert torch.equal(new, value)


def test_each_layout_is_what_its_name_says():
    value = torch.randn(2, 3, 4, 5)
    assert relay(value, "as_given") is value
    assert relay(value.t() if value.dim() == 2 else value.transpose(0, 1), "contiguous").is_contiguous()
    transposed = relay(value, "transposed")
    assert not transposed.is_contiguous()
    assert transposed.transpose(-1, -2).is_contiguous()
    sliced = relay(value, "sliced")
    assert sliced.storage_offset() > 0
    assert sliced.untyped_storage().nbytes() > value.untyped_storage().nbytes()
    assert relay(value, "channels_last").is_contiguous(memory_format=torch.channels_last)
    assert relay(torch.randn(1, 2, 2, 2, 2), "channels_last").is_contiguous(memory_format=torch.channels_last_3d)


def test_contiguous_is_alone_in_its_memory():
    new = relay(torch.arange(10.0)[3:6], "contiguous")
    assert (new.storage_offset(), new.untyped_storage().nbytes()) == (0, 12)
    assert not relay(torch.randn(3, dtype=torch.complex64).conj(), "contiguous").is_conj()


def test_expanded_takes_only_values_that_repeat():
    value = torch.arange(3.0).view(3, 1).repeat(1, 4)
    new = relay(value, "expanded")
    assert new.stride() == (1, 0)
    assert torch.equal(new, value)
    assert relay(torch.arange(4.0), "expanded") is None
    nan = torch.full((4,), float("nan"))
    assert relay(nan, "expanded").stride() == (0,)


def test_memory_beside_a_slice_betrays_a_linear_read():
    new = relay(torch.ones(2, 3), "sliced")
    linear = new.as_strided((6,), (1,), 0)
    assert linear.isnan().any()
    index = relay(torch.tensor([[4, 7], [5, 6]]), "sliced")
    assert index.as_strided((index.untyped_storage().nbytes() // 8,), (1,), 0).min() == 4  # a legal index


def test_a_sliced_scalar_has_neighbours():
    new = relay(torch.tensor(7.0), "sliced")
    assert (new.dim(), new.storage_offset()) == (0, 1)


def test_what_cannot_hold_a_tensor_gives_none():
    assert relay(torch.ones(3), "transposed") is None
    assert relay(torch.ones(2, 2), "channels_last") is None
    assert relay(torch.eye(2).to_sparse(), "sliced") is None


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="diagonal"):
        relay(torch.ones(2), "diagonal")


def test_relay_all_keeps_only_what_changed():
    a, b = torch.ones(2, 2), torch.ones(3)
    assert set(relay_all([a, b], "transposed")) == {id(a)}
    assert relay_all([a, b], "as_given") == {}


def test_plain_layout_is_what_contiguous_makes():
    assert is_plain_layout(torch.ones(2, 3))
    assert not is_plain_layout(torch.ones(2, 3).t())
    assert not is_plain_layout(torch.ones(4)[1:])
    assert not is_plain_layout(torch.ones(4)[:2])
    assert not is_plain_layout(torch.ones(1).expand(3))
    assert is_plain_layout(relay(torch.ones(4)[1:], "contiguous"))
