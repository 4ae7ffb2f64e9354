"""A check that couldn't have failed is VACUOUS; one that could isn't, whatever its values look like."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pytest_ascend.judge.power import blind_spot
from pytest_ascend.judge.standards import CRITERIA, Criterion
from pytest_ascend.judge.verdict import Verdict


def here(x):
    return x.device.type == "npu"


HALF_TO_ONE = torch.linspace(0.5, 1.0, 64)
LOOSE = {
    "constant": (HALF_TO_ONE, {"rtol": 0.2, "atol": 0.5}, "a constant 0.75"),
    "zeros": (HALF_TO_ONE * 1e-6, {"criterion": "close"}, "zeros"),
    "double": (torch.linspace(1, 2, 64), {"rtol": 1.0, "atol": 0.0}, "zeros"),
    "twice": (torch.linspace(1, 200, 64), {"rtol": 0.6, "atol": 40.0}, None),
    "cosine": (torch.linspace(1, 2, 64), {"cosine": 0.9, "max_abs": 10.0}, "a constant 1.5"),
    "small": (torch.linspace(-1, 1, 64) * 1e-6, {"cosine": -1.0, "max_abs": 1e-3}, "zeros"),
    "standard": (torch.linspace(-1, 1, 64) * 1e-5, {"criterion": "mixed"}, "zeros"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOOSE)
def test_a_tolerance_that_accepts_an_impostor(check, name, dtype):
    x, options, words = LOOSE[name]
    result = check(lambda x: x * 1.0, x.to(dtype), options=options)
    if words is None:
        assert result.verdict is Verdict.PASS
        return
    assert result.verdict is Verdict.VACUOUS
    assert f"accepts {words} in place of the values" in result.reason
    assert not result.passed


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (HALF_TO_ONE, {"rtol": 0.02, "atol": 0.02}),
        (HALF_TO_ONE * 1e-6, {}),
        (torch.zeros(64), {"rtol": 0.2, "atol": 0.5}),
        (torch.full((64,), 3.0), {"rtol": 0.1, "atol": 0.0}),
        (1 + torch.linspace(-1e-3, 1e-3, 64), {"rtol": 0.01, "atol": 0.0}),
        (torch.tensor(2.3), {"rtol": 0.1, "atol": 0.1}),
        (torch.tensor([]), {"rtol": 0.1, "atol": 0.1}),
        (torch.arange(64), {"rtol": 0.1, "atol": 100.0}),
        (torch.tensor([1.0, float("nan"), float("inf"), 2.0]), {"rtol": 0.1, "atol": 0.1}),
        (HALF_TO_ONE * 1e-3, {"criterion": "cosine"}),
        (HALF_TO_ONE, {"criterion": "exact"}),
    ],
)
def test_what_can_fail_passes(check, x, options):
    assert check(lambda x: x.clone(), x, options=options).verdict is Verdict.PASS


def test_an_output_of_rounding_errors_is_no_matter_of_power(check):
    x = torch.rand(4, 64)
    result = check(lambda x: (x - x.mean(-1, keepdim=True)).sum(-1), x, options={"rtol": 0.0, "atol": 1e-4})
    assert result.verdict is Verdict.PASS


def test_each_output_counts_and_gradients_count_together(check):
    def fn(x):
        return {"large": x * 10, "faint": x * 1e-6}

    x = torch.linspace(1, 2, 40)
    result = check(fn, x, options={"rtol": 1e-3, "atol": 1e-3})
    assert {o.path: o.verdict for o in result.outputs} == {
        "output['large']": Verdict.PASS,
        "output['faint']": Verdict.VACUOUS,
    }
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        model[2].weight.mul_(1e-5)  # the first layer's gradients are as faint
    assert check(model, torch.randn(9, 4), options={"rtol": 1e-3, "atol": 1e-3}).verdict is Verdict.PASS
    wide = check(model, torch.randn(9, 4), options={"rtol": 1e-3, "atol": 1e3})
    assert wide.verdict is Verdict.VACUOUS


def test_a_failure_stays_one(check):
    result = check(lambda x: x * (100 if here(x) else 1), HALF_TO_ONE, options={"rtol": 0.2, "atol": 0.5})
    assert result.verdict is Verdict.FAIL


def test_a_few_large_values_among_many_are_seen():
    golden = torch.zeros(1 << 18)
    golden[::50_000] = torch.arange(1.0, 7.0) * 100
    assert blind_spot(golden.double(), golden, Criterion("close", rtol=0.0, atol=50.0)) == ""
    assert blind_spot(golden.double(), golden, Criterion("close", rtol=0.0, atol=1e4)) == "zeros"


@pytest.mark.parametrize("name", [n for n in CRITERIA if n not in ("auto", "exact", "binary")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_criterion_is_blind_to_values_of_size_one(name, dtype):
    golden = torch.randn(300, generator=torch.Generator().manual_seed(1)).to(dtype)
    own = golden if name != "benchmark" else golden.clone()
    assert blind_spot(golden.double() * 1.0001, own, Criterion.of(name)) == ""


FUNCTIONS = {
    "exp": torch.exp,
    "softmax": lambda x: torch.softmax(x, -1),
    "matmul": lambda x: x @ x.t(),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sum": lambda x: x.sum(-1),
    "square": torch.square,
}
IMPOSTORS = {
    "zeros": torch.zeros_like,
    "constant": lambda y: torch.full_like(y, float(y.double().mean())),
    "noise": lambda y: (torch.randn(y.shape) * float(y.double().square().mean().sqrt())).to(y.dtype),
    "shuffled": lambda y: y.reshape(-1)[torch.randperm(y.numel())].view(y.shape),
    "double": lambda y: y * 2,
}


@pytest.mark.usefixtures("_emulated")
@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    impostor=st.sampled_from(sorted(IMPOSTORS)),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    size=st.sampled_from([1e-3, 1.0, 8.0]),
    seed=st.integers(0, 1 << 20),
)
def test_auto_rejects_every_impostor(name, impostor, dtype, size, seed):
    """``auto`` takes its budget from the values, so it is never asked for a proof: this is it."""
    from pytest_ascend.check import check
    from pytest_ascend.options import CheckOptions

    x = (torch.randn(12, 16, generator=torch.Generator().manual_seed(seed)) * size).to(dtype)
    y = FUNCTIONS[name](x).cpu()
    other = IMPOSTORS[impostor](y)
    if float((other.double() - y.double()).norm()) < 0.1 * float(y.double().norm()):
        return

    def fn(x):
        return IMPOSTORS[impostor](FUNCTIONS[name](x).cpu()).to(x.device) if here(x) else FUNCTIONS[name](x)

    assert check(fn, x, options=CheckOptions(target="emulated")).verdict is Verdict.FAIL
