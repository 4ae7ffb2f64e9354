"""Two sides in turns: in which order, until when, what is left behind; timings are dictated by each side's files."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time

import jsonschema
import pytest

from pytest_ascend.report.results_json import SCHEMA

from .timed import NAME


def sides(timed, kind: str = "time") -> list[tuple[str, int]]:
    """Which side each process was of, A the base, and how many tests it had."""
    mine = os.fspath(timed.path)
    return [("B" if where == mine else "A", len(names)) for mode, where, *names in timed.starts() if mode == kind]


def test_an_unchanged_tree_is_ok_after_five_pairs(timed) -> None:
    timed.takes(a=1e-3, b=2e-3)
    timed.commit()
    done = timed.run("--ascend-ab=main")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "ascend: pair 1 of 5: 2 tests, *:* left at most",
            f"ok  {NAME}::test_a  1 ms -> 1 ms wall, 1.000 times *",
            "timings: tracked files are the same as in main (*)",
            "timings: suite-wide shift: fixed workloads run at 1.000 times what main (*) took (not divided out, *)",
            "ascend: 2 timed on cpu: 2 ok",
        ]
    )
    assert sides(timed) == [(side, 2) for side in "ABBAABBAAB"]
    assert timed.git("worktree", "list").count("\n") == 1
    assert timed.git("status", "--porcelain") == ""


def test_only_what_is_slower_goes_on_and_its_operators_are_named(timed) -> None:
    timed.takes(a=1e-3, b=2e-3)
    timed.commit()
    timed.takes(a=1.05e-3)
    done = timed.run("--ascend-ab=main", "--ascend-json=r.json")
    done.assert_outcomes(failed=1, passed=2)
    done.stdout.fnmatch_lines(
        [
            f"regressed  {NAME}::test_a  1 ms -> 1.05 ms wall, 1.05* times *",
            "    torch.relu on cpu: it is 5* % slower (99.5 % interval *, median of 20 process pairs)",
            "    compared with main (*), to catch 3 %; *",
            "    grew: aten::relu  1 ms -> 1.05 ms a call (slower, 1 -> 1 calls)",
            f"    time it again: pytest {NAME}::test_a --ascend-ab=main",
            f"ok  {NAME}::test_b *",
        ]
    )
    assert [tests for _, tests in sides(timed)] == [2] * 10 + [1] * 30
    file = json.loads((timed.path / "r.json").read_text())
    jsonschema.validate(file, SCHEMA)
    (grown,) = next(r for r in file["results"] if r["verdict"] == "regressed")["perf"]["operators"]
    assert grown["after_us"] == pytest.approx(1.05 * grown["before_us"], rel=0.01)


def test_operators_are_profiled_once_a_side_and_only_of_what_regressed(timed) -> None:
    timed.takes(a=1e-3, b=2e-3)
    timed.commit()
    timed.takes(a=3e-3)
    timed.run("--ascend-ab=main", "-n2").assert_outcomes(failed=1, passed=2)
    assert sides(timed, "profile") == [("A", 1), ("B", 1)]


def test_a_faster_tree_passes(timed) -> None:
    timed.takes(a=1e-3)
    timed.commit()
    timed.takes(a=0.3e-3)
    done = timed.run("--ascend-ab=HEAD", "--ascend-strict")
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"improved  {NAME}::test_a  1* ms -> 30* µs wall, 0.3* times *"])


def test_when_the_time_is_up_what_is_open_is_inconclusive(timed) -> None:
    timed.takes(a=1e-3)
    timed.commit()
    timed.takes(a=1.05e-3)
    done = timed.run("--ascend-ab=main", "--ascend-perf-time=1.2")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [f"inconclusive  {NAME}::test_a *", "*(the 1.2 s for measuring were over)", "timings: the 1.2 s for measuring*"]
    )
    assert timed.git("worktree", "list").count("\n") == 1


def test_a_test_that_the_base_hasnt_is_timed_there_from_this_trees_file(timed) -> None:
    timed.takes(a=1e-3)
    timed.commit()
    (timed.path / "test_new.py").write_text("def test_c(ascend_perf): ascend_perf(abs, 1)\n")
    scenario = json.loads((timed.path / "scenario.json").read_text())
    (timed.path / "scenario.json").write_text(json.dumps({**scenario, "test_new.py::test_c": {"seconds": 1e-3}}))
    done = timed.run("--ascend-ab=main")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [
            "error  test_new.py::test_c",
            "    main (*) has no such test, so there is nothing to compare with",
            f"ok  {NAME}::test_a *",
            "timings: main (*) hasn't test_new.py: both sides run this tree's",
        ]
    )


def test_a_process_that_crashes_on_one_side_is_named(timed) -> None:
    timed.takes(a={"seconds": 1e-3, "crash": True}, b=1e-3)
    timed.commit()
    timed.takes(a=1e-3)
    done = timed.run("--ascend-ab=main")
    done.assert_outcomes(errors=1, passed=2)
    done.stdout.fnmatch_lines(
        [f"error  {NAME}::test_a", "    a process of main (*) timed nothing: signal 11 ended it*"]
    )
    done.stdout.fnmatch_lines([f"ok  {NAME}::test_b *"])


def test_sides_that_run_the_same_code_are_refused_after_one_pair(timed) -> None:
    timed.takes(a=1e-3, file={"sources": {"lib": os.fspath(timed.path / "lib.py")}})
    timed.commit()
    done = timed.run("--ascend-ab=main")
    done.assert_outcomes(errors=1, passed=1)
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", "    the processes of main (*) import lib from */lib.py, *"])
    assert len(sides(timed)) == 2


def test_sides_with_different_clocks_are_not_compared(timed) -> None:
    timed.takes(a=1e-3)
    timed.commit()
    timed.takes(a={"seconds": 5e-3, "metric": "device"})
    done = timed.run("--ascend-ab=main")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [f"inconclusive  {NAME}::test_a", "*the sides have different clocks: main (*) isn't timed on device time"]
    )


def test_a_call_that_one_side_alone_makes_is_an_error(timed) -> None:
    timed.takes(a=1e-3, b=1e-3)
    timed.commit()
    timed.takes(a={"seconds": 1e-3, "calls": 2})
    done = timed.run("--ascend-ab=main")
    done.assert_outcomes(errors=1, passed=2)
    said = "    only the other side makes its call number 2 of ascend_perf"
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", said])


def test_another_interpreter_is_the_other_side(timed) -> None:
    timed.takes(a=1e-3)
    other = timed.path.parent / "other-python"
    other.unlink(missing_ok=True)
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    done = timed.run(f"--ascend-ab-python={other}")
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"ok  {NAME}::test_a *", "ascend: 1 timed on cpu: 1 ok"])
    assert len(sides(timed)) == 10


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--ascend-ab=nowhere", "ERROR: --ascend-ab=nowhere: git knows no commit 'nowhere' in *: give a branch*"),
        ("--ascend-ab=--upload-pack=x", "ERROR: --ascend-ab=--upload-pack=x: * is no revision: give a branch*"),
        ("--ascend-ab-python=gone/python", "ERROR: --ascend-ab-python=gone/python: no program is there*"),
    ],
)
def test_a_missing_other_side_is_a_usage_error(timed, option, sentence) -> None:
    timed.takes(a=1e-3)
    timed.commit()
    done = timed.run(option)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([sentence])


def test_a_folder_without_git_has_no_base(timed, monkeypatch) -> None:
    timed.takes(a=1e-3)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", os.fspath(timed.path.parent))
    done = timed.run("--ascend-ab=main")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --ascend-ab=main: * is in no git repository*"])


def test_ctrl_c_leaves_no_worktree_and_no_process(timed) -> None:
    timed.takes(a={"seconds": 1e-3, "hang": True})
    timed.commit()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ascend-ab=main"]
    # A shell's background jobs ignore Ctrl-C, and what they start does too.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    run = subprocess.Popen(command, cwd=timed.path, stdout=subprocess.PIPE, text=True, preexec_fn=heeds)
    end = time.monotonic() + 60
    while not timed.log.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert timed.git("worktree", "list").count("\n") == 2
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == pytest.ExitCode.INTERRUPTED
    assert timed.git("worktree", "list").count("\n") == 1
