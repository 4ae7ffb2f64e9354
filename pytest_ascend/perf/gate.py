"""From the timings of a run to its answers: against stored sessions, or against the other side of each pair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ascend.perf.baseline import Baseline, Session, Timings
from pytest_ascend.perf.decide import decide
from pytest_ascend.perf.fingerprint import fingerprint
from pytest_ascend.perf.history import decide_history, session_factors
from pytest_ascend.perf.result import PerfResult, PerfVerdict
from pytest_ascend.perf.runner import Call, Key, Process

__all__ = ["Judged", "against_pairs", "against_sessions", "baseline_name", "session_of", "shift_of"]

MOST_SHOWN = 64
"""Processes and sessions whose times are kept for people to look at."""


@dataclass(frozen=True)
class Judged:
    """The answer about one call of ``ascend_perf``.

    Attributes:
        nodeid, index, api, target: which call.
        metric: ``"device"`` or ``"wall"``.
        result: the answer.
        old_s, new_s: seconds per call, the median of the sides' processes; None where a side has none.
        against: what it was compared with, for people.
        threshold: the slowdown that had to be caught, as a fraction.
        shift: how much slower everything was, as a fraction; divided out of the result. None: not known.
        fingerprint: of the conditions.
        facts: what else was measured.
        notes: what a reader should know.
        operators: those that grew most, worst first, where there was a regression.
        stored: whether the timings went into a baseline.
        old_each, new_each: seconds per call of each process, the median, or beside stored sessions of each session;
            the last ``MOST_SHOWN``.
        history: of each stored session, the oldest first: ``date``, ``commit`` and ``seconds``.
    """

    nodeid: str
    index: int
    api: str
    target: str
    metric: str
    result: PerfResult
    old_s: float | None
    new_s: float | None
    against: str
    threshold: float
    shift: float | None = None
    fingerprint: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    operators: tuple[Mapping[str, Any], ...] = ()
    stored: bool = False
    old_each: tuple[float, ...] = ()
    new_each: tuple[float, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def key(self) -> Key:
        """What it is looked up by."""
        return self.nodeid, self.index

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON; :meth:`from_dict` is the way back."""
        plain = {**vars(self), **self.result.to_dict()}
        del plain["result"]
        plain.update(facts=dict(self.facts), notes=list(self.notes), operators=[dict(row) for row in self.operators])
        plain.update(old_each=list(self.old_each), new_each=list(self.new_each))
        plain.update(history=[dict(session) for session in self.history])
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Judged:
        """From what :meth:`to_dict` gave, in another process of the same run."""
        names = ("needs_more", "reason", "pairs", "statistic")
        low, high = map(float, plain["interval"])
        result = PerfResult(
            verdict=PerfVerdict(plain["verdict"]),
            ratio=float(plain["ratio"]),
            interval=(low, high),
            detectable=float(plain["detectable"]),
            **{name: plain[name] for name in names},
        )
        own = {name: plain[name] for name in cls.__dataclass_fields__ if name != "result"}
        rows = {name: tuple(own[name]) for name in ("notes", "operators", "old_each", "new_each", "history")}
        return cls(**{**own, **rows}, result=result)


def baseline_name(key: Key) -> str:
    """The name that a call's baseline is stored under."""
    nodeid, index = key
    return nodeid if index == 0 else f"{nodeid}#{index + 1}"


def session_of(calls: Sequence[Call], processes: Sequence[Process], identity: Mapping[str, str]) -> Session | None:
    """What is stored of a call: per process median and minimum of each metric; None without a usable process.

    ``identity``: the session's ``id``, ``date`` and ``commit``.
    """
    usable = [call for call in calls if call.seconds]
    timings = {}
    for metric in dict.fromkeys(name for call in usable for name in call.metrics):
        times = [call.metrics[metric] for call in usable if call.metrics.get(metric)]
        medians = tuple(statistics.median(one) for one in times)
        timings[metric] = Timings(medians, tuple(map(min, times)), _sentinels(processes))
    return Session(identity["id"], identity["date"], identity["commit"], timings) if timings else None


def against_sessions(
    calls: Sequence[Call], processes: Sequence[Process], baseline: Baseline | None, *, threshold: float, where: str
) -> Judged:
    """Judge a call's processes by the stored sessions.

    Args:
        calls: of one key, one for each process that has it.
        processes: of this run, for their sentinels.
        baseline: what is stored; None: nothing.
        threshold: the run's own; a test's wins.
        where: what the baseline is called in sentences.
    """
    last = calls[-1]
    metric, limit = last.judged, threshold if last.threshold is None else last.threshold
    samples = [call.seconds for call in calls if call.seconds]
    stored = baseline.samples(metric) if baseline is not None else []
    factors, factor = _factors(baseline, metric, processes) if stored else (None, 1.0)
    result = decide_history(stored, samples, threshold=limit, factors=factors, factor=factor)
    if not stored and samples:
        said = f"there is no baseline for these conditions ({fingerprint(last.environment)} in {where})"
        result = replace(result, reason=said)
    result = _unusable(result, calls)
    old = [statistics.median(map(statistics.median, session)) for session in stored]
    return _judged(
        last,
        result,
        old_s=statistics.median(old) if old else None,
        new_s=_middle(samples),
        against=f"{len(stored)} stored session{'s' * (len(stored) != 1)}",
        threshold=limit,
        shift=factor / statistics.median(factors) - 1 if factors else None,
        notes=_notes(calls),
        old_each=tuple(old[-MOST_SHOWN:]),
        new_each=_each(samples),
        history=_history(baseline, metric),
    )


def against_pairs(pairs: Sequence[tuple[Call, Call]], *, threshold: float, base: str, shift: float | None) -> Judged:
    """Judge a call by its pairs of processes, the base's first in each.

    Args:
        pairs: at least one; a pair of which a side is unusable doesn't count.
        threshold: the run's own; the test's wins.
        base: what the other side is called.
        shift: of the sentinels, for the report; pairs ran side by side, so nothing is divided out.
    """
    last = pairs[-1][1]
    limit = threshold if last.threshold is None else last.threshold
    both = [(old, new) for old, new in pairs if old.seconds and new.seconds and old.judged == new.judged]
    old, new = [pair[0].seconds for pair in both], [pair[1].seconds for pair in both]
    result = decide(old, new, paired=True, threshold=limit)
    calls = [call for pair in pairs for call in pair]
    if any(before.judged != after.judged for before, after in pairs):
        result = _inconclusive(result, f"the sides have different clocks: {base} isn't timed on {last.judged} time")
    result = _unusable(result, calls)
    return _judged(
        last,
        result,
        old_s=_middle(old),
        new_s=_middle(new),
        against=base,
        threshold=limit,
        shift=shift,
        notes=_notes(calls),
        old_each=_each(old),
        new_each=_each(new),
    )


def shift_of(pairs: Iterable[tuple[Process, Process]]) -> float | None:
    """How much slower the second side's sentinels ran than the first's, as a fraction; None where none were timed."""
    logs: dict[str, list[float]] = {}
    for old, new in pairs:
        for name in old.sentinels.keys() & new.sentinels.keys():
            logs.setdefault(name, []).append(math.log(new.sentinels[name] / old.sentinels[name]))
    return math.expm1(statistics.median(map(statistics.median, logs.values()))) if logs else None


def _judged(last: Call, result: PerfResult, **more: Any) -> Judged:
    return Judged(
        nodeid=last.nodeid,
        index=last.index,
        api=last.api,
        target=last.target,
        metric=last.judged,
        result=result,
        fingerprint=fingerprint(last.environment),
        facts=last.facts,
        **more,
    )


def _sentinels(processes: Iterable[Process]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for process in processes:
        for name, seconds in process.sentinels.items():
            times.setdefault(name, []).append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def _factors(baseline: Baseline | None, metric: str, processes: Sequence[Process]) -> tuple[list[float] | None, float]:
    """How much slower each stored session was as a whole, and this one; None where they share no sentinel."""
    known = [] if baseline is None else [session.timings[metric].sentinels for session in baseline.timed(metric)]
    now = _sentinels(processes)
    shared = sorted(set(now).intersection(*known)) if known else []
    if not shared:
        return None, 1.0
    *factors, factor = session_factors([[*(one[name] for one in known), now[name]] for name in shared])
    return factors, factor


def _middle(samples: Sequence[Sequence[float]]) -> float | None:
    return statistics.median(map(statistics.median, samples)) if samples else None


def _each(samples: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.median(one) for one in samples[-MOST_SHOWN:])


def _history(baseline: Baseline | None, metric: str) -> tuple[dict[str, Any], ...]:
    sessions = [] if baseline is None else baseline.timed(metric)[-MOST_SHOWN:]
    return tuple(
        {"date": one.date, "commit": one.commit, "seconds": statistics.median(one.timings[metric].medians)}
        for one in sessions
    )


def _unusable(result: PerfResult, calls: Sequence[Call]) -> PerfResult:
    """Say why timings don't count, where that leaves the question open."""
    reasons = list(dict.fromkeys(call.unusable for call in calls if call.unusable))
    if not reasons or result.verdict is not PerfVerdict.INCONCLUSIVE:
        return result
    count = sum(1 for call in calls if call.unusable)
    return _inconclusive(result, f"{count} of {len(calls)} processes timed nothing that counts: {'; '.join(reasons)}")


def _inconclusive(result: PerfResult, reason: str) -> PerfResult:
    return replace(result, verdict=PerfVerdict.INCONCLUSIVE, reason=reason)


def _notes(calls: Iterable[Call]) -> tuple[str, ...]:
    said = [note for call in calls for note in (*call.notes, *([call.unusable] if call.unusable else []))]
    return tuple(dict.fromkeys(said))
