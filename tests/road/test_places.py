"""What a person reads after a failure: where it is wrong, by how much, and how to see it again."""

from __future__ import annotations

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.options import CheckOptions
from pytest_ascend.targets import emulator

ON = CheckOptions(target="emulated")


def planted(op, fn, change, *args):
    """A check whose operator ``op`` computes ``fn`` and changes the result."""

    def faulty(*values):
        result = fn(*values)
        change(result)
        return result

    with emulator.override(op, faulty):
        return pa.check(fn, *args, options=ON)


@pytest.mark.parametrize(
    ("shape", "change", "name"),
    [
        ((133,), lambda y: y[128:].zero_(), "last 5 of 133 elements, the tail after 128"),
        ((64, 96), lambda y: y[:, 16::32].neg_(), "every 32nd column, from 16 (dim -1)"),
        ((2, 8, 5, 5), lambda y: y[:, 3].fill_(float("nan")), "channel 3 (dim 1)"),
        ((64, 96), lambda y: y[5, 6].mul_(1.3), "only element [5, 6]"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_check_says_where(dtype, shape, change, name):
    left, right = (torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (1, 2))
    result = planted("aten::mul.Tensor", torch.mul, change, left, right)
    assert result.worst.pattern == name
    assert f"{str(dtype)[6:]}: {name}" in str(result)
    assert result.to_dict()["outputs"][0]["pattern"] == name
    assert "nan" in name or "channel" in name or " ulp)" in str(result)


def test_a_pass_has_no_pattern():
    assert [o.pattern for o in pa.check(torch.mul, torch.randn(9), torch.randn(9), options=ON).outputs] == [""]


def test_the_first_layer_that_is_wrong_says_where():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(97, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))

    def column(bias, x, weight):
        result = torch.addmm(bias, x, weight)
        result[:, 3] *= 1.05
        return result

    with emulator.override("aten::addmm", column):
        result = pa.check(model, torch.randn(64, 97), options=ON)
    assert result.first_divergence == "0"
    assert "first divergence: 0: column 3 (dim -1)" in str(result)
