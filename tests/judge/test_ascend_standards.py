"""The named Ascend standards: their tables, just inside and just outside each limit, and what they can't judge."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_ascend.judge import ascend_standards as standards
from pytest_ascend.judge.compare import compare
from pytest_ascend.judge.standards import CRITERIA, Criterion, judge
from pytest_ascend.judge.verdict import Kind, Verdict

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
DTYPES = [F32, F16, BF16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ALL = ("binary", *standards.NAMES)
each_standard = pytest.mark.parametrize("name", ALL)


def randn(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def by(name, golden, actual, benchmark=None, dtype=None):
    """Judged in the precision of ``dtype`` with both sides in float64: rounding would hide the bounds."""
    return judge(golden, actual, benchmark, Criterion(name), working_dtype=dtype)


def off(golden, where, error):
    """A copy of the golden with errors at some elements."""
    actual = golden.clone()
    actual[where] += error
    return actual


# --- tables ---------------------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_documents():
    assert standards.ABSOLUTE == {F32: (1e-6, 1e-6, 1e-9), F16: (1e-3, 1e-3, 1e-5), BF16: (4e-3, 1e-3, 1e-5)}
    assert standards.ULP == {F32: (32, 0.05, 64), F16: (1, 0.001, None), BF16: (1, 0.001, None)}
    assert standards.THOUSANDTH == {F32: 1e-4, F16: 1e-3, BF16: 4e-3}
    assert {d: standards.MIXED[d] for d in DTYPES} == {F32: (2**-13, 1e-2), F16: (2**-10, 0.1), BF16: (2**-7, 0.1)}
    assert standards.MIXED[torch.float8_e4m3fn] == (2**-3, 1.0)
    assert standards.MIXED[torch.float8_e5m2] == (2**-2, 1.0)
    assert (standards.MIXED_RATIO, standards.MIXED_ULP) == (0.99, 32)
    assert standards.LEVELS == {"L0": (10, 2, 2), "L1": (5, 1.5, 1.5), "L2": (2, 1.2, 1.2)}
    assert standards.SMALL_VALUES == {F32: (2**-14, 2**-30), F16: (2**-11, 2**-16), BF16: (2**-8, 2**-16)}


def test_every_standard_is_a_criterion_without_thresholds():
    assert set(ALL) < set(CRITERIA)
    for name in ALL:
        assert Criterion.of(name).name == name
        with pytest.raises(ValueError, match=f"criterion {name!r} doesn't use rtol: 'close' does"):
            Criterion.of(name, rtol=0.1)


@pytest.mark.parametrize(
    ("given", "meant"), [("ulps", "ulp"), ("benchmark:L3", "benchmark:L"), ("absolut", "absolute")]
)
def test_a_near_miss_is_suggested(given, meant):
    with pytest.raises(ValueError, match=f"criterion {given!r} is not known.*did you mean '{meant}"):
        Criterion.of(given)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("absolute", [(1e-6, 1e-9), (1e-3, 1e-5), (4e-3, 1e-5)]),
        ("ulp", [(32 * 2.0**-23, 0), (2.0**-10, 0), (2.0**-7, 0)]),
        ("thousandth", [(1e-4, 0), (1e-3, 0), (4e-3, 0)]),
        ("mixed", [(2.0**-13,) * 2, (2.0**-10,) * 2, (2.0**-7,) * 2]),
        ("benchmark", [None] * 3),
    ],
)
def test_the_metrics_count_what_is_outside_the_standard(name, limits):
    assert [standards.tolerance(name, dtype) for dtype in DTYPES] == limits
    assert standards.tolerance(name, torch.complex64) == limits[0]
    assert standards.tolerance(name, F64) is None
    golden = torch.ones(10, dtype=F64)
    if limits[0]:
        rtol, atol = limits[0]
        found = by(name, golden, off(golden, slice(3), 1.01 * (rtol + atol)), dtype=F32)
        assert found.metrics.mismatches == 3


def test_an_unknown_standard_has_no_rows():
    with pytest.raises(KeyError, match="mere"):
        standards.assess("mere", torch.ones(1), torch.ones(1), None, F32)


# --- what holds for all ---------------------------------------------------------------------------------------------


@each_standard
@each_dtype
@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (64, 65)], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-6, 3e4])
def test_the_golden_rounded_once_meets_every_standard(name, dtype, shape, size):
    golden = randn(*shape) * size
    actual = golden.to(dtype)
    assert judge(golden, actual, actual.clone(), Criterion(name)).verdict is Verdict.PASS


@each_standard
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "dtype",
    [F64, torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
     torch.int8, torch.int64],
    ids=str,
)  # fmt: skip
def test_identical_tensors_meet_every_standard_in_any_dtype(name, dtype):
    x = (randn(50) * 5).to(dtype)
    assert judge(x, x.clone(), None if "benchmark" in name and dtype is F64 else x, Criterion(name)).status == "pass"


@each_standard
@each_dtype
def test_zeros_are_zeros(name, dtype):
    zeros = torch.zeros(300, dtype=dtype)
    assert judge(zeros.double(), zeros, zeros, Criterion(name)).verdict is Verdict.PASS
    assert judge(zeros.double(), zeros + 5e-4, zeros, Criterion("absolute")).verdict is Verdict.FAIL


@each_standard
@each_dtype
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_fails_first(name, dtype, bad):
    golden = randn(100_000)
    actual = golden.to(dtype)
    actual[77] = bad
    found = judge(golden, actual, golden.to(dtype), Criterion(name))
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.non_finite)


@each_standard
def test_equal_nan_and_infinities_take_no_part(name):
    golden = randn(100)
    golden[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    assert judge(golden, golden.half(), golden.half(), Criterion(name)).verdict is Verdict.PASS
    golden[:] = math.nan
    assert judge(golden, golden.half(), golden.half(), Criterion(name)).verdict is Verdict.PASS


@each_standard
def test_an_infinity_of_the_other_sign_fails(name):
    found = judge(torch.tensor([math.inf]), torch.tensor([-math.inf]), torch.tensor([math.inf]), Criterion(name))
    assert found.verdict is Verdict.FAIL


@each_standard
@pytest.mark.parametrize(
    ("golden", "actual", "kind"),
    [
        (torch.ones(3), torch.ones(4), Kind.shape),
        (torch.ones(3), torch.ones(3, dtype=F16), Kind.dtype),
        ([torch.ones(3)], [torch.ones(3), torch.ones(3)], Kind.structure),
        (torch.tensor([-128, 1], dtype=torch.int8), torch.tensor([127, 1], dtype=torch.int8), Kind.exact),
        (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int32), Kind.dtype),
    ],
    ids=["shape", "dtype", "structure", "integers", "integer dtype"],
)
def test_form_and_exactness_come_before_the_standard(name, golden, actual, kind):
    found = compare(golden, actual, benchmark=golden, criterion=name)
    assert (found.verdict, found.kind, found.criterion) == (Verdict.FAIL, kind, name)


@each_standard
def test_an_integer_result_is_exact_even_against_floats(name):
    golden, actual = torch.tensor([1.0, 2.0]), torch.tensor([1, 3])
    found = compare(golden, actual, criterion=name, exact_dtype=False)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.exact)


WRONG = {
    "twice the golden at size 1e-4": lambda g: (g * 1e-4, g * 2e-4),
    "zeros": lambda g: (g, g * 0),
    "the golden's negative": lambda g: (g, -g),
    "twice the golden": lambda g: (g, g * 2),
    "scaled by 77": lambda g: (g, g * 77),
    "a block of another": lambda g: (g, torch.cat([g[:-64], g[:64]])),
}


@each_standard
@each_dtype
@pytest.mark.parametrize("fault", WRONG)
def test_gross_faults_fail_every_standard_that_can_see_them(name, dtype, fault):
    golden, actual = WRONG[fault](randn(2000))
    found = judge(golden, actual.to(dtype), golden.to(dtype), Criterion(name))
    # In 16 bits the mixed standard's tolerance is far above 1e-4, and 64 of 2000 elements are less than 5 %.
    blind = (name == "mixed" and fault == "twice the golden at size 1e-4" and dtype is not F32) or (
        name == "ulp" and fault == "a block of another" and dtype is F32
    )
    assert found.verdict is (Verdict.PASS if blind else Verdict.FAIL)
    if not blind and name != "binary":
        assert found.reason.startswith(f"standard {name}: ")


@each_standard
def test_a_conjugate_fails(name):
    golden = torch.complex(randn(500), randn(500, seed=1))
    found = judge(golden, golden.conj().to(torch.complex64), golden.to(torch.complex64), Criterion(name))
    assert found.verdict is Verdict.FAIL


@each_standard
def test_strides_and_lazy_bits_are_read_right(name):
    golden = torch.complex(randn(30, 20), randn(30, 20, seed=1))
    actual = golden.conj().to(torch.complex64).conj().t()
    assert judge(golden.t(), actual, actual, Criterion(name)).verdict is Verdict.PASS
    lazy = golden.conj()
    assert lazy.is_conj()
    assert judge(lazy, lazy.to(torch.complex64), lazy.to(torch.complex64), Criterion(name)).verdict is Verdict.PASS
    assert judge(lazy, lazy * 2, lazy, Criterion(name), working_dtype=torch.complex64).verdict is Verdict.FAIL
    negative = lazy.imag
    assert negative.is_neg()
    assert judge(negative, negative.float(), negative.float(), Criterion(name)).verdict is Verdict.PASS


@pytest.mark.parametrize("name", [n for n in standards.NAMES if n != "mixed"])
@pytest.mark.parametrize("dtype", [F64, torch.complex128, torch.float8_e5m2], ids=str)
def test_a_dtype_without_a_row_is_not_comparable_and_says_so(name, dtype):
    golden = randn(10).to(dtype)
    actual = (golden.to(torch.complex128 if dtype.is_complex else F64) * 2).to(dtype)
    found = compare(golden, actual, benchmark=golden, criterion=name)
    assert found.verdict is Verdict.NOT_COMPARABLE
    row = str(dtype).removeprefix("torch.")
    assert f"standard {name!r} has no row for {row}, only for float32, float16, bfloat16" in found.reason
    assert found.outputs[0].status == "warning"


def test_mixed_has_no_row_for_float64():
    found = by("mixed", torch.ones(2, dtype=F64), torch.zeros(2, dtype=F64))
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert "float8_e4m3fn, float8_e5m2" in found.reason


def test_a_wrong_dtype_without_a_row_still_may_not_invent_nan():
    assert by("ulp", torch.ones(2, dtype=F64), torch.tensor([1.0, math.nan], dtype=F64)).kind is Kind.non_finite


def test_a_golden_in_a_narrower_dtype_names_the_row():
    golden = torch.full((100,), 1.0, dtype=F16)
    assert judge(golden, torch.full((100,), 1.0009), criterion=Criterion("absolute")).verdict is Verdict.PASS
    assert judge(golden, torch.full((100,), 1.0011), criterion=Criterion("absolute")).verdict is Verdict.FAIL


def test_a_python_number_has_the_precision_of_float32():
    assert compare(1.0, 1.0 + 0.9e-6, criterion="absolute").verdict is Verdict.PASS
    assert compare(1.0, 1.0 + 1.1e-6, criterion="absolute").verdict is Verdict.FAIL


@each_standard
def test_elements_in_more_than_one_piece_are_all_judged(name, monkeypatch):
    monkeypatch.setattr(standards, "_PIECE", 7)
    golden = randn(100)
    assert judge(golden, golden.float(), golden.float(), Criterion(name)).verdict is Verdict.PASS
    wrong = golden.float()
    wrong[93:] *= -2
    assert judge(golden, wrong, golden.float(), Criterion(name)).verdict is Verdict.FAIL


# --- absolute -------------------------------------------------------------------------------------------------------


@each_dtype
def test_absolute_limits_each_relative_error(dtype):
    rtol, _, _ = standards.ABSOLUTE[dtype]
    golden = torch.full((1000,), 8.0, dtype=F64)
    assert by("absolute", golden, off(golden, 7, 0.999 * 8 * rtol), dtype=dtype).verdict is Verdict.PASS
    found = by("absolute", golden, off(golden, 7, 1.001 * 8 * rtol), dtype=dtype)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.local)
    assert f"relative error above {rtol:g} at 1 of 1000 values" in found.reason
    assert "(worst at [7])" in found.reason


@each_dtype
def test_absolute_limits_the_absolute_error_of_small_values(dtype):
    _, small, atol = standards.ABSOLUTE[dtype]
    golden = torch.cat([torch.full((9,), 0.99 * small, dtype=F64), torch.zeros(1, dtype=F64)])
    for at in (0, 9):
        assert by("absolute", golden, off(golden, at, 0.999 * atol), dtype=dtype).verdict is Verdict.PASS
        found = by("absolute", golden, off(golden, at, -1.01 * atol), dtype=dtype)
        assert found.verdict is Verdict.FAIL
        assert f"absolute error above {atol:g} at 1 of 10 values below {small:g}" in found.reason


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_absolute_draws_the_line_at_the_small_value(dtype):
    rtol, small, atol = standards.ABSOLUTE[dtype]
    error = 1.5 * rtol * small
    assert error < atol
    for size, verdict in ((0.999 * small, Verdict.PASS), (1.001 * small, Verdict.FAIL)):
        golden = torch.full((9,), size, dtype=F64)
        assert by("absolute", golden, golden + error, dtype=dtype).verdict is verdict


def test_absolute_says_both():
    found = by("absolute", torch.tensor([1.0, 0.0]), torch.tensor([1.1, 0.1]))
    assert "relative error above" in found.reason
    assert "; absolute error above" in found.reason


# --- binary ---------------------------------------------------------------------------------------------------------


@each_dtype
def test_binary_allows_not_one_bit(dtype):
    golden = randn(1000).to(dtype)
    actual = golden.clone()
    actual.view(torch.int32 if dtype is F32 else torch.int16)[3] += 1
    found = by("binary", golden, actual)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.exact)
    assert (
        found.reason
        == "1 of 1000 elements is not equal (worst at [3]); the standard binary allows an error rate of 0 only"
    )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.float8_e5m2], ids=str)
def test_binary_tells_zeros_apart_and_exact_does_not(dtype):
    golden, actual = torch.zeros(5, dtype=dtype), (-torch.zeros(5)).to(dtype)
    if dtype.is_complex:
        golden, actual = torch.complex(torch.zeros(5), torch.zeros(5)), torch.complex(torch.zeros(5), -torch.zeros(5))
    found = by("binary", golden, actual)
    assert found.verdict is Verdict.FAIL
    assert "5 of 5 elements are zeros of the other sign" in found.reason
    assert by("exact", golden, actual).verdict is Verdict.PASS


def test_binary_takes_the_golden_or_the_benchmark():
    golden = torch.tensor([1.0 + 2**-11 + 2**-30, -1e-9], dtype=F64)
    actual = torch.tensor([1.0, 0.0], dtype=F16)
    assert by("binary", golden, actual).verdict is Verdict.FAIL
    assert by("binary", golden, actual, actual.clone()).verdict is Verdict.PASS


# --- ulp ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("size", [1.0, 1.99, 256.0, 1e-4, 1e-30])
def test_ulp_limits_the_share_of_elements_off_by_more_than_one(dtype, size):
    golden = torch.full((10_000,), size, dtype=F64)
    tiny = torch.finfo(dtype).smallest_normal
    ulp = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(size, tiny)))
    assert by("ulp", golden, off(golden, slice(None), ulp), dtype=dtype).verdict is Verdict.PASS
    assert by("ulp", golden, off(golden, slice(9), 1.01 * ulp), dtype=dtype).verdict is Verdict.PASS
    found = by("ulp", golden, off(golden, slice(10), 1.01 * ulp), dtype=dtype)
    assert found.verdict is Verdict.FAIL
    assert "0.1 % of the elements (10 of 10000) are more than 1 ULP off, which must be below 0.1 %" in found.reason


def test_ulp_of_few_elements_allows_none():
    golden = torch.ones(999, dtype=F64)
    assert by("ulp", golden, off(golden, 0, 2**-9), dtype=F16).verdict is Verdict.FAIL
    assert by("ulp", golden[:1], golden[:1] + 2**-10, dtype=F16).verdict is Verdict.PASS


def test_ulp_of_float32_takes_the_mean_or_the_share():
    golden, ulp = torch.ones(1000, dtype=F64), 2.0**-23
    everywhere = slice(None)
    assert by("ulp", golden, off(golden, everywhere, 63.9 * ulp), dtype=F32).verdict is Verdict.PASS
    assert by("ulp", golden, off(golden, slice(49), 1e6 * ulp), dtype=F32).verdict is Verdict.PASS
    assert by("ulp", golden, off(golden, slice(50), 1e6 * ulp), dtype=F32).verdict is Verdict.FAIL
    found = by("ulp", golden, off(golden, everywhere, 64 * ulp), dtype=F32)
    assert found.verdict is Verdict.FAIL
    assert "100 % of the elements (1000 of 1000) are more than 32 ULP off, which must be below 5 %" in found.reason
    assert "the mean ULP error is 64, not below 64 either" in found.reason


def test_a_saturated_value_is_an_overflow():
    golden = torch.full((10,), 1e39, dtype=F64)
    actual = torch.full((10,), torch.finfo(F32).max)
    assert judge(golden, actual, criterion=Criterion("ulp")).kind is Kind.overflow


@each_dtype
def test_the_step_is_that_of_the_dtype(dtype):
    info = torch.finfo(dtype)
    values = torch.tensor(
        [1.0, 1.5, 2.0, 3e4, 2.0**-13, info.smallest_normal, info.smallest_normal / 2, 0.0], dtype=dtype
    )
    bits = values.view(torch.int32 if dtype is F32 else torch.int16)
    above = (bits + 1).view(dtype).double()
    assert torch.equal(standards._step(values.double(), dtype), above - values.double())


# --- thousandth -----------------------------------------------------------------------------------------------------


@each_dtype
def test_thousandth_limits_the_share_of_relative_errors(dtype):
    limit = standards.THOUSANDTH[dtype]
    golden = torch.full((100_000,), 4.0, dtype=F64)
    most = round(limit * 100_000)
    error = 4 * limit
    assert by("thousandth", golden, off(golden, slice(None), 0.999 * error), dtype=dtype).verdict is Verdict.PASS
    assert by("thousandth", golden, off(golden, slice(most - 1), 1.01 * error), dtype=dtype).verdict is Verdict.PASS
    found = by("thousandth", golden, off(golden, slice(most), 1.01 * error), dtype=dtype)
    assert found.verdict is Verdict.FAIL
    share = f"{100 * limit:g} %"
    assert f"{share} of the elements ({most} of 100000) are off by a relative error above {limit:g}" in found.reason
    assert f"which must be below {share}" in found.reason


def test_thousandth_of_few_elements_allows_none():
    golden = torch.ones(1000, dtype=F64)
    assert by("thousandth", golden, off(golden, 0, 0.01), dtype=F16).verdict is Verdict.FAIL
    golden = torch.ones(1001, dtype=F64)
    assert by("thousandth", golden, off(golden, 0, 0.01), dtype=F16).verdict is Verdict.PASS


def test_thousandth_counts_something_where_zero_is_right():
    golden = torch.zeros(100, dtype=F64)
    assert by("thousandth", golden, off(golden, 0, 5e-4), dtype=F16).verdict is Verdict.FAIL


# --- mixed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", standards.MIXED, ids=str)
def test_mixed_wants_99_percent_within_tolerance(dtype):
    tol, _ = standards.MIXED[dtype]
    golden = torch.full((1000,), 0.5, dtype=F64)
    error = 1.5 * tol
    assert by("mixed", golden, off(golden, slice(None), 0.999 * error), dtype=dtype).verdict is Verdict.PASS
    assert by("mixed", golden, off(golden, slice(10), 1.01 * error), dtype=dtype).verdict is Verdict.PASS
    found = by("mixed", golden, off(golden, slice(11), 1.01 * error), dtype=dtype)
    assert found.verdict is Verdict.FAIL
    assert f"matched ratio 0.9890 (11 of 1000 outside rtol = atol = {tol:.3g}) is below 0.99" in found.reason


@pytest.mark.parametrize("dtype", standards.MIXED, ids=str)
def test_mixed_caps_the_error_of_every_element(dtype):
    _, cap = standards.MIXED[dtype]
    cap = max(cap, 32 * torch.finfo(dtype).eps * 2**-7)
    golden = torch.full((1000,), 2.0**-7, dtype=F64)
    assert by("mixed", golden, off(golden, 5, 0.999 * cap), dtype=dtype).verdict is Verdict.PASS
    found = by("mixed", golden, off(golden, 5, -1.001 * cap), dtype=dtype)
    assert (found.verdict, found.kind) == (Verdict.FAIL, Kind.local)
    assert "max abs error" in found.reason
    assert "(worst at [5])" in found.reason


def test_mixed_caps_large_values_at_32_ulp_of_their_own():
    golden = torch.full((1000,), 1.0, dtype=F64)
    golden[0] = 40_000.0  # 1 ULP is 32
    assert by("mixed", golden, off(golden, 0, 0.999 * 1024), dtype=F16).verdict is Verdict.PASS
    found = by("mixed", golden, off(golden, 0, 1.001 * 1024), dtype=F16)
    assert "is above 1.02e+03, the larger of 0.1 and 32 ULP" in found.reason
    # The large neighbour's ULP excuses no other element.
    assert by("mixed", golden, off(golden, 1, 0.11), dtype=F16).verdict is Verdict.FAIL


def test_mixed_judges_float8():
    golden = randn(1000)
    actual = golden.to(torch.float8_e4m3fn)
    assert judge(golden, actual, criterion=Criterion("mixed")).verdict is Verdict.PASS
    assert judge(golden, (golden * 2).to(torch.float8_e4m3fn), criterion=Criterion("mixed")).verdict is Verdict.FAIL


def test_complex_parts_are_elements_of_their_own():
    golden = torch.complex(torch.full((100,), 1000.0, dtype=F64), torch.zeros(100, dtype=F64))
    actual = golden.to(torch.complex64)
    actual.imag += 1e-3  # small beside the modulus, not beside the part
    for name in ("absolute", "thousandth", "mixed", "ulp", "benchmark"):
        found = judge(golden, actual, golden.to(torch.complex64), Criterion(name))
        assert found.verdict is Verdict.FAIL, name
    assert "100 of 200" in judge(golden, actual, criterion=Criterion("mixed")).reason


@pytest.mark.parametrize(("dtype", "row"), [(torch.complex32, F16), (torch.complex64, F32)], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_have_the_row_of_their_parts(dtype, row):
    tol, _ = standards.MIXED[row]
    golden = torch.complex(torch.ones(100, dtype=F64), torch.ones(100, dtype=F64))
    for factor, verdict in ((1.99, Verdict.PASS), (2.01, Verdict.FAIL)):
        found = judge(golden, golden + factor * tol, criterion=Criterion("mixed"), working_dtype=dtype)
        assert found.verdict is verdict


# --- benchmark ------------------------------------------------------------------------------------------------------


def test_benchmark_alone_is_level_l1():
    golden = torch.ones(1000, dtype=F64)
    benchmark, actual = golden + 1e-3, golden + 1.4e-3
    assert by("benchmark", golden, actual, benchmark, F32).verdict is Verdict.PASS
    reasons = [by(name, golden, golden + 1.6e-3, benchmark, F32).reason for name in ("benchmark", "benchmark:L1")]
    assert reasons[0].startswith("standard benchmark: level L1: mean relative error")
    assert reasons[1].startswith("standard benchmark:L1: mean relative error")


@each_dtype
@pytest.mark.parametrize("level", standards.LEVELS)
def test_benchmark_limits_the_ratio_of_the_largest_relative_error(dtype, level):
    limit = standards.LEVELS[level][0]
    golden = torch.ones(100_000, dtype=F64)
    benchmark = golden + 0.01  # a mean and a mean square that one element doesn't move
    name = f"benchmark:{level}"
    assert by(name, golden, off(benchmark, 3, 0.01 * (0.999 * limit - 1)), benchmark, dtype).verdict is Verdict.PASS
    found = by(name, golden, off(benchmark, 3, 0.01 * (1.001 * limit - 1)), benchmark, dtype)
    assert found.verdict is Verdict.FAIL
    assert f"standard benchmark:{level}: largest relative error" in found.reason
    assert f"x that of the CPU in float64 (0.01), limit {limit:g} x" in found.reason
    assert "mean" not in found.reason.split(";")[0].replace("largest", "")


@each_dtype
@pytest.mark.parametrize("level", standards.LEVELS)
def test_benchmark_limits_the_ratios_of_the_means(dtype, level):
    limit = standards.LEVELS[level][1]
    golden = torch.ones(1000, dtype=F64)
    benchmark = golden - 0.01
    name = f"benchmark:{level}"
    assert by(name, golden, golden - 0.01 * 0.999 * limit, benchmark, dtype).verdict is Verdict.PASS
    found = by(name, golden, golden - 0.01 * 1.001 * limit, benchmark, dtype)
    assert found.verdict is Verdict.FAIL
    assert "mean relative error" in found.reason
    assert f"root mean square error {0.01 * limit:.3g} is {limit:.3g} x" in found.reason


@each_dtype
def test_no_benchmark_counts_as_better_than_the_small_value(dtype):
    small, _ = standards.SMALL_VALUES[dtype]
    golden = torch.ones(1000, dtype=F64)
    assert by("benchmark", golden, golden + 1.499 * small, golden, dtype).verdict is Verdict.PASS
    reason = by("benchmark", golden, golden + 1.501 * small, golden, dtype).reason
    assert f"is 1.5 x that of the CPU in float64 (0, counted as {small:.3g}), limit 1.5 x" in reason


@each_dtype
def test_benchmark_counts_errors_of_small_values(dtype):
    small, slack = standards.SMALL_VALUES[dtype]
    golden = torch.full((100,), 0.9 * small, dtype=F64)
    assert by("benchmark", golden, off(golden, slice(None), 0.999 * slack), golden, dtype).verdict is Verdict.PASS
    assert by("benchmark", golden, off(golden, slice(2), 1.01 * slack), golden, dtype).verdict is Verdict.PASS
    found = by("benchmark", golden, off(golden, slice(3), 1.01 * slack), golden, dtype)
    assert found.verdict is Verdict.FAIL
    assert f"3 of 100 values below {small:.3g} are more than {slack:.3g} off, 0 of the CPU" in found.reason
    assert "limit 2" in found.reason
    benchmark = off(golden, slice(5), 1.01 * slack)
    assert by("benchmark", golden, off(golden, slice(10), 1.01 * slack), benchmark, dtype).verdict is Verdict.PASS
    assert by("benchmark", golden, off(golden, slice(11), 1.01 * slack), benchmark, dtype).verdict is Verdict.FAIL


def test_benchmark_says_everything_that_is_over():
    golden = torch.cat([torch.ones(100, dtype=F64), torch.zeros(100, dtype=F64)])
    reason = by("benchmark:L2", golden, golden + 1, golden, F32).reason
    for statistic in ("largest relative error", "mean relative error", "root mean square error", "100 of 100 values"):
        assert statistic in reason


@pytest.mark.parametrize("name", [n for n in standards.NAMES if n.startswith("benchmark")])
@each_dtype
def test_without_a_benchmark_nothing_can_be_told(name, dtype):
    golden = randn(100)
    found = compare(golden, (golden * 2).to(dtype), criterion=name)
    assert found.verdict is Verdict.NOT_COMPARABLE
    row = str(dtype).removeprefix("torch.")
    assert f"standard {name!r} needs a benchmark, the result of the CPU in {row}, and there is none" in found.reason
    assert compare(golden, golden.to(dtype), criterion=name).verdict is Verdict.PASS


def test_a_benchmark_of_another_shape_is_none():
    found = compare(torch.ones(3), torch.zeros(3), benchmark=torch.ones(4), criterion="benchmark")
    assert found.verdict is Verdict.NOT_COMPARABLE


def test_nan_of_the_benchmark_alone_excuses_nothing():
    golden = randn(1000)
    benchmark = golden.float()
    benchmark[:10] = math.nan
    assert judge(golden, golden.float(), benchmark, Criterion("benchmark")).verdict is Verdict.PASS
    wrong = golden.float()
    wrong[:10] *= -1
    assert judge(golden, wrong, benchmark, Criterion("benchmark")).verdict is Verdict.FAIL


def test_an_overflow_that_the_cpu_has_too_makes_the_golden_suspect():
    golden, actual = torch.tensor([2.0, 60_000.0]), torch.tensor([2.0, math.inf], dtype=F16)
    found = judge(golden, actual, actual.clone(), Criterion("benchmark"))
    assert found.verdict is Verdict.REFERENCE_SUSPECT
    assert "the CPU in float16 has the same" in found.reason


@pytest.mark.parametrize("name", [n for n in ALL if n != "binary"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_a_product_accumulated_in_float32_meets_every_standard_but_single_roundings(name, dtype):
    a, b = randn(64, 256, dtype=dtype), randn(256, 64, seed=1, dtype=dtype)
    golden, benchmark = a.double() @ b.double(), a @ b
    actual = (a.float() @ b.float()).to(dtype)
    assert judge(golden, actual, benchmark, Criterion(name)).verdict is Verdict.PASS
    halves = [(a[:, i : i + 16].float() @ b[i : i + 16].float()).to(dtype) for i in range(0, 256, 16)]
    narrow = halves[0]
    for half in halves[1:]:
        narrow = narrow + half
    if name != "mixed":
        assert judge(golden, narrow, benchmark, Criterion(name)).verdict is Verdict.FAIL


# --- the road -------------------------------------------------------------------------------------------------------


@each_standard
def test_a_check_by_a_standard(name):
    from pytest_ascend.check import check
    from pytest_ascend.options import CheckOptions

    result = check(torch.abs, randn(50, dtype=F32), options=CheckOptions(target="cpu", criterion=name))
    assert (result.verdict, result.criterion) == (Verdict.PASS, name)
