"""Bad input: each is one clear sentence naming the thing and the fix, with the right exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ascend import targets


def only_error(result: pytest.RunResult) -> str:
    """The usage error's one line."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    lines = [line for line in result.stderr.lines if line]
    assert len(lines) == 1
    return lines[0]


def test_a_missing_npu(run) -> None:
    error = only_error(run("def test_it(): pass", "--ascend-compare=npu", subprocess=True))
    assert error.startswith("ERROR: --ascend-compare=npu: ")
    assert "--ascend-compare=emulated" in error


def test_an_emulated_device_that_does_not_exist(run) -> None:
    error = only_error(run("def test_it(): pass", "--ascend-compare=emulated:9"))
    assert "npu:9 does not exist" in error


def test_an_unknown_soc(run) -> None:
    error = only_error(run("def test_it(): pass", "--ascend-compare=emulated:Ascend911"))
    assert "Ascend911" in error
    assert "Ascend910A" in error


def test_torch_missing(run, monkeypatch) -> None:
    def resolve(spec: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(targets, "resolve", resolve)
    error = only_error(run("def test_it(): pass", "--ascend-compare"))
    assert error == "ERROR: --ascend-compare=auto: torch is not installed: pip install 'pytest-ascend[torch]'"


@pytest.fixture
def torch_npu_without_cann(tmp_path: Path, monkeypatch) -> None:
    """An installed torch_npu whose import fails as it does without CANN; torch imports it by its entry point."""
    folder = tmp_path / "site"
    (folder / "torch_npu").mkdir(parents=True)
    (folder / "torch_npu" / "__init__.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')"
    )
    info = folder / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)


@pytest.mark.parametrize("spec", ["auto", "npu"])
def test_torch_npu_without_cann(torch_npu_without_cann, pytester, spec) -> None:
    pytester.makepyfile("def test_it(ascend_compare): pass")
    error = only_error(pytester.runpytest_subprocess(f"--ascend-compare={spec}"))
    assert "CANN is missing (libhccl.so can't be loaded)" in error
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in error


def test_torch_npu_without_cann_is_nothing_to_a_run_that_does_not_compare(torch_npu_without_cann, pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


BAD_CALLS = {
    "a model that raises": (
        "ascend_compare(Broken(), torch.ones(2))",
        "E*ValueError: the weights are gone",
    ),
    "different structure": (
        "ascend_compare.using(reference=lambda x: (x, x))(lambda x: [x], torch.ones(2))",
        "*FAIL (structure)*",
    ),
    "a checkpoint that matches nothing": (
        "ascend_compare.using(checkpoints=['layer9.*'])(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(2))",
        "*'layer9.?'*",
    ),
    "a criterion's threshold of another": (
        "ascend_compare.using(cosine=float('nan'))(torch.abs, torch.ones(2))",
        "*cosine=nan can't be a threshold: give a number in *",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls(run, call, sentence) -> None:
    result = run(
        f"""
        import torch
        class Broken(torch.nn.Module):
            def forward(self, x): raise ValueError("the weights are gone")
        def test_it(ascend_compare):
            {call}
        """,
        "--ascend-compare",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([sentence])
    result.stdout.no_fnmatch_line("*pytest_ascend/*.py:*")
