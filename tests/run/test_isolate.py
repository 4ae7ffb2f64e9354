"""Supervised processes that really crash, hang and are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from pytest_ascend.report.results_json import SCHEMA

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs process groups")
slow = pytest.mark.skipif("ASCEND_DISASTERS" not in os.environ, reason="starts many processes: make test-isolation")

BAD = """
import ctypes, os, signal, subprocess, sys, time, pytest
STATE = []
def test_before(): STATE.append(1)
def test_abort(): os.abort()
def test_segfault(): ctypes.string_at(0)
def test_exit(): os._exit(0)
@pytest.mark.ascend(timeout=1)
def test_hang():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open("child", "w").write(str(child.pid))
    pause = ctypes.PyDLL(None).pause  # in native code, with the interpreter's lock
    while True: pause()
def test_hog():
    kept = []
    while True: kept.append(bytearray(1 << 24)); kept[-1][:] = b"x" * (1 << 24)
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("so")
@pytest.fixture
def late():
    yield
    os.abort()
def test_teardown(late): pass
def test_in_order_a(): STATE.append(2)
def test_in_order_b():
    if STATE: os.abort()
def test_after(worker_id, tmp_path): assert worker_id == "gw0"
"""
CRASHES = {
    "test_abort": "died of SIGABRT",
    "test_segfault": "died of SIGSEGV",
    "test_exit": "ended its process with exit status 0",
    "test_hang": "ran longer than 1 s and was killed",
    "test_hog": "of host memory, more than",
    "test_teardown": "died of SIGABRT",
    "test_in_order_b": "died of SIGABRT",
}


QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--ascend-isolate")
COMMAND = (sys.executable, "-m", "pytest", *QUIET)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def results(path: Path) -> dict[str, dict]:
    content = json.loads(path.read_text())
    jsonschema.validate(content, SCHEMA)
    return {one["nodeid"].partition("::")[2]: one for one in content["results"]}


def test_each_disaster_costs_one_test(run, pytester) -> None:
    done = run(BAD, "--ascend-isolate", "--ascend-isolate-memory=400MB", "--ascend-json=r.json", "--junitxml=j.xml")
    done.assert_outcomes(passed=3, failed=len(CRASHES) + 1, skipped=1)
    found = results(pytester.path / "r.json")
    assert set(found) == set(CRASHES)
    for name, ending in CRASHES.items():
        assert found[name]["verdict"] == "CRASH"
        assert ending in found[name]["reason"], found[name]["reason"]
        if name in ("test_abort", "test_hang", "test_hog"):
            assert name in found[name]["reason"]  # the line
    inner = found["test_in_order_b"]
    assert inner["crash"]["alone"] == "passed"
    assert [one.partition("::")[2] for one in inner["preceding"]] == ["test_in_order_a"]
    assert "::test_in_order_a " in inner["reproducer"]
    assert inner["reproducer"].endswith("::test_in_order_b")
    assert all(found[name]["crash"]["again"] for name in CRASHES if name != "test_in_order_b")
    assert not alive(int((pytester.path / "child").read_text()))  # although it had left the group
    assert (pytester.path / "j.xml").read_text().count("<failure") == len(CRASHES) + 1


def test_two_processes_and_maxfail(run) -> None:
    source = "import pytest, os\n@pytest.mark.parametrize('i', range(40))\ndef test_it(i): assert i != 5\n"
    done = run(source, "--ascend-isolate", "-n", "2", "-x")
    done.assert_outcomes(failed=1, passed=done.parseoutcomes()["passed"])
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["ascend: 2 workers, in supervised processes", "*stopping after 1 failures*"])


SLOW = """
import os, time, pytest
@pytest.mark.parametrize("i", range(12))
def test_it(i):
    with open("ran", "a") as file: file.write(f"{i}\\n")
    time.sleep(0.1)
    assert i != 3
"""


def test_a_killed_run_goes_on(pytester) -> None:
    pytester.makepyfile(SLOW)
    ran = pytester.path / "ran"
    process = subprocess.Popen([*COMMAND, "-q"], cwd=pytester.path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not ran.exists() or len(ran.read_text().split()) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.3)
    before = ran.read_text().split()
    assert len(before) < 12  # whoever ran them is gone too
    done = pytester.runpytest_subprocess(*QUIET, "--ascend-resume")
    done.assert_outcomes(passed=11, failed=1)
    counts = {i: ran.read_text().split().count(str(i)) for i in range(12)}
    assert all(counts[int(i)] == 1 for i in before[:-1]), counts  # what was judged isn't judged again
    assert all(1 <= count <= 2 for count in counts.values())
    done.stdout.fnmatch_lines([f"ascend: {len(before) - 1} tests of the interrupted run taken over"])
    again = pytester.runpytest_subprocess(*QUIET, "--ascend-resume")
    again.stdout.fnmatch_lines(["ascend: no interrupted run to go on with"])


def test_a_killed_process_loses_nothing_that_ended(pytester) -> None:
    source = SLOW.replace("assert i != 3", "os.getpid()").replace("range(12)", "range(6)")
    pytester.makepyfile(source + "\ndef test_pid(): open('pid', 'w').write(str(os.getpid())); time.sleep(30)\n")
    process = subprocess.Popen([*COMMAND, "--ascend-timeout=60"], cwd=pytester.path, stdout=subprocess.PIPE, text=True)
    for _ in range(2):  # its own run, and the one alone
        deadline = time.monotonic() + 60
        while not (pytester.path / "pid").exists() or not (pytester.path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = int((pytester.path / "pid").read_text())
        (pytester.path / "pid").unlink()
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert "1 failed, 6 passed" in out
    assert "died of SIGKILL" in out
    assert len((pytester.path / "ran").read_text().split()) == 6


def test_a_failure_that_others_cause_lists_them(run) -> None:
    source = """
STATE = []
def test_first(): STATE.append(1)
def test_second(): assert not STATE
def test_third(): assert 0
"""
    done = run(source, "--ascend-isolate")
    done.assert_outcomes(passed=1, failed=2)
    again = "pytest *.py::test_first *.py::test_second"
    done.stdout.fnmatch_lines(["alone it passes, so that what ran before it *matters (1 test): " + again])
    assert done.stdout.str().count("alone it passes") == 1


@pytest.mark.parametrize(
    ("args", "why"),
    [(["--pdb"], "no debugger can be"), (["--ascend-shard=3/2"], "3/2"), (["--ascend-timeout=0"], "give seconds")],
)
def test_what_makes_no_sense_is_a_usage_error(run, args, why) -> None:
    done = run("def test_it(): pass", "--ascend-isolate", *args)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert why in done.stderr.str()


ON_DEVICE = """
import os, pytest, torch
import pytest_ascend as pa
def planted(op, kernel):
    return pa.emulator.override(op, kernel)
def test_right(ascend_compare): ascend_compare(torch.relu, torch.randn(4))
def test_sick(ascend_compare):
    def kernel(x):
        pa.emulator.sicken()
        return torch.tanh(x)
    with planted("aten::tanh", kernel):
        ascend_compare(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.randn(2, 4))
def test_after(ascend_compare): ascend_compare(torch.relu, torch.randn(4))
"""


COUNTING = """
import os
def pytest_collection_finish(session): count(session.config, "collected")
def pytest_sessionfinish(session): count(session.config, "ended")
def count(config, when):
    from pytest_ascend.targets.emulator.device import machine
    who = "worker" if hasattr(config, "workerinput") else "controller"
    blocks = sum(one.allocations for one in machine.devices)
    with open("counts", "a") as file: file.write(f"{who} {when} {machine.kernels + blocks}\\n")
"""


@pytest.mark.whole
def test_the_operator_is_named(run, pytester) -> None:
    pytester.makeconftest(COUNTING)
    done = run(ON_DEVICE, "--ascend-compare=emulated", "--ascend-isolate", "--ascend-json=r.json")
    done.assert_outcomes(passed=2, failed=1)
    found = results(pytester.path / "r.json")
    assert {name: one["verdict"] for name, one in found.items()} == {
        "test_right": "PASS",
        "test_sick": "CRASH",
        "test_after": "PASS",
    }
    assert found["test_sick"]["dtype"] == "float32"
    assert found["test_sick"]["culprit"]["op"] == "aten.tanh.default"
    assert found["test_sick"]["culprit"]["module"] == "Sequential.1"
    assert "error 507015" in found["test_sick"]["reason"]
    counts = [line.split() for line in (pytester.path / "counts").read_text().splitlines()]
    touched = {(who, when) for who, when, count in counts if int(count)}
    assert touched == {("worker", "ended")}  # neither the controller nor collecting uses a device


@slow
def test_a_wedged_card_is_quarantined(run, pytester, monkeypatch) -> None:
    faults = pytester.mkdir("faults")
    (faults / "0.wedged").touch()
    monkeypatch.setenv("ASCEND_EMULATED_FAULTS", str(faults))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0")
    source = "import torch\ndef test_it(ascend_compare): ascend_compare(torch.relu, torch.randn(4))\n"
    args = ("--ascend-compare=emulated", "--ascend-isolate", "--ascend-timeout=1", "--ascend-json=r.json")
    done = run(source, *args)
    done.assert_outcomes(errors=1)
    assert results(pytester.path / "r.json")["test_it"]["verdict"] == "INFRA"
    done.stdout.fnmatch_lines(["ascend: card 0 is not well and was quarantined: *"])
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")  # one worker: the other card is free to take its place
    done = run(source, *args)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["ascend: card 1 takes its place"])
    assert results(pytester.path / "r.json")["test_it"]["device"] == "1"
