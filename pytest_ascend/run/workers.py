"""What pytest-xdist is told: how many workers ``-n auto`` means, and on which card each of them runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.run import devices
from pytest_ascend.run.crash import Crash, End
from pytest_ascend.settings import COMPARE

if TYPE_CHECKING:
    from pytest_ascend.session import AscendSession

__all__ = ["Pinning", "auto"]


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
