"""Metrics: against naive float64 numpy, invariances, and every trap that comparing numbers has."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ascend.judge import metrics as metrics_module
from pytest_ascend.judge.metrics import measure
from pytest_ascend.judge.verdict import Metrics

FLOAT8 = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, *FLOAT8]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FIGURES = (
    "cosine_similarity",
    "max_abs_error",
    "mean_abs_error",
    "rmse",
    "max_rel_error",
    "mean_rel_error",
    "relative_euclidean_distance",
    "within_tolerance_ratio",
    "mean_signed_error",
    "scale",
)


def naive(golden: torch.Tensor, actual: torch.Tensor, rtol: float = 0.0, atol: float = 0.0) -> dict[str, float]:
    """The definitions, word for word, on finite real tensors that are neither empty nor all zero."""
    x, y = (t.to(torch.float64).numpy().reshape(-1) for t in (golden, actual))
    d, size = np.abs(y - x), np.abs(x)
    relative = d[size > 0] / size[size > 0]
    return {
        "cosine_similarity": np.sum(x * y) / math.sqrt(np.sum(x * x) * np.sum(y * y)),
        "max_abs_error": d.max(),
        "mean_abs_error": d.mean(),
        "rmse": math.sqrt(np.mean(d * d)),
        "max_rel_error": relative.max(),
        "mean_rel_error": relative.mean(),
        "relative_euclidean_distance": math.sqrt(np.sum(d * d) / np.sum(x * x)),
        "within_tolerance_ratio": np.mean(d <= atol + rtol * size),
        "mean_signed_error": np.mean(y - x),
        "scale": np.sum(x * y) / np.sum(x * x),
    }


def assert_close(got: Metrics, want: dict[str, float], digits: float = 1e-12) -> None:
    for name, value in want.items():
        # Sums of signed terms lose what cancels, so their scale is that of the terms.
        scale = abs(value) if name != "mean_signed_error" else max(abs(value), want["mean_abs_error"])
        assert got[name] == pytest.approx(value, rel=digits, abs=digits * max(scale, 1e-300)), name


def pair(shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, noise: float = 1e-2, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(shape, generator=generator, dtype=torch.float64)
    actual = golden * (1 + noise * torch.randn(golden.shape, generator=generator, dtype=torch.float64))
    return golden.to(dtype), actual.to(dtype)


# --- agreement with the definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_dtype_agrees_with_numpy(dtype):
    golden, actual = pair((37, 41), dtype, noise=0.2)
    assert_close(measure(golden, actual, rtol=0.1, atol=0.01), naive(golden, actual, 0.1, 0.01))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_every_integer_dtype_agrees_with_numpy(dtype):
    generator = torch.Generator().manual_seed(3)
    golden, actual = (torch.randint(0, 120, (500,), generator=generator, dtype=dtype) for _ in range(2))
    found = measure(golden, actual)
    assert_close(found, naive(golden, actual))
    assert found.mismatches == int((golden != actual).sum())
    assert found.max_ulp is None


def test_a_float64_golden_against_a_float16_actual():
    golden, actual = pair(5000, torch.float64)
    half = actual.half()
    assert_close(measure(golden, half), naive(golden, half))


def test_many_chunks_and_threads_give_the_same_numbers():
    golden, actual = pair(700_001)
    assert_close(measure(golden, actual, rtol=1e-3), naive(golden, actual, 1e-3))


def test_results_do_not_depend_on_who_took_which_chunk():
    golden, actual = pair(700_001)
    assert len({repr(measure(golden, actual, rtol=1e-3)) for _ in range(5)}) == 1


def test_one_thread_and_several_agree_to_the_last_bit():
    golden, actual = pair(700_001)
    several = measure(golden, actual, rtol=1e-3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert measure(golden, actual, rtol=1e-3) == several
    finally:
        torch.set_num_threads(before)


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=60),
    st.integers(1, 70),
)
@settings(max_examples=150, deadline=None)
def test_chunking_changes_nothing_beyond_rounding(values, chunk):
    golden, actual = (torch.tensor(side) for side in zip(*values, strict=True))
    whole, parts = (
        measure(golden, actual, rtol=1e-3, atol=1e-6),
        measure(golden, actual, rtol=1e-3, atol=1e-6, chunk=chunk),
    )
    for name in (*FIGURES, "mismatches", "max_ulp"):
        limit = 1e-12 * max(1.0, whole.mean_abs_error) if name == "mean_signed_error" else 1e-300
        assert parts[name] == pytest.approx(
            whole[name], rel=1e-12, abs=max(limit, 1e-12 * (name == "cosine_similarity"))
        )
    assert parts.worst == whole.worst


@given(st.integers(1, 300), st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_elements_does_not_matter(n, seed, random):
    golden, actual = pair(n, seed=seed)
    order = list(range(n))
    random.shuffle(order)
    one, other = measure(golden, actual, rtol=1e-2), measure(golden[order], actual[order], rtol=1e-2)
    for name in (*FIGURES, "mismatches", "max_ulp"):
        assert other[name] == pytest.approx(one[name], rel=1e-11, abs=1e-13), name
    assert [e.error for e in one.worst] == [e.error for e in other.worst]


@given(st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_symmetric_metrics_are_symmetric(n, seed):
    golden, actual = pair(n, seed=seed)
    one, other = measure(golden, actual), measure(actual, golden)
    for name in ("cosine_similarity", "max_abs_error", "mean_abs_error", "rmse", "max_ulp", "mismatches"):
        assert one[name] == other[name], name
    assert one.mean_signed_error == pytest.approx(-other.mean_signed_error, rel=1e-12)


@given(st.floats(1e-30, 1e30), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_scaling_both_sides_scales_the_errors_and_leaves_the_ratios(factor, seed):
    golden, actual = pair(100, torch.float64, seed=seed)
    one, other = measure(golden, actual), measure(golden * factor, actual * factor)
    for name in ("cosine_similarity", "max_rel_error", "relative_euclidean_distance"):
        assert other[name] == pytest.approx(one[name], rel=1e-9), name
    for name in ("max_abs_error", "mean_abs_error", "rmse"):
        assert other[name] == pytest.approx(one[name] * factor, rel=1e-9), name


# --- layouts: no copy of the whole, the same numbers ----------------------------------------------------------------

LAYOUTS = {
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed": lambda t: t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "sliced": lambda t: torch.stack([t, t + 1], dim=-1)[..., 0],
    "offset": lambda t: torch.cat([t[:1] + 7, t])[1:],
    "contiguous": lambda t: t.contiguous(),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("chunk", [7, 1000, 100_000])
def test_layouts_do_not_change_the_answer(left, right, chunk):
    golden, actual = pair((11, 13, 17))
    want = measure(golden, actual, rtol=1e-3)
    got = measure(LAYOUTS[left](golden), LAYOUTS[right](actual), rtol=1e-3, chunk=chunk)
    assert_close(got, {name: want[name] for name in FIGURES})
    assert (got.worst, got.max_ulp, got.mismatches) == (want.worst, want.max_ulp, want.mismatches)


def test_an_expanded_golden():
    golden, actual = pair((4, 1, 9))
    actual = actual.repeat(1, 50, 1)
    actual[2, 31, 5] = 100.0
    found = measure(golden.expand(4, 50, 9), actual, chunk=64)
    assert_close(found, naive(golden.expand(4, 50, 9).contiguous(), actual))
    assert found.worst[0].index == (2, 31, 5)


def test_channels_last_indices_are_logical():
    golden, actual = pair((2, 8, 5, 6))
    actual[1, 7, 3, 2] += 50
    channels_last = torch.channels_last
    found = measure(golden.to(memory_format=channels_last), actual.to(memory_format=channels_last), chunk=100)
    assert found.worst[0].index == (1, 7, 3, 2)


def test_a_lazily_conjugated_view_is_read_conjugated():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert measure(z.conj(), torch.tensor([1 - 2j, 3 + 4j])).max_abs_error == 0.0
    assert measure(z.conj(), z).max_abs_error == 8.0


def test_a_lazily_negated_view_is_read_negated():
    part = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert part.is_neg()
    assert measure(part, torch.tensor([-2.0, 4.0])).max_abs_error == 0.0


def test_a_contiguous_negated_view_has_no_wrong_ulp():
    negated = torch._neg_view(torch.tensor([1.0, -2.0]))
    assert negated.is_contiguous()
    assert measure(negated, torch.nextafter(torch.tensor([-1.0, 2.0]), torch.tensor([-9.0, 9.0]))).max_ulp == 1


def test_inputs_are_not_changed():
    golden, actual = pair(100)
    golden[3], actual[3], actual[4] = math.nan, math.nan, math.inf
    before = golden.clone(), actual.clone()
    measure(golden, actual, rtol=0.1)
    for old, now in zip(before, (golden, actual), strict=True):
        assert torch.equal(old.view(torch.int32), now.view(torch.int32))


def test_tensors_that_require_grad_are_measured():
    golden, actual = pair(10)
    assert measure(golden.requires_grad_(), actual.requires_grad_()).max_abs_error > 0


# --- traps ----------------------------------------------------------------------------------------------------------


def test_cosine_of_a_long_float32_vector_with_itself_is_one():
    # float32 accumulation gives 0.9957 here.
    x = torch.rand(50_000_000, generator=torch.Generator().manual_seed(1)).add_(0.5)
    assert measure(x, x).cosine_similarity == pytest.approx(1.0, abs=1e-12)
    assert measure(x, x * 2).cosine_similarity == pytest.approx(1.0, abs=1e-12)


def test_zeros_against_zeros_is_cosine_one():
    found = measure(torch.zeros(4), torch.zeros(4))
    assert (found.cosine_similarity, found.max_abs_error, found.mismatches) == (1.0, 0.0, 0)
    assert found.relative_euclidean_distance == 0.0


@pytest.mark.parametrize("swap", [False, True])
def test_zeros_against_something_is_cosine_zero(swap):
    sides = torch.zeros(4), torch.ones(4)
    found = measure(*(sides[::-1] if swap else sides))
    assert found.cosine_similarity == 0.0
    assert found.relative_euclidean_distance == (1.0 if swap else math.inf)


def test_equal_infinities_have_no_error():
    x = torch.tensor([math.inf, -math.inf, 1.0])
    found = measure(x, x)
    assert (found.max_abs_error, found.non_finite_mismatches, found.cosine_similarity) == (0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("left", "right"),
    [(math.inf, -math.inf), (math.inf, math.nan), (math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (-math.inf, 0.0)],
)
def test_another_non_finite_class_is_a_mismatch(left, right):
    found = measure(torch.tensor([1.0, left, 2.0]), torch.tensor([1.0, right, 2.0]), rtol=1e9, atol=1e9)
    assert (found.non_finite_mismatches, found.mismatches) == (1, 1)
    assert found.max_abs_error == math.inf
    assert found.cosine_similarity == pytest.approx(1.0)
    assert found.worst[0].index == (1,)
    assert found.within_tolerance_ratio == pytest.approx(2 / 3)


def test_matching_nan_leaves_the_other_elements_compared():
    golden, actual = torch.tensor([math.nan, 1.0, 2.0]), torch.tensor([math.nan, 1.0, 4.0])
    found = measure(golden, actual)
    assert (found.max_abs_error, found.mismatches, found.mean_abs_error) == (2.0, 1, 1.0)
    assert found.max_ulp == 2**23


def test_matching_nan_of_another_sign_is_no_distance():
    golden, actual = torch.tensor([math.nan, 0.0, 2.0]), torch.tensor([math.nan, 1e-45, 2.0])
    golden[0] = -golden[0]
    assert measure(golden, actual).max_ulp == 1


def test_everything_non_finite_and_wrong_has_no_cosine():
    found = measure(torch.ones(3), torch.full((3,), math.nan))
    assert math.isnan(found.cosine_similarity)
    assert found.max_abs_error == math.inf


def test_everything_non_finite_and_right():
    x = torch.full((3,), math.nan)
    assert measure(x, x.clone()).cosine_similarity == 1.0


def test_one_nan_among_many_is_found():
    golden, actual = pair(100_000, noise=0.0)
    actual[77_777] = math.nan
    found = measure(golden, actual)
    assert found.non_finite_mismatches == 1
    assert found.worst[0].index == (77_777,)


@pytest.mark.parametrize(
    ("value", "agrees"), [(1e6, True), (65520.0, True), (65519.0, False), (-1e6, False), (5.0, False)]
)
def test_a_golden_beyond_the_range_of_float16_may_become_inf(value, agrees):
    found = measure(torch.tensor([value, 1.0], dtype=torch.float64), torch.tensor([math.inf, 1.0], dtype=torch.float16))
    assert found.non_finite_mismatches == (0 if agrees else 1)


def test_a_golden_beyond_the_range_of_float8_becomes_nan_where_there_is_no_inf():
    actual = torch.tensor([math.nan]).to(torch.float8_e4m3fn)
    assert measure(torch.tensor([1e6], dtype=torch.float64), actual).non_finite_mismatches == 0
    assert measure(torch.tensor([400.0], dtype=torch.float64), actual).non_finite_mismatches == 1


def test_a_saturated_value_is_an_error_not_an_infinity():
    found = measure(torch.tensor([1e6], dtype=torch.float64), torch.tensor([65504.0], dtype=torch.float16))
    assert found.non_finite_mismatches == 0
    assert found.max_abs_error == 1e6 - 65504


def test_uint8_differences_do_not_wrap():
    found = measure(torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([2, 1], dtype=torch.uint8))
    assert (found.max_abs_error, found.mean_signed_error) == (1.0, 0.0)


def test_booleans_are_subtracted():
    found = measure(torch.tensor([True, False, True]), torch.tensor([False, False, True]))
    assert (found.max_abs_error, found.mismatches, found.worst[0].index) == (1.0, 1, (0,))
    assert found.worst[0].golden is True


@pytest.mark.parametrize("chunk", [1, 100])
def test_int64_beyond_2_to_53_is_exact(chunk):
    golden = torch.tensor([2**53, 2**63 - 1, -(2**63), 5])
    actual = torch.tensor([2**53 + 1, 2**63 - 1, -(2**63), 5])
    found = measure(golden, actual, chunk=chunk)
    assert (found.max_abs_error, found.mismatches) == (1.0, 1)
    assert (found.worst[0].golden, found.worst[0].actual) == (2**53, 2**53 + 1)


def test_the_largest_int64_difference_does_not_overflow():
    found = measure(torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]))
    assert found.max_abs_error == 2.0**64


def test_uint64_above_the_range_of_int64():
    golden, actual = (torch.from_numpy(np.array([v, 0], dtype=np.uint64)) for v in (2**64 - 1, 2**64 - 2))
    found = measure(golden, actual)
    assert (found.max_abs_error, found.mismatches) == (1.0, 1)


def test_the_largest_uint64_difference():
    golden, actual = (torch.from_numpy(np.array([v], dtype=np.uint64)) for v in (0, 2**64 - 1))
    assert measure(golden, actual).max_abs_error == 2.0**64


def test_complex_errors_are_moduli():
    golden, actual = torch.tensor([1 + 1j, 2 - 2j]), torch.tensor([4 + 5j, 2 - 2j])
    found = measure(golden, actual, atol=4.9)
    assert (found.max_abs_error, found.mean_abs_error, found.mismatches) == (5.0, 2.5, 1)
    assert found.max_rel_error == pytest.approx(5 / math.sqrt(2))
    assert found.mean_signed_error == pytest.approx(7 / 4)
    assert found.max_ulp is None
    assert found.worst[0].actual == 4 + 5j


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("chunk", [10, 1 << 16])
def test_complex_against_numpy(dtype, chunk):
    generator = torch.Generator().manual_seed(0)
    golden = torch.randn(50, 6, dtype=dtype, generator=generator)
    actual = golden + 0.1 * torch.randn(50, 6, dtype=dtype, generator=generator)
    x, y = golden.numpy().astype(np.complex128).ravel(), actual.numpy().astype(np.complex128).ravel()
    found = measure(golden, actual, rtol=0.1, chunk=chunk)
    assert found.cosine_similarity == pytest.approx(
        np.vdot(x, y).real / math.sqrt(np.vdot(x, x).real * np.vdot(y, y).real), rel=1e-12
    )
    assert found.rmse == pytest.approx(math.sqrt(np.mean(np.abs(y - x) ** 2)), rel=1e-12)
    assert found.mean_rel_error == pytest.approx(np.mean(np.abs(y - x) / np.abs(x)), rel=1e-12)
    assert found.mismatches == int(np.sum(np.abs(y - x) > 0.1 * np.abs(x)))


@pytest.mark.parametrize(
    ("left", "right", "agrees"),
    [
        (complex(math.nan, 1), complex(math.nan, 1), True),
        (complex(math.inf, 1), complex(math.inf, 1), True),
        (complex(math.inf, 1), complex(-math.inf, 1), False),
        (complex(1, math.nan), complex(math.nan, 1), False),
        (complex(1, 2), complex(1, math.inf), False),
    ],
)
def test_non_finite_parts_of_complex_numbers_match_one_by_one(left, right, agrees):
    found = measure(torch.tensor([left, 1 + 1j]), torch.tensor([right, 1 + 1j]))
    assert found.non_finite_mismatches == (0 if agrees else 1)
    assert found.mismatches == found.non_finite_mismatches


def test_the_part_beside_one_that_disagrees_is_not_compared():
    found = measure(torch.tensor([complex(math.nan, 1), 1 + 1j]), torch.tensor([complex(1, 5), 1 + 1j]))
    assert (found.mean_abs_error, found.cosine_similarity, found.non_finite_mismatches) == (0.0, 1.0, 1)


def test_the_finite_part_beside_an_infinite_one_is_still_compared():
    found = measure(torch.tensor([complex(math.inf, 1)]), torch.tensor([complex(math.inf, 3)]))
    assert (found.non_finite_mismatches, found.mismatches, found.max_abs_error) == (0, 1, 2.0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(0,), (2, 0, 4)], ids=str)
def test_empty_tensors_agree(dtype, shape):
    found = measure(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
    assert (found.count, found.cosine_similarity, found.max_abs_error, found.within_tolerance_ratio) == (
        0,
        1.0,
        0.0,
        1.0,
    )
    assert found.worst == ()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.complex64], ids=str)
def test_zero_dimensional_tensors(dtype):
    found = measure(torch.tensor(1).to(dtype), torch.tensor(2).to(dtype))
    assert (found.count, found.max_abs_error, found.worst[0].index) == (1, 1.0, ())


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"golden \(2, 3\), actual \(3, 2\)"):
        measure(torch.zeros(2, 3), torch.zeros(3, 2))


def test_float16_norms_do_not_overflow():
    x = torch.full((100,), 10_000.0, dtype=torch.float16)
    found = measure(x, x * 2)
    assert found.cosine_similarity == pytest.approx(1.0)
    assert found.rmse == 10_000.0


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e308, 5e-324])
def test_squares_of_extreme_float64_values(size):
    golden = torch.tensor([1.0, -1.0, 1.0, 0.0], dtype=torch.float64) * size
    actual = torch.tensor([1.0, -1.0, -1.0, 0.0], dtype=torch.float64) * size
    found = measure(golden, actual)
    assert found.cosine_similarity == pytest.approx(1 / 3, rel=1e-12)
    if size < 1e308:
        assert found.rmse == pytest.approx(size, rel=1e-12)
        assert found.mean_abs_error == pytest.approx(size / 2, rel=1e-12)
        assert found.relative_euclidean_distance == pytest.approx(math.sqrt(4 / 3), rel=1e-12)


def test_sides_of_very_different_size():
    golden = torch.tensor([1e200, 2e200], dtype=torch.float64)
    found = measure(golden, golden * 1e-300 * 1e-210)
    assert found.cosine_similarity == pytest.approx(1.0, abs=1e-6)  # the small side is subnormal
    assert measure(golden, golden).cosine_similarity == 1.0


def test_float64_overflow_beside_a_real_infinity():
    golden = torch.tensor([1e200, math.inf, 1e200], dtype=torch.float64)
    actual = torch.tensor([1e200, math.inf, -1e200], dtype=torch.float64)
    found = measure(golden, actual)
    assert found.cosine_similarity == pytest.approx(0.0, abs=1e-12)
    assert found.non_finite_mismatches == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_subnormals_are_not_flushed(dtype):
    tiny = torch.tensor([torch.finfo(dtype).smallest_normal / 4], dtype=dtype)
    assert tiny.item() > 0
    found = measure(tiny, tiny * 2)
    assert found.max_abs_error == tiny.item()
    assert found.cosine_similarity == pytest.approx(1.0)
    assert measure(tiny, torch.zeros_like(tiny)).cosine_similarity == 0.0


def test_signed_zeros_are_no_distance_apart():
    found = measure(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.5]))
    assert found.max_ulp == 2**22
    assert measure(torch.tensor([0.0]), torch.tensor([-0.0])).max_ulp == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ulp_steps_across_zero_are_the_sum_of_both_sides(dtype):
    step = torch.tensor(
        [1, 2, 3], dtype={1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    )
    values = step.view(dtype)
    assert measure(values, -values.to(torch.float64)).max_ulp is not None
    assert measure(values, (-values.to(torch.float64)).to(dtype)).max_ulp == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_ulp_counts_neighbours(dtype):
    x = torch.tensor([1.0, -1.0, 1000.0], dtype=dtype)
    up = x
    for _ in range(3):
        up = torch.nextafter(up, x * 2) if dtype != torch.float16 else (up.view(torch.int16) + 1).view(dtype)
    assert measure(x, up).max_ulp == 3
    assert measure(up, x).max_ulp == 3


def test_ulp_from_the_largest_to_the_smallest_float64_does_not_overflow():
    top = torch.finfo(torch.float64).max
    found = measure(torch.tensor([top], dtype=torch.float64), torch.tensor([-top], dtype=torch.float64))
    assert found.max_ulp == 2 * 0x7FEF_FFFF_FFFF_FFFF


def test_ulp_is_counted_in_the_dtype_of_the_actual():
    golden = torch.tensor([1.0001], dtype=torch.float64)
    assert measure(golden, torch.tensor([1.0], dtype=torch.float16)).max_ulp == 0
    assert measure(golden, torch.tensor([1.0], dtype=torch.float32)).max_ulp == 839


def test_relative_errors_leave_out_zeros():
    found = measure(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
    assert (found.max_rel_error, found.mean_rel_error, found.max_abs_error) == (0.5, 0.5, 1.0)


def test_a_floor_bounds_relative_errors():
    found = measure(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]), floor=0.5)
    assert (found.max_rel_error, found.mean_rel_error) == (2.0, 1.25)


def test_rounding_the_golden_first():
    golden = torch.tensor([1.0001, 2.0], dtype=torch.float64)
    actual = golden.to(torch.float16)
    assert measure(golden, actual).mismatches == 1
    assert measure(golden, actual, rounded=True).mismatches == 0


@pytest.mark.parametrize(("rtol", "atol", "mismatches"), [(0.0, 0.0, 2), (0.0, 1.0, 1), (0.5, 0.0, 1), (0.0, 2.0, 0)])
def test_the_bounds_of_a_tolerance_are_inside(rtol, atol, mismatches):
    found = measure(torch.tensor([2.0, 1.0, 7.0]), torch.tensor([3.0, 3.0, 7.0]), rtol=rtol, atol=atol)
    assert found.mismatches == mismatches
    assert found.within_tolerance_ratio == (3 - mismatches) / 3


# --- the worst elements ---------------------------------------------------------------------------------------------


def test_worst_elements_come_worst_first_from_anywhere():
    golden = torch.zeros(300_000)
    actual = golden.clone()
    for rank, place in enumerate([250_000, 3, 120_000, 299_999, 77, 5000, 60_000]):
        actual[place] = 10.0 - rank
    assert [e.index[0] for e in measure(golden, actual).worst] == [250_000, 3, 120_000, 299_999, 77]
    assert len(measure(golden, actual, worst=2).worst) == 2
    assert measure(golden, actual, worst=0).worst == ()


def test_an_element_outside_tolerance_is_worse_than_a_larger_error_inside():
    golden, actual = torch.tensor([1000.0, 1e-3]), torch.tensor([1001.0, 2e-3])
    found = measure(golden, actual, rtol=1e-2)
    assert [e.index for e in found.worst] == [(1,), (0,)]


def test_non_finite_mismatches_are_worst():
    golden, actual = torch.zeros(5), torch.tensor([0.0, 1e30, 0.0, math.nan, 0.0])
    assert [e.index[0] for e in measure(golden, actual).worst] == [3, 1]


def test_equal_elements_are_not_listed():
    golden, actual = torch.zeros(5), torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    assert len(measure(golden, actual).worst) == 1


def test_the_worst_elements_say_how_many_values_lie_between():
    golden = torch.tensor([1.0, 2.0, math.nan, 3.0], dtype=torch.float64)
    actual = torch.tensor([1.0, 2.0, 0.0, 3.5]).half()
    actual[0] = 1 + 2**-8
    found = {e.index[0]: e.ulp for e in measure(golden, actual).worst}
    assert found == {0: 4, 2: None, 3: 256}
    assert measure(torch.tensor([1]), torch.tensor([2])).worst[0].ulp is None


def test_a_failing_thread_is_reported_not_swallowed(monkeypatch):
    if torch.get_num_threads() < 2:
        pytest.skip("one thread only")

    def fail(self, i):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")
        return original(self, i)

    original = metrics_module._Worker.reduce
    monkeypatch.setattr(metrics_module._Worker, "reduce", fail)
    golden, actual = pair(3_000_000)
    with pytest.raises(MemoryError, match="no room"):
        measure(golden, actual)
