"""The four rules that are compared: this package's, two fixed thresholds, and the peer's.

Each answers whether a device's result is right. The last three see what their users compare: outputs, gradients and
the arguments that the CPU changed in place.
"""

from __future__ import annotations

import dataclasses

import torch

from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.reference import leaves
from samples import Bench, Function

__all__ = ["CRITERIA", "verdicts"]

CRITERIA = ("auto", "cosine", "assert_close", "peer")


def verdicts(bench: Bench, fn: Function, actual: Capture) -> dict[str, Verdict]:
    """What each criterion says about what the device did."""

    def word(right: bool) -> Verdict:
        return Verdict.PASS if right else Verdict.FAIL

    return {
        "auto": bench.judge(fn, actual).verdict,
        "cosine": word(cosine(bench, actual)),
        "assert_close": word(close(bench, actual)),
        "peer": word(peer(bench, actual)),
    }


def cosine(bench: Bench, actual: Capture) -> bool:
    """Cosine of at least 0.999 and no error above 1e-3, the rule most test suites have."""
    rule = Criterion("cosine", cosine=0.999, max_abs=1e-3)
    return not dataclasses.replace(bench.reference, criterion=rule).judge(actual, only_arguments=True).failed


def close(bench: Bench, actual: Capture) -> bool:
    """``torch.testing.assert_close`` beside the golden rounded to the result's dtype."""
    golden, here = leaves(bench.reference.golden), _compared(bench, actual)
    try:
        for path, value in here.items():
            torch.testing.assert_close(value, golden[path].to(value.dtype), equal_nan=True)
    except (AssertionError, KeyError):
        return False
    return True


def _compared(bench: Bench, actual: Capture) -> dict[str, torch.Tensor]:
    own = leaves(bench.reference.own)
    return {p: v.detach() for p, v in leaves(actual).items() if not p.startswith("mutated(") or p in own}


# --- the peer -------------------------------------------------------------------------------------------------------

SMALL = 0.001  # a largest error below this passes whatever else is wrong
LEAST_COSINE = 0.99


def peer(bench: Bench, actual: Capture) -> bool:
    """The rule of msprobe 26.2's ``acc_check``, whose golden is one precision step above the result's.

    Integers and booleans must be equal. Else a cosine of at most 0.99 is an error; else a largest error below 0.001
    passes; else it is an error when 1 % of the elements (of 16 bits) are off by 1 %, or 0.1 % (of float32) by 0.1 %.
    Its warnings pass. Outputs that only one side has are ignored. A NaN spoils the cosine, which then counts for
    nothing, and is an element off by more than any limit, on both sides alike.
    """
    golden = leaves(bench.step_up())
    return all(_one(golden[path], value) for path, value in _compared(bench, actual).items() if path in golden)


def _one(golden: torch.Tensor, actual: torch.Tensor) -> bool:
    if golden.shape != actual.shape:
        return False
    if not actual.numel():
        return True
    if not (actual.is_floating_point() or actual.is_complex()):
        return torch.equal(actual, golden.to(actual.dtype))
    narrow = actual.dtype in (torch.float16, torch.bfloat16, torch.complex32)
    g, a = (torch.view_as_real(v.resolve_conj()) if v.is_complex() else v for v in (golden.detach(), actual))
    eps = torch.finfo(a.dtype).eps
    g, a = g.double().reshape(-1), a.double().reshape(-1)
    if not _aligned(g, a):
        return False
    apart = (a - g).abs()
    if float(apart.max()) < SMALL:  # a NaN compares as not smaller
        return True
    share = 0.01 if narrow else 0.001
    within = (apart / (g.abs() + eps)) < share
    return float(within.double().mean()) > 1 - share


def _aligned(g: torch.Tensor, a: torch.Tensor) -> bool:
    """Whether the cosine is above its limit, or says nothing: one element, two results of zeros, a NaN."""
    most = torch.finfo(torch.float64).eps
    if g.numel() == 1:
        return True
    zero = float(g.abs().max()) <= most, float(a.abs().max()) <= most
    if any(zero):
        return all(zero)
    g, a = g / g.abs().max(), a / a.abs().max()
    value = float((g @ a) / (g.norm() * a.norm()))
    return value != value or value > LEAST_COSINE
