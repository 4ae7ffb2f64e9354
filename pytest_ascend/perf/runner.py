"""Processes that only time: how they are started, one after another, and what their files say.

A process is ``pytest <node ids> --ascend-perf-child=FILE``: it times what the tests hand to ``ascend_perf`` and judges
nothing. Its file is untrusted, for code under test may have written it. Whatever keeps a test from being timed ends as
a sentence about that test: a process that crashes or hangs is searched, by halves, for the tests it can't run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_ascend.dumps.text import DumpError, is_number, parse
from pytest_ascend.perf.child import ProfilerFailed, run
from pytest_ascend.perf.fingerprint import fingerprint
from pytest_ascend.perf.operators import OperatorRow, OperatorTable
from pytest_ascend.perf.options import METRICS, PerfOptions

__all__ = ["Call", "ChildFailed", "ChildFile", "Deadline", "Key", "OutOfTime", "Process", "Runner", "Side", "read_file"]

SCHEMA = 1
"""Version of the file that is read."""
LARGEST = 64 << 20
"""Bytes of the largest file that is read: a thousand calls of 500 blocks are a fifth of it."""
ARGUMENTS = 100_000
"""Characters of node ids on one command line; Linux takes 2 MiB, with the environment."""
LEAST_S = 60.0
"""Seconds that a process may always take, and how many times the slowest one so far."""
TIMES_SLOWEST = 10.0
_TIMINGS = 100_000  # in one list; more are refused
_OK, _FAILED, _NONE = 0, 1, 5  # pytest's exit codes of a run that came to its end
_STATUS = {2: "it was interrupted", 3: "pytest had an internal error", 4: "pytest refused its command line"}

Key = tuple[str, int]
"""A test's node id, and which of its calls from 0."""


class ChildFailed(RuntimeError):
    """A process timed nothing. The message is one sentence that names the process's tests and why."""


class OutOfTime(RuntimeError):
    """The time for the whole run is up."""


@dataclass(frozen=True)
class Call:
    """One call of ``ascend_perf`` in one process.

    Attributes:
        nodeid, index: which call.
        api, target: what was called, where.
        environment: what the fingerprint is made from.
        metrics: seconds per call, one for each block, by ``"wall"`` and ``"device"``.
        metric: which of them is judged.
        threshold, processes: of the test's own marker; None: the run's.
        unusable: why these timings say nothing, or ``""``.
        outcome: what the workload raised, or ``""``.
        facts: what else was measured: first call, kernels, memory, threads.
        notes: what a reader should know.
        operators: what its operators cost, of a process that profiled instead of timing.
    """

    nodeid: str
    index: int
    api: str
    target: str
    environment: Mapping[str, Any]
    metrics: Mapping[str, Sequence[float]]
    metric: str
    threshold: float | None
    processes: int | None
    unusable: str
    outcome: str
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    operators: OperatorTable | None

    @property
    def key(self) -> Key:
        """What it is looked up by."""
        return self.nodeid, self.index

    @property
    def judged(self) -> str:
        """The metric that is judged: ``"device"`` or ``"wall"``."""
        return self.metric if self.metric != "auto" else ("device" if "device" in self.metrics else "wall")

    @property
    def seconds(self) -> Sequence[float]:
        """The timings that are judged; none where they are unusable."""
        return () if self.unusable or self.outcome else self.metrics.get(self.judged, ())


@dataclass(frozen=True)
class ChildFile:
    """What one process wrote.

    Attributes:
        calls: in the order they were made.
        sentinels: seconds of the fixed workloads, by name.
        tests: how each test ended: ``"passed"``, ``"failed: ..."``, ``"skipped: ..."``.
        collected: node ids of the tests that it would time.
        sources: where each imported module came from, by name.
    """

    calls: tuple[Call, ...]
    sentinels: Mapping[str, float]
    tests: Mapping[str, str]
    collected: tuple[str, ...]
    sources: Mapping[str, str]


@dataclass
class Process:
    """One replicate: all tests timed once, in one process, or in several where one of them ended early.

    ``failures``: why a test wasn't timed, by node id.
    """

    calls: dict[Key, Call] = field(default_factory=dict)
    sentinels: dict[str, float] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, file: ChildFile) -> None:
        """Take what one file says."""
        self.calls.update((call.key, call) for call in file.calls)
        self.sentinels = {**file.sentinels, **self.sentinels}
        self.tests.update(file.tests)
        self.sources.update(file.sources)


@dataclass(frozen=True)
class Side:
    """How the processes of one side are started.

    Attributes:
        name: for people: ``this tree``, ``main (1f0c9a2)``.
        command: program and arguments, up to the node ids.
        where: the folder to start it in.
        root: pytest's root folder there, which node ids start from.
        environment: the whole environment; None: this process's own.
    """

    name: str
    command: tuple[str, ...]
    where: str
    root: str
    environment: Mapping[str, str] | None = None

    def argument(self, nodeid: str) -> str:
        """A node id as an argument where the process starts."""
        path, separator, name = nodeid.partition("::")
        return os.path.relpath(os.path.join(self.root, path), self.where) + separator + name


class Deadline:
    """How much time is left for the whole."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._now = now
        self._end = now() + seconds

    @property
    def left(self) -> float:
        """Seconds, 0 or more."""
        return max(0.0, self._end - self._now())

    def __str__(self) -> str:
        minutes, seconds = divmod(round(self.left), 60)
        return f"{minutes}:{seconds:02d}"


class Runner:
    """Runs processes one after another, each within a limit, all of them within the deadline.

    Args:
        folder: an empty folder for the files.
        deadline: for all of it.
    """

    def __init__(self, folder: str | os.PathLike[str], deadline: Deadline) -> None:
        self.folder = Path(folder)
        self.deadline = deadline
        self.slowest: float | None = None
        self._count = 0

    def collected(self, side: Side, arguments: Sequence[str]) -> ChildFile:
        """The tests that a process with these arguments would time, in ``ChildFile.collected``; none is run.

        Raises:
            ChildFailed: they can't be collected.
        """
        return self._child(side, arguments, ("--collect-only", "--continue-on-collection-errors"))

    def process(self, side: Side, nodeids: Sequence[str], options: Sequence[str] = ()) -> Process:
        """Time these tests once. Never raises for what a test does; ``Process.failures`` has it.

        Raises:
            OutOfTime: there is no time left.
        """
        found = Process()
        for batch in _batches(nodeids):
            self._into(found, side, batch, options)
        for nodeid in nodeids:
            calls = [call for key, call in found.calls.items() if key[0] == nodeid]
            for call in calls:
                if call.outcome:
                    said = f"{call.api or 'the workload'} raised {call.outcome}"
                    found.failures.setdefault(nodeid, f"{said} (in a process of {side.name})")
            if not calls and nodeid not in found.failures and not found.tests.get(nodeid, "").startswith("skipped"):
                ended = found.tests.get(nodeid, "it was not run")
                found.failures[nodeid] = f"a process of {side.name} measured nothing in it ({ended})"
        return found

    def _into(self, found: Process, side: Side, nodeids: Sequence[str], options: Sequence[str]) -> None:
        try:
            found.add(self._child(side, [side.argument(nodeid) for nodeid in nodeids], options))
        except ChildFailed as failed:
            if len(nodeids) == 1:
                found.failures[nodeids[0]] = str(failed)
                return
            half = len(nodeids) // 2
            for part in (nodeids[:half], nodeids[half:]):
                try:
                    self._into(found, side, part, options)
                except OutOfTime:
                    found.failures.update((nodeid, str(failed)) for nodeid in part)

    def _child(self, side: Side, arguments: Sequence[str], options: Sequence[str]) -> ChildFile:
        if self.deadline.left <= 0:
            raise OutOfTime
        self._count += 1
        place = self.folder / f"process{self._count}"
        place.mkdir(parents=True)
        path = place / "timings.json"
        command = [
            *side.command, *options, f"--ascend-perf-child={path}", f"--basetemp={place / 'tmp'}", "-o",
            f"cache_dir={place / 'cache'}", *arguments,
        ]  # fmt: skip
        begin, what = time.monotonic(), f"a process of {side.name}"
        try:
            ended = run(command, timeout_s=round(self._limit(), 2), environment=side.environment, where=side.where)
        except ProfilerFailed as failed:
            if self.slowest is not None and self.deadline.left <= 0:  # cut off, and not by a fault of its own
                raise OutOfTime from None
            raise ChildFailed(f"{what} timed nothing: {failed}") from None
        self.slowest = max(self.slowest or 0.0, time.monotonic() - begin)
        if ended.status not in (_OK, _FAILED, _NONE) or not path.exists():
            how = f"signal {-ended.status} ended it" if ended.status < 0 else _STATUS.get(ended.status, "")
            how = how or f"it ended with status {ended.status} and wrote no timings"
            raise ChildFailed(f"{what} timed nothing: {how}; its last output: {ended.last_lines()}")
        return read_file(path)

    def _limit(self) -> float:
        left = self.deadline.left
        if self.slowest is None:  # one that hangs shall leave time to find out which test it is
            return max(left / 4, min(left, LEAST_S))
        return min(left, max(LEAST_S, TIMES_SLOWEST * self.slowest))


def _batches(nodeids: Sequence[str]) -> list[list[str]]:
    """The node ids in as few parts as fit on a command line."""
    batches: list[list[str]] = []
    size = ARGUMENTS
    for nodeid in nodeids:
        size += len(nodeid) + 64
        if size > ARGUMENTS:
            batches.append([])
            size = len(nodeid) + 64
        batches[-1].append(nodeid)
    return batches


def read_file(path: str | os.PathLike[str]) -> ChildFile:
    """What a process wrote. Raises ``ChildFailed`` when it is anything else: one sentence with the file's name."""
    name = os.fspath(path)
    try:
        return _file(parse(name, LARGEST))
    except DumpError as error:
        raise ChildFailed(f"the file of timings can't be read: {error}") from None
    except (ValueError, TypeError) as error:
        raise ChildFailed(f"{name}: it holds no timings of a process: {error}") from None


def _file(plain: Any) -> ChildFile:
    entries = _object(plain, "the file")
    if entries.get("schema") != SCHEMA:
        raise ValueError(f"schema is {str(entries.get('schema'))[:40]!r} and not {SCHEMA}")
    calls = tuple(_call(one, f"call {n}") for n, one in enumerate(_list(entries.get("calls"), "calls")))
    sentinels = {
        name: _seconds(value, f"sentinel {name}")
        for name, value in _object(entries.get("sentinels", {}), "sentinels").items()
    }
    texts = {
        part: {key: _text(value, f"{part} of {key}") for key, value in _object(entries.get(part, {}), part).items()}
        for part in ("tests", "sources")
    }
    collected = tuple(_text(one, "collected") for one in _list(entries.get("collected", []), "collected"))
    return ChildFile(calls, sentinels, texts["tests"], collected, texts["sources"])


def _call(plain: Any, where: str) -> Call:
    entries = _object(plain, where)
    metrics = {}
    for name, values in _object(entries.get("metrics", {}), f"{where}: metrics").items():
        if name not in METRICS[1:]:
            raise ValueError(f"{where}: metric {name[:40]!r}: it is one of {', '.join(METRICS[1:])}")
        metrics[name] = [_seconds(value, f"{where}: {name}") for value in _list(values, f"{where}: {name}")]
    environment = _object(entries.get("environment", {}), f"{where}: environment")
    fingerprint(environment)
    index = entries.get("index")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ValueError(f"{where}: index is no whole number of 0 or more")
    given = {name: entries[name] for name in ("threshold", "processes") if entries.get(name) is not None}
    options = PerfOptions(metric=_text(entries.get("metric", "auto"), f"{where}: metric"), **given)
    facts = ("first_call_s", "kernels_per_call", "peak_bytes", "threads", "calls_per_block", "warmup_calls", "clock")
    operators = entries.get("operators")
    return Call(
        nodeid=_text(entries.get("nodeid"), f"{where}: nodeid"),
        index=index,
        api=_text(entries.get("api", ""), f"{where}: api"),
        target=_text(entries.get("target", ""), f"{where}: target"),
        environment=environment,
        metrics=metrics,
        metric=options.metric,
        threshold=options.threshold,
        processes=options.processes,
        unusable=_text(entries.get("unusable", ""), f"{where}: unusable"),
        outcome=_text(entries.get("outcome", ""), f"{where}: outcome"),
        facts={name: _fact(entries[name], f"{where}: {name}") for name in facts if entries.get(name) is not None},
        notes=tuple(_text(note, f"{where}: note") for note in _list(entries.get("notes", []), f"{where}: notes")),
        operators=None if operators is None else _table(operators, f"{where}: operators"),
    )


def _table(plain: Any, where: str) -> OperatorTable:
    entries = _object(plain, where)
    rows = []
    for number, one in enumerate(_list(entries.get("rows"), f"{where}: rows")):
        row = _object(one, f"{where}: row {number}")
        name, kind, core, shapes, dtypes = (
            _text(row.get(part, ""), f"{where}: {part}") for part in ("name", "kind", "core", "shapes", "dtypes")
        )
        calls, total, device, host = (row.get(part) for part in ("calls", "total_us", "device_us", "host_us"))
        for value in (calls, total, device, host):
            if value is not None and not (is_number(value) and value >= 0):
                raise ValueError(f"{where}: row {number}: {str(value)[:40]!r} is no number of 0 or more")
        one_row = OperatorRow(name, kind, int(calls or 0), float(total or 0.0), device, host, core=core)
        rows.append(replace(one_row, shapes=shapes, dtypes=dtypes))
    steps = entries.get("steps", 1)
    if not is_number(steps) or not 1 <= steps < 1e9:
        raise ValueError(f"{where}: steps is no number of 1 or more")
    return OperatorTable.of(rows, _text(entries.get("source", ""), f"{where}: source"), "operator", steps=int(steps))


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _TIMINGS:
        raise ValueError(f"{where} is no list of at most {_TIMINGS} entries")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError(f"{where} is no text of at most 4096 characters")
    return value


def _fact(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return _text(value, where)
    if not is_number(value):
        raise ValueError(f"{where} is no number")
    return value


def _seconds(value: Any, where: str) -> float:
    if not (is_number(value) and value > 0):
        raise ValueError(f"{where} has {str(value)[:40]!r}: a time is finite and above 0")
    return float(value)
