"""Processes end in time: one that hangs takes no longer than the whole has left, and none is begun in vain."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_ascend.perf import ab
from pytest_ascend.perf.runner import Call, Deadline, OutOfTime, Process, Runner, Side


def sleeping(folder: Path, seconds: float) -> Side:
    command = (sys.executable, "-c", f"import time; time.sleep({seconds})")
    return Side("this run", command, os.fspath(folder), os.fspath(folder))


def test_no_process_starts_when_the_time_is_up(tmp_path) -> None:
    runner = Runner(tmp_path / "files", Deadline(0.0))
    with pytest.raises(OutOfTime):
        runner.process(sleeping(tmp_path, 0.0), ["test_x.py::test_a"])
    assert not (tmp_path / "files").exists()


def test_a_process_that_the_deadline_cuts_off_is_no_error(tmp_path) -> None:
    """However long the slowest process may take, the whole ends when it has to."""
    runner = Runner(tmp_path / "files", Deadline(0.5))
    runner.slowest = 0.1
    with pytest.raises(OutOfTime):
        runner.process(sleeping(tmp_path, 8.0), ["test_x.py::test_a"])


def test_a_process_that_writes_nothing_is_named(tmp_path) -> None:
    runner = Runner(tmp_path / "files", Deadline(60.0))
    found = runner.process(sleeping(tmp_path, 0.0), ["test_x.py::test_a", "test_x.py::test_b"])
    assert list(found.failures) == ["test_x.py::test_a", "test_x.py::test_b"]
    assert all("it ended with status 0 and wrote no timings" in why for why in found.failures.values())


class Stopwatch:
    """Runs nothing: each process takes a second of a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.deadline = Deadline(seconds, lambda: self.now)
        self.slowest = None
        self.ran: list[str] = []

    def process(self, side: Side, nodeids: list[str], options: tuple[str, ...] = ()) -> Process:
        self.now += 1.0
        self.slowest = 1.0
        self.ran.append(side.name)
        seconds = 1e-3 * (1 + 0.05 * (len(self.ran) % 3))
        calls = [
            Call(
                nodeid, 0, "f", "cpu", {"device": "cpu"}, {"wall": [seconds]}, "wall", None, None, "", "", {}, (), None
            )
            for nodeid in nodeids
        ]
        return Process({call.key: call for call in calls})


def test_a_pair_that_cannot_end_in_time_is_not_begun(tmp_path) -> None:
    base, other = (Side(name, (), os.fspath(tmp_path), os.fspath(tmp_path)) for name in ("A", "B"))
    runner = Stopwatch(7.5)
    found = ab.compare(runner, base, other, ["test_x.py::test_a"], threshold=0.03, say=lambda line: None)
    assert runner.ran == list("ABBAAB")
    assert (found.pairs, found.stopped) == (3, "the 7.5 s for measuring were over")
    assert found.judged["test_x.py::test_a", 0].result.reason.endswith("(the 7.5 s for measuring were over)")
