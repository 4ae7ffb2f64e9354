"""A run's tests spread over machines, and their results put together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.cli import main
from pytest_ascend.report import merging
from pytest_ascend.run import shard


@given(st.lists(st.text(max_size=20), unique=True), st.integers(1, 9))
def test_each_test_is_in_one_part_and_parts_are_even(nodeids, parts) -> None:
    kept = [shard.mine(nodeids, shard.Shard(part, parts)) for part in range(1, parts + 1)]
    assert [sum(column) for column in zip(*kept, strict=True)] == [1] * len(nodeids)
    sizes = [sum(part) for part in kept]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("bad", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", ""])
def test_a_bad_part_is_named(bad) -> None:
    with pytest.raises(ValueError, match="give PART/PARTS"):
        shard.parse(bad)


def result(nodeid: str, verdict: str = "PASS") -> dict:
    return {"nodeid": nodeid, "verdict": verdict}


def part(number: int, *results: dict, parts: int = 2, digest: str = "d", **environment) -> dict:
    place = {"part": number, "parts": parts, "collected": 4, "digest": digest}
    return {
        "schema": 1,
        "environment": {"soc": "A", **environment, "shard": place},
        "summary": {},
        "results": list(results),
    }


def test_parts_become_one() -> None:
    parts = {"a": part(1, result("t::1"), result("t::3", "FAIL")), "b": part(2, result("t::2"), soc="B")}
    assert list(merging.check(parts)) == ["soc differs: a A, b B"]
    whole = merging.merged(parts)
    assert [one["nodeid"] for one in whole["results"]] == ["t::1", "t::2", "t::3"]
    assert whole["summary"] == {"PASS": 2, "FAIL": 1}
    assert "soc" not in whole["environment"]
    assert [one["soc"] for one in whole["environment"]["parts"]] == ["A", "B"]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"a": part(1, result("t")), "b": part(2, result("t"))}, "t is in a and in b"),
        ({"a": part(1, parts=3), "b": part(3, parts=3)}, "part 2 of 3 is missing"),
        ({"a": part(1), "b": part(2, digest="e")}, "different collections"),
    ],
)
def test_what_isnt_one_run_is_refused(parts, why) -> None:
    with pytest.raises(merging.Unmergeable, match=why):
        list(merging.check(parts))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 2, "results": []}', '{"schema": 1, "results": [], "environment": 3}',
     '{"schema": 1, "environment": {}, "results": [{"nodeid": "a", "verdict": "FINE"}]}', "[" * 100_000],
)  # fmt: skip
def test_a_file_that_isnt_ours_is_one_sentence(text) -> None:
    with pytest.raises(merging.Unmergeable, match="x"):
        merging.parsed(text, "x.json")


def test_the_road(run, pytester, capsys) -> None:
    source = """
        import pytest, torch
        @pytest.mark.parametrize("i", range(5))
        def test_it(i, ascend_compare): ascend_compare(torch.relu, torch.randn(i + 1))
    """
    pytester.makepyfile(source)
    for i in (1, 2):
        arguments = [
            "--ascend-compare=cpu",
            f"--ascend-shard={i}/2",
            f"--ascend-json=p{i}.json",
            "-p",
            "no:cacheprovider",
        ]
        done = pytester.runpytest_inprocess(*arguments)
        done.assert_outcomes(passed=3 if i == 1 else 2, deselected=2 if i == 1 else 3)
    files = [str(pytester.path / f"p{i}.json") for i in (1, 2)]
    whole = pytester.path / "all.json"
    assert main(["report", "merge", *files, "-o", str(whole)]) == 0
    assert "5 results of 2 files: 5 " in capsys.readouterr().out
    assert len({one["nodeid"] for one in json.loads(whole.read_text())["results"]}) == 5
    assert main(["report", "merge", files[0], "-o", str(whole)]) == 2
    assert capsys.readouterr().err == "pytest-ascend report merge: part 2 of 2 is missing: give its file too\n"
