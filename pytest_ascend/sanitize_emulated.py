"""``--ascend-sanitize`` on the emulated NPU: a marked test's memory watches itself, from its fixtures on.

Faults of fixtures are not the test's; what they allocate is watched all the same, because the test's kernels get it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.health.sanitizer import Answer, Finding
from pytest_ascend.judge.verdict import CheckResult, Verdict
from pytest_ascend.sanitize_run import MARKER, details, marked, rendered, result_of, tools_of
from pytest_ascend.session import AscendSession, ComparisonFailed, Record

if TYPE_CHECKING:
    from pytest_ascend.targets.base import MemoryFault
    from pytest_ascend.targets.emulator.sanitizer import Sanitizer

__all__ = ["EmulatedRun", "finding_of"]

_HERE = ("memcheck", "initcheck")  # the tools that the emulated device is
_UNDEFINED = ("empty", "new_empty", "resize")  # functions whose results nobody has written, by contract


class MemoryFaulted(ComparisonFailed):
    """Memory faults that fail their test; its text says where and whose."""

    __module__ = "builtins"
    bare = True

    def __init__(self, result: CheckResult, record: Record) -> None:
        super().__init__(result, record)
        self.args = (rendered(record),)


class EmulatedRun:
    """Watches the memory of the emulated NPU around marked tests; a plugin that is there when the option is given."""

    def __init__(self, session: AscendSession) -> None:
        self._session = session
        self._asked = session.settings.sanitize or ""
        self._sanitizer: Sanitizer | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watch from the fixtures on to their end."""
        if not marked(item):
            return (yield)
        from pytest_ascend.targets import emulator

        with emulator.sanitizing(self._sanitizer) as self._sanitizer:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Judge what the test itself did."""
        __tracebackhide__ = True
        if not marked(item) or self._sanitizer is None:
            return (yield)
        tools, sanitizer = tools_of(item, self._asked), self._sanitizer
        api = getattr(getattr(item, "pending", None), "api", "").rpartition(".")[2]
        sanitizer.uninitialised = "initcheck" in tools and not api.startswith(_UNDEFINED)
        sanitizer.begin()
        try:
            outcome = yield
        except (pytest.skip.Exception, pytest.exit.Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            self._conclude(item, sanitizer, tools)  # the test's own error stays; a fault may be why
            raise
        concluded = self._conclude(item, sanitizer, tools)
        if concluded is not None and self._session.outcome(concluded[1]) in ("failed", "error"):
            raise MemoryFaulted(*concluded)
        return outcome

    def _conclude(
        self, item: pytest.Item, sanitizer: Sanitizer, tools: tuple[str, ...]
    ) -> tuple[CheckResult, Record] | None:
        """The recorded result; None for a test that had nothing to look at and didn't ask for it by name."""
        sanitizer.finish()
        findings = [finding_of(fault) for fault in sanitizer.faults]
        answer = _answer(findings, sanitizer, tools)
        asked = next(item.iter_markers(MARKER), None) is not None
        if answer.verdict is Verdict.INFRA and not sanitizer.looked and not asked:
            return None
        result = result_of(self._session, item, answer)
        record = self._session.record(item, result, None)
        record.update(details(findings, tools))
        return result, record


def finding_of(fault: MemoryFault) -> Finding:
    """A fault that the emulated device found, in msSanitizer's words."""
    detail = fault.detail + (f" ({fault.count} times)" if fault.count > 1 else "")
    return Finding(
        fault.kind,
        op=fault.op,
        address=fault.address,
        size=fault.size,
        direction=fault.direction,
        memory="GM",
        region=fault.region,
        frames=fault.frames,
        allocated=fault.allocated,
        detail=detail,
    )


def _answer(findings: list[Finding], sanitizer: Sanitizer, tools: Iterable[str]) -> Answer:
    idle = [tool for tool in tools if tool not in _HERE]
    notes = [f"{', '.join(idle)}: kernels of the emulated NPU run one after the other, so there is nothing to check"]
    notes = notes if idle else []
    notes += [f"{sanitizer.more} faults more aren't listed"] if sanitizer.more else []
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        return Answer(
            Verdict.MEMORY_FAULT, f"{findings[0].line()}: {findings[0].detail}{more}".rstrip(": "), tuple(notes)
        )
    if not [tool for tool in tools if tool in _HERE]:
        return Answer(Verdict.INFRA, f"nothing was checked: {notes[0]}")
    if not sanitizer.looked:
        return Answer(Verdict.INFRA, "nothing was checked: the test ran no kernel and took no memory on the device")
    return Answer(Verdict.PASS, "no memory fault", tuple(notes))
