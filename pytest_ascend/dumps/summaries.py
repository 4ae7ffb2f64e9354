"""What statistics and checksums can tell of two tensors whose values weren't recorded.

For any tensors a and b, with every |a - b| within ``rtol * |a| + atol * rms(a)``:

- ``|max(a) - max(b)| <= max|a - b|``, and the same of the smallest values;
- ``|mean(a) - mean(b)| <= mean|a - b| <= (rtol + atol) * rms(a)``, because a mean of absolute values isn't above the
  root mean square;
- ``| ||a|| - ||b|| | <= ||a - b|| <= (rtol + atol) * ||a||``, by the triangle inequality.

So statistics that differ by more prove that values differ by more than the dtype allows. Statistics that agree prove
nothing of the kind: permuted, conjugated or partly wrong values may have the same ones. Statistics themselves are
computed in float32, which adds a rounding that grows with the square root of the number of elements at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_ascend.dumps.values import TensorSpec
from pytest_ascend.judge.quick import CARRIED, TABLE

__all__ = ["AGREED", "Summary", "compared"]

AGREED = "only statistics were recorded: that they agree doesn't prove that the values do"
_FLOATS = {"complex64": "float32", "complex128": "float64"}
_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Summary:
    """The answer: ``differs`` names what proves a difference, ``known`` says whether there was anything to compare.

    ``distance`` is the largest difference of a statistic over the size of the values.
    """

    known: bool
    differs: str = ""
    non_finite: bool = False
    distance: float = 0.0


def compared(golden: TensorSpec, actual: TensorSpec, distance: float = 0.0) -> Summary:
    """Whether the statistics of two tensors of one shape can belong to values that agree at their dtype's precision.

    ``distance`` is that of what the tensors were computed from; a multiple of it is allowed for, as for values.
    """
    names = [n for n in ("max", "min", "mean", "norm") if None not in (getattr(golden, n), getattr(actual, n))]
    if not names:
        return Summary(False)
    if golden.dtype not in (*TABLE, *_FLOATS) or actual.dtype not in (*TABLE, *_FLOATS):
        return _exact(golden, actual, names)
    rtol, atol = max(TABLE[_FLOATS.get(s.dtype, s.dtype)][:2] for s in (golden, actual))
    count = max(golden.numel, 1)
    bounds = [abs(float(x)) for x in (golden.max, golden.min) if x is not None and math.isfinite(x)]
    largest = max(bounds, default=0.0)
    norm = golden.norm if golden.norm is not None and math.isfinite(golden.norm) else largest * math.sqrt(count)
    rms = min(norm / math.sqrt(count), largest) if bounds else norm / math.sqrt(count)
    rounding = _ROUNDING * max(4.0, math.sqrt(count))
    carried = CARRIED * distance
    limits = {
        "max": rtol * largest + (atol + carried) * rms,
        "min": rtol * largest + (atol + carried) * rms,
        "mean": (rtol + atol + rounding + carried) * rms,
        "norm": (rtol + atol + rounding + carried) * norm,
    }
    apart = 0.0
    for name in names:
        x, y = float(getattr(golden, name)), float(getattr(actual, name))
        if not (math.isfinite(x) and math.isfinite(y)):
            if x != y and not (math.isnan(x) and math.isnan(y)):
                return Summary(True, f"{name} is {x:.6g} in the golden and {y:.6g} in the target", True)
        elif abs(x - y) > limits[name]:
            told = f"{name} is {x:.9g} in the golden and {y:.9g} in the target"
            return Summary(True, f"{told}, more than {limits[name]:.2g} apart")
        elif (size := norm if name == "norm" else rms) > 0.0:
            apart = max(apart, abs(x - y) / size)
    return Summary(True, distance=apart)


def _exact(golden: TensorSpec, actual: TensorSpec, names: list[str]) -> Summary:
    for name in ("max", "min"):
        x, y = getattr(golden, name), getattr(actual, name)
        if name in names and x != y and not (x != x and y != y):
            return Summary(True, f"{name} is {x:g} in the golden and {y:g} in the target")
    return Summary(True)
