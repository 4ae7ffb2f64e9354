"""The acceptance standards that Ascend's public documents name, each with its table.

``absolute``    every element: a relative error up to ``rtol``, or up to ``atol`` where the golden is small.
``ulp``         mean ULP error and share of elements that are several ULP off.
``thousandth``  share of elements whose relative error is above a thousandth (双千分之一 and its like).
``mixed``       99 % of the elements within ``atol + rtol x |golden|``, and a cap on the largest error.
``benchmark``   errors over those of a benchmark device, at level L0, L1 or L2 (``benchmark`` alone is L1).

(``binary``, equal bit for bit, needs no table: it is in ``standards``.) They are here because a delivery may be
measured by them, not because they tell right from wrong best: ``auto`` does. What they let pass by construction:
``ulp`` in float32 one element in twenty, however wrong, and ``thousandth`` one in a thousand; ``mixed`` one element in
a hundred up to the cap, and anything about values far below its tolerance; ``absolute`` and ``benchmark`` anything
about values below their smallest error (1e-9 and 2**-30 in float32).

Shapes, dtypes, NaN and infinities were judged before. Errors are those against the golden as it is, not rounded to the
actual's dtype. Elements equally NaN or infinite on both sides don't take part. Complex numbers count as two elements,
the real and the imaginary part, each in the precision of its part: the mixed standard's own rule for complex64.
A dtype without a row can't be judged, unless the result equals the golden rounded to it, which meets any standard.

The tables are from the documentation of msprobe's accuracy checker (mindstudio-probe on PyPI) and from
CANN's precision standards for operators (cann/opbase on GitCode, docs/zh/ops_precision_standard), as said at each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

#: names of the standards with a table; a level follows ``benchmark`` after a colon
NAMES = ("absolute", "ulp", "thousandth", "mixed", "benchmark", "benchmark:L0", "benchmark:L1", "benchmark:L2")

_F32, _F16, _BF16 = torch.float32, torch.float16, torch.bfloat16

#: ``absolute``: (rtol, small value, atol). A golden smaller than the small value has its absolute error judged.
#: Source: msprobe's accuracy checker, absolute threshold method (mul, add, div, reciprocal, rsqrt, square, ...).
ABSOLUTE: dict[torch.dtype, tuple[float, float, float]] = {
    _F32: (1e-6, 1e-6, 1e-9),
    _F16: (1e-3, 1e-3, 1e-5),
    _BF16: (4e-3, 1e-3, 1e-5),
}

#: ``ulp``: (ULP, share, mean). The share of elements more than ULP off must be below ``share``; in float32 a mean ULP
#: error below ``mean`` is enough instead. Source: msprobe's accuracy checker, ULP method (matmul, linear, bmm, ...).
ULP: dict[torch.dtype, tuple[float, float, float | None]] = {
    _F32: (32.0, 0.05, 64.0),
    _F16: (1.0, 0.001, None),
    _BF16: (1.0, 0.001, None),
}

#: ``thousandth``: the relative error, and the share of elements above it that is too much. Sources: 双千分之一 for
#: float16 (msprobe's thousandth method, conv1d and conv2d: more than 0.999 within a thousandth), 双万分之一 for float32
#: and 双千分之四 for bfloat16 (AscendOpTest's defaults; a thousandth is less than the roundoff of bfloat16).
THOUSANDTH: dict[torch.dtype, float] = {_F32: 1e-4, _F16: 1e-3, _BF16: 4e-3}

#: ``mixed``: (rtol = atol, cap on the largest absolute error). Source: cann/opbase, mixed_tolerance_standard.md.
MIXED: dict[torch.dtype, tuple[float, float]] = {
    _F32: (2.0**-13, 1e-2),
    _F16: (2.0**-10, 1e-1),
    _BF16: (2.0**-7, 1e-1),
    torch.float8_e4m3fn: (2.0**-3, 1.0),
    torch.float8_e5m2: (2.0**-2, 1.0),
}
#: ... the share of elements within tolerance that is enough, and the cap in ULP of the golden where that is more: a
#: float16 result of 60,000 can't be right to 0.1. The document says "1e-1 or 32 * ULP" and leaves open for which
#: element; here each element has the ULP of its own golden, the stricter reading.
MIXED_RATIO, MIXED_ULP = 0.99, 32.0

#: ``benchmark``: the largest (MARE) and mean (MERE) relative error and the root mean square error (RMSE) over those of
#: the benchmark, by level: L0 for ordinary operators, L1 for important ones (embedding, scatter, fused attention), L2
#: for key ones (matmul, layer_norm, gelu, sum). Source: CANN's commercial standard and msprobe's double benchmark.
LEVELS: dict[str, tuple[float, float, float]] = {"L0": (10.0, 2.0, 2.0), "L1": (5.0, 1.5, 1.5), "L2": (2.0, 1.2, 1.2)}
DEFAULT_LEVEL = "L1"
#: ... (small value, small error). A golden below the small value has no relative error: elements with more than the
#: small error are counted, and there may be twice as many as the benchmark has (at least one). The small value is also
#: the least that the benchmark's statistics count as: no benchmark is better than that.
SMALL_VALUES: dict[torch.dtype, tuple[float, float]] = {
    _F32: (2.0**-14, 2.0**-30),
    _F16: (2.0**-11, 2.0**-16),
    _BF16: (2.0**-8, 2.0**-16),
}
SMALL_RATIO = 2.0
#: added to |golden| in the standard's relative error
_EPS = 1e-7

_PIECE = 1 << 18


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a standard says: ``reason`` is empty where it is met; ``comparable`` False where it can't be asked."""

    reason: str = ""
    comparable: bool = True


def tolerance(name: str, dtype: torch.dtype) -> tuple[float, float] | None:
    """``(rtol, atol)`` that tells elements outside the standard, about; None where no single pair does."""
    dtype = real(dtype)
    if name == "absolute" and dtype in ABSOLUTE:
        rtol, _, atol = ABSOLUTE[dtype]
        return rtol, atol
    if name == "ulp" and dtype in ULP:
        return ULP[dtype][0] * torch.finfo(dtype).eps, 0.0
    if name == "thousandth" and dtype in THOUSANDTH:
        return THOUSANDTH[dtype], 0.0
    if name == "mixed" and dtype in MIXED:
        return MIXED[dtype][0], MIXED[dtype][0]
    return None


def assess(
    name: str, golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor | None, dtype: torch.dtype
) -> Finding:
    """Judge ``actual`` by the standard ``name``, one of :data:`NAMES`, with the row of ``dtype``.

    Dense CPU tensors of one shape, with at least one element. ``benchmark`` is the CPU's result in the actual's own
    dtype, which stands in for the benchmark device of ``benchmark``; the other standards don't look at it.

    Raises KeyError for another name.
    """
    method, _, level = name.partition(":")
    rows = _ROWS[method]
    if real(dtype) not in rows:
        known = ", ".join(_name(row) for row in rows)
        what = f"the Ascend standard {name!r} has no row for {_name(dtype)}, only for {known}"
        return Finding(f"{what}: judge this output by another criterion, such as auto", comparable=False)
    if method == "benchmark":
        if benchmark is None:
            what = f"the Ascend standard {name!r} needs a benchmark, the result of the CPU in {_name(dtype)}"
            return Finding(f"{what}, and there is none: hand one over, or name another criterion", comparable=False)
        found = _benchmark(golden, actual, benchmark, real(dtype), level or DEFAULT_LEVEL)
        return Finding(f"level {DEFAULT_LEVEL}: {found.reason}") if found.reason and not level else found
    return {"absolute": _absolute, "ulp": _ulp, "thousandth": _thousandth, "mixed": _mixed}[method](
        golden, actual, real(dtype)
    )


_ROWS: dict[str, tuple[torch.dtype, ...]] = {
    "absolute": tuple(ABSOLUTE),
    "ulp": tuple(ULP),
    "thousandth": tuple(THOUSANDTH),
    "mixed": tuple(MIXED),
    "benchmark": tuple(SMALL_VALUES),
}


def real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of a complex dtype; any other dtype as it is."""
    return dtype.to_real() if dtype.is_complex else dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- one standard each ----------------------------------------------------------------------------------------------


def _absolute(golden: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> Finding:
    """No element may be outside: |error| <= rtol x |golden|, or <= atol where |golden| < the small value."""
    rtol, small, atol = ABSOLUTE[dtype]
    normal = little = outside = faint = 0
    worst = furthest = 0.0
    for size, error in _pieces(golden, actual):
        below = size < small
        relative = (error / size)[~below]
        absolute = error[below]
        normal, little = normal + relative.numel(), little + absolute.numel()
        outside += int((~(relative <= rtol)).sum())
        faint += int((~(absolute <= atol)).sum())
        worst, furthest = max(worst, _largest(relative)), max(furthest, _largest(absolute))
    what = []
    if outside:
        what.append(
            f"relative error above {rtol:g} at {outside} of {normal} values (largest {worst:.3g}), and none may be"
        )
    if faint:
        where = f"values below {small:g} (largest {furthest:.3g})"
        what.append(f"absolute error above {atol:g} at {faint} of {little} {where}, and none may be")
    return Finding("; ".join(what))


def _ulp(golden: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> Finding:
    """ULP error: |error| over the step of the dtype at the golden, a real number, not a count of values between."""
    most, share, mean = ULP[dtype]
    count = over = 0
    total = 0.0
    for size, error in _pieces(golden, actual):
        ulps = error / _step(size, dtype)
        count, over, total = count + ulps.numel(), over + int((~(ulps <= most)).sum()), total + float(ulps.sum())
    if not count or over / count < share or (mean is not None and total / count < mean):
        return Finding()
    reason = f"{_percent(over, count)} more than {most:g} ULP off, which must be below {100 * share:g} %"
    if mean is not None:
        reason += f", and the mean ULP error is {total / count:.3g}, not below {mean:g} either"
    return Finding(reason)


def _thousandth(golden: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> Finding:
    """The share of elements with a relative error above the row's must be below the row's.

    Any error where the golden is zero is above it. Half the smallest step of the dtype never is: no result is nearer.
    """
    limit, info = THOUSANDTH[dtype], torch.finfo(dtype)
    nearest = info.smallest_normal * info.eps / 2
    count = over = 0
    for size, error in _pieces(golden, actual):
        count, over = count + size.numel(), over + int((~(error <= (limit * size).clamp_min(nearest))).sum())
    if not count or over / count < limit:
        return Finding()
    return Finding(
        f"{_percent(over, count)} off by a relative error above {limit:g}, which must be below {100 * limit:g} %"
    )


def _mixed(golden: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> Finding:
    tol, cap = MIXED[dtype]
    count = outside = beyond = 0
    worst, limit = 0.0, cap
    for size, error in _pieces(golden, actual):
        count, outside = count + size.numel(), outside + int((~(error <= tol + tol * size)).sum())
        caps = (MIXED_ULP * _step(size, dtype)).clamp_min(cap)
        excess = ~(error <= caps)
        if bool(excess.any()):
            beyond += int(excess.sum())
            at = int(torch.where(excess, error, 0.0).argmax())
            if float(error[at]) > worst:
                worst, limit = float(error[at]), float(caps[at])
    what = []
    if count and (count - outside) / count < MIXED_RATIO:
        matched = (
            f"matched ratio {(count - outside) / count:.4f} ({outside} of {count} outside rtol = atol = {tol:.3g})"
        )
        what.append(f"{matched} is below {MIXED_RATIO:g}")
    if beyond:
        bound = f"{limit:.3g}" if limit > cap else f"{cap:g}"
        what.append(f"max abs error {worst:.3g} is above {bound}, the larger of {cap:g} and {MIXED_ULP:g} ULP")
    return Finding("; ".join(what))


@dataclasses.dataclass(frozen=True)
class _Errors:
    """One side's errors against the golden, as the double benchmark counts them."""

    largest: float
    mean: float
    rmse: float
    small: int
    littles: int

    @classmethod
    def of(cls, golden: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> _Errors:
        small, slack = SMALL_VALUES[dtype]
        count = wrong = littles = 0
        largest = relatives = squares = 0.0
        for size, error in _pieces(golden, actual):
            below = size < small
            wrong += int((error[below] > slack).sum())
            littles += int(below.sum())
            error, size = error[~below], size[~below]
            relative = error / (size + _EPS)
            count += error.numel()
            largest = max(largest, _largest(relative))
            relatives += float(relative.sum())
            squares += float(error.square().sum())
        count = max(count, 1)
        return cls(largest, relatives / count, math.sqrt(squares / count), wrong, littles)


def _benchmark(
    golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor, dtype: torch.dtype, level: str
) -> Finding:
    """The three ratios and the count of small errors.

    One run is judged. Ratios over few elements are luck; the standard's answer, hundreds of runs with other seeds, is
    not ours: ``auto`` gives few elements more room instead.
    """
    small, slack = SMALL_VALUES[dtype]
    here, there = _Errors.of(golden, actual, dtype), _Errors.of(golden, benchmark, dtype)
    cpu, what = f"the CPU in {_name(benchmark.dtype)}", []
    names = "largest relative error", "mean relative error", "root mean square error"
    pairs = (here.largest, there.largest), (here.mean, there.mean), (here.rmse, there.rmse)
    for statistic, (x, y), limit in zip(names, pairs, LEVELS[level], strict=True):
        least = max(y, small)
        if not x <= limit * least:
            theirs = f"{y:.3g}" if y >= small else f"{y:.3g}, counted as {small:.3g}"
            what.append(f"{statistic} {x:.3g} is {x / least:.3g} x that of {cpu} ({theirs}), limit {limit:g} x")
    allowed = SMALL_RATIO * max(there.small, 1)
    if here.small > allowed:
        small_ones = f"{here.small} of {here.littles} values below {small:.3g} are more than {slack:.3g} off"
        what.append(f"{small_ones}, {there.small} of {cpu}, limit {allowed:g}")
    return Finding("; ".join(what))


# --- numbers --------------------------------------------------------------------------------------------------------


def _pieces(golden: torch.Tensor, actual: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """|golden| and |actual - golden| in float64, a piece at a time, where both are finite; complex numbers by part."""
    wide = golden.is_complex() or actual.is_complex()
    golden, actual = golden.detach().reshape(-1), actual.detach().reshape(-1)
    for start in range(0, golden.numel(), _PIECE):
        x, y = golden[start : start + _PIECE], actual[start : start + _PIECE]
        if wide:
            x, y = (torch.view_as_real(t.to(torch.complex128).resolve_conj().resolve_neg()).reshape(-1) for t in (x, y))
        x, y = x.double(), y.double()
        both = torch.isfinite(x) & torch.isfinite(y)
        if not bool(both.all()):
            x, y = x[both], y[both]
        yield x.abs(), (y - x).abs()


def _step(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance between neighbouring values of ``dtype`` at ``size``, that of its subnormal numbers at least."""
    info = torch.finfo(dtype)
    # frexp gives a mantissa from 1/2 to 1.
    power = torch.frexp(size.clamp_min(info.smallest_normal)).exponent - 1
    return torch.exp2(power.double()) * info.eps


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _percent(bad: int, count: int) -> str:
    return f"{100 * bad / count:.3g} % of the elements ({bad} of {count}) are"
