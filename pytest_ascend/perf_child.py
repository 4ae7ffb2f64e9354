"""A process that only times: it runs the selected tests, times what they hand to ``ascend_perf`` and writes a file.

Nothing is judged here. Each process is one replicate; whoever started several of them judges.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend import benchmark_storage
from pytest_ascend.session import asks_for
from pytest_ascend.settings import PERF_CHILD

if TYPE_CHECKING:
    from pytest_ascend.perf.measure import Measurement, Timer
    from pytest_ascend.perf.options import PerfOptions
    from pytest_ascend.perf.result import PerfResult
    from pytest_ascend.session import AscendSession
    from pytest_ascend.targets.base import Target

__all__ = ["SCHEMA", "PerfChild"]

SCHEMA = 1
"""Version of the file."""

_WRITTEN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class PerfChild:
    """Times the calls of one process and writes them down when it ends; a plugin, for the hooks it needs.

    With ``--ascend-perf-profile`` it profiles instead and times nothing: the file has ``operators`` and no metrics.

    The file, strict JSON, is written whole or, when the run is broken off, not at all::

        {"schema": 1, "root": the root folder, "target": its spec, "environment": fields of the fingerprint,
         "calls": [{"nodeid", "index": of the test's calls from 0, "api", "target", "environment",
                    "metrics": {"wall": [seconds per call, one per block], "device": [...]}, "metric": which to judge,
                    "clock", "first_call_s", "warmup_calls", "calls_per_block", "steady", "overhead", "copies",
                    "kernels_per_call", "peak_bytes", "peak_source", "threads", "notes",
                    "threshold" and "processes": the test's own, or null, "operators": OperatorTable.to_dict(),
                    "unusable": why these timings say nothing, or "", "outcome": what the workload raised, or ""}],
         "sentinels": {name: seconds}, "tests": {nodeid: "passed", "failed: ..." or "skipped: ..."}, "deselected": n,
         "collected": [nodeid], "sources": {imported module: its file}}
    """

    def __init__(self, session: AscendSession, path: str) -> None:
        self.session = session
        self.path = os.path.join(session.config.invocation_params.dir, os.path.expanduser(path))
        self.calls: list[dict[str, Any]] = []
        self.tests: dict[str, str] = {}
        self.deselected = 0
        self.collected: list[str] = []
        self.profiles = bool(session.config.getoption("ascend_perf_profile"))
        self._targets: dict[str, Target] = {}
        self._sentinels: list[dict[str, list[float]]] = []
        self._timer: Timer | None = None

    @classmethod
    def started(cls, session: AscendSession, path: str) -> PerfChild:
        """The one of this process, its hooks registered.

        Raises ``pytest.UsageError`` under pytest-xdist, whose workers would disturb each other.
        """
        config = session.config
        if session.is_worker or config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no":
            raise pytest.UsageError(f"{PERF_CHILD}: workers of pytest-xdist disturb each other's timings: give -n0")
        child = cls(session, path)
        config.pluginmanager.register(child, "ascend-perf-child")
        return child

    # -- timing ---------------------------------------------------------------------------------------------------

    def time(
        self,
        item: pytest.Item,
        index: int,
        options: PerfOptions,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> PerfResult:
        """Time a call and keep what came of it. Nothing is judged: the result is inconclusive.

        Raises what the workload raises.
        """
        __tracebackhide__ = True
        from pytest_ascend.cases.case import Case
        from pytest_ascend.perf.measure import Refused, measure
        from pytest_ascend.targets import TargetUnavailable

        call: dict[str, Any] = {"nodeid": item.nodeid, "index": index, "api": "", "target": options.target}
        call.update(metrics={}, metric=options.metric, threads=options.threads, kernels_per_call=None, peak_bytes=None)
        call.update(threshold=options.threshold, processes=options.processes, unusable="", outcome="")
        self.calls.append(call)
        try:
            case = Case(fn, args, kwargs)
            call["api"] = case.api
            target = self._target(options.target)
            call["target"], call["environment"] = target.spec, self._environment(target, options)
            if self.profiles:
                from pytest_ascend.perf.profiled import profiled

                call["operators"] = profiled(case, target, options).to_dict()
                return _nothing_judged("profiled in this process, which times and judges nothing")
            if not self._sentinels:
                self._watch(target)
            measured = measure(case, target, options, self._clock())
        except (Refused, TargetUnavailable) as refused:
            call["unusable"] = str(refused)
        except BaseException as error:  # skip() and fail() among them
            call["outcome"] = f"{type(error).__name__}: {error}"[:2000]
            raise
        else:
            call.update(measured.to_dict())
            self._store(item, index, measured)
        return _nothing_judged(call["unusable"] or "timed in this process, which judges nothing")

    def _target(self, spec: str) -> Target:
        if spec not in self._targets:
            from pytest_ascend.targets import resolve

            self._targets[spec] = resolve(spec)
        return self._targets[spec]

    def _clock(self) -> Timer:
        if self._timer is None:
            from pytest_ascend.perf.measure import Timer

            self._timer = Timer.of(benchmark_storage.clock(self.session.config))
        return self._timer

    def _environment(self, target: Target, options: PerfOptions) -> dict[str, Any]:
        from pytest_ascend.perf.fingerprint import environment

        config = {}
        clock = self._clock().now
        if clock.__name__ != "perf_counter":
            config["timer"] = f"{clock.__module__}.{clock.__name__}"
        return environment(target.describe(initialised=True), threads=options.threads, config=config)

    def _watch(self, target: Target) -> None:
        from pytest_ascend.perf.sentinels import sentinels

        self._sentinels.append(sentinels(target, self._clock()))

    def _store(self, item: pytest.Item, index: int, measured: Measurement) -> None:
        """Give pytest-benchmark what it keeps."""
        if measured.unusable:
            return
        device = measured.metrics.get("device")
        extra = {
            "api": measured.api,
            "first_call_s": measured.first_call_s,
            "kernels_per_call": measured.kernels_per_call,
            "peak_bytes": measured.peak_bytes,
            "device_median_s": statistics.median(device) if device else None,
            "threads": measured.threads,
        }
        benchmark_storage.fill(item, index, measured.metrics["wall"], measured.calls_per_block, {"ascend_perf": extra})

    # -- hooks ----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the tests that time nothing."""
        others = [item for item in items if not asks_for(item, "ascend_perf")]
        if others:
            self.deselected += len(others)
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if asks_for(item, "ascend_perf")]
        self.collected = [item.nodeid for item in items]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how a test ended, so that missing timings have a reason."""
        if report.when != "call" and report.passed:
            return
        said = "" if report.passed else f": {_short(report)}"
        if not self.tests.get(report.nodeid, "passed").startswith("failed"):
            self.tests[report.nodeid] = f"{report.outcome}{said}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file, if the run came to its end."""
        self._hush_hypothesis()
        if exitstatus not in _WRITTEN:
            return
        try:
            self._write()
        except OSError as error:
            self.session.write_error = f"{PERF_CHILD}: can't write {self.path}: {error.strerror or error}"
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the medians, for who runs it by hand, and what went wrong."""
        from pytest_ascend.report import timed

        terminalreporter.write_sep("=", "ascend timings")
        for line in timed.summary(self.calls, self.path):
            terminalreporter.write_line(line.text, **({line.colour: True} if line.colour else {}))
        if self.session.write_error is not None:
            terminalreporter.write_line(self.session.write_error, red=True)

    def _hush_hypothesis(self) -> None:
        """Let its plugin go where no test loaded it: it would load it, for half a second, to say nothing."""
        manager = self.session.config.pluginmanager
        plugin = manager.get_plugin("hypothesispytest")
        if plugin is not None and "hypothesis" not in sys.modules:
            manager.unregister(plugin)

    def _write(self) -> None:
        from pytest_ascend.files import write_text

        timed = [call for call in self.calls if call["metrics"]]
        seconds: dict[str, float] = {}
        if timed:
            from pytest_ascend.perf.quiet import Refused
            from pytest_ascend.perf.sentinels import medians

            target = next(one for one in self._targets.values() if one.spec == timed[0]["target"])
            with contextlib.suppress(Refused):  # a test left a profiler on; the first visit has to do
                self._watch(target)  # what changed in between counts
            seconds = medians(*self._sentinels)
        first = next((call for call in self.calls if "environment" in call), {})
        document = {
            "schema": SCHEMA,
            "root": os.fspath(self.session.config.rootpath),
            "target": first.get("target"),
            "environment": first.get("environment", {}),
            "calls": self.calls,
            "sentinels": seconds,
            "tests": self.tests,
            "deselected": self.deselected,
            "collected": self.collected,
            "sources": _sources(),
        }
        write_text(self.path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _nothing_judged(reason: str) -> PerfResult:
    from pytest_ascend.perf.result import PerfResult

    return PerfResult.unknown(reason)


def _sources() -> dict[str, str]:
    """Where the imported packages and modules came from, and below a package without a file those in it.

    What the emulator puts in the place of torch_npu lies within this package, and nobody finds it on ``sys.path``.
    """
    found: dict[str, str] = {}
    ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
    for name, module in list(sys.modules.items()):
        above, dot, _ = name.rpartition(".")
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name in sys.stdlib_module_names or (dot and not _has_no_file(above)):
            continue
        place = os.path.abspath(file)
        if name.partition(".")[0] == "pytest_ascend" or not place.startswith(ours):
            found[name] = place[:4096]
    return found


def _has_no_file(name: str) -> bool:
    """Whether a package and all above it are folders alone, which other projects may add to."""
    parts = name.split(".")
    above = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return all(getattr(sys.modules.get(one), "__dict__", {}).get("__file__") is None for one in above)


def _short(report: pytest.TestReport) -> str:
    """A report's last line, which says what happened."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else text
    return " ".join(text.split())[:500]
