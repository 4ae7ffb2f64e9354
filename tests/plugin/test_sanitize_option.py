"""--ascend-sanitize on a card: a stand-in for mssanitizer replays logs, the rest of the flow is the real one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

slow = pytest.mark.skipif("ASCEND_SANITIZE" not in os.environ, reason="slow: make test-sanitize")
SAMPLES = Path(__file__).parent.parent / "data" / "mssanitizer"

STAND_IN = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
at = arguments.index("--")
options, program = arguments[:at], arguments[at + 1:]
log = next(o.partition("=")[2] for o in options if o.startswith("--log-file="))
print("[mssanitizer] logging to file: " + log, file=sys.stderr)
with open("seen.txt", "a") as file:
    print(*options[:-1], sep=" ", file=file)
status = subprocess.call(program, env={{**os.environ, "UNDER_SANITIZER": "1"}})
if status:
    how = "by signal(%d)" % -status if status < 0 else "abnormally"
    print("[mssanitizer] user program %s exited %s" % (program[0], how))
if os.path.exists("replay.log"):
    with open(log, "w") as file:
        file.write(open("replay.log").read())
sys.exit(0)
"""


@pytest.fixture
def sanitize(pytester, monkeypatch):
    """Run tests with a stand-in for mssanitizer that leaves a log: ``sanitize(source, log, *args)``."""
    folder = pytester.path / "bin"
    folder.mkdir()
    tool = folder / "mssanitizer"
    tool.write_text(STAND_IN.format(python=sys.executable))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for name in ("PYTORCH_NO_NPU_MEMORY_CACHING", "ASCEND_LAUNCH_BLOCKING"):
        monkeypatch.delenv(name, raising=False)

    def sanitize(source, log, *args):
        pytester.makepyfile(source)
        replay = pytester.path / "replay.log"
        replay.unlink(missing_ok=True)
        if log is not None:
            replay.write_text((SAMPLES / f"{log}.log").read_text() if "\n" not in log else log)
        given = args if any(arg.startswith("--ascend-sanitize") for arg in args) else ("--ascend-sanitize", *args)
        more = (
            "--ascend-compare=cpu",
            "--ascend-json=results.json",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
        )
        done = pytester.runpytest_inprocess(*more, *given)
        path = pytester.path / "results.json"
        done.results = json.loads(path.read_text())["results"] if path.exists() else []
        return done

    return sanitize


PASSES = """
import os, pytest
@pytest.mark.ascend_sanitize
def test_it():
    assert os.environ["UNDER_SANITIZER"] == "1"
    assert os.environ["PYTORCH_NO_NPU_MEMORY_CACHING"] == os.environ["MS_DEVICE_MEM_SANITIZER"] == "1"
    assert os.environ["USE_DEVICE_MEM_CHECK"] == os.environ["USE_DEVICE_SYNC"] == os.environ["ASCEND_LAUNCH_BLOCKING"]
def test_unmarked():
    assert "UNDER_SANITIZER" not in os.environ
"""


def test_a_clean_log_passes(sanitize) -> None:
    done = sanitize(PASSES, "memcheck_clean")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["memory: 1 test looked at on cpu*: 1 PASS"])
    (result,) = done.results
    assert (result["verdict"], result["tools"], result["memory_faults"]) == ("PASS", ["memcheck"], [])


def test_a_fault_is_in_report_and_results(sanitize) -> None:
    done = sanitize(PASSES, "memcheck_errors")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "MEMORY_FAULT: illegal read of 224 bytes at 0x12c0c0025000 on GM in add_custom*aiv(0-3,7)*(and 4 more)",
            "  #0 /home/user/op/add_custom.cpp:18:5",
            "reproduce: pytest *::test_it --ascend-compare=cpu --ascend-sanitize=memcheck",
            "MEMORY_FAULT  *::test_it",
        ]
    )
    (result,) = done.results
    assert (result["verdict"], result["outcome"]) == ("MEMORY_FAULT", "failed")
    assert [fault["kind"] for fault in result["memory_faults"]][:2] == ["illegal read", "illegal write"]
    assert result["memory_faults"][0]["address"] == "0x12c0c0025000"


def test_nothing_checked_is_an_error(sanitize) -> None:
    done = sanitize(PASSES, None)
    done.assert_outcomes(passed=1, errors=1)
    assert [result["verdict"] for result in done.results] == ["INFRA"]


OTHERS = """
import os, signal, pytest
pytestmark = pytest.mark.ascend_sanitize
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("not here")
@pytest.mark.xfail(strict=True)
def test_expected(): assert 1 == 2
"""


def test_a_tests_own_outcome_stays(sanitize) -> None:
    done = sanitize(OTHERS, "memcheck_clean")
    done.assert_outcomes(failed=1, skipped=1, xfailed=1)
    done.stdout.fnmatch_lines(["*assert 1 == 2*"])


def test_a_crash_costs_one_test(sanitize) -> None:
    crash = "import os, pytest\n@pytest.mark.ascend_sanitize\ndef test_it(): os.abort()\n"
    done = sanitize(crash, "memcheck_clean")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["CRASH: the program was ended by SIGABRT"])


@slow
def test_a_hang_costs_one_test(sanitize) -> None:
    hang = "import time, pytest\n@pytest.mark.ascend(timeout=3)\ndef test_it(): time.sleep(99)\n"
    done = sanitize(hang, None)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["CRASH: it took longer than 3 s under mssanitizer and was killed"])


def test_tools_and_options_reach_it(sanitize, pytester) -> None:
    source = PASSES.replace("ascend_sanitize\n", "ascend_sanitize('racecheck', 'synccheck')\n")
    done = sanitize(source, "racecheck_errors", "--ascend-sanitize=memcheck", "--ascend-sanitize-args=--block-id=3")
    done.assert_outcomes(passed=1, failed=1)
    seen = (pytester.path / "seen.txt").read_text()
    assert "-t racecheck -t synccheck" in seen
    done = sanitize(PASSES.replace("ascend_sanitize\n", "ascend_sanitize('x')\n"), None)
    done.stdout.fnmatch_lines(["*knows memcheck, initcheck, racecheck, synccheck, not 'x'*"])


@slow
def test_under_xdist(sanitize) -> None:
    done = sanitize(PASSES, "memcheck_errors", "--ascend-sanitize", "-n1")
    done.assert_outcomes(passed=1, failed=1)


def test_without_the_tool_it_is_said(pytester, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = pytester.runpytest_inprocess("--ascend-compare=cpu", "--ascend-sanitize=memcheck,initcheck")
    done.stderr.fnmatch_lines(["ERROR: --ascend-sanitize: mssanitizer isn't on PATH: source CANN's set_env.sh first*"])
    done = pytester.runpytest_inprocess("--ascend-sanitize=memchek")
    done.stderr.fnmatch_lines(["*'memchek' is no tool of msSanitizer*"])


EMULATED = """
import pytest, torch
import pytest_ascend as pa

@pytest.fixture
def x(ascend_device):
    return torch.ones(10, device=ascend_device)

def behind(out, a, b, alpha=1):
    out.tensor.copy_(a.tensor + b.tensor)
    a[a.numel()] = 3.0

def tail(out, a, b, alpha=1):
    out.window(0, 7)[:] = 2.0

def test_clean(x):
    assert (x + x).sum().item() == 20

def test_behind(x):
    with pa.emulator.override("aten::add.Tensor", behind, raw=True):
        x + x

def test_tail(x):
    with pa.emulator.override("aten::add.Tensor", tail, raw=True):
        x + x

def test_own_error(x):
    with pa.emulator.override("aten::add.Tensor", behind, raw=True):
        assert (x + x).sum().item() == 21

@pytest.mark.ascend_sanitize
def test_nothing(): pass

@pytest.mark.ascend_sanitize("racecheck")
def test_race(x): x + x

def test_compare(ascend_compare):
    with pa.emulator.override("aten::add.Tensor", behind, raw=True):
        ascend_compare(torch.add, torch.ones(4), torch.ones(4))

def test_unmarked(): pass
"""


def test_on_the_emulated_device(pytester) -> None:
    pytester.makepyfile(EMULATED)
    args = ("--ascend-compare=emulated", "--ascend-json=r.json", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    done = pytester.runpytest_inprocess(*args, "--ascend-sanitize=memcheck,initcheck")
    done.assert_outcomes(passed=2, failed=4, errors=2)
    results = json.loads((pytester.path / "r.json").read_text())["results"]
    found = {
        result["nodeid"].rpartition("::")[2]: [
            (fault["kind"], fault["op"], fault["direction"], fault["size"]) for fault in result["memory_faults"]
        ]
        for result in results
        if result["criterion"] == "sanitize"
    }
    write = ("illegal write", "aten::add", "write", 4)
    assert found["test_clean"] == found["test_nothing"] == found["test_race"] == []
    assert found["test_behind"] == found["test_own_error"] == [write]
    assert found["test_tail"] == [("uninitialized read", "aten::add", "read", 12)]
    assert write in found["test_compare"]
    done.stdout.fnmatch_lines(["*right behind the end of a block of 40 bytes*", "*assert 20.0 == 21*"])
    done = pytester.runpytest_inprocess(*args, "--ascend-sanitize", "-k", "tail or behind")
    done.assert_outcomes(passed=1, failed=1)  # memcheck alone doesn't look for memory that nobody wrote
