"""``pytest --ascend-api`` over the list that ships."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:hypothesispytest", "--ascend-compare=emulated", *args)


def test_one_api_of_some_dtypes_and_layouts(pytester) -> None:
    result = run(pytester, "--ascend-api=torch.softmax", "--ascend-dtypes=float16", "--ascend-layouts=transposed", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*softmax?float16-transposed-*PASSED*", "*coverage of 1 API, *"])


def test_an_unknown_api_is_one_sentence(pytester) -> None:
    result = run(pytester, "--ascend-api=torch.softmx")
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        ["*--ascend-api=torch.softmx: no API is called 'torch.softmx'; the nearest there is: 'torch.softmax'"]
    )


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--ascend-dtypes=float12", "*'float12' is no dtype: give some of float32, *"),
        ("--ascend-layouts=diagonal", "*'diagonal' is no layout: give some of as_given, *"),
        ("--ascend-modes=fast", "*'fast' is no mode: give some of eager, compile, *"),
        ("--ascend-samples=0", "*'0' is no number of samples: *"),
    ],
)
def test_bad_values_are_usage_errors(pytester, option: str, sentence: str) -> None:
    result = run(pytester, "--ascend-api=torch.exp", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([sentence])


@pytest.mark.whole
def test_compiled_and_eager(pytester) -> None:
    args = (
        "--ascend-dtypes=float32",
        "--ascend-layouts=as_given",
        "--ascend-samples=1",
        "--ascend-modes=eager,compile",
    )
    result = run(pytester, "--ascend-api=torch.nn.functional.silu,torch.Tensor.mul_", *args, "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*silu?float32-as_given-0-compile?*PASSED*"])
