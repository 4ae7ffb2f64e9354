"""Timings grouped by process, and the one number that stands for a process.

The process is what is replicated: timings inside one share its memory layout, its caches and its clock, so a thousand
of them are no more evidence about the next process than the first few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Process", "Samples", "summarise", "valid_threshold"]

Samples = Sequence[Sequence[float]]
"""Per process its timings in seconds, each finite and above 0."""


class Process(NamedTuple):
    """What stands for a process: the natural logarithms of its timings' median and minimum, in seconds."""

    median: float
    minimum: float


def summarise(samples: Samples, side: str) -> list[Process]:
    """One :class:`Process` for each; ``side`` names the samples in errors ("baseline").

    Raises:
        TypeError: not a sequence of sequences of numbers.
        ValueError: a process without timings, or a timing that isn't finite and above 0.
    """
    given: object = samples
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"the {side} is {type(samples).__name__}: give a sequence of timings for each process")
    return [_process(timings, side, number) for number, timings in enumerate(samples)]


def _process(timings: object, side: str, number: int) -> Process:
    where = f"process {number} of the {side}"
    if isinstance(timings, (str, bytes)) or not isinstance(timings, Iterable):
        raise TypeError(f"{where} is {timings!r}: give a sequence of timings for each process, in seconds")
    try:
        ordered = sorted(map(float, timings))
    except (TypeError, ValueError):
        raise TypeError(f"{where} holds something else than numbers: give its timings in seconds") from None
    if not ordered:
        raise ValueError(f"{where} has no timings: leave it out, or time it again")
    # A NaN upsets the order, but not the sum. A sum may overflow though each of its terms is finite.
    if not (ordered[0] > 0 and math.isfinite(sum(ordered))):
        for value in ordered:
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{where} has a timing of {value!r} s: a time is finite and above 0")
    middle = len(ordered) // 2
    median = math.log(ordered[middle])
    if len(ordered) % 2 == 0:
        median = (median + math.log(ordered[middle - 1])) / 2
    return Process(median, math.log(ordered[0]))


def valid_threshold(threshold: float) -> float:
    """The threshold as a difference of logarithms. Raises ``ValueError`` unless it lies in (0, 1]."""
    if not 0 < threshold <= 1:  # NaN too
        raise ValueError(f"threshold={threshold!r}: give the slowdown to catch as a fraction, such as 0.03 for 3 %")
    return math.log1p(threshold)
