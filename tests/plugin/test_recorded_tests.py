"""`--ascend-record`: what tests call, one folder for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TESTS = """
import pytest, torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

def test_train():
    net()(torch.ones(2, 4)).sum().backward()

@pytest.mark.parametrize("value", ["x/y", "x y", "x_y"])
def test_alike(value):
    torch.relu(torch.ones(3))

def test_nothing():
    pass

def test_compare(ascend_compare):
    ascend_compare(net(), torch.ones(2, 4))

def test_fails():
    torch.relu(torch.ones(3))
    assert False
"""


def dumps(root: Path) -> dict[str, Any]:
    """The recorded calls by the name of the test's folder, without its checksum, and step."""
    found = {}
    for path in sorted(root.rglob("dump.json")):
        name = path.relative_to(root).parts[0].rpartition("_")[0]
        count = sum(key.startswith(name) for key in found)
        found[f"{name}{count or ''}"] = json.loads(path.read_text())["data"]
    return found


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_one_folder_for_each_test(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(test_it=TESTS)
    options = ("--ascend-record=dumps", "--ascend-record-level=mix", "--ascend-record-task=statistics")
    result = pytester.runpytest_subprocess(*options, *workers)
    result.assert_outcomes(passed=5, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*ascend: recorded 5 tests, 5 steps below *dumps"])
    result.stdout.fnmatch_lines(["*NOT_EXERCISED: 1 tests called nothing to record: test_it.py::test_nothing"])
    found = dumps(pytester.path / "dumps")
    assert sorted(found) == [
        "test_it_py_test_alike_x_y", "test_it_py_test_alike_x_y1", "test_it_py_test_alike_x_y2",
        "test_it_py_test_fails", "test_it_py_test_train",
    ]  # fmt: skip
    train = found["test_it_py_test_train"]
    assert "Module.0.Linear.forward.0" in train
    assert "Module.0.Linear.parameters_grad.0" in train
    assert "Functional.linear.0.backward" in train
    assert len(list((pytester.path / "dumps").iterdir())) == 5


def test_a_comparison_is_recorded_as_it_ran_on_the_target(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    options = ("--ascend-record=dumps", "--ascend-record-level=mix", "--ascend-compare", "-k", "compare")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1, deselected=6)
    (found,) = dumps(pytester.path / "dumps").values()
    forward = [name for name in found if name.endswith(".forward") or ".forward." in name]
    assert forward[-4:] == [
        "Functional.linear.0.forward", "Module.0.Linear.forward.0", "Functional.relu.0.forward",
        "Module.1.ReLU.forward.0",
    ]  # fmt: skip
    assert "Functional.linear.1.forward" not in found


@pytest.mark.whole
def test_a_second_run_goes_on_after_the_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    for _ in range(2):
        pytester.runpytest_subprocess("--ascend-record=dumps", "-k", "train")
    (folder,) = (pytester.path / "dumps").iterdir()
    assert sorted(step.name for step in folder.iterdir()) == ["step0", "step1"]


def test_the_ini_file_chooses_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini(
        "[pytest]\nascend_record = dumps\nascend_record_level = L0\nascend_record_modules = 1\n"
        "ascend_record_format = safetensors\nascend_record_largest = 1KB\n"
    )
    pytester.runpytest_subprocess("-k", "train").assert_outcomes(passed=1, deselected=6)
    (found,) = dumps(pytester.path / "dumps").values()
    assert [name for name in found if ".forward." in name] == ["Module.1.ReLU.forward.0"]
    assert list((pytester.path / "dumps").rglob("*.safetensors"))


@pytest.mark.whole
def test_what_is_compiled_is_said_loudly_and_fails_a_strict_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from torch import nn

        def test_compiled():
            torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="aot_eager")(torch.ones(2, 4))
        """
    )
    options = ("--ascend-record=dumps", "--ascend-record-level=mix")
    result = pytester.runpytest_subprocess(*options)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_compiled: NOT_EXERCISED: torch.compile wraps the model*"])
    assert pytester.runpytest_subprocess(*options, "--ascend-strict").ret == 1


@pytest.mark.whole
def test_a_strict_run_that_recorded_nothing_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    arguments = ("--ascend-record=dumps", "-k", "nothing")
    assert pytester.runpytest_subprocess(*arguments).ret == 0
    result = pytester.runpytest_subprocess(*arguments, "--ascend-strict")
    assert result.ret == 1
    assert not (pytester.path / "dumps").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.path.joinpath("taken").write_text("")
    result = pytester.runpytest_subprocess("--ascend-record=taken/dumps", "-k", "alike")
    result.assert_outcomes(passed=3, deselected=4)
    result.stdout.fnmatch_lines(["--ascend-record: Not a directory: *; nothing is recorded from *test_alike* on"])
    assert str(result.stdout).count("--ascend-record: Not a directory") == 1
    assert result.ret == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--ascend-record-level=L2",), "argument --ascend-record-level: 'L2' is no level of recording"),
        (("--ascend-record-task=all",), "'all' is no task of recording: give one of tensor, statistics, md5"),
        (("--ascend-record-format=npy",), "'npy' is no format of tensors' files: give one of pt, safetensors"),
        (("--ascend-record-rounds=first",), "'first' names no rounds: give all, prefill, decode, or numbers"),
        (("--ascend-record-every=0",), "'0' is no share: give N to keep one element in N"),
        (("--ascend-record-largest=big",), "'big' is no size: give bytes, or such as 64MB or 2GB"),
        (("--ascend-record-warmup=-1",), "'-1' is no count: give a whole number, 0 or more"),
        (("--ascend-record-warmup=1",), "--ascend-record-warmup counts calls of a model in a loop"),
        (("--ascend-perf",), "--ascend-record makes tests slower, so it can't be given when tests are timed"),
    ],
)
def test_bad_values_are_named(pytester: pytest.Pytester, options: tuple[str, ...], text: str) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--ascend-record=dumps", *options)
    result.stderr.fnmatch_lines([f"*{text}*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_quiet_runs_say_little(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--ascend-record=dumps", "-qq", "-k", "train")
    assert "recorded" not in str(result.stdout)
