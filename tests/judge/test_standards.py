"""The criteria on single tensors: what passes, what fails, of which kind, and the thresholds that can't be."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ascend.judge.standards import CRITERIA, TABLE, Criterion, Exactness, judge
from pytest_ascend.judge.verdict import Kind, Verdict

AUTO, EXACT, CLOSE, COSINE = (Criterion(name) for name in ("auto", "exact", "close", "cosine"))
HALVES = [torch.float16, torch.bfloat16]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- thresholds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cosine", math.nan),
        ("cosine", 1.01),
        ("cosine", -1.5),
        ("cosine", math.inf),
        ("max_abs", -1e-9),
        ("max_abs", math.nan),
        ("max_abs", math.inf),
        ("rtol", -1.0),
        ("rtol", math.nan),
        ("atol", math.inf),
        ("atol", "1e-3"),
        ("atol", True),
    ],
)
def test_impossible_thresholds_name_themselves(name, value):
    with pytest.raises(ValueError, match=rf"^{name}=.*can't be a threshold: give a (finite )?number") as error:
        Criterion.of(**{name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["consine", "allclose", "", "AUTO"])
def test_an_unknown_criterion_lists_the_known_ones(name):
    with pytest.raises(ValueError, match="auto, cosine, exact, close"):
        Criterion.of(name)


def test_a_near_miss_is_suggested():
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        Criterion.of("consine")


@pytest.mark.parametrize(
    ("criterion", "threshold", "owner"),
    [
        ("exact", "rtol", "close"),
        ("exact", "cosine", "cosine"),
        ("cosine", "atol", "close"),
        ("close", "max_abs", "cosine"),
    ],
)
def test_a_threshold_that_would_do_nothing_is_refused(criterion, threshold, owner):
    with pytest.raises(ValueError, match=f"criterion '{criterion}' doesn't use {threshold}: '{owner}' does"):
        Criterion.of(criterion, **{threshold: 0.5})


@pytest.mark.parametrize(
    ("given_", "name"), [({"cosine": 0.9}, "cosine"), ({"max_abs": 1}, "cosine"), ({"rtol": 0}, "close")]
)
def test_auto_with_thresholds_is_the_criterion_they_belong_to(given_, name):
    assert Criterion.of("auto", **given_).name == name


def test_thresholds_of_two_criteria_are_refused():
    with pytest.raises(ValueError, match="doesn't use rtol"):
        Criterion.of(cosine=0.9, rtol=1e-3)


def test_a_criterion_can_be_refined():
    assert Criterion.of(Criterion("close", rtol=1e-3), atol=1e-4) == Criterion("close", rtol=1e-3, atol=1e-4)
    assert Criterion.of(CLOSE) is CLOSE
    assert Criterion.of(AUTO, cosine=0.9) == Criterion("cosine", cosine=0.9)


@pytest.mark.parametrize("dtype", TABLE, ids=str)
def test_the_table_is_that_of_torch_testing(dtype):
    assert torch.testing._comparison.default_tolerances(dtype) == TABLE[dtype]


# --- close ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_close_judges_each_element_by_the_table(dtype):
    rtol, atol = TABLE[dtype]
    golden = torch.full((1000,), 3.0, dtype=torch.float64)
    inside, outside = golden.clone(), golden.clone()
    inside[7] += 0.99 * (atol + 3 * rtol)
    outside[7] += 1.01 * (atol + 3 * rtol)
    # float64 on both sides, judged in the dtype's precision: rounding would hide the bound.
    assert judge(golden, inside, criterion=CLOSE, working_dtype=dtype).verdict is Verdict.PASS
    found = judge(golden, outside, criterion=CLOSE, working_dtype=dtype)
    assert (found.verdict, found.kind, found.status) == (Verdict.FAIL, Kind.local, "fail")
    assert "1 of 1000 elements is outside" in found.reason
    assert "[7]" in found.reason


def test_close_with_explicit_tolerances():
    golden, actual = torch.ones(10), torch.full((10,), 1.05)
    assert judge(golden, actual, criterion=Criterion("close", rtol=0.1)).verdict is Verdict.PASS
    assert judge(golden, actual, criterion=Criterion("close", rtol=0.01)).verdict is Verdict.FAIL
    assert judge(golden, actual, criterion=Criterion("close", atol=0.1)).verdict is Verdict.PASS


def test_close_takes_integers_only_with_explicit_tolerances():
    golden, actual = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert judge(golden, actual, criterion=CLOSE).kind is Kind.exact
    assert judge(golden, actual, criterion=Criterion("close", atol=1)).verdict is Verdict.PASS


def test_a_golden_in_a_narrower_dtype_widens_the_tolerance():
    golden, actual = torch.full((10,), 1.0, dtype=torch.float16), torch.full((10,), 1.0005)
    assert judge(golden, actual, criterion=CLOSE).verdict is Verdict.PASS
    assert judge(golden.float(), actual, criterion=CLOSE).verdict is Verdict.FAIL


# --- cosine ---------------------------------------------------------------------------------------------------------


def turned(cosine, largest=None):
    """A pair of vectors with the given cosine, and errors as small as wanted."""
    sine = math.sqrt(1 - cosine**2)
    golden, actual = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([cosine, sine], dtype=torch.float64)
    size = 1.0 if largest is None else largest / max(abs(1 - cosine), sine)
    return golden * size, actual * size


@pytest.mark.parametrize(
    ("cosine", "largest", "status"),
    [
        (1.0, 0.0, "pass"),
        (0.9995, 0.009, "pass"),
        (0.9989, 0.009, "warning"),
        (0.9995, 0.011, "warning"),
        (0.9901, 0.009, "warning"),
        (0.9899, 0.009, "fail"),
        (0.9995, 0.099, "warning"),
        (0.9995, 0.101, "fail"),
    ],
)
def test_cosine_has_the_two_levels_of_the_article(cosine, largest, status):
    golden, actual = turned(cosine, largest) if largest else (torch.ones(2), torch.ones(2))
    found = judge(golden, actual, criterion=COSINE)
    assert found.status == status
    assert found.verdict is (Verdict.FAIL if status == "fail" else Verdict.PASS)
    assert bool(found.reason) is (status != "pass")


def test_given_thresholds_are_the_only_level():
    golden, actual = turned(0.995, 0.005)
    assert judge(golden, actual, criterion=Criterion("cosine", cosine=0.996)).status == "fail"
    assert judge(golden, actual, criterion=Criterion("cosine", cosine=0.994)).status == "pass"
    assert judge(golden, actual, criterion=Criterion("cosine", cosine=0.994, max_abs=0.004)).status == "fail"
    assert "max abs error 0.005 is above 0.004" in (
        judge(golden, actual, criterion=Criterion("cosine", cosine=0.9, max_abs=0.004)).reason
    )


def test_a_threshold_that_was_not_given_keeps_its_level():
    golden, actual = turned(0.98, 0.005)
    assert judge(golden, actual, criterion=Criterion("cosine", max_abs=0.01)).status == "fail"


def test_zeros_on_both_sides_pass_the_strictest_cosine():
    strict = Criterion("cosine", cosine=1.0, max_abs=0.0)
    assert judge(torch.zeros(5), torch.zeros(5), criterion=strict).status == "pass"
    assert judge(torch.zeros(5), torch.full((5,), 1e-30), criterion=strict).status == "fail"


def test_the_same_vector_passes_a_cosine_of_one():
    x = randn(10_001, dtype=torch.float32)
    assert judge(x, x.clone(), criterion=Criterion("cosine", cosine=1.0)).status == "pass"


def test_cosine_still_looks_at_nan_first():
    golden = randn(1000)
    actual = golden.clone()
    actual[3] = math.nan
    assert judge(golden, actual, criterion=COSINE).kind is Kind.non_finite


@pytest.mark.parametrize("criterion", CRITERIA)
def test_empty_tensors_pass_every_criterion(criterion):
    assert judge(torch.ones(0, 3), torch.ones(0, 3), torch.ones(0, 3), Criterion(criterion)).status == "pass"


# --- exact ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_integers_and_booleans_are_exact_whatever_the_criterion(dtype, criterion):
    golden = torch.tensor([1, 0, 1, 1] * 300).to(dtype)
    actual = golden.clone()
    assert judge(golden, actual, criterion=Criterion(criterion)).verdict is Verdict.PASS
    actual[5] = 1
    found = judge(golden, actual, criterion=Criterion(criterion))
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.exact)
    assert "1 of 1200 elements is not equal" in found.reason


@pytest.mark.parametrize("criterion", CRITERIA)
def test_integers_beyond_2_to_53_differ_by_one(criterion):
    found = judge(torch.tensor([2**53, 7]), torch.tensor([2**53 + 1, 7]), criterion=Criterion(criterion))
    assert found.verdict is Verdict.FAIL


def test_an_integer_may_equal_the_golden_or_the_benchmark():
    golden, benchmark = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert judge(golden, torch.tensor([1, 2, 3]), benchmark).verdict is Verdict.PASS
    assert judge(golden, torch.tensor([1, 2, 4]), benchmark).verdict is Verdict.PASS
    assert judge(golden, torch.tensor([1, 2, 5]), benchmark).verdict is Verdict.FAIL


def test_exact_means_the_golden_rounded_to_the_dtype():
    golden = randn(100)
    assert judge(golden, golden.half(), criterion=EXACT).verdict is Verdict.PASS
    actual = golden.half()
    actual[5] = torch.nextafter(actual[5].float(), torch.tensor(9.0)).half() + 0.01
    assert judge(golden, actual, criterion=EXACT).kind is Kind.exact


def test_exact_takes_matching_nan():
    x = torch.tensor([1.0, math.nan, math.inf])
    assert judge(x, x.clone(), criterion=EXACT).verdict is Verdict.PASS
    assert judge(x, torch.tensor([1.0, 1.0, math.inf]), criterion=EXACT).kind is Kind.non_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn], ids=str)
def test_moved_data_keeps_the_sign_of_zero(dtype):
    golden, actual = torch.tensor([0.0, 1.0]).to(dtype), torch.tensor([-0.0, 1.0]).to(dtype)
    assert judge(golden, actual, criterion=EXACT).verdict is Verdict.PASS
    found = judge(golden, actual, exact=Exactness.VALUES)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.exact)
    assert "other sign" in found.reason
    assert judge(golden, golden.clone(), exact=Exactness.VALUES).verdict is Verdict.PASS


def test_moved_data_has_no_tolerance():
    golden = randn(100, dtype=torch.float32)
    actual = golden.clone()
    actual[3] = torch.nextafter(actual[3], torch.tensor(9.0))
    assert judge(golden, actual).verdict is Verdict.PASS
    assert judge(golden, actual, exact=Exactness.VALUES).kind is Kind.exact


# --- non-finite -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["auto", "close", "cosine"])
@pytest.mark.parametrize(
    ("golden", "actual", "words"),
    [
        (1.0, math.nan, "1 of 100000 elements is NaN where the golden is finite"),
        (math.nan, 1.0, "is finite where the golden is NaN"),
        (math.inf, -math.inf, r"is -Inf where the golden is \+Inf"),
        (math.inf, math.nan, r"is NaN where the golden is \+Inf"),
    ],
)
def test_one_wrong_non_finite_value_among_many_fails(criterion, golden, actual, words):
    left = randn(100_000, dtype=torch.float32)
    right = left.clone()
    left[12_345], right[12_345] = golden, actual
    found = judge(left, right, criterion=Criterion(criterion))
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.non_finite)
    assert re.search(words, found.reason)
    assert "12345" in found.reason


def test_a_golden_beyond_the_dtype_that_became_inf_is_right():
    golden = torch.tensor([1e6, 1.0], dtype=torch.float64)
    assert judge(golden, torch.tensor([math.inf, 1.0], dtype=torch.float16)).verdict is Verdict.PASS


def test_a_saturated_value_is_an_overflow():
    golden = torch.tensor([1e6] + [1.0] * 99, dtype=torch.float64)
    actual = torch.tensor([65504.0] + [1.0] * 99, dtype=torch.float16)
    assert judge(golden, actual).kind is Kind.overflow


def test_what_the_cpu_does_in_the_same_dtype_makes_the_reference_suspect():
    golden = randn(1000)
    benchmark, actual = golden.half(), golden.half()
    benchmark[7] = actual[7] = math.nan
    found = judge(golden, actual, benchmark)
    assert (found.verdict, found.status) == (Verdict.REFERENCE_SUSPECT, "warning")
    assert "the CPU in float16 has the same" in found.reason


def test_the_same_nan_does_not_excuse_another_fault():
    golden = randn(1000)
    benchmark, actual = golden.half(), golden.half()
    benchmark[7] = actual[7] = math.nan
    actual[8] = 100.0
    assert judge(golden, actual, benchmark).kind is Kind.local


def test_a_nan_where_the_cpu_has_an_infinity_fails():
    golden = randn(1000)
    benchmark, actual = golden.half(), golden.half()
    benchmark[7], actual[7] = math.inf, math.nan
    assert judge(golden, actual, benchmark).kind is Kind.non_finite


def test_a_nan_of_the_benchmark_alone_neither_fails_nor_excuses():
    golden = randn(100_000)
    benchmark, actual = golden.half(), golden.half()
    benchmark[7] = math.nan
    assert judge(golden, actual, benchmark).verdict is Verdict.PASS
    actual[8] += 0.05
    assert judge(golden, actual, benchmark).verdict is Verdict.FAIL


# --- auto without a benchmark ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_passes(dtype):
    golden = randn(5000)
    assert judge(golden, golden.to(dtype)).status == "pass"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("with_benchmark", [False, True])
def test_small_values_doubled_fail(dtype, with_benchmark):
    golden = randn(1000) * 1e-4
    benchmark = golden.to(dtype) if with_benchmark else None
    found = judge(golden, (golden * 2).to(dtype), benchmark)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.bias)
    assert "about 2 x the golden" in found.reason


@pytest.mark.parametrize("scale", [1e-4, 1e-6, 1e-10])
def test_tiny_values_doubled_fail_without_a_benchmark(scale):
    golden = randn(1000) * scale
    assert judge(golden, (golden * 2).float()).verdict is Verdict.FAIL


def test_tiny_noise_is_no_better_than_large():
    golden, actual = randn(1000, seed=1), randn(1000, seed=2)
    for size in (1.0, 1e-9):
        assert judge(golden * size, (actual * size).float()).verdict is Verdict.FAIL


def test_what_may_be_the_rounding_of_larger_elements_is_marginal_without_a_benchmark():
    golden = randn(1000, seed=1).abs() + 0.5
    golden[::10] *= 1e-3
    actual = golden + 2.0**-9 * randn(1000, seed=2).clamp(-2, 2) * (golden < 0.1)
    found = judge(golden, actual.bfloat16())
    assert (found.verdict, found.status) == (Verdict.MARGINAL, "warning")
    assert "benchmark" in found.reason
    assert judge(golden, (golden + 2.0**-9 * (golden < 0.1)).float()).verdict is Verdict.FAIL


def test_tiny_noise_with_a_benchmark_as_noisy_is_not_a_fault_of_the_target():
    golden, benchmark, actual = (randn(1000, seed=s) * 1e-9 for s in (1, 2, 3))
    found = judge(golden, actual.float(), benchmark.float())
    assert found.verdict is Verdict.REFERENCE_SUSPECT  # pure noise: nothing can be told, and it says so


def test_tiny_noise_beside_an_exact_benchmark_fails():
    golden, actual = randn(1000, seed=1) * 1e-9, randn(1000, seed=2) * 1e-9
    assert judge(golden, actual.float(), golden.float()).verdict is Verdict.FAIL


def test_a_golden_of_zeros_takes_the_plain_table():
    assert judge(torch.zeros(9), torch.full((9,), 1e-7)).verdict is Verdict.PASS
    assert judge(torch.zeros(9), torch.full((9,), 1e-4)).verdict is Verdict.FAIL


# --- auto with a benchmark ------------------------------------------------------------------------------------------


def noisy(golden, sigma, seed, dtype):
    return (golden + sigma * randn(*golden.shape, seed=seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("sigma", [1e-3, 1e-2])
def test_as_far_from_the_golden_as_the_benchmark_passes(dtype, sigma):
    golden = randn(64, 128)
    benchmark, actual = noisy(golden, sigma, 1, dtype), noisy(golden, sigma, 2, dtype)
    assert judge(golden, actual).verdict is not Verdict.PASS  # the table alone would blame it
    found = judge(golden, actual, benchmark)
    assert (found.verdict, found.status) == (Verdict.PASS, "pass")


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_benchmark_itself_always_passes(n, seed):
    golden = randn(n, seed=seed)
    benchmark = noisy(golden, 0.01, seed + 1, torch.bfloat16)
    found = judge(golden, benchmark.clone(), benchmark)
    assert found.verdict in (Verdict.PASS, Verdict.REFERENCE_SUSPECT)


FAULTS = {
    "one doubled": (lambda y: y.index_put_((torch.tensor([5]), torch.tensor([7])), y[5, 7] * 2 + 1), Kind.local),
    "tail unwritten": (lambda y: y[-2:].zero_(), Kind.local),
    "everything 10 % larger": (lambda y: y.mul_(1.1), None),
    "constant added": (lambda y: y.add_(0.1), Kind.bias),
    "rows rolled": (lambda y: y.copy_(y.roll(1, 0)), Kind.spread),
    "zeros": (lambda y: y.zero_(), None),
    "another input": (lambda y: y.copy_(randn(64, 128, seed=9).to(y.dtype)), Kind.spread),
    "constant": (lambda y: y.fill_(0.5), None),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_faults_fail_beside_a_noisy_benchmark(dtype, fault):
    golden = randn(64, 128)
    benchmark, actual = noisy(golden, 1e-2, 1, dtype), noisy(golden, 1e-2, 2, dtype)
    plant, kind = FAULTS[fault]
    plant(actual)
    found = judge(golden, actual, benchmark)
    assert found.verdict is Verdict.FAIL
    assert kind is None or found.kind is kind


def test_twice_the_noise_of_the_benchmark_fails_as_spread():
    golden = randn(64, 128)
    benchmark, actual = (noisy(golden, sigma, seed, torch.float32) for sigma, seed in ((1e-2, 1), (2.1e-2, 2)))
    found = judge(golden, actual, benchmark)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.spread)
    assert "x that of the CPU in float32" in found.reason


def test_a_small_element_off_by_a_tenth_fails_by_its_relative_error():
    golden = randn(1000)
    golden[5] = 5e-3
    actual = golden.bfloat16()
    actual[5] *= 1.1
    found = judge(golden, actual, golden.bfloat16())
    assert found.verdict is Verdict.FAIL
    assert found.reason.startswith("largest relative error")


def test_a_few_steps_among_subnormals_are_rounding():
    step = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    golden = step * torch.arange(100, 300, dtype=torch.float64)
    actual = golden.half()
    actual[7] += 2 * step
    assert judge(golden, actual, golden.half()).verdict is Verdict.PASS
    actual[7] += 100 * step
    assert judge(golden, actual, golden.half()).verdict is Verdict.FAIL


def test_a_local_fault_lists_what_the_benchmark_does_not_excuse():
    golden = randn(64, 128)
    benchmark, actual = noisy(golden, 1e-2, 1, torch.float16), noisy(golden, 1e-2, 2, torch.float16)
    actual[3, 17] += 1
    found = judge(golden, actual, benchmark)
    assert (
        "1 of 8192 elements is more than 3 x as wrong as the worst of the CPU in float16 (worst at [3, 17])"
        in found.reason
    )
    assert found.metrics.worst[0].index == (3, 17)


def test_a_benchmark_far_from_the_golden_can_tell_nothing():
    golden, other = randn(1000, seed=1), randn(1000, seed=2).float()
    found = judge(golden, other.clone(), other)
    assert (found.verdict, found.status) == (Verdict.REFERENCE_SUSPECT, "warning")
    assert "nothing can be told" in found.reason


@pytest.mark.parametrize("seed", range(20))
def test_few_elements_get_room(seed):
    golden = randn(2, seed=seed) + 3
    benchmark, actual = noisy(golden, 1e-3, seed + 100, torch.float32), noisy(golden, 1e-3, seed + 200, torch.float32)
    # Two elements say little about a mean, unless the benchmark is right by great luck.
    lucky = (benchmark.double() - golden).abs().max() < 4e-4
    assert lucky or judge(golden, actual, benchmark).verdict is Verdict.PASS
    assert judge(golden, actual + 0.5, benchmark).verdict is Verdict.FAIL
    assert judge(golden, actual.roll(1), benchmark).verdict is Verdict.FAIL


def test_complex_outputs_are_judged_beside_a_benchmark():
    golden = torch.complex(randn(500, seed=1), randn(500, seed=2))
    noise = [1e-3 * torch.complex(randn(500, seed=s), randn(500, seed=s + 1)) for s in (3, 5)]
    benchmark, actual = ((golden + n).to(torch.complex64) for n in noise)
    assert judge(golden, actual, benchmark).verdict is Verdict.PASS
    actual[4] += 1j
    assert judge(golden, actual, benchmark).kind is Kind.local


def test_float8_outputs_pass_when_rounded_and_fail_when_not():
    golden = randn(1000)
    actual = golden.to(torch.float8_e4m3fn)
    assert judge(golden, actual).verdict is Verdict.PASS
    assert judge(golden, (golden * 1.5).to(torch.float8_e4m3fn)).verdict is Verdict.FAIL


def test_a_python_float_is_judged_as_float32():
    golden, actual = torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0 + 1e-6, dtype=torch.float64)
    assert judge(golden, actual).verdict is Verdict.FAIL
    assert judge(golden, actual, working_dtype=torch.float32).verdict is Verdict.PASS


# --- a whole model --------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A pre-norm transformer block; ``swap`` computes its products in another order, as another device would."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 3 * width),
            torch.nn.Linear(width, width),
        )
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x, split):
        def linear(layer, x):
            if not split:
                return layer(x)
            k = x.shape[-1] // 2
            w = layer.weight.float()
            y = x[..., :k].float() @ w[:, :k].T + x[..., k:].float() @ w[:, k:].T + layer.bias.float()
            return y.to(x.dtype)

        q, k, v = linear(self.qkv, self.norm(x)).chunk(3, -1)
        x = x + linear(self.out, torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v)
        return x + linear(self.down, torch.nn.functional.gelu(linear(self.up, x)))


def run(blocks, x, split=False, fault=None):
    for i, block in enumerate(blocks):
        x = block(x, split)
        if fault is not None and i == 5:
            x = fault(x.clone())
    return x


def double_one(x):
    x[1, 3, 5] *= 3
    return x


MODEL_FAULTS = {
    "scaled": lambda x: x * 1.1,
    "one element": double_one,
    "stale channel": lambda x: torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], -1),
    "rolled": lambda x: x.roll(1, 1),
    "last row repeated": lambda x: torch.cat([x[:-1], x[-2:-1]]),
}


@pytest.fixture
def one_thread():
    """Small products are slower on several threads, and far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_a_right_model_of_twelve_layers_passes_and_faulty_ones_fail(dtype):
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(Block(64) for _ in range(12)).to(dtype)
    x = randn(4, 32, 64, dtype=dtype)
    with torch.no_grad():
        benchmark, actual = run(blocks, x), run(blocks, x, split=True)
        wrong = {name: run(blocks, x, split=True, fault=fault) for name, fault in MODEL_FAULTS.items()}
        golden = run(blocks.double(), x.double())
    assert judge(golden, actual, benchmark).verdict is Verdict.PASS
    if dtype != torch.float32:
        assert judge(golden, actual).verdict is Verdict.FAIL, "the table alone would pass: the test proves nothing"
    verdicts = {name: judge(golden, output, benchmark).verdict for name, output in wrong.items()}
    assert verdicts == dict.fromkeys(MODEL_FAULTS, Verdict.FAIL)
