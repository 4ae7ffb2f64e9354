"""The error budget: how far off rounding and the function itself explain, element by element.

The *unit* of an element is its spread plus what storing it rounds away::

    unit = spread + roundoff * |golden| + smallest

``spread`` is how far the golden moves when its inputs are multiplied by 1 ± 2^-23 and what it hands from one kernel to
the next by 1 ± the dtype's roundoff, at random (Monte-Carlo arithmetic: Parker, "Monte Carlo Arithmetic", UCLA
CSD-970002, 1997; here the largest of four draws, or what four give on the average where these moved it by little). It
grows by itself with cancellation, with the length of a reduction, with steep slopes and with every intermediate that is
stored in few bits, and is as large as the jump where one is near. Where nobody measured it, it is zero. ``smallest`` is
what even a right result loses near zero.

A *normalised error* is an error in units. Three statistics of them are limited: the largest (``local``), the root mean
square (``spread``), and the mean (``bias``), signed or along the golden's own sign, so that a constant, a factor and a
truncating store all lean one way. An implementation need not be perfect, only about as good as a *benchmark* is; a
limit never falls below what rounding explains. Benchmarks are the CPU in the result's own dtype and, for 16 bits, the
float32 computation rounded once; the better of the two sets the limits, statistic by statistic.

Where the CPU's own kernel is poor, elements may be as near to it as to the golden, and a result that is clearly better
than it is no fault: that is MARGINAL. It excuses no few elements that are off among others that are right.

Two faults hide within a unit and show only in all elements together: values that were stored without rounding, which
all err to one side, and values that were stored in fewer bits, which all end in zeros.

The numbers below were measured on torch's own sample inputs with benchmarks/judgement/measure.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch

from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.judge.verdict import Kind, Verdict

__all__ = [
    *("Finding", "Limits", "Statistics", "excess", "is_beyond", "is_explained", "is_legal", "normalised", "unit"),
    "weigh",
]

#: The largest error: so many units, or so many times the benchmark's, which counts for no more than so much.
LOCAL, LOCAL_RATIO, LOCAL_CAP = 1.5, 3.0, 256.0
#: Root mean square likewise. Rounding once leaves 0.3 to 0.58 units, and of a few elements more.
SPREAD, SPREAD_FEW, SPREAD_RATIO, SPREAD_CAP = 0.75, 0.75, 2.0, 64.0
#: In float32 and wider faults are thousands of units large, and a kernel's own roundings need more room: a constant
#: that was rounded is off by one roundoff, always the same way.
WIDE_LOCAL, WIDE_SPREAD, WIDE_BIAS = 8.0, 2.0, 1.5
#: The mean likewise, of at least so many different values, and so many standard deviations of a mean away from zero.
BIAS, BIAS_FEW, BIAS_RATIO, BIAS_LEAST, BIAS_SIGMA = 0.15, 0.6, 2.0, 8, 4.0
#: Fewer different values than this must be surer of it.
BIAS_MANY, BIAS_SURE = 16, 6.0
#: What is rounded more than once may lean a little more.
COMPOSED_BIAS = 0.25
#: Roundoffs of float32 and wider that a kernel's own steps may add up to; faults are thousands.
WIDE_ROUNDOFFS = 8.0
#: The mean counts of elements whose unit is at most so many times what storing them rounds away.
STEADY = 8.0
#: A unit that is so many times what storing rounds away is mostly carried there; an error's standard deviation then.
CARRIED, CARRIED_SIGMA = 3.0, 0.45
#: Of so many elements at least, one in FEW may be called wrong among others that are right.
FEW_LEAST, FEW = 8, 8
#: As unlikely a coincidence as this isn't one: all errors to one side, all values ending in zeros.
CHANCE = 2.5e-4
#: Share of elements that may err to the other side of a store without rounding.
OTHER_SIDE = 0.02
#: Share below which a benchmark errs to that side as well, so that it proves nothing.
NO_SIDE = 0.15
#: Further than this from the golden (relative Euclidean distance) the CPU's own result is no yardstick.
LOST = 0.3

#: Elements that are looked at first for different ones.
_FIRST = 1 << 14
_WORST = 1e150  # an error beyond any limit, whose square is still a number


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What is limited about the normalised errors of one result."""

    local: float = 0.0
    spread: float = 0.0
    bias: float = 0.0

    @classmethod
    def of(
        cls,
        errors: torch.Tensor,
        golden: torch.Tensor,
        steady: torch.Tensor | None = None,
        tail: torch.Tensor | None = None,
    ) -> Statistics:
        """Of signed normalised errors (see :func:`normalised`); a mean that may be chance counts as 0.

        ``steady`` marks the elements whose mean counts: a jump goes one way only, and says nothing by that. ``tail`` is
        how many times as large the largest of them may be as a single one (see :func:`_largest`).
        """
        if not errors.numel():
            return cls()
        size = errors.abs()
        spread = float(size.square().mean().sqrt())
        local = float((size if tail is None else size / tail).max())
        if steady is not None:
            errors, golden = errors[steady], golden[steady]
        return cls(local, spread, _bias(errors, golden))

    def clearly_better(self, other: Statistics) -> bool:
        """Whether errors are half as large at most as others (up to the caps), and lean no more."""
        local, spread = min(other.local, LOCAL_CAP), min(other.spread, SPREAD_CAP)
        return 2 * self.local <= local and 2 * self.spread <= spread and self.bias <= max(BIAS, other.bias)


def _bias(errors: torch.Tensor, golden: torch.Tensor) -> float:
    if errors.numel() < BIAS_LEAST:
        return 0.0
    if errors.is_complex():
        rows = [errors.real, errors.imag, (errors * golden.conj() / golden.abs().clamp_min(1e-300)).real]
    else:
        rows = [errors, errors * torch.sign(golden)]
    worst, different = 0.0, 0
    few: int | None = None
    for row in rows:
        mean = abs(float(row.mean()))
        if not mean > max(BIAS, worst):
            continue
        deviation = float(row.std(correction=0))
        if few is None:
            few = int(torch.unique(golden.reshape(-1)[:_FIRST].abs()).numel())
        if few >= BIAS_LEAST and mean * math.sqrt(few) > max(BIAS_SIGMA, BIAS_SURE) * deviation:
            worst = mean  # the others, which take long to sort, would only add to it
            continue
        # Equal elements round alike: only different ones are evidence.
        different = different or int(torch.unique(golden.abs()).numel())
        sigma = BIAS_SIGMA if different >= BIAS_MANY else BIAS_SURE
        if different >= BIAS_LEAST and mean * math.sqrt(different) > sigma * deviation:
            worst = mean
    return worst


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that each statistic may be."""

    local: float = LOCAL
    spread: float = SPREAD
    bias: float = BIAS

    @classmethod
    def of(
        cls,
        benchmarks: Iterable[Statistics],
        dtype: torch.dtype,
        count: int,
        *,
        composed: bool = False,
        least_spread: float = 0.0,
    ) -> Limits:
        """The limits that the better of the benchmarks sets for so many elements, statistic by statistic.

        None sets those of rounding.
        """
        known = list(benchmarks)
        best = [min((getattr(b, name) for b in known), default=0.0) for name in ("local", "spread", "bias")]
        narrow = dtype.itemsize <= 2
        local, spread, bias = WIDE_LOCAL, WIDE_SPREAD, WIDE_BIAS
        if narrow:  # a mean of few elements may be far from what it is of many
            few = 1 / math.sqrt(max(1, count))
            local, spread = LOCAL, SPREAD + SPREAD_FEW * few
            bias = (COMPOSED_BIAS if composed else BIAS) + BIAS_FEW * few
        return cls(
            max(local, LOCAL_RATIO * min(best[0], LOCAL_CAP)),
            max(spread, least_spread, SPREAD_RATIO * min(best[1], SPREAD_CAP)),
            max(bias, BIAS_RATIO * best[2]),
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
    drawn: bool = True,
) -> Finding:
    """Weigh the errors of a floating ``actual`` against its budget.

    Args:
        golden: in float64 or complex128.
        actual: dense, on the CPU, of the golden's shape.
        spread: of every element; None where it wasn't measured.
        benchmark: the CPU's result in the actual's own dtype.
        once: computed in float32 and rounded once; None where there is none.
        composed: whether intermediates may be rounded, so that being as near to the CPU's own result is right.
        drawn: whether the spread is the largest of a few draws, so that among many elements some errors are beyond it.
    """
    golden = _within_range(golden, actual.dtype)
    known = [benchmark] if once is None else [benchmark, once]
    found = _by_size(golden, actual, spread, known, composed, drawn)
    if found.verdict in (Verdict.PASS, Verdict.MARGINAL):
        return _as_stored(golden, actual, known) or found
    return found


def _by_size(
    golden: torch.Tensor,
    actual: torch.Tensor,
    spread: torch.Tensor | None,
    known: list[torch.Tensor],
    composed: bool,
    drawn: bool,
) -> Finding:
    """What the sizes of the errors say, beside the benchmarks, of which the CPU's own result comes first."""
    dtype, narrow = dtype_name(actual.dtype), actual.dtype.itemsize <= 2
    least = unit(golden, actual.dtype)
    width = unit(golden, actual.dtype, spread)
    steady, tail = width <= STEADY * least, _largest(width, least) if narrow and drawn else None
    if _is_wide(actual.dtype):
        width += (WIDE_ROUNDOFFS - 1) * least
    errors = normalised(golden, actual, width)
    theirs = [Statistics.of(normalised(golden, b, width), golden, steady, tail) for b in known]
    strict = Limits.of(theirs, actual.dtype, actual.numel(), composed=composed)
    found = Statistics.of(errors, golden, steady, tail)
    over, which = strict.times(found)
    if over <= 1.0:
        return Finding(Verdict.PASS, times=over)
    # Where what the CPU computes isn't a rounding of the golden, being near to it is an excuse, element by element.
    own, nearest = theirs[0], errors
    for other, its in zip(known, theirs, strict=True):
        beside, far = normalised(other, actual, width), normalised(golden, other, width)
        rest = torch.where(far.abs() > 1.0, 0.0, far)
        excusable = beside.abs() < nearest.abs()
        if max(its.bias, Statistics.of(rest, golden, steady).bias) <= strict.bias:  # else all of it leans
            excusable &= far.abs() > 1.0
        nearest = torch.where(excusable, beside, nearest)
    near = Statistics.of(nearest, golden, steady, tail)
    excused, worst = strict.times(near)
    if excused <= 1.0:
        why = _reason(found, which, strict, dtype)
        if _distance(golden, known[0]) > LOST and own.local > LOCAL_CAP:
            why = f"{why}; the CPU's own in {dtype} is as far from it, so who is right?"
            return Finding(Verdict.REFERENCE_SUSPECT, None, why, over)
        if composed or not narrow:
            return Finding(Verdict.PASS, times=excused)
        return Finding(Verdict.MARGINAL, None, f"{why}, as is the CPU's own in {dtype}", over)
    strange = int((golden.isfinite() != actual.isfinite()).sum())
    if strange:
        why = f"{strange} of {actual.numel()} elements are finite on one side only"
        return Finding(Verdict.FAIL, Kind.non_finite, why, excused)
    why = _reason(near, worst, strict, dtype)
    if narrow and found.clearly_better(own) and not _few(errors):
        return Finding(Verdict.MARGINAL, None, why, excused)
    return Finding(Verdict.FAIL, _kind(nearest, golden, strict, worst), why, excused)


def _largest(width: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """How many times as large as one may be the largest of all elements whose units are mostly what is carried there.

    Such an error is a sum of several roundings, and the largest of n normal numbers grows like the root of 2 ln n. Its
    standard deviation was measured as 0.45 units (4 draws of up to 1.5 roundoffs, errors of up to one).
    """
    carried = width > CARRIED * least
    factor = CARRIED_SIGMA * (math.sqrt(2 * math.log(max(1, int(carried.sum())))) + 1) / LOCAL
    return torch.where(carried, max(1.0, factor), 1.0)


def _kind(errors: torch.Tensor, golden: torch.Tensor, limits: Limits, worst: str) -> Kind:
    """What sort of failure it is: a few elements, all of them, or all of them one way."""
    size, count = errors.abs(), errors.numel()
    typical = size.median()
    capped = errors * (4 * typical / size.clamp_min(1e-300)).clamp_max(1.0)  # a few large ones are no mean
    rows = [capped] if capped.is_complex() else [capped, capped * torch.sign(golden)]
    leaning = max(float(row.mean().abs()) for row in rows) > 0.8 * float(capped.abs().mean())
    if worst == "bias" or (count >= BIAS_LEAST and leaning):
        return Kind.bias
    return Kind.local if 0 < int((size > limits.local).sum()) <= max(1, count // 10) else Kind.spread


def _few(errors: torch.Tensor) -> bool:
    """Whether all elements but one in eight are right: then the others are no rounding of a poor kernel."""
    count = errors.numel()
    if count < FEW_LEAST:
        return False
    rest = errors.abs().reshape(-1).sort().values[: -max(1, count // FEW)]
    return float(rest.max()) <= LOCAL and float(rest.square().mean().sqrt()) <= SPREAD


def _distance(golden: torch.Tensor, other: torch.Tensor) -> float:
    """Relative Euclidean distance; 0 for a golden of zeros."""
    size = float(golden.abs().square().sum())
    return math.sqrt(float((other.to(golden.dtype) - golden).abs().square().sum()) / size) if size else 0.0


# --- how values were stored -----------------------------------------------------------------------------------------


def _as_stored(golden: torch.Tensor, actual: torch.Tensor, benchmarks: list[torch.Tensor]) -> Finding | None:
    """What is wrong about the last bits of all elements together; None where they are as they should be.

    Only elements count whose golden lies well between two numbers of the dtype, and equal ones count once.
    """
    if golden.is_complex() or actual.dtype not in _WORD:
        return None
    info = torch.finfo(actual.dtype)
    near = golden.to(actual.dtype)
    step = (torch.frexp(golden).exponent.double() - 1).exp2() * info.eps
    between = (near.double() - golden).abs() > step / 64
    between &= golden.isfinite() & actual.isfinite() & (golden.abs() > info.smallest_normal)
    if int(between.sum()) < FEW_LEAST:
        return None
    exact, here, step = golden[between], actual[between], step[between]
    others = [b[between] for b in benchmarks]
    reason = _one_sided(exact, here.double(), [b.double() for b in others], step)
    if reason:
        return Finding(Verdict.FAIL, Kind.bias, reason, math.inf)
    reason = _coarse(near[between], here, others[0], dtype_name(actual.dtype))
    return Finding(Verdict.FAIL, Kind.spread, reason, math.inf) if reason else None


_WORD = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}


def _one_sided(exact: torch.Tensor, here: torch.Tensor, others: list[torch.Tensor], step: torch.Tensor) -> str:
    sign = torch.sign(exact)
    apart = here - exact
    if float((apart.abs() > 1.02 * step).double().mean()) > OTHER_SIDE:
        return ""  # more than a store does
    different = int(torch.unique(exact.abs()).numel())
    for side, along in (("zero", -sign), ("", torch.ones_like(sign))):
        for way in (along, -along):
            beyond = float((apart * way < 0).double().mean())
            if beyond > OTHER_SIDE or _tail(different, beyond) > CHANCE:
                continue
            if any(float(((other - exact) * way < 0).double().mean()) < NO_SIDE for other in others):
                continue
            where = ("towards" if way is along else "away from") + " zero" if side else "one way"
            return f"all errors go {where}: the values were stored without rounding to the nearest"
    return ""


def _tail(count: int, share: float) -> float:
    """At most how likely it is that no more than a share of ``count`` fair coins show heads (Chernoff)."""
    below = share * math.log(2 * share) if share > 0 else 0.0
    return math.exp(-count * (below + (1 - share) * math.log(2 * (1 - share))))


def _coarse(near: torch.Tensor, here: torch.Tensor, benchmark: torch.Tensor, dtype: str) -> str:
    """Whether all values end in two or more zero bits where neither the golden's nor the benchmark's do."""
    word = _WORD[here.dtype]
    found = 0
    for bits in range(2, 17):
        mask = (1 << bits) - 1
        if bool((here.view(word) & mask).any()):
            break
        ending = (near.view(word) & mask) != 0
        odd = int(torch.unique(near[ending]).numel())
        also = float(((benchmark.view(word) & mask) != 0).double().mean())
        if also > 0.25 and 2.0 ** (-bits * odd) < CHANCE**2:
            found = bits
    return f"all values end in {found} zero bits: they were stored in fewer bits than {dtype} has" if found else ""


_WHAT = {"local": "the largest error", "spread": "the root mean square error", "bias": "the mean error"}


def _reason(found: Statistics, which: str, limits: Limits, dtype: str) -> str:
    value, limit = getattr(found, which), getattr(limits, which)
    return (
        f"{_WHAT[which]} is {value:.3g} units, and may be {limit:.3g}; one unit is "
        f"what rounding to {dtype} and the function itself explain"
    )


def is_explained(golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor | None = None) -> bool:
    """Whether rounding alone explains the errors: a quick pass that needs no spread, which could only widen the units.

    In 16 bits that is rounding the result. Of a wider result it is what a kernel's own steps may add up to, where a
    benchmark shows how the values should have been stored.
    """
    golden = _within_range(golden, actual.dtype)
    width, limits, known = unit(golden, actual.dtype), Limits(), []
    if _is_wide(actual.dtype) and benchmark is not None:
        width, limits, known = width * WIDE_ROUNDOFFS, Limits(WIDE_LOCAL, WIDE_SPREAD, WIDE_BIAS), [benchmark]
    if limits.times(Statistics.of(normalised(golden, actual, width), golden))[0] > 1.0:
        return False
    return not known or _as_stored(golden, actual, known) is None


def _is_wide(dtype: torch.dtype) -> bool:
    return dtype.itemsize > 2 and dtype is not torch.complex32


def is_beyond(golden: torch.Tensor, actual: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Which elements are further off than one may be by itself: booleans of the result's shape."""
    golden = _within_range(golden, actual.dtype)
    return normalised(golden, actual, unit(golden, actual.dtype, spread)).abs() > LOCAL


def unit(golden: torch.Tensor, dtype: torch.dtype, spread: torch.Tensor | None = None) -> torch.Tensor:
    """The unit of every element of a result of a dtype."""
    real = dtype.to_real() if dtype.is_complex else dtype
    info = torch.finfo(real)
    roundoff = info.eps / 2
    size = golden.abs().double()
    width = roundoff * size + info.smallest_normal * roundoff
    if spread is not None:
        width += spread
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
    least_spread: float = 0.0,
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
    return Limits.of(others, actual.dtype, actual.numel(), least_spread=least_spread).times(found)[0]


#: Units from which the CPU's own error isn't what the spread explains, and how often that error may be the actual's.
UNEXPLAINED, NOISE_RATIO = 8.0, 3.0


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
    if excess(golden, actual, benchmark, spread, least_spread=1.0) <= 1.0:
        return True
    if benchmark is None or benchmark.shape != golden.shape:
        return False
    golden, actual, benchmark = _without_noise(golden, actual, benchmark, spread)
    return excess(golden, actual, benchmark, spread, least_spread=1.0) <= 1.0


def _without_noise(
    golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor, spread: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sides with the golden's values where the spread is no yardstick, and the actual is as good as the CPU.

    A gradient that is zero by cancellation, such as that of a key's bias in attention, moves by nothing in float64, and
    is what rounding leaves of it in the case's own dtype. Where the CPU's error isn't explained by the spread either,
    and wherever the spread is as small as there, errors may be :data:`NOISE_RATIO` times the CPU's largest one.
    """
    width = unit(golden, actual.dtype, spread)
    own, error = ((side.to(golden.dtype) - golden).abs() for side in (benchmark, actual))
    beyond = own > UNEXPLAINED * width
    if not bool(beyond.any()) or not bool(own.isfinite().all()):
        return golden, actual, benchmark
    small = width <= width[beyond].max()
    noise = small & (error <= NOISE_RATIO * own[small].max())
    actual = torch.where(noise, golden, actual.to(golden.dtype)).to(actual.dtype)
    return golden, actual, torch.where(small, golden, benchmark.to(golden.dtype)).to(benchmark.dtype)
