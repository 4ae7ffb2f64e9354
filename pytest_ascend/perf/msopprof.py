"""Measuring single operators on the card with msOpProf: ``msprof op [options] program [arguments]``.

msOpProf's exit status says almost nothing: it is 0 when nothing was measured and when the program crashed. So the text
and the files decide, and each way to fail is one sentence. Formats: :mod:`.opprof`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .child import Finished, ProfilerFailed, run
from .operators import OperatorTable
from .opprof import read_opprof
from .tabular import ProfileError

METRICS = frozenset(
    {"ArithmeticUtilization", "MemoryUB", "Memory", "MemoryL0", "L2Cache", "PipeUtilization", "ResourceConflictRatio",
     "Default", "BasicInfo", "Roofline"}
)  # fmt: skip
#: metrics of the chips A2, A3 and 950 only
LATER_METRICS = frozenset({"Occupancy", "TimelineDetail", "KernelScale", "Source", "MemoryDetail"})
SIMULATOR_METRICS = frozenset({"PipeUtilization", "ResourceConflictRatio"})
REPLAYS = ("kernel", "application", "range")

_KERNELS = re.compile(r"[A-Za-z0-9_*]+(\|[A-Za-z0-9_*]+)*")
_CORES = re.compile(r"\d+(\|\d+)*")
_INCLUDE = re.compile(r"[^\s'\"`;&$<>]+")
_SOC = re.compile(r"[A-Za-z0-9_]+")
_FOLDER = re.compile(r"OPPROF_\d+_[A-Z]{16}")

_RESULTS = re.compile(r"Profiling results saved in (.+?)\s*$", re.M)
_EMPTY = re.compile(r"Profiling results are empty\.?\s*(.*)")
_NO_MATCH = re.compile(r"No profiling data matched --kernel-name=?(\S*)")


@dataclass(frozen=True)
class Options:
    """The options of ``msprof op``, checked when they are made; the names are msOpProf's own.

    Attributes:
        output: the folder for the results; at most 200 characters, no link, and nobody else may write in it.
        kernel_name: which operators, by prefix: `[A-Za-z0-9_*]`, several joined by `|`; ``None``: the first one only.
        launch_count: how many operators are measured at most, 1 to 5000.
        launch_skip_before_match: how many are passed over first, 0 to 1000.
        replay_mode: `kernel`, `application`, or `range` (with ``mstx``).
        warm_up: how often an operator runs before it is measured, 0 to 500.
        aic_metrics: what is measured; empty: the tool's default.
        kill: stop the program when everything was measured.
        mstx, mstx_include: only within the program's mstx ranges; only those with this name.
        dump: keep the raw data.
        core_id: the cores, `0|31`.
        older_chip: the chip is a 910A or a 310P, which lacks some metrics.
    """

    output: str | os.PathLike[str] = "."
    kernel_name: str | None = None
    launch_count: int = 1
    launch_skip_before_match: int = 0
    replay_mode: str = "kernel"
    warm_up: int = 5
    aic_metrics: tuple[str, ...] = ()
    kill: bool = False
    mstx: bool = False
    mstx_include: str | None = None
    dump: bool = False
    core_id: str | None = None
    older_chip: bool = False

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("launch_count", self.launch_count, 1, 5000),
            ("launch_skip_before_match", self.launch_skip_before_match, 0, 1000),
            ("warm_up", self.warm_up, 0, 500),
        ):
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name}={value!r}: msprof op takes {least} to {most}")
        if self.replay_mode not in REPLAYS:
            raise ValueError(f"replay_mode={self.replay_mode!r}: msprof op takes {', '.join(REPLAYS)}")
        if self.replay_mode == "range" and not self.mstx:
            raise ValueError("replay_mode='range' needs mstx=True")
        if self.mstx_include is not None and not self.mstx:
            raise ValueError("mstx_include needs mstx=True")
        for name, text, form, wanted in (
            ("kernel_name", self.kernel_name, _KERNELS, "letters, digits, _ and *, several joined by |"),
            ("core_id", self.core_id, _CORES, "numbers joined by |"),
            ("mstx_include", self.mstx_include, _INCLUDE, "names without blanks and quotes, joined by |"),
        ):
            if text is not None and not form.fullmatch(text):
                raise ValueError(f"{name}={text!r}: msprof op takes {wanted}")
        known = METRICS if self.older_chip else METRICS | LATER_METRICS
        for metric in self.aic_metrics:
            if metric not in known:
                chip = "this chip's msprof op" if metric in LATER_METRICS else "msprof op"
                raise ValueError(f"aic_metrics has {metric!r}: {chip} takes {', '.join(sorted(known))}")
        if len(os.path.abspath(self.output)) > 200:
            raise ValueError("output is longer than the 200 characters that msprof op takes: give a shorter path")

    def argv(self) -> list[str]:
        """The options as arguments; what has its default is left out, but for the output."""
        given: list[str] = [f"--output={os.path.abspath(self.output)}"]
        if self.kernel_name is not None:
            given.append(f"--kernel-name={self.kernel_name}")
        for name in ("launch_count", "launch_skip_before_match", "replay_mode", "warm_up"):
            if getattr(self, name) != self.__dataclass_fields__[name].default:
                given.append(f"--{name.replace('_', '-')}={getattr(self, name)}")
        if self.aic_metrics:
            given.append(f"--aic-metrics={','.join(self.aic_metrics)}")
        given.extend(f"--{name}=on" for name in ("kill", "mstx", "dump") if getattr(self, name))
        if self.mstx_include is not None:
            given.append(f"--mstx-include={self.mstx_include}")
        if self.core_id is not None:
            given.append(f"--core-id={self.core_id}")
        return given


@dataclass(frozen=True)
class Simulation:
    """What ``msprof op simulator`` takes besides: the chip, a dump to run again, and its own limit in minutes."""

    soc_version: str
    export: str | os.PathLike[str] | None = None
    timeout_minutes: int | None = None

    def __post_init__(self) -> None:
        if not _SOC.fullmatch(self.soc_version):
            raise ValueError(f"soc_version={self.soc_version!r}: give the chip's name, for example Ascend910B1")
        minutes = self.timeout_minutes
        if minutes is not None and (type(minutes) is not int or not 1 <= minutes <= 2880):
            raise ValueError(f"timeout_minutes={minutes!r}: msprof op simulator takes 1 to 2880")

    def argv(self) -> list[str]:
        """These options as arguments."""
        given = [f"--soc-version={self.soc_version}"]
        if self.export is not None:
            given.append(f"--export={os.path.abspath(self.export)}")
        if self.timeout_minutes is not None:
            given.append(f"--timeout={self.timeout_minutes}")
        return given


def command(
    program: Sequence[str], options: Options, simulation: Simulation | None = None, *, executable: str = "msprof"
) -> list[str]:
    """The whole argument list.

    Raises:
        ValueError: there is no program, or the simulator doesn't have one of the metrics.
    """
    if simulation is None:
        if not program:
            raise ValueError("there is no program to measure")
        return [executable, "op", *options.argv(), *program]
    if unknown := sorted(set(options.aic_metrics) - SIMULATOR_METRICS):
        raise ValueError(f"aic_metrics has {unknown[0]!r}: the simulator takes {', '.join(sorted(SIMULATOR_METRICS))}")
    if not program and simulation.export is None:
        raise ValueError("there is no program to simulate")
    return [executable, "op", "simulator", *simulation.argv(), *options.argv(), *program]


def measure(
    program: Sequence[str],
    options: Options | None = None,
    *,
    simulation: Simulation | None = None,
    timeout_s: float = 600.0,
    executable: str = "msprof",
    environment: Mapping[str, str] | None = None,
) -> OperatorTable:
    """Run a program under msOpProf and read what it measured.

    One collection per device at a time: msOpProf itself refuses a second one.

    Args:
        program: the program and its arguments; no shell sees them.
        options, simulation: see there.
        timeout_s: seconds after which the program is stopped.
        executable: msprof's name on PATH, or its path.
        environment: the whole environment of the program; ``None`` takes this process's own.

    Returns:
        The table; ``unusable`` says where the chip ran at a lowered clock, and no baseline may be made of it then.

    Raises:
        ProfilerFailed: msprof isn't there, took too long, printed that it failed, or wrote nothing.
        ProfileError: what it wrote can't be read.
        ValueError: the options and the program don't go together.
        OSError: the output folder can't be made.
    """
    options = options or Options()
    found = shutil.which(executable, path=None if environment is None else environment.get("PATH"))
    if found is None:
        raise ProfilerFailed(
            f"{executable} isn't on PATH: install CANN's toolkit and source its set_env.sh, or measure without msOpProf"
        )
    folder = _own_folder(Path(options.output))
    before = _results(folder)
    asked = command(program, replace(options, output=folder), simulation, executable=found)
    finished = run(asked, timeout_s=timeout_s, environment=environment)
    written = _written(finished, folder, before)
    try:
        return read_opprof(written)
    except ProfileError as error:
        if finished.status == 0:
            raise
        raise ProfilerFailed(f"msprof op ended with status {finished.status} and {error}") from None


def _own_folder(folder: Path) -> Path:
    """The output folder as msOpProf wants it."""
    if folder.is_symlink():
        raise ProfilerFailed(f"{folder} is a link, and msprof op writes to no link: give the folder itself")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ProfilerFailed(f"others may write in {folder}, and msprof op refuses that: chmod go-w {folder}")
    return folder.resolve()


def _results(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if _FOLDER.fullmatch(name)}


def _written(finished: Finished, folder: Path, before: set[str]) -> Path:
    """The folder of this run's results, or the one reason why there is none."""
    output = finished.output
    if finished.status == 255:
        raise ProfilerFailed(f"msprof op refused its arguments: {finished.last_lines()}")
    if unmatched := _NO_MATCH.search(output):
        raise ProfilerFailed(
            f"no operator of the program is called {unmatched[1] or 'like that'}: give another kernel_name, or raise "
            "launch_count"
        )
    if empty := _EMPTY.search(output):
        why = empty[1].strip() or "no reason given"
        raise ProfilerFailed(f"msprof op measured nothing ({why}): does the program run an operator on the card?")
    if "May cause generating performance files to fail" in output:
        raise ProfilerFailed(
            f"the program failed under msprof op: {finished.last_lines()}; run it alone first, it has to succeed"
        )
    if finished.status < 0:
        raise ProfilerFailed(f"msprof op died of signal {-finished.status}: {finished.last_lines()}")
    new = sorted(_results(folder) - before)
    saved = _RESULTS.search(output)
    if saved and Path(saved[1]).parent == folder and Path(saved[1]).name in new:
        return folder / Path(saved[1]).name
    if len(new) == 1:
        return folder / new[0]
    if new:
        raise ProfilerFailed(
            f"there are {len(new)} new results in {folder} and msprof op doesn't say which is its own: give each "
            "measurement an output folder of its own"
        )
    raise ProfilerFailed(
        f"msprof op ended with status {finished.status} and wrote no results to {folder}: {finished.last_lines()}"
    )
