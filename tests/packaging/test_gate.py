"""What CI runs: the workflows, and the script behind the composite action, as it is, in a repository of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))

TESTS = """
import torch

def test_softmax(ascend_compare):
    ascend_compare(torch.softmax, torch.randn(4, 64), dim=-1)
"""
FAULT = """
import pytest_ascend as pa

def test_broken(ascend_compare):
    with pa.emulator.override("aten::neg", lambda x: x.neg() + 1e-3):
        ascend_compare(torch.neg, torch.randn(64))
"""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_makes_exists(workflow) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make ([\w-]+)", workflow.read_text())) <= targets


def test_the_script_reads_what_the_action_gives() -> None:
    action, script = (ROOT / "action.yml").read_text(), (ROOT / ".github/scripts/gate.sh").read_text()
    given = set(re.findall(r"^        ([A-Z_]+): \$\{\{ inputs\.", action, re.MULTILINE))
    assert given == {*re.findall(r"\$\{([A-Z_]+):-", script)} - {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}
    inputs = set(re.findall(r"^  ([a-z-]+):\n    description", action.partition("outputs:")[0], re.MULTILINE))
    assert {name.replace("-", "_").upper() for name in inputs} == given
    assert "${{ inputs" not in action.partition("run: '")[2].partition("\n")[0]


slow = pytest.mark.skipif("ASCEND_PACKAGING" not in os.environ, reason="runs the gate: make test-packaging")


class Runner:
    """A runner of CI without an NPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary, self.outputs = folder / "summary.md", folder / "outputs"
        for file in (self.summary, self.outputs):
            file.touch()

    def gate(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        files = {"GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_OUTPUT": str(self.outputs)}
        return subprocess.run(
            ["bash", str(ROOT / ".github/scripts/gate.sh")],
            cwd=self.folder,
            env={**os.environ, "PYTHON": sys.executable, **files, **inputs},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def runner(tmp_path) -> Runner:
    (tmp_path / "some tests").mkdir()
    (tmp_path / "some tests/test_it.py").write_text(TESTS)
    return Runner(tmp_path)


@slow
def test_the_emulated_fallback_is_said_loudly(runner) -> None:
    done = runner.gate(ARGUMENTS="some tests\n\n", AGAINST="none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "::warning title=Emulated NPU::there is no NPU on this runner" in done.stdout
    assert "**Not judged on a card:**" in runner.summary.read_text()
    assert runner.outputs.read_text() == "emulated=true\n"
    assert (runner.folder / "ascend-reports/results.json").exists()
    assert (runner.folder / "ascend-reports/junit.xml").exists()
    with_page = importlib.util.find_spec("jinja2") is not None
    assert (runner.folder / "ascend-reports/report.html").exists() is with_page
    forbidden = runner.gate(ARGUMENTS="some tests", AGAINST="none", REQUIRE_NPU="true")
    assert forbidden.returncode == 1
    assert "::error title=No NPU::" in forbidden.stdout
    assert "1 passed" not in forbidden.stdout


@slow
def test_a_fault_and_a_slowdown_fail_the_gate(runner) -> None:
    tests = runner.folder / "some tests"
    (tests / "test_it.py").write_text(TESTS + FAULT)
    test = "import torch, work\ndef test_fast(ascend_perf):\n    ascend_perf(work.work, torch.ones(64, 256))\n"
    (tests / "test_fast.py").write_text(test)
    code = "def work(x):\n    for _ in range({}):\n        x = x.softmax(-1)\n    return x\n"
    (tests / "work.py").write_text(code.format(2))
    (tests / "conftest.py").write_text("")
    git = [shutil.which("git") or "git", "-c", "user.name=n", "-c", "user.email=n@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *command], cwd=runner.folder, check=True)
    (tests / "work.py").write_text(code.format(6))
    done = runner.gate(ARGUMENTS="some tests", AGAINST="HEAD", TARGET="emulated", FAIL="perf:20%")
    assert done.returncode == 1
    assert "1 FAIL" in done.stdout
    assert "1 regressed" in done.stdout, done.stdout[-3000:]
    assert runner.summary.read_text().count("Not judged on a card") == 0  # the emulated one was asked for
