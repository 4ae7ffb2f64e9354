"""Cases: what they are called, what they hold, how they are copied."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_ascend.cases.case import Case, api_name

CPU = torch.device("cpu")


def mine(x):
    return x


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (torch.softmax, "torch.softmax"),
        (F.relu, "torch.nn.functional.relu"),
        (F.scaled_dot_product_attention, "torch.nn.functional.scaled_dot_product_attention"),
        (torch.einsum, "torch.einsum"),
        (torch.linalg.svd, "torch.linalg.svd"),
        (torch.Tensor.add_, "torch.Tensor.add_"),
        (torch.ones(2).softmax, "torch.Tensor.softmax"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (nn.Linear(2, 2), "Linear"),
        (nn.Linear(2, 2).forward, "Linear.forward"),
        (functools.partial(torch.softmax, dim=0), "torch.softmax"),
        (mine, f"{mine.__module__}.mine"),
    ],
)
def test_names_are_the_ones_people_know(fn, name):
    assert api_name(fn) == name


def test_a_local_function_drops_where_it_is_nested():
    def step(x):
        return x

    assert api_name(step).endswith(".step")
    assert "<locals>" not in api_name(step)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="can't be called"):
        Case(torch.ones(2))


def test_arguments_have_paths():
    w = torch.ones(1)
    x, y = torch.ones(2), torch.ones(3)
    case = Case(lambda a, b: a * w, (x, {"k": [y]}), {"z": y.half()})
    assert {path: t.shape[0] for path, t in case.arguments.items()} == {
        "w": 1,
        "args[0]": 2,
        "args[1]['k'][0]": 3,
        "z": 3,
    }


def test_dtype_is_the_first_floating_one():
    half = nn.Linear(2, 2).half()
    assert Case(F.embedding, (torch.tensor([1]), torch.ones(2, 2).bfloat16())).dtype == "bfloat16"
    assert Case(half, (torch.tensor([1]),)).dtype == "float16"
    assert Case(torch.add, (torch.tensor([1]), 2)).dtype == "int64"
    assert Case(torch.ones, (3,)).dtype == ""


def test_the_module_under_test_is_the_callable_or_its_owner():
    model = nn.Linear(2, 2)
    assert Case(model).module is model
    assert Case(model.forward).module is model
    assert Case(mine, (model,)).module is None
    assert Case(mine, (model,)).modules == (model,)
    assert Case(lambda x: model(x)).modules == (model,)


def test_a_bound_method_is_copied_with_its_module():
    model = nn.Linear(2, 2)
    built = Case(model.forward, (torch.ones(1, 2),)).build(CPU, floating=torch.float64)
    assert built.call().dtype == torch.float64
    assert built.fn.__self__ is built.module
    assert built.module is not model
    assert {e.path for e in built.entries} == {"module.weight", "module.bias", "args[0]"}


def test_a_method_of_a_tensor_is_copied_with_its_tensor():
    x = torch.arange(4.0).view(2, 2).t()
    built = Case(x.softmax, (0,)).build(CPU, floating=torch.float64)
    assert built.call().dtype == torch.float64


def test_a_module_among_the_arguments_is_the_same_one_wherever_it_stands():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    built = Case(lambda o, m: None, (optimizer, model), {"again": model}).build(CPU)
    new_optimizer, new_model = built.args
    assert new_optimizer.param_groups[0]["params"][0] is new_model.weight
    assert built.kwargs["again"] is new_model
    assert "args[1].weight" in {e.path for e in built.entries if e.role == "parameter"}


def test_devices_that_are_mixed_on_purpose_stay_mixed():
    x, c = torch.ones(2, device="meta"), torch.tensor(3.0)
    device = torch.device("meta")
    assert [t.device.type for t in Case(torch.mul, (x, c)).build(device).args] == ["meta", "cpu"]
    assert [t.device.type for t in Case(torch.mul, (c, c)).build(device).args] == ["meta", "meta"]
