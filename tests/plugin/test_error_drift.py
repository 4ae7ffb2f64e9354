"""Errors that grew while they are within their tolerance: ``--ascend-fail=error:2x``."""

from __future__ import annotations

import json

import jsonschema
import pytest

from pytest_ascend.report.results_json import SCHEMA

# A kernel whose relative error the file names; the reference is exact.
SUITE = """
import torch

def off(x):
    return x * (1 + {error}) if x.dtype == torch.float32 else x

def test_it(ascend_compare):
    ascend_compare.using(criterion="close", rtol=1e-2, atol=0.0, backward=False)(off, torch.linspace(1, 2, 64))
"""


@pytest.fixture
def drift(run):
    def drift(error: float, *args: str) -> pytest.RunResult:
        return run(SUITE.format(error=error), *args, subprocess="-n2" in args)

    return drift


def test_an_error_that_grew_fails_though_it_is_tolerated(drift, pytester) -> None:
    drift(1e-4, "--ascend-save").assert_outcomes(passed=1)
    drift(1.5e-4, "--ascend-fail=error:2x").assert_outcomes(passed=1)
    drift(2e-3).assert_outcomes(passed=1)  # nobody asked
    done = drift(2e-3, "--ascend-fail=error:2.5x,perf:3%", "--ascend-json=r.json")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*ComparisonFailed: error drift: relative error 0.002, 0.0001 in 1 stored sessions: *"])
    done.stdout.fnmatch_lines(["PASS, error drift  *::test_it", "*it grew 20 times"])
    file = json.loads((pytester.path / "r.json").read_text())
    jsonschema.validate(file, SCHEMA)
    assert file["results"][0]["error_drift"]["verdict"] == "regressed"
    assert file["results"][0]["outcome"] == "failed"
    assert "stored_figures" not in file["results"][0]


def test_a_drift_is_accepted_by_an_update_only(drift, pytester) -> None:
    drift(1e-4, "--ascend-save")
    drift(2e-3, "--ascend-save", "--ascend-fail=error:2x").assert_outcomes(failed=1)
    drift(2e-3, "--ascend-fail=error:2x").assert_outcomes(failed=1)
    drift(2e-3, "--ascend-update", "--ascend-fail=error:2x").assert_outcomes(passed=1)
    drift(2e-3, "--ascend-fail=error:2x").assert_outcomes(passed=1)


def test_without_a_stored_error_it_is_said_loudly(drift) -> None:
    done = drift(1e-4, "--ascend-fail=error:2x")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["error drift: inconclusive for *::test_it: there is no stored error*--ascend-save*"])
    drift(1e-4, "--ascend-fail=error:2x", "--ascend-strict").assert_outcomes(failed=1)


def test_workers_compare_and_the_controller_stores(drift, pytester) -> None:
    drift(1e-4, "--ascend-save", "-n2").assert_outcomes(passed=1)
    (file,) = pytester.path.glob("baselines/*/*.json")
    assert len(json.loads(file.read_text())["sessions"]) == 1
    drift(2e-3, "--ascend-fail=error:2x", "-n2").assert_outcomes(failed=1)


def test_a_wrong_result_isnt_stored(drift, pytester) -> None:
    drift(0.5, "--ascend-save").assert_outcomes(failed=1)
    assert not (pytester.path / "baselines").exists()
