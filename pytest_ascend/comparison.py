"""The object behind the ``ascend_compare`` fixture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.marks import merge
from pytest_ascend.options import CheckOptions
from pytest_ascend.session import AscendSession, ComparisonFailed, Record, seed_of

if TYPE_CHECKING:
    import torch

    from pytest_ascend.cases.case import Case
    from pytest_ascend.examples import Many
    from pytest_ascend.judge.verdict import CheckResult


class Comparison:
    """Run a callable on the target and on the CPU, compare, record the result and fail the test on a mismatch.

    ``ascend_compare(fn_or_module, *args, **kwargs)`` returns the ``CheckResult`` when its verdict passes.
    """

    def __init__(
        self,
        session: AscendSession,
        item: pytest.Item,
        options: Mapping[str, Any],
        starts: tuple[torch.Tensor | None, ...] = (),
        many: Many | None = None,
    ) -> None:
        self._session = session
        self._item = item
        self._options = dict(options)
        self._starts = starts
        self._many = many

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CheckResult:
        """Check and assert: a failing verdict raises, UNSUPPORTED skips the test, a noted verdict passes.

        Raises ``ComparisonFailed`` (an ``AssertionError``) whose text is the result.
        """
        __tracebackhide__ = True
        return self.conclude(self.judge(self._case(fn, args, kwargs)))

    def __repr__(self) -> str:
        return f"<ascend_compare on {self._options['target']}>"

    def check(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CheckResult:
        """Check and record, whatever the verdict: for tests that assert on the result themselves."""
        __tracebackhide__ = True
        result = self._judged(self._case(fn, args, kwargs))  # the callable may have an argument called `options`
        if self._many is None:
            self.record(result)
        return result

    def judge(self, case: Case) -> CheckResult:
        """The result of a case that was put together before, with a file that fails alone; nothing is recorded."""
        __tracebackhide__ = True
        if self._many is not None:
            return self._many.judge(case, self._check_options())
        return self.complete(case, self._check_options(), self._judged(case))

    def complete(self, case: Case, options: CheckOptions, result: CheckResult) -> CheckResult:
        """A result with what repeats it: the command, and for a failure a file that fails alone."""
        if result.reproducer is None:
            result = dataclasses.replace(result, reproducer=self._session.reproduce(self._item))
        if result.verdict.outcome == "failed":
            result = self._session.with_script(self._item, case, options, result)
        return result

    @property
    def options(self) -> CheckOptions:
        """How it compares."""
        return self._check_options()

    def record(self, result: CheckResult) -> Record:
        """Record a result, whatever its verdict."""
        options = self._check_options()
        return self._session.record(self._item, result, options.seed, options.target)

    def many(self) -> Many:
        """What collects the results of many inputs."""
        from pytest_ascend.examples import Many

        return Many(self)

    def one_of(self, many: Many) -> Comparison:
        """The same for one of many inputs."""
        return Comparison(self._session, self._item, self._options, self._starts, many)

    def _judged(self, case: Case) -> CheckResult:
        __tracebackhide__ = True
        from pytest_ascend.check import check_case
        from pytest_ascend.observe import trail

        trail.note(api=case.api, dtype=case.dtype)
        result = check_case(case, self._check_options())
        if result.reproducer is None:
            result = dataclasses.replace(result, reproducer=self._session.reproduce(self._item))
        return self._session.out_of_memory(result)

    def conclude(self, result: CheckResult) -> CheckResult:
        """Record a result and let it pass, skip or fail the test."""
        __tracebackhide__ = True
        if self._many is not None:
            outcome = self._session.outcome({"verdict": result.verdict})
            return self._many.conclude(result, outcome)
        record = self.record(result)
        outcome = self._session.outcome(record)
        if outcome == "skipped":
            pytest.skip(f"{result.verdict}: {result.reason}")
        if outcome in ("failed", "error"):
            raise ComparisonFailed(result, record)
        return result

    def using(self, **options: Any) -> Comparison:
        """The same with some of ``CheckOptions`` changed; they win over the marker and the command line.

        Raises ``TypeError`` for an unknown name and ``ValueError`` for a bad value.
        """
        __tracebackhide__ = True
        changed = Comparison(self._session, self._item, merge(self._options, options), self._starts, self._many)
        changed._check_options()
        return changed

    def backward_from(self, *gradients: torch.Tensor | None) -> Comparison:
        """The same with the backward pass compared, started from these gradients.

        One for each tensor that the callable returns, or for each that can have one, of the same shape; None where
        there is none.
        """
        __tracebackhide__ = True
        return Comparison(self._session, self._item, merge(self._options, {"backward": True}), gradients, self._many)

    def _case(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Case:
        from pytest_ascend.cases.case import Case

        return Case(fn, args, kwargs, starts=self._starts)

    def _check_options(self) -> CheckOptions:
        __tracebackhide__ = True
        try:
            return CheckOptions(**{"seed": seed_of(self._item.nodeid), **self._options})
        except (TypeError, ValueError) as error:
            raise type(error)(str(error)) from None  # from here, where pytest shows no line of ours
