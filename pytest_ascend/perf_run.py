"""A run that asks other processes to time its tests, and says what came of it.

All measuring is done before the first test runs: by the one process there is, or under pytest-xdist by the controller
before it starts its workers, which would disturb it. A test's ``ascend_perf`` only looks its answer up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend import benchmark_storage, child_arguments
from pytest_ascend.perf.result import PerfResult, PerfVerdict
from pytest_ascend.progress import watched
from pytest_ascend.session import AscendSession, PerfFailed, Record, asks_for
from pytest_ascend.settings import COMPARE, PERF

if TYPE_CHECKING:
    from pytest_ascend.perf.gate import Judged
    from pytest_ascend.perf.options import PerfOptions
    from pytest_ascend.perf.runner import Call, Key, Process, Runner, Side
    from pytest_ascend.perf.worktree import Base

__all__ = ["PerfRun"]

THRESHOLD = 0.03
"""The slowdown to catch, without ``--ascend-fail``."""
TIME_S = 1800.0
"""Seconds for all measuring, without ``--ascend-perf-time``."""
_WORKERS_GET = "ascend_perf"


class PerfRun:
    """The timings of a run; a plugin, for the hooks it needs.

    Attributes:
        judged: the answers, by node id and number of the call.
        failures: why a test wasn't timed, by node id.
        said: lines about the run as a whole.
    """

    def __init__(self, session: AscendSession) -> None:
        self.session = session
        self.judged: dict[Key, Judged] = {}
        self.timed: dict[Key, Sequence[Call]] = {}  # per process, for pytest-benchmark's files
        self.failures: dict[str, str] = {}
        self.said: list[str] = []
        self.disabled = ""
        self.broken = ""
        self._told: set[str] = set()
        self._measured = False
        self._base: Base | None = None

    @classmethod
    def started(cls, session: AscendSession) -> PerfRun:
        """The one of this process, its hooks registered. Raises ``pytest.UsageError`` where there is no other side."""
        made = cls(session)
        config = session.config
        if session.is_worker:
            made._receive(vars(config)["workerinput"].get(_WORKERS_GET))
            return made
        if config.getoption("benchmark_disable", False):
            made.disabled = "--benchmark-disable was given, so nothing was timed"
        if (rev := session.settings.ab) is not None:
            from pytest_ascend.perf.worktree import BaseError, resolve

            try:
                made._base = resolve(rev, config.rootpath)
            except BaseError as error:
                raise pytest.UsageError(f"--ascend-ab={rev}: {error}") from None
        if session.settings.ab_python is not None:
            made._python()
        config.pluginmanager.register(made, "ascend-perf-run")
        return made

    @property
    def threshold(self) -> float:
        """The run's own slowdown to catch, as a fraction."""
        given = self.session.settings.limits.perf
        return THRESHOLD if given is None else given

    # -- hooks ----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Measure before there are workers. Only they collect, so the tests are asked for first."""
        self._measure(None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker the answers."""
        node.workerinput.update(self.answers())

    def answers(self) -> dict[str, str]:
        """What a worker is sent, so that it knows them too."""
        plain = {
            "judged": [one.to_dict() for one in self.judged.values()],
            **{name: getattr(self, name) for name in ("failures", "disabled", "broken")},
        }
        return {_WORKERS_GET: json.dumps(plain)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Measure what was collected."""
        if not session.config.getoption("collectonly"):
            self._measure([i.nodeid for i in session.items if asks_for(i, "ascend_perf")])

    # -- measuring ------------------------------------------------------------------------------------------------

    def _measure(self, nodeids: list[str] | None) -> None:
        """Time and judge these tests; None: those that the command line selects."""
        if self._measured or self.disabled:
            return
        self._measured = True
        if nodeids == []:
            return
        from pytest_ascend.perf.runner import ChildFailed, Deadline, OutOfTime, Runner
        from pytest_ascend.perf.worktree import BaseError

        time_s = self.session.settings.perf_time or TIME_S
        with tempfile.TemporaryDirectory(prefix="ascend-perf-", ignore_cleanup_errors=True) as folder:
            runner = Runner(Path(folder, "processes"), Deadline(time_s))
            try:
                if nodeids is None:
                    nodeids = list(runner.collected(self._ours(), child_arguments.selection(self._config)).collected)
                if nodeids and self.session.settings.has_other_side:
                    self._compare(runner, nodeids, Path(folder))
                elif nodeids:
                    self._time(runner, nodeids)
            except (ChildFailed, BaseError) as error:
                self.broken = str(error)
            except OutOfTime:
                self.broken = f"the {time_s:g} s for measuring were over; give --ascend-perf-time more"

    def _time(self, runner: Runner, nodeids: list[str]) -> None:
        """Time the tests in fresh processes and compare them with what is stored."""
        from pytest_ascend.perf.baseline import BaselineError
        from pytest_ascend.perf.gate import against_sessions, baseline_name
        from pytest_ascend.perf.runner import OutOfTime
        from pytest_ascend.perf.store import Store

        side, processes = self._ours(), list[Any]()
        wanted, pending, stopped = dict[str, int](), list(nodeids), ""
        usual = self.session.settings.perf or 5
        while pending:
            left = f", {runner.deadline} left at most"
            total = max(wanted.values(), default=usual)
            self._say(f"process {len(processes) + 1} of {total}: {_tests(pending)}{left}")
            try:
                process = runner.process(side, pending)
            except OutOfTime:
                stopped = f"the {runner.deadline.seconds:g} s for measuring were over"
                break
            processes.append(process)
            self.failures.update({n: why for n, why in process.failures.items() if n not in self.failures})
            for key, call in process.calls.items():
                wanted[key[0]] = max(wanted.get(key[0], usual), call.processes or 0)
            pending = [n for n in pending if n not in self.failures and wanted.get(n, 0) > len(processes)]
        store, where = Store(self.session.baselines()), self._baselines()
        for key, calls in _by_key(processes).items():
            if key[0] in self.failures:
                continue
            if why := _mixed(calls):
                self.failures[key[0]] = why
                continue
            try:
                baseline = store.load(calls[-1].environment, baseline_name(key))
            except BaselineError as error:
                self.failures[key[0]] = str(error)
                continue
            self.timed[key] = calls
            self.judged[key] = against_sessions(calls, processes, baseline, threshold=self.threshold, where=where)
        if stopped:
            few = f"{stopped} after {len(processes)} process{'es' * (len(processes) != 1)}"
            self.said.append(f"{few}: give --ascend-perf-time more")
            for nodeid in pending:
                if not any(key[0] == nodeid for key in self.judged):
                    self.failures.setdefault(nodeid, f"it was not timed: {few}")
        self._shift([one.shift for one in self.judged.values() if one.shift is not None], "the stored sessions")
        self._store(processes)

    def _compare(self, runner: Runner, nodeids: list[str], folder: Path) -> None:
        """Time the tests against those of the other side, in turns."""
        from pytest_ascend.perf import ab

        with contextlib.ExitStack() as stack:
            ours = self._ours()
            tree = stack.enter_context(self._tree(folder))
            base, missing = self._theirs(runner, ours, nodeids, tree)
            self.failures.update(missing)
            tests = [nodeid for nodeid in nodeids if nodeid not in missing]

            def checked(mine: Mapping[str, str], theirs: Mapping[str, str]) -> None:
                if self._base is not None and tree is not None:
                    from pytest_ascend.perf import worktree

                    self.said += worktree.imports(self._base, tree, mine, theirs)

            if tests:
                found = ab.compare(runner, base, ours, tests, threshold=self.threshold, say=self._say, checked=checked)
                ab.grown(runner, base, ours, found, self._say)
                self.judged.update(found.judged)
                self.failures.update(found.failures)
                if found.stopped:
                    self.said.append(f"{found.stopped}: what wasn't settled is inconclusive")
                self._shift([found.shift] if found.shift is not None else [], base.name)
                self._store(found.ours)

    def _ours(self) -> Side:
        from pytest_ascend.perf.runner import Side

        config = self._config
        name = "this tree" if self.session.settings.has_other_side else "this run"
        where, root = os.fspath(config.invocation_params.dir), os.fspath(config.rootpath)
        return Side(name, child_arguments.command(config), where, root, _environment(os.environ))

    @contextlib.contextmanager
    def _tree(self, folder: Path) -> Iterator[Path | None]:
        if self._base is None:
            yield None
            return
        from pytest_ascend.perf.worktree import checked_out, unchanged

        self._say(f"checking out {self._base}")
        if unchanged(self._base):
            self.said.append(f"tracked files are the same as in {self._base}")
        with checked_out(self._base, folder) as tree:
            yield tree

    def _theirs(
        self, runner: Runner, ours: Side, nodeids: Sequence[str], tree: Path | None
    ) -> tuple[Side, dict[str, str]]:
        """The other side, and why it can't run some of the tests."""
        from pytest_ascend.perf import worktree
        from pytest_ascend.perf.runner import Side

        python = self._python() if self.session.settings.ab_python is not None else sys.executable
        command = child_arguments.command(self._config, python)
        if self._base is None or tree is None:
            outside = {n: v for n, v in os.environ.items() if n not in ("PYTHONHOME", "VIRTUAL_ENV")}
            side = Side(python, command, ours.where, ours.root, _environment(outside))
            return side, {}
        base = self._base
        files = list(dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids))
        self.said += worktree.bring(base, tree, [Path(ours.root, file) for file in files])
        sources = runner.collected(ours, [ours.argument(file) for file in files]).sources
        environment = worktree.environment(base, tree, sources, sys.path)
        where, root = (worktree.mapped(one, base, tree) for one in (ours.where, ours.root))
        if not os.path.isdir(where):
            where = os.fspath(tree)
        side = Side(str(base), tuple(_moved(command, base, tree)), where, root, _environment(environment))
        here = [file for file in files if Path(root, file).exists()]
        there = set(runner.collected(side, [side.argument(file) for file in here]).collected) if here else set()
        return side, {
            n: f"{base} has no such test, so there is nothing to compare with" for n in nodeids if n not in there
        }

    def _python(self) -> str:
        """The other interpreter. Raises ``pytest.UsageError`` where there is none."""
        given = self.session.settings.ab_python or ""
        path = self.session.place(given)
        if not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise pytest.UsageError(
                f"--ascend-ab-python={given}: no program is there: give a path such as venv/bin/python"
            )
        return os.fspath(path)

    # -- storing --------------------------------------------------------------------------------------------------

    def _store(self, processes: Sequence[Process]) -> None:
        """Add what was timed to the baselines, where that was asked for."""
        settings = self.session.settings
        if not (settings.save or settings.update):
            return
        import dataclasses

        from pytest_ascend.perf.gate import baseline_name, session_of

        calls, kept = _by_key(processes), []
        for key, one in list(self.judged.items()):
            if one.result.verdict is PerfVerdict.REGRESSED and not settings.update:
                kept.append(key[0])
                continue
            session = session_of(calls[key], processes, self.session.identity())
            if session is not None and self.session.store(calls[key][-1].environment, baseline_name(key), session):
                self.judged[key] = dataclasses.replace(one, stored=True)
        stored = sum(one.stored for one in self.judged.values())
        if stored:
            what = "as the only session" if settings.update else "as one session more"
            self.said.append(f"stored {stored} timing{'s' * (stored != 1)} below {self._baselines()} {what}")
        if kept:
            self.said.append(f"not stored, for they are slower: {_tests(kept)}; --ascend-update accepts them")

    # -- answering ------------------------------------------------------------------------------------------------

    def conclude(self, item: pytest.Item, index: int, options: PerfOptions) -> PerfResult:
        """The result of a call, recorded. Raises ``PerfFailed`` for a regression, or where nothing could be timed."""
        __tracebackhide__ = True
        from pytest_ascend.perf.gate import Judged

        error = self.broken or self.failures.get(item.nodeid, "")
        judged = self.judged.get((item.nodeid, index))
        if judged is not None and not error:
            self._give_benchmark(item, index)
        else:
            if not error and not self.disabled:
                error = f"no process timed call {index + 1} of ascend_perf in this test: does it always make as many?"
            reason, limit = error or self.disabled, options.threshold or self.threshold
            nothing = PerfResult.unknown(reason)
            judged = Judged(item.nodeid, index, "", "", options.metric, nothing, None, None, "", limit)
        plain = {**judged.to_dict(), "error": error, "accept": self._accept(item)}
        record: Record = {
            "nodeid": plain.pop("nodeid"),
            "api": plain.pop("api"),
            "dtype": "",
            "verdict": plain.pop("verdict"),
            "kind": None,
            "reason": plain.pop("reason"),
            "criterion": "perf",
            "target": plain.pop("target"),
            "metrics": {},
            "checkpoints": {},
            "reproducer": self._again(item),
            "perf": {name: value for name, value in plain.items() if name != "needs_more"},
        }
        self.session.record_perf(item, record)
        if self.session.outcome(record) in ("failed", "error"):
            raise PerfFailed(record)
        return judged.result

    def _give_benchmark(self, item: pytest.Item, index: int) -> None:
        """Put the blocks of all processes where pytest-benchmark keeps its own, if it was asked to."""
        calls = [call for call in self.timed.get((item.nodeid, index), ()) if not call.unusable and not call.outcome]
        wall = [seconds for call in calls for seconds in call.metrics.get("wall", ())]
        if wall:
            extra = {"api": calls[0].api, "processes": len(calls)}
            each = int(calls[0].facts.get("calls_per_block") or 1)
            benchmark_storage.fill(item, index, wall, each, {"ascend_perf": extra})

    def _again(self, item: pytest.Item) -> str:
        """The command that times the test again."""
        settings = self.session.settings
        given = [f"{COMPARE}={settings.compare}"] if settings.compare is not None else []
        for name in ("ab", "ab_python", "fail", "baseline"):
            if self._config.getoption(f"ascend_{name}") is not None:
                given.append(f"--ascend-{name.replace('_', '-')}={getattr(settings, name)}")
        times = [] if settings.has_other_side else [PERF]
        return shlex.join(["pytest", self.session.argument(item), *times, *given])

    def _accept(self, item: pytest.Item) -> str | None:
        """The command that makes this run the new baseline; None where there is none to make."""
        return None if self.session.settings.has_other_side else f"{self._again(item)} --ascend-update"

    # -- the whole ------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> pytest.Config:
        return self.session.config

    def _receive(self, text: str | None) -> None:
        """In a worker: what the controller has measured."""
        from pytest_ascend.perf.gate import Judged

        if text is None:
            self.disabled = "pytest-xdist's controller sent no timings, and workers disturb each other's"
            return
        plain = json.loads(text)
        self.judged = {one.key: one for one in map(Judged.from_dict, plain["judged"])}
        self.failures, self.disabled, self.broken = plain["failures"], plain["disabled"], plain["broken"]

    def _shift(self, shifts: Sequence[float], than: str) -> None:
        """Say how much slower or faster the fixed workloads ran."""
        if not shifts:
            return
        shift = sorted(shifts)[len(shifts) // 2]
        out = "divided out" if than == "the stored sessions" else "not divided out, for the sides took turns"
        self.said.append(f"suite-wide shift: fixed workloads run at {1 + shift:.3f} times what {than} took ({out})")

    def _say(self, text: str) -> None:
        """A line while measuring goes on; where nobody watches, the first of its sort."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self._config.getoption("verbose") < 0:
            return
        sort = text.partition(" ")[0]  # process, pair, profiling, ...
        if sort not in self._told or watched(bool(reporter.isatty())):
            reporter.write_line(f"ascend: {text}")
        self._told.add(sort)

    def _baselines(self) -> str:
        """The folder of baselines for people."""
        path = os.fspath(self.session.baselines())
        shown = os.path.relpath(path, self._config.invocation_params.dir)
        return path if shown.startswith("..") else shown


def _by_key(processes: Sequence[Process]) -> dict[Key, list[Call]]:
    found: dict[Key, list[Call]] = {}
    for process in processes:
        for key, call in process.calls.items():
            found.setdefault(key, []).append(call)
    return found


def _mixed(calls: Sequence[Call]) -> str:
    """Why a call's processes can't be taken together, or ``""``."""
    first = calls[0].environment
    for call in calls[1:]:
        other = [name for name in {**first, **call.environment} if first.get(name) != call.environment.get(name)]
        if other:
            return f"its processes ran under different conditions ({', '.join(sorted(other))}), so they tell nothing"
    return ""


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """An environment without what tells a process that it is a worker, or which test it is in."""
    return {name: value for name, value in given.items() if not name.startswith(("PYTEST_XDIST_", "PYTEST_CURRENT"))}


def _moved(command: Sequence[str], base: Base, tree: Path) -> Iterator[str]:
    """The command with the working tree's paths as the base's; files that the base hasn't stay where they are."""
    pattern = re.compile(rf"(^|=)({re.escape(os.fspath(base.top))}(?:/[^=]*)?)$")
    program, *arguments = command
    yield program
    for argument in arguments:
        match = pattern.search(argument)
        moved = None if match is None else tree / Path(match[2]).relative_to(base.top)
        yield (
            argument
            if match is None or moved is None or not moved.exists()
            else argument[: match.start(2)] + str(moved)
        )


def _tests(nodeids: Sequence[str]) -> str:
    count = len(set(nodeids))
    return next(iter(nodeids)) if count == 1 else f"{count} tests"
