"""Cases without a test file: items, options, reports and the coverage table, with a pretended catalogue."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

import pytest_ascend.cases.case
import pytest_ascend.collect  # noqa: F401

CATALOGUE = """
import sys
import types
import pytest
import torch
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.pending import Absent, CaseUnavailable, Pending

def relu():
    return Case(torch.relu, (torch.linspace(-1, 1, 8),), api="torch.relu"), {}

def wrong():
    return Case(torch.exp, (torch.linspace(-1, 1, 8),), api="torch.exp"), {"reference": torch.sin}

def broken():
    raise CaseUnavailable("case list: torch.tan has no arguments; make it again")

def refused():
    return Case(torch.matmul, (torch.ones(2, 3), torch.ones(2, 3)), api="torch.mm"), {}

def no_kernel():
    return Case(lambda x: torch.linalg.det(x), (torch.ones(2, 2, dtype=torch.int32),), api="torch.det"), {}

LISTED = [
    Pending("torch.relu[float32-3]", "torch.relu", "float32", relu, "list: 1", count=3, keywords=("plain",)),
    Pending("torch.relu[float32-3]", "torch.relu", "float32", relu, "list: 2"),
    Pending("torch.exp[float32-0]", "torch.exp", "float32", wrong, "list: 3"),
    Pending("torch.tan[float32-0]", "torch.tan", "float32", broken, "list: 4"),
    Pending("torch.mm[float32-0]", "torch.mm", "float32", refused, "list: 5"),
    Pending("torch.sync[-0]", "torch.sync", "", relu, "list: 6", not_runnable="it needs another process"),
    Absent("torch.nothing", "no sample makes inputs for it"),
]

def pendings(patterns, settings):
    import fnmatch
    if "torch.raises" in patterns:
        raise ValueError("'torch.raises' matches none of 5 APIs")
    for one in LISTED:
        if any(fnmatch.fnmatchcase(one.api, pattern) for pattern in patterns):
            yield one

catalogue = types.ModuleType("pytest_ascend.cases.catalogue")
catalogue.__spec__ = __spec__
catalogue.pendings = pendings
sys.modules["pytest_ascend.cases.catalogue"] = catalogue
"""


@pytest.fixture
def apis(pytester: pytest.Pytester):
    """Run pytest with --ascend-api over the pretended catalogue."""
    pytester.makeconftest(CATALOGUE)

    def run(pattern: str, *args: str, subprocess: bool = False) -> pytest.RunResult:
        runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        args = (f"--ascend-api={pattern}", *args)
        if not any(arg.startswith("--ascend-compare") for arg in args):
            args = ("--ascend-compare=cpu", *args)
        return runner("-p", "no:hypothesispytest", *args)

    return run


def test_each_listed_case_is_an_item(apis, pytester) -> None:
    pytester.makepyfile("def test_not_asked_for(): assert False")
    result = apis("torch.relu")
    result.assert_outcomes(passed=2)
    result = apis("torch.relu", "--collect-only", "-q")
    assert result.stdout.lines[:2] == [
        "ascend-api::torch.relu[float32-3]",
        "ascend-api::torch.relu[float32-3]#2",
    ]


def test_paths_are_collected_beside_the_catalogue(apis, pytester) -> None:
    path = pytester.makepyfile("def test_asked_for(): pass")
    apis("torch.relu", str(path)).assert_outcomes(passed=3)


def test_a_wrong_case_fails_with_its_result_and_how_to_run_it_again(apis) -> None:
    result = apis("torch.exp,torch.relu")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAIL (*): torch.exp, float32, cpu*",
            "FAIL (*)  ascend-api::torch.exp?float32-0?",
            "    reproduce: pytest '--ascend-api=torch.exp?float32-0?' --ascend-compare=cpu",
        ]
    )
    result.stdout.no_fnmatch_line("*collect.py*")


def test_a_case_is_selected_by_its_id(apis) -> None:
    result = apis("torch.exp[float32-0]")
    result.assert_outcomes(failed=1)
    apis("torch.exp[float32-1]").assert_outcomes()


def test_what_cannot_run_is_reported_and_never_dropped(apis) -> None:
    result = apis("torch.*", "-rs")
    result.assert_outcomes(passed=2, failed=1, skipped=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "INFRA: torch.tan, float32, cpu*",
            "*case list: torch.tan has no arguments; make it again",
            "INFRA: torch.mm, float32, cpu*",
            "*the CPU, which would be the reference, raised RuntimeError: mat1 and mat2 shapes cannot be multiplied*",
            "    reproduce: pytest '--ascend-api=torch.mm?float32-0?' --ascend-compare=cpu",
            "coverage of 6 APIs, 6 cases for 8 calls:",
            "  failed            3  torch.exp, torch.tan, torch.mm",
            "  run               1",
            "  not exercised     1  torch.nothing",
            "    torch.nothing: no sample makes inputs for it",
            "  unsupported       1  torch.sync",
            "    torch.sync: it needs another process",
            "SKIPPED ?1? *: UNSUPPORTED: it needs another process",
        ]
    )


def test_verbose_has_a_row_for_each_api(apis) -> None:
    result = apis("torch.*", "-v")
    result.stdout.fnmatch_lines(
        ["  API * cases  calls  verdicts", "  torch.relu     run            2      4      2 PASS"]
    )


def test_keywords_select(apis) -> None:
    apis("torch.*", "-k", "plain").assert_outcomes(passed=1, deselected=6 - 1)
    apis("torch.*", "-k", "exp").assert_outcomes(failed=1, deselected=5)


def test_last_failed_runs_the_failed_ones_again(apis) -> None:
    apis("torch.*").assert_outcomes(passed=2, failed=1, skipped=1, errors=2)
    result = apis("torch.*", "--lf")
    result.assert_outcomes(failed=1, errors=2, deselected=3)


def test_the_results_file_and_junit_have_them(apis, pytester) -> None:
    apis("torch.*", "--ascend-json=r.json", "--junitxml=j.xml")
    results = json.loads((pytester.path / "r.json").read_text())["results"]
    assert [(r["api"], r["verdict"], r["count"], r["source"]) for r in results[:2]] == [
        ("torch.relu", "PASS", 3, "list: 1"),
        ("torch.relu", "PASS", 1, "list: 2"),
    ]
    assert {r["verdict"] for r in results} == {"PASS", "FAIL", "INFRA", "UNSUPPORTED"}
    cases = ElementTree.parse(pytester.path / "j.xml").getroot().iter("testcase")
    named = {case.get("name"): [p.get("value") for p in case.iter("property")] for case in cases}
    assert "PASS" in named["torch.relu[float32-3]"]


def test_two_workers_run_them(apis) -> None:
    result = apis("torch.*", "-n2", subprocess=True)
    result.assert_outcomes(passed=2, failed=1, skipped=1, errors=2)
    result.stdout.fnmatch_lines(["    torch.nothing: no sample makes inputs for it"])


def test_a_pattern_that_matches_nothing_is_one_sentence(apis) -> None:
    result = apis("torch.raises")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["--ascend-api=torch.raises: 'torch.raises' matches none of 5 APIs"])


def test_without_compare_they_are_skipped(pytester) -> None:
    pytester.makeconftest(CATALOGUE)
    result = pytester.runpytest_inprocess("--ascend-api=torch.relu", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*needs --ascend-compare"])


def test_strict_fails_what_passes_with_a_note_only(apis) -> None:
    apis("torch.relu", "--ascend-strict").assert_outcomes(passed=2)
