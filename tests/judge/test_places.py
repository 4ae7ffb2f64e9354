"""Patterns of wrong elements: what is planted is named, and what chance scattered is not."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_ascend.judge import places
from pytest_ascend.judge.places import describe, pattern

SLOW = {"deadline": None}


def mask(shape, *where) -> np.ndarray:
    made = np.zeros(shape, dtype=bool)
    for index in where:
        made[index] = True
    return made


@pytest.mark.parametrize(
    ("shape", "where", "name"),
    [
        ((2048, 8), np.s_[1024:], "rows >= 1024 of 2048 (dim 0)"),
        ((4, 8, 5, 5), np.s_[:, 3], "channel 3 (dim 1)"),
        ((4, 8, 5, 5), np.s_[:, [1, 3, 6]], "channels 1, 3 and 6 (dim 1)"),
        ((400,), np.s_[3::8], "every 8th element, from 3"),
        ((64, 96), np.s_[:, 16::32], "every 32nd column, from 16 (dim -1)"),
        ((400,), np.s_[-1], "only the last element"),
        ((400,), np.s_[0], "only the first element"),
        ((400,), np.s_[7], "only element 7"),
        ((5, 7), np.s_[-1, -1], "only the last element"),
        ((5, 7), np.s_[2, 3], "only element [2, 3]"),
        ((133,), np.s_[128:], "last 5 of 133 elements, the tail after 128"),
        ((5, 7), np.s_[0], "first row (dim 0)"),
        ((5, 7), np.s_[:, -1], "last column (dim -1)"),
        ((7, 40), np.s_[2:4, 3:6], "rows 2 to 3 (dim 0), columns 3 to 5 (dim -1)"),
        ((4, 6, 9), np.s_[1, 1:3], "index 1 (dim 0), indices 1 to 2 (dim 1)"),
        ((8, 9), np.s_[:], "all 72"),
    ],
)
def test_places_along_dimensions(shape, where, name):
    assert pattern(mask(shape, where)) == name


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (np.tril(np.ones((8, 8))), "the lower triangle with the diagonal"),
        (np.tril(np.ones((2, 8, 9)), -1), "the lower triangle"),
        (np.triu(np.ones((8, 8))), "the upper triangle with the diagonal"),
        (np.triu(np.ones((2, 3, 8, 6)), 1), "the upper triangle"),
        (np.triu(np.ones((8, 8)), 3), "from diagonal 3 up"),
        (np.eye(8), "the diagonal"),
        (1 - np.eye(8), "all but the diagonal"),
        (np.tril(np.triu(np.ones((9, 9)), -1), 1), "the band of diagonals -1 to 1"),
    ],
)
def test_places_about_the_diagonal(made, name):
    assert pattern(made.astype(bool)) == name


def test_places_in_memory_order():
    made = np.zeros((7, 10), dtype=bool)
    made.reshape(-1)[56:] = True
    assert pattern(made) == "last 14 of 70 elements, the tail after 56 in memory order"
    made[:] = False
    made.reshape(-1)[5::16] = True
    assert pattern(made) == "every 16th element, from 5 in memory order"


def test_nothing_wrong_is_no_pattern():
    assert pattern(np.zeros((3, 4), dtype=bool)) == ""
    assert pattern(np.zeros(0, dtype=bool)) == ""


VALUES = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
SPECIAL = VALUES.clone()
SPECIAL[VALUES > 1], SPECIAL[VALUES < -1], SPECIAL[(VALUES > 0) & (VALUES < 0.1)] = math.nan, math.inf, 0.0
SPECIAL[(VALUES < 0) & (VALUES > -0.1)] = -0.0


@pytest.mark.parametrize(
    ("golden", "test", "name"),
    [
        (VALUES, lambda v: v < 0, "where golden < 0"),
        (VALUES, lambda v: v > 0, "where golden > 0"),
        (VALUES, lambda v: v.abs() < 1e-1, "where |golden| <= 0.1"),
        (VALUES, lambda v: v.abs() > 2, "where |golden| >= 2"),
        (VALUES, lambda v: v > 1, "where golden >= 1"),
        (VALUES * 100, lambda v: v < -128, "where golden <= -128"),
        (SPECIAL, lambda v: v.isnan(), "where golden is NaN"),
        (SPECIAL, lambda v: v.isinf(), "where golden is +Inf"),
        (SPECIAL, lambda v: ~v.isfinite(), "where golden isn't finite"),
        (SPECIAL, lambda v: v == 0, "where golden is 0"),
        (SPECIAL, lambda v: (v == 0) & v.signbit(), "where golden is -0.0"),
        (SPECIAL * 1e-39, lambda v: (v != 0) & v.isfinite(), "where golden is subnormal"),
        (SPECIAL.double(), lambda v: v.isnan(), "where golden is NaN"),
        ((VALUES * 10).long(), lambda v: v < 0, "where golden < 0"),
    ],
)
def test_places_by_value(golden, test, name):
    assert pattern(test(golden).numpy(), golden) == name


def test_holes_that_chance_left():
    made = mask((64, 96), *(np.s_[:, i::32] for i in range(16, 32)))
    made[3, 20] = made[50, 95] = False
    assert pattern(made) == "last 16 of every 32 columns (dim -1) (3070 of the 3072 there)"
    made = mask((1000,), np.s_[900:])
    made[[904, 950]] = False
    assert pattern(made) == "last 100 of 1000 elements (98 of the 100 there)"
    made = ~mask((40, 50), np.s_[3, 4], np.s_[30, 40])
    assert pattern(made) == "nearly all, 1998 of 2000"


lines = st.integers(2, 40)


@given(
    period=st.integers(2, 40), run=st.integers(1, 39), periods=st.integers(4, 12), rest=st.integers(0, 39), rows=lines
)
@settings(**SLOW)
def test_the_end_of_every_block_is_named(period, run, periods, rest, rows):
    run = 1 + (run - 1) % (period - 1)
    made = np.arange(period * periods + rest % period) % period >= period - run
    name = f"every {places._ordinal(period)} %s, from {period - 1}" if run == 1 else f"last {run} of every {period} %s"
    assert pattern(made).startswith(name.replace(" %s", " element") if run == 1 else name.replace("%s", "elements"))
    assert pattern(np.tile(made, (rows, 1))) == name.replace("%s", "column" if run == 1 else "columns") + " (dim -1)"
    assert pattern(np.tile(made[:, None], (1, rows))) == name.replace("%s", "row" if run == 1 else "rows") + " (dim 0)"


@given(period=st.integers(2, 50), start=st.integers(0, 49), times=st.integers(4, 30))
@settings(**SLOW)
def test_every_nth_is_named(period, start, times):
    start %= period
    made = mask((period * times,), np.s_[start::period])
    assert pattern(made) == f"every {places._ordinal(period)} element, from {start}"


@given(st.lists(st.integers(2, 7), min_size=1, max_size=4).map(tuple), st.data())
@settings(**SLOW)
def test_one_index_of_one_dimension_is_named(shape, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    i = data.draw(st.integers(0, shape[dim] - 1))
    made = np.zeros(shape, dtype=bool)
    made[(slice(None),) * dim + (i,)] = True
    name = pattern(made)
    assert any(word in name for word in (f" {i} ", f" {i}", "first", "last")), name
    assert "scattered" not in name
    if len(shape) > 1:
        assert f"(dim {dim if dim < len(shape) - 1 else -1})" in name


@given(st.integers(3, 200), st.integers(3, 100), st.integers(0, 2**32))
@settings(**SLOW)
def test_a_threshold_is_named_and_holds(rows, columns, seed):
    golden = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = golden.abs().reshape(-1).sort().values
    k = order.numel() // 3
    made = golden.abs() <= order[k]
    assume(places._digits(golden.numel(), int(made.sum())) > 6)
    name = pattern(made.numpy(), golden)
    assume("golden" in name)  # a few elements may stand in a row as well
    assert name.startswith("where |golden| <= ")
    limit = float(name.rsplit(" ", 1)[1])
    assert float(order[k]) * 0.999 <= limit <= float(order[k + 1]) * 1.001


@pytest.mark.parametrize("shape", [(64,), (1000,), (40, 50), (16, 16), (8, 8, 8), (2, 4, 8, 8), (4, 3, 100)], ids=str)
def test_what_chance_scattered_is_no_pattern(shape):
    random = np.random.default_rng(7)
    n = math.prod(shape)
    for _ in range(400):
        made = np.zeros(n, dtype=bool)
        made[random.choice(n, random.integers(4, n // 2), replace=False)] = True
        golden = torch.from_numpy(random.standard_normal(shape))
        assert pattern(made.reshape(shape), golden) == f"scattered: {made.sum()} of {n}"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), st.data())
@settings(max_examples=300, **SLOW)
def test_every_pattern_covers_every_wrong_element(shape, data):
    bits = data.draw(st.lists(st.booleans(), min_size=math.prod(shape), max_size=math.prod(shape)))
    made = np.array(bits, dtype=bool).reshape(shape)
    golden = torch.tensor(data.draw(st.lists(st.floats(width=32), min_size=made.size, max_size=made.size)))
    name = pattern(made, golden.reshape(shape))
    assert bool(name) == bool(made.any())
    count = int(made.sum())
    if count:
        golden, silent = golden.reshape(shape), np.zeros_like(made)
        for _, covered in places._candidates(made, silent, golden, torch.float32, count):
            assert count <= covered <= made.size


# --- from two tensors -----------------------------------------------------------------------------------------------


def off(golden: torch.Tensor, where, change) -> torch.Tensor:
    actual = golden.clone()
    actual[where] = change(actual[where])
    return actual


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str
)
def test_a_planted_fault_is_found_among_rounding(dtype):
    generator = torch.Generator().manual_seed(0)
    golden = torch.randn(64, 96, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    actual = off(golden, np.s_[:, -16:], lambda t: t * 1.1).to(dtype)
    assert describe(golden, actual, rtol=1.6e-2, atol=1e-5) == "last 16 of 96 columns (dim -1)"


def test_what_is_within_the_tolerance_is_seen_by_rounding():
    golden = torch.randn(64, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    actual = off(golden, np.s_[40], lambda t: t * 1.013).bfloat16()
    assert describe(golden, actual, rtol=1.6e-2, atol=1e-5) == "row 40 (dim 0)"


def test_the_largest_errors_stand_out():
    golden = torch.randn(64, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    actual = off(golden * 1.001, np.s_[3], lambda t: t * 2).float()
    assert describe(golden, actual, rtol=1e-5) == "all 6144, the largest errors: row 3 (dim 0)"


def test_zeros_that_are_right_do_not_hide_a_pattern():
    golden = torch.randn(64, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64).relu()
    assert describe(golden, off(golden, np.s_[:, 3], lambda t: t * 2).float(), rtol=1e-3) == "column 3 (dim -1)"
    assert describe(golden, (golden * 2).float(), rtol=1e-3).endswith("whose golden isn't 0")
    some = torch.rand(64, 96, generator=torch.Generator().manual_seed(1)) < 0.3
    assert describe(golden, torch.where(some, golden * 2, golden).float(), rtol=1e-3).startswith("scattered")
    line = golden.reshape(-1)[:1000]
    assert describe(line, off(line, np.s_[-16:], lambda t: t * 2).float(), rtol=1e-3) == "last 16 of 1000 elements"
    assert describe(line, off(line, np.s_[1::2], lambda t: t * 2).float(), rtol=1e-3) == "every 2nd element, from 1"
    lower = torch.where(torch.ones(96, 96).tril(-1).bool(), 2.0, 1.0)[:64]
    assert describe(golden, (golden * lower).float(), rtol=1e-3) == "the lower triangle"


def test_a_factor_is_no_place():
    golden = torch.randn(64, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert describe(golden, (golden * 1.01).half(), rtol=1e-3, atol=1e-5).startswith("nearly all, ")
    assert "largest" not in describe(golden, (golden * 1.01).half(), rtol=1e-3, atol=1e-5)


def test_integers_and_moved_data():
    golden = torch.arange(100) + 2**60
    assert describe(golden, off(golden, np.s_[96:], lambda t: t + 1)) == "last 4 of 100 elements, the tail after 96"
    moved = torch.randn(100)
    assert (
        describe(moved, off(moved, np.s_[5::10], lambda t: t * (1 + 1e-6)), exact=True) == "every 10th element, from 5"
    )
    mask = torch.rand(100, 7) < 0.5
    assert describe(mask, off(mask, np.s_[-1], torch.logical_not)) == "last row (dim 0)"


def test_classes_come_first():
    golden = torch.randn(64, 8, dtype=torch.float64)
    golden[:, 2] = math.nan
    actual = torch.where(golden.isnan(), 0.0, golden * 1.5)
    assert describe(golden, actual.float()) == "column 2 (dim -1)"


def test_zeros_of_the_other_sign():
    zeros = torch.zeros(100)
    assert describe(zeros, off(zeros, np.s_[50:], lambda t: -t), exact=True) == "elements >= 50 of 100"


def test_what_the_benchmark_has_too_is_right():
    golden = torch.arange(20)
    benchmark = off(golden, np.s_[0], lambda t: t + 1)
    actual = off(benchmark, np.s_[-1], lambda t: t + 1)
    assert describe(golden, actual, exact=True, benchmark=benchmark) == "only the last element"


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0)], ids=str)
def test_nothing_to_say(shape):
    assert describe(torch.ones(shape), torch.zeros(shape)) == ""


def test_float8():
    golden = torch.linspace(1, 2, 64)
    actual = off(golden, np.s_[:8], lambda t: t * 2).to(torch.float8_e4m3fn)
    assert describe(golden.double(), actual, rtol=0.125, atol=1e-3) == "first 8 of 64 elements"


def test_millions_of_elements_take_seconds():
    golden = torch.ones(4_000_000)
    start = time.process_time()
    assert describe(golden, off(golden, np.s_[::7], lambda t: t + 1), rtol=1e-5) == "every 7th element, from 0"
    assert time.process_time() - start < 20
