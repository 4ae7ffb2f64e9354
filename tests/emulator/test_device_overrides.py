"""Planting faults with `override`."""

import pytest
import torch
import torch.nn.functional as F

from pytest_ascend.targets.emulator import override


def wrong_cumsum(x, dim, **kwargs):
    assert x.device.type == "cpu"
    return torch.cumsum(x, dim, **kwargs) + 1


def test_one_kernel_is_replaced_for_a_while():
    x = torch.ones(3, device="npu")
    with override("aten::cumsum", wrong_cumsum) as planted:
        assert torch.cumsum(x, 0).tolist() == [2, 3, 4]
        assert torch.cumsum(torch.ones(3), 0).tolist() == [1, 2, 3], "the CPU must not be touched"
    assert planted.calls == 1
    assert torch.cumsum(x, 0).tolist() == [1, 2, 3]


def test_in_place_and_out_forms_use_it_too():
    with override("aten::cumsum", wrong_cumsum) as planted:
        x = torch.ones(3, device="npu")
        assert x.cumsum_(0) is x
        assert x.tolist() == [2, 3, 4]
        out = torch.zeros(3, device="npu")
        assert torch.cumsum(torch.ones(3, device="npu"), 0, out=out) is out
        assert out.tolist() == [2, 3, 4]
        grown = torch.empty(0, device="npu")
        torch.cumsum(torch.ones(3, device="npu"), 0, out=grown)
        assert grown.tolist() == [2, 3, 4]
    assert planted.calls == 3


def test_one_overload_only():
    x = torch.ones(2, device="npu")
    with override("aten::pow.Tensor_Scalar", lambda x, e: x * 7):
        assert (x**2).tolist() == [7, 7]
        assert torch.pow(x, x).tolist() == [1, 1]


def test_composite_kernels_are_replaced_too():
    """`aten::embedding` is written in C++ on top of other operators; the override must still reach it."""
    table, ids = torch.eye(3, device="npu"), torch.tensor([1], device="npu")
    with override("aten::embedding", lambda weight, indices, *a, **k: torch.zeros(1, 3)):
        assert F.embedding(ids, table).tolist() == [[0, 0, 0]]
    assert F.embedding(ids, table).tolist() == [[0, 1, 0]]


def test_gradients_flow_through_an_override():
    x = torch.ones(3, device="npu", requires_grad=True)
    with override("aten::_softmax", lambda x, dim, half: torch._softmax(x, dim, half) * 2):
        x.softmax(0).sum().backward()
    assert x.grad is not None


def test_convolution_can_be_replaced_by_its_usual_name():
    x, w = torch.ones(1, 1, 3, 3, device="npu"), torch.ones(1, 1, 3, 3, device="npu")
    with override("aten::convolution", lambda *a, **k: torch.convolution(*a, **k) * 2):
        assert F.conv2d(x, w).item() == 18
    assert F.conv2d(x, w).item() == 9


def test_overrides_nest_and_unwind_after_an_error():
    x = torch.ones(2, device="npu")
    with override("aten::neg", lambda x: x * 2):
        with override("aten::neg", lambda x: x * 3):
            assert torch.neg(x).tolist() == [3, 3]
        assert torch.neg(x).tolist() == [2, 2]
    with pytest.raises(ZeroDivisionError), override("aten::neg", lambda x: 1 / 0):
        torch.neg(x)
    assert torch.neg(x).tolist() == [-1, -1]


def test_an_override_that_never_ran_is_pointed_out():
    with pytest.warns(UserWarning, match="aten::cumsum was never called"), override("aten::cumsum", wrong_cumsum):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cumsum", "write it as 'aten::cumsum'"),
        ("aten::no_such_thing", "no operator aten::no_such_thing"),
        ("aten::add.NoSuch", "no overload 'NoSuch'"),
        ("aten::softmax", "aten::_softmax"),
        ("aten::linear", "decomposes it first"),
        ("aten::view", "only makes a view"),
    ],
)
def test_names_that_cannot_be_replaced(name, message):
    with pytest.raises(ValueError, match=message), override(name, wrong_cumsum):
        pass
