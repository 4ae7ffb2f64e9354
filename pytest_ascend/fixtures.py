"""What tests ask for: ``ascend_compare``, ``ascend_device``, ``ascend_distributed`` and ``ascend_perf``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_ascend.session import KEY, AscendSession
from pytest_ascend.settings import COMPARE, PERF

if TYPE_CHECKING:
    import torch

    from pytest_ascend.comparison import Comparison
    from pytest_ascend.distributed import Distributed
    from pytest_ascend.timing import Timing


def _session_of(request: pytest.FixtureRequest, fixture: str) -> AscendSession:
    session = request.config.stash[KEY]
    if not session.on:
        pytest.skip(f"{fixture} needs {COMPARE}")
    return session


@pytest.fixture
def ascend_compare(request: pytest.FixtureRequest) -> Comparison:
    """Compare a function or module on the Ascend target with a CPU reference: ascend_compare(fn, *args, **kwargs).

    Skips the test unless --ascend-compare is given. Options: @pytest.mark.ascend(...) or ascend_compare.using(...).
    """
    session = _session_of(request, "ascend_compare")
    from pytest_ascend.comparison import Comparison  # only where it is used: a plugin that is off costs nothing
    from pytest_ascend.marks import marker_options, merge

    item: pytest.Item = request.node
    return Comparison(session, item, merge(session.settings.check_options(), marker_options(item)))


@pytest.fixture
def ascend_device(request: pytest.FixtureRequest) -> torch.device:
    """The torch.device that --ascend-compare names, real or emulated; skips the test without that option.

    With --ascend-overflow or --ascend-sanitize alone it is the machine's NPU, or the emulated one.
    """
    session = request.config.stash[KEY]
    return (
        (session if session.watches or session.sanitizes else _session_of(request, "ascend_device")).target().device()
    )


@pytest.fixture
def ascend_distributed(request: pytest.FixtureRequest) -> Distributed:
    """Run a function on several ranks and judge their collectives: ascend_distributed(body, *args, world_size=2).

    On cards over HCCL, elsewhere over gloo. Skips the test unless --ascend-compare is given.
    """
    session = _session_of(request, "ascend_distributed")
    from pytest_ascend.distributed import Distributed
    from pytest_ascend.marks import marker_options
    from pytest_ascend.session import seed_of

    item: pytest.Item = request.node
    seed, timeout = marker_options(item).get("seed"), session.settings.timeout
    return Distributed(session, item, seed_of(item.nodeid) if seed is None else int(seed), timeout)


@pytest.fixture
def ascend_perf(request: pytest.FixtureRequest) -> Timing:
    """Time a function or module on the target: ascend_perf(fn, *args, **kwargs).

    Skips the test unless the run times tests. Options: @pytest.mark.ascend_perf(...) or ascend_perf.using(...).
    """
    session = request.config.stash[KEY]
    if session.child is None and session.perf_results is None:
        pytest.skip(f"ascend_perf: inconclusive, nothing is timed without {PERF}")
    from pytest_ascend.marks import marker_options
    from pytest_ascend.timing import Timing

    item: pytest.Item = request.node
    return Timing(session, item, {**session.settings.perf_options(), **marker_options(item, "ascend_perf")})
