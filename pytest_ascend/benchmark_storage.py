"""What ``ascend_perf`` times, in pytest-benchmark's storage: its table, ``--benchmark-json``, ``--benchmark-autosave``.

So that who has its files and its comparisons keeps them. It knows wall time alone, and gets that; the device's time is
in ``extra_info``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

__all__ = ["clock", "fill"]


def clock(config: pytest.Config) -> Callable[[], float] | None:
    """The timer that ``--benchmark-timer`` names; None without pytest-benchmark."""
    session = getattr(config, "_benchmarksession", None)
    timer: Callable[[], float] | None = None if session is None else session.options["timer"].target
    return timer


def fill(item: pytest.Item, index: int, wall: Sequence[float], calls: int, extra: Mapping[str, Any]) -> None:
    """Put timings where pytest-benchmark keeps its own, if the test or the command line asks for it.

    Args:
        item: the test. One that uses the fixture ``benchmark`` asks for it, and so does a run that writes its file.
        index: which of the test's calls, from 0. The first fills the test's own fixture where that is unused; others
            are called ``test_it#2``, ``test_it#3``.
        wall: seconds per call, one for each block.
        calls: per block.
        extra: for ``extra_info``; JSON.
    """
    session = getattr(item.config, "_benchmarksession", None)
    fixture = getattr(item, "funcargs", {}).get("benchmark")
    wanted = fixture is not None or any(getattr(session, name, None) for name in ("json", "autosave", "save"))
    if session is None or session.disabled or not wanted or not wall:
        return
    if fixture is None or fixture._mode:
        fixture = _another(session, item, index)
    fixture._mode = "ascend_perf(...)"  # else it warns that it wasn't used, and lets the test use it again
    fixture.extra_info.update(extra)
    stats = fixture._make_stats(calls)
    for seconds in wall:
        stats.update(seconds * calls)  # it divides by the calls


def _another(session: Any, item: pytest.Item, index: int) -> Any:
    """A fixture object for a call that the test's own can't hold: it holds one."""
    from pytest_benchmark.fixture import BenchmarkFixture
    from pytest_benchmark.utils import NameWrapper

    marker = item.get_closest_marker("benchmark")
    options = {**session.options, **(marker.kwargs if marker is not None else {})}
    if not hasattr(options["timer"], "target"):
        options["timer"] = NameWrapper(options["timer"])  # type: ignore[no-untyped-call]
    keeps = {"add_stats": session.benchmarks.append, "logger": session.logger, "warner": item.warn}
    made: Any = BenchmarkFixture(item, disabled=False, **keeps, **options)  # type: ignore[no-untyped-call]
    if index:
        made.name, made.fullname = f"{made.name}#{index + 1}", f"{made.fullname}#{index + 1}"
    return made
