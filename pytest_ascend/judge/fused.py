"""A chunk of a pair of tensors reduced by compiled loops: numba, where it is installed (``pytest-ascend[fast]``).

Elements are widened to float64 in registers, and all sums and extremes of a chunk are taken there. Chunks, columns and
their meaning are those of ``metrics._Worker.reduce``, so everything after the loops is shared. Sums may be added in
another order; largest errors, counts and distances in representable values come out the same to the last bit. Chunks
with NaN or infinities, complex numbers, float8 and integers stay with numpy.

Chosen by measurement: two float32 tensors of 100 million elements, two cores with AVX-512, each tensor's bytes counted
once. Copying memory reads and writes 45 GB/s there. ``python benchmarks/compare_speed.py`` prints it for this machine.

===============================  =========  =====================================================================
torch and numpy                    2 GB/s   needs nothing
``torch.compile``                 14 GB/s   12 s and a C++ compiler for the first result; one running sum, one thread
numba                             33 GB/s   1.5 s for the first result of all, 0.5 s for the first of a process
===============================  =========  =====================================================================

This module imports numba: it is loaded when a large tensor comes, and never with the plugin.
"""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable
from typing import Any, TypeVar

import llvmlite.binding
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

__all__ = ["reduce", "suits"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: How a tensor is handed to the loop. Numba knows no 16-bit floats: float16 goes as uint16 and bfloat16 as int16.
_BITS: dict[torch.dtype, tuple[torch.dtype, type[np.generic]]] = {
    torch.float64: (torch.float64, np.float64),
    torch.float32: (torch.float32, np.float32),
    torch.float16: (torch.int16, np.uint16),
    torch.bfloat16: (torch.int16, np.int16),
}


def suits(golden: torch.dtype, actual: torch.dtype) -> bool:
    """Whether there is a loop for a pair of dtypes: floats of one dtype, or a float64 golden."""
    return actual in _BITS and golden in (actual, torch.float64) and (actual is not torch.float16 or _knows_half())


@functools.cache
def _knows_half() -> bool:
    """Whether the processor converts float16 itself; the compiled loop has no routine that would."""
    return platform.machine() in ("arm64", "aarch64") or llvmlite.binding.get_host_cpu_features().get("f16c", False)


def _as_bits(flat: torch.Tensor) -> NDArray[Any]:
    """A contiguous tensor as the loop takes it, sharing its memory."""
    through, dtype = _BITS[flat.dtype]
    array: NDArray[Any] = flat.view(through).numpy()
    return array.view(dtype)


def _compiled(**options: Any) -> Callable[[_F], _F]:
    """``numba.njit``, kept on disk where there is a place for it."""

    def decorate(function: _F) -> _F:
        with contextlib.suppress(RuntimeError):  # no folder that can be written
            kept: _F = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
            return kept
        plain: _F = numba.njit(nogil=True, error_model="numpy", **options)(function)
        return plain

    return decorate


# --- one element ----------------------------------------------------------------------------------------------------
# `a if c else b` becomes a select: the loop is vectorised only without branches. Each function stands for several, one
# per format, which numba picks by the type of the value.


def _wide(value: Any) -> Any:
    """A value of ``_BITS`` as float64."""


def _bits(value: Any, like: Any) -> Any:
    """A value rounded to the format of ``like``, as an unsigned integer of as many bits."""


def _apart(a: Any, b: Any, like: Any) -> Any:
    """How many values of the format of ``like`` lie between two given as bits; both zeros are one value."""


@intrinsic  # type: ignore[untyped-decorator]
def _from_half(context: Any, bits: Any) -> Any:
    """float16's bits to float64: one instruction, which a processor told to flush subnormals still does right."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fpext(builder.bitcast(values[0], ir.HalfType()), ir.DoubleType())

    return types.float64(types.uint16), emit


@intrinsic  # type: ignore[untyped-decorator]
def _to_half(context: Any, value: Any) -> Any:
    """float32 to float16's bits, ties to even."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.fptrunc(values[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), emit


@overload(_wide, strict=False)  # type: ignore[untyped-decorator]
def _wide_of(value: Any) -> Any:
    if value == types.uint16:
        return lambda value: _from_half(value)
    if value == types.int16:
        return lambda value: np.float64(np.uint32(np.uint32(np.uint16(value)) << np.uint32(16)).view(np.float32))
    return lambda value: np.float64(value)


@overload(_bits, strict=False)  # type: ignore[untyped-decorator]
def _bits_of(value: Any, like: Any) -> Any:
    if like == types.float64:
        return lambda value, like: np.float64(value).view(np.uint64)
    if like == types.float32:
        return lambda value, like: np.float32(value).view(np.uint32)
    if value == like:
        return lambda value, like: np.uint16(value)
    # From float64 by way of float32, as torch does it.
    if like == types.uint16:
        return lambda value, like: _to_half(np.float32(value))

    def to_bfloat16(value: Any, like: Any) -> Any:
        bits = np.float32(value).view(np.uint32)
        odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
        return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return to_bfloat16


@overload(_apart, strict=False)  # type: ignore[untyped-decorator]
def _apart_of(a: Any, b: Any, like: Any) -> Any:
    whole: Any
    low: Any
    if like == types.float64:
        whole, low = np.uint64, np.uint64(0x7FFF_FFFF_FFFF_FFFF)
    elif like == types.float32:
        whole, low = np.uint32, np.uint32(0x7FFF_FFFF)
    else:
        whole, low = np.uint16, np.uint16(0x7FFF)

    def steps(a: Any, b: Any, like: Any) -> Any:
        # Sign and magnitude: values of opposite sign are as far apart as the sum of their distances to zero.
        p, q = whole(a & low), whole(b & low)
        straight, around = whole(max(p, q) - min(p, q)), whole(p + q)
        return around if whole(a ^ b) > low else straight

    return steps


@_compiled(fastmath={"reassoc", "nsz"})
def _plus(total: float, a: float) -> float:
    """A sum whose terms may be added in any order: alone in its function, because nothing else in the loop may be."""
    return total + a


@_compiled(fastmath={"reassoc", "nsz", "contract"})
def _plus_product(total: float, a: float, b: float) -> float:
    return total + a * b


# --- the loop -------------------------------------------------------------------------------------------------------


# --- the loops ------------------------------------------------------------------------------------------------------
# Three over each chunk, which stays in the cache meanwhile: a loop is as slow as its widest type, and 16-bit integers
# fill a register with four times as many elements as float64 does.


@_compiled()
def _places(xs: Any, ys: Any) -> Any:
    """The furthest distance in values of the actual's format."""
    nothing = _bits(ys[0], ys[0])
    furthest = _apart(nothing, nothing, ys[0])
    for i in range(xs.size):
        steps = _apart(_bits(xs[i], ys[i]), _bits(ys[i], ys[i]), ys[i])
        furthest = steps if steps > furthest else furthest
    return furthest


@_compiled()
def _sums(xs: Any, ys: Any, floor: Any) -> Any:
    """``xx, yy, xy, dd, sd, sa, sr``, the largest error and the largest relative one; the golden has no zero where the
    floor is None."""
    xx = yy = xy = dd = sd = sa = sr = 0.0
    # Bits of floats that aren't negative compare as these do, and integers have a maximum in any order.
    largest = widest = np.int64(0)
    for i in range(xs.size):
        x, y = _wide(xs[i]), _wide(ys[i])
        d, s = y - x, abs(x)
        e = abs(d)
        xx, yy, xy = _plus_product(xx, x, x), _plus_product(yy, y, y), _plus_product(xy, x, y)
        dd, sd, sa = _plus_product(dd, d, d), _plus(sd, d), _plus(sa, e)
        if floor is None:
            ratio = e / s
        else:
            size = s if s > floor else floor
            ratio = e / (size if size > 0.0 else np.inf)
        sr = _plus(sr, ratio)
        largest = max(largest, np.float64(e).view(np.int64))
        widest = max(widest, np.float64(ratio).view(np.int64))
    return xx, yy, xy, dd, sd, sa, sr, np.int64(largest).view(np.float64), np.int64(widest).view(np.float64)


@_compiled()
def _outside(xs: Any, ys: Any, rtol: float, atol: float) -> Any:
    """How many elements are outside tolerance, and the furthest by how much."""
    bad = beyond = np.int64(0)
    for i in range(xs.size):
        x = _wide(xs[i])
        over = abs(_wide(ys[i]) - x) - (abs(x) * rtol + atol)
        bad += np.int64(over > 0.0)
        beyond = max(beyond, np.float64(over).view(np.int64))
    return bad, np.int64(beyond).view(np.float64)


@_compiled()
def _has_zero(xs: Any) -> Any:
    nothing = _apart(_bits(xs[0], xs[0]), _bits(xs[0], xs[0]), xs[0])
    least = _apart(_bits(xs[0], xs[0]), nothing, xs[0])
    for i in range(xs.size):
        size = _apart(_bits(xs[i], xs[i]), nothing, xs[i])
        least = size if size < least else least
    return least == nothing


@_compiled()
def _zeros(xs: Any) -> Any:
    count = np.int64(0)
    for i in range(xs.size):
        count += np.int64(_wide(xs[i]) == 0.0)
    return count


@_compiled()
def _reduce(golden: Any, actual: Any, chunk: int, limits: Any, rows: Any) -> Any:
    rtol, atol, floor = limits
    most = np.uint64(0)
    for c in range(rows.shape[0]):
        xs, ys = golden[c * chunk : (c + 1) * chunk], actual[c * chunk : (c + 1) * chunk]
        row = rows[c]
        zeros = _zeros(xs) if not floor and _has_zero(xs) else 0
        sums = _sums(xs, ys, floor) if zeros or floor else _sums(xs, ys, None)
        xx, yy, xy, dd, sd, sa, sr, largest, widest = sums
        finite = np.isfinite(xx + yy)
        bad, beyond = _outside(xs, ys, rtol, atol) if finite and largest > atol else (0, 0.0)
        row[0] = xs.size if finite else -1.0
        row[1], row[2], row[3], row[4], row[5], row[6], row[7] = xx, yy, xy, dd, sd, sa, sr
        row[8], row[9], row[10], row[11], row[12] = xs.size - zeros, largest, widest, bad, 0.0
        row[13] = beyond if bad else -np.inf
        if finite and largest:
            most = max(most, np.uint64(_places(xs, ys)))
    return most


def reduce(
    golden: torch.Tensor,
    actual: torch.Tensor,
    chunk: int,
    limits: tuple[float, float, float],
    rows: NDArray[np.float64],
) -> int:
    """Reduce two one-dimensional contiguous tensors, ``chunk`` elements to each of ``rows``.

    ``limits`` are rtol, atol and the floor of relative errors. Returns the largest distance in values of the actual's
    dtype. Of a chunk that isn't finite, or whose squares overflow, nothing is said: the first column of its row is -1.
    """
    return int(_reduce(_as_bits(golden), _as_bits(actual), chunk, limits, rows))
