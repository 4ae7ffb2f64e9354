"""Beside pytest's percentages: how fast a long run goes, and how long it will take."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pytest_ascend.progress import pace, watched

__all__ = ["RunProgress"]

EVERY_S = 20.0
"""A line appears after so many seconds, the next ones after twice as many each, but no more than ten minutes."""
MOST_S = 600.0


class RunProgress:
    """Writes ``ascend: 120 of 1000 tests, 24/s, 0:37 left`` now and then; a plugin for where somebody watches."""

    def __init__(self, session: pytest.Session, reporter: Any) -> None:
        self._session = session
        self._reporter = reporter
        self._done = 0
        self._began = 0.0
        self._wait = EVERY_S
        self._next = 0.0

    @classmethod
    def start(cls, session: pytest.Session) -> None:
        """Register one for this run, but not under ``-q``, where nobody watches, or in a worker of pytest-xdist."""
        config = session.config
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        quiet = config.getoption("verbose") < 0 or hasattr(config, "workerinput")
        if reporter is not None and not quiet and watched(bool(reporter.isatty())):
            config.pluginmanager.register(cls(session, reporter), "ascend-progress")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that ended, in this process or in a worker."""
        now = time.monotonic()
        if not self._began:
            self._began, self._next = now - report.duration, now + self._wait
        if report.when != "teardown":
            return
        self._done += 1
        whole = self._session.testscollected
        if now < self._next or self._done >= whole:
            return
        self._wait = min(2 * self._wait, MOST_S)
        self._next = now + self._wait
        self._reporter.ensure_newline()
        self._reporter.write_line(f"ascend: {pace(self._done, whole, now - self._began)}")
