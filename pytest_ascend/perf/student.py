"""Student's t distribution for whole degrees of freedom, and robust means whose errors follow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Location", "difference", "location", "powerful", "quantile"]

MOST = 200
"""Degrees of freedom above this count as this many: the quantiles used here differ from the normal ones by 3 % then,
to the safe side."""


def tail(t: float, df: int) -> float:
    """P(T > t) for t >= 0. Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(df))
    cosine = math.cos(theta)
    odd = df % 2
    term = cosine if odd else 1.0
    total = 0.0 if df == 1 else term
    for k in range(3 if odd else 2, df - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    inside = math.sin(theta) * total
    if odd:
        inside = 2 / math.pi * (theta + inside)
    return (1 - inside) / 2


@lru_cache(maxsize=4096)
def quantile(p: float, df: int) -> float:
    """The t that is exceeded with probability p, 1e-9 <= p < 0.5, by bisection."""
    df = max(1, min(df, MOST))
    low, high = 0.0, 1.0
    while tail(high, df) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if tail(middle, df) > p:
            low = middle
        else:
            high = middle
    return high


def powerful(critical: float, power: float, df: int) -> float:
    """How many standard errors an effect must have for its t to exceed ``critical`` with probability ``power`` > 0.5.

    Johnson and Welch, Applications of the non-central t-distribution, Biometrika 31 (1940): the error is estimated too,
    so t varies the more the larger the critical value is.
    """
    return critical + quantile(1 - power, df) * math.sqrt(1 + critical * critical / (2 * df))


class Location(NamedTuple):
    """An estimate: the value, its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    df: int


def location(values: Sequence[float]) -> Location:
    """Trimmed mean of at least two values, a tenth cut off at either end, with its error from the winsorised variance.

    Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61 (1974). Fewer than ten values are
    not trimmed: that leaves too few degrees of freedom. An outlier then widens the interval.
    """
    ordered = sorted(values)
    n = len(ordered)
    cut = n // 10
    kept = ordered[cut : n - cut]
    left = len(kept)
    value = math.fsum(kept) / left
    low, high = kept[0], kept[-1]
    centre = (math.fsum(kept) + cut * (low + high)) / n
    squares = math.fsum((x - centre) ** 2 for x in kept) + cut * ((low - centre) ** 2 + (high - centre) ** 2)
    return Location(value, math.sqrt(squares / (left * (left - 1))), left - 1)


def difference(base: Location, other: Location) -> Location:
    """other - base for independent sides; Welch's degrees of freedom, rounded down."""
    a, b = base.error**2, other.error**2
    if a + b == 0:
        return Location(other.value - base.value, 0.0, min(base.df, other.df))
    df = (a + b) ** 2 / (a * a / base.df + b * b / other.df)
    return Location(other.value - base.value, math.sqrt(a + b), int(df))
