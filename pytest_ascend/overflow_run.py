"""``--ascend-overflow`` around tests: what a test runs on the target is watched, and an overflow fails it.

Tests that use ``ascend_compare`` are watched in what they compare, where the CPU's run tells what is no fault of the
target (``observe/overflow_check.py``). Timings are not watched: that would be part of the time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.judge.verdict import CheckResult, Kind, Verdict
from pytest_ascend.session import AscendSession, ComparisonFailed, Record, asks_for

if TYPE_CHECKING:
    from pytest_ascend.observe.overflow_watch import OverflowWatch

CRITERION = "overflow"
"""What stands for a criterion in the results of a test that was watched."""


class Overflowed(ComparisonFailed):
    """An overflow that fails its test; its text says who did it, what to change and where it went."""

    __module__ = "builtins"
    bare = True

    def __init__(self, result: CheckResult, record: Record, watch: OverflowWatch) -> None:
        super().__init__(result, record)
        self.args = ("\n".join(watch.render()),)


def around(session: AscendSession, item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test's call, record what came of it, and fail the test where results are wrong by an overflow."""
    __tracebackhide__ = True
    if not isinstance(item, pytest.Function) or asks_for(item, "ascend_compare") or asks_for(item, "ascend_perf"):
        return (yield)
    from pytest_ascend.observe.overflow_watch import OverflowWatch

    target = session.target()
    watch = OverflowWatch(None, None if target.name == "cpu" else target.device().type)
    try:
        with watch:
            outcome = yield
    except (pytest.skip.Exception, pytest.exit.Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        _record(session, item, watch)  # the test's own error stays; what overflowed may be why
        raise
    concluded = _record(session, item, watch)
    if concluded is not None and session.outcome(concluded[1]) == "failed":
        raise Overflowed(*concluded, watch)
    return outcome


def _record(session: AscendSession, item: pytest.Item, watch: OverflowWatch) -> tuple[CheckResult, Record] | None:
    """The recorded result of a test; None for one that ran nothing on the target."""
    findings, notes = watch.findings, watch.notes
    if not watch.on_device and not findings and not watch.compiled:
        return None
    target = session.target()
    verdict, kind = Verdict.PASS, None
    reason = f"no overflow among {watch.operators} operators"
    if findings:
        first = next((finding for finding in findings if finding.serious), None)
        verdict, kind = (Verdict.NOT_COMPARABLE, None) if first is None else (Verdict.FAIL, Kind.overflow)
        shown = first or findings[0]
        reason = f"{shown.line()}; {shown.issue_hint}"
    elif watch.compiled:
        verdict, reason = Verdict.NOT_EXERCISED if not watch.operators else Verdict.NOT_COMPARABLE, notes[0]
    result = CheckResult(
        verdict,
        kind,
        reason,
        api=getattr(item, "originalname", None) or item.name,
        dtype=findings[0].input_dtype if findings else "",
        criterion=CRITERION,
        target=target.title(initialised=True),
        notes=notes,
        environment=target.describe(initialised=True),
        reproducer=session.reproduce(item),
        overflows=tuple(finding.to_dict() for finding in findings),
    )
    return result, session.record(item, result, None)
