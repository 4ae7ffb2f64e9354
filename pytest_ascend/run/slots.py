"""Places for supervised processes, and the work that waits for each. No pytest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_ascend.run.crash import Crash
from pytest_ascend.run.devices import Place
from pytest_ascend.run.process import Supervised

__all__ = ["AT_ONCE", "Doubt", "Slot", "Work", "Worker"]

AT_ONCE = 3
"""Tests that a process is told of: the one that runs, the next, and one more so that it never waits for an answer."""


@dataclass
class Worker:
    """A process and what is known of it.

    Attributes:
        state: ``starting``, ``collected``, ``probing``, ``ready`` or ``ending``.
        alone: the one test that it is there for, in blocking mode; else ``""``.
        told: tests that it was told to run and that have not ended, in order.
        ran: those that have ended here, in order.
        reports: of the test that runs.
        since: when it last said something that a deadline counts from.
        journal: the file that it writes finished tests into.
        flushed: whether it knows that nothing follows what it was told.
    """

    process: Supervised
    journal: str | None
    alone: str = ""
    state: str = "starting"
    told: deque[str] = field(default_factory=deque)
    ran: list[str] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    flushed: bool = True
    output: dict[str, Any] | None = None
    internal: str = ""
    whole: bool = False  # collects everything, because the one test alone could not be found by its name


@dataclass(frozen=True)
class Doubt:
    """A test that failed after others had run in its process: would it fail alone?"""

    nodeid: str
    reports: list[dict[str, Any]]
    preceding: tuple[str, ...]


@dataclass
class Slot:
    """One place: a card, the process that has it, another that stands ready, and its share of the work."""

    number: int
    place: Place
    active: Worker | None = None
    spare: Worker | None = None
    backlog: deque[str] = field(default_factory=deque)
    crash: Crash | None = None
    doubt: Doubt | None = None
    kept: list[dict[str, Any]] = field(default_factory=list)  # reports of the test that crashed, made before
    failed_starts: int = 0
    failed_probes: int = 0
    whole: bool = False
    closed: bool = False

    @property
    def workers(self) -> Iterable[Worker]:
        return [one for one in (self.active, self.spare) if one is not None]


class Work:
    """Tests that wait, handed out in order and in blocks, so that neighbours share their fixtures.

    Args:
        nodeids: the tests, each once.
        slots: how many places share them.
    """

    def __init__(self, nodeids: Iterable[str], slots: int) -> None:
        self.waiting = deque(nodeids)
        self._slots = max(1, slots)

    def fill(self, slot: Slot, others: Iterable[Slot], may: Callable[[Slot], bool] = lambda slot: True) -> None:
        """Give a place that has nothing left a block: of what waits, else half of the most that another has."""
        if slot.backlog:
            return
        if self.waiting:
            for _ in range(max(1, len(self.waiting) // (4 * self._slots))):
                slot.backlog.append(self.waiting.popleft())
            return
        rich = max((one for one in others if one is not slot and may(one)), key=lambda s: len(s.backlog), default=None)
        if rich is not None and len(rich.backlog) > 1:
            for _ in range(len(rich.backlog) // 2):
                slot.backlog.appendleft(rich.backlog.pop())

    def take_back(self, nodeids: Iterable[str]) -> None:
        """Tests that a place can't run after all, in front of those that wait."""
        self.waiting.extendleft(reversed(list(nodeids)))
