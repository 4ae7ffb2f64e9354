"""What pytest-xdist is told: how many workers ``-n auto`` means, and on which card each of them runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend import targets
from pytest_ascend.run import devices
from pytest_ascend.run.crash import Crash, End
from pytest_ascend.settings import COMPARE

if TYPE_CHECKING:
    from pytest_ascend.session import AscendSession

__all__ = ["HEADER", "Pinning", "auto"]

HEADER = "ascend_header"
"""What a report of a worker has the header's line under."""


def auto(spec: str | None) -> int | None:
    """How many workers ``-n auto`` means for a target; None where that isn't ours to say.

    Args:
        spec: the target's; None: nothing is compared.
    """
    return None if spec is None else devices.count(spec)


class Pinning:
    """A plugin of the controller: gives each of pytest-xdist's workers its card before its interpreter imports a thing.

    A worker that replaces one that crashed gets the same card, because its specification is the same.
    """

    def __init__(self, session: AscendSession) -> None:
        self._session = session
        self.plan: devices.Plan | None = None
        self._said = False

    @property
    def late(self) -> bool:
        """Whether a worker says what the target is, because it is there for certain.

        To look it up here too would load torch once more, while the workers do: seconds that everybody would wait for.
        """
        config, spec = self._session.config, self._session.settings.compare or "auto"
        starts = config.getoption("dist", "no") != "no" and bool(config.getoption("tx", None))
        return starts and devices.kind_of(spec) == "emulated" and targets.emulator_is_there()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say what the target is, as the first worker that ends a test has it."""
        if self._said or (header := getattr(report, HEADER, None)) is None:
            return
        self._said = True
        reporter: Any = self._session.config.pluginmanager.get_plugin("terminalreporter")
        if self.late and reporter is not None and self._session.config.getoption("verbose") >= 0:
            reporter.write_line(header)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Give a test that ended its worker a result."""
        ending = End("ended its worker; --ascend-isolate says how, and which operator did it")
        again = shlex.join(["pytest", crashitem, f"{COMPARE}={self._session.spec()}", "--ascend-isolate"])
        record = Crash(crashitem, ending).record("", "", target=self._session.target().title(), reproducer=again)
        record["outcome"] = self._session.outcome(record)
        vars(report)["ascend_results"] = [record]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Put each worker's card, and its share of threads and memory, into its environment."""
        here = [spec for spec in specs if getattr(spec, "popen", False)]  # another machine has cards of its own
        if not here:
            return
        self.plan = devices.plan(self._session.settings.compare or "auto", len(here))
        for number, spec in enumerate(here):
            spec.env = {**devices.environment(self.plan.place(number)), **(getattr(spec, "env", None) or {})}
        reporter: Any = self._session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._session.config.getoption("verbose") >= 0:
            reporter.write_line(f"ascend: {devices.describe(self.plan)}")
