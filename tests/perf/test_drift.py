"""Error drift: what grew while it is still inside its tolerance."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.perf import PerfVerdict
from pytest_ascend.perf.drift import ROUNDOFF, error_drift

OK, REGRESSED, IMPROVED, INCONCLUSIVE = PerfVerdict


@pytest.mark.parametrize(
    ("stored", "current", "factor", "verdict"),
    [
        ([1e-3], 1e-3, 2, OK),
        ([1e-3], 1.99e-3, 2, OK),
        ([1e-3], 2e-3, 2, REGRESSED),
        ([1e-3], 2e-3, 2.5, OK),
        ([1e-3], 1.6e-3, 1.5, REGRESSED),
        ([1e-3], 5e-4, 2, IMPROVED),
        ([1e-3, 9e-4, 2.5e-3], 2.2e-3, 2, OK),  # it has been as large before
        ([1e-3, 9e-4, 2.5e-3], 2.6e-3, 2, REGRESSED),
        ([1e-3, 9e-4, 4e-4], 4.5e-4, 2, OK),
        ([], 1.0, 2, INCONCLUSIVE),
        ([1e-3], math.inf, 2, INCONCLUSIVE),
        ([1e-3], math.nan, 2, INCONCLUSIVE),
        ([0.0], 0.0, 2, OK),
    ],
)
def test_growth(stored: list[float], current: float, factor: float, verdict: PerfVerdict) -> None:
    found = error_drift(stored, current, dtype="float16", factor=factor)
    assert found.verdict is verdict
    assert found.reason


def test_what_is_below_roundoff_does_not_count() -> None:
    u = ROUNDOFF["float16"]
    assert error_drift([0.01 * u], 0.9 * u, dtype="float16").verdict is OK
    assert error_drift([0.0], 1.9 * u, dtype="float16").verdict is OK
    assert error_drift([0.01 * u], 2.1 * u, dtype="torch.float16").verdict is REGRESSED
    assert error_drift([0.01 * u], 0.9 * u, dtype="float32").verdict is REGRESSED
    assert error_drift([0.0], 1e-9, dtype="int64").ratio == math.inf


def test_roundoffs_are_half_of_eps() -> None:
    torch = pytest.importorskip("torch")
    for name, roundoff in ROUNDOFF.items():
        assert torch.finfo(getattr(torch, name)).eps / 2 == roundoff, name


@given(st.lists(st.floats(1e-12, 1e3), min_size=1, max_size=9), st.floats(1e-12, 1e3), st.floats(1.01, 10))
def test_a_larger_error_or_a_smaller_factor_never_looks_better(stored, current, factor) -> None:
    rank = {IMPROVED: 0, OK: 1, REGRESSED: 2}
    here = rank[error_drift(stored, current, dtype="float32", factor=factor).verdict]
    assert rank[error_drift(stored, current * 1.5, dtype="float32", factor=factor).verdict] >= here
    if here == 2:
        assert error_drift(stored, current, dtype="float32", factor=(1 + factor) / 2).verdict is REGRESSED
    assert (
        error_drift(stored, stored[0], dtype="float32", factor=factor).verdict is not REGRESSED
        or max(stored) > stored[0]
    )


@pytest.mark.parametrize(
    ("stored", "current", "factor"),
    [
        ([1.0], 1.0, 1.0),
        ([1.0], 1.0, math.nan),
        ([1.0], -1.0, 2.0),
        ([-1.0], 1.0, 2.0),
        ([math.nan], 1.0, 2.0),
        ([math.inf], 1, 2),
    ],
)
def test_what_is_no_error_is_refused(stored: list[float], current: float, factor: float) -> None:
    with pytest.raises(ValueError, match="error"):
        error_drift(stored, current, dtype="float32", factor=factor)
