"""How far one tensor is from another: every metric in one chunked pass.

A pair of tensors is cut into chunks that stay in the second-level cache. Each chunk is converted to float64 in buffers
allocated once, a few numpy calls reduce it to one row of partial sums and maxima, and the rows are added at the end in
the order of the chunks: the result depends neither on the number of threads nor on who took which chunk. Memory needed
beside the tensors is about 1 MB per thread, whatever their size, layout or dtype.

Large tensors of common dtypes are reduced by one compiled loop per chunk instead, where numba is installed (``fused``):
ten times as fast, the same figures to 12 digits and the same counts.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_ascend.judge.chunks import Plan
from pytest_ascend.judge.verdict import Element, Metrics

#: Elements per chunk: three float64 buffers of it fit in a second-level cache of 1 MB, torch starts no threads of
#: its own below 32,768 elements, and it is a multiple of _DOT.
CHUNK = 29_952
#: OpenBLAS starts threads for dot products of more than 10,000 elements
_DOT = 9_984
_ONES = np.ones((_DOT, 1))
#: Beyond four threads the interpreter's lock costs more than another core brings
MOST_THREADS = 4
#: Elements from which the compiled loop is worth the half second that numba takes to load, once per process.
LARGE = 1 << 22
#: Chunks it takes at a time: enough to forget the interpreter, few enough to keep all threads busy to the end
_AT_ONCE = 32

_Floats = NDArray[np.float64]
_Loop = Callable[[torch.Tensor, torch.Tensor, int, tuple[float, float, float], _Floats], int]
_DOUBLE = (torch.float64, torch.complex128)
_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Columns of a chunk's row of partial results.
_COLUMNS = ("n", "xx", "yy", "xy", "dd", "sd", "sa", "sr", "nr", "max_abs", "max_rel", "bad", "non_finite", "excess")
_SUMMED = (*_COLUMNS[:9], "bad", "non_finite")


def measure(
    golden: torch.Tensor,
    actual: torch.Tensor,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    worst: int = 5,
    floor: float = 0.0,
    rounded: bool = False,
    chunk: int = CHUNK,
    fused: bool | None = None,
) -> Metrics:
    """All metrics of ``actual`` against ``golden``, two dense CPU tensors of one shape.

    Any dtype that torch converts to float64 or complex128 (float8 variants included), any strides; the dtypes may
    differ. Sums are accumulated in float64. An element is a mismatch when ``|actual - golden| > atol + rtol *
    |golden|`` or when only one side is NaN or infinite (or another infinity). A golden value beyond the range of the
    actual's dtype that became Inf there (NaN in float8 formats without Inf) agrees. Complex numbers are compared by
    modulus, their non-finite parts part by part, and their cosine is that of the vectors of real and imaginary parts.
    Differences of 64-bit integers are exact before they are rounded to float64.

    ``floor`` > 0 divides relative errors by ``max(|golden|, floor)``, so that every element counts (and leaves
    ``max_ulp`` out); with 0, elements whose golden value is zero have no relative error. ``rounded`` first rounds the
    golden to the actual's dtype. ``max_ulp`` counts representable values of the actual's dtype between the two sides;
    +0 and -0 are the same value; None for integers and complex numbers. ``worst`` elements are listed, those furthest
    outside tolerance first, then those with the largest error. ``fused`` says whether to use the compiled loop where
    there is one: None leaves it to the size.

    Two tensors without elements agree: cosine 1, errors 0, ratio 1. Two zero vectors have cosine 1, a zero and a
    non-zero vector 0. The cosine is NaN when no element is finite on both sides and some disagree.

    Raises ValueError when the shapes differ.
    """
    if golden.shape != actual.shape:
        raise ValueError(
            f"only equal shapes can be measured: golden {tuple(golden.shape)}, actual {tuple(actual.shape)}"
        )
    plan = Plan(golden.detach(), actual.detach(), max(1, chunk))
    options = (float(rtol), float(atol), float(floor), rounded)
    rows = np.zeros((plan.chunks, len(_COLUMNS)))
    large = plan.count >= LARGE if fused is None else fused
    loop = _loop(golden.dtype, actual.dtype) if large and (not rounded or golden.dtype == actual.dtype) else None
    workers = _run(plan, options, rows, loop)
    columns = {name: rows[:, i] for i, name in enumerate(_COLUMNS)}
    total = {name: _sum(columns[name]) for name in _SUMMED}
    largest = {name: float(columns[name].max()) if plan.chunks else 0.0 for name in ("max_abs", "max_rel")}
    if plan.count and _needs_scaling(plan, total, largest["max_abs"]):
        total.update(_scaled(plan, options, largest["max_abs"]))
    ulps = [w.max_ulp for w in workers if w.max_ulp is not None]
    found = _worst(plan, workers[0], columns, worst) if worst > 0 and workers else ()
    return _metrics(plan, total, largest, max(ulps) if ulps else None, found)


def _metrics(
    plan: Plan, total: dict[str, float], largest: dict[str, float], ulp: int | None, found: tuple[Element, ...]
) -> Metrics:
    n, non_finite = total["n"], int(total["non_finite"])
    bad = int(total["bad"]) + non_finite
    xx, yy, dd = total["xx"], total["yy"], total["dd"]
    # Powers of two that the scaled pass divided by.
    ex, ey, ed = (int(total.get(f"{side}_exponent", 0)) for side in "xyd")
    if not n:
        cosine = math.nan if non_finite else 1.0
    elif xx == 0.0 or yy == 0.0:
        cosine = 1.0 if xx == yy else 0.0
    else:
        cosine = max(-1.0, min(1.0, total["xy"] / math.sqrt(xx * yy)))
    distance = (_ldexp(math.sqrt(dd / xx), ed - ex) if xx else math.inf) if dd else 0.0
    return Metrics(
        count=plan.count,
        cosine_similarity=cosine,
        max_abs_error=math.inf if non_finite else largest["max_abs"],
        mean_abs_error=_ldexp(total["sa"] / n, ed) if n else 0.0,
        rmse=_ldexp(math.sqrt(dd / n), ed) if n else 0.0,
        max_rel_error=math.inf if non_finite else largest["max_rel"],
        mean_rel_error=total["sr"] / total["nr"] if total["nr"] else 0.0,
        relative_euclidean_distance=distance,
        within_tolerance_ratio=(plan.count - bad) / plan.count if plan.count else 1.0,
        mean_signed_error=_ldexp(total["sd"] / (n * plan.parts), ed) if n else 0.0,
        max_ulp=ulp,
        mismatches=bad,
        non_finite_mismatches=non_finite,
        scale=_ldexp(total["xy"] / xx, ey - ex) if xx else 1.0,
        worst=found,
    )


def _ldexp(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def _sum(column: _Floats) -> float:
    with np.errstate(all="ignore"):
        total = float(column.sum())
    # fsum raises on infinities and on overflow; the scaled pass takes over then.
    return math.fsum(column) if math.isfinite(total) else total


@functools.cache
def _loop(golden: torch.dtype, actual: torch.dtype) -> _Loop | None:
    """The compiled loop for a pair of dtypes, made ready; None without numba, or for a pair that it doesn't know."""
    try:
        from pytest_ascend.judge import fused

        if not fused.suits(golden, actual):
            return None
        one = torch.ones(1, dtype=golden), torch.ones(1, dtype=actual)
        fused.reduce(*one, 1, (0.0, 0.0, 0.0), np.zeros((1, len(_COLUMNS))))
    except Exception:  # not installed, or one that fits neither this numpy nor this processor: it is only a faster way
        return None
    return fused.reduce


def _run(
    plan: Plan, options: tuple[float, float, float, bool], rows: _Floats, loop: _Loop | None = None
) -> list[_Worker]:
    """Fill ``rows``, one per chunk; returns the workers that did it."""
    # With fewer chunks than that a thread costs more to start than it saves.
    threads = max(1, min(_cores(), torch.get_num_threads(), MOST_THREADS, plan.chunks // 8))
    workers = [_Worker(plan, *options) if loop is None else _Fused(loop, plan, *options) for _ in range(threads)]
    if threads == 1:
        workers[0].run(itertools.count(), rows)
        return workers
    ticket = itertools.count()
    failures: list[BaseException] = []

    def work(worker: _Worker) -> None:
        try:
            worker.run(ticket, rows)
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=work, args=(w,), daemon=True) for w in workers[1:]]
    for thread in others:
        thread.start()
    work(workers[0])
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    return workers


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1


class _Worker:
    """One thread's buffers, and the reduction of one chunk to one row."""

    def __init__(self, plan: Plan, rtol: float, atol: float, floor: float, rounded: bool) -> None:
        self.plan, self.rtol, self.atol, self.floor, self.rounded = plan, rtol, atol, floor, rounded
        n = min(plan.length, max(plan.count, 1))
        self.wide = torch.complex128 if plan.parts == 2 else torch.float64
        self.x, self.y = torch.empty(n, dtype=self.wide), torch.empty(n, dtype=self.wide)
        self.t, self.flags = np.empty(n * plan.parts), np.empty(n, dtype=np.bool_)
        self.native: dict[str, torch.Tensor] = {}
        dtypes = plan.golden_dtype, plan.actual_dtype
        self.integers = not any(d.is_floating_point or d.is_complex for d in dtypes)
        self.long = self.integers and any(d.itemsize == 8 for d in dtypes)
        self.max_ulp: int | None = 0 if plan.actual_dtype.is_floating_point and plan.parts == 1 and not floor else None
        self.size = n

    def scratch(self, name: str, dtype: torch.dtype, n: int) -> torch.Tensor:
        if name not in self.native:
            self.native[name] = torch.empty(self.size, dtype=dtype)
        return self.native[name][:n]

    def run(self, numbers: Iterator[int], rows: _Floats) -> None:
        """Fill the rows whose numbers come in, up to the last."""
        with np.errstate(all="ignore"):
            for i in numbers:
                if i >= self.plan.chunks:
                    return
                rows[i] = self.reduce(i)

    def contiguous(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Both sides of chunk ``i`` in their own dtype, one-dimensional and contiguous."""
        golden, actual = self.plan.view(i)
        if self.plan.flat:
            return golden, actual
        a = self.scratch("golden", golden.dtype, golden.numel())
        a.view(golden.shape).copy_(golden)
        b = self.scratch("actual", actual.dtype, actual.numel())
        b.view(actual.shape).copy_(actual)
        return a, b

    def load(self, i: int) -> tuple[torch.Tensor, torch.Tensor, _Floats, _Floats]:
        """Chunk ``i``: both sides contiguous in their own dtype, and as float64 (complex: real and imaginary parts)."""
        golden, actual = self.contiguous(i)
        n = golden.numel()
        x, y = self.x[:n], self.y[:n]
        x.copy_(self.as_actual(golden) if self.rounded else golden)
        y.copy_(actual)
        if self.plan.parts == 2:
            x, y = torch.view_as_real(x).view(-1), torch.view_as_real(y).view(-1)
        return golden, actual, x.numpy(), y.numpy()

    def as_actual(self, golden: torch.Tensor) -> torch.Tensor:
        if golden.dtype == self.plan.actual_dtype:
            return golden
        return self.scratch("rounded", self.plan.actual_dtype, golden.numel()).copy_(golden)

    def difference(
        self, golden: torch.Tensor, actual: torch.Tensor, x: _Floats, y: _Floats, out: _Floats | None = None
    ) -> _Floats:
        """Actual minus golden, into ``out`` (which may be ``y``) or a new array."""
        if self.long:
            # High and low halves apart: float64 alone can't tell 2**53 + 1 from 2**53, and int64 alone overflows.
            a, b = _halves(golden), _halves(actual)
            out = np.multiply(b[0] - a[0], 2.0**32, out=out)
            out += b[1] - a[1]
            return out
        return np.subtract(y, x, out=out)

    def modulus(self, parts: _Floats, out: _Floats) -> _Floats:
        if self.plan.parts == 1:
            return np.abs(parts, out=out)
        return np.abs(parts.view(np.complex128), out=out[: parts.size // 2])

    def masked(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, _Floats, _Floats, NDArray[np.bool_] | None]]:
        """Every chunk with what isn't finite on both sides zeroed, and the elements that disagree about it."""
        for i in range(self.plan.chunks):
            golden, actual, x, y = self.load(i)
            hidden = self.mask(golden, x, y)
            yield golden, actual, x, y, hidden.apart if hidden else None

    def reduce(self, i: int) -> tuple[float, ...]:
        """Chunk ``i`` as one row of ``_COLUMNS``."""
        golden, actual, x, y = self.load(i)
        n, parts, single = golden.numel(), x.size, self.plan.parts == 1
        xx, yy = _dot(x, x), _dot(y, y)
        hidden = None
        if not math.isfinite(xx + yy) and (hidden := self.mask(golden, x, y)):
            xx, yy = _dot(x, x), _dot(y, y)
        finite, non_finite = (hidden.finite, hidden.non_finite) if hidden else (n, 0)
        xy = _dot(x, y)
        d = self.difference(golden, actual, x, y, out=y)
        signed, dd = _sum_of(d), _dot(d, d)
        error, size, t = (d, x, self.t[:n]) if single else (self.t[:n], d[:n], self.t[n:parts])
        self.modulus(d, error)
        largest = float(np.maximum.reduce(error))
        if largest == 0.0:
            compared = n if self.floor else int(np.count_nonzero(x if single else x.view(np.complex128)))
            excess = math.inf if non_finite else -math.inf
            return finite, xx, yy, xy, 0.0, 0.0, 0.0, 0.0, compared, 0.0, 0.0, 0, non_finite, excess
        self.modulus(x, size)
        excess, bad = -math.inf, 0
        if largest > self.atol:
            np.multiply(size, self.rtol, out=t)
            t += self.atol
            np.subtract(error, t, out=t)
            excess = float(np.maximum.reduce(t))
            bad = int(np.count_nonzero(np.greater(t, 0.0, out=self.flags[:n]))) if excess > 0.0 else 0
        compared, max_rel, sum_rel = self.relative(error, size, t)
        if self.max_ulp is not None:
            # Relative errors below one leave no room for a change of sign, the one case that needs care.
            plain = hidden is None and compared == n and max_rel < 1.0
            self.max_ulp = max(self.max_ulp, self.ulp(golden, actual, hidden, plain))
        mean = _sum_of(error)
        excess = math.inf if non_finite else excess
        return finite, xx, yy, xy, dd, signed, mean, sum_rel, compared, largest, max_rel, bad, non_finite, excess

    def relative(self, error: _Floats, size: _Floats, t: _Floats) -> tuple[int, float, float]:
        """How many relative errors there are, the largest and the sum; overwrites ``size`` and ``t``."""
        n = size.size
        if self.floor:
            np.maximum(size, self.floor, out=size)
        np.divide(error, size, out=t)
        total = _sum_of(t)
        if not math.isfinite(total):
            zero = size == 0.0
            t[zero] = 0.0
            n -= int(np.count_nonzero(zero))
            total = _sum_of(t)
        return n, float(np.maximum.reduce(t)), total

    def mask(self, golden: torch.Tensor, x: _Floats, y: _Floats) -> _Hidden | None:
        """Zero what isn't finite on both sides; None when everything is."""
        both = np.isfinite(x) & np.isfinite(y)
        if both.all():
            return None
        there, dtype = x, self.plan.actual_dtype
        if dtype != golden.dtype and (dtype.is_floating_point or dtype.is_complex):
            # A golden beyond the range of the actual's dtype is Inf there.
            wide = self.scratch("wide", self.wide, golden.numel()).copy_(self.as_actual(golden))
            there = (torch.view_as_real(wide).view(-1) if self.plan.parts == 2 else wide).numpy()
        agree = ~np.isfinite(y) & ((there == y) | (np.isnan(there) & np.isnan(y)))
        if dtype.is_floating_point and "fn" in str(dtype):
            # float8 formats without Inf overflow to NaN; whether the CPU saturates instead depends on torch.
            agree |= np.isnan(y) & (np.abs(x) > torch.finfo(dtype).max)
        apart = ~(both | agree)
        if self.plan.parts == 2:
            # One part that disagrees condemns the element: its other part isn't compared.
            apart = np.any(apart.reshape(-1, 2), axis=1)
            both &= ~np.repeat(apart, 2)
        x[~both] = 0.0
        y[~both] = 0.0
        finite = np.any(both.reshape(-1, self.plan.parts), axis=1)
        return _Hidden(int(np.count_nonzero(finite)), int(np.count_nonzero(apart)), apart, ~finite)

    def ulp(self, golden: torch.Tensor, actual: torch.Tensor, hidden: _Hidden | None, plain: bool) -> int:
        """Largest distance in representable values of the actual's dtype; ``plain`` when no pair changes sign."""
        as_int = _INT_OF_SIZE[actual.dtype.itemsize]
        a, b = self.as_actual(golden).view(as_int).numpy(), actual.view(as_int).numpy()
        if plain:
            steps = b - a
            return max(int(np.maximum.reduce(steps)), -int(np.minimum.reduce(steps)))
        return _ulp_across_zero(a, b, hidden.either if hidden else None, signed=actual.dtype not in _SIGNLESS)

    def steps(self, golden: torch.Tensor, actual: torch.Tensor) -> int | None:
        """The same of one pair; None where it isn't counted, or isn't finite."""
        if self.max_ulp is None or not bool(golden.double().isfinite() & actual.double().isfinite()):
            return None
        return self.ulp(golden.reshape(1), actual.reshape(1), None, plain=False)

    def errors(self, i: int) -> tuple[torch.Tensor, torch.Tensor, _Floats, _Floats]:
        """Both sides of chunk ``i``, each element's error, and by how much it is outside tolerance."""
        with np.errstate(all="ignore"):
            golden, actual, x, y = self.load(i)
            hidden = self.mask(golden, x, y)
            error = np.empty(golden.numel())
            self.modulus(self.difference(golden, actual, x, y), error)
            excess = error - (self.modulus(x, np.empty(error.size)) * self.rtol + self.atol)
            if hidden:
                error[hidden.apart] = excess[hidden.apart] = math.inf
        return golden, actual, error, excess


class _Fused(_Worker):
    """The same with the compiled loop, and without it for the chunks that it leaves alone."""

    def __init__(self, loop: _Loop, *rest: Any) -> None:
        super().__init__(*rest)
        self.loop = loop

    def run(self, numbers: Iterator[int], rows: _Floats) -> None:
        """Fill rows, a few at a time."""
        plan, many = self.plan, _AT_ONCE if self.plan.flat else 1
        limits = self.rtol, self.atol, self.floor
        for start in (number * many for number in numbers):
            if start >= plan.chunks:
                return
            part = rows[start : start + many]
            if plan.flat:
                golden, actual = (side[start * plan.length :][: many * plan.length] for side in plan.sides)
            else:
                golden, actual = self.contiguous(start)
            ulp = self.loop(golden, actual, plan.length, limits, part)
            if self.max_ulp is not None:
                self.max_ulp = max(self.max_ulp, ulp)
            with np.errstate(all="ignore"):
                for i in np.flatnonzero(part[:, 0] < 0):
                    part[i] = self.reduce(start + int(i))


@dataclass(frozen=True)
class _Hidden:
    """What a chunk with NaN or infinities leaves: elements compared, elements that disagree, and where."""

    finite: int
    non_finite: int
    apart: NDArray[np.bool_]
    either: NDArray[np.bool_]


#: float dtypes without a sign bit
_SIGNLESS = {d for d in (getattr(torch, "float8_e8m0fnu", None),) if d is not None}


def _ulp_across_zero(a: NDArray[Any], b: NDArray[Any], masked: NDArray[np.bool_] | None, *, signed: bool) -> int:
    bits = a.dtype.itemsize * 8
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    low = np.uint64((1 << (bits - signed)) - 1)
    # Sign and magnitude: two values of opposite sign are as far apart as the sum of their distances to zero.
    p, q = a.view(unsigned).astype(np.uint64), b.view(unsigned).astype(np.uint64)
    flip = (p ^ q) > low
    p &= low
    q &= low
    steps = np.where(flip, p + q, np.maximum(p, q) - np.minimum(p, q))
    if masked is not None:
        steps[masked] = 0
    return int(steps.max())


def _dot(a: _Floats, b: _Floats) -> float:
    """Dot product in pieces too short for a BLAS library to start threads of its own, which would fight with ours."""
    whole = a.size - a.size % _DOT
    total = 0.0
    if whole:
        rows = np.matmul(a[:whole].reshape(-1, 1, _DOT), b[:whole].reshape(-1, _DOT, 1))
        total = float(rows[0, 0, 0]) if whole == _DOT else float(rows.sum())
    return total + float(np.dot(a[whole:], b[whole:])) if a.size > whole else total


def _sum_of(a: _Floats) -> float:
    """Sum by the same route, which is faster than numpy's own."""
    whole = a.size - a.size % _DOT
    total = float(np.matmul(a[:whole].reshape(-1, 1, _DOT), _ONES).sum()) if whole else 0.0
    return total + float(np.dot(a[whole:], _ONES[: a.size - whole, 0])) if a.size > whole else total


def _halves(t: torch.Tensor) -> tuple[_Floats, _Floats]:
    signed = t.dtype != torch.uint64
    whole = t.view(torch.int64) if t.dtype == torch.uint64 else t.to(torch.int64)
    high, low = whole >> 32, whole & 0xFFFFFFFF
    return (high if signed else high & 0xFFFFFFFF).double().numpy(), low.double().numpy()


def _needs_scaling(plan: Plan, total: dict[str, float], max_abs: float) -> bool:
    """Whether squares of float64 values over- or underflowed, so that sums or the cosine would be wrong."""
    if plan.golden_dtype not in _DOUBLE and plan.actual_dtype not in _DOUBLE:
        return False
    products = total["xx"], total["yy"], total["dd"]
    # A sum of squares may be zero because every value is, but not when the sides differ.
    return any(p >= 1e150 or math.isnan(p) or (p <= 1e-150 and (p > 0.0 or max_abs > 0.0)) for p in products)


def _scaled(plan: Plan, options: tuple[float, float, float, bool], max_abs: float) -> dict[str, float]:
    """The sums again, each side divided by a power of two near its largest value; slow, and needed very rarely."""
    worker = _Worker(plan, *options)
    top = [0.0, 0.0]
    for _, _, x, y, _ in worker.masked():
        top = [max(top[0], float(np.abs(x).max())), max(top[1], float(np.abs(y).max()))]
    ex, ey = (math.frexp(t)[1] for t in top)
    ed = math.frexp(max_abs)[1] if math.isfinite(max_abs) else max(ex, ey) + 1
    rows = []
    for golden, actual, x, y, _ in worker.masked():
        with np.errstate(all="ignore"):
            d = np.ldexp(worker.difference(golden, actual, x, y), -ed)
        if not np.isfinite(d).all():
            d = np.ldexp(y, -ed) - np.ldexp(x, -ed)
        error = worker.modulus(d, np.empty(d.size))
        p, q = np.ldexp(x, -ex), np.ldexp(y, -ey)
        rows.append((np.dot(p, p), np.dot(q, q), np.dot(p, q), np.dot(d, d), d.sum(), error.sum()))
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    exponents = {"x_exponent": ex, "y_exponent": ey, "d_exponent": ed}
    return {**dict(zip(("xx", "yy", "xy", "dd", "sd", "sa"), sums, strict=True)), **exponents}


def _worst(plan: Plan, worker: _Worker, columns: dict[str, _Floats], k: int) -> tuple[Element, ...]:
    """The ``k`` worst elements, found by a second look at the few chunks that can hold them."""
    suspects = {
        int(i)
        for name, limit in (("excess", 0.0), ("max_abs", 0.0))
        for i in _top(columns[name], k)
        if columns[name][i] > limit
    }
    ranked = []
    for i, golden, actual, error, excess in ((i, *worker.errors(i)) for i in sorted(suspects)):
        for j in sorted({int(j) for key in (excess, error) for j in _top(key, k)}):
            if error[j] > 0.0:
                outside = max(0.0, float(excess[j]))
                # The chunk's memory is used again for the next one.
                pair = golden[j].clone(), actual[j].clone()
                ranked.append((-outside, -float(error[j]), plan.index(i, j), pair))
    ranked.sort(key=lambda entry: entry[:3])
    return tuple(
        Element(index, golden.item(), actual.item(), -error, worker.steps(golden, actual))
        for _, error, index, (golden, actual) in ranked[:k]
    )


def _top(values: _Floats, k: int) -> NDArray[np.int64]:
    """Where the ``k`` largest values are, the earliest of equal ones."""
    if values.size <= k:
        return np.arange(values.size)
    limit = np.partition(values, -k)[-k]
    above, equal = np.flatnonzero(values > limit), np.flatnonzero(values == limit)
    return np.concatenate([above, equal[: k - above.size]])


def non_finite_mismatches(golden: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Where one side is NaN or infinite and the other isn't the same: booleans of the same shape.

    Takes one byte per element; :func:`measure` only counts and takes none.
    """
    golden, actual = golden.detach().contiguous(), actual.detach().contiguous()
    plan = Plan(golden, actual, CHUNK)
    worker = _Worker(plan, 0.0, 0.0, 0.0, False)
    found = np.zeros(plan.count, dtype=np.bool_)
    for i, (_, _, _, _, apart) in enumerate(worker.masked()):
        if apart is not None:
            found[i * plan.length : i * plan.length + apart.size] = apart
    return torch.from_numpy(found).reshape(actual.shape)
