"""The object behind the ``ascend_perf`` fixture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.session import AscendSession, seed_of

if TYPE_CHECKING:
    from pytest_ascend.perf.result import PerfResult

_CALLS = pytest.StashKey[int]()


class Timing:
    """Time a callable on the target, and say whether it got slower.

    ``ascend_perf(fn_or_module, *args, **kwargs)`` returns the ``PerfResult`` when the test may pass. What is timed is
    timed in fresh processes, each of which runs the test again; there nothing is judged yet.
    """

    def __init__(self, session: AscendSession, item: pytest.Item, options: Mapping[str, Any]) -> None:
        self._session = session
        self._item = item
        self._options = dict(options)

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PerfResult:
        """Time and judge the call; a slowdown of the threshold or more raises."""
        __tracebackhide__ = True
        options = self.options
        index = self._item.stash.get(_CALLS, 0)
        self._item.stash[_CALLS] = index + 1
        if self._session.child is not None:
            return self._session.child.time(self._item, index, options, fn, args, kwargs)
        assert self._session.perf_results is not None  # the fixture has seen to it
        return self._session.perf_results.conclude(self._item, index, options)

    def __repr__(self) -> str:
        return f"<ascend_perf on {self.options.target}>"

    @property
    def options(self) -> PerfOptions:
        """How it times."""
        __tracebackhide__ = True
        try:
            return PerfOptions(**{"seed": seed_of(self._item.nodeid), **self._options})
        except (TypeError, ValueError) as error:
            raise type(error)(str(error)) from None  # from here, where pytest shows no line of ours

    def using(self, **options: Any) -> Timing:
        """The same with some of ``PerfOptions`` changed; they win over the marker and the command line.

        Raises ``TypeError`` for an unknown name and ``ValueError`` for a bad value.
        """
        __tracebackhide__ = True
        changed = Timing(self._session, self._item, {**self._options, **options})
        changed.options  # noqa: B018  # a bad one raises here
        return changed
