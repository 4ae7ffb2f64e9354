"""Tests whose inputs Hypothesis draws: one result, the smallest failure, found again first."""

from __future__ import annotations

import json

import hypothesis
import pytest
import torch
from hypothesis import given, settings

import pytest_ascend as pa
from pytest_ascend import strategies

HEAD = """
import torch
import pytest_ascend as pa
from pytest_ascend.strategies import dim, dtype, indices, ints, tensors

def op(x, w=1.0):
    y = x * w
    if x.device.type == "npu" and x.dim() and x.shape[-1] >= 20:
        y[..., 19:] *= 1.25
    return y

def reference(x, w=1.0):
    return x * w
"""
FAULTY = (
    HEAD
    + """
@pa.ascend_cases(examples=60, x=tensors(("n", "d"), ("float32", "float16")), w=tensors(("d",)))
def test_op(ascend_compare, x, w):
    ascend_compare.using(reference=reference)(op, x, w.to(x.dtype))
"""
)


@pytest.fixture
def here(run, pytester):
    def start(source, *args):
        pytester.makeconftest("")
        arguments = ("--ascend-compare=emulated", "-p", "no:cacheprovider", *args)
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(*arguments)

    return start


#: By these Hypothesis sees that it runs in CI, where it keeps no failing inputs.
IN_CI = (
    *("CI", "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI", "TF_BUILD", "bamboo.buildKey", "BUILDKITE", "CIRCLECI"),
    *("CIRRUS_CI", "CODEBUILD_BUILD_ID", "GITHUB_ACTIONS", "GITLAB_CI", "HEROKU_TEST_RUN_ID", "TEAMCITY_VERSION"),
)


def test_a_failure_shrinks_and_is_found_again(here, pytester, monkeypatch) -> None:
    for name in IN_CI:
        monkeypatch.delenv(name, raising=False)
    result = here(FAULTY, "--ascend-json=r.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*FAIL (*): *op, float32*", "*note:      inputs drawn by Hypothesis: *"])
    (record,) = json.loads((pytester.path / "r.json").read_text())["results"]
    text = (pytester.path / record["script"]).read_text()
    assert "torch.float32, (1, 20), (20, 1)" in text, text  # size 20 of the last dimension is where the fault begins
    assert (pytester.path / ".hypothesis").is_dir()
    once = FAULTY.replace("examples=60", "examples=1")
    again = here(once)  # one example only: the one that failed before
    again.assert_outcomes(failed=1)


def test_a_pass_is_one_result(here, pytester) -> None:
    result = here(FAULTY.replace("1.25", "1.0"), "--ascend-json=r.json")
    result.assert_outcomes(passed=1)
    (record,) = json.loads((pytester.path / "r.json").read_text())["results"]
    assert record["verdict"] == "PASS"
    assert "60 PASS" in record["notes"][-1]


OTHERS = (
    HEAD
    + """
@pa.ascend_cases(examples=20, x=tensors((3, "n"), ("float32",)), dim=ints(0, 2), index=indices("n", ("k",)))
def test_bounds(ascend_compare, x, dim, index):
    assert 0 <= dim < 2
    assert index.max() < x.shape[1]
    ascend_compare(torch.index_select, x, 1, index)
    ascend_compare.using(backward=False)(torch.sum, x, dim)

@pa.ascend_cases(examples=20, x=tensors((2, "n")))
def test_an_assertion_of_its_own(ascend_compare, x):
    ascend_compare.check(torch.relu, x)
    assert x.shape[1] < 12

@pa.ascend_cases(examples=20, x=tensors(("n",)))
def test_raises(ascend_compare, x):
    ascend_compare(raising, x)

def raising(x):
    if x.device.type == "npu":
        raise RuntimeError("of the device")
    return x

class TestMethods:
    @pa.ascend_cases(examples=5, x=tensors(("n",)))
    def test_method(self, ascend_compare, x):
        ascend_compare(torch.relu, x)
"""
)


@pytest.mark.whole
def test_other_ends(here) -> None:
    result = here(OTHERS)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["E  *assert * < 12", "*CRASH*raising*"])


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="no argument ascend_compare"):
        pa.ascend_cases(x=strategies.tensors())(lambda x: None)

    def test(ascend_compare, x):
        pass

    with pytest.raises(TypeError, match="has no argument y"):
        pa.ascend_cases(y=strategies.tensors())(test)
    for bad in ({"layouts": ("diagonal",)}, {"special": "odd"}, {"dtypes": "softmax"}):
        with pytest.raises(ValueError, match="is no"):
            hypothesis.find(strategies.tensors(**bad), lambda x: True)


# ------------------------------------------------------------------------------------------------ the strategies

few = settings(max_examples=60, deadline=None, database=None)


@few
@given(
    strategies.tensors(layouts=strategies.LAYOUTS, special=strategies.SPECIAL, dtypes=("float16", "bfloat16", "int32"))
)
def test_any_tensor(x: torch.Tensor) -> None:
    assert x.dim() <= 4
    assert x.dtype in (torch.float16, torch.bfloat16, torch.int32)
    if x.dtype is torch.int32:
        assert x.min() >= -8
        assert x.max() <= 8


@few
@given(strategies.tensors(("n", 3), low=0, high=1), strategies.tensors((4, "n"), special=("ordinary",), low=2, high=5))
def test_shared_sizes_and_bounds(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.shape == (y.shape[1], 3)
    assert x.min() >= 0
    assert x.max() <= 1
    assert y.min() >= 2
    assert y.max() <= 5


@few
@given(
    strategies.tensors((3,), strategies.dtype("float32", "float16")),
    strategies.tensors((2,), strategies.dtype("float32", "float16")),
)
def test_shared_dtypes(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.dtype is y.dtype


@pytest.mark.parametrize(
    ("what", "options"),
    [
        (lambda x: not x.is_contiguous(), {}),
        (lambda x: x.storage_offset() > 0, {}),
        (lambda x: 0 in x.stride() and x.numel() > 1, {}),
        (lambda x: x.dim() == 0, {}),
        (lambda x: bool(x.isnan().any()), {"special": strategies.SPECIAL}),
        (lambda x: bool((x.abs() == torch.finfo(x.dtype).max).any()), {"special": strategies.SPECIAL}),
        (lambda x: bool(((x == 0) & x.signbit()).any()), {"special": strategies.SPECIAL}),
        (lambda x: bool(((x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)).any()), {"special": strategies.SPECIAL}),
        (lambda x: x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous(),
         {"layouts": strategies.LAYOUTS}),
        (lambda x: x.numel() > 30, {}),
        (lambda x: x.numel() == 0, {"shapes": (strategies.dim("m", (2, 0)), 3)}),
    ],
)  # fmt: skip
def test_everything_comes_up_and_shrinks(what, options) -> None:
    found = hypothesis.find(
        strategies.tensors(**options), what, settings=settings(max_examples=2000, deadline=None, database=None)
    )
    assert found.numel() <= 40


def test_the_plainest_tensor() -> None:
    x = hypothesis.find(strategies.tensors(("n", "m")), lambda x: True, settings=few)
    assert x.tolist() == [[1.0]]
    assert x.dtype is torch.float32
