"""The answer to "is it still fast?": :class:`PerfVerdict` and :class:`PerfResult`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ascend.judge.verdict import Word

__all__ = ["PerfResult", "PerfVerdict", "fraction", "percent"]


class PerfVerdict(Word):
    """``ok``: a slowdown of the threshold is excluded. ``regressed``: slower. ``improved``: faster, which never fails.
    ``inconclusive``: the timings at hand don't tell, for want of processes or for noise."""

    OK = "ok"
    REGRESSED = "regressed"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class PerfResult:
    """What two sets of timings say about each other.

    Attributes:
        verdict: the answer.
        ratio: candidate's time over the baseline's; 1.03 is 3 % slower, NaN when a side has no process.
        interval: a confidence interval of the ratio (99.5 % of process pairs, 98 % beside a history), (low, high);
            (0, inf) when nothing is known.
        detectable: minimum detectable effect: the smallest slowdown, as a fraction of the baseline's time, that the
            rule finds in about 95 % of cases in noise like this, all pairs it asks for included; infinite when the
            noise isn't known. Five pairs tell the noise to a third only.
        needs_more: how many more process pairs are wanted before the verdict is final, 0 when it is final. An ``ok``
            that wants more is no slowdown for certain; more pairs tell whether it is an improvement.
        reason: the verdict in one sentence.
        pairs: process pairs that were looked at; processes of the smaller side when they aren't paired.
        statistic: what stands for a process, ``"median"`` or ``"minimum"`` of its timings, whichever varies less.
    """

    verdict: PerfVerdict
    ratio: float
    interval: tuple[float, float]
    detectable: float
    needs_more: int
    reason: str
    pairs: int
    statistic: str = "median"

    @classmethod
    def unknown(cls, reason: str) -> PerfResult:
        """Nothing was compared, and no more pairs would change that."""
        return cls(PerfVerdict.INCONCLUSIVE, math.nan, (0.0, math.inf), math.inf, 0, reason, 0)

    @property
    def final(self) -> bool:
        """Whether more process pairs can't change the verdict."""
        return self.needs_more == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON: numbers that aren't finite are strings ("nan", "inf")."""
        plain = asdict(self)
        plain["verdict"] = self.verdict.value
        plain["interval"] = [_plain(bound) for bound in self.interval]
        plain["ratio"], plain["detectable"] = _plain(self.ratio), _plain(self.detectable)
        return plain


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def fraction(log: float) -> float:
    """A difference of logarithms as a fraction: 0.0296 is 0.03. Never overflows."""
    return math.expm1(min(log, 700.0))


def percent(value: float) -> str:
    """A fraction for people: 0.03 is ``3 %``, three digits at most."""
    return f"{100 * value:.3g} %" if abs(value) < 10 else f"{100 * value:.0f} %"
