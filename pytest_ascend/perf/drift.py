"""Error drift: an API that is still inside its tolerance, but further from the golden than it was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_ascend.perf.result import PerfVerdict

__all__ = ["FIGURE", "ROUNDOFF", "Drift", "error_drift"]

FIGURE = "relative_euclidean_distance"
"""The figure that drift is judged by: the error's norm over the golden's. It averages over the elements, so it moves
little with the inputs; a maximum moves by itself."""
ROUNDOFF = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "complex32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""Unit roundoff by dtype, half the gap between 1 and the next number: IEEE 754, and OCP's 8-bit formats."""


class Drift(NamedTuple):
    """``regressed`` where the error grew by the factor, ``improved`` where it shrank by it, else ``ok``;
    ``inconclusive`` without a baseline or without a finite error. ``ratio``: error over the stored ones' median."""

    verdict: PerfVerdict
    ratio: float
    reason: str


def error_drift(stored: Sequence[float], current: float, *, dtype: str, factor: float = 2.0) -> Drift:
    """Compare an error with those of stored sessions.

    Errors below the dtype's unit roundoff count as the roundoff: a result can't be rounded any better than that, so
    what happens below is chance. An error counts as grown only when it also exceeds every stored one.

    Args:
        stored: the figure :data:`FIGURE` (or another relative error) in earlier sessions.
        current: the same of now.
        dtype: the output's dtype by torch's name, such as ``float16``; others than :data:`ROUNDOFF` have no roundoff.
        factor: how much it may grow, above 1; ``error:2x`` is 2.

    Raises:
        ValueError: a factor of 1 or less, or an error that is negative or, among the stored ones, not finite.
    """
    if not (math.isfinite(factor) and factor > 1):
        raise ValueError(f"factor={factor!r}: give how many times the error may grow, such as 2")
    for value in stored:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a stored error of {value!r}: errors are finite and at least 0")
    if current < 0:
        raise ValueError(f"an error of {current!r}: errors are at least 0")
    if not stored:
        return Drift(PerfVerdict.INCONCLUSIVE, math.nan, "there is no stored error to compare with")
    if not math.isfinite(current):
        return Drift(PerfVerdict.INCONCLUSIVE, math.inf, f"the error is {current!r}, which is no size to compare")
    least = ROUNDOFF.get(dtype.removeprefix("torch."), 0.0)
    middle, largest, smallest = statistics.median(stored), max(stored), min(stored)
    now, before = max(current, least), max(middle, least)
    ratio = now / before if before else (math.inf if now else 1.0)
    said = f"relative error {current:.3g}, {middle:.3g} in {len(stored)} stored sessions"
    if ratio >= factor and now > largest:
        return Drift(PerfVerdict.REGRESSED, ratio, f"{said}: it grew {ratio:.3g} times")
    if ratio <= 1 / factor and now < smallest:
        return Drift(PerfVerdict.IMPROVED, ratio, f"{said}: it shrank {1 / ratio:.3g} times")
    return Drift(PerfVerdict.OK, ratio, said)
