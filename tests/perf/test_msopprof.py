"""Running msOpProf: a stand-in executable replays what it prints and writes, so that every step really happens."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from pytest_ascend.perf.child import ProfilerFailed
from pytest_ascend.perf.msopprof import Options, Simulation, command, measure
from pytest_ascend.perf.tabular import ProfileError

# What it does is in plan.json beside it: which sample to copy, what to print, how to end.
STAND_IN = """\
#!{python}
import json, os, pathlib, shutil, subprocess, sys, time
here = pathlib.Path(__file__).parent
plan = json.loads((here / "plan.json").read_text())
arguments = sys.argv[1:]
(here / "argv.json").write_text(json.dumps(arguments))
output = pathlib.Path(next(a for a in arguments if a.startswith("--output=")).removeprefix("--output="))
if plan.get("run"):
    first = next(i for i, a in enumerate(arguments) if i and not a.startswith("--") and a != "simulator")
    subprocess.run(arguments[first:], check=False)
if plan.get("sleep"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (here / "child").write_text(str(child.pid))
    time.sleep(plan["sleep"])
for sample, name in plan.get("copy", []):
    shutil.copytree(sample, output / name)
print(plan.get("say", "").replace("OUTPUT", str(output)))
sys.stdout.flush()
if plan.get("signal"):
    os.kill(os.getpid(), plan["signal"])
sys.exit(plan.get("status", 0))
"""

NAME = "OPPROF_20260301101112131_ABCDEFGHIJKLMNOP"
LOW = "OPPROF_20260301111213141_QRSTUVWXYZABCDEF"
SAVED = "[INFO]  Profiling running finished. All task success.\n[INFO]  Profiling results saved in OUTPUT/"


class StandIn:
    """The executable, on PATH."""

    def __init__(self, folder: Path, samples: Path) -> None:
        self.folder, self.samples = folder, samples
        self.path = folder / "msprof"
        self.path.write_text(STAND_IN.format(python=sys.executable))
        self.path.chmod(0o755)
        self.output = folder / "out"

    def plan(self, **plan) -> None:
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def replays(self, name: str, **plan) -> None:
        """It measures this sample."""
        sample = next(self.samples.rglob(name))
        self.plan(copy=[[str(sample), name]], say=SAVED + name, **plan)

    @property
    def argv(self) -> list[str]:
        return json.loads((self.folder / "argv.json").read_text())

    def measure(self, *program: str, **more):
        options = more.pop("options", Options(output=self.output))
        return measure(program or ("./add_custom",), options, timeout_s=more.pop("timeout_s", 60), **more)


@pytest.fixture
def msprof(tmp_path, profiles, monkeypatch) -> StandIn:
    """The stand-in is the only msprof on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return StandIn(folder, profiles / "msopprof")


def test_a_measurement(msprof) -> None:
    msprof.replays(NAME)
    table = msprof.measure("./add_custom", "--size", "a b; rm -rf $HOME")
    assert [(row.name, row.total_us, row.core) for row in table.rows] == [("add_custom", 6.14, "AI_VECTOR_CORE")]
    assert table.unusable == ()
    assert msprof.argv == ["op", f"--output={msprof.output}", "./add_custom", "--size", "a b; rm -rf $HOME"]


def test_the_program_is_given_no_shell(msprof, tmp_path) -> None:
    """What would be a command to a shell reaches the program as its argument."""
    msprof.replays(NAME, run=True)
    got = tmp_path / "got"
    code = f"import sys; open({str(got)!r}, 'w').write(sys.argv[1])"
    msprof.measure(sys.executable, "-c", code, f"$(touch {tmp_path}/touched)")
    assert got.read_text() == f"$(touch {tmp_path}/touched)"
    assert not (tmp_path / "touched").exists()


def test_all_options(msprof) -> None:
    msprof.replays(NAME)
    options = Options(
        output=msprof.output, kernel_name="add*|mul_1", launch_count=5000, launch_skip_before_match=1000,
        replay_mode="range", warm_up=0, aic_metrics=("PipeUtilization", "Occupancy"), kill=True, mstx=True,
        mstx_include="step", dump=True, core_id="0|31",
    )  # fmt: skip
    msprof.measure(options=options)
    assert msprof.argv == [
        "op", f"--output={msprof.output}", "--kernel-name=add*|mul_1", "--launch-count=5000",
        "--launch-skip-before-match=1000", "--replay-mode=range", "--warm-up=0",
        "--aic-metrics=PipeUtilization,Occupancy", "--kill=on", "--mstx=on", "--dump=on", "--mstx-include=step",
        "--core-id=0|31", "./add_custom",
    ]  # fmt: skip


def test_a_simulation(msprof) -> None:
    name = "OPPROF_20260301121314151_GHIJKLMNOPQRSTUV"
    msprof.replays(name)
    table = msprof.measure(simulation=Simulation("Ascend910B1", timeout_minutes=5))
    assert msprof.argv[:4] == ["op", "simulator", "--soc-version=Ascend910B1", "--timeout=5"]
    assert (table.level, table.total_us) == ("instruction", pytest.approx(10.43))


def test_a_lowered_clock_is_found(msprof) -> None:
    msprof.replays(LOW)
    assert "800 MHz of 1650 MHz" in msprof.measure().unusable[0]


def test_only_this_run_counts(msprof) -> None:
    """Results of an earlier run lie in the same folder."""
    msprof.replays(LOW)
    msprof.measure()
    msprof.replays(NAME)
    assert msprof.measure().total_us == 6.14


def test_results_that_the_text_does_not_name(msprof) -> None:
    sample = next(msprof.samples.glob(NAME))
    msprof.plan(copy=[[str(sample), NAME]], say="")
    assert msprof.measure().total_us == 6.14
    other = NAME.replace("ABC", "XYZ"), NAME.replace("ABC", "XXX")
    msprof.plan(copy=[[str(sample), name] for name in other], say="")
    with pytest.raises(ProfilerFailed, match=r"2 new results in .* give each measurement an output folder of its own"):
        msprof.measure()


def test_results_elsewhere_are_not_believed(msprof, profiles) -> None:
    """A path in the text that isn't a new folder of this output."""
    elsewhere = next((profiles / "msopprof").glob(LOW))
    msprof.plan(say=f"[INFO]  Profiling results saved in {elsewhere}")
    with pytest.raises(ProfilerFailed, match="wrote no results"):
        msprof.measure()


LOG = (Path(__file__).parent.parent / "data/profiles/msopprof/console/low_freq_and_empty.log").read_text()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"say": LOG}, r"measured nothing \(No kernel profiling data was generated\. .*does the program run"),
        ({"say": "[WARN]  Profiling running finished. May cause generating performance files to fail."},
         "the program failed under msprof op: .* run it alone first"),
        ({"say": "[WARN]  No profiling data matched --kernel-name=nothing"}, "no operator of the program is called"),
        ({"say": "[ERROR] unknown option", "status": 255}, r"refused its arguments: \[ERROR\] unknown option"),
        ({"say": "", "status": 0}, "ended with status 0 and wrote no results to .*: it printed nothing"),
        ({"say": "Killed", "status": 1}, "ended with status 1 and wrote no results to .*: Killed"),
        ({"say": "", "signal": 9}, "died of signal 9"),
    ],
)  # fmt: skip
def test_each_failure_is_one_clear_error(msprof, plan, message) -> None:
    """Most of them end with status 0."""
    msprof.plan(**plan)
    with pytest.raises(ProfilerFailed, match=message) as caught:
        msprof.measure()
    assert "\n" not in str(caught.value)


def test_a_folder_without_operators(msprof, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    msprof.plan(copy=[[str(empty), NAME]], say=SAVED + NAME)
    with pytest.raises(ProfileError, match="no OpBasicInfo file in it"):
        msprof.measure()


def test_no_msprof(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProfilerFailed, match="msprof isn't on PATH: install CANN"):
        measure(["./add_custom"], Options(output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_no_msprof_that_runs(msprof) -> None:
    msprof.path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(ProfilerFailed, match=r"msprof isn't there|can't be started"):
        msprof.measure()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_time_limit_ends_the_whole_family(msprof) -> None:
    msprof.plan(sleep=600, say="")
    start = time.monotonic()
    with pytest.raises(ProfilerFailed, match=r"was stopped after 2 s, its last output: .*raise the time limit"):
        msprof.measure(timeout_s=2)
    assert time.monotonic() - start < 30
    child = int((msprof.folder / "child").read_text())
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_the_output_folder_is_as_msopprof_wants_it(msprof, tmp_path) -> None:
    msprof.replays(NAME)
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(ProfilerFailed, match="others may write in"):
        msprof.measure(options=Options(output=open_folder))
    link = tmp_path / "link"
    link.symlink_to(open_folder)
    with pytest.raises(ProfilerFailed, match="is a link"):
        msprof.measure(options=Options(output=link))
    msprof.measure()
    assert not stat.S_IMODE(msprof.output.stat().st_mode) & 0o022


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launch_count": 0}, "launch_count=0: msprof op takes 1 to 5000"),
        ({"launch_count": 5001}, "launch_count=5001"),
        ({"launch_count": True}, "launch_count=True"),
        ({"launch_skip_before_match": -1}, "takes 0 to 1000"),
        ({"warm_up": 501}, "takes 0 to 500"),
        ({"replay_mode": "twice"}, "takes kernel, application, range"),
        ({"replay_mode": "range"}, "needs mstx=True"),
        ({"mstx_include": "a"}, "needs mstx=True"),
        ({"kernel_name": "add; reboot"}, "takes letters, digits"),
        ({"kernel_name": "a||b"}, "takes letters, digits"),
        ({"kernel_name": ""}, "takes letters, digits"),
        ({"core_id": "0-3"}, "numbers joined by"),
        ({"aic_metrics": ("Pipes",)}, "aic_metrics has 'Pipes'"),
        ({"aic_metrics": ("Occupancy",), "older_chip": True}, "this chip's msprof op takes"),
        ({"output": "/" + "x" * 200}, "longer than the 200 characters"),
    ],
)
def test_options_are_checked(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**options)


def test_the_simulator_has_fewer_metrics() -> None:
    simulation = Simulation("Ascend910B1")
    with pytest.raises(ValueError, match="the simulator takes PipeUtilization"):
        command(["./a"], Options(aic_metrics=("Memory",)), simulation)
    with pytest.raises(ValueError, match="no program to simulate"):
        command([], Options(), simulation)
    assert command([], Options(), Simulation("Ascend910B1", export="dump"))[4].startswith("--export=/")
    with pytest.raises(ValueError, match="no program to measure"):
        command([], Options())
    with pytest.raises(ValueError, match="takes 1 to 2880"):
        Simulation("Ascend910B1", timeout_minutes=0)
    with pytest.raises(ValueError, match="the chip's name"):
        Simulation("Ascend 910")
