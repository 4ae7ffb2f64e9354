"""The whole road of a comparison: order of judging, paths in messages, dtypes, nesting, bad requests."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch

import pytest_ascend
from pytest_ascend.judge.compare import compare, judge_tree
from pytest_ascend.judge.standards import Criterion, Exactness
from pytest_ascend.judge.verdict import Kind, Verdict


def x(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@dataclasses.dataclass
class Output:
    logits: object
    hidden: object = None


def test_it_is_public():
    assert pytest_ascend.compare is compare


def test_equal_results_pass():
    result = compare({"a": x(3), "b": (x(4), None, 2)}, {"a": x(3), "b": (x(4), None, 2)})
    assert result.verdict is Verdict.PASS
    assert result.passed
    assert [o.path for o in result.outputs] == ["output['a']", "output['b'][0]", "output['b'][1]", "output['b'][2]"]
    assert (result.api, result.dtype, result.criterion) == ("compare", "float32", "auto")
    assert result.first_divergence is None


def test_the_result_is_strict_json():
    golden, actual = x(1000), x(1000)
    actual[3] = math.nan
    data = json.loads(json.dumps(compare(golden, actual).to_dict(), allow_nan=False))
    assert (data["verdict"], data["kind"]) == ("FAIL", "non_finite")
    assert data["metrics"]["max_abs_error"] == "inf"
    assert data["outputs"][0]["metrics"]["worst"][0]["actual"] == "nan"


def test_one_failing_output_is_named_by_its_path():
    golden = {"loss": x(1), "out": Output(x(8, 8), (x(5), x(6)))}
    actual = {"loss": x(1), "out": Output(x(8, 8), (x(5), x(6) + 1))}
    result = compare(golden, actual)
    assert [o.path for o in result.outputs if o.verdict is Verdict.FAIL] == ["output['out'].hidden[1]"]
    assert "where:     output['out'].hidden[1], shape (6,), float32" in str(result)


def test_the_root_can_be_named():
    assert compare((x(2),), (x(2),), root="grad(args[0])").outputs[0].path == "grad(args[0])[0]"


# --- order of judging -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("golden", "actual", "kind", "words"),
    [
        ((x(2),), (x(2), x(3)), Kind.structure, "not in the golden: actual has a float32 tensor of shape (3,)"),
        ((x(2), x(3)), (x(2),), Kind.structure, "missing from the actual: golden has a float32 tensor of shape (3,)"),
        (x(2), None, Kind.structure, "golden is a float32 tensor of shape (2,), actual is None"),
        (x(2), "text", Kind.structure, "golden is a float32 tensor of shape (2,), actual is the str 'text'"),
        (x(2, 3), x(3, 2).half(), Kind.shape, "golden has shape (2, 3), actual has (3, 2)"),
        (x(1), x(1)[0], Kind.shape, "golden has shape (1,), actual has ()"),
        (torch.zeros(0, 3), torch.zeros(0, 4), Kind.shape, "golden has shape (0, 3), actual has (0, 4)"),
        (x(4), x(4).half() * math.nan, Kind.dtype, "expected float32, actual is float16"),
        (torch.tensor([1]), torch.tensor([2], dtype=torch.int32), Kind.dtype, "expected int64, actual is int32"),
        (torch.tensor([True]), torch.tensor([1]), Kind.dtype, "expected bool, actual is int64"),
        (torch.tensor([1]), torch.tensor([2]), Kind.exact, "1 of 1 elements is not equal"),
        ("a", "b", Kind.exact, "golden is the str 'a', actual is the str 'b'"),
        (torch.float16, torch.float32, Kind.exact, "golden is torch.float16, actual is torch.float32"),
    ],
)
def test_the_first_thing_that_differs_is_the_kind(golden, actual, kind, words):
    result = compare(golden, actual)
    assert (result.verdict, result.kind) == (Verdict.FAIL, kind)
    assert words in result.reason
    assert result.outputs[0].status == "fail" or result.outputs[1].status == "fail"


def test_a_structural_mismatch_does_not_stop_the_rest():
    result = compare((x(2), x(3), x(4)), (x(2), None, x(4) + 1))
    assert [(o.path, o.kind) for o in result.outputs if o.verdict is Verdict.FAIL] == [
        ("output[1]", Kind.structure),
        ("output[2]", Kind.spread),
    ]


def test_a_dtype_failure_still_measures():
    result = compare(x(4), x(4).half())
    assert result.kind is Kind.dtype
    assert result.outputs[0].metrics.max_abs_error < 1e-3


# --- dtypes ---------------------------------------------------------------------------------------------------------


def test_the_golden_may_be_wider():
    golden = x(100, dtype=torch.float64)
    assert compare(golden, golden.half()).verdict is Verdict.PASS
    assert compare(golden.to(torch.complex128), golden.to(torch.complex64)).verdict is Verdict.PASS


@pytest.mark.parametrize("actual", [torch.int64, torch.complex64], ids=str)
def test_wider_stays_within_a_family(actual):
    assert compare(torch.ones(2, dtype=torch.float64), torch.ones(2).to(actual)).kind is Kind.dtype


def test_a_benchmark_says_which_dtype_is_expected():
    golden = x(100, dtype=torch.float64)
    assert compare(golden, golden.float(), benchmark=golden.half()).kind is Kind.dtype
    assert compare(golden, golden.half(), benchmark=golden.half()).verdict is Verdict.PASS
    narrow = torch.tensor([1], dtype=torch.int32)
    assert compare(torch.tensor([1]), narrow, benchmark=narrow).verdict is Verdict.PASS


def test_an_expected_dtype_wins():
    golden = x(9, dtype=torch.float64)
    right, wrong = (
        judge_tree(golden, golden.to(d), expected_dtype=torch.float16) for d in (torch.float16, torch.float32)
    )
    assert right[0].verdict is Verdict.PASS
    assert wrong[0].kind is Kind.dtype


def test_dtypes_can_be_left_out():
    golden = x(100)
    assert compare(golden, golden.half(), exact_dtype=False).verdict is Verdict.PASS
    assert compare(golden.half(), golden, exact_dtype=False).verdict is Verdict.PASS
    assert compare(golden, golden.half() + 1, exact_dtype=False).verdict is Verdict.FAIL
    assert compare(torch.tensor([3]), torch.tensor([3], dtype=torch.int32), exact_dtype=False).verdict is Verdict.PASS


def test_a_float16_golden_judges_a_float32_actual_by_float16():
    golden = x(100).half()
    assert compare(golden, golden.float() * (1 + 5e-4), exact_dtype=False).verdict is Verdict.PASS


# --- nesting and other values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("golden", "actual", "verdict"),
    [
        (None, None, Verdict.PASS),
        ((), (), Verdict.PASS),
        ((x(2), None, None), (x(2), None, None), Verdict.PASS),
        (3, 3, Verdict.PASS),
        (3, 4, Verdict.FAIL),
        (True, False, Verdict.FAIL),
        (2**80, 2**80 + 1, Verdict.FAIL),
        (1.5, 1.5 + 1e-6, Verdict.PASS),
        (1.5, 1.6, Verdict.FAIL),
        (math.nan, math.nan, Verdict.PASS),
        (math.inf, -math.inf, Verdict.FAIL),
        (1j, 1j, Verdict.PASS),
        (1j, 2j, Verdict.FAIL),
        ("a", "a", Verdict.PASS),
        (torch.Size([2, 3]), torch.Size([2, 3]), Verdict.PASS),
        (torch.Size([2, 3]), torch.Size([2, 4]), Verdict.FAIL),
        (torch.device("cpu"), torch.device("meta"), Verdict.PASS),
        (np.float32(1), np.float32(1), Verdict.PASS),
        (np.arange(5), np.arange(5), Verdict.PASS),
        (np.arange(5), np.arange(5)[::-1], Verdict.FAIL),
        (np.ones(3, np.float32), torch.ones(3), Verdict.PASS),
        (np.array(["a"]), np.array(["b"]), Verdict.FAIL),
        (list(range(100)), list(range(100)), Verdict.PASS),
        (list(range(100)), list(range(101)), Verdict.FAIL),
        ([x(2)], (x(2),), Verdict.PASS),
        (object(), object(), Verdict.NOT_COMPARABLE),
    ],
    ids=lambda v: repr(v).split(" at 0x")[0][:40],  # the same in every process
)
def test_values_of_every_sort(golden, actual, verdict):
    assert compare(golden, actual).verdict is verdict


def test_a_dtype_may_be_the_benchmarks():
    assert compare(torch.float64, torch.float16, benchmark=torch.float16).verdict is Verdict.PASS
    assert compare(torch.float64, torch.float32, benchmark=torch.float16).verdict is Verdict.FAIL


def test_an_object_without_values_is_noted_by_type():
    result = compare((x(2), object()), (x(2), object()))
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert "a object has no values that can be compared" in result.reason
    assert result.passed


def test_a_scalar_against_a_tensor_is_judged_as_a_number():
    assert compare(torch.tensor(2.0, dtype=torch.float64), 2.0).verdict is Verdict.PASS
    assert compare(torch.tensor(2.0), 3.0, exact_dtype=False).verdict is Verdict.FAIL


def test_sparse_tensors_compare_by_value():
    eye = torch.eye(4).to_sparse()
    assert compare(eye, torch.eye(4).to_sparse()).verdict is Verdict.PASS
    assert compare(eye, (torch.eye(4) * 2).to_sparse()).verdict is Verdict.FAIL


def test_sparse_against_dense_is_another_structure():
    result = compare(torch.eye(4).to_sparse(), torch.eye(4))
    assert result.kind is Kind.structure
    assert "golden is a sparse_coo float32 tensor of shape (4, 4), actual is a float32 tensor" in result.reason


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_compare_by_value_and_dtype():
    quantize = torch.quantize_per_tensor
    a, b = (quantize(torch.tensor([0.0, 0.5, v]), 0.5, 0, torch.qint8) for v in (1.0, 1.5))
    c = quantize(torch.tensor([0.0, 0.5, 1.0]), 0.5, 0, torch.quint8)
    assert compare(a, a).verdict is Verdict.PASS
    assert compare(a, b).kind is Kind.local
    assert compare(a, c).kind is Kind.dtype


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_say_what_to_do():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    result = compare(nested, nested)
    assert result.verdict is Verdict.UNSUPPORTED
    assert "unbind()" in result.reason
    assert not result.passed


def test_an_unsupported_output_does_not_hide_a_failure():
    meta = torch.empty(2, device="meta")
    assert compare((meta, x(2)), (meta, x(2) + 1)).verdict is Verdict.FAIL


def cyclic():
    value = [x(2)]
    value.append(value)
    return value


def deep():
    value = x(2)
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(("make", "words"), [(cyclic, "contains itself"), (deep, "nested more than 100 deep")])
def test_structures_that_cannot_be_walked_fail_with_one_sentence(make, words):
    result = compare(make(), make())
    assert (result.verdict, result.kind) == (Verdict.FAIL, Kind.structure)
    assert words in result.reason


def test_parameters_and_gradients_need_no_detaching():
    weight = torch.nn.Parameter(x(4))
    assert compare(weight, weight * 1).verdict is Verdict.PASS


def test_comparing_changes_nothing():
    golden, actual = x(100), x(100)
    golden[2] = actual[2] = math.nan
    actual[5] = math.inf
    before = golden.clone(), actual.clone()
    compare(golden, actual, benchmark=actual)
    for old, now in zip(before, (golden, actual), strict=True):
        assert torch.equal(old.view(torch.int32), now.view(torch.int32))


# --- benchmarks -----------------------------------------------------------------------------------------------------


def test_the_benchmark_is_matched_leaf_by_leaf():
    golden = {"a": x(500, dtype=torch.float64), "b": x(500, seed=1, dtype=torch.float64)}
    noise = {k: (1e-2 * x(500, seed=s), 1e-2 * x(500, seed=s + 1)) for k, s in (("a", 2), ("b", 4))}
    benchmark = {k: (golden[k] + noise[k][0]).float() for k in ("b", "a")}
    actual = {k: (golden[k] + noise[k][1]).float() for k in golden}
    assert compare(golden, actual).verdict is Verdict.FAIL
    assert compare(golden, actual, benchmark=benchmark).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "yardstick", [(x(3),), {"k": x(3)}, (x(7), x(3)), x(3)], ids=["short", "mapping", "shape", "flat"]
)
def test_a_benchmark_of_another_structure_is_left_out(yardstick):
    golden = (x(3), x(3))
    assert compare(golden, (x(3), x(3)), benchmark=yardstick).verdict is Verdict.PASS
    assert compare(golden, (x(3), x(3) + 1), benchmark=yardstick).verdict is Verdict.FAIL
    assert compare(golden, (x(3) + 1, x(3)), benchmark=yardstick).verdict is Verdict.FAIL


# --- requests that can't be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"criterion": "nope"}, "criterion 'nope' is not known: give one of auto, cosine, exact, close"),
        ({"cosine": math.nan}, "cosine=nan"),
        ({"criterion": "cosine", "cosine": 2}, "cosine=2"),
        ({"max_abs": -1}, "max_abs=-1"),
        ({"rtol": math.nan}, "rtol=nan"),
        ({"criterion": "exact", "atol": 1e-3}, "doesn't use atol"),
    ],
)
def test_bad_requests_raise_one_sentence(request_, words):
    with pytest.raises(ValueError, match=re.escape(words)) as e:
        compare(x(2), x(2), **request_)
    assert "\n" not in str(e.value)


def test_thresholds_choose_their_criterion():
    assert compare(x(9), x(9), cosine=0.9).criterion == "cosine"
    assert compare(x(9), x(9) * 1.01, cosine=0.9, max_abs=1.0).verdict is Verdict.PASS
    assert compare(x(9), x(9) * 1.01, rtol=0.02).verdict is Verdict.PASS
    assert compare(x(9), x(9) * 1.01, criterion=Criterion("close", rtol=0.001)).verdict is Verdict.FAIL


def test_data_movement_is_judged_exactly_when_asked():
    golden = x(50)
    actual = torch.nextafter(golden, golden * 2)
    assert judge_tree(golden, actual)[0].verdict is Verdict.PASS
    assert judge_tree(golden, actual, exact=lambda *_: Exactness.VALUES)[0].kind is Kind.exact


# --- the checker has power: noise, constants, zeros and scalings must not pass ---------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
@pytest.mark.parametrize("with_benchmark", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: torch.zeros_like(g),
        lambda g: torch.full_like(g, g.mean().item()),
        lambda g: g.abs(),
        lambda g: -g,
        lambda g: g * 2,
        lambda g: g.flip(0),
        lambda g: g + g.std() / 2,
        lambda g: g[torch.randperm(len(g), generator=torch.Generator().manual_seed(1))],
        lambda g: torch.where(torch.arange(len(g)) >= len(g) - 8, 0.0, g),
    ],
    ids=["zeros", "constant", "abs", "negated", "doubled", "flipped", "offset", "shuffled", "tail"],
)
def test_wrong_results_fail(dtype, scale, with_benchmark, wrong):
    golden = x(2000, dtype=torch.float64) * scale
    rounded = golden.to(dtype)
    assert compare(golden, rounded, benchmark=rounded if with_benchmark else None).verdict is Verdict.PASS
    result = compare(golden, wrong(golden).to(dtype), benchmark=rounded if with_benchmark else None)
    assert result.verdict is Verdict.FAIL


# --- where ----------------------------------------------------------------------------------------------------------


def test_a_failure_says_where():
    golden = {"y": [torch.randn(64, 96, dtype=torch.float64)], "n": torch.arange(50), "z": 1.0}
    actual = {"y": [golden["y"][0].float()], "n": golden["n"].clone(), "z": 2.0}
    actual["y"][0][:, 3] += 1
    actual["n"][::10] += 1
    found = {o.path: o.pattern for o in compare(golden, actual).outputs}
    assert found == {
        "output['y'][0]": "column 3 (dim -1)",
        "output['n']": "every 10th element, from 0",
        "output['z']": "",
    }


def test_a_pass_and_another_structure_have_no_pattern():
    assert compare(torch.ones(3), torch.ones(3)).outputs[0].pattern == ""
    assert [o.pattern for o in compare([torch.ones(3)], [torch.ones(3), torch.ones(2)]).outputs] == ["", ""]
    assert compare(torch.ones(3), torch.ones(4)).outputs[0].pattern == ""


def test_what_the_benchmark_has_too_is_no_place():
    golden = torch.arange(50)
    benchmark, actual = golden.clone(), golden.clone()
    benchmark[0] = actual[0] = actual[-1] = 7
    assert compare(golden, actual, benchmark=benchmark).outputs[0].pattern == "only the last element"
