"""How far a function itself carries a change in the last bits of its inputs (Monte-Carlo arithmetic).

The golden is computed again with every floating input multiplied by 1 ± 2^-23, signs drawn at random, and for a module
every parameter by 1 ± its dtype's unit roundoff. The largest change of an element over four such runs is its spread:
large under cancellation, on steep slopes, and as large as the jump where a discontinuity is near (a floor, a tie). Runs
come in pairs of opposite signs, so that a jump on either side of an input is met. An error is legal when it is no
larger, in units of that spread, than errors of the CPU's own result are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.transfer import Entry, flat_storage
from pytest_ascend.observe.capture import Capture, Setting, run
from pytest_ascend.observe.reference import leaves
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["conditioning", "excess", "is_legal"]

RUNS = 4
INPUT_ROUNDOFF = 2.0**-23
_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
# The error budget's limits: the largest error (at least this many units, or this many times the benchmark's, which
# counts for no more than so much) and the root mean square likewise.
_LOCAL, _LOCAL_RATIO, _LOCAL_CAP = 2.0, 3.0, 256.0
_SPREAD, _SPREAD_RATIO, _SPREAD_CAP = 0.75, 2.0, 64.0


def conditioning(
    case: Case, setting: Setting, golden: Capture, fn: Callable[..., Any] | None, paths: Collection[str]
) -> dict[str, torch.Tensor]:
    """The spread of every element at the given paths, as float64 tensors of the outputs' shapes.

    Raises:
        RunFailed: the function raised with slightly changed inputs.
    """
    if not paths:
        return {}
    before = leaves(golden)
    found: dict[str, torch.Tensor] = {}
    for i in range(RUNS):
        after = leaves(run(case, CpuTarget(), setting, floating=torch.float64, fn=fn, poison=_shaker(case, i)))
        for path in paths:
            if path in before and path in after and before[path].shape == after[path].shape:
                change = _distance(after[path], before[path])
                found[path] = change if path not in found else torch.maximum(found[path], change)
    return found


def _shaker(case: Case, number: int) -> Callable[[Entry], None]:
    """Changes the last bit of every floating input, storage by storage so that views stay consistent."""
    generator = torch.Generator(device="cpu").manual_seed(number // 2)
    direction = 1 if number % 2 else -1
    done: set[int] = set()

    def shake(entry: Entry) -> None:
        roundoff = INPUT_ROUNDOFF
        if entry.role != "argument":
            roundoff = _ROUNDOFF.get(entry.source.dtype, INPUT_ROUNDOFF)
        storage = flat_storage(entry.copy)
        if storage is None or storage[0] in done or not (entry.copy.is_floating_point() or entry.copy.is_complex()):
            return
        done.add(storage[0])
        with torch.no_grad():
            signs = torch.randint(0, 2, storage[1].shape, generator=generator).mul_(2).sub_(1)
            storage[1].mul_(1 + direction * roundoff * signs.to(torch.float64))

    return shake


def _distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Element-wise, NaN-safe; integers and booleans that differ are infinitely far apart."""
    if not (left.is_floating_point() or left.is_complex()):
        return torch.where(left == right, 0.0, float("inf")).double()
    wide = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
    left, right = left.to(wide), right.to(wide)
    equal = (left == right) | (left.isnan() & right.isnan())
    return torch.where(equal, 0.0, (left - right).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))).double()


def is_legal(
    golden: torch.Tensor, actual: torch.Tensor | None, benchmark: torch.Tensor | None, spread: torch.Tensor
) -> bool:
    """Whether every error of ``actual`` is what the function makes of the last bits of its inputs.

    An output that the perturbation doesn't move at all (the spread is zero everywhere) is never excused. One jump in
    every element, the spread itself, is.
    """
    if actual is None or actual.shape != golden.shape or not bool((spread > 0).any()):
        return False
    if not (golden.is_floating_point() or golden.is_complex()):
        return not bool((_distance(actual, golden) > spread).any())
    return excess(golden, actual, benchmark, spread, least_rms=1.0) <= 1.0


def excess(
    golden: torch.Tensor,
    actual: torch.Tensor,
    benchmark: torch.Tensor | None,
    spread: torch.Tensor | None = None,
    least_rms: float = _SPREAD,
) -> float:
    """How far the errors of a floating ``actual`` use up the error budget; above 1 they overdraw it.

    The unit of an element is its spread plus the dtype's roundoff times the golden plus its smallest normal number.
    Without a spread, what rounding the result alone would explain.
    """
    if not golden.numel():
        return 0.0
    real = actual.dtype.to_real() if actual.is_complex() else actual.dtype
    roundoff, info = _ROUNDOFF.get(real, 2.0**-53), torch.finfo(real)
    if not golden.is_complex():  # what the dtype can't hold rounds to an infinity
        beyond = golden.abs() > info.max * (1 + roundoff)
        golden = torch.where(beyond, torch.copysign(torch.full_like(golden, float("inf")), golden), golden)
    unit = roundoff * golden.abs().double() + info.tiny + (0.0 if spread is None else spread)
    unit = unit.nan_to_num(nan=info.max, posinf=1e308)
    wrong = _normal(golden, actual, unit)
    same = benchmark is not None and benchmark.shape == golden.shape
    theirs = _normal(golden, benchmark, unit) if benchmark is not None and same else torch.zeros_like(wrong)
    worst, rms = (float(theirs.max()), float(theirs.square().mean().sqrt()))
    most = max(_LOCAL, _LOCAL_RATIO * min(worst, _LOCAL_CAP))
    most_rms = max(least_rms, _SPREAD_RATIO * min(rms, _SPREAD_CAP))
    return max(float(wrong.max()) / most, float(wrong.square().mean().sqrt()) / most_rms)


def _normal(golden: torch.Tensor, other: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """Errors in units; where one side is infinite or NaN and the other isn't, beyond any limit."""
    apart = _distance(other, golden)
    return torch.where(apart == 0, 0.0, (apart / unit).nan_to_num(nan=1e300, posinf=1e300)).clamp_(max=1e150)
