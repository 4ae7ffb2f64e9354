"""Both sides of a comparison on this machine, in turns: A B, B A, A B, ... in fresh processes.

Five pairs screen all tests. Only what isn't settled by them goes on, to 10, 20 and 40 pairs in all. When the time is
up, what is open stays inconclusive. Where a regression was found, one more process of each side is profiled, apart
from any timing, to say which operators grew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ascend.perf.decide import LOOKS
from pytest_ascend.perf.gate import Judged, against_pairs, shift_of
from pytest_ascend.perf.operators import OperatorTable
from pytest_ascend.perf.result import PerfVerdict
from pytest_ascend.perf.runner import Call, Key, OutOfTime, Process, Runner, Side

__all__ = ["GROWN", "Comparison", "compare", "grown"]

GROWN = 10
"""How many operators are named at most,"""
SHARE = 0.02
"""each of which grew by this part of a call's time."""
_PROFILE = "--ascend-perf-profile"


@dataclass
class Comparison:
    """What came of it.

    Attributes:
        judged: an answer for each call that both sides timed.
        failures: why a test has none, by node id.
        shift: how much slower the sentinels ran in the second side's processes, as a fraction.
        pairs: how many pairs of processes there were.
        ours: the processes of the second side.
        stopped: why it ended before everything was settled, or ``""``.
    """

    judged: dict[Key, Judged] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    shift: float | None = None
    pairs: int = 0
    ours: list[Process] = field(default_factory=list)
    stopped: str = ""


def compare(
    runner: Runner,
    base: Side,
    other: Side,
    nodeids: Sequence[str],
    *,
    threshold: float,
    say: Callable[[str], None],
    checked: Callable[[Mapping[str, str], Mapping[str, str]], None] = lambda ours, theirs: None,
) -> Comparison:
    """Time the tests on both sides until each is settled, or the time is up.

    Args:
        base, other: ``other`` is judged by ``base``.
        nodeids: of the tests; the same on both sides.
        threshold: the run's own.
        say: gets a line now and then.
        checked: gets the modules of the first process of ``other`` and of ``base``; what it raises ends all.
    """
    found = Comparison()
    timed: list[tuple[Process, Process]] = []
    pending, goal = list(nodeids), LOOKS[0]
    while pending:
        while found.pairs < goal and pending:
            if timed and runner.deadline.left < 2 * (runner.slowest or 0.0):
                found.stopped = f"the {runner.deadline.seconds:g} s for measuring were over"
                break
            tests = f"{len(pending)} test{'s' * (len(pending) != 1)}"
            rest = f"{_rest(runner, goal - found.pairs)}, {runner.deadline} left at most"
            say(f"pair {found.pairs + 1} of {goal}: {tests}{rest}")
            try:
                pair = _pair(runner, base, other, pending, base_first=found.pairs % 2 == 0)
            except OutOfTime:
                found.stopped = f"the {runner.deadline.seconds:g} s for measuring were over"
                break
            if not timed:
                checked(pair[1].sources, pair[0].sources)
            timed.append(pair)
            found.pairs += 1
            for process in pair:
                found.failures.update({n: why for n, why in process.failures.items() if n not in found.failures})
            pending = [nodeid for nodeid in pending if nodeid not in found.failures]
        found.shift = shift_of(timed)
        wanted = _judge(found, timed, pending, threshold, base.name)
        if found.stopped:
            for key, judged in found.judged.items():
                if judged.nodeid in wanted and judged.result.verdict is PerfVerdict.INCONCLUSIVE:
                    reason = f"{judged.result.reason} ({found.stopped})"
                    found.judged[key] = replace(judged, result=replace(judged.result, reason=reason))
            for nodeid in pending:
                if not any(key[0] == nodeid for key in found.judged):
                    found.failures[nodeid] = f"it was not timed: {found.stopped}; give --ascend-perf-time more"
            break
        pending = [nodeid for nodeid in pending if nodeid in wanted and found.pairs < LOOKS[-1]]
        goal = min(LOOKS[-1], found.pairs + max((wanted[nodeid] for nodeid in pending), default=0))
    found.judged = {key: one for key, one in found.judged.items() if key[0] not in found.failures}
    found.ours = [pair[1] for pair in timed]
    return found


def _rest(runner: Runner, pairs: int) -> str:
    """How long so many pairs of processes will take, by the slowest process there was; before there is one, nothing."""
    if runner.slowest is None:
        return ""
    minutes, seconds = divmod(round(2 * pairs * runner.slowest), 60)
    return f", about {minutes}:{seconds:02d} for these"


def _pair(
    runner: Runner, base: Side, other: Side, nodeids: Sequence[str], *, base_first: bool
) -> tuple[Process, Process]:
    order = (base, other) if base_first else (other, base)
    ran = {side.name: runner.process(side, nodeids) for side in order}
    return ran[base.name], ran[other.name]


def _judge(
    found: Comparison, timed: Sequence[tuple[Process, Process]], nodeids: Sequence[str], threshold: float, base: str
) -> dict[str, int]:
    """Judge these tests' calls with all pairs so far; gives how many more a test wants, where it wants some."""
    calls: dict[Key, list[tuple[Call, Call]]] = {}
    asked = set(nodeids)
    for old, new in timed:
        for key in old.calls.keys() & new.calls.keys():
            if key[0] in asked:
                calls.setdefault(key, []).append((old.calls[key], new.calls[key]))
        for key in old.calls.keys() ^ new.calls.keys():
            if key[0] in asked:
                where = base if key in old.calls else "the other side"
                found.failures.setdefault(key[0], f"only {where} makes its call number {key[1] + 1} of ascend_perf")
    wanted: dict[str, int] = {}
    for key, pairs in calls.items():
        judged = found.judged[key] = against_pairs(pairs, threshold=threshold, base=base, shift=found.shift)
        usable = any(old.seconds and new.seconds for old, new in pairs)
        result = judged.result
        open_still = result.verdict is PerfVerdict.INCONCLUSIVE or result.interval[1] < 1 / (1 + threshold)
        if usable and result.needs_more and open_still:  # what is faster for certain is worth the word `improved`
            wanted[key[0]] = max(wanted.get(key[0], 0), result.needs_more)
    return wanted


def grown(runner: Runner, base: Side, other: Side, found: Comparison, say: Callable[[str], None]) -> None:
    """Add to each regression which operators grew. What can't be profiled gets a note; no answer changes."""
    slower = [one for one in found.judged.values() if one.result.verdict is PerfVerdict.REGRESSED]
    if not slower:
        return
    nodeids = list(dict.fromkeys(one.nodeid for one in slower))
    say(f"profiling {len(nodeids)} slower test{'s' * (len(nodeids) != 1)} on both sides, apart from the timing")
    try:
        before, after = (runner.process(side, nodeids, (_PROFILE,)) for side in (base, other))
    except OutOfTime:
        for one in slower:
            found.judged[one.key] = _noted(one, "no time was left to say which operators grew")
        return
    for one in slower:
        old, new = before.calls.get(one.key), after.calls.get(one.key)
        if old is None or new is None or old.operators is None or new.operators is None:
            missing = next((c.unusable or c.outcome for c in (old, new) if c is not None and c.operators is None), "")
            missing = missing or before.failures.get(one.nodeid) or after.failures.get(one.nodeid) or "not profiled"
            found.judged[one.key] = _noted(one, f"which operators grew isn't known: {missing}")
        else:
            found.judged[one.key] = replace(one, operators=_rows(old.operators, new.operators))


def _rows(before: OperatorTable, after: OperatorTable) -> tuple[Mapping[str, Any], ...]:
    diff = before.diff(after)
    rows = [row for row in diff.grown() if row.grew_us >= SHARE * diff.before_us]
    return tuple(
        {
            "name": row.name,
            "shapes": row.shapes,
            "before_us": row.before_us,
            "after_us": row.after_us,
            "before_calls": row.before_calls,
            "after_calls": row.after_calls,
            "why": row.why,
        }
        for row in rows[:GROWN]
    )


def _noted(judged: Judged, note: str) -> Judged:
    return replace(judged, notes=(*judged.notes, note))
