"""Helpers for the hooks' tests: an inner pytest run, and a `pretend` fixture inside it that dictates the verdict."""

from __future__ import annotations

from collections.abc import Callable

# pytester drops from sys.modules what an inner run imports. torch can't be imported twice in a process, and our enums
# would exist twice: so all of it is loaded before.
import numpy as np  # noqa: F401
import pytest
import torch
import torch._dynamo  # noqa: F401  # torch.manual_seed loads it

import pytest_ascend.check
import pytest_ascend.child_arguments
import pytest_ascend.cli
import pytest_ascend.comparison
import pytest_ascend.perf.ab
import pytest_ascend.perf_run
import pytest_ascend.report.results_json
import pytest_ascend.report.terminal
import pytest_ascend.targets.cpu
from pytest_ascend.targets import resolve

from .timed import Project

resolve("emulated")  # it patches torch, so it too must outlive the inner run that first asks for it

PRETEND = """
import sys
import types
import pytest
from pytest_ascend.judge.verdict import CheckpointResult, CheckResult, Kind, Metrics, OutputResult, Verdict

def metrics(cosine=1.0, max_abs=0.0):
    return Metrics(8, cosine, max_abs, max_abs, max_abs, 0.0, 0.0, 0.0, 1.0, 0.0)

def layer(name, status="pass", cosine=1.0, max_abs=0.0):
    verdict = Verdict.FAIL if status == "fail" else Verdict.PASS
    output = OutputResult("output", verdict, None, "", status, "float32", (8,), metrics(cosine, max_abs))
    return CheckpointResult.of(name, [output])

@pytest.fixture
def pretend(monkeypatch):
    seen = []
    def pretend(verdict, layers=(), cosine=1.0, max_abs=0.0, first_divergence=None, **fields):
        def check_case(case, options):
            seen.append(options)
            measured = metrics(cosine, max_abs)
            output = OutputResult("output", Verdict(verdict), None, "", "pass", "float32", (8,), measured)
            given = {"reason": f"pretended {verdict}", "api": "torch.relu", "dtype": "float32", "target": "npu:0"}
            return CheckResult(Verdict(verdict), outputs=(output,), checkpoints={c.name: c for c in layers},
                               first_divergence=first_divergence, **{**given, **fields})
        module = types.ModuleType("pytest_ascend.check")
        module.check_case = module.check = check_case
        monkeypatch.setitem(sys.modules, "pytest_ascend.check", module)
        return seen
    pretend.layer = layer
    return pretend
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run a test file in an inner pytest: ``run(source, *args)``; comparisons go to the CPU unless args say other."""
    pytester.makeconftest(PRETEND)

    def run(source: str, *args: str, subprocess: bool = False) -> pytest.RunResult:
        pytester.makepyfile(source)
        if not any(arg.startswith("--ascend-compare") for arg in args):
            args = ("--ascend-compare=cpu", *args)
        runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        return runner("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *args)

    return run


@pytest.fixture
def timed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose timings are dictated."""
    monkeypatch.setattr(pytest_ascend.child_arguments, "command", pytest_ascend.child_arguments.command)
    return Project(pytester, monkeypatch)
