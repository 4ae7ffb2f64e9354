"""The pytest plugin's hooks; each delegates to the ``AscendSession`` in ``config.stash``."""

from __future__ import annotations

import copy
import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_ascend import settings
from pytest_ascend.fixtures import ascend_compare, ascend_device, ascend_distributed, ascend_perf
from pytest_ascend.session import KEY, AscendSession, hide_own_frames

__all__ = ["ascend_compare", "ascend_device", "ascend_distributed", "ascend_perf"]  # pytest finds the fixtures here


def pytest_addoption(parser: pytest.Parser) -> None:
    settings.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    if settings.give_back_paths(args):
        early_config.known_args_namespace = parser.parse_known_args(args, copy.copy(early_config.option))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    from pytest_ascend.run import workers

    return workers.auto(settings.resolved(config, "compare"))


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    if settings.resolved(config, "isolate") or settings.resolved(config, "resume"):
        from pytest_ascend.run import isolate

        isolate.take_over(config)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    for line in settings.marker_help(config):
        config.addinivalue_line("markers", line)
    ascend = config.stash[KEY] = AscendSession(config)
    config.pluginmanager.register(ascend, "ascend-session")  # for its pytest_runtest_logreport, which gets no config
    if ascend.settings.api is not None:
        from pytest_ascend import collect

        collect.only_the_catalogue(config)
    if (ascend.on or ascend.watches) and not ascend.is_worker and config.pluginmanager.hasplugin("xdist"):
        from pytest_ascend.run.workers import Pinning

        ascend.pinning = Pinning(ascend)
        config.pluginmanager.register(ascend.pinning, "ascend-pinning")
    if ascend.settings.record is not None:
        from pytest_ascend.recorded_tests import TestRecorder

        config.pluginmanager.register(TestRecorder.started(ascend), "ascend-recorder")
    if (path := config.getoption("ascend_perf_child")) is not None:
        from pytest_ascend.perf_child import PerfChild

        ascend.child = PerfChild.started(ascend, path)
    elif ascend.settings.times:
        from pytest_ascend.perf_run import PerfRun

        ascend.perf_results = PerfRun.started(ascend)
    if (path := config.getoption("ascend_sanitize_child")) is not None:
        from pytest_ascend.sanitize_run import SanitizedTest

        config.pluginmanager.register(SanitizedTest(ascend, path), "ascend-sanitized-test")
    elif ascend.sanitizes:
        from pytest_ascend.sanitize_run import SanitizedRun

        config.pluginmanager.register(SanitizedRun.started(ascend), "ascend-sanitizer")
    if ascend.settings.isolates and not ascend.is_worker and ascend.child is None:
        from pytest_ascend.run.isolate import IsolatedRun

        ascend.isolated = IsolatedRun.started(ascend)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    ascend = session.config.stash[KEY]
    if ascend.settings.html is not None:
        from pytest_ascend import published

        published.check(ascend)
    if (ascend.on or ascend.watches or ascend.sanitizes) and not ascend.late:
        ascend.target()  # a usage error now rather than one per test
    if ascend.on or ascend.watches or ascend.reads:
        from pytest_ascend.run.progress import RunProgress

        RunProgress.start(session)


def pytest_report_header(config: pytest.Config) -> str | None:
    ascend = config.stash[KEY]
    return ascend.header() if (ascend.on or ascend.watches or ascend.sanitizes) and not ascend.late else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".json":
        return None
    from pytest_ascend import collect

    return collect.collect_file(file_path, parent)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name == "dump_tensor_data" else None  # a dump's tensors: thousands of files


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Session) and (api := collector.config.stash[KEY].settings.api) is not None:
        from pytest_ascend import collect

        report.result = [*(report.result or ()), collect.ApiCollector.of(collector, api)]
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[KEY].choose(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[KEY].prepare(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    ascend = item.config.stash[KEY]
    if ascend.on or ascend.watches or ascend.sanitizes:
        return (yield from ascend.around(item))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    ascend = item.config.stash[KEY]
    if not ascend.watches:
        result = yield
        ascend.settle()
        return result
    from pytest_ascend import overflow_run

    result = yield from overflow_run.around(ascend, item)
    ascend.settle()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("ascend_leaks") is None:
        return None
    from pytest_ascend import leaks_run

    return leaks_run.call(pyfuncitem.config.stash[KEY], pyfuncitem)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    ascend = item.config.stash[KEY]
    if (
        ascend.on or ascend.watches or ascend.reads or ascend.child is not None or ascend.perf_results is not None
    ) and call.excinfo:
        hide_own_frames()
    report = yield
    ascend.complete(item, call, report)
    return report


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    return ("error", "E", "ERROR") if getattr(report, "ascend_error", False) else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[KEY].finish(session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = list(config.stash[KEY].summary())
    if len(lines) > 1:
        terminalreporter.write_sep("=", "ascend")
    for line in lines:
        terminalreporter.write_line(line.text, **({line.colour: True} if line.colour else {}))
    for command in config.stash[KEY].error_commands():
        terminalreporter.ensure_newline()
        terminalreporter.write_line(command)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    ascend = config.stash.get(KEY, None)
    if ascend is not None and ascend.is_worker:
        gc.freeze()  # the process ends next, and would look through torch's million objects: half a second of waiting
