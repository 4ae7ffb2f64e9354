"""Collecting with torch_npu.profiler: the process really runs; the package of the card is a stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_ascend.perf.child import ProfilerFailed
from pytest_ascend.perf.tabular import ProfileError
from pytest_ascend.perf.torch_npu_profiler import collect

# The names that the real package has, and what is done with them.
STAND_IN = """
import json, os, shutil, types
from enum import Enum
ProfilerLevel = Enum("ProfilerLevel", "Level_none Level0 Level1 Level2")
AiCMetrics = Enum("AiCMetrics", "PipeUtilization ArithmeticUtilization Memory AiCoreNone")
ExportType = Enum("ExportType", "Text Db")
ProfilerActivity = Enum("ProfilerActivity", "CPU NPU")
class _ExperimentalConfig:
    def __init__(self, *, profiler_level, aic_metrics, export_type):
        self.said = [profiler_level.name, aic_metrics.name, export_type.name]
def tensorboard_trace_handler(dir_name):
    return dir_name
class profile:
    def __init__(self, *, activities, on_trace_ready, record_shapes, experimental_config):
        self.to, self.config = on_trace_ready, experimental_config
    def __enter__(self):
        return self
    def __exit__(self, *error):
        with open(os.environ["SAID"], "w") as file:
            json.dump(self.config.said, file)
        for i in range(int(os.environ.get("PROFILES", "1"))):
            shutil.copytree(os.environ["SAMPLE"], os.path.join(self.to, f"host_{i}_ascend_pt"))
"""


@pytest.fixture
def environment(tmp_path, profiles) -> dict[str, str]:
    """An environment in which `import torch_npu` gives the stand-in."""
    package = tmp_path / "site" / "torch_npu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.0'\n")
    (package / "profiler.py").write_text(STAND_IN)
    (tmp_path / "site" / "torch.py").write_text("")  # it is only imported, and the real one takes seconds
    (sample,) = (profiles / "torch_npu_profiler" / "v2_device_id_block_dim").iterdir()
    path = os.pathsep.join([str(package.parent), str(Path(__file__).parents[2])])
    return {
        **os.environ, "PYTHONPATH": path, "SAMPLE": str(sample), "SAID": str(tmp_path / "said.json"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }  # fmt: skip


@pytest.fixture
def script(tmp_path):
    """Writes the script that is profiled."""

    def write(code: str) -> Path:
        path = tmp_path / "work.py"
        path.write_text(code)
        return path

    return write


def test_a_script_is_profiled(environment, script, tmp_path) -> None:
    path = script(
        "import sys, pathlib\nassert __name__ == '__main__'\npathlib.Path(sys.argv[1]).write_text(sys.argv[2])\n"
    )
    table = collect(path, [str(tmp_path / "ran"), "a b"], output=tmp_path / "out", environment=environment)
    assert (tmp_path / "ran").read_text() == "a b"
    assert table.calls == 15
    assert table.total_us == pytest.approx(312981.717)
    assert json.loads((tmp_path / "said.json").read_text()) == ["Level1", "PipeUtilization", "Text"]


def test_a_script_that_exits_well(environment, script, tmp_path) -> None:
    assert collect(script("raise SystemExit(0)"), output=tmp_path / "out", environment=environment).calls == 15


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no such file')", r"work.py failed under the profiler \(ValueError: no such file\)"),
        ("raise SystemExit(3)", "it ended with status 3"),
        ("import os; os._exit(7)", "ended with status 7 before the script did"),
        ("import os; print('boom', flush=True); os.abort()", "ended with status -6 before the script did: boom"),
    ],
)
def test_a_script_that_fails(environment, script, tmp_path, code, message) -> None:
    with pytest.raises(ProfilerFailed, match=message):
        collect(script(code), output=tmp_path / "out", environment=environment)


def test_a_script_that_never_ends(environment, script, tmp_path) -> None:
    with pytest.raises(ProfilerFailed, match="was stopped after 3 s"):
        collect(script("import time; time.sleep(600)"), output=tmp_path / "out", environment=environment, timeout_s=3)


def test_a_profiler_that_wrote_nothing(environment, script, tmp_path) -> None:
    """It swallows its errors, so only the files tell."""
    with pytest.raises(ProfilerFailed, match=r"wrote nothing to .*does the script run on the NPU"):
        collect(script(""), output=tmp_path / "out", environment={**environment, "PROFILES": "0"})
    with pytest.raises(ProfilerFailed, match="wrote 2 profiles of its own"):
        collect(script(""), output=tmp_path / "out2", environment={**environment, "PROFILES": "2"})


def test_a_profiler_that_did_not_analyse(environment, script, tmp_path) -> None:
    raw = tmp_path / "raw"
    (raw / "PROF_1").mkdir(parents=True)
    with pytest.raises(ProfilerFailed, match=r"raw data .* didn't analyse it .*call torch_npu\.profiler\.profiler"):
        collect(script(""), output=tmp_path / "out", environment={**environment, "SAMPLE": str(raw)})


def test_a_profile_that_is_cut_off(environment, script, tmp_path) -> None:
    broken = tmp_path / "broken" / "ASCEND_PROFILER_OUTPUT"
    broken.mkdir(parents=True)
    text = next(Path(environment["SAMPLE"]).rglob("kernel_details.csv")).read_text()
    (broken / "kernel_details.csv").write_text(text[: len(text) // 2])
    with pytest.raises(ProfileError, match=r"kernel_details.csv, line \d+: "):
        collect(script(""), output=tmp_path / "out", environment={**environment, "SAMPLE": str(broken.parent)})


def test_the_emulated_npu_has_no_profiler(script, tmp_path, environment) -> None:
    """One clear error, and nothing that looks like a profile."""
    path = os.pathsep.join(environment["PYTHONPATH"].split(os.pathsep)[1:])
    with pytest.raises(
        ProfilerFailed, match=r"torch_npu \S*emulated has no profiler: profile on a machine with a card"
    ):
        collect(script(""), output=tmp_path / "out", environment={**environment, "PYTHONPATH": path}, emulated=True)
    assert list((tmp_path / "out").iterdir()) == []


def test_no_torch_npu(script, tmp_path, environment) -> None:
    broken = Path(environment["PYTHONPATH"].split(os.pathsep)[0]) / "torch_npu" / "__init__.py"
    broken.write_text("raise ImportError('libascend_hal.so: cannot open shared object file')")
    with pytest.raises(
        ProfilerFailed, match=r"torch_npu can't be imported \(libascend_hal.so: .*: profile on a machine"
    ):
        collect(script(""), output=tmp_path / "out", environment=environment)


def test_arguments_are_checked(script, tmp_path) -> None:
    path = script("")
    with pytest.raises(ValueError, match=r"level='Level9': torch_npu.profiler has Level0, Level1, Level2"):
        collect(path, output=tmp_path / "out", level="Level9")
    with pytest.raises(ValueError, match="isn't there: give a Python file"):
        collect(tmp_path / "none.py", output=tmp_path / "out")
    with pytest.raises(ValueError, match="isn't empty"):
        collect(path, output=tmp_path)
