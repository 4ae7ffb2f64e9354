"""A pull request that is wrong once and slow once, as GitHub and a JUnit reader see it; and that nothing is markup."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ascend import cli
from pytest_ascend.report import github, junit

WRONG = """
import pytest
import torch
import pytest_ascend as pa

def one_percent_more(x, dim, half_to_float):
    return torch._softmax(x, dim, half_to_float) * 1.01

def test_right(ascend_compare): ascend_compare(torch.relu, torch.linspace(-1, 1, 64))

def test_wrong(ascend_compare):
    with pa.emulator.override("aten::_softmax", one_percent_more):
        ascend_compare(torch.softmax, torch.linspace(-1, 1, 64).half().reshape(4, 16), dim=-1)
"""
CSI = chr(27) + "[2J"


def result(nodeid: str = "test_x.py::test_it", outcome: str = "failed", **more) -> dict:
    plain = {"nodeid": nodeid, "api": "torch.relu", "dtype": "float32", "verdict": "FAIL", "kind": "bias", "line": 3}
    plain |= {"reason": "it is wrong", "outcome": outcome, "metrics": {}, "target": "npu:0", "reproducer": "pytest x"}
    return {**plain, **more}


def content(*results: dict, **environment) -> dict:
    return {"schema": 1, "environment": environment, "summary": {}, "results": list(results)}


def test_a_pull_request_with_a_fault_and_a_slowdown(timed, monkeypatch) -> None:
    timed.takes(fast=1e-3, slow=1e-3)
    (timed.path / "test_wrong.py").write_text(WRONG)
    assert timed.run("--ascend-save", "test_timed.py").ret == 0
    timed.takes(fast=1e-3, slow=2.5e-3)
    summary = timed.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(timed.path.parent))
    done = timed.run("--ascend-compare=emulated", "--junitxml=j.xml", "--ascend-perf=3", "--ascend-json=r.json")
    assert done.ret == 1
    done.assert_outcomes(passed=3, failed=2)

    suite = ElementTree.parse(timed.path / "j.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors"), suite.get("tests")) == ("2", "0", "5")
    failed = {case.get("name"): case for case in suite if case.find("failure") is not None}
    assert list(failed) == ["test_slow", "test_wrong"]
    properties = {p.get("name"): p.get("value") for p in failed["test_wrong"].iter("property")}
    assert properties["ascend.verdict"] == "FAIL"
    assert properties["ascend.kind"] == "bias"
    assert properties["ascend.reproducer"] == "pytest test_wrong.py::test_wrong --ascend-compare=emulated"
    assert "FAIL (bias)" in failed["test_wrong"].find("failure").get("message")
    slow = {p.get("name"): p.get("value") for p in failed["test_slow"].iter("property")}
    assert slow["ascend.perf"] == "regressed"

    folder = timed.path.name
    errors = [line for line in done.outlines if line.startswith("::error")]
    assert len(errors) == 2
    assert errors[0].startswith(
        f"::error file={folder}/test_wrong.py,line=11,title=FAIL (bias) torch.softmax float16::"
    )
    assert errors[0].endswith("%0Areproduce: pytest test_wrong.py::test_wrong --ascend-compare=emulated")
    assert errors[1].startswith(f"::error file={folder}/test_timed.py,line=5,title=regressed torch.relu::")

    before, head, *lines = [line for line in summary.read_text().splitlines() if line]
    assert (before, head) == ("before", "## ❌ pytest-ascend: 2 failed of 4")
    assert "**No card was used: the device is emulated.**" in lines[0]
    assert lines[1] == "**1** FAIL, **1** regressed, **1** inconclusive, **1** PASS"
    rows = [line for line in lines if line.startswith("| ") and "test" in line and "verdict" not in line]
    assert rows[0].startswith("| FAIL (bias) | torch.softmax float16 | ")
    assert rows[0].endswith(" | test&#95;wrong.py&#58;&#58;test&#95;wrong |")
    assert rows[1].startswith("| regressed | torch.relu | ")
    assert "times, medians 1 ms -&#62; 2.51 ms" in rows[1]

    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(timed.path / "again.md"))
    assert cli.main(["report", "github", str(timed.path / "r.json")]) == 0
    assert (timed.path / "again.md").read_text() == summary.read_text().removeprefix("before\n")


def test_off_and_elsewhere_nothing_is_said(run, pytester, monkeypatch) -> None:
    source = "def test_it(pretend, ascend_compare):\n    pretend('FAIL')\n    ascend_compare(abs, 1)\n"
    summary = pytester.path / "s.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    run(source, "--ascend-github=off").stdout.no_fnmatch_line("::error*")
    monkeypatch.delenv("GITHUB_ACTIONS")
    run(source).stdout.no_fnmatch_line("::error*")
    assert not summary.exists()
    run(source, "--ascend-github=on").stdout.fnmatch_lines(["::error file=*.py,line=1,title=FAIL *"])
    assert summary.read_text().startswith("## ❌ pytest-ascend: 1 failed of 1")


def test_only_the_ten_worst_are_marked_and_none_is_a_command_of_its_own() -> None:
    strange = f"a%b\r\n::set-output name=x::y{CSI}"
    many = [result(f"t{i:02}.py::t", metrics={"cosine_similarity": 1 - i / 100}) for i in range(30)]
    given = [result("p.py::ok", "passed", verdict="PASS"), *many, result("c,:.py::t", verdict="CRASH", reason=strange)]
    lines = list(github.error_commands(given))
    assert len(lines) == 10
    assert lines[0].startswith("::error file=c%2C%3A.py,line=3,title=CRASH (bias) torch.relu float32::a%25b")
    assert lines[1].startswith("::error file=t29.py")
    assert all(line.isprintable() for line in lines)


def test_nothing_in_the_summary_is_markup() -> None:
    names = [
        "<script>alert(1)</script>",
        "a|b`c*d_e[f](g)",
        "@someone #1 :tada: www.x.y https://x.y",
        f"{CSI}\n# big",
        "-->",
    ]
    text = github.summary(content(*(result(f"t.py::t[{name}]", reason=name) for name in names), soc="<b>|x"))
    for strange in (
        "<script",
        "a|b",
        "`c",
        "*d",
        "[f]",
        "@someone",
        ":tada",
        "www.x",
        "https:",
        "\n# ",
        CSI,
        "-->",
        "<b>",
    ):
        assert strange not in text
    rows = [line for line in text.splitlines() if line.startswith("| FAIL")]
    assert [row.count("|") for row in rows] == [6] * len(names)


@pytest.mark.parametrize("limit", [5_000, 20_000, github.LIMIT])
def test_the_summary_keeps_githubs_limit_and_its_worst(limit) -> None:
    some = [result(f"t.py::t{i}", reason="ü" * 1500) for i in range(1000)]
    text = github.summary(content(result("bad.py::t", verdict="CRASH"), *some), limit)
    assert len(text.encode()) <= limit
    assert text.startswith("## ❌ pytest-ascend: 1001 failed of 1001")
    assert "bad.py" in text
    assert "more parts don't fit" in text or limit == github.LIMIT


def test_a_full_summary_is_left_alone(tmp_path) -> None:
    there = tmp_path / "s.md"
    there.write_bytes(b"x" * (github.LIMIT - 10))
    github.add_summary(content(result()), {"GITHUB_STEP_SUMMARY": str(there)})
    assert there.stat().st_size == github.LIMIT - 10


def test_junit_properties_are_one_line_each() -> None:
    record = result(reason=f"a\n{CSI}" + "x" * 5000, metrics={"cosine_similarity": "nan"}, script=None)
    found = dict(junit.properties(record, "ascend.2", failed=True))
    assert found["ascend.2.cosine_similarity"] == "nan"
    assert found["ascend.2.reason"].isprintable()
    assert len(found["ascend.2.reason"]) < 2100
    assert "ascend.2.script" not in found
    assert "ascend.2.reason" not in dict(junit.properties(record, "ascend.2", failed=False))


def test_an_unwritable_summary_is_one_sentence(run, pytester, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path))
    source = "def test_it(pretend, ascend_compare):\n    pretend('PASS')\n    ascend_compare(abs, 1)\n"
    done = run(source, "--ascend-github=on")
    assert done.ret == 1
    done.stdout.fnmatch_lines([f"--ascend-github: can't write {pytester.path}: Is a directory"])


def test_a_file_that_is_no_results_file(tmp_path, capsys) -> None:
    path = Path(tmp_path, "x.json")
    path.write_text(json.dumps([]))
    assert cli.main(["report", "github", str(path)]) == 2
    assert "is no results file" in capsys.readouterr().err
