"""The criteria: how far from the golden is too far.

``exact``   equal, element by element.
``close``   the per-dtype table of ``torch.testing.assert_close`` (torch/testing/_comparison.py), against the golden.
``cosine``  cosine similarity and largest absolute error, with two levels: a warning below 0.999 or above 1e-2, a
            failure below 0.99 or above 1e-1. Blind by construction to errors that are small in absolute terms.
``auto``    the error budget (``budget``) where a check can ask it: it needs reruns of the golden. For results without
            a case, for models and for float64: the table first, its absolute tolerance times the size of the data; what
            is outside it is right all the same where the target is about as far from the golden as the CPU is in the
            same dtype (:func:`_as_good_as`).
``binary``  equal bit for bit, the signs of zeros included: Ascend's binary consistency, an error rate of 0 (msprobe's
            accuracy checker; abs, gather, relu, reshape, sort, topk, ...). Any NaN is as good as another.
The other names are Ascend's acceptance standards with a table per dtype: see ``ascend_standards``.

Whatever the criterion, NaN and infinities must match first, and integers and booleans are exact (``close`` with
explicit tolerances applies these to integers too).
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math

import torch

from pytest_ascend.judge import ascend_standards
from pytest_ascend.judge.metrics import measure, non_finite_mismatches
from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.judge.verdict import Element, Kind, Metrics, Verdict

#: names of the criteria that judge one output, the default first
CRITERIA = ("auto", "cosine", "exact", "close", "binary", *ascend_standards.NAMES)

#: (rtol, atol) of torch.testing.assert_close by dtype, and by the same pattern float8: one eps, one smallest step
TABLE: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
#: of the criterion ``cosine``
WARN_COSINE, WARN_MAX_ABS = 0.999, 1e-2
FAIL_COSINE, FAIL_MAX_ABS = 0.99, 1e-1

#: Ascend's commercial acceptance standard against a benchmark device, level L0: the target's largest relative error,
#: mean relative error and root mean square error over the benchmark's.
L0_MAX_REL, L0_MEAN_REL, L0_RMSE = ascend_standards.LEVELS["L0"]
#: Its small values, below which relative errors mean nothing; they are for data of size one, so here they are times the
#: root mean square of the golden. Other dtypes by the pattern of the two 16-bit ones: the unit roundoff.
SMALL = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-14, torch.float64: 2.0**-43}
#: A single element may be this many times as wrong as the benchmark's worst (the error budget's rule for local faults).
LOCAL_RATIO = 3.0
#: ... and this many units in any case: a benchmark that is lucky on few elements is no yardstick.
LOCAL_UNITS = 8.0
#: A benchmark this far from the golden (relative Euclidean distance) is no yardstick at all.
LOST = 0.3


@dataclasses.dataclass(frozen=True)
class Criterion:
    """A criterion by name with its thresholds; None takes the criterion's own.

    ``cosine`` (smallest that passes, in [-1, 1]) and ``max_abs`` (largest that passes) belong to ``cosine``, ``rtol``
    and ``atol`` to ``close``. Raises ValueError for an unknown name, for a threshold that is NaN, infinite or out of
    range, and for one that the criterion doesn't use.
    """

    name: str = "auto"
    cosine: float | None = None
    max_abs: float | None = None
    rtol: float | None = None
    atol: float | None = None

    @classmethod
    def of(
        cls,
        name: str | Criterion = "auto",
        *,
        cosine: float | None = None,
        max_abs: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> Criterion:
        """The criterion ``name``; ``auto`` with thresholds becomes the criterion they belong to.

        Raises ValueError as the class does.
        """
        thresholds = {"cosine": cosine, "max_abs": max_abs, "rtol": rtol, "atol": atol}
        given = {k: v for k, v in thresholds.items() if v is not None}
        if isinstance(name, Criterion):
            if not given:
                return name
            given = {**name.thresholds, **given}
            name = name.name
        if name == "auto" and given:
            name = "close" if given.keys() <= {"rtol", "atol"} else "cosine"
        return cls(name, **given)

    def __post_init__(self) -> None:
        if self.name not in CRITERIA:
            near = difflib.get_close_matches(str(self.name), CRITERIA, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"criterion {self.name!r} is not known: give one of {', '.join(CRITERIA)}{hint}")
        for name, low, high in (("cosine", -1.0, 1.0), *((n, 0.0, math.inf) for n in ("max_abs", "rtol", "atol"))):
            value = getattr(self, name)
            if value is None:
                continue
            span = f"a number in [{low:g}, {high:g}]" if high < math.inf else "a finite number >= 0"
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"{name}={value!r} can't be a threshold: give {span}")
            if not low <= value <= high:
                raise ValueError(f"{name}={value!r} can't be a threshold: give {span}")
            if name not in _USES.get(self.name, ()):
                raise ValueError(f"criterion {self.name!r} doesn't use {name}: {_OWNER[name]!r} does, so name that one")

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds that were given, by name."""
        known = {"cosine": self.cosine, "max_abs": self.max_abs, "rtol": self.rtol, "atol": self.atol}
        return {name: value for name, value in known.items() if value is not None}

    def tolerance(self, *dtypes: torch.dtype) -> tuple[float, float]:
        """``(rtol, atol)``: the criterion's own, else the least precise of the dtypes in the table."""
        rows = [_row(dtype) for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
        rtol, atol = max(rows, default=(0.0, 0.0))
        return (rtol if self.rtol is None else self.rtol), (atol if self.atol is None else self.atol)


_USES: dict[str, tuple[str, ...]] = {
    "cosine": ("cosine", "max_abs"),
    "close": ("rtol", "atol"),
}
_OWNER = {"cosine": "cosine", "max_abs": "cosine", "rtol": "close", "atol": "close"}


def _row(dtype: torch.dtype) -> tuple[float, float]:
    if dtype in TABLE:
        return TABLE[dtype]
    info = torch.finfo(dtype)
    return info.eps, info.smallest_normal * info.eps


class Exactness(enum.IntEnum):
    """How much of a floating result must be equal bit for bit, whatever the criterion."""

    NOTHING = 0
    ZEROS = 1  # the signs of its zeros
    VALUES = 2  # all of it


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What a criterion says about one pair of tensors."""

    verdict: Verdict
    metrics: Metrics
    reason: str = ""
    kind: Kind | None = None

    @property
    def status(self) -> str:
        """ "fail", "warning" (passes with something to say) or "pass"."""
        if self.verdict is Verdict.FAIL:
            return "fail"
        return "warning" if self.reason else "pass"


def judge(
    golden: torch.Tensor,
    actual: torch.Tensor,
    benchmark: torch.Tensor | None = None,
    criterion: Criterion = Criterion(),
    *,
    exact: Exactness = Exactness.NOTHING,
    working_dtype: torch.dtype | None = None,
) -> Judgement:
    """Judge dense CPU tensors of one shape; the dtypes were judged before and may differ.

    ``exact`` is for operators that only move data. ``working_dtype`` is the
    precision the values were computed in where it isn't the actual's dtype (a Python float).
    """
    numbers = [t for t in (golden, actual, benchmark) if t is not None]
    standard = criterion.name in ascend_standards.NAMES
    inexact = [t.dtype.is_floating_point or t.dtype.is_complex for t in (golden, actual)]
    explicit = criterion.name == "close" and (criterion.rtol is not None or criterion.atol is not None)
    if (
        exact is Exactness.VALUES
        or criterion.name == "exact"
        or not (any(inexact) or explicit)
        or (standard and not inexact[1])
    ):
        return _exact(
            golden, actual, benchmark, signs=exact is not Exactness.NOTHING and actual.dtype.is_floating_point
        )
    if criterion.name == "binary":
        return _binary(_exact(golden, actual, benchmark, signs=True))
    dtypes = [working_dtype] if working_dtype else [actual.dtype]
    # A golden in a wider dtype doesn't make the actual any more precise, a narrower one makes it less.
    dtypes += [t.dtype for t in numbers if t is not actual and _is_coarser(t.dtype, actual.dtype)]
    rtol, atol = criterion.tolerance(*dtypes)
    if standard:
        dtypes = [max((d for d in dtypes if d.is_floating_point or d.is_complex), key=lambda d: torch.finfo(d).eps)]
        rtol, atol = ascend_standards.tolerance(criterion.name, dtypes[0]) or (rtol, atol)
    # `auto` measures again with the tolerance that this size of values asks for, and lists the worst elements then.
    metrics = measure(golden, actual, rtol=rtol, atol=atol, worst=0 if criterion.name == "auto" else 5)
    suspect = ""
    if metrics.non_finite_mismatches:
        if not metrics.worst:
            metrics = measure(golden, actual, rtol=rtol, atol=atol)
        adopted = None if benchmark is None else _adopt(golden, actual, benchmark)
        if adopted is None:
            return Judgement(Verdict.FAIL, metrics, _non_finite_reason(metrics), Kind.non_finite)
        suspect = f"{_non_finite_reason(metrics)}; the CPU in {dtype_name(actual.dtype)} has the same"
        golden = adopted
        metrics = measure(golden, actual, rtol=rtol, atol=atol)
    if criterion.name == "cosine":
        found = _cosine(metrics, criterion, actual.dtype)
    elif criterion.name == "close" or not metrics.count:
        found = _close(metrics, actual.dtype, rtol, atol)
    elif standard:
        found = _standard(criterion.name, golden, actual, benchmark, metrics, dtypes[0])
    else:
        found = _auto(golden, actual, benchmark, metrics, (rtol, atol), working_dtype or actual.dtype)
    if suspect and found.verdict is Verdict.PASS:
        return Judgement(Verdict.REFERENCE_SUSPECT, found.metrics, suspect)
    if exact is Exactness.ZEROS and found.verdict is Verdict.PASS and actual.dtype.is_floating_point:
        return _same_zeros(found, golden, actual, benchmark)
    return found


def _is_coarser(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Whether a dtype is narrower than another, or as wide with fewer digits (bfloat16 and float16)."""
    if dtype.itemsize != than.itemsize or not (dtype.is_floating_point and than.is_floating_point):
        return dtype.itemsize < than.itemsize
    return torch.finfo(dtype).eps > torch.finfo(than).eps


# --- exact ----------------------------------------------------------------------------------------------------------


def _exact(golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor | None, *, signs: bool) -> Judgement:
    """Equal to the golden (rounded to the actual's dtype) or to the benchmark, whichever the element prefers.

    ``signs``: the sign of a zero counts. The float64 golden of an integer output may have rounded another way than the
    dtype that really computes it.
    """
    metrics = measure(golden, actual, rounded=True)
    if metrics.mismatches:
        different = _different(golden, actual)
        if benchmark is not None:
            different &= _different(benchmark, actual)
        bad = int(different.sum())
        if bad:
            reason = f"{_share(bad, metrics.count)} not equal{_first(metrics.worst)}"
            kind = Kind.non_finite if metrics.non_finite_mismatches else Kind.exact
            return Judgement(Verdict.FAIL, metrics, reason, kind)
    found = Judgement(Verdict.PASS, metrics)
    return _same_zeros(found, golden, actual, benchmark) if signs else found


def _same_zeros(
    found: Judgement, golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor | None
) -> Judgement:
    flipped = _flipped_zeros(golden, actual, benchmark)
    if not flipped:
        return found
    reason = f"{flipped} of {found.metrics.count} elements are zeros of the other sign, which counts here"
    return Judgement(Verdict.FAIL, found.metrics, reason, Kind.exact)


def _flipped_zeros(golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor | None) -> int:
    """How many elements have a zero whose sign is neither the golden's nor the benchmark's there."""
    references = [t.reshape(-1) for t in (golden, benchmark) if t is not None]
    actual, count, piece = actual.reshape(-1), 0, 1 << 20
    for start in range(0, actual.numel(), piece):
        y = _parts(actual[start : start + piece])
        flipped = y == 0
        for reference in references:
            flipped &= torch.signbit(_parts(reference[start : start + piece])) != torch.signbit(y)
        count += int(flipped.any(-1).sum())
    return count


def _parts(values: torch.Tensor) -> torch.Tensor:
    """A row per element in float64: the number, or its real and imaginary part."""
    if values.is_complex():
        return torch.view_as_real(values.to(torch.complex128).resolve_conj().resolve_neg())
    return values.double().unsqueeze(-1)


def _different(reference: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    if not (reference.dtype.is_floating_point or reference.dtype.is_complex) and not actual.dtype.is_floating_point:
        return reference != actual
    there = reference.to(actual.dtype)
    if actual.dtype.itemsize == 1:  # float8 has no comparison of its own; float32 holds every value
        there, actual = there.float(), actual.float()
    return ~((there == actual) | (torch.isnan(there) & torch.isnan(actual)))


# --- close and cosine -----------------------------------------------------------------------------------------------


def _close(metrics: Metrics, dtype: torch.dtype, rtol: float, atol: float) -> Judgement:
    if not metrics.mismatches:
        return Judgement(Verdict.PASS, metrics)
    what = f"{_share(metrics.mismatches, metrics.count)} outside rtol {rtol:.3g}, atol {atol:.3g}"
    return Judgement(Verdict.FAIL, metrics, what + _first(metrics.worst) + factor(metrics), _kind(metrics, dtype))


def _cosine(metrics: Metrics, criterion: Criterion, dtype: torch.dtype) -> Judgement:
    if not metrics.count:
        return Judgement(Verdict.PASS, metrics)
    cosine, largest = metrics.cosine_similarity, metrics.max_abs_error
    least = FAIL_COSINE if criterion.cosine is None else criterion.cosine
    most = FAIL_MAX_ABS if criterion.max_abs is None else criterion.max_abs
    # A threshold that somebody gave is the one that counts: there is no second level above it.
    warn_least = WARN_COSINE if criterion.cosine is None else criterion.cosine
    warn_most = WARN_MAX_ABS if criterion.max_abs is None else criterion.max_abs
    for low, high, verdict in ((least, most, Verdict.FAIL), (warn_least, warn_most, Verdict.PASS)):
        # Written so that NaN is a failure; what rounding leaves below one is not.
        what = [] if cosine >= low - 1e-12 else [f"cosine {cosine:.6f} is below {low:g}"]
        what += [] if largest <= high else [f"max abs error {largest:.3g} is above {high:g}"]
        if what:
            kind = _kind(metrics, dtype) if verdict is Verdict.FAIL else None
            return Judgement(verdict, metrics, " and ".join(what) + factor(metrics), kind)
    return Judgement(Verdict.PASS, metrics)


# --- Ascend's standards ---------------------------------------------------------------------------------------------


def _binary(found: Judgement) -> Judgement:
    if found.verdict is not Verdict.FAIL:
        return found
    return dataclasses.replace(found, reason=f"{found.reason}; the standard binary allows an error rate of 0 only")


def _standard(
    name: str,
    golden: torch.Tensor,
    actual: torch.Tensor,
    benchmark: torch.Tensor | None,
    metrics: Metrics,
    dtype: torch.dtype,
) -> Judgement:
    finding = ascend_standards.assess(name, golden, actual, benchmark, dtype)
    if not finding.reason:
        return Judgement(Verdict.PASS, metrics)
    if not finding.comparable:
        # What is right to the last bit meets any standard, whatever its table.
        equal = not measure(golden, actual, rounded=True, worst=0).mismatches
        verdict, reason = (Verdict.PASS, "") if equal else (Verdict.NOT_COMPARABLE, finding.reason)
        return Judgement(verdict, metrics, reason)
    reason = f"standard {name}: {finding.reason}{_first(metrics.worst)}{factor(metrics)}"
    return Judgement(Verdict.FAIL, metrics, reason, _kind(metrics, actual.dtype))


# --- auto -----------------------------------------------------------------------------------------------------------


def _auto(
    golden: torch.Tensor,
    actual: torch.Tensor,
    benchmark: torch.Tensor | None,
    metrics: Metrics,
    tolerance: tuple[float, float],
    dtype: torch.dtype,
) -> Judgement:
    rtol, atol = tolerance
    scale = _rms(metrics)
    info = torch.finfo(dtype)
    # The table's absolute tolerance is for data of size one. Below the smallest step of the dtype no result can be
    # right, though.
    atol = max(atol * scale, info.smallest_normal * info.eps)
    metrics = measure(golden, actual, rtol=rtol, atol=atol)
    if not metrics.mismatches:
        return Judgement(Verdict.PASS, metrics)
    found = _close(metrics, actual.dtype, rtol, atol)
    if benchmark is None:
        # Small elements carry the rounding of large ones. That doesn't follow the golden; a factor does, however small.
        carried = max(atol, info.eps * scale)
        if (metrics.count >= 16 and _proportional(metrics)) or carried == atol:
            return found
        if measure(golden, actual, rtol=rtol, atol=carried, worst=0).mismatches:
            return found
        why = "beside the other values they are so small that only a benchmark could tell whether this is rounding"
        return Judgement(Verdict.MARGINAL, metrics, f"{found.reason}; {why}")
    return _as_good_as(golden, actual, benchmark, found, scale, dtype)


def _as_good_as(
    golden: torch.Tensor,
    actual: torch.Tensor,
    benchmark: torch.Tensor,
    found: Judgement,
    scale: float,
    dtype: torch.dtype,
) -> Judgement:
    """Whether the actual is about as far from the golden as the benchmark is.

    Two rules must hold. Ascend's double-benchmark standard at level L0: largest relative error <= 10 times the
    benchmark's, mean relative error and root mean square error <= 2 times, values below ``SMALL`` x the golden's root
    mean square counting as that small. And the error budget's rule for local faults: no element is more than 3 times
    as wrong as the benchmark's worst one, errors counted in units of roundoff x the larger of |golden| and the size at
    which the benchmark's mean error is one roundoff. A benchmark of few elements may be right by luck: all factors grow
    by 8 / n.
    """
    info = torch.finfo(dtype)
    unit = info.eps / 2
    # Among subnormal numbers the step is constant, whatever the size.
    scale = max(scale, info.smallest_normal)
    small = max(SMALL.get(_real(dtype), unit) * scale, info.smallest_normal)
    a, b = (measure(golden, t, floor=small, worst=0) for t in (actual, benchmark))
    if b.non_finite_mismatches:
        # What the benchmark alone gets wrong must not excuse anything: leave those elements out of it.
        benchmark = torch.where(non_finite_mismatches(golden, benchmark), golden.to(benchmark.dtype), benchmark)
        b = measure(golden, benchmark, floor=small, worst=0)
    room = 1.0 + 8.0 / a.count
    ratios = {
        "largest relative error": (a.max_rel_error, max(b.max_rel_error, unit), L0_MAX_REL * room),
        "mean relative error": (a.mean_rel_error, max(b.mean_rel_error, unit / 4), L0_MEAN_REL * room),
        "root mean square error": (a.rmse, max(b.rmse, unit * scale / 4), L0_RMSE * room),
    }
    over = {name: x / y for name, (x, y, limit) in ratios.items() if not x <= y * limit}
    cpu = f"the CPU in {dtype_name(dtype)}"

    floor = max(b.mean_abs_error / unit, small)
    ratio = LOCAL_RATIO * room
    bound = max(ratio * measure(golden, benchmark, floor=floor, worst=0).max_rel_error, LOCAL_UNITS * unit)
    local = measure(golden, actual, rtol=bound, atol=bound * floor)
    if local.mismatches:
        what = f"{_share(local.mismatches, local.count)} more than {ratio:.3g} x as wrong as the worst of {cpu}"
        reason = what + _first(local.worst) + factor(local)
        return Judgement(Verdict.FAIL, local, reason, _kind(local, actual.dtype))
    if over:
        name = max(over, key=lambda name: over[name] / ratios[name][2])
        reason = (
            f"{name} is {over[name]:.3g} x that of {cpu}, and may be {ratios[name][2]:.3g} x{factor(found.metrics)}"
        )
        return Judgement(Verdict.FAIL, found.metrics, reason, found.kind)
    if b.relative_euclidean_distance > LOST:
        far = f"{cpu} is itself {b.relative_euclidean_distance:.2g} of the golden's size away from it"
        return Judgement(Verdict.REFERENCE_SUSPECT, found.metrics, f"{found.reason}; {far}, so nothing can be told")
    return Judgement(Verdict.PASS, found.metrics)


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _rms(metrics: Metrics) -> float:
    """Root mean square of the golden's finite values; 1 where it can't be told (no error, or a golden of zeros)."""
    distance = metrics.relative_euclidean_distance
    return metrics.rmse / distance if 0.0 < distance < math.inf else 1.0


# --- words ----------------------------------------------------------------------------------------------------------


def _kind(metrics: Metrics, dtype: torch.dtype) -> Kind:
    """What sort of numeric failure it is."""
    worst = metrics.worst[0] if metrics.worst else None
    if worst is not None and not isinstance(worst.golden, complex) and dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        if limit < abs(worst.golden) < math.inf:
            return Kind.overflow
    if metrics.count >= 16 and metrics.mismatches > metrics.count // 10:
        constant = abs(metrics.mean_signed_error) > 0.8 * metrics.mean_abs_error
        return Kind.bias if constant or _proportional(metrics) else Kind.spread
    return Kind.local if metrics.mismatches <= max(1, metrics.count // 10) else Kind.spread


def _proportional(metrics: Metrics) -> bool:
    """Whether the error is mostly a factor: what a factor leaves over is less than a tenth of the error."""
    sine = math.sqrt(max(0.0, 1.0 - metrics.cosine_similarity**2))
    return metrics.count > 1 and sine < 0.1 * metrics.relative_euclidean_distance


def factor(metrics: Metrics) -> str:
    """Words for an error that is mostly a factor; nothing for any other."""
    if metrics.count < 16 or not _proportional(metrics) or abs(metrics.scale - 1.0) < 1e-3:
        return ""
    return f"; the actual is about {metrics.scale:.4g} x the golden"


def _share(bad: int, count: int) -> str:
    return f"{bad} of {count} elements {'is' if bad == 1 else 'are'}"


def _first(worst: tuple[Element, ...]) -> str:
    return f" (worst at {list(worst[0].index)})" if worst and worst[0].index else ""


def _non_finite_reason(metrics: Metrics) -> str:
    element = metrics.worst[0]
    golden, actual = _class(element.golden), _class(element.actual)
    place = f" (first at {list(element.index)})" if element.index else ""
    return f"{_share(metrics.non_finite_mismatches, metrics.count)} {actual} where the golden is {golden}{place}"


def _class(value: complex | float | int | bool) -> str:
    if isinstance(value, complex):
        parts = {_class(value.real), _class(value.imag)} - {"finite"}
        return " and ".join(sorted(parts)) or "finite"
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else "finite"


def _adopt(golden: torch.Tensor, actual: torch.Tensor, benchmark: torch.Tensor) -> torch.Tensor | None:
    """The golden with the benchmark's values where its NaN or infinities differ from the actual's.

    None when the benchmark doesn't agree with the actual there either: then the actual is wrong.
    """
    differs = non_finite_mismatches(golden, actual)
    if bool((differs & non_finite_mismatches(benchmark, actual)).any()):
        return None
    return torch.where(differs, benchmark.to(golden.dtype), golden)
