"""--ascend-json: the file, its schema, and that it is whole or not there."""

from __future__ import annotations

import json
import os
from xml.etree import ElementTree

import jsonschema
import pytest

from pytest_ascend import cli
from pytest_ascend.report import results_json
from pytest_ascend.report.results_json import SCHEMA

SOURCE = """
import pytest
@pytest.mark.parametrize("verdict", ["PASS", "MODE_DIFF", "FAIL", "UNSUPPORTED", "INFRA"])
def test_it(verdict, pretend, ascend_compare):
    nan, inf = float("nan"), float("inf")
    layers = [pretend.layer("conv1"), pretend.layer("fc", "warning", nan)]
    pretend(verdict, cosine=nan, max_abs=inf, layers=layers,
            notes=("a note",), environment={"soc": "Ascend910B", "strange": object(), "level": inf})
    ascend_compare(abs, 1)
    ascend_compare(abs, 1)
"""


def load(path: os.PathLike[str]) -> dict:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not strict JSON")

    with open(path, encoding="utf-8") as file:
        return json.load(file, parse_constant=refuse)


def test_the_file_follows_its_schema(run, pytester) -> None:
    run(SOURCE, "--ascend-json=out/results.json")
    content = load(pytester.path / "out" / "results.json")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(content, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert content["schema"] == 1
    assert content["summary"] == {"PASS": 2, "FAIL": 1, "MODE_DIFF": 2, "UNSUPPORTED": 1, "INFRA": 1}
    assert content["environment"]["soc"] == "Ascend910B"
    assert content["environment"]["level"] == "inf"
    assert content["environment"]["packages"]["pytest"]
    first = content["results"][0]
    assert first["nodeid"] == "test_the_file_follows_its_schema.py::test_it[PASS]"
    assert first["metrics"]["cosine_similarity"] == "nan"
    assert first["metrics"]["max_abs_error"] == "inf"
    assert list(first["checkpoints"]) == ["conv1", "fc"]
    assert first["checkpoints"]["fc"] == {"cosine_similarity": "nan", "max_abs_error": 0.0, "status": "warning"}
    assert first["notes"] == ["a note"]
    assert first["reproducer"].endswith("--ascend-compare=cpu")
    outcomes = [result["outcome"] for result in content["results"]]
    assert outcomes == ["passed", "passed", "noted", "noted", "failed", "skipped", "error"]


def test_a_run_without_comparisons_writes_an_empty_file(run, pytester) -> None:
    run("def test_it(): pass", "--ascend-json=results.json")
    content = load(pytester.path / "results.json")
    jsonschema.validate(content, SCHEMA)
    assert content["results"] == []
    assert content["summary"] == {}


def test_without_the_option_nothing_is_written(run, pytester) -> None:
    run(SOURCE)
    assert [name for name in os.listdir(pytester.path) if name.endswith(".json")] == []


def test_an_unwritable_path_is_one_sentence_and_fails_the_run(run, pytester) -> None:
    pytester.mkdir("results.json")
    result = run("def test_it(): pass", "--ascend-json=results.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--ascend-json: can't write *results.json: Is a directory"])
    assert [name for name in os.listdir(pytester.path) if name.startswith(".ascend")] == []


def test_a_home_relative_path(run, pytester, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(pytester.path))
    run("def test_it(): pass", "--ascend-json=~/mine.json")
    assert load(pytester.path / "mine.json")["schema"] == 1


def test_an_interrupted_run_still_writes(run, pytester) -> None:
    run(
        """
        def test_it(pretend, ascend_compare):
            pretend("PASS")
            ascend_compare(abs, 1)
        def test_stop(): raise KeyboardInterrupt
        """,
        "--ascend-json=results.json",
        subprocess=True,
    )
    assert load(pytester.path / "results.json")["summary"] == {"PASS": 1}


def test_a_failing_write_leaves_the_old_file_whole(tmp_path, monkeypatch) -> None:
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON compliant"):
        results_json.write(path, {"x": float("nan")})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        results_json.write(path, {"x": 1})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_result_has_a_line_of_its_own(tmp_path) -> None:
    content = {"schema": 1, "environment": {"a": [1, 2]}, "results": [{"x": "one\ntwo"}, {"x": []}], "none": []}
    results_json.write(tmp_path / "a.json", content)
    assert json.loads((tmp_path / "a.json").read_text()) == content
    lines = (tmp_path / "a.json").read_text().splitlines()
    assert [json.loads(line.rstrip(",")) for line in lines if line.startswith('{"x"')] == content["results"]


def test_the_file_has_ordinary_permissions(tmp_path) -> None:
    before = os.umask(0o022)
    try:
        results_json.write(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


def test_schema_is_printed(capsys) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_junit_properties(run, pytester) -> None:
    run(SOURCE, "--junitxml=junit.xml")
    case = next(ElementTree.parse(pytester.path / "junit.xml").iter("testcase"))
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties == {
        f"{prefix}.{name}": value
        for prefix in ("ascend", "ascend.2")
        for name, value in {
            "verdict": "PASS", "api": "torch.relu", "dtype": "float32", "target": "npu:0", "criterion": "auto",
            "cosine_similarity": "nan", "max_abs_error": "inf",
        }.items()
    }  # fmt: skip
