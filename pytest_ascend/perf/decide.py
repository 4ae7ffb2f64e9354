"""When a difference of timings counts: the rule for pull requests and for any two sets of processes.

Two questions are asked of the log ratio of candidate and baseline, and both must be answered by evidence:

- Is it slower? ``regressed`` needs a slowdown beyond the cut-off whose t exceeds what chance yields once in a million
  comparisons. So a run may hold a thousand operators and still raise no alarm.
- Is a slowdown of the threshold excluded? ``ok`` needs a confidence interval that ends below it.

Whatever is neither is ``inconclusive``. Noise widens the interval, so too much of it can't pass as ``ok``.

It goes in stages: after 5 process pairs most operators are ``ok``; the others are given more, up to 40, for as long as
more can settle them. ``needs_more`` says how many. ``benchmarks/gate.py`` measures all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_ascend.perf.result import PerfResult, PerfVerdict, fraction, percent
from pytest_ascend.perf.samples import Process, Samples, summarise, valid_threshold
from pytest_ascend.perf.student import Location, difference, location, powerful, quantile

__all__ = ["CUT", "MISSES", "STEADIER", "decide", "found_at"]

LOOKS = (5, 10, 20, 40)
"""Process pairs after which a verdict is tried. 5 are the fewest that give a usable spread; doubling keeps the looks
few, and each look spends MISS; 40 are the most that a pull request can wait for."""
FALSE_ALARM = 1e-6
"""Chance that one look at one unchanged operator calls it regressed: 0.1 % of runs with 1,000 operators."""
MISS = 0.0025
"""Chance that one look calls a slowdown of just the threshold ``ok``: at most 1 % over the four looks. The interval's
confidence is 1 - 2 * MISS, that is 99.5 %. With a MISS of 1 %, 2 of 120 real slowdowns by 3 % passed as ``ok``."""
MISSES = len(LOOKS) * MISS
"""The same for a rule that looks once."""
CUT = 2 / 3
"""The cut-off lies at this part of the threshold (in logarithms), so that a slowdown of the threshold clears it in
spite of noise; half the remaining noise budget of the rule with fixed stages (2 % for 3 %), which it is taken from."""
SUSPICIOUS = 1 / 2
"""A slowdown that measures this part of the threshold is followed up, though its interval may end below the threshold
or the noise may be large: the screen of the rule with fixed stages (1.5 % for 3 %). Without it 2.5 % of slowdowns by
the threshold end as ``ok`` in quiet noise, because five pairs can underestimate their own spread."""
CONFIRMED = 20
"""Pairs without which nothing counts as changed: even a sign test, which assumes nothing of the noise, reaches
FALSE_ALARM only with 20 pairs (2**-20)."""
GROSS = 1.5
"""From LOOKS[1] pairs on a change is final when every process of one side takes this many times what any of the other
takes: of all ways to deal 20 processes to two sides, one in 184,756 does that."""
STEADIER = 0.8
"""Minima stand for the processes when their ratio varies less than this part of what the medians' varies, as on a busy
machine. Below 1 so that chance doesn't choose: of two equally good estimates the median stays."""
POWER = 0.95
"""Chance of being found that ``detectable`` stands for."""


def decide(baseline: Samples, candidate: Samples, *, paired: bool = False, threshold: float = 0.03) -> PerfResult:
    """Say whether the candidate is slower than the baseline.

    Args:
        baseline: timings in seconds, a sequence for each process.
        candidate: the same of what is judged.
        paired: process i of one side ran beside process i of the other, on the same machine, the sides taking turns in
            going first. What the pair shares cancels. Otherwise the processes of both sides must be samples of the
            same conditions; for sides from different sessions there is
            :func:`~pytest_ascend.perf.history.decide_history`.
        threshold: the slowdown that must be caught, as a fraction, in (0, 1].

    Returns:
        The result; while ``needs_more`` isn't 0, run that many more pairs and decide again with all of them.

    Raises:
        TypeError: the samples aren't sequences of sequences of numbers.
        ValueError: a timing that isn't finite and above 0, a process without timings, a threshold out of range, or
            paired sides of different length.
    """
    limit = valid_threshold(threshold)
    base, other = summarise(baseline, "baseline"), summarise(candidate, "candidate")
    if paired and len(base) != len(other):
        raise ValueError(
            f"the baseline has {len(base)} processes and the candidate {len(other)}: pairs need as many of both"
        )
    pairs = min(len(base), len(other))
    if pairs < LOOKS[0]:
        return _too_few(base, other, pairs)
    medians = _estimate([p.median for p in base], [p.median for p in other], paired)
    minima = _estimate([p.minimum for p in base], [p.minimum for p in other], paired)
    if minima.error < STEADIER * medians.error:
        statistic, found, field = "minimum", minima, 1
    else:
        statistic, found, field = "median", medians, 0
    gross = _apart([p[field] for p in base], [p[field] for p in other])
    verdict, needs_more = _answer(found, pairs, limit, gross)
    margin = quantile(MISS, found.df) * found.error
    detectable = _detectable(found, pairs, limit)
    result = PerfResult(
        verdict=verdict,
        ratio=1 + fraction(found.value),
        interval=(1 + fraction(found.value - margin), 1 + fraction(found.value + margin)),
        detectable=fraction(detectable),
        needs_more=needs_more,
        reason="",
        pairs=pairs,
        statistic=statistic,
    )
    return _explained(result, threshold, "process pairs" if paired else "processes a side")


def _estimate(base: Sequence[float], other: Sequence[float], paired: bool) -> Location:
    if paired:
        return location([b - a for a, b in zip(base, other, strict=True)])
    return difference(location(base), location(other))


def _apart(base: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one side's slowest process is faster than the other's fastest by the factor GROSS."""
    return max(min(other) - max(base), min(base) - max(other)) > math.log(GROSS)


def _later(found: Location, pairs: int, looks: int) -> tuple[float, int]:
    """Standard error and degrees of freedom to expect after so many pairs, if the spread stays."""
    return found.error * math.sqrt(min(1.0, pairs / looks)), max(found.df, looks - 2 * (looks // 10) - 1)


def _answer(found: Location, pairs: int, limit: float, gross: bool) -> tuple[PerfVerdict, int]:
    """The verdict and how many more pairs it wants."""
    cut = CUT * limit
    beyond = abs(found.value) > max(cut, quantile(FALSE_ALARM, found.df) * found.error)
    if beyond and (pairs >= CONFIRMED or (gross and pairs >= LOOKS[1])):
        return (PerfVerdict.REGRESSED if found.value > 0 else PerfVerdict.IMPROVED), 0
    more = next((look - pairs for look in LOOKS if look > pairs), 0)
    last, last_df = _later(found, pairs, LOOKS[-1])
    margin = quantile(MISS, found.df) * found.error
    # What it takes after the last look, and whether the interval still reaches as far.
    needed = max(cut, quantile(FALSE_ALARM, last_df) * last)
    suspicious = found.value > SUSPICIOUS * limit
    if found.value + margin < limit and not (suspicious and more):
        faster = found.value < -cut and margin - found.value > needed
        return PerfVerdict.OK, more if faster else 0
    soon, soon_df = _later(found, pairs, CONFIRMED if pairs < CONFIRMED else LOOKS[-1])
    may_pass = quantile(MISS, soon_df) * soon < limit
    may_fail = suspicious and found.value + margin > needed
    return PerfVerdict.INCONCLUSIVE, more if may_pass or may_fail else 0


def found_at(limit: float, error: float, df: int, false_alarm: float) -> float:
    """The slowdown, in logarithms, that is beyond the cut-off and the false alarms with probability POWER."""
    clear = CUT * limit + quantile(1 - POWER, df) * error
    return max(clear, powerful(quantile(false_alarm, df), POWER, df) * error)


def _detectable(found: Location, pairs: int, limit: float) -> float:
    """The smallest slowdown, in logarithms, that passes the screen and is confirmed after the last look."""
    last, df = _later(found, pairs, LOOKS[-1])
    confirmed = found_at(limit, last, df, FALSE_ALARM)
    if pairs >= LOOKS[-1]:
        return confirmed
    return max(confirmed, SUSPICIOUS * limit + quantile(1 - POWER, found.df) * found.error)


def _too_few(base: Sequence[Process], other: Sequence[Process], pairs: int) -> PerfResult:
    """Fewer processes than the first look wants: nothing but a ratio can be said."""
    ratio = math.nan
    if base and other:
        middle = [math.fsum(p.median for p in side) / len(side) for side in (base, other)]
        ratio = 1 + fraction(middle[1] - middle[0])
    counts = f"{len(base)} processes of the baseline and {len(other)} of the candidate"
    nothing = PerfResult.unknown(f"{counts} tell nothing: {LOOKS[0]} of each are needed at least")
    return replace(nothing, ratio=ratio, needs_more=LOOKS[0] - pairs, pairs=pairs)


def _explained(result: PerfResult, threshold: float, unit: str) -> PerfResult:
    """The result with its reason."""
    change = result.ratio - 1
    low, high = (percent(bound - 1) for bound in result.interval)
    measured = (
        f"{percent(abs(change))} {'slower' if change > 0 else 'faster'} "
        f"(99.5 % interval {low} to {high}, {result.statistic} of {result.pairs} {unit})"
    )
    wanted = percent(threshold)
    if result.verdict in (PerfVerdict.REGRESSED, PerfVerdict.IMPROVED):
        reason = f"it is {measured}"
    elif result.verdict is PerfVerdict.OK:
        reason = f"a slowdown of {wanted} is excluded: it measures {measured}"
        if result.needs_more:
            reason += f", and {result.needs_more} more tell whether it is an improvement"
    elif result.needs_more:
        reason = (
            f"a slowdown of {wanted} isn't excluded yet: it measures {measured}, {result.needs_more} more are wanted"
        )
    else:
        reason = (
            f"the noise hides a slowdown of {wanted}: it measures {measured}, and "
            f"{percent(result.detectable)} is the least that would be found"
        )
    return replace(result, reason=reason)
