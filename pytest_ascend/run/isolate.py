"""``--ascend-isolate``: the controller's side of a run whose tests run in supervised processes."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.run import devices, journal
from pytest_ascend.run.crash import Crash
from pytest_ascend.run.process import Supervised
from pytest_ascend.run.slots import Doubt, Slot
from pytest_ascend.run.supervise import Limits, Supervisor
from pytest_ascend.settings import COMPARE, repeat

if TYPE_CHECKING:
    from pytest_ascend.session import AscendSession, Record

__all__ = ["TIMEOUT", "IsolatedRun", "take_over", "with_tuples"]

ISOLATE = "--ascend-isolate"
TIMEOUT = 600.0
"""Seconds that a test may take, without ``--ascend-timeout``."""
_WORKERS = pytest.StashKey[Any]()
_BLOCKING = {"ASCEND_LAUNCH_BLOCKING": "1", "CUDA_LAUNCH_BLOCKING": "1"}
_MOST_IN_COMMAND = 20  # preceding tests in a command; more go into a file
_DOUBTS = 10  # tests that failed and are run once more alone
_OURS = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST", devices.DEVICE, devices.MEMORY_SHARE)


def take_over(config: pytest.Config) -> None:
    """Keep pytest-xdist from starting workers: ``-n`` says how many processes are supervised."""
    if not hasattr(config.option, "numprocesses"):
        return
    config.stash[_WORKERS] = config.option.numprocesses
    vars(config.option).update(numprocesses=None, dist="no", tx=[], distload=False)


class IsolatedRun:
    """A plugin of the controller: its loop takes the place of pytest's own.

    Attributes:
        lines: about the run as a whole.
    """

    def __init__(self, session: AscendSession) -> None:
        self._ascend = session
        self._config = session.config
        self.lines: list[str] = []
        self._items: dict[str, pytest.Item] = {}
        self._session: pytest.Session | None = None
        self._count = 0
        self._run_id = uuid.uuid4().hex
        self._folder = Path()
        self._journal: journal.Journal | None = None
        self._own_lines = ""
        spec = session.settings.compare or ("auto" if session.on or session.watches else None)
        self._spec = spec
        self._plan = devices.plan(spec or "cpu", self._workers(spec))

    @classmethod
    def started(cls, session: AscendSession) -> IsolatedRun:
        """The one of this process, registered. Raises ``pytest.UsageError`` where tests can't run elsewhere."""
        if os.name != "posix":
            raise pytest.UsageError(f"{ISOLATE} needs process groups, which this system hasn't: leave it out")
        for name in ("usepdb", "trace"):
            if session.config.getoption(name, False):
                raise pytest.UsageError(
                    f"{ISOLATE} runs tests in other processes, where no debugger can be: leave out one"
                )
        made = cls(session)
        session.config.pluginmanager.register(made, "ascend-isolate")
        return made

    def _workers(self, spec: str | None) -> int:
        given = self._config.stash.get(_WORKERS, None)
        if given in ("auto", "logical"):
            return (devices.count(spec) if spec is not None else None) or os.cpu_count() or 1
        return max(1, int(given or 1))

    # -- the run --------------------------------------------------------------------------------------------------

    def pytest_report_header(self) -> str:
        """One line on where tests run."""
        return f"ascend: {devices.describe(self._plan)}, in supervised processes"

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what was collected."""
        if session.config.getoption("collectonly"):
            return None
        if session.testsfailed and not session.config.getoption("continue_on_collection_errors"):
            raise session.Interrupted(
                f"{session.testsfailed} error{'s' * (session.testsfailed != 1)} during collection"
            )
        self._session = session
        for item in session.items:
            self._items.setdefault(item.nodeid, item)
        with self._files() as folder:
            self._folder = folder
            left = self._resumed()
            slots = [Slot(number, self._plan.place(number)) for number in range(self._needed(len(left)))]
            limits = Limits.of(self._ascend.settings.isolate_memory, self.timeout(""), len(slots))
            if slots and not self.stopped():
                doubts = 0 if session.config.getoption("maxfail") else _DOUBTS
                Supervisor(left, slots, limits, self, self._unused(len(slots)), doubts).run()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        if self._journal is not None:
            self._journal.end()
        return True

    def _needed(self, tests: int) -> int:
        return min(len(self._plan.cards), tests)

    def _unused(self, slots: int) -> list[devices.Place]:
        """Places on cards that this run may use and doesn't."""
        used = {self._plan.place(number).card for number in range(slots)}
        return [devices.Place(self._plan.variable, c, 1, slots) for c in self._plan.visible if c not in used]

    @contextlib.contextmanager
    def _files(self) -> Iterator[Path]:
        """The folder of the processes' files, and the journal's lock."""
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="ascend-isolate-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            place = self._config.rootpath / ".ascend"
            shard = self._ascend.settings.shard
            name = "run" if shard is None else f"run-{shard.replace('/', '-of-')}"
            try:
                stack.enter_context(_alone(place / f"{name}.lock"))
            except BlockingIOError:
                if self._ascend.settings.resume:
                    raise pytest.UsageError(f"--ascend-resume: another run goes on in {place}") from None
                self.said(f"another run has {place / name}, so that this one couldn't go on if it were interrupted")
            except OSError as error:
                self.said(f"can't write {place}, so that this run couldn't go on: {error.strerror or error}")
            else:
                self._journal = journal.Journal(place / name)
            yield folder

    def _resumed(self) -> list[str]:
        """What is to be run; what an interrupted run has judged is reported."""
        nodeids = list(self._items)
        if self._journal is None:
            return nodeids
        try:
            finished = self._journal.begin(self._about(), bool(self._ascend.settings.resume))
        except journal.NotTheSame as error:
            raise pytest.UsageError(str(error)) from None
        except OSError as error:
            self.said(f"can't write {self._journal.folder}, so that this run couldn't go on: {error.strerror or error}")
            self._journal = None
            return nodeids
        self._own_lines = self._journal.file()
        known = [nodeid for nodeid in finished if nodeid in self._items]
        for nodeid in known:
            self._report(nodeid, finished[nodeid])
        if self._ascend.settings.resume:
            count = f"{len(known)} test{'s' * (len(known) != 1)}"
            self.said(f"{count} of the interrupted run taken over" if known else "no interrupted run to go on with")
        return [nodeid for nodeid in nodeids if nodeid not in finished]

    def _about(self) -> dict[str, Any]:
        """What a run must have in common with one that it goes on with."""
        from pytest_ascend.perf.worktree import head
        from pytest_ascend.report.results_json import environment

        return {
            "target": self._ascend.settings.compare,
            "options": list(repeat(self._config)),
            "commit": head(self._config.rootpath),
            "python": platform.python_version(),
            "packages": environment()["packages"],
        }

    # -- the supervisor asks, and tells ---------------------------------------------------------------------------

    def start(self, slot: Slot, alone: str, whole: bool, blocking: bool) -> tuple[Supervised, str | None]:
        """A process, and the file that it writes finished tests into."""
        self._count += 1
        number = slot.number
        args = ["-p", "pytest_ascend.run.worker", *map(os.fspath, self._config.invocation_params.args)]
        after: list[str] = ["--no-cov"] if self._config.pluginmanager.hasplugin("pytest_cov") else []
        after += ["--capture=no"] if blocking else []  # what native code writes must outlive it
        at = args.index("--") if "--" in args else len(args)
        args[at:at] = after
        options: dict[str, Any] = {"basetemp": os.fspath(self._folder / f"{self._count}" / "tmp")}
        factory = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None:
            options["basetemp"] = os.fspath(factory.getbasetemp() / f"process-{self._count}")
        selection = None
        if alone:
            options["ascend_shard"] = "1/1"  # it was dealt out already
            if not whole:
                selection = self._select(alone, options)
        worker = f"gw{number}"
        workerinput = {
            "workerid": worker,
            "workercount": len(self._plan.cards),
            "testrunuid": self._run_id,
            "mainargv": list(sys.argv),
        }
        if self._ascend.perf_results is not None:
            workerinput.update(self._ascend.perf_results.answers())
        path = self._journal.file() if self._journal is not None and not alone else None
        hello = {
            "args": args,
            "options": options,
            "selection": selection,
            "workerinput": workerinput,
            "journal": path,
            "blocking": blocking,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        environment.update(devices.environment(slot.place))
        environment.update(
            PYTEST_XDIST_WORKER=worker,
            PYTEST_XDIST_WORKER_COUNT=str(len(self._plan.cards)),
            PYTEST_XDIST_TESTRUNUID=self._run_id,
        )
        if blocking:
            environment.update(_BLOCKING)
        return Supervised(hello, environment, self._folder / str(self._count)), path

    def _select(self, nodeid: str, options: dict[str, Any]) -> list[str]:
        """pytest's arguments for one test alone."""
        given = getattr(self._items[nodeid], "arguments", None)
        if given is None:
            options["ascend_api"] = None
            path, separator, name = nodeid.partition("::")
            return [os.fspath(self._config.rootpath / path) + separator + name]
        for argument in given:
            name, _, value = argument.removeprefix("--").partition("=")
            options[name.replace("-", "_")] = value
        return []

    def timeout(self, nodeid: str) -> float:
        """Seconds that a test may take; of no test the run's own."""
        own = None
        if nodeid in self._items and next(self._items[nodeid].iter_markers("ascend"), None) is not None:
            from pytest_ascend.marks import timeout_of

            own = timeout_of(self._items[nodeid])
        return own or self._ascend.settings.timeout or TIMEOUT

    def finished(self, nodeid: str, reports: list[dict[str, Any]], slot: Slot, written: bool) -> None:
        """A test has ended."""
        if not written:
            self._write(nodeid, reports)
        self._report(nodeid, reports)

    def crashed(self, crash: Crash, reports: list[dict[str, Any]], slot: Slot | None) -> None:
        """A test has ended its process, or couldn't run."""
        item = self._items[crash.nodeid]
        before = [report for report in reports if report["outcome"] == "passed" and report["when"] == "setup"]
        made = self._report_of(item, crash, slot, reports)
        plain = self._config.hook.pytest_report_to_serializable(config=self._config, report=made)
        everything = [*before, plain]
        if not crash.infra or crash.first.what != "was not run":  # what has not run is run when the run goes on
            self._write(crash.nodeid, everything)
        self._report(crash.nodeid, everything)

    def doubted(self, doubt: Doubt, slot: Slot, alone: str) -> None:
        """A test that failed among others has been run alone: if it passes there, say what ran before it."""
        reports = doubt.reports
        if alone == "passed":
            item = self._items[doubt.nodeid]
            again = self._in_order(item, doubt.preceding)
            count = f"{len(doubt.preceding)} test{'s' * (len(doubt.preceding) != 1)}"
            note = f"alone it passes, so that what ran before it in the same process matters ({count}): {again}"
            for report in reports:
                if report["outcome"] == "failed":
                    report["sections"] = [*report["sections"], ("order", note)]
                for record in report.get("ascend_results", ()):
                    if record["outcome"] in ("failed", "error"):
                        record["notes"] = [*record["notes"], "alone it passes: what ran before it matters"]
                        record.update(preceding=list(doubt.preceding), reproducer=again)
        self.finished(doubt.nodeid, reports, slot, written=True)

    def warned(self, warning: Mapping[str, Any]) -> None:
        """Pass a warning on, as pytest itself would have had it."""
        module, name = warning["category"]
        category = getattr(sys.modules.get(module), name, UserWarning)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            category = UserWarning
        message = warnings.WarningMessage(
            message=warning["text"], category=category, filename=warning["file"], lineno=warning["line"]
        )
        location = None if warning["location"] is None else tuple(warning["location"])
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": message,
                "when": "runtest",
                "nodeid": warning["nodeid"],
                "location": location,
            }
        )

    def heard(self, output: Mapping[str, Any]) -> None:
        """Keep a process's last words."""
        self._ascend.hear(output)

    def said(self, text: str) -> None:
        """Keep a line for the end."""
        if text not in self.lines:
            self.lines.append(text)

    def stopped(self) -> bool:
        """Whether pytest wants the run to end: ``-x``, ``--maxfail``."""
        return self._session is not None and bool(self._session.shouldfail or self._session.shouldstop)

    # -- reports --------------------------------------------------------------------------------------------------

    def _report(self, nodeid: str, reports: list[dict[str, Any]]) -> None:
        item = self._items[nodeid]
        item.ihook.pytest_runtest_logstart(nodeid=nodeid, location=item.location)
        for plain in reports:
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=with_tuples(plain))
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=nodeid, location=item.location)

    def _write(self, nodeid: str, reports: list[dict[str, Any]]) -> None:
        if self._journal is not None:
            with contextlib.suppress(OSError):
                journal.append(self._own_lines, nodeid, reports)

    def _report_of(
        self, item: pytest.Item, crash: Crash, slot: Slot | None, reports: list[dict[str, Any]]
    ) -> pytest.TestReport:
        """The report of a test that crashed, with its record."""
        pending = getattr(item, "pending", None)
        api, dtype = (pending.api, pending.dtype) if pending is not None else ("", "")
        more: Record = {"target": self._title(), "reproducer": self._again(item, crash)}
        if slot is not None and slot.place.card:
            more["device"] = slot.place.card
        failed = next((one for report in reversed(reports) for one in reversed(report.get("ascend_results", ()))), None)
        if failed is not None:  # the test itself has said what it saw of its device's failure
            api, dtype = failed.get("api") or api, failed.get("dtype") or dtype
            more["metrics"] = failed.get("metrics", {})
        more.update(getattr(item, "detail", {}))
        record = crash.record(api, dtype, **more)
        record["outcome"] = self._ascend.outcome(record)
        if failed is not None and failed["verdict"] not in ("PASS",):
            record["notes"].append(f"{failed['verdict']} before: {failed['reason']}")
        earlier = [one for report in reports for one in report.get("ascend_results", ()) if one is not failed]
        properties = [(f"ascend.{name}", str(record[name])) for name in ("verdict", "api", "dtype") if record[name]]
        text = "\n".join(crash.render(record))
        seconds = sum(float(report.get("duration") or 0.0) for report in reports)
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="failed",
            longrepr=text,
            when="call",
            duration=seconds,
            user_properties=[*item.user_properties, *properties],
        )
        vars(report)["ascend_results"] = [*earlier, record]
        vars(report)["ascend_error"] = record["outcome"] == "error"
        return report

    def _title(self) -> str:
        if self._spec is None:
            return ""
        return self._ascend.target().title()

    def _again(self, item: pytest.Item, crash: Crash) -> str:
        """The command that makes it crash again: with what ran before it, where it passes alone."""
        if crash.alone != "passed" or not crash.preceding:
            own = getattr(item, "arguments", None)
            return shlex.join(["pytest", *(own or [self._ascend.argument(item)]), *self._judging()])
        return self._in_order(item, crash.preceding)

    def _in_order(self, item: pytest.Item, preceding: Sequence[str]) -> str:
        """The command that runs a test after others."""
        before = [self._items[nodeid] for nodeid in preceding if nodeid in self._items]
        given = [getattr(one, "arguments", None) for one in (*before, item)]
        if all(one is None for one in given):
            tests = [self._ascend.argument(one) for one in (*before, item)]
            if len(tests) > _MOST_IN_COMMAND:
                tests = [f"@{self._list(item, tests)}"]
        else:
            ids = [value.partition("=")[2] for one in given for value in one or ()]
            tests = [f"--ascend-api={','.join(ids)}"]
            tests += [
                self._ascend.argument(one) for one, own in zip((*before, item), given, strict=True) if own is None
            ]
        return shlex.join(["pytest", *tests, *self._judging()])

    def _judging(self) -> list[str]:
        """The options that say how tests are judged."""
        return [] if self._spec is None else [f"{COMPARE}={self._ascend.spec()}", *repeat(self._config)]

    def _list(self, item: pytest.Item, tests: list[str]) -> str:
        """A file with tests, a line each, for a command that would be too long."""
        from pytest_ascend.files import write_text

        name = re.sub(r"[^\w.\-]+", "_", item.nodeid)[-100:].strip("._-")
        path = self._ascend.reproducers() / f"tests_before_{name}.txt"
        with contextlib.suppress(OSError):
            write_text(path, "\n".join(tests) + "\n")
        return os.path.relpath(path, self._config.invocation_params.dir)


def with_tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A report's data with the tuples that JSON has made lists of, and that pytest relies on."""
    found = dict(plain)
    for name in ("longrepr", "location"):
        if isinstance(found.get(name), list):
            found[name] = tuple(found[name])
    for name in ("user_properties", "sections"):
        found[name] = [tuple(one) for one in found.get(name) or ()]
    return found


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock; it goes with the process. Raises ``BlockingIOError`` where another process has it."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    ignore = path.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
