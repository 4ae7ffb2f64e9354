"""Overflows in a check: the target's run is watched, and where it overflowed the CPU's run is as well.

What the CPU overflows in too, at the same place, is the program's doing or the dtype's, and no fault of the target.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from pytest_ascend.cases.case import Case
from pytest_ascend.judge.verdict import CheckResult, Kind, Verdict
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, run
from pytest_ascend.observe.overflow_findings import Finding
from pytest_ascend.observe.overflow_watch import OverflowWatch
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["WatchedRun"]

#: Failures that an overflow explains.
_EXPLAINED = (Kind.non_finite, Kind.local, Kind.spread, Kind.bias, Kind.exact, Kind.gradient, Kind.overflow)


class WatchedRun:
    """Runs a case on the target once, watched, and says what that means for the result.

    Args:
        case: what runs.
        target: where.
        setting: what all runs of the check share.
        fn: what stands in for the case's callable on the CPU, or None.
    """

    def __init__(self, case: Case, target: Target, setting: Setting, fn: Callable[..., Any] | None) -> None:
        self._case, self._target, self._setting, self._fn = case, target, setting, fn
        self._watch: OverflowWatch | None = None

    def run(self, *, mode: contextlib.AbstractContextManager[Any] | None = None, **options: Any) -> Capture:
        """``capture.run`` on the target, under this mode and watched. Raises what that raises."""
        device = self._target.device().type
        watch = OverflowWatch(None, None if device == "cpu" else device)
        with watch.standing():
            actual = run(self._case, self._target, self._setting, mode=watch.while_on(mode), **options)
        self._watch = watch
        if not watch.on_device:  # measuring what it was given is no work of the callable's
            return run(self._case, self._target, self._setting, **options)
        return actual

    def judged(self, result: CheckResult) -> CheckResult:
        """The result with what overflowed: a FAIL where the CPU doesn't overflow there, a note where it does."""
        watch = self._watch
        if watch is None:
            return result
        findings = watch.findings
        theirs = self._on_cpu() if findings else ()
        own = [finding for finding in findings if not _is_among(finding, theirs)]
        said = [f"overflow: {note}" for note in watch.notes]
        for finding in findings:
            where = "the target only" if finding in own else "the CPU as well, so no fault of the target"
            said.append(f"overflow on {where}: {finding.line()}; {finding.issue_hint}")
        shown = tuple({**finding.to_dict(), "also_on_cpu": finding not in own} for finding in findings)
        result = dataclasses.replace(result, notes=(*result.notes, *said), overflows=shown)
        guilty = next((finding for finding in own if finding.serious), None)
        if guilty is None:
            return result
        outcome = result.verdict.outcome
        if outcome == "failed" and result.kind not in _EXPLAINED:
            return result
        if outcome not in ("passed", "noted", "failed"):
            return result
        reason = f"{guilty.line()}; {guilty.issue_hint}"
        if outcome == "failed" and result.reason:
            reason += f"; what came of it: {result.reason}"
        return dataclasses.replace(result, verdict=Verdict.FAIL, kind=Kind.overflow, reason=reason)

    def _on_cpu(self) -> tuple[Finding, ...]:
        """What overflows when the benchmark runs; nothing where the CPU refuses it."""
        watch = OverflowWatch(None)
        with contextlib.suppress(RunFailed), watch.standing():
            run(self._case, CpuTarget(), self._setting, fn=self._fn, mode=watch.while_on())
        return watch.findings


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
