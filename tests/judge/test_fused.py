"""The compiled loops against torch and numpy: counts and extremes to the last bit, sums to 12 digits."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_ascend.judge import metrics as metrics_module
from pytest_ascend.judge.metrics import measure

pytest.importorskip("numba", reason="the extra `fused` isn't installed")
from pytest_ascend.judge import fused

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
PAIRS = [(dtype, dtype) for dtype in FLOATS] + [(torch.float64, dtype) for dtype in FLOATS[1:]]
#: no loop for these: the result must be the one there always was
OTHERS = [
    *((d, d) for d in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128)),
    *((d, d) for d in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)),
    (torch.float32, torch.float16),
    (torch.float64, torch.complex64),
]
EXACT = (
    *("count", "max_abs_error", "max_rel_error", "within_tolerance_ratio", "max_ulp", "mismatches"),
    *("non_finite_mismatches", "worst"),
)
SUMS = ("cosine_similarity", "mean_abs_error", "rmse", "mean_rel_error", "relative_euclidean_distance", "scale")
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
SETTINGS = {"deadline": None, "max_examples": 120}


def same(one: float, other: float, absolute: float = 0.0) -> bool:
    if math.isnan(one) or math.isinf(one):
        return repr(one) == repr(other)
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=absolute)


def assert_same(golden: torch.Tensor, actual: torch.Tensor, **options) -> None:
    want, got = (measure(golden, actual, fused=how, **options) for how in (False, True))
    for name in EXACT:
        assert repr(got[name]) == repr(want[name]), name  # by repr: a NaN among the worst equals itself
    for name in SUMS:
        # A cosine or a scale of sides at right angles is what rounding left of sums that cancelled.
        size = {"cosine_similarity": 1.0, "scale": want.relative_euclidean_distance + 1.0}.get(name, 0.0)
        assert same(got[name], want[name], 1e-13 * size if math.isfinite(size) else 0.0), name
    assert same(got.mean_signed_error, want.mean_signed_error, 1e-13 * want.mean_abs_error)


def near(shape: tuple[int, ...], pair: tuple[torch.dtype, torch.dtype], seed: int, noise: float, zeros: bool = False):
    """A pair of random tensors a relative distance apart; with zeros, as after a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(shape, generator=generator, dtype=torch.float64)
    golden = golden.clamp_min(0) if zeros else golden
    actual = golden * (1 + noise * torch.randn(shape, generator=generator, dtype=torch.float64))
    if zeros:
        actual += noise * (torch.rand(shape, generator=generator, dtype=torch.float64) < 0.1)
    return golden.to(pair[0]), actual.to(pair[1])


shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@given(
    st.sampled_from(PAIRS),
    shapes,
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1e-6, 1e-2, 3.0]),
    st.booleans(),
    st.sampled_from([(0.0, 0.0), (1e-2, 1e-3), (0.0, 1.0), (2.0, 0.0)]),
    st.sampled_from([0.0, 1e-3, 10.0]),
    st.sampled_from([1, 7, 64, 1 << 15]),
    st.booleans(),
)
@settings(**SETTINGS)
def test_both_ways_agree(pair, shape, seed, noise, zeros, tolerance, floor, chunk, rounded):
    golden, actual = near(shape, pair, seed, noise, zeros)
    rtol, atol = tolerance
    assert_same(golden, actual, rtol=rtol, atol=atol, floor=floor, chunk=chunk, rounded=rounded)


@given(st.sampled_from(PAIRS), st.data(), st.integers(1, 40), st.sampled_from([3, 1 << 15]))
@settings(**SETTINGS)
def test_any_bits_agree(pair, data, n, chunk):
    """NaN of any payload, infinities, subnormals, both zeros, the largest numbers."""

    def side(dtype: torch.dtype) -> torch.Tensor:
        bits = dtype.itemsize * 8
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        one = high // 2 + 1
        special = [0, low, 1, low + 1, one, one - 1, high, torch.finfo(dtype).bits]
        drawn = data.draw(st.lists(st.sampled_from(special) | st.integers(low, high), min_size=n, max_size=n))
        return torch.tensor(drawn, dtype=BITS[dtype.itemsize]).view(dtype)

    golden, actual = side(pair[0]), side(pair[1])
    if data.draw(st.booleans()):
        both = golden.isfinite() & actual.isfinite()
        golden, actual = golden[both], actual[both]
    if torch.float64 in pair:  # sums that overflow are rescued in another order of additions
        assume(not (golden.double().abs().nan_to_num(0, 0, 0) > 1e140).any())
        assume(not (actual.double().abs().nan_to_num(0, 0, 0) > 1e140).any())
    assert_same(golden, actual, rtol=1e-3, atol=1e-5, chunk=chunk)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_value_is_read_and_rounded_as_torch_does(dtype):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    golden = every.double()
    assert measure(golden, every, fused=True).max_abs_error == 0.0
    between = (golden + golden.roll(1)) / 2  # ties among them
    for shifted in (between, between * (1 + 2.0**-30), between * (1 - 2.0**-30)):
        assert_same(shifted, every)
        assert_same(shifted, shifted.to(dtype))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.T,
        lambda t: t[::3, 1::2],
        lambda t: t[:, :1].expand(-1, 50),
        lambda t: t[7, 3],
        lambda t: t[:0],
        lambda t: torch._neg_view(t),
        lambda t: t.flip(0).contiguous(),
    ],
    ids=["transposed", "strided", "expanded", "scalar", "empty", "negated", "plain"],
)
def test_layouts(pair, view):
    golden, actual = near((60, 70), pair, 5, 1e-2)
    assert_same(view(golden), view(actual), rtol=1e-2, chunk=100)
    assert_same(view(golden), view(actual).clone(), rtol=1e-2)


@pytest.mark.parametrize("pair", OTHERS, ids=str)
def test_other_dtypes_take_the_old_way(pair):
    generator = torch.Generator().manual_seed(1)
    golden, actual = ((torch.rand(300, generator=generator) * 3).to(dtype) for dtype in pair)
    assert not fused.suits(*pair)
    assert_same(golden, actual, rtol=0.1)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_every_pair_has_a_loop(pair):
    assert fused.suits(*pair)
    assert metrics_module._loop(*pair) is fused.reduce


def test_integers_beyond_2_to_53_stay_exact():
    golden = torch.tensor([2**53, 2**63 - 1])
    assert measure(golden, golden - 1, fused=True).max_abs_error == 1.0


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
def test_one_spoilt_element_among_many(pair, spoilt):
    golden, actual = near((400_000,), pair, 2, 1e-3)
    actual[123_456] = spoilt
    assert_same(golden, actual, rtol=1e-3)
    golden[123_456] = spoilt
    assert_same(golden, actual, rtol=1e-3)


def test_squares_that_overflow_float64():
    golden, actual = (t * 1e200 for t in near((1000,), (torch.float64, torch.float64), 2, 1e-3))
    assert_same(golden, actual, rtol=1e-3, chunk=64)


def test_threads_do_not_change_a_bit():
    golden, actual = near((1_500_000,), (torch.float32, torch.float32), 2, 1e-3)
    before = torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.add(repr(measure(golden, actual, rtol=1e-3, fused=True)))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_only_large_tensors_load_it():
    code = (
        "import sys, torch\n"
        "from pytest_ascend.judge import metrics\n"
        "metrics.measure(torch.ones(1000), torch.ones(1000))\n"
        "assert 'numba' not in sys.modules\n"
        "metrics.measure(torch.ones(metrics.LARGE), torch.ones(metrics.LARGE))\n"
        "assert 'numba' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("error", [ImportError("no module named numba"), RuntimeError("needs NumPy 2.3 or less")])
def test_a_broken_numba_is_only_slower(monkeypatch, error):
    def broken(*pair):
        raise error

    monkeypatch.setattr(fused, "suits", broken)
    metrics_module._loop.cache_clear()
    try:
        golden, actual = near((1000,), (torch.float32, torch.float32), 2, 1e-3)
        assert measure(golden, actual, fused=True) == measure(golden, actual, fused=False)
    finally:
        metrics_module._loop.cache_clear()
