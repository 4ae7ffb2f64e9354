"""Each failed call leaves a file that fails alone, where the run says so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TEST = """
import torch

def op(x):
    return x * (1.5 if x.device.type == "npu" else 1.0)

def test_it(ascend_compare):
    ascend_compare(op, torch.randn(7, 50))

def test_right(ascend_compare):
    ascend_compare(torch.relu, torch.randn(7, 50))

def test_expected(ascend_compare):
    assert not ascend_compare.check(op, torch.randn(7, 50)).passed
"""


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_a_failed_call_leaves_a_file(run, pytester, workers) -> None:
    arguments = ("--ascend-compare=emulated", "--ascend-json=r.json", *workers)
    result = run(TEST, *arguments, subprocess=bool(workers))
    result.assert_outcomes(passed=2, failed=1)
    folder = pytester.path / ".ascend" / "reproducers"
    (file,) = folder.iterdir()
    assert file.name == "reproduce_test_a_failed_call_leaves_a_file.py_test_it_.py"
    shown = f"python .ascend/reproducers/{file.name}"
    result.stdout.fnmatch_lines([f"*alone:     {shown}", f"    alone: {shown}"])
    assert (folder.parent / ".gitignore").read_text() == "*\n"
    records = {
        one["nodeid"].partition("::")[2]: one for one in json.loads((pytester.path / "r.json").read_text())["results"]
    }
    assert records["test_it"]["script"] == f".ascend/reproducers/{file.name}"
    assert records["test_right"]["script"] is None
    assert "script_text" not in records["test_it"]
    if not workers:
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "laid([1.0], torch.float32, (1, 1)" in file.read_text()


def test_another_folder_and_none(run, pytester) -> None:
    run(TEST, "--ascend-compare=emulated", "--ascend-reproducers=out/alone").assert_outcomes(passed=2, failed=1)
    assert len(list((pytester.path / "out" / "alone").iterdir())) == 1
    result = run(TEST, "--ascend-compare=emulated", "--ascend-reproducers=none")
    result.stdout.no_fnmatch_line("*alone:*")
    assert not (pytester.path / ".ascend").exists()


def test_a_folder_that_cannot_be_written(run, pytester) -> None:
    (pytester.path / "file").write_text("")
    result = run(TEST, "--ascend-compare=emulated", "--ascend-reproducers=file/x", "--ascend-json=r.json")
    result.stdout.fnmatch_lines(["*--ascend-reproducers: can't write*"])
    assert json.loads((pytester.path / "r.json").read_text())["results"][0]["script"] is None


PLANT = """
import torch, pytest, pytest_ascend as pa

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with pa.emulator.override("aten::tanh", lambda x: torch.tanh(x) * 1.1):
        return (yield)
"""


def test_a_case_without_a_test_file(pytester) -> None:
    pytester.makepyfile(plant=PLANT)
    case = "--ascend-api=torch.tanh[float32-as_given-0]"
    result = pytester.runpytest_subprocess("-p", "plant", "-p", "no:cacheprovider", "--ascend-compare=emulated", case)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["    alone: python .ascend/reproducers/reproduce_ascend-api_torch.tanh_*"])
