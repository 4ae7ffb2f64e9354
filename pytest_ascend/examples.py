"""Many inputs, one result: what ``ascend_compare`` is in a test whose inputs Hypothesis draws."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_ascend.session import ComparisonFailed

if TYPE_CHECKING:
    from pytest_ascend.cases.case import Case
    from pytest_ascend.comparison import Comparison
    from pytest_ascend.judge.verdict import CheckResult
    from pytest_ascend.options import CheckOptions

__all__ = ["Many"]


class Many:
    """Collects the results of a test's inputs and records one.

    The first failure is judged in full. After it, while Hypothesis looks for smaller inputs, a case is only asked
    whether it fails still, which is many times faster; what it ends with is judged in full again.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.each = comparison.one_of(self)
        self._counts: Counter[str] = Counter()
        self._shown: CheckResult | None = None  # the pass to record: one with a note before one without
        self._passed_over: CheckResult | None = None
        self._first: tuple[Case, CheckOptions, CheckResult] | None = None
        self._last: tuple[Case, CheckOptions] | None = None
        self._quickly = False

    def run(self, test: Callable[[], None]) -> None:
        """Run the test with all its inputs and conclude. Raises what the test raises."""
        __tracebackhide__ = True
        from hypothesis.errors import Unsatisfiable

        try:
            test()
        except ComparisonFailed as failed:
            self._settle(failed)
            raise
        except Unsatisfiable:
            if self._passed_over is None:
                raise
        shown = self._shown or self._passed_over
        if shown is not None:
            self._comparison.conclude(self._noted(shown))

    def judge(self, case: Case, options: CheckOptions) -> CheckResult:
        """The result of one input; after a failure, of those that don't fail, no more than that."""
        __tracebackhide__ = True
        from pytest_ascend.check import check_case, still_fails
        from pytest_ascend.judge.verdict import CheckResult, Verdict

        if self._quickly and self._first is not None:
            verdict = Verdict.FAIL if still_fails(case, options) else Verdict.PASS
            result = CheckResult(verdict, reason="among smaller inputs", api=case.api, dtype=case.dtype)
        else:
            result = check_case(case, options)
        if result.verdict.outcome in ("failed", "error") and result.verdict is not Verdict.VACUOUS:
            self._last = case, options
            if self._first is None:
                self._first = case, options, result
                self._quickly = result.verdict is Verdict.FAIL and still_fails(case, options)
        return result

    def conclude(self, result: CheckResult, outcome: str) -> CheckResult:
        """Let one input pass, be passed over or fail the test; nothing is recorded yet."""
        __tracebackhide__ = True
        from hypothesis import reject

        from pytest_ascend.judge.verdict import Verdict

        if outcome == "skipped" or result.verdict is Verdict.VACUOUS:
            self._passed_over = self._passed_over or result
            if self._first is None:
                self._counts[result.verdict.value] += 1
            reject()
        if outcome in ("failed", "error"):
            raise _kind_of(result.verdict.value)(result, {})
        if self._first is None:
            self._counts[result.verdict.value] += 1
            if self._shown is None or (self._shown.verdict is Verdict.PASS):
                self._shown = result
        return result

    def _settle(self, failed: ComparisonFailed) -> None:
        """Judge the smallest inputs in full and record them; the first ones where those turn out to be excused."""
        from pytest_ascend.check import check_case

        assert self._first is not None
        assert self._last is not None
        case, options, result = self._first
        smaller = check_case(*self._last)
        if smaller.verdict.outcome == result.verdict.outcome:
            case, options, result = *self._last, smaller
        result = self._comparison.complete(case, options, self._noted(result))
        record = self._comparison.record(result)
        failed.result, failed.record = result, record
        failed.args = ("\n".join(result.render()),)

    def _noted(self, result: CheckResult) -> CheckResult:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self._counts.items())
        before = "before it, " if self._first is not None else ""
        note = f"inputs drawn by Hypothesis: {before}{counts or 'none passed'}"
        return dataclasses.replace(result, notes=(*result.notes, note))


_KINDS: dict[str, type[ComparisonFailed]] = {}


def _kind_of(verdict: str) -> type[ComparisonFailed]:
    """An exception type for each verdict: Hypothesis tells failures by it, and doesn't shrink one into another."""
    if verdict not in _KINDS:
        _KINDS[verdict] = type("ComparisonFailed", (ComparisonFailed,), {"__module__": "builtins"})
    return _KINDS[verdict]
