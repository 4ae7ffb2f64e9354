"""The quick road to PASS says what the long one says, or nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pytest_ascend.dumps.through_torch import held_of
from pytest_ascend.judge import quick
from pytest_ascend.judge.carried import is_carried
from pytest_ascend.judge.metrics import measure
from pytest_ascend.judge.standards import TABLE, judge
from pytest_ascend.judge.verdict import Verdict

DTYPES = {name: getattr(torch, name) for name in quick.TABLE}


def both(golden: torch.Tensor, actual: torch.Tensor):
    """What each road says of a pair."""
    sides = [held_of(t) for t in (golden, actual)]
    x, y = (side.values.reshape(-1) for side in sides)
    return quick.within_table(x, y, (sides[0].dtype, sides[1].dtype)), judge(golden, actual)


def test_the_tables_are_the_same() -> None:
    for name, dtype in DTYPES.items():
        info = torch.finfo(dtype)
        assert quick.TABLE[name] == (*TABLE[dtype], info.eps, info.smallest_normal)


@pytest.mark.parametrize("size", [1, 7, 1000, quick.PIECE, 3 * quick.PIECE + 11])
@pytest.mark.parametrize("pair", [(a, b) for a in DTYPES for b in DTYPES], ids="-".join)
def test_what_it_passes_the_judge_passes_with_the_same_figures(pair, size) -> None:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    passed = 0
    for error in (0.0, 1e-9, 1e-7, 1e-6, 3e-6, 1e-4, 3e-3, 0.1):
        for scale in (1.0, 1e-3, 3e4):
            y = x * (1 + error * torch.randn(size, generator=generator, dtype=torch.float64))
            golden, actual = (x * scale).to(DTYPES[pair[0]]), (y * scale).to(DTYPES[pair[1]])
            fast, slow = both(golden, actual)
            if fast is None:
                continue
            passed += 1
            assert slow.verdict is Verdict.PASS
            for name in dict.fromkeys(fast.keys()):
                if name not in ("worst", "max_ulp"):
                    assert math.isclose(fast[name], slow.metrics[name], rel_tol=1e-9, abs_tol=1e-15), name
    assert passed  # and so does everything that is equal


@pytest.mark.parametrize("error", [2e-6, 1e-5, 1e-3, 1.0])
def test_one_wrong_element_is_never_passed(error) -> None:
    x = torch.randn(3 * quick.PIECE, generator=torch.Generator().manual_seed(0))
    for at in (0, quick.PIECE, x.numel() - 1):
        y = x.clone()
        y[at] = (x[at].abs() + 1.0) * (1 + error) + 20 * error
        assert both(x, y)[0] is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_goes_the_long_way(value) -> None:
    x = torch.tensor([1.0, value, 2.0])
    assert both(x, x)[0] is None


def test_zeros_and_the_smallest_numbers() -> None:
    zeros, tiny = torch.zeros(50), torch.full((50,), 1e-44)
    assert both(zeros, zeros)[0] is not None
    for golden, actual in ((zeros, tiny), (tiny, zeros), (zeros, zeros + 1e-3), (zeros, zeros + 1e-30)):
        fast, slow = both(golden, actual)
        assert fast is None or slow.verdict is Verdict.PASS
    small = torch.full((50,), 1e-200, dtype=torch.float64)
    assert both(small, small * 2)[0] is None  # their squares are zero


def test_other_dtypes_go_the_long_way() -> None:
    for x in (torch.arange(3), torch.ones(3, dtype=torch.complex64), torch.ones(0)):
        values = np.asarray(x)
        assert quick.within_table(values, values, (str(x.dtype)[6:],) * 2) is None


def test_an_error_that_came_with_the_inputs_is_carried_and_another_is_not() -> None:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    y = x + 1e-3 * noise
    figures = measure(x, y)
    assert is_carried(x, y, figures, 1e-3)
    assert not is_carried(x, y, figures, 1e-4)
    assert not is_carried(x, x * 1.005, measure(x, x * 1.005), 1e-3)  # a factor has a direction
    one = x.clone()
    one[5] += 2 * quick.CARRIED * 1e-3
    assert not is_carried(x, one, measure(x, one), 1e-3)
    one[5] = math.nan
    assert not is_carried(x, one, measure(x, one), 1.0)
