"""The process that runs tests under supervision; a plugin that pytest is given by name, in that process alone.

To everybody else it looks like a worker of pytest-xdist: it has ``config.workerinput``, writes no report and prints
nothing. It collects what the controller collected, says whether its device is well, and then runs what it is told to.
Each report is sent as it is made. A test that has ended is written down in the run's journal first and announced then,
so that its result survives whatever happens to either process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import queue
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from pytest_ascend.observe import trail
from pytest_ascend.run import channel, journal
from pytest_ascend.run.process import ASK, FOLDER
from pytest_ascend.session import KEY

__all__ = ["Worker"]

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG, linux/prctl.h
_worker: list[Worker] = []


def pytest_addoption() -> None:
    """Called as soon as the plugin is there: before conftests, which may hang or crash."""
    folder = os.environ.pop(FOLDER, None)  # what the tests start is no worker
    if folder is None:
        raise pytest.UsageError("pytest_ascend.run.worker is loaded by --ascend-isolate in processes that it starts")
    _worker.append(Worker(Path(folder)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Before anybody reads the options: this is a worker."""
    _worker[-1].configure(config)
    return (yield)


class Worker:
    """The state of this process, and its hooks."""

    def __init__(self, folder: Path) -> None:
        self._hello: dict[str, Any] = json.loads((folder / "hello.json").read_text(encoding="utf-8"))
        self._link = socket.socket(fileno=self._hello["socket"])
        self._sending = threading.Lock()
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reports: list[dict[str, Any]] = []
        self._items: dict[str, pytest.Item] = {}
        self._stack: IO[str] = open(folder / "stack", "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
        _die_with(self._hello["parent"])
        self._watch_for_faults()
        trail.follow(folder / "trail")
        threading.Thread(target=self._listen, name="ascend-orders", daemon=True).start()

    def _watch_for_faults(self) -> None:
        faulthandler.enable(self._stack, all_threads=True)
        faulthandler.register(ASK, self._stack, all_threads=True, chain=False)

    def _listen(self) -> None:
        """Take orders; without a controller there is nothing to do for this process and what it started."""
        while True:
            try:
                order = channel.receive(self._link)
            except (OSError, channel.Broken):
                order = None
            if order is None:
                with contextlib.suppress(OSError):
                    os.killpg(os.getpgid(0), signal.SIGKILL)
                os._exit(1)
            self._orders.put(order)

    def _send(self, **message: Any) -> None:
        with self._sending, contextlib.suppress(OSError):
            channel.send(self._link, message)

    # -- the session ----------------------------------------------------------------------------------------------

    def configure(self, config: pytest.Config) -> None:
        """Make the options those of a worker."""
        hello, option = self._hello, config.option
        changed: dict[str, Any] = {"usepdb": False, "maxfail": 0, "continue_on_collection_errors": True}
        changed.update(hello["options"])
        if hasattr(option, "numprocesses"):
            changed.update(numprocesses=None, dist="no", tx=[], distload=False)
        vars(option).update(changed)
        if hello["selection"] is not None:
            config.args = list(hello["selection"])
        vars(config).update(workerinput=hello["workerinput"], workeroutput={})
        config.pluginmanager.register(self, "ascend-worker")

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Nobody reads what this process would print."""
        if (reporter := config.pluginmanager.get_plugin("terminalreporter")) is not None:
            config.pluginmanager.unregister(reporter)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """The last words, after everybody else's."""
        result = yield
        output = vars(session.config)["workeroutput"]
        self._send(finished={name: value for name, value in output.items() if name.startswith("ascend_")})
        return result

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Something of pytest's or a plugin's own broke."""
        self._send(internal=str(excrepr))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """The controller says it."""
        if when == "runtest":  # it collects itself, and is warned then
            category = warning_message.category or UserWarning
            self._send(
                warning={
                    "text": str(warning_message.message),
                    "category": [category.__module__, category.__qualname__],
                    "file": warning_message.filename,
                    "line": warning_message.lineno,
                    "nodeid": nodeid,
                    "location": location,
                }
            )

    # -- running --------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do as told until told to end."""
        self._watch_for_faults()  # pytest has put its own in its place
        for item in session.items:
            self._items.setdefault(item.nodeid, item)
        self._send(collected=len(self._items))
        held: str | None = None  # a test that waits to learn which one follows
        while True:
            order = self._orders.get()
            if (nodeid := order.get("run")) is not None:
                if held is not None:
                    self._run(held, nodeid)
                held = nodeid
                continue
            if held is not None:
                self._run(held, None)
                held = None
            if order.get("probe"):
                self._send(probe=self._probe(session))
            if order.get("end"):
                return True

    def _run(self, nodeid: str, following: str | None) -> None:
        item = self._items.get(nodeid)
        if item is None:
            self._send(missing=nodeid)
            return
        trail.clear()
        self._reports = []
        self._send(begin=nodeid)
        nextitem = None if following is None else self._items.get(following)
        ascend = item.config.stash[KEY]
        marking = self._hello["blocking"] and (ascend.on or ascend.watches)
        with trail.operators() if marking else contextlib.nullcontext():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        sick = self._sick(item)
        if not sick and self._hello["journal"] is not None:
            journal.append(self._hello["journal"], nodeid, self._reports)
        self._send(done=nodeid, sick=sick)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report as it is made."""
        config = next(iter(self._items.values())).config
        made: Mapping[str, Any] | None = config.hook.pytest_report_to_serializable(config=config, report=report)
        plain = json.loads(json.dumps(made, default=str))
        self._reports.append(plain)
        self._send(report=plain)

    def _probe(self, session: pytest.Session) -> str:
        ascend = session.config.stash[KEY]
        if not (ascend.on or ascend.watches):
            return ""
        from pytest_ascend.health.pulse import pulse

        return pulse(ascend.target())

    def _sick(self, item: pytest.Item) -> str:
        """What is wrong with the device, after a test that didn't end well; ``""`` where nothing is."""
        bad = any(
            report["outcome"] == "failed"
            or any(one.get("verdict") in ("CRASH", "INFRA") for one in report.get("ascend_results", ()))
            for report in self._reports
        )
        return self._probe(item.session) if bad else ""


def _die_with(parent: int) -> None:
    """End this process when its parent ends, even while native code holds the interpreter's lock. Linux only."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended meanwhile
        os._exit(1)
