"""When a difference from stored sessions counts, where baseline and candidate can't run side by side.

A session has a state of its own (clock, temperature, neighbours), which all its processes share. So the sessions are
what is replicated here, and how much they differ is known only after ten. Sentinel kernels, which no commit changes,
measure the part of that state that the whole suite shares; it is divided out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pytest_ascend.perf.decide import CUT, MISSES, STEADIER, found_at
from pytest_ascend.perf.result import PerfResult, PerfVerdict, fraction, percent
from pytest_ascend.perf.samples import Process, Samples, summarise, valid_threshold
from pytest_ascend.perf.student import Location, quantile

__all__ = ["SESSIONS", "decide_history", "session_factors"]

SESSIONS = 10
"""Sessions from which their spread is estimated; with fewer it is taken to be UNKNOWN."""
UNKNOWN = 0.05
"""Standard deviation of a session's log time where sessions are too few to tell: that of the noisy profile of
``benchmarks/gate.py``, sqrt(0.04**2 + 0.03**2). Only gross changes count then."""
FALSE_ALARM = 1e-5
"""Chance that an unchanged operator counts as regressed: 0.1 % of runs with 100 operators. Milder than side by side,
for ten sessions never reach once in a million at a useful size of change."""
OUTLIER = 5.0
"""Sessions further from the median than this many standard deviations (1.4826 times the median absolute deviation) are
left out: one throttled session would widen the interval for as long as it is remembered."""


def session_factors(sentinels: Sequence[Sequence[float]]) -> list[float]:
    """How much slower each session was as a whole, as a factor; 1 is the sessions' median.

    Args:
        sentinels: seconds by sentinel kernel and session: ``sentinels[kernel][session]``, as many for each kernel.

    Returns:
        A factor per session: the median over the kernels of time over that kernel's median time. Without kernels none.

    Raises:
        TypeError, ValueError: as :func:`~pytest_ascend.perf.samples.summarise`, or kernels of different length.
    """
    if not sentinels:
        return []
    if len({len(times) for times in sentinels}) > 1:
        raise ValueError("the sentinel kernels have different numbers of sessions: give one time for each session")
    kernels = [[p.median for p in summarise([[t] for t in times], "sentinels")] for times in sentinels]
    middles = [statistics.median(times) for times in kernels]
    return [
        math.exp(statistics.median(times[session] - middle for times, middle in zip(kernels, middles, strict=True)))
        for session in range(len(kernels[0]))
    ]


def decide_history(
    sessions: Sequence[Samples],
    candidate: Samples,
    *,
    threshold: float = 0.03,
    factors: Sequence[float] | None = None,
    factor: float = 1.0,
) -> PerfResult:
    """Say whether the candidate's session is slower than the stored sessions.

    Args:
        sessions: per stored session its samples: timings in seconds, a sequence for each process.
        candidate: the samples of the session that is judged.
        threshold: the slowdown that must be caught, as a fraction, in (0, 1].
        factors: per stored session, how much slower it was as a whole (:func:`session_factors`); ``None``: not known.
        factor: the same of the candidate's session.

    Returns:
        The result. Its ``needs_more`` is always 0: more processes of this session say nothing about sessions.

    Raises:
        TypeError: samples that aren't sequences of sequences of numbers.
        ValueError: as :func:`~pytest_ascend.perf.decide.decide`, or factors that don't fit the sessions.
    """
    limit = valid_threshold(threshold)
    if factors is not None and len(factors) != len(sessions):
        raise ValueError(f"{len(factors)} factors for {len(sessions)} sessions: give one for each")
    shifts = [p.median for p in summarise([[f] for f in (*(factors or [1.0] * len(sessions)), factor)], "factors")]
    known = [
        (summarise(samples, f"session {number}"), shift)
        for number, (samples, shift) in enumerate(zip(sessions, shifts[:-1], strict=True))
        if len(samples)
    ]
    if not known or not len(candidate):
        missing = "there is no baseline" if not known else "the candidate was not timed"
        return PerfResult.unknown(f"{missing}: nothing is compared")
    now = summarise(candidate, "candidate"), shifts[-1]
    by_median, by_minimum = (_compared(known, now, field) for field in ("median", "minimum"))
    statistic = "minimum" if by_minimum.noise < STEADIER * by_median.noise else "median"
    kept, found, _ = by_minimum if statistic == "minimum" else by_median
    margin = quantile(MISSES, found.df) * found.error
    beyond = max(CUT * limit, quantile(FALSE_ALARM, found.df) * found.error)
    if abs(found.value) > beyond:
        verdict = PerfVerdict.REGRESSED if found.value > 0 else PerfVerdict.IMPROVED
    elif found.value + margin < limit:
        verdict = PerfVerdict.OK
    else:
        verdict = PerfVerdict.INCONCLUSIVE
    low, high = fraction(found.value - margin), fraction(found.value + margin)
    detectable = fraction(found_at(limit, found.error, found.df, FALSE_ALARM))
    change = fraction(found.value)
    measured = (
        f"{percent(abs(change))} {'slower' if change > 0 else 'faster'} than {len(kept)} sessions "
        f"(98 % interval {percent(low)} to {percent(high)}, {statistic} of each process)"
    )
    if len(kept) < len(known):
        measured += f", {len(known) - len(kept)} outlying sessions left out"
    reason = f"it is {measured}"
    if verdict is PerfVerdict.OK:
        reason = f"a slowdown of {percent(threshold)} is excluded: it measures {measured}"
    elif verdict is PerfVerdict.INCONCLUSIVE:
        reason = (
            f"the sessions' spread hides a slowdown of {percent(threshold)}: it measures {measured}, and "
            f"{percent(detectable)} is the least that would be found"
        )
    if len(kept) < SESSIONS:
        reason += f"; with fewer than {SESSIONS} sessions their spread is taken to be {percent(UNKNOWN)}"
    return PerfResult(verdict, 1 + change, (1 + low, 1 + high), detectable, 0, reason, len(kept), statistic)


class _Compared(NamedTuple):
    """The stored sessions' values that count, how this one differs, and how much the statistic varies."""

    kept: Sequence[float]
    found: Location
    noise: float


def _compared(
    known: Sequence[tuple[list[Process], float]],
    now: tuple[list[Process], float],
    statistic: Literal["median", "minimum"],
) -> _Compared:
    sessions = [_session([getattr(p, statistic) for p in processes], shift) for processes, shift in (*known, now)]
    *stored, current = sessions
    kept = _without_outliers([session.value for session in stored])
    found = _against(kept, current, stored)
    # Of few sessions the spread isn't known, and what varies from process to process has to tell.
    noise = found.error if len(kept) >= SESSIONS else math.fsum(session.error for session in sessions)
    return _Compared(kept, found, noise)


def _session(values: Sequence[float], shift: float) -> Location:
    """A session's log time with its own error from process to process (0 where there is but one)."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Location(statistics.median(values) - shift, error, len(values) - 1)


def _without_outliers(values: list[float]) -> list[float]:
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return [value for value in values if abs(value - middle) <= OUTLIER * spread or spread == 0]


def _against(kept: Sequence[float], now: Location, known: Sequence[Location]) -> Location:
    """How far this session lies from the mean of the stored ones, with the error of predicting a session."""
    count = len(kept)
    centre = math.fsum(kept) / count
    if count < SESSIONS:
        spread, df = UNKNOWN, SESSIONS - 1
    else:
        spread, df = statistics.stdev(kept), count - 1
    # The stored sessions' spread holds their own error; one of fewer or noisier processes has more.
    extra = max(0.0, now.error**2 - math.fsum(session.error**2 for session in known) / len(known))
    return Location(now.value - centre, math.sqrt(spread**2 * (1 + 1 / count) + extra), df)
