"""What tests call, recorded: ``--ascend-record``. One folder for each test; a worker of pytest-xdist writes its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.progress import watched

if TYPE_CHECKING:
    from pytest_ascend.observe.recording import Recording
    from pytest_ascend.session import AscendSession

__all__ = ["TestRecorder", "folder_of"]

_DONE = pytest.StashKey[dict[str, Any]]()
RECORD = "--ascend-record"


class TestRecorder:
    """Puts a recording around each test's call, and says at the end what came of them.

    A plugin of its own, which is there when the option is given.
    """

    __test__ = False  # it is no test class

    def __init__(self, session: AscendSession) -> None:
        self._session = session
        self._root = session.place(session.settings.record or ".")
        self._error: str | None = None
        self.done: list[dict[str, Any]] = []
        """What the tests' reports say of their recordings."""

    @classmethod
    def started(cls, session: AscendSession) -> TestRecorder:
        """One for a run. Raises ``pytest.UsageError`` where recording makes no sense."""
        if session.settings.times or session.config.getoption("ascend_perf_child") is not None:
            raise pytest.UsageError(f"{RECORD} makes tests slower, so it can't be given when tests are timed")
        chosen = session.settings.record_options()
        if "warmup" in chosen and "rounds" not in chosen and "tokens" not in chosen:
            raise pytest.UsageError(
                f"{RECORD}-warmup counts calls of a model in a loop: give {RECORD}-rounds too, such as all"
            )
        return cls(session)

    # -- one test -----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the test's body, without its fixtures."""
        if self._error is not None:
            return (yield)
        with self._around(item):
            return (yield)

    @contextlib.contextmanager
    def _around(self, item: pytest.Item) -> Iterator[None]:
        from pytest_ascend.observe.recording import record

        folder = self._root / folder_of(item.nodeid)
        chosen = self._session.settings.record_options()
        recording = record(None, folder, progress=self._progress(), **chosen)
        recording.warns = False
        try:
            recording.__enter__()
        except OSError as error:
            self._failed(item, error)
            yield
            return
        error_of_test: BaseException | None = None
        try:
            yield
        except BaseException as error:
            error_of_test = error
            raise
        finally:
            try:
                recording.__exit__(None, None, None)
            except OSError as error:
                self._failed(item, error)
            if recording.is_empty and error_of_test is None:
                _remove(recording, self._root)
            self._keep(item, recording)

    def _keep(self, item: pytest.Item, recording: Recording) -> None:
        paths = [] if recording.is_empty else [os.fspath(Path(path).parent) for path in recording.paths]
        item.stash[_DONE] = {"nodeid": item.nodeid, "paths": paths, "notes": recording.notes, "error": self._error}
        for path in paths:
            item.user_properties.append(("ascend.recorded", path))

    def _failed(self, item: pytest.Item, error: OSError) -> None:
        where = f": {error.filename}" if error.filename else ""
        self._error = f"{RECORD}: {error.strerror or error}{where}; nothing is recorded from {item.nodeid} on"
        item.stash[_DONE] = {"nodeid": item.nodeid, "paths": [], "notes": [], "error": self._error}

    def _progress(self) -> Any:
        config = self._session.config
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or config.getoption("verbose") < 0 or not watched(bool(reporter.isatty())):
            return False

        def say(line: str) -> None:
            reporter.ensure_newline()
            reporter.write_line(line)

        return say

    # -- the run ------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send along what came of the recording."""
        report = yield
        if call.when == "call" and _DONE in item.stash:
            vars(report)["ascend_recorded"] = item.stash[_DONE]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a report says, from this process or a worker."""
        if (found := getattr(report, "ascend_recorded", None)) is not None:
            self.done.append(found)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A recording that failed fails the run; under --ascend-strict one that isn't whole does too."""
        if self._session.is_worker or session.exitstatus != pytest.ExitCode.OK:
            return
        errors = any(found["error"] for found in self.done)
        silent = any("NOT_EXERCISED" in note for found in self.done for note in found["notes"])
        nothing = not any(found["paths"] for found in self.done) and not session.config.getoption("collectonly")
        if errors or (self._session.settings.strict and (silent or nothing)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """How many tests were recorded, and what wasn't."""
        config = self._session.config
        if self._session.is_worker or config.getoption("collectonly") or config.getoption("verbose") < -1:
            return
        for text, colour in self.summary():
            terminalreporter.write_line(text, **({colour: True} if colour else {}))

    def summary(self) -> Iterator[tuple[str, str]]:
        """Lines about the run, each with a colour or ``""``."""
        recorded = [found for found in self.done if found["paths"]]
        steps = sum(len(found["paths"]) for found in recorded)
        if recorded:
            some = f"{len(recorded)} test{'s' * (len(recorded) > 1)}, {steps} step{'s' * (steps > 1)}"
            yield f"ascend: recorded {some} below {self._root}", ""
        empty = [found for found in self.done if not found["paths"] and not found["error"]]
        if empty or not self.done:
            names = ", ".join(found["nodeid"] for found in empty[:3])
            more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
            what = f"{len(empty)} tests called nothing to record: {names}{more}" if empty else "no test ran"
            yield f"ascend: NOT_EXERCISED: {what}", "yellow"
        for found in recorded:
            for note in found["notes"]:
                yield f"ascend: {found['nodeid']}: {note}", "yellow"
        for error in dict.fromkeys(found["error"] for found in self.done if found["error"]):
            yield error, "red"


def folder_of(nodeid: str) -> str:
    """The name of a test's folder: the same in every run, and no other test's."""
    name = re.sub(r"[^\w\-]+", "_", nodeid, flags=re.ASCII).strip("_")[-100:]
    return f"{name}_{zlib.crc32(nodeid.encode()):08x}"


def _remove(recording: Recording, root: Path) -> None:
    """An empty dump would look as if there were one."""
    for path in recording.paths:
        folder = Path(path).parent
        shutil.rmtree(folder, ignore_errors=True)
        for parent in (folder.parent, folder.parent.parent, root):
            with contextlib.suppress(OSError):
                parent.rmdir()  # only when nothing else lies there
