"""The quick road to PASS: two plain arrays, measured in one pass and judged by ``auto``'s table, without torch.

:mod:`pytest_ascend.judge.standards` judges; this only spares it the pairs that are right beyond doubt, thousands of
them in a recorded model. A pair that this doesn't pass is not wrong: it goes the whole way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ascend.judge.verdict import Metrics

__all__ = ["CARRIED", "PIECE", "TABLE", "within_table"]

#: (rtol, atol, eps, smallest normal) by dtype: ``standards.TABLE`` and ``torch.finfo``, which a test compares
TABLE = {
    "float64": (1e-7, 1e-7, 2.0**-52, 2.0**-1022),
    "float32": (1.3e-6, 1e-5, 2.0**-23, 2.0**-126),
    "float16": (1e-3, 1e-5, 2.0**-10, 2.0**-14),
    "bfloat16": (1.6e-2, 1e-5, 2.0**-7, 2.0**-126),
}
#: how often the inputs' relative distance an element's error may be, beside the root mean square of the result. Errors
#: that come in with the inputs spread like noise, of which one in 10**9 is beyond six standard deviations
CARRIED = 6.0
#: elements at a time: three arrays of float64 that stay in a second-level cache of 1 MB
PIECE = 32_768
_ONES = np.ones(PIECE)

_Array = NDArray[Any]
_Floats = NDArray[np.float64]


def within_table(
    golden: _Array, actual: _Array, dtypes: tuple[str, str], done: Callable[[int], None] | None = None
) -> Metrics | None:
    """What ``measure`` says of a pair that ``auto`` passes by its table; None where that isn't certain.

    Args:
        golden, actual: the elements, flat and in the same order; those of bfloat16 as ``uint16``.
        dtypes: what they are.
        done: told how many elements were read for the last time, while it runs.

    Returns:
        All metrics but ``max_ulp`` and ``worst``, which take a second look; None for other dtypes, for values that
        aren't finite, and for errors outside the table.
    """
    if dtypes[0] not in TABLE or dtypes[1] not in TABLE or not actual.size:
        return None
    rtol, atol = max(TABLE[d][:2] for d in dtypes)  # that of the coarser one
    with np.errstate(all="ignore"):
        return _measured(golden, actual, dtypes, (rtol, atol), done)


def _measured(
    golden: _Array,
    actual: _Array,
    dtypes: tuple[str, str],
    tolerance: tuple[float, float],
    done: Callable[[int], None] | None,
) -> Metrics | None:
    n = actual.size
    xx = yy = xy = dd = signed = absolute = relative = 0.0
    largest = largest_relative = excess = 0.0
    compared = 0
    rtol = tolerance[0]
    for start in range(0, n, PIECE):
        x = wide(golden[start : start + PIECE], dtypes[0])
        d = wide(actual[start : start + PIECE], dtypes[1])
        yy += float(np.dot(d, d))
        xy += float(np.dot(x, d))
        xx += float(np.dot(x, x))
        if not math.isfinite(xx + yy):
            return None
        np.subtract(d, x, out=d)
        squares = float(np.dot(d, d))
        if squares == 0.0 and not d.any():
            compared += int(np.count_nonzero(x))
        else:
            dd += squares
            signed += _sum(d)
            np.abs(d, out=d)
            absolute += _sum(d)
            most = float(np.maximum.reduce(d))
            largest = max(largest, most)
            np.abs(x, out=x)
            if n > PIECE or most > tolerance[1] * math.sqrt(xx / n):  # else no element needs the relative part
                excess = max(excess, float((d - rtol * x).max()))
            np.divide(d, x, out=d)
            total, count = _sum(d), x.size
            if not math.isfinite(total):
                zero = x == 0.0
                d[zero] = 0.0
                count -= int(np.count_nonzero(zero))
                total = _sum(d)
            compared += count
            relative += total
            largest_relative = max(largest_relative, float(np.maximum.reduce(d)))
        if done is not None:
            done(min(start + PIECE, n))
    if dd == 0.0 and largest > 0.0:
        return None  # squares of errors that small underflow
    rms = math.sqrt(xx / n) if dd and xx else 1.0
    _, _, eps, tiny = TABLE[dtypes[1]]
    if not math.isfinite(dd) or excess > max(tolerance[1] * rms, tiny * eps):
        return None
    cosine = (1.0 if xx == yy else 0.0) if xx == 0.0 or yy == 0.0 else max(-1.0, min(1.0, xy / math.sqrt(xx * yy)))
    return Metrics(
        count=n,
        cosine_similarity=cosine,
        max_abs_error=largest,
        mean_abs_error=absolute / n,
        rmse=math.sqrt(dd / n),
        max_rel_error=largest_relative,
        mean_rel_error=relative / compared if compared else 0.0,
        relative_euclidean_distance=(math.sqrt(dd / xx) if xx else math.inf) if dd else 0.0,
        within_tolerance_ratio=1.0,
        mean_signed_error=signed / n,
        scale=xy / xx if xx else 1.0,
    )


def _sum(values: _Floats) -> float:
    """The sum by a library's dot product, which is faster than numpy's own."""
    return float(np.dot(values, _ONES[: values.size]))


def wide(values: _Array, dtype: str) -> _Floats:
    """The elements in float64, in memory of their own; bfloat16 comes as ``uint16``."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)
