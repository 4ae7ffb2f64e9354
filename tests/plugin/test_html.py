"""The page: written by a run and from a results file, whole, small enough, and nothing in it but text."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import jsonschema
import pytest

from pytest_ascend import cli
from pytest_ascend.report import html as pages
from pytest_ascend.report.results_json import SCHEMA

SCRIPT = "<script>alert(1)</script>"
SOURCE = f"""
import pytest
import torch
import pytest_ascend as pa

def late_columns(x, dim, half_to_float):
    y = torch._softmax(x, dim, half_to_float)
    y[:, 16:] *= 1.5
    return y

@pytest.mark.parametrize("name", ["{SCRIPT}", "</style>--><img src=x onerror=alert(1)>"])
def test_wrong(ascend_compare, name):
    with pa.emulator.override("aten::_softmax", late_columns):
        ascend_compare(torch.softmax, torch.linspace(-1, 1, 256).reshape(8, 32), dim=-1)

def test_right(ascend_compare): ascend_compare(torch.relu, torch.linspace(-1, 1, 64))

def test_model(ascend_compare):
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Softmax(-1), torch.nn.Linear(32, 4)).half()
    with pa.emulator.override("aten::_softmax", late_columns):
        ascend_compare(net, torch.linspace(-1, 1, 256).half().reshape(8, 32))
"""


class Page(HTMLParser):
    """The elements of a page, and its attributes that could run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.strange: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if (
                name.startswith("on")
                or name in ("style", "srcdoc")
                or (name in ("src", "href") and ":" in (value or ""))
            ):
                self.strange.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value)


def test_a_run_writes_its_page(run, pytester) -> None:
    run(SOURCE, "--ascend-compare=emulated", "--ascend-html=out/r.html", "--ascend-json=r.json").assert_outcomes(
        failed=3, passed=1
    )
    text = (pytester.path / "out" / "r.html").read_text()
    page = Page(text)
    assert page.strange == ["link href=data:,"]
    assert page.tags.count("script") == 2  # the data, and the page's own
    assert page.tags.count("img") == 0
    assert len(page.ids) == len(set(page.ids))
    assert html.escape(SCRIPT) in text
    assert "3 failed of 4" in text
    assert "://" not in text
    assert page.tags.count("svg") >= 3 * 2 + 1  # histogram and map of each, and a model's depth
    assert "first divergence" in text
    assert "Around the worst element" in text

    content = json.loads((pytester.path / "r.json").read_text())
    jsonschema.validate(content, SCHEMA)
    model = next(one for one in content["results"] if one["checkpoints"])
    wrong = next(layer for layer in model["checkpoints"].values() if layer["status"] == "fail")
    assert set(wrong["picture"]) == {"unit", "histogram", "map", "around"}
    assert model["depth"]
    assert cli.main(["report", "html", "r.json"]) == 0
    assert (pytester.path / "r.html").read_text() == text


def test_without_jinja2_it_says_what_to_install_before_the_run(run, pytester, monkeypatch) -> None:
    monkeypatch.setattr(pages, "available", lambda: False)
    done = run("def test_it(): pass", "--ascend-html=r.html")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --ascend-html=r.html: it needs jinja2: pip install 'pytest-ascend[[]html[]]'"])
    assert not (pytester.path / "r.html").exists()


def test_an_unwritable_page_is_one_sentence(run, pytester) -> None:
    pytester.mkdir("r.html")
    done = run("def test_it(): pass", "--ascend-html=r.html")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["--ascend-html: can't write *r.html: Is a directory"])


def record(i: int, outcome: str, **more) -> dict:
    plain = {"nodeid": f"tests/test_ops.py::test_op[torch.op_{i}-float32-{i}]", "api": f"torch.op_{i % 1500}"}
    plain |= {"dtype": "float32", "kind": None, "reason": f"why {i}", "criterion": "auto", "target": "npu:0"}
    plain |= {"verdict": "FAIL" if outcome == "failed" else "PASS", "outcome": outcome, "reproducer": "pytest " * 30}
    return {**plain, "metrics": {"cosine_similarity": 0.5}, "checkpoints": {}, "notes": ["note " * 200], **more}


@pytest.mark.parametrize("failed", [20, 10_000])
def test_ten_thousand_results_stay_small(failed) -> None:
    records = [record(i, "failed" if i < failed else "passed") for i in range(10_000)]
    text = pages.page({"schema": 1, "environment": {}, "summary": {}, "results": records})
    assert len(text.encode()) <= 5_000_000
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["rows"]) == 10_000
    cards = text.count('class="finding"')
    assert cards == min(failed, 300)
    assert ("more failures are in" in text) is (failed > cards)


def test_any_results_file_makes_a_page() -> None:
    """A file of another version or of another hand: what isn't there isn't shown, what isn't a number isn't drawn."""
    odd = [
        record(0, "failed", metrics={}, checkpoints={"a": {"cosine_similarity": "nan", "status": "fail"}}),
        record(
            1,
            "error",
            verdict="CRASH",
            crash={"ending": "x", "again": "", "alone": "", "stack": ["f"]},
            preceding=["t"],
        ),
        record(2, "failed", verdict="regressed", perf={"error": "why", "new_s": None, "interval": ["nan", "inf"]}),
        record(3, "noted", verdict="MARGINAL", overflows=[{"op_name": "a", "overflow_type": "nan", "chain": []}]),
        {"nodeid": "only::this", "verdict": "PASS"},
    ]
    text = pages.page({"schema": 1, "environment": {"a": {"b": None, "c": [1]}}, "summary": {}, "results": odd})
    assert text.rstrip().endswith("</html>")
    assert pages.page({"schema": 1, "environment": {}, "summary": {}, "results": []}).count("Nothing was compared") >= 1


def test_a_file_that_breaks_the_schema_is_one_sentence(tmp_path, capsys) -> None:
    path = tmp_path / "r.json"
    for broken in (
        {"metrics": 3},
        {"checkpoints": []},
        {"outputs": 3},
        {"perf": {"index": "x"}},
        {"culprit": {"op": 1}},
    ):
        path.write_text(json.dumps({"schema": 1, "environment": {}, "results": [record(0, "failed", **broken)]}))
        code = cli.main(["report", "html", str(path)])
        said = capsys.readouterr().err
        assert code in (0, 2)
        assert code == 0 or "isn't as `pytest-ascend schema` says" in said
