"""The road's tests run on the emulated NPU."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def _emulated():
    from pytest_ascend.targets import resolve

    return resolve("emulated")


@pytest.fixture
def check(_emulated):
    """``check(fn, *args, opt=value)``: options are given by their names through ``options=dict(...)``."""
    from pytest_ascend.check import check
    from pytest_ascend.options import CheckOptions

    def run(fn, *args, options=None, **kwargs):
        return check(fn, *args, options=CheckOptions(**{"target": "emulated", **(options or {})}), **kwargs)

    return run
