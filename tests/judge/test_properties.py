"""What must hold of a judgement whatever the numbers are (Hypothesis).

Scaling all sides by a power of two, or shuffling their elements alike, never changes a verdict; a larger error never
turns FAIL into PASS; identical tensors always PASS.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import pytest_ascend as pa
from pytest_ascend.judge.standards import CRITERIA
from pytest_ascend.judge.verdict import Verdict

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLOAT8 = tuple(
    getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
)  # fmt: skip
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SHAPES = ((), (0,), (1,), (3, 0, 2), (2, 3), (17,), (4, 33), (1, 1, 1, 1))

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**20)


def random(seed):
    return torch.Generator().manual_seed(seed)


def values(shape, dtype, seed, special=0.0):
    """Normal numbers, a share of them NaN, infinite or a zero of either sign."""
    generator = random(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        return torch.randint(max(info.min, -1000), min(info.max, 1000), shape, generator=generator).to(dtype)
    if dtype.is_complex:
        real, imag = values(shape, torch.float64, seed, special), values(shape, torch.float64, seed + 1, special)
        return torch.complex(real, imag).to(dtype)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])[
        torch.randint(5, shape, generator=generator)
    ].double()
    return torch.where(torch.rand(shape, generator=generator) < special, odd, numbers).to(dtype)


# --- identical tensors ----------------------------------------------------------------------------------------------


@quick
@given(
    dtype=st.sampled_from((*FLOATS, *FLOAT8, *COMPLEX, *INTEGERS)),
    shape=st.sampled_from(SHAPES),
    criterion=st.sampled_from(CRITERIA),
    special=st.sampled_from((0.0, 0.3, 1.0)),
    benchmark=st.booleans(),
    seed=seeds,
)
def test_identical_tensors_pass(dtype, shape, criterion, special, benchmark, seed):
    value = values(shape, dtype, seed, special)
    result = pa.compare(value, value.clone(), benchmark=value.clone() if benchmark else None, criterion=criterion)
    assert result.verdict is Verdict.PASS, str(result)


@quick
@given(
    dtype=st.sampled_from(FLOATS[:3]),
    shape=st.sampled_from(SHAPES),
    special=st.sampled_from((0.0, 0.3)),
    seed=seeds,
)
def test_the_golden_rounded_once_passes_auto(dtype, shape, special, seed):
    golden = values(shape, torch.float64, seed, special)
    once = golden.to(dtype)
    assert pa.compare(golden, once).verdict is Verdict.PASS
    assert pa.compare(golden, once, benchmark=once).verdict is Verdict.PASS


# --- sides with errors ----------------------------------------------------------------------------------------------


@st.composite
def sides(draw, sizes=(1, 2, 3, 8, 17, 64, 300), least=1):
    """``(golden, actual, benchmark or None, dtype)``: a benchmark with rounding errors, an actual with some more."""
    dtype = draw(st.sampled_from((*FLOATS, torch.complex64)))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    n = draw(st.sampled_from([s for s in sizes if s >= least]))
    generator = random(draw(seeds))

    def noise():
        return torch.randn(n, generator=generator, dtype=wide)

    golden = noise()
    if draw(st.booleans()):
        golden *= 10.0 ** torch.randint(-3, 3, (n,), generator=generator)  # elements of many sizes
    u = torch.finfo(dtype).eps / 2
    rough = draw(st.sampled_from((0.0, 1.0, 30.0))) * u
    benchmark = golden + rough * noise() * golden.abs()
    worse = draw(st.sampled_from((0.0, 0.5, 2.0, 8.0, 64.0, 4096.0))) * u
    kind = draw(st.sampled_from(("noise", "one", "factor", "constant")))
    error = {
        "noise": noise() * golden.abs(),
        "one": golden * (torch.arange(n) == n // 2),
        "factor": golden,
        "constant": torch.ones(n, dtype=wide) * golden.abs().square().mean().sqrt(),
    }[kind]
    own = benchmark.to(dtype) if draw(st.booleans()) else None
    return golden, (golden + worse * error).to(dtype), own, dtype


def verdict(golden, actual, benchmark, criterion):
    return pa.compare(golden, actual, benchmark=benchmark, criterion=criterion).verdict


#: Their thresholds are relative, or in units of the last place, or the data's own.
SCALE_FREE = ("auto", "exact", "binary")


@quick
@given(sides=sides(), power=st.integers(-6, 6), criterion=st.sampled_from(SCALE_FREE))
def test_a_common_power_of_two_changes_no_verdict(sides, power, criterion):
    golden, actual, benchmark, dtype = sides
    lowest = min(float(t[t != 0].abs().min()) for t in (golden, actual) if bool((t != 0).any()))
    assume(lowest * 2.0**power > 4 * torch.finfo(dtype).smallest_normal)
    assume(lowest > 4 * torch.finfo(dtype).smallest_normal)
    scaled = [None if t is None else t * 2.0**power for t in (golden, actual, benchmark)]
    assert verdict(*scaled, criterion) is verdict(golden, actual, benchmark, criterion)


def test_a_common_power_of_two_changes_no_verdict_of_large_data():
    """A small element that is two units in the last place too large, beside a large one."""
    golden = torch.tensor([1.0, 2.0**-7], dtype=torch.float64)
    actual = torch.tensor([1.0, 0.0078277587890625], dtype=torch.float16)
    assert verdict(64 * golden, 64 * actual, None, "auto") is verdict(golden, actual, None, "auto")


@quick
@given(sides=sides(), criterion=st.sampled_from(CRITERIA), seed=seeds)
def test_a_common_order_of_the_elements_changes_no_verdict(sides, criterion, seed):
    golden, actual, benchmark, _ = sides
    order = torch.randperm(golden.numel(), generator=random(seed))
    shuffled = [None if t is None else t[order] for t in (golden, actual, benchmark)]
    assert verdict(*shuffled, criterion) is verdict(golden, actual, benchmark, criterion)


@quick
@given(sides=sides(), criterion=st.sampled_from(CRITERIA))
def test_a_common_sign_changes_no_verdict(sides, criterion):
    golden, actual, benchmark, _ = sides
    flipped = [None if t is None else -t for t in (golden, actual, benchmark)]
    assert verdict(*flipped, criterion) is verdict(golden, actual, benchmark, criterion)


@quick
@given(sides=sides(), criterion=st.sampled_from(CRITERIA), shape=st.sampled_from(((-1,), (-1, 1), (1, -1))))
def test_another_shape_of_all_sides_changes_no_verdict(sides, criterion, shape):
    golden, actual, benchmark, _ = sides
    shaped = [None if t is None else t.reshape(shape) for t in (golden, actual, benchmark)]
    assert verdict(*shaped, criterion) is verdict(golden, actual, benchmark, criterion)


@quick
@given(sides=sides(), k=st.sampled_from((1.5, 2.0, 4.0, 100.0)), criterion=st.sampled_from(CRITERIA))
def test_a_larger_error_never_turns_fail_into_pass(sides, k, criterion):
    golden, actual, benchmark, dtype = sides
    assume(verdict(golden, actual, benchmark, criterion) is Verdict.FAIL)
    # Rounding may have made the larger error the smaller one, and the wrong sign of a zero is no error to multiply.
    stored = (golden + k * (actual.to(golden.dtype) - golden)).to(dtype)
    error, before = ((t.to(golden.dtype) - golden).abs() for t in (stored, actual))
    assume(bool((error >= before).all()) and bool((error > before).any()))
    assert verdict(golden, stored, benchmark, criterion) is not Verdict.PASS


@quick
@given(sides=sides(), criterion=st.sampled_from(CRITERIA))
@example(sides=(torch.ones(4, dtype=torch.float64), torch.ones(4), None, torch.float32), criterion="auto")
def test_one_more_wrong_element_never_turns_fail_into_pass(sides, criterion):
    """A NaN among the actual's elements fails whatever passed before."""
    golden, actual, benchmark, _ = sides
    broken = actual.clone()
    broken[0] = math.nan
    assert verdict(golden, broken, benchmark, criterion) is Verdict.FAIL


# --- the same of a whole check --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def options():
    from pytest_ascend.targets import resolve

    resolve("emulated")
    return pa.CheckOptions(target="emulated", backward=False)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_elementwise_functions_pass_in_any_order(options, shape, dtype):
    x = values(shape, dtype, 7)
    order = torch.randperm(x.numel(), generator=random(3))
    for fn in (torch.exp, torch.tanh, torch.neg):
        assert pa.check(fn, x, options=options).passed
        assert pa.check(fn, x.reshape(-1)[order], options=options).passed


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(FLOATS[:3]), relative=st.sampled_from((0.0, 2.0**-6)), power=st.integers(-3, 3), seed=seeds
)
def test_scale_and_order_change_no_verdict_of_a_check(options, dtype, relative, power, seed):
    from pytest_ascend.targets import emulator

    x = values((96,), dtype, seed)
    order = torch.randperm(x.numel(), generator=random(seed))
    with emulator.override("aten::neg", lambda x: torch.neg(x) * (1 + relative)):
        plain = pa.check(torch.neg, x, options=options).verdict
        assert pa.check(torch.neg, x[order], options=options).verdict is plain
        assert pa.check(torch.neg, x * 2.0**power, options=options).verdict is plain
    assert plain is (Verdict.FAIL if relative else Verdict.PASS)
