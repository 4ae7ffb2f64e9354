"""Runs tests in supervised processes: hands them out, watches the clock and the memory, and replaces what dies.

A loop without threads. Each place has one process at a time that uses its card. When that dies, or its device fails,
the test that it ran is run once more, alone in a fresh process and in blocking mode, while the process that will go on
with the rest is being started. Every process must show that its device is well before it runs a test; a card that fails
twice in a row is not used again. No pytest.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_ascend.run import journal
from pytest_ascend.run.crash import Crash, End
from pytest_ascend.run.devices import Place
from pytest_ascend.run.process import Supervised, available_memory, describe_end, memory_of
from pytest_ascend.run.slots import AT_ONCE, Doubt, Slot, Work, Worker

__all__ = ["Limits", "Listener", "Supervisor"]

_TICK = 0.1  # seconds between two looks at clocks and memory
_FAMILY = 1.0  # seconds between two looks at the memory of all that a process started
_TO_START = 600.0  # seconds for a process to import and collect
_TO_END = 60.0  # seconds for the fixtures of the session to be torn down
_STARTS = 3  # processes in a row that don't come up: then none will
_PROBES = 2  # probes in a row that fail: then the card is not used again


@dataclass(frozen=True)
class Limits:
    """What a process may take.

    Attributes:
        memory: bytes of host memory; 0: not watched.
        probe: seconds for a device to answer.
    """

    memory: int = 0
    probe: float = 120.0

    @classmethod
    def of(cls, memory: int | None, timeout: float, workers: int) -> Limits:
        """The limits of each of some workers; without ``memory``, their part of nine tenths of what is free."""
        each = available_memory() * 9 // (10 * max(1, workers)) if memory is None else memory
        return cls(each, min(120.0, max(3.0, timeout)))


class Listener(Protocol):
    """Who is told what happens."""

    def start(self, slot: Slot, alone: str, whole: bool, blocking: bool) -> tuple[Supervised, str | None]:
        """Start a process, for one test alone or for many; with the file that it writes finished tests into."""

    def timeout(self, nodeid: str) -> float:
        """Seconds that a test may take."""

    def finished(self, nodeid: str, reports: list[dict[str, Any]], slot: Slot, written: bool) -> None:
        """A test has ended; ``written``: its process has written it down."""

    def crashed(self, crash: Crash, reports: list[dict[str, Any]], slot: Slot | None) -> None:
        """A test has ended its process, or its device failed; with the reports it made before."""

    def doubted(self, doubt: Doubt, slot: Slot, alone: str) -> None:
        """A test that failed has been run alone, with this outcome; ``""`` where it could not be."""

    def warned(self, warning: Mapping[str, Any]) -> None:
        """A process was warned."""

    def heard(self, output: Mapping[str, Any]) -> None:
        """What a process said at its end."""

    def said(self, text: str) -> None:
        """A line about the run as a whole."""

    def stopped(self) -> bool:
        """Whether the run is to end early."""


def _failed(reports: list[dict[str, Any]]) -> bool:
    return any(report["outcome"] == "failed" for report in reports)


def _brief(error: str) -> str:
    """A device's error by its number, where it has one."""
    code = re.search(r"error code(?: is|:)? *(\d{5,6})", error)
    return f"error {code[1]}" if code else error[:120]


class Supervisor:
    """The loop.

    Args:
        nodeids: the tests, in order, each once.
        slots: the places.
        limits: of each process.
        listener: who is told.
        unused: places on cards that no slot has, for when a card fails.
        doubts: how many tests that fail are run once more alone, to find those that depend on what ran before them.
    """

    def __init__(
        self,
        nodeids: Iterable[str],
        slots: list[Slot],
        limits: Limits,
        listener: Listener,
        unused: Iterable[Place] = (),
        doubts: int = 0,
    ) -> None:
        self.slots = slots
        self._limits, self._listener, self._most_doubts = limits, listener, doubts
        nodeids = list(nodeids)
        self._order = nodeids
        self._left = set(nodeids)
        self._work = Work(nodeids, len(slots))
        self._selector = selectors.DefaultSelector()
        self._family_at = 0.0
        self._doubts: deque[Doubt] = deque()
        self._doubted = 0
        self._unused = list(unused)

    def run(self) -> None:
        """Run everything. Whatever happens, no process is left."""
        try:
            while self._left and not self._listener.stopped():
                for slot in self.slots:
                    self._drive(slot)
                self._turn(_TICK)
            if not self._left:
                self._end_all()
                self._settle_doubts()
        finally:
            for slot in self.slots:
                for worker in slot.workers:
                    self._kill(worker)
            self._selector.close()

    def _turn(self, seconds: float) -> None:
        """Take what came, then look at clocks and memory."""
        for key, _ in self._selector.select(seconds):
            slot, worker = key.data
            if worker in slot.workers:
                self._hear(slot, worker)
        self._watch()

    # -- what to do next ------------------------------------------------------------------------------------------

    def _drive(self, slot: Slot) -> None:
        """Take a place one step further."""
        if slot.closed:
            return
        if slot.active is None:
            if slot.crash is not None:
                slot.active = self._start(slot, slot.crash.nodeid, slot.whole, blocking=True)
                slot.spare = slot.spare or (self._start(slot) if self._has_work(slot) else None)
            elif self._has_work(slot):
                slot.active, slot.spare = slot.spare or self._start(slot), None
            return
        worker = slot.active
        if worker.state == "collected":
            worker.state, worker.since = "probing", time.monotonic()
            worker.process.send({"probe": True})
        elif worker.state == "ready" and not worker.alone:
            self._feed(slot, worker)

    def _has_work(self, slot: Slot) -> bool:
        return bool(slot.backlog or self._work.waiting or any(len(one.backlog) > 1 for one in self.slots))

    def _feed(self, slot: Slot, worker: Worker) -> None:
        while len(worker.told) < AT_ONCE:
            self._work.fill(slot, self.slots)
            if not slot.backlog:
                break
            self._tell(worker, slot.backlog.popleft())
        if worker.told and not worker.flushed and len(worker.told) < AT_ONCE:
            worker.process.send({"flush": True})  # it would wait to learn what follows
            worker.flushed = True

    def _tell(self, worker: Worker, nodeid: str) -> None:
        if not worker.told:
            worker.since = time.monotonic()
        worker.told.append(nodeid)
        worker.flushed = False
        worker.process.send({"run": nodeid})

    def _start(self, slot: Slot, alone: str = "", whole: bool = False, blocking: bool = False) -> Worker:
        process, path = self._listener.start(slot, alone, whole, blocking)
        worker = Worker(process, path, alone, whole=whole)
        self._selector.register(process.socket, selectors.EVENT_READ, (slot, worker))
        return worker

    def _kill(self, worker: Worker) -> int:
        """End a process; what it still had to say was heard before."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.process.socket)
        return worker.process.kill()

    # -- what processes say ---------------------------------------------------------------------------------------

    def _hear(self, slot: Slot, worker: Worker) -> None:
        messages, gone = worker.process.received()
        for message in messages:
            self._take(slot, worker, message)
            if worker not in slot.workers:  # the message ended it
                return
        if gone:
            status = worker.process.wait(2.0)
            self._kill(worker)
            self._died(slot, worker, describe_end(status))

    def _take(self, slot: Slot, worker: Worker, message: Mapping[str, Any]) -> None:
        if "report" in message:
            worker.reports.append(message["report"])
        elif "begin" in message:
            worker.since = time.monotonic()
            worker.reports = []
        elif "done" in message:
            self._ended(slot, worker, str(message["done"]), str(message.get("sick") or ""))
        elif "collected" in message:
            worker.state = "collected"
            slot.failed_starts = 0
        elif "probe" in message:
            self._probed(slot, worker, str(message["probe"] or ""))
        elif "warning" in message:
            self._listener.warned(message["warning"])
        elif "finished" in message:
            worker.output = message["finished"]
        elif "internal" in message:
            worker.internal = str(message["internal"])
        elif "missing" in message:
            self._missing(slot, worker, str(message["missing"]))

    def _probed(self, slot: Slot, worker: Worker, wrong: str) -> None:
        if wrong:
            self._kill(worker)
            self._bad_device(slot, worker, wrong)
            return
        slot.failed_probes = 0
        worker.state, worker.since = "ready", time.monotonic()
        if worker.alone:
            self._tell(worker, worker.alone)
            worker.process.send({"flush": True})

    def _ended(self, slot: Slot, worker: Worker, nodeid: str, sick: str) -> None:
        if not worker.told or worker.told[0] != nodeid:
            return
        worker.since = time.monotonic()
        if sick:
            end = self._end_of(worker, f"left the device unusable ({_brief(sick)})", why=sick)
            self._kill(worker)
            self._fallen(slot, worker, end)
            return
        worker.told.popleft()
        reports, worker.reports = worker.reports, []
        worker.ran.append(nodeid)
        if worker.alone:
            outcome = next((r["outcome"] for r in reports if r["outcome"] != "passed"), "passed")
            self._kill(worker)
            slot.active = None
            self._conclude(slot, alone=outcome)
            return
        self._left.discard(nodeid)
        if len(worker.ran) > 1 and self._doubted < self._most_doubts and _failed(reports):
            self._doubted += 1
            self._doubts.append(Doubt(nodeid, reports, tuple(worker.ran[:-1])))
            return
        self._listener.finished(nodeid, reports, slot, written=worker.journal is not None)

    # -- failures that may be others' -----------------------------------------------------------------------------

    def _settle_doubts(self) -> None:
        """Run tests that failed once more, each alone in a fresh process."""
        while self._doubts or any(slot.doubt for slot in self.slots):
            free = [slot for slot in self.slots if not slot.closed and slot.doubt is None]
            if all(slot.closed for slot in self.slots) or self._listener.stopped():
                break
            for slot in free:
                if self._doubts:
                    slot.doubt, slot.whole, slot.failed_starts = self._doubts.popleft(), False, 0
            for slot in self.slots:
                if slot.doubt is not None and slot.active is None and not slot.closed:
                    slot.active = self._start(slot, slot.doubt.nodeid, slot.whole)
                elif slot.active is not None:
                    self._drive(slot)
            self._turn(_TICK)
        left = [(slot, slot.doubt) for slot in self.slots if slot.doubt is not None]
        for slot, doubt in [*left, *((self.slots[0], one) for one in self._doubts)]:
            slot.doubt = None
            self._listener.doubted(doubt, slot, "")

    def _settled(self, slot: Slot, alone: str) -> None:
        doubt, slot.doubt = slot.doubt, None
        if doubt is not None:
            self._listener.doubted(doubt, slot, alone)

    # -- what goes wrong: a test that isn't there -----------------------------------------------------------------

    def _missing(self, slot: Slot, worker: Worker, nodeid: str) -> None:
        """A process hasn't collected a test that the controller has."""
        if worker.alone and not worker.whole:
            self._kill(worker)
            slot.active, slot.whole = None, True  # by its name alone it can't be found: collect everything
            return
        end = End("was not found by the process that was to run it: does what is collected change from run to run?")
        if worker.told and worker.told[0] == nodeid:
            worker.told.popleft()
        if worker.alone:
            self._kill(worker)
            slot.active = None
            self._conclude(slot)
            return
        self._left.discard(nodeid)
        self._listener.crashed(Crash(nodeid, end), [], slot)

    # -- what goes wrong ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = time.monotonic()
        families = now - self._family_at > _FAMILY
        if families:
            self._family_at = now
        for slot in self.slots:
            for worker in list(slot.workers):
                limit, what = self._deadline(worker)
                if now - worker.since > limit:
                    worker.process.ask_where()
                    self._cut(slot, worker, f"{what} longer than {limit:g} s and was killed", timed_out=True)
                    continue
                if not self._limits.memory:
                    continue
                held = memory_of(worker.process.pid, families)
                if held > self._limits.memory:
                    most = f"{held / 2**30:.1f} GiB of host memory, more than the {self._limits.memory / 2**30:.1f} GiB"
                    worker.process.ask_where()
                    self._cut(slot, worker, f"took {most} that one process may have, and was killed")

    def _deadline(self, worker: Worker) -> tuple[float, str]:
        if worker.told:
            return self._listener.timeout(worker.told[0]), "ran"
        if worker.state == "probing":
            return self._limits.probe, "let the device compute for"
        if worker.state == "starting":
            return _TO_START, "started for"
        return float("inf"), ""

    def _cut(self, slot: Slot, worker: Worker, what: str, timed_out: bool = False) -> None:
        """End a process from outside, unless what it says meanwhile is that the test is over."""
        told = worker.told[0] if worker.told else None
        self._hear(slot, worker)
        if worker not in slot.workers or (told is not None and (not worker.told or worker.told[0] != told)):
            return
        self._kill(worker)
        self._died(slot, worker, what, timed_out)

    def _end_of(self, worker: Worker, what: str, timed_out: bool = False, why: str = "") -> End:
        from pytest_ascend.observe import trail

        process = worker.process
        output = process.text("output") + worker.internal
        stack, facts = process.text("stack", 200_000), trail.read(process.folder / "trail")
        return End(what, stack, facts, output, timed_out, why)

    def _died(self, slot: Slot, worker: Worker, what: str, timed_out: bool = False) -> None:
        """A process is gone; it was killed, or ended by itself."""
        if worker is slot.spare:
            slot.spare = None
            self._not_started(slot, self._end_of(worker, what))
        elif worker.told:
            self._fallen(slot, worker, self._end_of(worker, what, timed_out))
        elif worker.state == "probing":
            self._bad_device(slot, worker, f"the process that asked it {what}")
        elif worker.state in ("starting", "collected"):
            slot.active = None
            self._not_started(slot, self._end_of(worker, what))
        else:
            slot.active = None
            self._listener.said(f"a process {what} between two tests; another goes on")

    def _fallen(self, slot: Slot, worker: Worker, end: End) -> None:
        """A test took its process with it."""
        slot.active = None
        nodeid = worker.told.popleft()
        slot.backlog.extendleft(reversed(worker.told))
        if worker.alone:
            self._conclude(slot, again=end)
            return
        if worker.journal is not None and (reports := journal.last(worker.journal, nodeid)) is not None:
            self._left.discard(nodeid)  # it had ended; only its process had not yet said so
            self._listener.finished(nodeid, reports, slot, written=True)
            return
        slot.crash, slot.kept, slot.whole = Crash(nodeid, end, tuple(worker.ran)), worker.reports, False

    def _conclude(self, slot: Slot, again: End | None = None, alone: str = "", infra: str = "") -> None:
        """All is known of the test that crashed, or was in doubt."""
        if slot.doubt is not None:
            self._settled(slot, "" if infra else "crashed" if again is not None else alone)
            return
        crash, slot.crash = slot.crash, None
        if crash is None:
            return
        crash.again, crash.alone, crash.infra = again, alone, infra
        self._left.discard(crash.nodeid)
        self._listener.crashed(crash, slot.kept, slot)
        slot.kept = []

    def _not_started(self, slot: Slot, end: End) -> None:
        slot.failed_starts += 1
        if slot.failed_starts < _STARTS:
            return
        if slot.doubt is not None:
            self._settled(slot, "")
            return
        lines = [line.strip() for line in end.output.splitlines() if line.strip()]
        last = f": {' | '.join(lines[-3:])[-300:]}" if lines else ""
        self._give_up(f"{_STARTS} processes in a row did not come up; the last {end.what}{last}")

    def _bad_device(self, slot: Slot, worker: Worker, wrong: str) -> None:
        slot.active = None
        slot.failed_probes += 1
        if slot.failed_probes < _PROBES:
            return
        self._quarantine(slot.place.card, wrong)

    def _quarantine(self, card: str, wrong: str) -> None:
        """Never use a card again in this run; tests that wait go to the others."""
        name = f"card {card}" if card else "the device"
        why = f"{name} is not well and was quarantined: {wrong}"
        self._listener.said(why)
        for slot in self.slots:
            if slot.place.card != card or slot.closed:
                continue
            slot.closed = not self._unused
            for worker in slot.workers:
                slot.backlog.extendleft(reversed([one for one in worker.told if not worker.alone]))
                self._kill(worker)
            slot.active = slot.spare = None
            self._work.take_back(slot.backlog)
            slot.backlog.clear()
            if slot.crash is not None:
                self._conclude(slot, infra=f"{why}; the test that ran on it {slot.crash.first.what}")
            if slot.doubt is not None:
                self._settled(slot, "")
            if self._unused:
                slot.place, slot.failed_probes = self._unused.pop(0), 0
                self._listener.said(f"card {slot.place.card} takes its place")
        if all(slot.closed for slot in self.slots):
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        """No test can run any more."""
        for slot in self.slots:
            slot.closed = True
            for worker in slot.workers:
                self._kill(worker)
            slot.active = slot.spare = None
            if slot.crash is not None:
                self._conclude(slot, infra=why)
        for nodeid in [one for one in self._order if one in self._left]:
            self._left.discard(nodeid)
            self._listener.crashed(Crash(nodeid, End("was not run"), infra=f"not run: {why}"), [], None)

    # -- the end --------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Let processes tear down what the session set up."""
        for slot in self.slots:
            if slot.spare is not None:
                self._kill(slot.spare)
                slot.spare = None
            if slot.active is not None:
                slot.active.process.send({"end": True})
                slot.active.state, slot.active.since = "ending", time.monotonic()
        deadline = time.monotonic() + _TO_END
        while any(slot.active for slot in self.slots):
            for key, _ in self._selector.select(_TICK):
                slot, worker = key.data
                messages, gone = worker.process.received()
                for message in messages:
                    self._take(slot, worker, message)
                if gone:
                    self._over(slot, worker, worker.process.wait(5.0))
            if time.monotonic() > deadline:
                for slot in self.slots:
                    if slot.active is not None:
                        self._over(slot, slot.active, None, late=True)

    def _over(self, slot: Slot, worker: Worker, status: int | None, late: bool = False) -> None:
        self._kill(worker)
        slot.active = None
        if worker.output is not None:
            self._listener.heard(worker.output)
        if late:
            self._listener.said(f"a process was killed, for it didn't end within {_TO_END:g} s after its last test")
        elif status is not None and status < 0:
            self._listener.said(f"a process {describe_end(status)} while it ended, after its last test")
