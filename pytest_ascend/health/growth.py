"""Does a series of measurements grow? Judged by its trend and not by a number of bytes. Pure, standard library alone.

A leak keeps growing; a cache fills and stays; garbage comes and goes; tables grow in a few jumps. So the whole series
must have a rising trend that chance doesn't make, so must its second half, which rises at least half as fast as the
first, and it must rise often. The test is Mann's and Kendall's (H. B. Mann 1945;
M. G. Kendall, Rank Correlation Methods, 1975), which counts pairs that rise, whatever by how much; the rate is the
median of all slopes (P. K. Sen 1968).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Growth", "growth", "mann_kendall"]

CHANCE = 1e-3
"""How often a series without a trend may look as if it had one."""

LATER = 0.05
"""The same for its second half, which is what tells a leak from a cache that has filled."""

OFTEN = 0.3
"""In which share of its second half's intervals a noisy series must rise."""


@dataclass(frozen=True)
class Growth:
    """What a series did.

    Attributes:
        grows: whether it keeps growing.
        rate: units per step, the median of all slopes.
        total: last minus first.
        chance: how often a series without a trend would look so.
        settled: it grew and then stayed as it was.
    """

    grows: bool
    rate: float
    total: float
    chance: float
    settled: bool = False


def growth(values: Sequence[float], steps_between: float = 1.0, *, noisy: bool = False) -> Growth:
    """Whether a series keeps growing.

    Args:
        values: measured at equal distances, in any unit; fewer than 6 say nothing.
        steps_between: how many steps lie between two of them.
        noisy: others take memory there too, now and then.
    """
    if len(values) < 6:
        return Growth(False, 0.0, 0.0, 1.0)
    chance = mann_kendall(values)
    middle = len(values) // 2
    later = mann_kendall(values[middle:])
    rises = sum(after > before for before, after in zip(values[middle:], values[middle + 1 :], strict=False))
    often = rises >= (max(3.0, OFTEN * (len(values) - middle - 1)) if noisy else 2)
    first, second = values[middle] - values[0], values[-1] - values[middle]
    steady = second * middle >= 0.5 * first * (len(values) - 1 - middle)
    slopes = [
        (values[j] - values[i]) / ((j - i) * steps_between)
        for i in range(len(values))
        for j in range(i + 1, len(values))
    ]
    total = values[-1] - values[0]
    grows = chance < CHANCE and later < LATER and total > 0 and often and steady
    rate = statistics.median(slopes)
    if grows and rate <= 0:  # it rises seldom: then the median pair doesn't
        rate = total / ((len(values) - 1) * steps_between)
    settled = not grows and total > 0 and (chance < CHANCE or second == 0)
    return Growth(grows, rate, total, chance, settled)


def mann_kendall(values: Sequence[float]) -> float:
    """How often a series without a trend has as many pairs that rise, or more; ties don't count either way.

    Exact for up to 10 values without ties, else by the normal distribution with the variance that ties leave.
    """
    count = len(values)
    if count < 3:
        return 1.0
    score = sum(_sign(values[j] - values[i]) for i in range(count) for j in range(i + 1, count))
    groups = [list(values).count(one) for one in set(values)]
    if count <= 10 and all(one == 1 for one in groups):
        return _exact(count, score)
    variance = count * (count - 1) * (2 * count + 5) - sum(g * (g - 1) * (2 * g + 5) for g in groups)
    if variance <= 0 or score <= 0:
        return 1.0
    return 0.5 * math.erfc((score - 1) / math.sqrt(variance / 18) / math.sqrt(2))


def _exact(count: int, score: int) -> float:
    """The share of all orders whose score is at least this; orders are counted by their inversions."""
    orders = [1]
    for size in range(2, count + 1):
        wider = [0] * (len(orders) + size - 1)
        for inversions, ways in enumerate(orders):
            for more in range(size):
                wider[inversions + more] += ways
        orders = wider
    most = (count * (count - 1) // 2 - score) // 2
    return sum(orders[: most + 1]) / math.factorial(count)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
