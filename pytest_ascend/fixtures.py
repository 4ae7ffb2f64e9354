"""What tests ask for: ``ascend_compare`` and ``ascend_device``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_ascend.session import KEY, AscendSession
from pytest_ascend.settings import COMPARE

if TYPE_CHECKING:
    import torch

    from pytest_ascend.comparison import Comparison


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
    """The torch.device that --ascend-compare names, real or emulated; skips the test without that option."""
    return _session_of(request, "ascend_device").target().device()
