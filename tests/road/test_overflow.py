"""An overflow is named one: from the numbers on the way, and from being right with smaller inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    return x.device.type == "npu"


def in_half(x):
    """Numbers as a kernel holds them that doesn't widen: float16 on the device, float32 elsewhere."""
    return x if here(x) else x.float()


def norm(x):
    wide = in_half(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def cosine(x):
    wide = in_half(x)
    return ((wide * wide.flip(-1)).sum(-1) / wide.square().sum(-1)).to(x.dtype)


def naive_softmax(x):
    if not here(x):
        return torch.softmax(x, -1)
    y = torch.exp(x)
    return (y / y.sum(-1, keepdim=True)).to(x.dtype)


def distance(x):
    wide = in_half(x)
    return torch.sqrt(((wide - wide.mean(-1, keepdim=True)) ** 2).mean(-1)).to(x.dtype)


def partial_sums(x):
    """Terms that grow beyond the range and cancel, in the accumulator of a product."""
    ones = torch.ones(x.shape[-1], 1, dtype=x.dtype, device=x.device)
    if not here(x):
        return x @ ones
    total = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
    for column in x.split(1, -1):
        total = total + column
    return total


LARGE = torch.linspace(500, 900, 64).repeat(3, 1)
CASES = {
    "norm": (norm, LARGE),
    "cosine": (cosine, LARGE),
    "softmax": (naive_softmax, torch.linspace(0, 60, 64).repeat(3, 1)),
    "distance": (distance, LARGE - LARGE.mean(-1, keepdim=True) * torch.linspace(-1, 1, 64)),
    "partial_sums": (partial_sums, torch.cat([torch.full((3, 100), 896.0), torch.full((3, 100), -896.0)], 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_overflow_on_the_way(check, name):
    fn, x = CASES[name]
    result = check(fn, x.half())
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.overflow
    assert "right with inputs divided by" in result.reason
    assert "65504" in result.reason
    assert check(fn, (x / 1024).half()).kind is not Kind.overflow


def test_an_overflow_in_float32(check):
    def hypotenuse(x):
        return torch.sqrt((x * x).sum(-1)) if here(x) else torch.linalg.vector_norm(x.double(), dim=-1).float()

    result = check(hypotenuse, torch.rand(8, 5) * 1e20)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.overflow


FAULTS = {
    "constant_inf": lambda y: torch.full_like(y, float("inf")),
    "one_nan": lambda y: torch.where(torch.arange(y.shape[-1], device=y.device) == 3, float("nan"), y),
    "zeros": torch.zeros_like,
    "factor": lambda y: y * 1.5,
    "tail": lambda y: torch.cat([y[..., :-5], torch.zeros_like(y[..., -5:])], -1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_other_faults_keep_their_names(check, name):
    """With numbers as large: what is wrong with smaller ones too isn't an overflow."""

    def fn(x):
        y = F.rms_norm(x.float(), (64,)).to(x.dtype)
        return FAULTS[name](y) if here(x) else y

    result = check(fn, LARGE.half())
    assert result.verdict is Verdict.FAIL
    assert result.kind is not Kind.overflow


def test_small_numbers_do_not_overflow(check):
    def fn(x):  # right with smaller inputs, as an overflow is, but nothing here is large
        return torch.where(x > 0.5, float("nan"), x) if here(x) else x * 1.0

    assert check(fn, torch.rand(64)).kind is Kind.non_finite
    assert check(fn, torch.rand(64).half()).kind is Kind.non_finite


def test_an_infinite_mask_is_no_overflow(check):
    mask = torch.tensor([0.0, float("-inf")] * 8)

    def fn(x, mask):
        y = torch.softmax(x + mask, -1)
        return y * (float("nan") if here(x) and float(x.detach().amax()) > 1 else 1)

    assert check(fn, torch.linspace(0, 3, 16), mask).kind is Kind.non_finite


def test_explicit_thresholds_are_told_the_cause_too(check):
    result = check(norm, LARGE.half(), options={"rtol": 1e-2, "atol": 1e-3})
    assert result.kind is Kind.overflow
