"""Timings against stored sessions: nothing that isn't measured passes without a word."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import jsonschema
import pytest

from pytest_ascend.perf.result import PerfVerdict
from pytest_ascend.report import timings
from pytest_ascend.report.results_json import SCHEMA

from .timed import NAME

EXIT_FAILED = pytest.ExitCode.TESTS_FAILED


def test_the_reports_verdicts_are_those_there_are() -> None:
    assert set(timings.VERDICTS) == {verdict.value for verdict in PerfVerdict}


def test_without_the_option_nothing_is_timed(timed) -> None:
    timed.takes(a=1e-3)
    done = timed.pytester.runpytest_inprocess("-rs", "-p", "no:hypothesispytest")
    done.assert_outcomes(skipped=1, passed=1)
    done.stdout.fnmatch_lines(["*ascend_perf: inconclusive, nothing is timed without --ascend-perf"])
    assert timed.starts() == []


def test_no_baseline_is_inconclusive_and_says_how_to_store_one(timed) -> None:
    timed.takes(a=1e-3)
    done = timed.run()
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            f"inconclusive  {NAME}::test_a  no baseline -> 1 ms wall",
            "    torch.relu on cpu: there is no baseline for these conditions (cpu-torch2.13.0-* in baselines)",
            f"    store one: pytest {NAME}::test_a --ascend-perf --ascend-save",
            "ascend: 1 timed on cpu: 1 inconclusive",
        ]
    )
    assert len(timed.starts()) == 5
    assert not (timed.path / "baselines").exists()
    done = timed.run("--ascend-strict")
    assert done.ret == EXIT_FAILED
    done.assert_outcomes(failed=1, passed=1)


def test_a_stored_baseline_is_compared_with(timed) -> None:
    timed.takes(a=1e-3, b=1e-3, c=1e-3)
    done = timed.run("--ascend-save")
    done.stdout.fnmatch_lines(["timings: stored 3 timings below baselines as one session more"])
    timed.takes(a=2.5e-3, c=0.2e-3)
    done = timed.run("--ascend-json=r.json", "--junitxml=j.xml", "--ascend-perf=3")
    done.assert_outcomes(failed=1, passed=3)
    done.stdout.fnmatch_lines(
        [
            f"E   PerfFailed: regressed  {NAME}::test_a  1 ms -> 2.51 ms wall, 2.5* times (interval * to *)",
            f"regressed  {NAME}::test_a  1 ms -> 2.51 ms wall, 2.5* times (interval * to *)",
            "    torch.relu on cpu: it is 15* % slower than 1 sessions *",
            "    compared with 1 stored session, to catch 3 %; a slowdown of * % would be found",
            f"    accept it: pytest {NAME}::test_a --ascend-perf --ascend-update",
            f"inconclusive  {NAME}::test_b  1 ms -> 1 ms wall, 1.0* times *",
            f"improved  {NAME}::test_c  1 ms -> 201 µs wall, 0.20* times *",
            "timings: suite-wide shift: fixed workloads run at 1.000 times what the stored sessions took (divided out)",
            "ascend: 3 timed on cpu: 1 regressed, 1 inconclusive, 1 improved",
        ]
    )
    file = json.loads((timed.path / "r.json").read_text())
    jsonschema.validate(file, SCHEMA)
    assert file["summary"] == {"regressed": 1, "inconclusive": 1, "improved": 1}
    worst = next(result for result in file["results"] if result["verdict"] == "regressed")
    assert worst["outcome"] == "failed"
    assert worst["perf"]["old_s"] == pytest.approx(1e-3, rel=0.01)
    assert worst["perf"]["new_s"] == pytest.approx(2.5e-3, rel=0.01)
    suite = ElementTree.parse(timed.path / "j.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["ascend.perf.metric"] == "wall"
    assert {p.get("value") for p in suite.iter("property") if p.get("name") == "ascend.perf"} == {
        "regressed", "inconclusive", "improved",
    }  # fmt: skip


def test_a_slower_machine_isnt_a_slower_test(timed) -> None:
    timed.takes(a=1e-3)
    timed.run("--ascend-save")
    timed.takes(a=3e-3, machine=3.0)
    done = timed.run()
    assert done.ret == 0
    done.stdout.fnmatch_lines(["timings: suite-wide shift: fixed workloads run at 3.000 times *(divided out)"])


def test_ten_sessions_make_a_test_ok_and_a_marker_has_its_own_limit(timed) -> None:
    timed.takes(a=1e-3, b=1e-3)
    for _ in range(10):
        timed.run("--ascend-save", "--ascend-perf=1", "-q")
    timed.takes(a=1.04e-3, b={"seconds": 1.04e-3, "threshold": 0.2})
    done = timed.run()
    done.assert_outcomes(failed=1, passed=2)
    done.stdout.fnmatch_lines([f"regressed  {NAME}::test_a *", f"ok  {NAME}::test_b *"])
    timed.run("--ascend-fail=perf:12.5%").assert_outcomes(passed=3)


def test_a_regression_isnt_stored_until_it_is_accepted(timed) -> None:
    timed.takes(a=1e-3)
    timed.run("--ascend-save")
    timed.takes(a=3e-3)
    done = timed.run("--ascend-save")
    assert done.ret == EXIT_FAILED
    done.stdout.fnmatch_lines(
        [f"timings: not stored, for they are slower: {NAME}::test_a; --ascend-update accepts them"]
    )
    done = timed.run("--ascend-update")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["ascend: 1 timed on cpu: 1 regressed (accepted)"])
    done = timed.run()
    done.stdout.fnmatch_lines([f"inconclusive  {NAME}::test_a  3* ms -> 3* ms wall, *"])
    done.stdout.no_fnmatch_line("*2 stored sessions*")


@pytest.mark.parametrize("given", [["--benchmark-disable"], ["--benchmark-disable", "-n2"]], ids=" ".join)
def test_a_disabled_measurement_never_passes_silently(timed, given) -> None:
    timed.takes(a=1e-3)
    done = timed.run(*given)
    assert done.ret == 0
    said = "    --benchmark-disable was given, so nothing was timed"
    done.stdout.fnmatch_lines([f"inconclusive  {NAME}::test_a", said, "ascend: 1 timed: 1 inconclusive"])
    assert timed.run("--ascend-strict", *given).ret == EXIT_FAILED
    assert timed.starts() == []


def test_a_throttled_clock_never_passes_silently(timed) -> None:
    timed.takes(a=1e-3)
    timed.run("--ascend-save")
    timed.takes(a={"seconds": 1e-3, "unusable": "the CPU was slowed down for its heat"})
    done = timed.run("--ascend-save")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            f"inconclusive  {NAME}::test_a",
            "    *5 of 5 processes timed nothing that counts: the CPU was slowed down for its heat",
        ]
    )
    done.stdout.no_fnmatch_line("*stored 1 timing*")


def test_workers_get_what_was_timed_before_they_started(timed) -> None:
    timed.takes(a=1e-3, b=1e-3)
    timed.run("--ascend-save", "-n2")
    timed.takes(a=3e-3)
    timed.starts()
    done = timed.run("-n2", "--ascend-json=r.json")
    done.assert_outcomes(failed=1, passed=2)
    done.stdout.fnmatch_lines([f"regressed  {NAME}::test_a  1* ms -> 3* ms wall, *", "ascend: 2 timed on cpu: *"])
    assert len(timed.starts()) == 5
    assert len(json.loads((timed.path / "r.json").read_text())["results"]) == 2


BROKEN = {
    "crash": ({"crash": True}, "a process of this run timed nothing: signal 11 ended it*"),
    "nothing": ({"calls": 0}, "a process of this run measured nothing in it (passed)"),
    "raises": ({"outcome": "RuntimeError: no"}, "torch.relu raised RuntimeError: no (in a process of this run)"),
    "fails": ({"calls": 0, "ended": "failed: OSError: gone"}, "*measured nothing in it (failed: OSError: gone)"),
    "skips": ({"skip": True}, "no process timed call 1 of ascend_perf in this test: does it always make as many?"),
}  # fmt: skip


@pytest.mark.parametrize("how", list(BROKEN))
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "-n2"])
def test_a_process_that_measures_nothing_is_an_error_that_names_it(timed, how, workers) -> None:
    given, sentence = BROKEN[how]
    timed.takes(a={"seconds": 1e-3, **given}, b=1e-3, c=1e-3)
    done = timed.run(*workers)
    assert done.ret == EXIT_FAILED
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", f"    *{sentence}"])
    done.stdout.fnmatch_lines(["ascend: 3 timed on *: 1 error, 2 inconclusive"])


def test_processes_under_different_conditions_are_an_error(timed) -> None:
    timed.takes(a={"seconds": 1e-3, "later": {"threads": 2}}, b=1e-3)
    done = timed.run("--ascend-save")
    assert done.ret == EXIT_FAILED
    said = "    its processes ran under different conditions (threads), so they tell nothing"
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", said])
    done.stdout.fnmatch_lines(["timings: stored 1 timing below baselines as one session more"])


def test_a_hanging_process_is_stopped(timed) -> None:
    timed.takes(a={"seconds": 1e-3, "hang": True})
    done = timed.run("--ascend-perf-time=2")
    assert done.ret == EXIT_FAILED
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", "*timed nothing: * was stopped after * s*"])


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ("{", "*the file of timings can't be read: *"),
        ("[]", "*timings.json: it holds no timings of a process: the file is no object"),
        ('{"schema": 9}', "*it holds no timings of a process: schema is '9' and not 1"),
        ('{"schema": 1, "calls": [{"metrics": {"wall": [NaN]}}]}', "*a time is finite and above 0"),
        ('{"schema": 1, "calls": [{"index": 0, "nodeid": 3}]}', "*call 0: nodeid is no text*"),
        ('{"schema": 1, "calls": [{"environment": {"clock": 1}}]}', "*which is no part of a fingerprint*"),
    ],
)
def test_a_file_that_isnt_one_is_an_error(timed, raw, sentence) -> None:
    timed.takes(a=1e-3, file={"raw": raw})
    done = timed.run()
    assert done.ret == EXIT_FAILED
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", sentence])


def test_a_marker_asks_for_more_processes(timed) -> None:
    timed.takes(a=1e-3, b={"seconds": 1e-3, "processes": 4})
    timed.run("--ascend-perf=2")
    assert [len(start) - 2 for start in timed.starts()] == [2, 2, 1, 1]


def test_a_run_that_timed_nothing_says_so(timed) -> None:
    timed.takes(a=1e-3)
    done = timed.run("-k", "untimed")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["ascend: nothing was timed: no test that ran called ascend_perf"])
    assert timed.run("-k", "untimed", "--ascend-strict").ret == EXIT_FAILED


def test_a_broken_baseline_is_an_error_and_is_left_alone(timed) -> None:
    timed.takes(a=1e-3)
    timed.run("--ascend-save")
    (file,) = timed.path.glob("baselines/*/*.json")
    file.write_text("{")
    done = timed.run("--ascend-save")
    assert done.ret == EXIT_FAILED
    done.stdout.fnmatch_lines([f"error  {NAME}::test_a", "*restore it from version control*"])
    assert file.read_text() == "{"


def test_two_runs_save_at_once(timed) -> None:
    timed.takes(a=1e-3)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ascend-perf=1", "--ascend-save"]
    runs = [subprocess.Popen(command, cwd=timed.path, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [run.wait(120) for run in runs] == [0] * 4
    (file,) = timed.path.glob("baselines/*/*.json")
    assert len(json.loads(file.read_text())["sessions"]) == 4


def test_the_folder_of_baselines_can_be_named(timed) -> None:
    timed.takes(a=1e-3)
    done = timed.run("--ascend-save", "--ascend-baseline=stored")
    assert done.ret == 0
    assert len(list(timed.path.glob("stored/*/*.json"))) == 1
    done = timed.run("--ascend-save", "--ascend-baseline=conftest.py")
    assert done.ret == EXIT_FAILED
