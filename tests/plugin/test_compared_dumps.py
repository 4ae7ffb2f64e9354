"""`pytest TARGET/dump.json --ascend-golden=GOLDEN/dump.json` and `pytest-ascend compare`."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
import torch

from pytest_ascend.cli import main


@pytest.fixture
def dumps(recorder, tmp_path):
    """Two dumps of the same calls; the target's `exp` is wrong, and so what follows it."""
    paths = []
    for side, factor in (("golden", 1.0), ("target", 1.5)):
        record = recorder(f"{side}/step0/rank0")
        x = torch.linspace(0.1, 1.0, 12)
        y = record("Torch.relu", torch.relu, x)
        z = record("Torch.exp", lambda v, f=factor: torch.exp(v) * f, y)
        record("Torch.sin", torch.sin, z)
        if side == "target":
            record("Torch.cos", torch.cos, x.reshape(3, 4))
        paths.append(record.write())
    return paths


def test_each_pair_of_calls_is_an_item(dumps, pytester) -> None:
    golden, target = dumps
    done = pytester.runpytest_inprocess(str(target), f"--ascend-golden={golden}", "-rA", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(["*PASSED*dump.json::Torch.relu.0.forward"])
    done.stdout.fnmatch_lines_random(
        ["*FAILED*dump.json::Torch.exp.0.forward*", "*FAILED*dump.json::Torch.sin.0.forward*", "*its inputs agree*",
         "*a victim: its inputs differed already, since Torch.exp.0.forward*"]
    )  # fmt: skip


def test_the_command_of_a_failure_repeats_it(dumps, pytester) -> None:
    golden, target = dumps
    done = pytester.runpytest_inprocess(str(target), f"--ascend-golden={golden}", "-p", "no:hypothesispytest")
    (command, *_) = [line.partition("reproduce: ")[2] for line in done.outlines if "reproduce:" in line]
    again = pytester.runpytest_inprocess(*shlex.split(command)[1:], "-p", "no:hypothesispytest")
    again.assert_outcomes(failed=1)


def test_two_workers_and_the_results_file(dumps, pytester, tmp_path) -> None:
    golden, target = dumps
    out = tmp_path / "out.json"
    pytester.runpytest(str(target), f"--ascend-golden={golden}", "-n2", f"--ascend-json={out}").assert_outcomes(
        passed=2, failed=2
    )
    results = {one["api"]: one for one in json.loads(out.read_text())["results"]}
    assert {name: one["verdict"] for name, one in results.items()} == {
        "Torch.relu.0.forward": "PASS",
        "Torch.exp.0.forward": "FAIL",
        "Torch.sin.0.forward": "FAIL",
        "Torch.cos.0.forward": "NOT_COMPARABLE",
    }
    assert results["Torch.exp.0.forward"]["metrics"]["max_abs_error"] > 0.5


def test_strict_fails_on_a_call_without_a_partner(dumps, pytester) -> None:
    golden, target = dumps
    given = [str(target), f"--ascend-golden={golden}", "--ascend-strict", "-k", "cos", "-p", "no:hypothesispytest"]
    pytester.runpytest_inprocess(*given).assert_outcomes(failed=1, deselected=3)


@pytest.mark.parametrize(("golden", "sentence"), [("gone.json", "there is no such file"), (".", "holds no dump")])
def test_a_golden_that_is_none_is_one_sentence(dumps, pytester, golden, sentence) -> None:
    (pytester.path / "empty").mkdir()
    place = pytester.path / "empty" / golden
    done = pytester.runpytest_inprocess(str(dumps[1]), f"--ascend-golden={place}", "-p", "no:hypothesispytest")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"*{sentence}*"])
    assert "Traceback" not in done.stdout.str()


def test_a_golden_folder_gives_the_same_step_and_rank(recorder, pytester, tmp_path) -> None:
    for side in ("golden", "target"):
        for rank in (0, 1):
            record = recorder(f"{side}/step0/rank{rank}")
            record("Torch.relu", torch.relu, torch.arange(4.0) + rank)
            record.write()
    given = [str(tmp_path / "dump" / "target"), f"--ascend-golden={tmp_path / 'dump' / 'golden'}"]
    pytester.runpytest_inprocess(*given, "-p", "no:hypothesispytest").assert_outcomes(passed=2)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_the_verdict_first(dumps, capsys, tmp_path) -> None:
    golden, target = map(str, dumps)
    written = tmp_path / "found.json", tmp_path / "found.html"
    assert main(["compare", golden, target, "--json", str(written[0]), "--html", str(written[1])]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAIL: 3 of 6 tensors and arguments differ"
    assert lines[3] == "first divergence: Torch.exp.0.forward: its inputs agree, its outputs don't"
    assert lines[-1] == f"all of it: pytest-ascend compare {golden} {target} --all"
    assert "1 in the target alone:" in lines
    found = json.loads(written[0].read_text())
    assert (found["verdict"], found["first_divergence"]) == ("FAIL", "Torch.exp.0.forward")
    assert "Torch.exp.0.forward.output.0" in written[1].read_text()
    assert main(["compare", golden, golden]) == 0
    assert main(["compare", golden, target, "--all"]) == 1
    assert "PASS Torch.relu.0.forward.input.0" in capsys.readouterr().out


def test_without_values_and_statistics_nothing_passes(dumps, tmp_path) -> None:
    content = json.loads(dumps[0].read_text())
    for entry in content["data"].values():
        for one in (*entry["input_args"], *entry["output"]):
            one.pop("data_name")
            one.update(dict.fromkeys(("Max", "Min", "Mean", "Norm")))
    (tmp_path / "dump.json").write_text(json.dumps(content))
    assert main(["compare", str(dumps[0]), str(tmp_path / "dump.json")]) == 1


def test_notes_fail_only_when_asked(dumps, tmp_path) -> None:
    wide = str(dumps[0])
    folder = tmp_path / "turned"
    shutil.copytree(dumps[0].parent, folder)
    content = json.loads((folder / "dump.json").read_text())
    content["data"]["Torch.sin.0.forward"]["output"][0]["shape"] = [3, 4]
    (folder / "dump.json").write_text(json.dumps(content))
    path = folder / "dump_tensor_data" / "Torch.sin.0.forward.output.0.pt"
    torch.save(torch.load(path).reshape(3, 4), path)
    assert main(["compare", wide, str(folder / "dump.json")]) == 0
    assert main(["compare", wide, str(folder / "dump.json"), "--strict"]) == 0  # a PASS that says how, and no note


@pytest.mark.parametrize(
    "arguments", [["--cosine", "x"], ["--criterion", "x"], ["-er", "1,2,3"], ["-er", "0,0"], ["--mapping", "gone.json"]]
)
def test_a_bad_option_is_status_2(dumps, arguments, capsys) -> None:
    golden = str(dumps[0])
    try:
        status = main(["compare", golden, golden, *arguments])
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert capsys.readouterr().err


def test_names_out_of_a_dump_are_escaped(dumps, tmp_path, capsys) -> None:
    evil = "Torch.<script>alert(1)</script>\x1b[2J.0.forward"
    paths = []
    for i, path in enumerate(dumps):
        folder = path.parent
        text = path.read_text().replace('Torch.exp.0.forward":', json.dumps(evil)[1:] + ":")
        (folder / "evil.json").write_text(text)
        paths.append(str(folder / "evil.json"))
        assert i < 2
    page = tmp_path / "x.html"
    assert main(["compare", *paths, "--html", str(page)]) == 1
    assert "<script" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()
    assert "http" not in page.read_text().replace("http-equiv", "")
    assert "\x1b" not in page.read_text() + capsys.readouterr().out
