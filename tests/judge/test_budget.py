"""The error budget: rounding and the function itself are explained, anything beyond is not."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_ascend.judge.budget import Statistics, excess, is_explained, is_legal, normalised, unit, weigh
from pytest_ascend.judge.verdict import Kind, Verdict

NARROW = [torch.float16, torch.bfloat16]


def golden(n: int = 400) -> torch.Tensor:
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def truncated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    step = torch.frexp(x).exponent.double().exp2() * torch.finfo(dtype).eps / 2
    return (torch.trunc(x / step) * step).to(dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_rounding_once_is_explained(dtype):
    g = golden()
    assert is_explained(g, g.to(dtype))
    assert weigh(g, g.to(dtype), None, g.to(dtype), composed=False).verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", NARROW)
def test_a_truncating_store_leans_one_way(dtype):
    g = golden()
    bad = truncated(g, dtype)
    assert not is_explained(g, bad)
    for composed in (False, True):
        found = weigh(g, bad, None, g.to(dtype), g.to(dtype), composed=composed)
        assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.bias)
        assert f"what rounding to {str(dtype).removeprefix('torch.')}" in found.reason


WIDE = 0.02  # a spread, beside the golden, in which last bits don't show


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
@pytest.mark.parametrize("composed", [False, True])
def test_a_store_without_rounding_shows_in_all_elements_together(dtype, composed):
    g = golden()
    spread, own = WIDE * g.abs(), g.to(dtype)
    assert weigh(g, own, spread, own, composed=composed).verdict is Verdict.PASS
    step = torch.frexp(g).exponent.double().exp2() * torch.finfo(dtype).eps / 2
    for side, bad in (("towards zero", truncated(g, dtype)), ("one way", (torch.floor(g / step) * step).to(dtype))):
        found = weigh(g, bad, spread, own, composed=composed)
        assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.bias)
        assert side in found.reason
        # Where the CPU stores like that as well it proves nothing.
        assert weigh(g, bad, spread, bad, composed=composed).verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", NARROW)
def test_values_in_fewer_bits_show_in_all_elements_together(dtype):
    g = golden()
    step = torch.frexp(g).exponent.double().exp2() * torch.finfo(dtype).eps * 2
    coarse = (torch.round(g / step) * step).to(dtype)
    found = weigh(g, coarse, 8 * WIDE * g.abs(), g.to(dtype))
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.spread)
    assert "fewer bits" in found.reason
    few = coarse.double()  # the values themselves have no more
    assert weigh(few, coarse, None, few.to(dtype)).verdict is Verdict.PASS


@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_one_per_cent_in_bfloat16_fails(factor):
    g = golden()
    found = weigh(g, (g * factor).bfloat16(), None, g.bfloat16(), composed=True)
    assert found.verdict is Verdict.FAIL
    assert found.times > 1


def test_one_element_off_is_local():
    g = golden()
    bad = g.half()
    bad[7] *= 1.05
    assert (weigh(g, bad, None, g.half()).kind, weigh(g, bad, None, g.half()).verdict) == (Kind.local, Verdict.FAIL)


def poor(g: torch.Tensor, seed: int, roundoffs: float = 3.0) -> torch.Tensor:
    """As if intermediates had been rounded."""
    noise = torch.randn(g.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (g + roundoffs * 2**-8 * g.abs() * noise).bfloat16()


def test_a_composition_may_be_as_far_off_as_the_cpu_and_one_kernel_may_not():
    g = golden()
    own, other = poor(g, 1), poor(g, 2)
    assert weigh(g, own, None, own, g.bfloat16(), composed=True).verdict is Verdict.PASS
    assert weigh(g, other, None, own, g.bfloat16(), composed=True).verdict is Verdict.FAIL
    handed_on = 0.03 * g.abs()  # what rounding intermediates does was measured
    assert weigh(g, other, handed_on, own, g.bfloat16(), composed=True).verdict is Verdict.PASS
    same = weigh(g, own, None, own, g.bfloat16(), composed=False)
    assert same.verdict is Verdict.MARGINAL
    assert "as is the CPU's own" in same.reason
    assert weigh(g, other, None, own, g.bfloat16(), composed=False).verdict is Verdict.FAIL
    assert weigh(g, poor(g, 2, 30.0), None, own, g.bfloat16(), composed=True).verdict is Verdict.FAIL


def test_a_poor_cpu_kernel_doesnt_hide_one_wrong_element():
    g = golden()
    own = poor(g, 1, 30.0)
    bad = own.clone()
    bad[7] = bad[7] * 1.05
    assert weigh(g, bad, None, own, g.bfloat16(), composed=False).verdict is Verdict.FAIL


def test_the_spread_is_a_part_of_the_unit():
    g = torch.full((64,), 1e-6, dtype=torch.float64)
    bad = (g + golden(64) * 7e-4).bfloat16()
    assert not is_explained(g, bad)
    spread = torch.full_like(g, 2e-3)
    assert weigh(g, bad, spread, g.bfloat16(), composed=False).verdict is Verdict.PASS
    assert is_legal(g, bad, g.bfloat16(), spread)
    assert not is_legal(g, bad, g.bfloat16(), torch.zeros_like(g))
    assert excess(g, bad, g.bfloat16()) > 1


def test_equal_elements_round_alike_and_are_no_bias():
    g = torch.full((1000,), 1.0 + 0.3 * 2**-7, dtype=torch.float64)
    assert is_explained(g, g.bfloat16())


def test_infinities_and_nans():
    g = torch.tensor([1.0, 1e6, math.nan, math.inf], dtype=torch.float64)
    assert is_explained(g, g.half())
    for i in range(4):
        bad = g.half()
        bad[i] = -math.inf
        assert not is_explained(g, bad)
        assert weigh(g, bad, None, g.half(), composed=True).verdict is Verdict.FAIL


def test_complex_errors_keep_their_direction():
    g = torch.complex(golden(100), golden(100).flip(0))
    actual = (g * (1 + 1e-6)).to(torch.complex64)
    found = Statistics.of(normalised(g, actual, unit(g, actual.dtype)), g)
    assert found.bias > 5
    assert not is_explained(g, actual)
    assert is_explained(g, g.to(torch.complex64))


def test_nothing_is_in_budget():
    empty = torch.zeros(0, dtype=torch.float64)
    assert is_explained(empty, empty.half())
    assert excess(empty, empty.half(), None) == 0.0


def carried(n: int, drawn: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A golden beside larger intermediates, errors that rounding these leaves, and the larger of two draws of them."""
    g = torch.randn(n, dtype=torch.float64, generator=drawn) * 2.0**-8
    steps = torch.rand(6, n, dtype=torch.float64, generator=drawn) * 2 - 1
    sign = torch.randint(0, 2, (2, 6, n), generator=drawn) * 2.0 - 1
    draws = (torch.rand(2, 6, n, dtype=torch.float64, generator=drawn) + 0.5) * sign
    return g, (steps.sum(0) * 2.0**-9 / 2), (draws.sum(1) * 2.0**-9).abs().amax(0)


def test_among_many_carried_errors_some_are_large():
    drawn = torch.Generator().manual_seed(3)
    g, _, spread = carried(100_000, drawn)
    error = 0.45 * spread.mean() * torch.randn(len(g), dtype=torch.float64, generator=drawn)
    spread = spread.clamp_min(float(spread.mean()))  # what a few more draws show
    actual, once = (g + error).bfloat16(), g.bfloat16()
    assert weigh(g, actual, spread, once, composed=True).verdict is Verdict.PASS
    assert weigh(g, actual, spread, once, composed=True, drawn=False).verdict is Verdict.FAIL
    actual[7] += 6 * spread[7]
    found = weigh(g, actual, spread, once, composed=True)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.local)


def test_few_carried_errors_have_no_more_room_than_one():
    g, _, spread = carried(3, torch.Generator().manual_seed(3))
    actual = (g + 2.0 * spread).bfloat16()
    assert weigh(g, actual, spread, g.bfloat16(), composed=True).verdict is Verdict.FAIL


def test_a_cpu_that_leans_beside_a_few_poor_elements_excuses_the_same_lean():
    g = golden(125).abs() + 1
    own = (g * (1 - 2.0**-12 * 0.9)).half()  # leans by half a step or so
    own[:6] = (g[:6] * (1 + 30 * 2.0**-11)).half()  # and is poor where it cancels
    found = weigh(g, own.clone(), None, own, g.half(), composed=False)
    assert found.verdict is not Verdict.FAIL
    worse = (own.double() * (1 - 2.0**-11 * 1.2)).half()
    assert weigh(g, worse, None, own, g.half(), composed=False).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", NARROW)
def test_a_result_better_than_the_cpu_s_is_no_excuse_for_one_element(dtype):
    g = golden(64)
    roundoff = torch.finfo(dtype).eps / 2
    own = poor(g, 1, 12.0).to(dtype) if dtype is torch.float16 else (g * (1 + 12 * roundoff * g.sign())).to(dtype)
    everywhere = (g * (1 + 2.4 * roundoff * torch.where(torch.arange(64) % 2 == 0, 1, -1))).to(dtype)
    assert weigh(g, everywhere, None, own, None, composed=False).verdict is not Verdict.FAIL
    one = g.to(dtype)
    one[5] = g[5] * (1 + 4 * roundoff)
    assert weigh(g, one, None, own, g.to(dtype), composed=False).verdict is Verdict.FAIL


def test_a_cpu_that_is_lost_too_raises_the_question_who_is_right():
    g = golden(64)
    own = (g * 3).half()
    found = weigh(g, own.clone(), None, own, composed=True)
    assert found.verdict is Verdict.REFERENCE_SUSPECT
    assert "who is right?" in found.reason


def test_wide_results_are_explained_by_more_roundings_but_not_by_another_store():
    g = golden()
    own, steps = g.float(), g * (1 + 2.0**-24 * (torch.arange(400) % 3 - 1))
    assert is_explained(g, own, own)
    assert is_explained(g, steps.float(), own)
    assert not is_explained(g, steps.float() * (1 + 2.0**-19), own)
    assert not is_explained(g, truncated(g, torch.float32), own)


class TestWhereTheSpreadIsNoYardstick:
    """A gradient that cancels to zero beside one that a relu's flip moved: a key's bias beside a value's."""

    def sides(self, jump: float = 4e-3, noise: float = 1e-7) -> tuple[torch.Tensor, ...]:
        draw = torch.Generator().manual_seed(0)

        def drawn(size: float) -> torch.Tensor:
            return torch.randn(64, generator=draw, dtype=torch.float64) * size

        golden = torch.cat([drawn(1e-16), drawn(1.0)])
        spread = torch.cat([drawn(1e-16).abs() + 1e-17, torch.full((64,), 4e-3, dtype=torch.float64)])
        benchmark = (golden + torch.cat([drawn(1e-7), drawn(1e-7)])).float()
        actual = (golden + torch.cat([drawn(noise), torch.full((64,), jump, dtype=torch.float64)])).float()
        return golden, actual, benchmark, spread

    def test_noise_as_large_as_the_cpu_s_is_legal(self) -> None:
        assert is_legal(*self.sides())

    def test_without_the_cpu_s_result_it_is_not(self) -> None:
        golden, actual, _, spread = self.sides()
        assert not is_legal(golden, actual, None, spread)

    @pytest.mark.parametrize("wrong", [{"noise": 1e-5}, {"noise": 1e-3}, {"jump": 4e-2}])
    def test_more_than_that_is_not(self, wrong: dict[str, float]) -> None:
        assert not is_legal(*self.sides(**wrong))
