"""The error budget: how far off rounding and the function itself explain, element by element.

The *unit* of an element is its spread plus what storing it rounds away::

    unit = spread + roundoff * |golden| + smallest

``spread`` is how far the golden moves when every input is multiplied by 1 ± 2^-23 at random (Monte-Carlo arithmetic:
Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997; here the largest of four draws). It grows by itself with
cancellation, with the length of a reduction and with steep slopes, and is as large as the jump where one is near. Where
nobody measured it, it is zero. ``smallest`` is what even a right result loses near zero.

A *normalised error* is an error in units. Three statistics of them are limited: the largest (``local``), the root mean
square (``spread``), and the mean (``bias``), signed or along the golden's own sign, so that a constant, a factor and a
truncating store all lean one way. An implementation need not be perfect, only about as good as a *benchmark* is; a
limit never falls below what rounding once explains. There are two benchmarks: the CPU in the result's own dtype, and
the float32 computation rounded once.

The *strict* limits are set by the better of the two, statistic by statistic. One kernel is held to them: within them it
passes, and clearly over them it fails, unless the CPU's own kernel is as poor: where that is no rounding of the golden,
elements may be as near to it instead, and a result that is clearly better than it is no fault; that is MARGINAL. A
composition of several kernels stores its
intermediates in few bits and can't be so good. Elements as near to the CPU's own result are right there, since it
rounds at the same places; up to the *loose* limits, which the CPU in its own dtype sets alone, it is MARGINAL; beyond
them it fails.

The numbers below were measured on torch's own sample inputs with benchmarks/judgement/measure.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch

from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.judge.verdict import Kind, Verdict

__all__ = ["Finding", "Limits", "Statistics", "excess", "is_explained", "is_legal", "normalised", "unit", "weigh"]

#: The largest error: so many units, or so many times the benchmark's, which counts for no more than so much.
LOCAL, LOCAL_RATIO, LOCAL_CAP = 2.0, 3.0, 256.0
#: Root mean square likewise. Rounding once leaves 0.3 to 0.58 units.
SPREAD, SPREAD_RATIO, SPREAD_CAP = 0.75, 2.0, 64.0
#: The mean likewise, of at least so many different values, and so many standard deviations of a mean away from zero.
BIAS, BIAS_RATIO, BIAS_LEAST, BIAS_SIGMA = 0.15, 2.0, 16, 4.0
#: One kernel fails that is more than so many times over the strict limits.
CLEAR = 1.25
#: Roundoffs beside the output's root mean square below which, in a composition, an error isn't held against it: the
#: small elements of a softmax carry the rounding of large intermediates.
FLOOR = 1.0 / 32.0

_WORST = 1e150  # an error beyond any limit, whose square is still a number


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What is limited about the normalised errors of one result."""

    local: float = 0.0
    spread: float = 0.0
    bias: float = 0.0

    @classmethod
    def of(cls, errors: torch.Tensor, golden: torch.Tensor) -> Statistics:
        """Of signed normalised errors (see :func:`normalised`); a mean that may be chance counts as 0."""
        if not errors.numel():
            return cls()
        size = errors.abs()
        local, spread = float(size.max()), float(size.square().mean().sqrt())
        return cls(local, spread, _bias(errors, golden))

    def clearly_better(self, other: Statistics) -> bool:
        """Whether errors are half as large at most, and lean one way no more."""
        return 2 * self.local <= other.local and 2 * self.spread <= other.spread and self.bias <= max(BIAS, other.bias)


def _bias(errors: torch.Tensor, golden: torch.Tensor) -> float:
    if errors.numel() < BIAS_LEAST:
        return 0.0
    if errors.is_complex():
        rows = [errors.real, errors.imag, (errors * golden.conj() / golden.abs().clamp_min(1e-300)).real]
    else:
        rows = [errors, errors * torch.sign(golden)]
    worst, different = 0.0, 0
    for row in rows:
        mean = abs(float(row.mean()))
        if not mean > max(BIAS, worst):
            continue
        # Equal elements round alike: only different ones are evidence.
        different = different or int(torch.unique(golden.abs()).numel())
        deviation = float(row.std(correction=0))
        if different >= BIAS_LEAST and mean * math.sqrt(different) > BIAS_SIGMA * deviation:
            worst = mean
    return worst


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that each statistic may be."""

    local: float = LOCAL
    spread: float = SPREAD
    bias: float = BIAS

    @classmethod
    def of(cls, benchmarks: Iterable[Statistics], least_spread: float = SPREAD) -> Limits:
        """The limits that the better of the benchmarks sets, statistic by statistic; none sets those of rounding."""
        known = list(benchmarks)
        best = [min((getattr(b, name) for b in known), default=0.0) for name in ("local", "spread", "bias")]
        return cls(
            max(LOCAL, LOCAL_RATIO * min(best[0], LOCAL_CAP)),
            max(least_spread, SPREAD_RATIO * min(best[1], SPREAD_CAP)),
            max(BIAS, BIAS_RATIO * best[2]),
        )

    def times(self, found: Statistics) -> tuple[float, str]:
        """How many times over its limit the statistic is that is furthest over, and which it is."""
        return max((getattr(found, name) / getattr(self, name), name) for name in ("local", "spread", "bias"))


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the budget says of one result: PASS, MARGINAL or FAIL, why, and how far it uses up what decided."""

    verdict: Verdict
    kind: Kind | None = None
    reason: str = ""
    times: float = 0.0


def weigh(
    golden: torch.Tensor,
    actual: torch.Tensor,
    spread: torch.Tensor | None,
    benchmark: torch.Tensor,
    once: torch.Tensor | None = None,
    *,
    composed: bool = True,
) -> Finding:
    """Weigh the errors of a floating ``actual`` against its budget.

    Args:
        golden: in float64 or complex128.
        actual: dense, on the CPU, of the golden's shape.
        spread: of every element; None where it wasn't measured.
        benchmark: the CPU's result in the actual's own dtype.
        once: computed in float32 and rounded once; None where there is none.
        composed: whether intermediates may be rounded, so that the loose end decides.
    """
    golden = _within_range(golden, actual.dtype)
    width = unit(golden, actual.dtype, spread)
    errors = normalised(golden, actual, width)
    known = [benchmark] if once is None else [benchmark, once]
    strict = Limits.of(Statistics.of(normalised(golden, b, width), golden) for b in known)
    found = Statistics.of(errors, golden)
    over, which = strict.times(found)
    if over <= 1.0:
        return Finding(Verdict.PASS, times=over)
    # Where the CPU's own result isn't a rounding of the golden, being near to it is an excuse, element by element.
    own_errors = normalised(golden, benchmark, width)
    from_own = normalised(benchmark, actual, width)
    own = Statistics.of(own_errors, golden)
    excusable = from_own.abs() < errors.abs()
    if own.bias <= strict.bias:  # else all of it leans
        excusable &= own_errors.abs() > 1.0
    near = Statistics.of(torch.where(excusable, from_own, errors), golden)
    excused, worst = strict.times(near)
    dtype = dtype_name(actual.dtype)
    if not composed:
        if excused > CLEAR and not found.clearly_better(own):
            return Finding(Verdict.FAIL, Kind(worst), _reason(near, worst, strict, dtype), excused)
        also = f", as is the CPU's own in {dtype}" if excused <= 1.0 else ""
        return Finding(Verdict.MARGINAL, None, _reason(found, which, strict, dtype) + also, over)
    if excused <= 1.0:
        return Finding(Verdict.PASS, times=excused)
    width = unit(golden, actual.dtype, spread, FLOOR)
    found, own = (Statistics.of(normalised(golden, t, width), golden) for t in (actual, benchmark))
    loose = Limits.of([own])
    over, which = loose.times(found)
    if over > 1.0:
        return Finding(Verdict.FAIL, Kind(which), _reason(found, which, loose, dtype), over)
    why = f"{_reason(near, worst, strict, dtype)}; rounding intermediates may explain it"
    return Finding(Verdict.MARGINAL, None, why, excused)


_WHAT = {"local": "the largest error", "spread": "the root mean square error", "bias": "the mean error"}


def _reason(found: Statistics, which: str, limits: Limits, dtype: str) -> str:
    value, limit = getattr(found, which), getattr(limits, which)
    return (
        f"{_WHAT[which]} is {value:.3g} units, and may be {limit:.3g}; one unit is "
        f"what rounding to {dtype} and the function itself explain"
    )


def is_explained(golden: torch.Tensor, actual: torch.Tensor) -> bool:
    """Whether rounding the result alone explains its errors: a quick pass that needs neither spread nor benchmark."""
    golden = _within_range(golden, actual.dtype)
    errors = normalised(golden, actual, unit(golden, actual.dtype))
    return Limits().times(Statistics.of(errors, golden))[0] <= 1.0


def unit(
    golden: torch.Tensor, dtype: torch.dtype, spread: torch.Tensor | None = None, floor: float = 0.0
) -> torch.Tensor:
    """The unit of every element of a result of a dtype.

    ``floor`` is in roundoffs beside the golden's root mean square.
    """
    real = dtype.to_real() if dtype.is_complex else dtype
    info = torch.finfo(real)
    roundoff = info.eps / 2
    size = golden.abs().double()
    # Numbers below the smallest normal one may be flushed where the exponent has 8 bits and more; 5 bits need them.
    smallest = info.smallest_normal * (roundoff if real is torch.float16 else 1.0)
    width = roundoff * size + smallest
    if spread is not None:
        width += spread
    if floor:
        finite = size[size.isfinite()]
        width += floor * roundoff * (float(finite.square().mean().sqrt()) if finite.numel() else 0.0)
    return width.nan_to_num(nan=info.max, posinf=1e308)


def normalised(golden: torch.Tensor, other: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """Signed errors in units; where only one side is infinite or NaN, beyond any limit."""
    wide = torch.complex128 if golden.is_complex() or other.is_complex() else torch.float64
    golden, other = golden.to(wide), other.to(wide)
    equal = (golden == other) | (golden.isnan() & other.isnan())
    apart = (other - golden) / width
    size = apart.abs()
    apart = torch.where(size.isfinite() & (size < _WORST), apart, torch.full_like(apart, _WORST))
    return torch.where(equal, torch.zeros_like(apart), apart)


def _within_range(golden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The golden with what the dtype can't hold as the infinity that it rounds to."""
    if golden.is_complex():
        return golden
    info = torch.finfo(dtype)
    beyond = golden.abs() > info.max * (1 + info.eps / 4)
    return torch.where(beyond, torch.copysign(torch.full_like(golden, math.inf), golden), golden)


# --- excuses --------------------------------------------------------------------------------------------------------


def excess(
    golden: torch.Tensor,
    actual: torch.Tensor,
    benchmark: torch.Tensor | None,
    spread: torch.Tensor | None = None,
    least_spread: float = SPREAD,
) -> float:
    """How far the largest and the root mean square error use up the loose end; above 1 they overdraw it."""
    if not golden.numel():
        return 0.0
    golden = _within_range(golden, actual.dtype)
    real = actual.dtype.to_real() if actual.is_complex() else actual.dtype
    width = unit(golden, actual.dtype, spread) + torch.finfo(real).smallest_normal
    found = dataclasses.replace(Statistics.of(normalised(golden, actual, width), golden), bias=0.0)
    known = [] if benchmark is None or benchmark.shape != golden.shape else [benchmark]
    others = [Statistics.of(normalised(golden, b, width), golden) for b in known]
    return Limits.of(others, least_spread).times(found)[0]


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
        apart = torch.where(actual == golden, 0.0, math.inf).double()
        return not bool((apart > spread).any())
    return excess(golden, actual, benchmark, spread, least_spread=1.0) <= 1.0
