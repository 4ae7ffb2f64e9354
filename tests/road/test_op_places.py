"""Where an operator is called: layer, line of the test's code, and for a backward pass the call that it belongs to."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.observe.op_places import Places
from pytest_ascend.targets import emulator

DEVICES = ["cpu", "npu"]


@pytest.fixture(autouse=True)
def _device():
    emulator.install()


class Asking(DispatchMode):
    """Notes every operator and its place."""

    def __init__(self, places):
        super().__init__()
        self.places, self.seen = places, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((str(func).removeprefix("aten."), self.places.here(func)))
        return func(*args, **(kwargs or {}))


def asked(model, call):
    with Places(model) as places, Asking(places) as asking:
        call()
    return asking.seen


def of(seen, name, backward=False):
    return [place for op, place in seen if op.startswith(name) and place.backward is backward]


def lines(function, text):
    """Numbers of the lines of a function that contain a text."""
    code, first = inspect.getsourcelines(function)
    return [first + i for i, line in enumerate(code) if text in line]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        y = self.inner(self.norm(x))
        return x + y * 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square()


@pytest.mark.parametrize("device", DEVICES)
def test_layers_and_lines_of_a_forward_pass(device):
    model = Net().to(device)
    seen = asked(model, lambda: F.softmax(model(torch.ones(2, 4, device=device)), -1))
    assert [place.module for place in of(seen, "addmm")] == [f"blocks.{i}.inner.{j}" for i in (0, 1) for j in (0, 2)]
    inside = of(seen, "addmm")[0]  # nn.Linear's code is torch's: the line is the one that calls into torch
    assert (inside.file, [inside.line]) == (__file__, lines(Block.forward, "self.inner("))
    assert inside.function.endswith("forward")
    added = of(seen, "add.Tensor")
    assert [place.module for place in added] == ["blocks.0", "blocks.1"]
    assert {place.line for place in added} == set(lines(Block.forward, "return x + y"))
    assert [(p.module, p.line) for p in of(seen, "pow")] == [("", lines(Net.forward, "square")[0])]
    (outside,) = of(seen, "_softmax")
    assert outside.module == ""
    assert outside.file == __file__
    assert "test_layers_and_lines" in outside.function


@pytest.mark.parametrize("device", DEVICES)
def test_a_backward_operator_finds_the_forward_call_it_belongs_to(device):
    model = Net().to(device)
    seen = asked(model, lambda: model(torch.ones(2, 4, device=device)).sum().backward())
    assert [place.module for place in of(seen, "native_layer_norm_backward", True)] == [
        "blocks.1.norm",
        "blocks.0.norm",
    ]
    assert [place.module for place in of(seen, "gelu_backward", True)] == ["blocks.1.inner.1", "blocks.0.inner.1"]
    first = of(seen, "gelu_backward", True)[0]
    assert first.node == "GeluBackward0"
    assert first.forward is of(seen, "gelu.default")[1]
    assert [first.line] == lines(Block.forward, "self.inner(")
    halved = [place for place in of(seen, "mul.Tensor", True) if place.node == "MulBackward0"]
    assert {(p.module, p.line) for p in halved} == {(f"blocks.{i}", lines(Block.forward, "y * 0.5")[0]) for i in (0, 1)}
    sums = [place for place in of(seen, "detach", True) if place.parameter]
    assert str(sums[0]) == f"the gradient of {sums[0].parameter}"
    assert {place.parameter for place in sums} == {name for name, _ in model.named_parameters()}
    assert all(place.forward is not None or place.parameter for _, place in seen if place.backward)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_told_from_the_backward_pass(device, reentrant):
    model = Net().to(device)
    x = torch.ones(2, 4, device=device, requires_grad=True)

    def step():
        for block in model.blocks:
            y = checkpoint(block, x * 2, use_reentrant=reentrant)
        y.sum().backward()

    seen = asked(model, step)
    again = [place for op, place in seen if op.startswith("gelu.") and place.recomputed]
    assert {place.module for place in again} == {"blocks.1.inner.1"}
    assert {place.line for place in again} == set(lines(Block.forward, "self.inner("))
    (gelu,) = of(seen, "gelu_backward", True)
    assert not gelu.recomputed
    assert gelu.module == "blocks.1.inner.1"


def test_numbers_that_two_threads_give_alike():
    """A backward pass on the device's thread counts from 0 as well; its nodes are not the main thread's."""
    model = Net().to("npu")
    x = torch.ones(2, 4, device="npu", requires_grad=True)

    def step():
        torch.sin(x * 3)  # on this thread, so that both threads have used small numbers
        y = checkpoint(lambda t: torch.tanh(model.blocks[0](t)), x * 2, use_reentrant=True)
        torch.cos(y).sum().backward()

    seen = asked(model, step)
    (tanh,) = of(seen, "tanh_backward", True)
    assert tanh.line == lines(test_numbers_that_two_threads_give_alike, "torch.tanh")[0]
    (sine,) = of(seen, "sin.default", True)  # the gradient of cos
    assert (sine.node, sine.line) == (
        "CosBackward0",
        lines(test_numbers_that_two_threads_give_alike, "torch.cos")[0],
    )


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.mul(2)

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(3)


@pytest.mark.parametrize("device", DEVICES)
def test_the_code_of_an_autograd_function_is_the_callers(device):
    x = torch.ones(3, device=device, requires_grad=True)
    seen = asked(None, lambda: Doubled.apply(x).sum().backward())
    (back,) = of(seen, "mul.Tensor", True)
    assert [back.line] == lines(Doubled.backward, "grad.mul(3)")
    assert [back.forward.line] == lines(Doubled.forward, "x.mul(2)")


@pytest.mark.parametrize("device", DEVICES)
def test_the_second_of_two_backward_passes(device):
    x = torch.ones(3, device=device, requires_grad=True)

    def step():
        (slope,) = torch.autograd.grad(torch.tanh(x * 1.0).sum(), x, create_graph=True)
        torch.sin(slope).sum().backward()

    seen = asked(None, step)
    sine = of(seen, "cos", True)
    assert [place.node for place in sine] == ["SinBackward0"]
    assert [sine[0].line] == lines(test_the_second_of_two_backward_passes, "torch.sin(slope)")[:1]


def test_without_a_model_the_outermost_layer_gives_the_name():
    model, loss = Net(), nn.MSELoss()
    seen = asked(None, lambda: loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward())
    assert [place.module for place in of(seen, "gelu.default")] == ["Net.blocks.0.inner.1", "Net.blocks.1.inner.1"]
    assert [place.module for place in of(seen, "mse_loss.")] == ["MSELoss"]
    assert of(seen, "gelu_backward", True)[0].module == "Net.blocks.1.inner.1"
    assert {place.parameter for _, place in seen if place.parameter} == {
        f"Net.{name}" for name, _ in model.named_parameters()
    }


def test_a_call_that_raised_leaves_no_trace():
    model = Net()
    with Places(model) as places, Asking(places) as asking:
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
        torch.ones(2).sin()
    assert asking.seen[-1][1].module == ""


def test_nothing_is_hooked_into_the_model():
    model = Net()
    with Places(model), Asking(Places(model)):
        assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
        assert not nn.modules.module._has_any_global_hook()


def test_words():
    seen = asked(None, lambda: Net()(torch.ones(2, 4)).sum().backward())
    forward, back = of(seen, "gelu.default")[0], of(seen, "gelu_backward", True)[1]
    assert str(forward) == f"Net.blocks.0.inner.1, {forward.source} in {forward.function}"
    assert forward.source.endswith(f"test_op_places.py:{forward.line}")
    assert str(back) == f"backward of {forward}"


def test_a_model_that_is_none_is_refused():
    with pytest.raises(TypeError, match="and not by a str"):
        Places("model")
