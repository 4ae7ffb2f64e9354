"""Which elements are wrong, in a few words: "last 16 of every 32 columns (dim -1)" says more than a list of indices.

A pattern is named when it covers every wrong element and at least nine in ten of what it covers are wrong: a stale lane
may hold the right value by chance. One that covers wrong elements only is preferred, then the order is positions along
dimensions, positions in memory order, triangles, values of the golden. Wrong elements that no pattern covers are
"scattered", and so is what chance explains as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_ascend.judge.metrics import non_finite_mismatches
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.structure import UnsupportedTensor, as_tensor, widened
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict

__all__ = ["describe", "pattern", "with_pattern", "wrong"]

_Mask = NDArray[np.bool_]
#: A candidate: what to call it, and how many elements it covers that could be wrong. It covers every wrong one.
_Candidate = tuple[str, int]

#: The least share of what a pattern covers that must be wrong.
FILL = 0.9
#: Larger outputs get no pattern: it would take longer than it helps.
MOST = 1 << 27
#: Errors that rounding doesn't explain, in roundoffs.
ROUNDED = 2.0
_PIECE = 1 << 20
#: Decimal digits by which chance must be unlikely to have put the wrong elements where the golden's value says so.
_CLASS_DIGITS, _SIGN_DIGITS, _SIZE_DIGITS = 1.0, 3.0, 6.0


def describe(
    golden: torch.Tensor,
    actual: torch.Tensor,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    exact: bool = False,
    benchmark: torch.Tensor | None = None,
) -> str:
    """Where ``actual`` is wrong, two dense CPU tensors of one shape; "" where there is nothing to say.

    ``rtol`` and ``atol`` (for values of size one) tell wrong from right as in :func:`wrong`. Where that shows no
    pattern, what is off by more than rounding, or the elements with the largest errors, may.
    """
    if golden.dim() == 0 or not 1 < golden.numel() <= MOST or golden.shape != actual.shape:
        return ""
    mask, errors = wrong(golden, actual, rtol=rtol, atol=atol, exact=exact, benchmark=benchmark)
    found = pattern(mask, golden, actual.dtype)
    if errors is None or _is_telling(found):
        return found
    count, off = int(np.count_nonzero(mask)), errors > ROUNDED
    # A tolerance may be wide enough to show but the tip of a wrong row.
    if count < mask.size // 2 and int(np.count_nonzero(off)) > 2 * count and _is_telling(wider := pattern(off)):
        return wider
    top = errors >= 0.25 * float(errors.max())
    if 4 <= int(np.count_nonzero(top)) < count and _is_telling(largest := pattern(top)):
        return f"{found}, the largest errors: {largest}"
    return found


def _is_telling(name: str) -> bool:
    return not name.startswith(("all ", "nearly all", "scattered", "only "))


def wrong(
    golden: torch.Tensor,
    actual: torch.Tensor,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    exact: bool = False,
    benchmark: torch.Tensor | None = None,
) -> tuple[_Mask, NDArray[np.float32] | None]:
    """Which elements are wrong, and how wrong each is (in roundoffs of the actual's dtype), both of the tensors' shape.

    The first of these that is true anywhere: another class of NaN and infinity; ``|error| > rtol * |golden| + atol *
    min(1, rms(golden))``; more than two roundoffs off; not equal; a zero of the other sign. ``exact`` starts at "not
    equal", and what is equal to the ``benchmark`` is right then. The errors are None where they aren't numbers' own.
    """
    golden, actual = golden.detach(), actual.detach()
    floating = actual.dtype.is_floating_point or actual.dtype.is_complex
    shape = tuple(actual.shape)
    if floating:
        classes = non_finite_mismatches(golden, actual).numpy()
        if classes.any():
            return classes.reshape(shape), None
    x, y = golden.reshape(-1), actual.reshape(-1)
    outside, apart = np.zeros((2, x.numel()), dtype=np.bool_)
    errors = np.zeros(x.numel(), dtype=np.float32)
    real = actual.dtype.to_real() if actual.dtype.is_complex else actual.dtype
    roundoff = torch.finfo(real).eps / 2 if floating else 1.0
    smallest = torch.finfo(real).smallest_normal if floating else 1.0
    small = atol * min(1.0, _rms(x)) if floating and not exact else 0.0
    for start in range(0, x.numel(), _PIECE):
        here = slice(start, start + _PIECE)
        a, b = widened(x[here]), widened(y[here])
        error, size = (b - a).abs().nan_to_num(nan=0.0, posinf=1e300), a.abs().nan_to_num(nan=0.0, posinf=1e300)
        unequal = error > 0
        if not floating and x.dtype == y.dtype:  # beyond 2**53 only the integers themselves tell
            unequal = x[here] != y[here]
        if exact and benchmark is not None:
            unequal &= widened(benchmark.detach().reshape(-1)[here]) != b
        apart[here] = unequal.numpy()
        outside[here] = (error > rtol * size + small).numpy()
        errors[here] = (error / (roundoff * size + smallest)).clamp_max(1e30).float().numpy()
    masks = [outside, errors > ROUNDED, apart] if floating and not exact else [apart]
    mask = next((m for m in masks if m.any()), None)
    if mask is None:
        flipped = torch.signbit(x) != torch.signbit(y) if not actual.is_complex() else torch.zeros_like(x).bool()
        return flipped.numpy().reshape(shape), None
    return mask.reshape(shape), errors.reshape(shape) if floating and not exact else None


def _rms(flat: torch.Tensor) -> float:
    total = sum(
        float(piece.square().sum())
        for start in range(0, flat.numel(), _PIECE)
        if (piece := widened(flat[start : start + _PIECE]).abs().nan_to_num(nan=0.0, posinf=0.0)) is not None
    )
    return math.sqrt(total / flat.numel()) if math.isfinite(total) else 1.0


# --- patterns -------------------------------------------------------------------------------------------------------


def pattern(mask: _Mask, golden: torch.Tensor | None = None, dtype: torch.dtype = torch.float32) -> str:
    """What the true elements of ``mask`` have in common; "" where none is true.

    ``golden``, of the same shape, is needed for patterns of values, and ``dtype``, the actual's, to know subnormal
    ones.
    """
    count = int(np.count_nonzero(mask))
    if not count:
        return ""
    if count == mask.size:
        return f"all {count}"
    silent = np.zeros_like(mask)
    if golden is not None:
        # Zeros that are right, when all are: what scales or drops elements can't be told by them.
        zero = (golden.detach().double() == 0).numpy() if not golden.is_complex() else silent
        silent = silent if (zero & mask).any() else zero
    able = mask.size - int(np.count_nonzero(silent))
    if count == able:
        return f"all {count} whose golden isn't 0"
    best, most = "", 0.0
    for name, covered in _candidates(mask, silent, golden, dtype, count):
        if covered == count:
            return name
        if count / covered >= FILL and count / covered > most:
            best, most = f"{name} ({count} of the {covered} there)", count / covered
    if count >= FILL * able:
        return f"nearly all, {count} of {mask.size}"
    return best or f"scattered: {count} of {mask.size}"


def _candidates(
    mask: _Mask, silent: _Mask, golden: torch.Tensor | None, dtype: torch.dtype, count: int
) -> Iterator[_Candidate]:
    yield from _box(mask, silent, count)
    if mask.ndim > 1:
        yield from _diagonals(mask, silent)
        yield from _in_order(mask, silent)
    if golden is not None and golden.shape == mask.shape and not golden.is_complex():
        yield from _values(mask, golden, dtype, count)


# --- along dimensions -----------------------------------------------------------------------------------------------


def _box(mask: _Mask, silent: _Mask, count: int) -> Iterator[_Candidate]:
    """The smallest set of rows, columns, channels ... that meet in every wrong element."""
    words, lines = [], []
    raw = [np.asarray(mask.any(axis=tuple(d for d in range(mask.ndim) if d != dim))) for dim in range(mask.ndim)]
    for dim, line in enumerate(raw):
        n = int(np.count_nonzero(line))
        # Places of this dimension where all that could be wrong beside the others' wrong places can't be told.
        beside = [np.ones_like(line) if d == dim else other for d, other in enumerate(raw)]
        mute = np.asarray(silent[np.ix_(*beside)].all(axis=tuple(d for d in range(mask.ndim) if d != dim)))
        if (line | mute).all():
            line = np.ones_like(line)
        else:
            word, line = _along(line, mute, _noun(dim, mask.ndim), count // n)
            if not word:
                return
            words.append(word + _dim(dim, mask.ndim))
        lines.append(line)
    covered = math.prod(int(np.count_nonzero(line)) for line in lines)
    if words and covered == 1 and mask.ndim > 1:
        yield _only(int(np.argmax(mask)), mask), 1
    elif words:
        yield ", ".join(words), covered - int(np.count_nonzero(silent[np.ix_(*lines)]))


def _only(flat: int, mask: _Mask) -> str:
    if flat in (0, mask.size - 1):
        return f"only the {'last' if flat else 'first'} element"
    return f"only element [{', '.join(str(i) for i in np.unravel_index(flat, mask.shape))}]"


def _noun(dim: int, dims: int) -> str:
    if dims == 1:
        return "element"
    if dims == 2:
        return "column" if dim else "row"
    return "channel" if dim == 1 and dims > 3 else ""


def _dim(dim: int, dims: int) -> str:
    return "" if dims == 1 else f" (dim {-1 if dim == dims - 1 else dim})"


def _along(used: _Mask, mute: _Mask, noun: str, across: int) -> tuple[str, _Mask]:
    """What to call the true places of a line, at each of which ``across`` elements are wrong, and what that covers.

    "" where they are only some places. ``mute`` places may or may not belong to them.
    """
    places, every = np.flatnonzero(used), np.arange(len(used))
    n, extent, first, last = len(places), len(used), int(places[0]), int(places[-1])
    one, many = (noun, f"{noun}s ") if noun else ("index", "")
    if n == 1:
        which = f"{one} {first}" if 0 < first < extent - 1 else f"{'last' if first else 'first'} {one}"
        only = ("only the " if first in (0, extent - 1) else "only ") if noun == "element" else ""
        return only + which, used
    found: list[tuple[str, _Mask]] = []
    last = extent - 1 if mute[last + 1 :].all() else last
    block = first - first % 8
    first = block if mute[block:first].all() else first  # faults begin where blocks do
    span = last - first + 1
    if n >= FILL * (span - int(np.count_nonzero(mute[first : last + 1]))) and span < extent:
        name = f"{many or 'indices '}{first} to {last}" if span > 2 or across > 2 else ""
        if first == 0:
            name = f"first {span} of {extent} {many}".rstrip()
        elif last == extent - 1:
            name = _tail(first, span, many)
        found += [(name, (first <= every) & (every <= last))] if name else []
    if (periodic := _periodic(places, mute, across)) is not None:
        period, low, high = periodic
        found.append((_every(period, low, high, one, many), (low <= every % period) & (every % period < high)))
    if n <= 4 and across > 3:
        listed = ", ".join(str(i) for i in places[:-1])
        found.append((f"{many or 'indices '}{listed} and {last}", used))
    return min(found, key=lambda candidate: int(np.count_nonzero(candidate[1])), default=("", used))


def _tail(first: int, n: int, many: str) -> str:
    extent = first + n
    if n < 32 or n < extent // 8:
        block = f"the tail after {first}" if first % 8 == 0 and n % 8 else ""
        return f"last {n} of {extent} {many}".rstrip() + (f", {block}" if block else "")
    return f"{many or 'indices '}>= {first} of {extent}"


def _every(period: int, low: int, high: int, one: str, many: str) -> str:
    run = high - low
    if run == 1:
        return f"every {_ordinal(period)} {one}, from {low}"
    if high == period:
        return f"last {run} of every {period} {many}".rstrip()
    if low == 0:
        return f"first {run} of every {period} {many}".rstrip()
    return f"{low} to {high - 1} of every {period} {many}".rstrip()


def _ordinal(n: int) -> str:
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def _periodic(places: NDArray[np.int64], mute: _Mask, across: int) -> tuple[int, int, int] | None:
    """``(period, low, high)``: one run of places, low <= place % period < high, in every period.

    At least three periods, four of single elements, or two of long runs: chance brings the rest about.
    """
    if len(places) < 3:
        return None
    breaks = np.diff(places)
    starts = np.concatenate([places[:1], places[1:][breaks > 1]])
    if len(starts) < 2:
        return None
    gaps, extent = np.diff(starts), len(mute)
    # Holes (places right by chance) split runs and widen gaps: the true period is among these.
    candidates = {int(gaps.min()), int(np.median(gaps)), int(np.gcd.reduce(starts - starts[0])), int(gaps.max())}
    candidates |= {1 << k for k in range(1, 13)}
    for period in sorted(candidates):
        if not 2 <= period <= extent // 2:
            continue
        residues = np.unique(places % period)
        low, high = int(residues[0]), int(residues[-1]) + 1
        if high - low == period or len(residues) < FILL * (high - low):
            continue
        residue = np.arange(extent) % period
        covered = int(np.count_nonzero((low <= residue) & (residue < high) & ~mute))
        hit = len(np.unique(places // period))
        if len(places) >= FILL * covered and hit + min(high - low, 4) // 2 + (across > 3) >= 4:
            return period, low, high
    return None


# --- in memory order, and about the diagonal ------------------------------------------------------------------------


def _in_order(mask: _Mask, silent: _Mask) -> Iterator[_Candidate]:
    """The elements counted one after the other, the last dimension first."""
    flat = mask.reshape(-1)
    if np.count_nonzero(flat) < 2:
        return
    name, line = _along(flat, silent.reshape(-1), "element", 1)
    if name:
        yield f"{name} in memory order", int(np.count_nonzero(line & ~silent.reshape(-1)))


def _diagonals(mask: _Mask, silent: _Mask) -> Iterator[_Candidate]:
    """Triangles, diagonals and bands of the last two dimensions, the same in every matrix."""
    rows, columns = mask.shape[-2:]
    if min(rows, columns) < 3:
        return
    matrices = mask.reshape(-1, rows, columns)
    offset = np.arange(columns) - np.arange(rows)[:, None]
    able = (~silent.reshape(-1, rows, columns)).sum(axis=0)
    wrong = set(np.unique(offset[matrices.any(axis=0)]).tolist())
    every = range(1 - rows, columns)
    # Diagonals that can't be told to be right or wrong belong where their neighbours do.
    told = {int(d) for d in np.unique(offset[able > 0])}
    if told - wrong == {0}:
        yield "all but the diagonal", int(able[offset != 0].sum())
        return
    low, high = min(wrong), max(wrong)
    low = every[0] if not any(d in told for d in range(every[0], low)) else low
    high = every[-1] if not any(d in told for d in range(high + 1, columns)) else high
    if any(d in told and d not in wrong for d in range(low, high + 1)):
        return
    covered = int(able[(low <= offset) & (offset <= high)].sum())
    if low == high:
        name = "the diagonal" if low == 0 else f"diagonal {low}"
    elif high == columns - 1:
        name = {0: "the upper triangle with the diagonal", 1: "the upper triangle"}.get(low, f"from diagonal {low} up")
    elif low == 1 - rows:
        lower = {0: "the lower triangle with the diagonal", -1: "the lower triangle"}
        name = lower.get(high, f"from diagonal {high} down")
    else:
        name = f"the band of diagonals {low} to {high}"
    yield name, covered


# --- by value -------------------------------------------------------------------------------------------------------


def _values(mask: _Mask, golden: torch.Tensor, dtype: torch.dtype, count: int) -> Iterator[_Candidate]:
    """Elements whose golden value is of one class, sign or size."""
    chance = _digits(mask.size, count)
    if chance < _CLASS_DIGITS:
        return
    values = golden.detach().double().resolve_neg().numpy().reshape(-1)
    flat = mask.reshape(-1)
    bad = values[flat]
    size, bad_size = np.abs(values), np.abs(bad)
    least = torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 0.0
    classes: list[tuple[str, Callable[[NDArray[np.float64]], _Mask]]] = [
        ("golden is NaN", np.isnan),
        ("golden is +Inf", np.isposinf),
        ("golden is -Inf", np.isneginf),
        ("golden isn't finite", lambda v: ~np.isfinite(v)),
    ]
    signs: list[tuple[str, Callable[[NDArray[np.float64]], _Mask]]] = [
        ("golden is -0.0", lambda v: (v == 0) & np.signbit(v)),
        ("golden is 0", lambda v: v == 0),
        ("golden is subnormal", lambda v: (v != 0) & (np.abs(v) < least)),
        ("golden < 0", lambda v: v < 0),
        ("golden > 0", lambda v: v > 0),
    ]
    for name, test in classes + (signs if chance >= _SIGN_DIGITS else []):
        if bool(test(bad).all()):
            covered = int(np.count_nonzero(test(values)))
            if covered < mask.size:
                yield f"where {name}", covered
    if chance < _SIZE_DIGITS or not np.isfinite(bad).all():
        return
    right = ~flat & np.isfinite(values)
    for name, both, own in (("|golden|", size, bad_size), ("golden", values, bad)):
        top, bottom = float(own.max()), float(own.min())
        below, above = int(np.count_nonzero(both <= top)), int(np.count_nonzero(both >= bottom))
        if mask.size - below > 3 and below * FILL <= count:
            yield f"where {name} <= {_round(top, both[right & (both > top)].min(initial=math.inf)):.4g}", below
        # Most of all elements but the small ones: that is a factor, seen where it exceeds an absolute tolerance.
        if above <= mask.size // 2 and above * FILL <= count:
            yield f"where {name} >= {_round(bottom, both[right & (both < bottom)].max(initial=-math.inf)):.4g}", above


def _digits(n: int, k: int) -> float:
    """Decimal digits of the number of ways to choose k of n."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)


def _round(edge: float, other: float) -> float:
    """A round number between the last wrong and the first right value, else the wrong one itself."""
    low, high = min(edge, other), max(edge, other)
    if not (math.isfinite(low) and math.isfinite(high)) or low * high <= 0:
        return edge
    sign = math.copysign(1.0, low)
    low, high = sorted((abs(low), abs(high)))
    for base in (10.0, 2.0):
        power = base ** math.ceil(math.log(low, base))
        if low <= power <= high:
            return sign * power
    return edge


# --- of a judged output ---------------------------------------------------------------------------------------------


def with_pattern(output: OutputResult, golden: Any, actual: Any, benchmark: Any, criterion: Criterion) -> OutputResult:
    """The output with its pattern, where it failed (or is MARGINAL) for its numbers; the sides are what was judged."""
    failed = output.verdict.outcome == "failed" or output.verdict is Verdict.MARGINAL
    if not failed or output.metrics is None or not output.metrics.count or output.kind is Kind.dtype:
        return output
    try:
        sides = as_tensor(golden), as_tensor(actual)
        own = None if benchmark is None or benchmark is golden else as_tensor(benchmark)
    except UnsupportedTensor:
        return output
    if sides[0] is None or sides[1] is None:
        return output
    own = own if own is not None and own.shape == sides[1].shape else None
    narrow = [sides[0].dtype] if sides[0].dtype.itemsize < sides[1].dtype.itemsize else []
    rtol, atol = criterion.tolerance(sides[1].dtype, *narrow)
    exact = output.kind is Kind.exact
    name = describe(sides[0], sides[1], rtol=rtol, atol=atol, exact=exact, benchmark=own)
    return dataclasses.replace(output, pattern=name)
