"""A process that only times: what it writes, what it doesn't, and what pytest-benchmark gets."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pytest_ascend.cli import main
from pytest_ascend.perf.benchmark_files import read_benchmarks
from pytest_ascend.perf.fingerprint import fingerprint

QUICK = "max_time=0.01, warmup_time=0.02, rotate=2"
SUITE = f"""
import pytest
import torch

pytestmark = pytest.mark.ascend_perf({QUICK}, target="cpu")

def test_softmax(ascend_perf):
    result = ascend_perf(torch.softmax, torch.randn(8, 64), dim=-1)
    assert result.verdict == "inconclusive"

@pytest.mark.parametrize("n", [4, 8])
def test_layers(ascend_perf, n):
    ascend_perf(torch.nn.Linear(n, n), torch.randn(3, n))
    ascend_perf.using(threads=2)(torch.relu, torch.randn(3, n))

def test_elsewhere():
    raise AssertionError("not for a process that times")
"""


@pytest.fixture
def child(pytester, monkeypatch):
    """Run a file in child mode: the run, and what it wrote, or None."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # else pytest-benchmark takes the inner run for a worker

    def run(source: str, *args: str, path: str = "timings.json", subprocess: bool = False):
        pytester.makepyfile(source)
        runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        done = runner("-p", "no:cacheprovider", "-p", "no:hypothesispytest", f"--ascend-perf-child={path}", *args)
        file = Path(pytester.path, path)
        return done, json.loads(file.read_text(), parse_constant=pytest.fail) if file.exists() else None

    return run


def one(body: str, fixtures: str = "ascend_perf", marker: str = 'target="cpu"') -> str:
    return f"import pytest, torch\n@pytest.mark.ascend_perf({QUICK}, {marker})\ndef test_it({fixtures}):\n" + "".join(
        f"    {line}\n" for line in body.splitlines()
    )


def test_the_file_holds_every_call(child) -> None:
    done, file = child(SUITE)
    done.assert_outcomes(passed=3, deselected=1)
    name = "test_the_file_holds_every_call.py"
    assert [(call["nodeid"], call["index"], call["api"]) for call in file["calls"]] == [
        (f"{name}::test_softmax", 0, "torch.softmax"),
        *((f"{name}::test_layers[{n}]", i, api) for n in (4, 8) for i, api in enumerate(("Linear", "torch.relu"))),
    ]
    assert file["schema"] == 1
    assert file["deselected"] == 1
    assert set(file["tests"].values()) == {"passed"}
    assert len(file["tests"]) == 3
    assert set(file["sentinels"]) == {"numpy", "copy", "torch", "python"}
    for call in file["calls"]:
        assert (call["unusable"], call["outcome"]) == ("", "")
        assert call["metric"] == "wall"
        assert len(call["metrics"]["wall"]) >= 5
        assert all(0 < seconds < math.inf for seconds in call["metrics"]["wall"])
        assert call["first_call_s"] > 0
        assert call["warmup_calls"] >= 1
        assert call["calls_per_block"] >= 1
        assert call["kernels_per_call"] == 1
        assert call["environment"]["threads"] == call["threads"]
    assert [call["threads"] for call in file["calls"]] == [1, 1, 2, 1, 2]
    assert fingerprint(file["environment"]) == fingerprint(file["calls"][0]["environment"])


def test_the_emulated_device_is_timed_where_the_command_line_says_so(child) -> None:
    source = one("ascend_perf(torch.nn.Linear(4, 4), torch.randn(2, 4))", marker="threads=1")
    done, file = child(source, "--ascend-compare=emulated")
    done.assert_outcomes(passed=1)
    (call,) = file["calls"]
    assert call["target"] == file["target"] == "emulated"
    assert call["environment"]["device"] == "emulated npu"
    assert set(call["metrics"]) == {"wall", "device"}
    assert "host's clock" in call["clock"]
    assert call["peak_bytes"] > 0


def test_what_the_workload_raises_fails_the_test_and_is_written_down(child) -> None:
    source = one("ascend_perf(torch.relu, torch.ones(2))\nascend_perf(torch.mm, torch.ones(2, 3), torch.ones(2, 3))")
    done, file = child(source)
    done.assert_outcomes(failed=1)
    first, second = file["calls"]
    assert first["metrics"]["wall"]
    assert second["metrics"] == {}
    assert second["outcome"].startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    (said,) = file["tests"].values()
    assert said.startswith("failed: RuntimeError: mat1")
    assert "perf_child.py" not in done.stdout.str()


def test_tests_without_timings_have_a_reason(child) -> None:
    source = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no such data")

def test_setup(broken, ascend_perf): pass

@pytest.mark.skip(reason="another day")
def test_skipped(ascend_perf): pass

def test_nothing(ascend_perf): pass

def test_fails(ascend_perf): assert 1 == 2
"""
    _, file = child(source)
    found = {nodeid.rpartition("::")[2]: said for nodeid, said in file["tests"].items()}
    assert found == {
        "test_setup": "failed: OSError: no such data",
        "test_skipped": "skipped: Skipped: another day",
        "test_nothing": "passed",
        "test_fails": "failed: assert 1 == 2",
    }
    assert file["calls"] == []
    assert file["sentinels"] == {}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def g():\n    yield 1\nascend_perf(g)", "returned a generator"),
        ("with torch.profiler.profile():\n    ascend_perf(torch.relu, torch.ones(2))", "torch's profiler is active"),
        ("ascend_perf.using(metric='device')(torch.relu, torch.ones(2))", "no clock of its own"),
        ("ascend_perf.using(target='emulated:99')(torch.relu, torch.ones(2))", "npu:99 does not exist"),
        ("ascend_perf(torch.t, torch.ones(2, 2))", "not exercised: "),
    ],
)
def test_what_can_not_be_timed_is_unusable_and_the_test_goes_on(child, body, reason) -> None:
    done, file = child(one(f"{body}\nascend_perf(torch.relu, torch.ones(2))"))
    done.assert_outcomes(passed=1)
    assert reason in file["calls"][0]["unusable"]
    assert file["calls"][1]["unusable"] == ""
    assert file["calls"][1]["index"] == 1


def test_a_workload_that_skips_says_so(child) -> None:
    done, file = child(one("ascend_perf(lambda: pytest.skip('no data'))"))
    done.assert_outcomes(skipped=1)
    assert file["calls"][0]["outcome"] == "Skipped: no data"
    assert file["calls"][0]["metrics"] == {}


def test_the_terminal_shows_the_medians_and_what_is_unusable(child) -> None:
    body = "ascend_perf(torch.relu, torch.ones(2))\nascend_perf(torch.t, torch.ones(2, 2))\nascend_perf(abs, 'x')"
    done, _ = child(one(body))
    name = "test_the_terminal_shows_the_medians_and_what_is_unusable.py::test_it"
    done.stdout.fnmatch_lines(
        [
            "*= ascend timings =*",
            f"* [nµ]s  torch.relu  {name}  [[]wall time, first call * ?s, kernels 1[]]",
            f" * -  torch.t  {name} (call 2): not exercised: *",
            f" * -  *abs  {name} (call 3): TypeError: bad operand type *",
            "ascend: 3 calls timed, 2 of them without a usable timing: *timings.json",
        ]
    )


def test_each_process_draws_the_same_inputs(child, pytester) -> None:
    source = one("x = torch.randn(3)\nprint('drew', x.tolist())\nascend_perf(torch.relu, x)")
    drew = [line for _ in range(2) for line in child(source, "-s")[0].outlines if "drew" in line]
    assert len(drew) == 2
    assert drew[0] == drew[1]


# -- the file is whole or isn't there -----------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["raise KeyboardInterrupt", "pytest.exit('enough')", "import os; os._exit(3)"])
def test_a_run_that_is_broken_off_writes_nothing(child, stop) -> None:
    source = one("ascend_perf(torch.relu, torch.ones(2))") + f"\ndef test_stop(ascend_perf):\n    {stop}\n"
    _, file = child(source, subprocess=True)
    assert file is None


def test_a_test_that_isnt_there_writes_nothing(child) -> None:
    done, file = child(SUITE, "test_missing.py::test_it")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert file is None


def test_a_broken_collection_writes_nothing(child) -> None:
    done, file = child("import nowhere_at_all")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    assert file is None


def test_a_file_that_can_not_be_written_fails_the_run(child, pytester) -> None:
    pytester.mkdir("taken.json")
    pytester.makepyfile(one("ascend_perf(torch.relu, torch.ones(2))"))
    done = pytester.runpytest_inprocess("-p", "no:hypothesispytest", "--ascend-perf-child=taken.json")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["--ascend-perf-child: can't write *taken.json: *"])


def test_a_tests_file_is_never_overwritten(pytester) -> None:
    path = pytester.makepyfile("def test_it(): pass")
    before = path.read_text()
    done = pytester.runpytest_inprocess("--ascend-perf-child", str(path))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*can't hold timings: give a path that ends in .json*"])
    assert path.read_text() == before


def test_workers_would_disturb_each_other(pytester) -> None:
    pytester.makepyfile("def test_it(ascend_perf): pass")
    done = pytester.runpytest_inprocess("-n2", "--ascend-perf-child=timings.json")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*workers of pytest-xdist disturb each other's timings: give -n0*"])


def test_nobody_sees_the_option_in_the_help(pytester) -> None:
    assert "perf-child" not in pytester.runpytest_inprocess("--help").stdout.str()


# -- the fixture and its marker -----------------------------------------------------------------------------------


def test_without_it_the_fixture_skips_loudly(pytester) -> None:
    pytester.makepyfile("def test_it(ascend_perf): raise AssertionError")
    done = pytester.runpytest_inprocess("-rs", "-p", "no:hypothesispytest")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED * ascend_perf: inconclusive, nothing is timed without *"])


def test_other_processes_results_are_looked_up(pytester) -> None:
    pytester.makeconftest("""
import pytest
from pytest_ascend.session import KEY

class Results:
    said = []

    def conclude(self, item, index, options):
        print("asked", item.name, index, options.threshold, options.processes)
        return "concluded"

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.stash[KEY].perf_results = Results()
""")
    pytester.makepyfile("""
import pytest

@pytest.mark.ascend_perf(threshold=0.1)
def test_it(ascend_perf):
    assert ascend_perf(abs, -1) == "concluded"
    assert ascend_perf.using(processes=9)(abs, -1) == "concluded"
""")
    done = pytester.runpytest_inprocess("-s", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*asked test_it 0 0.1 None", "asked test_it 1 0.1 9"])


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        (
            "treshold=0.1",
            "@pytest.mark.ascend_perf has no keyword 'treshold' (did you mean 'threshold'?): it knows tar*",
        ),
        ("threshold=3", "@pytest.mark.ascend_perf: threshold=3 is out of range: give a number in (0, 1]"),
        ("0.03", "@pytest.mark.ascend_perf takes keywords only, not 0.03: it knows target, threshold, *"),
    ],
)
def test_a_bad_marker_is_one_sentence_in_every_run(pytester, marker, sentence) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.ascend_perf({marker})\ndef test_it(ascend_perf): pass")
    done = pytester.runpytest_inprocess("-p", "no:hypothesispytest")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([sentence.replace("[", "[[]").replace("[[]]", "[]]")])


def test_the_closest_options_win(child) -> None:
    source = f"""
import pytest, torch
pytestmark = pytest.mark.ascend_perf({QUICK}, target="cpu", threads=3)

@pytest.mark.ascend_perf(threads=2)
def test_it(ascend_perf):
    ascend_perf(torch.relu, torch.ones(2))
    ascend_perf.using(threads=1)(torch.relu, torch.ones(2))
    with pytest.raises(TypeError, match="did you mean 'threads'"):
        ascend_perf.using(thread=1)
"""
    done, file = child(source)
    done.assert_outcomes(passed=1)
    assert [call["threads"] for call in file["calls"]] == [2, 1]


def test_the_marker_is_explained(pytester) -> None:
    text = pytester.runpytest_inprocess("--markers").stdout.str()
    assert "@pytest.mark.ascend_perf(target='auto', threshold=None, processes=None, metric='auto'" in text
    assert "they win over the command line and yield to ascend_perf.using(...)" in text


# -- pytest-benchmark ---------------------------------------------------------------------------------------------


def test_its_files_hold_the_calls_and_are_imported(child, pytester, capsys) -> None:
    done, file = child(SUITE, "--benchmark-json=benchmarks.json", "--benchmark-autosave")
    done.assert_outcomes(passed=3, deselected=1)
    (saved,) = Path(pytester.path, ".benchmarks").rglob("*.json")
    for path in (Path(pytester.path, "benchmarks.json"), saved):
        found = {read.test: read.session for read in read_benchmarks(path)}
        assert len(found) == len(file["calls"])
        for call in file["calls"]:
            name = call["nodeid"] + (f"#{call['index'] + 1}" if call["index"] else "")
            (seconds,) = found[name].timings["wall"].minima
            assert seconds == pytest.approx(min(call["metrics"]["wall"]))
    benchmark = json.loads(Path(pytester.path, "benchmarks.json").read_text())["benchmarks"][0]
    assert benchmark["stats"]["iterations"] == file["calls"][0]["calls_per_block"]
    assert benchmark["stats"]["rounds"] == len(file["calls"][0]["metrics"]["wall"])
    assert benchmark["extra_info"]["ascend_perf"]["api"] == "torch.softmax"
    assert main(["baseline", "import", ".benchmarks"]) == 0
    assert "5 benchmarks stored in baselines/" in capsys.readouterr().out


def test_the_tests_own_fixture_is_filled(child) -> None:
    source = one(
        "ascend_perf(torch.relu, torch.ones(9))\nassert benchmark.stats.stats.rounds >= 5", "ascend_perf, benchmark"
    )
    done, _ = child(source, "-W", "error")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*benchmark: 1 tests*", "test_it *"])


def test_a_fixture_that_the_test_has_used_is_left_alone(child, pytester) -> None:
    source = one("benchmark(abs, 1)\nascend_perf(torch.relu, torch.ones(9))", "ascend_perf, benchmark")
    done, _ = child(source, "--benchmark-json=b.json", "--benchmark-max-time=0.01")
    done.assert_outcomes(passed=1)
    found = json.loads(Path(pytester.path, "b.json").read_text())["benchmarks"]
    assert [bool(benchmark["extra_info"]) for benchmark in found] == [False, True]


@pytest.mark.parametrize("args", [[], ["--benchmark-json=b.json", "--benchmark-disable"]])
def test_nothing_goes_there_that_nobody_asked_for(child, pytester, args) -> None:
    done, file = child(one("ascend_perf(torch.relu, torch.ones(9))"), *args)
    done.assert_outcomes(passed=1)
    assert file["calls"][0]["metrics"]["wall"]
    assert "benchmark: 1 tests" not in done.stdout.str()


def test_what_is_unusable_stays_out_of_its_files(child, pytester) -> None:
    done, _ = child(one("ascend_perf(torch.t, torch.ones(2, 2))"), "--benchmark-json=b.json")
    done.assert_outcomes(passed=1)
    path = Path(pytester.path, "b.json")
    assert not path.exists() or not path.read_text() or not json.loads(path.read_text())["benchmarks"]


def test_another_timer_is_another_environment(child) -> None:
    source = one("ascend_perf(torch.relu, torch.ones(9))")
    _, usual = child(source)
    _, other = child(source, "--benchmark-timer=time.process_time")
    assert other["environment"]["config"] == {"timer": "time.process_time"}
    assert fingerprint(usual["environment"]) != fingerprint(other["environment"])


def test_it_times_without_pytest_benchmark(child) -> None:
    done, file = child(one("ascend_perf(torch.relu, torch.ones(9))"), "-p", "no:benchmark")
    done.assert_outcomes(passed=1)
    assert file["calls"][0]["metrics"]["wall"]


def test_a_run_that_asks_processes_gives_it_their_blocks(pytester, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(one("ascend_perf(torch.relu, torch.ones(9))"))
    args = ["-p", "no:hypothesispytest", "--ascend-perf=2", "--benchmark-json=b.json"]
    pytester.runpytest_inprocess(*args).assert_outcomes(passed=1)
    (found,) = json.loads(Path(pytester.path, "b.json").read_text())["benchmarks"]
    assert found["extra_info"]["ascend_perf"] == {"api": "torch.relu", "processes": 2}
    assert found["stats"]["rounds"] >= 10


@pytest.mark.whole
def test_hypothesis_is_not_loaded_to_say_nothing(pytester, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    at_exit = "import atexit, sys\natexit.register(lambda: print('loaded:', 'hypothesis' in sys.modules))\n"
    for name, source in (("without", ""), ("with", "import hypothesis\n")):
        pytester.makepyfile(at_exit + source + one("ascend_perf(torch.relu, torch.ones(2))"))
        done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ascend-perf-child=timings.json")
        done.assert_outcomes(passed=1)
        done.stdout.fnmatch_lines([f"loaded: {name == 'with'}"])


def test_the_stand_in_for_torch_npu_is_no_source(child) -> None:
    suite = SUITE.replace('target="cpu"', 'target="emulated"').partition("@pytest.mark.parametrize")[0]
    _, document = child(suite)
    import torch_npu

    assert "emulator" in torch_npu.__file__
    assert "torch_npu" not in document["sources"]  # its folder on another side's path would hide the emulator's own
    assert "pytest_ascend" in document["sources"]
