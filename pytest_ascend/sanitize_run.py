"""``--ascend-sanitize``: marked tests under msSanitizer, each in a process of its own; or on the emulated NPU's memory.

With a card, a marked test runs in a fresh process under ``mssanitizer``, its environment set before it starts. What
that process reports of the test is this run's report of it, and what the tool found is added. On the emulated NPU the
test stays in this process, with memory that watches itself (``sanitize_emulated.py``).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.health.sanitizer import TOOLS, Answer, Finding
from pytest_ascend.session import AscendSession, Record, asks_for
from pytest_ascend.settings import SANITIZE, SANITIZE_CHILD, words

if TYPE_CHECKING:
    from pytest_ascend.health.sanitized import Ran
    from pytest_ascend.judge.verdict import CheckResult

__all__ = ["CRITERION", "SanitizedRun", "SanitizedTest", "details", "marked", "rendered", "result_of", "tools_of"]

CRITERION = "sanitize"
"""What stands for a criterion in the results of a test that was sanitized."""

MARKER = "ascend_sanitize"
_PROGRAM = "ascend_sanitized_program"
_MINUTES = 10.0 * 60  # a test under the tool is slow
_MOST_LOG = 20_000  # characters of the tool's log in a report
_SIGNALS = {int(one): one.name for one in signal.Signals}


def marked(item: pytest.Item) -> bool:
    """Whether a test runs under the sanitizer: it has the marker ``ascend_sanitize`` or ``ascend``, asks for the
    device or a comparison, or is an API call that no test file holds.
    """
    if any(next(item.iter_markers(name), None) is not None for name in (MARKER, "ascend")):
        return True
    return asks_for(item, "ascend_compare") or asks_for(item, "ascend_device") or hasattr(item, "pending")


def tools_of(item: pytest.Item, asked: str) -> tuple[str, ...]:
    """The tools for a test: those of its marker, else the option's. Unknown ones fail it, in one sentence."""
    marker = item.get_closest_marker(MARKER)
    if marker is None or (not marker.args and not marker.kwargs):
        return words(asked)
    strange = [*(one for one in marker.args if one not in TOOLS), *marker.kwargs]
    if strange:
        pytest.fail(f"@pytest.mark.{MARKER} knows {', '.join(TOOLS)}, not {strange[0]!r}", pytrace=False)
    return tuple(dict.fromkeys(marker.args))


def result_of(session: AscendSession, item: pytest.Item, answer: Answer) -> CheckResult:
    """The result of a sanitized test."""
    from pytest_ascend.judge.verdict import CheckResult

    return CheckResult(
        answer.verdict,
        reason=answer.reason,
        api=getattr(item, "originalname", None) or item.name,
        criterion=CRITERION,
        target=session.target().title(),
        notes=answer.notes,
        reproducer=session.reproduce(item),
    )


def details(findings: Sequence[Finding], tools: Iterable[str]) -> Record:
    """What a record has beside its result."""
    return {"tools": list(tools), "memory_faults": [found.to_dict() for found in findings]}


def rendered(record: Mapping[str, Any]) -> str:
    """A record as the text of a failure."""
    lines = [f"{record['verdict']}: {record['reason']}"]
    for found in record["memory_faults"]:
        lines += found["lines"]
    lines += [f"note: {note}" for note in record["notes"]]
    return "\n".join([*lines, f"reproduce: {record['reproducer']}"])


# ------------------------------------------------------------------------------------------------ the run


class SanitizedRun:
    """Runs marked tests under msSanitizer; a plugin that is there when the option is given."""

    def __init__(self, session: AscendSession) -> None:
        self._session = session
        self._asked = session.settings.sanitize or ""
        self._tool: str | None = None

    @classmethod
    def started(cls, session: AscendSession) -> SanitizedRun:
        """One for a run. Raises ``pytest.UsageError`` where it makes no sense."""
        if session.settings.times:
            raise pytest.UsageError(f"{SANITIZE} makes tests slower, so it can't be given when tests are timed")
        return cls(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Look for the tool now rather than at the first test."""
        if self._session.target().emulated:
            from pytest_ascend.sanitize_emulated import EmulatedRun

            self._session.config.pluginmanager.register(EmulatedRun(self._session), "ascend-emulated-sanitizer")
            return
        from pytest_ascend.health.sanitized import NotThere, find

        try:
            self._tool = find()
        except NotThere as error:
            raise pytest.UsageError(f"{SANITIZE}: {error}; on the emulated NPU it needs none") from None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist the command line, which it hasn't got."""
        from pytest_ascend import child_arguments

        node.workerinput[_PROGRAM] = list(child_arguments.command(node.config))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Run a marked test in a process of its own."""
        if self._tool is None or not marked(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, self._tool):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    # -- one test -----------------------------------------------------------------------------------------------------

    def _reports(self, item: pytest.Item, tool: str) -> list[pytest.TestReport]:
        """Run a test and return its reports, with what the tool found."""
        from pytest_ascend.health import sanitized, sanitizer

        try:
            tools = tools_of(item, self._asked)
        except pytest.fail.Exception as error:
            return [self._made(item, str(error), "setup")]
        with tempfile.TemporaryDirectory(prefix="ascend-sanitized-test-") as folder:
            path = os.path.join(folder, "reports.json")
            variables, remarks = sanitized.environment(os.environ)
            given = self._session.settings.sanitize_args
            try:
                ran = sanitized.run(
                    tool,
                    tools,
                    self._program(item, path),
                    more=shlex.split(given) if given else (),
                    variables=variables,
                    seconds=self._seconds(item),
                    cwd=self._session.config.invocation_params.dir,
                )
            except OSError as error:
                return [self._made(item, f"{tool} can't be started: {error.strerror or error}", "call")]
            reports, nodes = self._read(path)
        log = sanitizer.parse(ran.log)
        outside = sanitizer.parse(ran.console)
        findings = sanitizer.suspect([*log.findings, *sanitizer.violations(ran.console)], nodes)
        log = sanitizer.Log(
            log.kernels,
            tuple(findings),
            log.complaints or outside.complaints,
            log.exited or outside.exited,
            (*log.notes, *remarks, *(["the log is too long and was read in part"] if ran.cut else [])),
        )
        answer = sanitizer.judge(log, tools=tools, exit_code=ran.exit_code, names=_SIGNALS)
        return self._concluded(item, reports, ran, answer, findings, tools)

    def _concluded(
        self,
        item: pytest.Item,
        reports: list[pytest.TestReport],
        ran: Ran,
        answer: Answer,
        findings: Sequence[Finding],
        tools: Sequence[str],
    ) -> list[pytest.TestReport]:
        from pytest_ascend.judge.verdict import Verdict

        call = next((one for one in reports if one.when == "call"), None)
        broken = next((one for one in reports if one.failed), None)
        whole = any(one.when == "teardown" for one in reports)
        if ran.seconds is not None and answer.verdict is not Verdict.MEMORY_FAULT:
            text = f"it took longer than {ran.seconds:g} s under mssanitizer and was killed"
            answer = Answer(Verdict.CRASH, text, answer.notes)
        elif not whole and answer.verdict in (Verdict.PASS, Verdict.NOT_COMPARABLE):
            ended = "was never seen to end" if ran.exit_code is None else f"ended with status {ran.exit_code}"
            answer = Answer(Verdict.INFRA, f"the process {ended} and left no report of the test", answer.notes)
        skipped = any(one.skipped and not hasattr(one, "wasxfail") for one in reports)
        if whole and skipped and answer.verdict in (Verdict.INFRA, Verdict.PASS):
            return reports  # nothing ran that could have been checked
        result = result_of(self._session, item, answer)
        record: Record = {"nodeid": item.nodeid, **result.to_dict(), "seed": None, **details(findings, tools)}
        record["outcome"] = self._session.outcome(record)
        if broken is not None and answer.verdict is not Verdict.MEMORY_FAULT:
            broken.sections.append(("mssanitizer", f"{answer.verdict}: {answer.reason}"))
            if answer.verdict is Verdict.INFRA:
                return reports  # it failed before anything could be checked, and that is its report
        target = call or next((one for one in reports if one.failed), None)
        if target is None:
            target = self._made(item, "", "call")
            reports = [*reports, target]
        self._added(item, target, record, ran)
        return reports

    def _added(self, item: pytest.Item, report: pytest.TestReport, record: Record, ran: Ran) -> None:
        """Put a record into a report; a fault fails it."""
        if record["outcome"] in ("failed", "error"):
            expects = item.get_closest_marker("xfail") is not None or hasattr(report, "wasxfail")
            own = "" if not report.failed else f"\n\n{report.longreprtext}"
            if expects:
                record["outcome"] = "expected"
                report.outcome = "skipped"
                vars(report)["wasxfail"] = f"{record['verdict']}: {record['reason']}"
            else:
                report.outcome = "failed"
                report.longrepr = rendered(record) + own
                vars(report)["ascend_error"] = record["outcome"] == "error"
            for name, text in (("mssanitizer log", ran.log), ("mssanitizer console", ran.console)):
                if text.strip() and not own:
                    report.sections.append((name, text[-_MOST_LOG:]))
        elif not report.failed and not hasattr(report, "wasxfail"):
            report.outcome = "passed"
        if report.outcome == "failed" and report.longrepr in (None, ""):
            report.outcome = "passed"
        vars(report).setdefault("ascend_results", [])
        vars(report)["ascend_results"].append(record)
        vars(report).setdefault("ascend_environment", {})
        report.user_properties.append(("ascend.sanitize.verdict", record["verdict"]))

    def _made(self, item: pytest.Item, text: str, when: Any) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="failed",
            longrepr=text,
            when=when,
            user_properties=list(item.user_properties),
        )

    def _program(self, item: pytest.Item, path: str) -> list[str]:
        from pytest_ascend import child_arguments

        config = self._session.config
        program = getattr(config, "workerinput", {}).get(_PROGRAM) or child_arguments.command(config)
        given = getattr(item, "arguments", None)
        tests = [self._session.argument(item)] if given is None else list(given)
        return [*program, "-p", "no:cacheprovider", f"{SANITIZE_CHILD}={path}", *tests]

    def _seconds(self, item: pytest.Item) -> float:
        from pytest_ascend.marks import timeout_of

        return timeout_of(item) or self._session.settings.timeout or _MINUTES

    def _read(self, path: str) -> tuple[list[pytest.TestReport], list[tuple[int, int]]]:
        """The reports that the process left, and the nodes of its memory pool."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            plain, nodes = content["reports"], [(int(a), int(b)) for a, b in content["pool"]]
        except (OSError, ValueError, KeyError, TypeError):
            return [], []
        from pytest_ascend.run.isolate import with_tuples

        config = self._session.config
        made = (config.hook.pytest_report_from_serializable(config=config, data=with_tuples(one)) for one in plain)
        return [one for one in made if isinstance(one, pytest.TestReport)], nodes


# ------------------------------------------------------------------------------------------------ within the process


class SanitizedTest:
    """In the process under the tool: writes down what became of its test, after each phase; a plugin."""

    def __init__(self, session: AscendSession, path: str) -> None:
        self._session = session
        self._path = path
        self._reports: list[dict[str, Any]] = []
        self._pool: list[tuple[int, int]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Look at the pool before and after: a node in use both times is nobody's freed memory."""
        before = set(self._session.target().pool())
        try:
            return (yield)
        finally:
            self._pool = sorted(before & set(self._session.target().pool()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write it down at once: the process may not live to the next."""
        from pytest_ascend.files import write_text

        config = self._session.config
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))
        write_text(self._path, json.dumps({"reports": self._reports, "pool": self._pool}))
