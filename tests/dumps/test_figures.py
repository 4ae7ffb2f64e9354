"""The four figures of a recorded tensor, by numpy's and torch's quickest ways, are those of float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ascend.dumps.figures import Seen, figures

SIZES = st.sampled_from([1, 2, 7, 1000, 8192, 8193, 40_000])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


@settings(deadline=None, max_examples=80)
@given(SIZES, DTYPES, st.sampled_from([1e-30, 1e-24, 1e-3, 1.0, 1e3, 1e25]), st.booleans(), st.integers(0, 99))
def test_they_are_those_of_float64(size, dtype, scale, strided, seed) -> None:
    values = torch.randn(2 * size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    tensor = values.to(dtype)[:: 2 if strided else 1]
    wide = tensor.double()
    high, low, mean, norm = figures(tensor)
    wanted = wide.max().item(), wide.min().item(), wide.mean().item(), torch.linalg.vector_norm(wide).item()
    assert (high, low) == wanted[:2]
    if all(math.isfinite(x) for x in wanted):
        assert norm == pytest.approx(wanted[3], rel=1e-5)
        assert mean == pytest.approx(wanted[2], rel=1e-5, abs=1e-6 * wanted[3] / math.sqrt(tensor.numel()))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [3, 20_000])
def test_what_is_not_finite_shows(bad: float, size: int) -> None:
    tensor = torch.ones(size)
    tensor[size // 2] = bad
    high, low, _, norm = figures(tensor)
    assert not math.isfinite(norm)
    wanted = tensor.max().item(), tensor.min().item()
    assert str((high, low)) == str(wanted)


def test_zeros_have_a_norm_of_zero() -> None:
    assert figures(torch.zeros(10)) == (0.0, 0.0, 0.0, 0.0)
    assert figures(torch.tensor([1e200, -1e-200], dtype=torch.float64))[3] == pytest.approx(1e200)
    assert figures(torch.tensor(2.0, requires_grad=True).detach()) == (2.0, 2.0, 2.0, 2.0)


def test_a_view_of_what_is_known_is_known_apart_and_writing_forgets() -> None:
    seen, tensor = Seen(), torch.randn(4096)
    slot, total, known = seen.find(tensor, "whole")
    assert known is None
    seen.remember(slot, total, "it")
    assert seen.find(tensor, "whole") == (None, total, "it")
    assert seen.find(tensor.view(64, 64), "whole")[2] == "it"
    assert seen.find(tensor, "other")[2] is None
    tensor[0] += 1
    assert seen.find(tensor, "whole")[2] is None
    seen.remember(*seen.find(tensor, "whole")[:2], "new")
    tensor.numpy()[1] += 1  # behind autograd's back
    assert seen.find(tensor, "whole")[2] is None
