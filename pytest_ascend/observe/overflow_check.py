"""Overflows in a check: a run on the target is watched, and where it overflowed a run on the CPU is as well.

What the CPU overflows in too, at the same place, is the program's doing or the dtype's, and no fault of the target.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from pytest_ascend.cases.case import Case
from pytest_ascend.judge.verdict import CheckResult, Kind, Verdict
from pytest_ascend.observe.capture import RunFailed, Setting, run
from pytest_ascend.observe.overflow_findings import Finding
from pytest_ascend.observe.overflow_watch import OverflowWatch
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["with_overflows"]

#: Failures that an overflow explains.
_EXPLAINED = (Kind.non_finite, Kind.local, Kind.spread, Kind.bias, Kind.exact, Kind.gradient, Kind.overflow)


def with_overflows(
    result: CheckResult, case: Case, target: Target, setting: Setting, fn: Callable[..., Any] | None
) -> CheckResult:
    """A result with what overflowed: a FAIL where the CPU doesn't overflow there, a note where it does.

    The target runs once more for it. The runs that were judged must not be watched, because torch runs compiled code
    eagerly while somebody watches.

    Args:
        result: of the check without.
        case: what was checked.
        target: where.
        setting: what all runs of the check share.
        fn: what stands in for the case's callable on the CPU, or None.
    """
    device = target.device().type
    watch = _watched(OverflowWatch(None, None if device == "cpu" else device), case, target, setting, None)
    findings = watch.findings
    theirs = _watched(OverflowWatch(None), case, CpuTarget(), setting, fn).findings if findings else ()
    own = [finding for finding in findings if not _is_among(finding, theirs)]
    said = [f"overflow: {note}" for note in watch.notes]
    for finding in findings:
        where = "the target only" if finding in own else "the CPU as well, so no fault of the target"
        said.append(f"overflow on {where}: {finding.line()}; {finding.issue_hint}")
    shown = tuple({**finding.to_dict(), "also_on_cpu": finding not in own} for finding in findings)
    result = dataclasses.replace(result, notes=(*result.notes, *said), overflows=shown)
    guilty = next((finding for finding in own if finding.serious), None)
    outcome = result.verdict.outcome
    if guilty is None or outcome not in ("passed", "noted", "failed"):
        return result
    if outcome == "failed" and result.kind not in _EXPLAINED:
        return result
    reason = f"{guilty.line()}; {guilty.issue_hint}"
    if outcome == "failed" and result.reason:
        reason += f"; what came of it: {result.reason}"
    return dataclasses.replace(result, verdict=Verdict.FAIL, kind=Kind.overflow, reason=reason)


def _watched(
    watch: OverflowWatch, case: Case, target: Target, setting: Setting, fn: Callable[..., Any] | None
) -> OverflowWatch:
    """The watch after a run; where that is refused, with what was seen until then."""
    with contextlib.suppress(RunFailed), watch.standing():
        run(case, target, setting, fn=fn, mode=watch.while_on())
    return watch


def _is_among(finding: Finding, others: tuple[Finding, ...]) -> bool:
    """Whether another one is the same thing: at the same place in the same pass, or the same operator in its layer.

    A device has operators of its own, so that the names may differ at one place; and an operator of torch may be a
    single kernel on one side and several on the other.
    """
    for other in others:
        if finding.overflow_type != other.overflow_type or finding.place.backward != other.place.backward:
            continue
        here = finding.place.module, finding.place.file, finding.place.line
        there = other.place.module, other.place.file, other.place.line
        if here == there or (finding.op_type, finding.module) == (other.op_type, other.module):
            return True
    return False
