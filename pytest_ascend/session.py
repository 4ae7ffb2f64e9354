"""What one pytest run knows: its settings, its target and the results so far. The hooks in ``plugin`` delegate here.

Workers of pytest-xdist attach results to reports; only the controller (or the one process there is) keeps and writes
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import sys
import zlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_ascend.run.devices import DEVICE, memory_share
from pytest_ascend.settings import COMPARE, Settings, repeat

if TYPE_CHECKING:
    from pytest_ascend.cases.case import Case
    from pytest_ascend.error_baselines import ErrorBaselines
    from pytest_ascend.health.memory import Ledger
    from pytest_ascend.judge.verdict import CheckResult
    from pytest_ascend.options import CheckOptions
    from pytest_ascend.perf.baseline import Session
    from pytest_ascend.perf.options import PerfOptions
    from pytest_ascend.perf.result import PerfResult
    from pytest_ascend.perf_child import PerfChild
    from pytest_ascend.report.terminal import Line
    from pytest_ascend.run.isolate import IsolatedRun
    from pytest_ascend.run.workers import Pinning
    from pytest_ascend.targets.base import Target

Record = dict[str, Any]  # CheckResult.to_dict() with "nodeid", "outcome" and "seed"; plain JSON, so it survives xdist
_TEXT = "script_text"  # of the file that fails alone, on its way to the one process that writes files
_NO_COMPARISON = ("overflow", "sanitize", "leaks")  # criteria that judge a test rather than a comparison
_FIGURES = "stored_figures"  # errors, on their way there too
_OF_THE_CASE = ("seed", "autocast", "reference", _TEXT)  # beside the environment, which is the whole run's
_RECORDS = pytest.StashKey[list[Record]]()


class ComparisonFailed(AssertionError):
    """A comparison whose verdict fails the test; its text is the result, rendered."""

    __module__ = "builtins"  # pytest then prints the bare class name, as it does for its own outcomes
    bare = False  # whether the text says all, and no line of the test raised it

    def __init__(self, result: CheckResult, record: Record) -> None:
        self.result = result
        self.record = record
        drift = record.get("error_drift") or {}
        grown = [f"error drift: {drift['reason']}"] if drift.get("verdict") == "regressed" else []
        super().__init__("\n".join([*grown, *result.render()]))


class PerfFailed(AssertionError):
    """A timing that fails its test; its text is the record, rendered."""

    __module__ = "builtins"

    def __init__(self, record: Record) -> None:
        from pytest_ascend.report import timings

        self.record = record
        super().__init__("\n".join(timings.render(record)))


class PerfResults(Protocol):
    """What knows the timings of a run, when tests ask for them.

    ``said``: lines about the run as a whole.
    """

    said: list[str]

    def answers(self) -> dict[str, str]:
        """What a worker is sent, so that it knows them too."""

    def conclude(self, item: pytest.Item, index: int, options: PerfOptions) -> PerfResult:
        """The result of the test's call number ``index`` (from 0) of ``ascend_perf``, recorded; a slowdown raises."""


class AscendSession:
    """The state of the plugin in one process, kept in ``config.stash``."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = Settings.from_config(config)
        self.results: list[Record] = []
        self.environment: Mapping[str, Any] = {}  # of the last comparison
        self.absent: dict[str, str] = {}  # API without a case → why: counted as not exercised
        self.write_error: str | None = None
        self.child: PerfChild | None = None  # in a process that only times tests
        self.perf_results: PerfResults | None = None  # in one that asks others to
        self.pinning: Pinning | None = None  # in one that may start workers of pytest-xdist
        self.isolated: IsolatedRun | None = None  # in one whose tests run in supervised processes
        self._target: Target | None = None
        self._errors: ErrorBaselines | None = None
        self._identity: dict[str, str] = {}
        self.shard: dict[str, Any] = {}  # which part of which collection this run is
        self.left: dict[str, int] = {}  # bytes on the device that tests left behind
        self._ledger: Ledger | None = None
        self._ran_out = False
        self._said = False  # in a worker: whether a report has carried the header's line
        self._share = memory_share()
        self._card = os.environ.get(DEVICE)

    # -- the target -----------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Whether comparisons run: ``--ascend-compare`` or its ini twin was given."""
        return self.settings.compare is not None

    @property
    def reads(self) -> bool:
        """Whether recorded dumps are compared with one another: ``--ascend-golden`` or its ini twin was given."""
        return self.settings.golden is not None and self.child is None

    @property
    def watches(self) -> bool:
        """Whether tests are watched for overflows: ``--ascend-overflow`` or its ini twin was given."""
        return bool(self.settings.overflow) and self.child is None

    @property
    def sanitizes(self) -> bool:
        """Whether memory faults are looked for: ``--ascend-sanitize`` or its ini twin was given."""
        asked = self.settings.sanitize is not None or self.config.getoption("ascend_sanitize_child") is not None
        return asked and self.child is None

    @property
    def is_worker(self) -> bool:
        """Whether this process is a worker of pytest-xdist."""
        return hasattr(self.config, "workerinput")

    @property
    def late(self) -> bool:
        """Whether the target is looked up only when workers are on their way."""
        return self.pinning is not None and self.pinning.late

    def target(self) -> Target:
        """The resolved target. Raises ``pytest.UsageError`` when this machine hasn't it."""
        if self._target is None:
            from pytest_ascend.targets import TargetUnavailable, resolve

            try:
                self._target = resolve(self.settings.compare or "auto")
            except (TargetUnavailable, ValueError) as error:
                raise pytest.UsageError(f"{COMPARE}={self.settings.compare}: {error}") from None
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                sentence = "torch is not installed: pip install 'pytest-ascend[torch]'"
                raise pytest.UsageError(f"{COMPARE}={self.settings.compare}: {sentence}") from None
        return self._target

    def spec(self) -> str:
        """The target's spec, ``auto`` replaced by what it stands for on this machine, to reproduce a result."""
        spec = self.settings.compare or "auto"
        return self.target().spec if spec == "auto" else spec

    def choose(self, items: list[pytest.Item]) -> None:
        """Of what was collected keep the part that ``--ascend-shard`` names."""
        if self.settings.shard is None or self.child is not None:
            return
        from pytest_ascend.run import shard

        part, nodeids = shard.parse(self.settings.shard), [item.nodeid for item in items]
        kept = shard.mine(nodeids, part)
        self.shard = {**part._asdict(), "collected": len(items), "digest": shard.digest(nodeids)}
        dropped = [item for item, keep in zip(items, kept, strict=True) if not keep]
        items[:] = [item for item, keep in zip(items, kept, strict=True) if keep]
        if dropped:
            self.config.hook.pytest_deselected(items=dropped)

    # -- one item -------------------------------------------------------------------------------------------------

    def prepare(self, item: pytest.Item) -> None:
        """Check the item's markers and seed the generators that its fixtures and body may draw inputs from."""
        for name in ("ascend", "ascend_perf"):
            if next(item.iter_markers(name), None) is not None:
                from pytest_ascend.marks import marker_options

                marker_options(item, name)
        if self._share is not None and self.on:  # not before: only a test may start the device
            self.target().limit_memory(self._share)
            self._share = None
        timed = self.child is not None and asks_for(item, "ascend_perf")
        if timed or (self.on and asks_for(item, "ascend_compare")):
            seed_everything(seed_of(item.nodeid))

    def reproduce(self, item: pytest.Item) -> str:
        """The command that runs an item again, on the same target with the same options."""
        given = getattr(item, "arguments", None)  # of an item that no file holds
        tests = [self.argument(item)] if given is None else given
        return shlex.join(["pytest", *tests, f"{COMPARE}={self.spec()}", *repeat(self.config)])

    def argument(self, item: pytest.Item) -> str:
        """An item's node id, which starts from the root folder, as an argument where this run was started."""
        path, separator, name = item.nodeid.partition("::")
        return os.path.relpath(self.config.rootpath / path, self.config.invocation_params.dir) + separator + name

    def with_script(self, item: pytest.Item, case: Case, options: CheckOptions, result: CheckResult) -> CheckResult:
        """A failed result with the path of a Python file that fails alone, and its text, where there can be one."""
        if self.settings.reproducers == "none":
            return result
        try:
            from pytest_ascend.reproduce import NoScript, script
        except ImportError:  # whatever stands in for the check has no road to reproduce
            return result
        try:
            text = script(case, options, result, item.nodeid, str(item.path))
        except NoScript:
            return result
        number = len(item.stash.get(_RECORDS, [])) + 1
        name = re.sub(r"[^\w.\-]+", "_", item.nodeid)[-100:].strip("._-")
        path = self.reproducers() / f"reproduce_{name}{f'_{number}' if number > 1 else ''}_.py"
        shown = os.path.relpath(path, self.config.invocation_params.dir)
        return dataclasses.replace(result, script=shown, environment={**result.environment, _TEXT: text})

    def place(self, given: str) -> Path:
        """A path of the command line, which starts where this run was started."""
        return Path(self.config.invocation_params.dir, os.path.expanduser(given))

    def reproducers(self) -> Path:
        """The folder for files that fail alone."""
        given = self.settings.reproducers
        return self.config.rootpath / ".ascend" / "reproducers" if given is None else self.place(given)

    def baselines(self) -> Path:
        """The folder of stored baselines."""
        given = self.settings.baseline
        return self.config.rootpath / "baselines" if given is None else self.place(given)

    def identity(self) -> dict[str, str]:
        """What everything that this run stores is stored under: ``id``, ``date`` and ``commit``."""
        if not self._identity:
            from datetime import datetime, timezone

            from pytest_ascend.perf.baseline import new_id
            from pytest_ascend.perf.worktree import head

            now = datetime.now(timezone.utc)
            date = now.isoformat(timespec="seconds")
            self._identity = {"id": new_id(now), "date": date, "commit": head(self.config.rootpath)}
        return self._identity

    def store(self, environment: Mapping[str, Any], name: str, session: Session) -> bool:
        """Add a session to a baseline, or with ``--ascend-update`` make it the only one; whether that worked.

        Where it didn't, ``write_error`` says why.
        """
        from pytest_ascend.perf.baseline import BaselineError
        from pytest_ascend.perf.store import Store

        store = Store(self.baselines())
        try:
            store.save(environment, name, session, replace=bool(self.settings.update))
        except BaselineError as error:
            self.write_error = str(error)
        except OSError as error:
            self.write_error = f"can't write below {store.root}: {error.strerror or error}"
        else:
            return True
        return False

    def errors(self) -> ErrorBaselines:
        """The stored errors that this run's are compared with."""
        if self._errors is None:
            from pytest_ascend.error_baselines import ErrorBaselines

            self._errors = ErrorBaselines(self)
        return self._errors

    def record_perf(self, item: pytest.Item, record: Record) -> None:
        """Keep what came of a timing until the item's report is made, and put its gist among the JUnit properties."""
        record.update(_line(item))
        item.stash.setdefault(_RECORDS, []).append(record)
        self._add_properties(item, record, _prefix(item, ".perf"))

    def record(self, item: pytest.Item, result: CheckResult, seed: int | None, target: str = "auto") -> Record:
        """Keep a result of an item until its report is made, and put its gist among the JUnit properties."""
        environment = dict(result.environment)
        of_the_case: Record = {name: environment.pop(name) for name in _OF_THE_CASE if name in environment}
        self.environment = environment or self.environment  # a case that could not run has none
        record: Record = {"nodeid": item.nodeid, **result.to_dict(), "seed": seed, **of_the_case}
        record.update(_line(item))
        record.update(getattr(item, "detail", {}))
        if self._card:
            record["device"] = self._card
        stores = self.settings.save or self.settings.update or self.settings.limits.error is not None
        if stores and record["criterion"] not in _NO_COMPARISON:
            number = sum(1 for known in item.stash.get(_RECORDS, []) if known["api"] == record["api"])
            record.update(self.errors().look(item, result, target, number))
        item.stash.setdefault(_RECORDS, []).append(record)
        self._add_properties(item, record, _prefix(item, ".verdict"))
        return record

    def _add_properties(self, item: pytest.Item, record: Record, prefix: str) -> None:
        from pytest_ascend.report import junit

        failed = self.outcome(record) in ("failed", "error")
        item.user_properties += junit.properties(record, prefix, failed=failed)

    def complete(self, item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
        """Attach the item's results to its report; a failed comparison becomes the report's short text."""
        if self.is_worker and not self._said and (self.on or self.watches or self.sanitizes):
            from pytest_ascend.run.workers import HEADER

            self._said = True
            vars(report)[HEADER] = self.header()  # the process that starts workers may have no target itself
        error = call.excinfo.value if call.excinfo else None
        if error is not None and report.failed:
            self._out_of_memory(error, report)
        failure = error if isinstance(error, (ComparisonFailed, PerfFailed)) else None
        if failure is not None and call.excinfo is not None and report.failed:
            if self.config.getoption("tbstyle") == "auto" and not isinstance(report.longrepr, str):
                report.longrepr = str(failure) if getattr(failure, "bare", False) else _short(call.excinfo)
            vars(report)["ascend_error"] = self.outcome(failure.record or {"verdict": "FAIL"}) == "error"
        if isinstance(error, pytest.fail.Exception) and not error.pytrace and report.failed:
            report.longrepr = str(error)  # a sentence of its own; pytest would add that the traceback is hidden
        if call.when == "teardown" and "pytest_ascend.leaks_run" in sys.modules:
            from pytest_ascend import leaks_run

            vars(report)["ascend_leaks"] = leaks_run.ended(self, item)
        if records := item.stash.get(_RECORDS, []):
            for record in records:
                record["outcome"] = self._outcome(record, report, failure)
            vars(report).update(ascend_results=_plain(records), ascend_environment=_plain(self.environment))
            if isinstance(report.longrepr, tuple) and records[-1]["outcome"] == "skipped":
                path, line, _ = item.reportinfo()
                report.longrepr = (os.fspath(path), (line or 0) + 1, report.longrepr[2])  # the test, not our own line
            records.clear()

    def _outcome(self, record: Record, report: pytest.TestReport, failure: ComparisonFailed | PerfFailed | None) -> str:
        """What a result did to its test; ``expected``: it fails, and the test wanted it to (``raises``, ``xfail``)."""
        outcome = self.outcome(record)
        if outcome not in ("failed", "error"):
            return outcome
        blamed = failure is None or failure.record is record
        return outcome if report.failed and blamed else "expected"

    def outcome(self, record: Record) -> str:
        """What a recorded verdict means to pytest: passed, noted, skipped, error, failed or expected."""
        if "perf" in record:
            outcome = self._time_outcome(record)
        else:
            from pytest_ascend.judge.verdict import Verdict

            outcome = Verdict(record["verdict"]).outcome
            drift = (record.get("error_drift") or {}).get("verdict")
            if outcome in ("passed", "noted") and drift in ("regressed", "inconclusive"):
                outcome = "noted" if drift == "inconclusive" else "expected" if self.settings.update else "failed"
        return "failed" if self.settings.strict and outcome == "noted" else outcome

    def _time_outcome(self, record: Record) -> str:
        if record["perf"].get("error"):
            return "error"
        if record["verdict"] == "regressed":
            return "expected" if self.settings.update else "failed"  # then it was accepted
        return "noted" if record["verdict"] == "inconclusive" else "passed"

    # -- the device beneath the tests -------------------------------------------------------------------------------

    def around(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Keep the books of the device's memory around a test."""
        if self._ledger is None:
            from pytest_ascend.health.memory import Ledger

            self._ledger = Ledger(self.target())
        self._ran_out = False
        self._ledger.begin()
        try:
            return (yield)
        finally:
            with contextlib.suppress(RuntimeError):  # a sick device answers nothing
                self._ledger.end(item.nodeid, self._ran_out)
                self.left.update(self._ledger.left)

    def settle(self) -> None:
        """Wait for the device at the end of a test, so that its late errors are the test's own."""
        if self._target is not None and self._target.started():
            self._target.synchronize()

    def out_of_memory(self, result: CheckResult) -> CheckResult:
        """A result for want of memory, with who holds it; where nobody else does it is the test's own doing."""
        from pytest_ascend.judge.verdict import Verdict

        if result.verdict is not Verdict.INFRA or self._ledger is None:
            return result
        from pytest_ascend.health.memory import is_out_of_memory

        if not is_out_of_memory(result.reason):
            return result
        own = self._ledger.of_the_test()
        verdict = Verdict.CRASH if own else result.verdict
        return dataclasses.replace(result, verdict=verdict, notes=(*result.notes, self._ledger.explain()))

    def _out_of_memory(self, error: BaseException, report: pytest.TestReport) -> None:
        """Note that a test ran out of memory, and say in its report who holds it."""
        from pytest_ascend.health.memory import is_out_of_memory

        if self._ledger is None or not is_out_of_memory(error):
            return
        self._ran_out = True
        with contextlib.suppress(RuntimeError):
            report.sections.append(("device memory", self._ledger.explain()))

    # -- the whole run --------------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the results of a report that came in, from this process or from a worker."""
        for record in getattr(report, "ascend_results", ()):
            if not self.is_worker and (text := record.pop(_TEXT, None)) is not None:
                self._write_script(record, text)
            if not self.is_worker and (figures := record.pop(_FIGURES, None)) is not None:
                self.errors().keep(record, figures)
            self.results.append(record)
        self.environment = getattr(report, "ascend_environment", self.environment)
        if said := getattr(report, "ascend_leaks", ""):
            mine = (r for r in reversed(self.results) if r["nodeid"] == report.nodeid and r["criterion"] == "leaks")
            for record in mine:
                record["notes"] = [*record["notes"], said]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Keep what a worker of pytest-xdist that ends has found no case for."""
        self.hear(getattr(node, "workeroutput", {}))

    def hear(self, output: Mapping[str, Any]) -> None:
        """Keep what a worker says when it ends."""
        self.absent.update(output.get("ascend_absent", {}))
        self.left.update(output.get("ascend_left", {}))
        self.shard = self.shard or output.get("ascend_shard", {})

    def finish(self, session: pytest.Session) -> None:
        """Write the results file; a strict run that compared nothing fails."""
        if self.is_worker:
            said = {"ascend_absent": self.absent, "ascend_shard": self.shard, "ascend_left": self.left}
            vars(self.config)["workeroutput"].update(said)
            return
        if self.child is not None:
            return
        if self._errors is not None:
            self._errors.store()
        from pytest_ascend import published

        for error in published.publish(self):
            self.write_error = error
        if self.write_error is not None:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if (
            self.settings.strict
            and (self.compared_nothing() or self.timed_nothing() or self.watched_nothing() or self.sanitized_nothing())
            and session.exitstatus == pytest.ExitCode.OK
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def content(self) -> dict[str, Any]:
        """What the results file of this run says."""
        from pytest_ascend.report import results_json

        environment = {**results_json.environment(), **self.environment}
        if self.shard:
            environment["shard"] = self.shard
        return results_json.document(self.results, environment)

    def _write_script(self, record: Record, text: str) -> None:
        from pytest_ascend.files import write_text

        path = Path(self.config.invocation_params.dir, record["script"])
        try:
            write_text(path, text)
            if self.settings.reproducers is None and not (ignore := path.parent.parent / ".gitignore").exists():
                write_text(ignore, "*\n")
        except OSError as error:
            self.write_error = f"--ascend-reproducers: can't write {path}: {error.strerror or error}"
            record["script"] = None

    def compared_nothing(self) -> bool:
        """Whether the command line asked for comparisons and none ran."""
        asked = self.config.getoption("ascend_compare") is not None and self.perf_results is None
        asked = asked and not any(record["criterion"] == "leaks" for record in self.results)
        compared = [record for record in self.results if record["criterion"] not in _NO_COMPARISON]
        return (
            asked
            and not self.watches
            and not self.sanitizes
            and not compared
            and not self.config.getoption("collectonly")
        )

    def watched_nothing(self) -> bool:
        """Whether the command line asked to watch for overflows and no test ran an operator on the target."""
        asked = self.config.getoption("ascend_overflow") and self.child is None
        watched = any(record.get("overflows") is not None for record in self.results)
        return bool(asked) and not watched and not self.config.getoption("collectonly")

    def sanitized_nothing(self) -> bool:
        """Whether the command line asked to look for memory faults and no test that ran was looked at."""
        asked = self.config.getoption("ascend_sanitize") and self.child is None
        looked = any(record["criterion"] == "sanitize" for record in self.results)
        return bool(asked) and not looked and not self.config.getoption("collectonly")

    def timed_nothing(self) -> bool:
        """Whether timings were asked for and no test that ran asked for one."""
        timed = any("perf" in record for record in self.results)
        return self.perf_results is not None and not timed and not self.config.getoption("collectonly")

    def header(self) -> str:
        """One line that names the target, its chip, versions and numeric modes."""
        from pytest_ascend.report import terminal

        target = self.target()
        return terminal.header(target.title(), target.describe())

    def error_commands(self) -> Iterator[str]:
        """GitHub's commands that mark the worst failures, where that was asked for."""
        if self.child is not None or self.is_worker or not self.results:
            return
        from pytest_ascend import published

        yield from published.error_commands(self)

    def summary(self) -> Iterator[Line]:
        """The lines of the terminal section; none for a run that had nothing to do with us."""
        silent = (
            self.compared_nothing()
            or self.timed_nothing()
            or self.watched_nothing()
            or self.sanitized_nothing()
            or self.write_error
        )
        if self.child is not None or not (self.results or self.absent or silent or self._of_the_run()):
            return
        from pytest_ascend.report import memory, overflows, terminal, timings

        verbosity = self.config.getoption("verbose")
        compared = [r for r in self.results if "perf" not in r and r["criterion"] not in _NO_COMPARISON]
        timed = [record for record in self.results if "perf" in record]
        missing = "red" if self.settings.strict else "yellow"
        if compared or self.absent:
            yield from terminal.summary(compared, verbosity, self.absent)
        elif self.compared_nothing():
            text = f"ascend: {COMPARE} was given but nothing was compared: no test that ran called ascend_compare"
            yield terminal.Line(text, missing)
        yield from overflows.summary([r for r in self.results if r.get("overflows") is not None], verbosity)
        if self.watched_nothing():
            yield terminal.Line(
                f"ascend: --ascend-overflow was given but no test ran an operator on {self.target().spec}", missing
            )
        about_memory = [r for r in self.results if r["criterion"] in ("sanitize", "leaks")]
        yield from memory.summary(about_memory, self.left, verbosity)
        if self.sanitized_nothing():
            yield terminal.Line("ascend: --ascend-sanitize was given but no test that ran is marked for it", missing)
        if self._errors is not None and verbosity > -2:
            yield from (terminal.Line(f"error drift: {text}", "yellow") for text in self._errors.said(compared))
        if self.perf_results is not None:
            yield from timings.summary(timed, self.perf_results.said, verbosity)
        if self.timed_nothing():
            yield terminal.Line("ascend: nothing was timed: no test that ran called ascend_perf", missing)
        yield from (terminal.Line(f"ascend: {text}", "yellow") for text in self._of_the_run())
        if self.write_error is not None:
            yield terminal.Line(self.write_error, "red")

    def _of_the_run(self) -> list[str]:
        return [] if self.isolated is None else self.isolated.lines


KEY = pytest.StashKey[AscendSession]()


def hide_own_frames() -> None:
    """Keep our modules out of tracebacks (``--full-trace`` shows them): an error in a test is about the test's code."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pytest_ascend."):
            module.__dict__.setdefault("__tracebackhide__", True)


def _prefix(item: pytest.Item, of_each: str) -> str:
    """What the next result's JUnit properties start with; each result has one that ends in ``of_each``."""
    count = 1 + sum(name.endswith(of_each) for name, _ in item.user_properties)
    return f"ascend.{count}" if count > 1 else "ascend"


def _line(item: pytest.Item) -> Record:
    """Where the test is in its file, counted from 1; nothing for an item that no line holds."""
    line = item.location[1]
    return {} if line is None else {"line": line + 1}


def _plain(value: Any) -> Any:
    """``value`` in the plain types of JSON and no subclass of them, which pytest-xdist can't send."""
    import json

    from pytest_ascend.judge.verdict import jsonable

    return json.loads(json.dumps(jsonable(value), allow_nan=False))


def _short(excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
    """The failure as the test's own lines and the rendered result: a number is wrong, the source is not to blame."""

    def of_the_user(entry: Any) -> bool:
        return entry.frame.f_globals.get("__name__", "").partition(".")[0] not in ("_pytest", "pluggy")

    return excinfo.getrepr(style="short", tbfilter=lambda info: info.traceback.filter(info).filter(of_the_user))


def asks_for(item: pytest.Item, fixture: str) -> bool:
    """Whether a test uses a fixture, by itself or through another one."""
    return fixture in getattr(item, "fixturenames", ())


def seed_of(nodeid: str) -> int:
    """A seed of the test's own, the same in every run and process."""
    return zlib.crc32(nodeid.encode())


def seed_everything(seed: int) -> None:
    """Seed the generators a test may draw its inputs from: random, and numpy's and torch's global ones."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
