"""Reading what msOpProf writes: an OPPROF_* folder of any layout and chip, and the simulator's.

One operator lies in the folder itself, several in `<operator>/<n>/`, several devices in `device<N>/` above that. An
operator's time is in OpBasicInfo; the other files hold one line per block of it. Columns differ between chips and are
found by name; a value that a chip doesn't have is `NA`, in older versions `N/A`. Times are microseconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .operators import OperatorRow, OperatorTable
from .summaries import Sums
from .tabular import checked_time, plain_number, read_rows, refuse, told
from .task_rows import UNITS

#: msOpProf's own limit: a chip that runs at this part of its rated frequency or below measures its clock, not the code.
SLOW_CLOCK = 0.95

_METRIC = re.compile(r"^([A-Za-z0-9]+?)(?:_\d{17})?\.csv$")
_DEEPEST = 6
_MOST_FOLDERS = 20_000


@dataclass(frozen=True)
class OperatorRun:
    """One run of one operator as msOpProf measured it.

    Attributes:
        name, kind: its name, and `vector`, `cube`, `mix` or `AiCore`.
        duration_us: the whole task, microseconds.
        blocks: how many blocks it was cut into; ``None`` where that isn't told.
        device: the number of the device.
        current_mhz, rated_mhz: the chip's frequency while it ran, and what it is made for; ``None`` where not told.
        files: the other files of this run by metric (`PipeUtilization`, `Memory`, ...): see :func:`read_metric`.
    """

    name: str
    kind: str
    duration_us: float
    blocks: int | None
    device: str
    current_mhz: float | None
    rated_mhz: float | None
    files: dict[str, str]

    @property
    def slow_clock(self) -> str:
        """Why this run is no evidence, or `""`: the frequency guard."""
        if self.current_mhz is None or not self.rated_mhz or self.current_mhz > SLOW_CLOCK * self.rated_mhz:
            return ""
        on = f" on device {self.device}" if self.device else ""
        return (
            f"{self.name} ran{on} at {self.current_mhz:g} MHz of {self.rated_mhz:g} MHz: times at a lowered clock "
            "are no data; let the chip cool, or set its frequency, and measure again"
        )


def is_basic_info(name: str) -> bool:
    """Whether a file's name is that of an OpBasicInfo file."""
    matched = _METRIC.match(name)
    return matched is not None and matched[1] == "OpBasicInfo"


def read_opprof(path: str | os.PathLike[str]) -> OperatorTable:
    """The table of an OPPROF_* folder, of a folder inside of it, or of one OpBasicInfo file.

    A simulator's folder gives its instructions (level `instruction`). Runs at a lowered clock make the table unusable.

    Raises:
        ProfileError: nothing that msOpProf writes is there, or a line can't be read.
    """
    path = os.fspath(path)
    if os.path.isdir(path) and (simulated := sorted(_files(path, "_instr_exe.csv"))):
        return _simulated(path, simulated)
    if os.path.isdir(path) and (simulated := sorted(_files(path, "_code_exe.csv"))):
        return _simulated(path, simulated)
    runs = read_runs(path)
    sums = Sums(path)
    for run in runs:
        busy = _busy(run)
        sums.add(
            OperatorRow(
                run.name, run.kind, 1, run.duration_us, device_us=run.duration_us, core=_core(run.kind),
                device=run.device, busy=busy,
            )
        )  # fmt: skip
    notes = []
    if any(run.current_mhz is None or not run.rated_mhz for run in runs):
        notes.append("the chip's frequency isn't told, so nobody knows whether it was lowered")
    unusable = [run.slow_clock for run in runs if run.slow_clock]
    return OperatorTable.of(sums.rows.values(), path, "kernel", unusable=unusable, notes=notes)


def read_runs(path: str | os.PathLike[str]) -> tuple[OperatorRun, ...]:
    """Every run of every operator in an OPPROF_* folder, in the order of the folders' names.

    Raises:
        ProfileError: no OpBasicInfo file is there, or a line of one can't be read.
    """
    path = os.fspath(path)
    basics = sorted(_files(path, ".csv", is_basic_info)) if os.path.isdir(path) else [path]
    if not basics:
        refuse(path, None, "there is no OpBasicInfo file in it, so msOpProf measured no operator",
               "look at what msprof op printed")  # fmt: skip
    runs: list[OperatorRun] = []
    for basic in basics:
        runs.extend(_runs(basic))
    return tuple(runs)


def _files(folder: str, ending: str, wanted: Callable[[str], bool] = bool) -> Iterator[str]:
    """Files of the folder and below, bounded in depth and number, without following links."""
    top = folder.rstrip("/").count("/")
    for count, (where, below, names) in enumerate(os.walk(folder)):
        if count >= _MOST_FOLDERS:
            refuse(folder, None, f"it holds more than {_MOST_FOLDERS:,} folders", "give one OPPROF_* folder")
        if where.count("/") - top >= _DEEPEST:
            below.clear()
        for name in names:
            if name.endswith(ending) and wanted(name):
                yield os.path.join(where, name)


def _runs(path: str) -> Iterator[OperatorRun]:
    folder = Path(path).parent
    files = {
        matched[1]: str(folder / name)
        for name in sorted(os.listdir(folder))
        if (matched := _METRIC.match(name)) and matched[1] != "OpBasicInfo"
    }
    above = re.search(r"/device(\d+)(?:/|$)", f"/{folder}")
    count = 0
    for cells in read_rows(path, notes=[]):
        count += 1
        name = cells.text("Op Name")
        if not name:
            refuse(path, cells.line, "Op Name is empty", "profile again, or correct the line")
        blocks = cells.text("Block Dim", "Block Num")
        yield OperatorRun(
            name,
            cells.text("Op Type") or name,
            cells.time("Task Duration(us)"),
            cells.count("Block Dim", "Block Num") if blocks else None,
            cells.text("Device Id", "Device_id") or (above[1] if above else ""),
            cells.optional_time("Current Freq"),
            cells.optional_time("Rated Freq"),
            files,
        )
    if not count:
        refuse(path, None, "it has a header and no operator", "look at what msprof op printed")


def _core(kind: str) -> str:
    return {"vector": "AI_VECTOR_CORE", "cube": "AI_CORE", "mix": "MIX_AIC", "aicore": "AI_CORE"}.get(kind.lower(), "")


def _busy(run: OperatorRun) -> dict[str, float]:
    """How long each unit was busy, as a mean over the cores that have it; of the run's PipeUtilization file."""
    path = run.files.get("PipeUtilization")
    if path is None:
        return {}
    sums: dict[str, list[float]] = {}
    for cells in read_rows(path, notes=[]):
        for unit, names in UNITS.items():
            for name in names:
                took = cells.optional_time(name)
                if took is not None:
                    sums.setdefault(unit, []).append(took)
    return {unit: sum(times) / len(times) for unit, times in sums.items() if any(times)}


def read_metric(path: str | os.PathLike[str]) -> tuple[dict[str, float | str | None], ...]:
    """One of msOpProf's other files (PipeUtilization, Memory, L2Cache, ...): each line by its columns' names.

    Numbers are floats, `NA` and `N/A` are ``None``, the rest (`vector0`) stays text.

    Raises:
        ProfileError: a line can't be read, or a number is negative or not finite.
    """
    lines = []
    for cells in read_rows(path, notes=[]):
        line: dict[str, float | str | None] = {}
        for place, (name, value) in enumerate(zip(cells.header.names, cells.values, strict=True)):
            if name in ("block_id", "sub_block_id"):
                line[name] = told(value)
            elif not told(value):
                line[name] = None
            else:
                number = plain_number(value)
                if number is None or number < 0:
                    checked_time(path, cells.line, cells.header.label(place), value)
                line[name] = number
        lines.append(line)
    return tuple(lines)


def _simulated(folder: str, files: list[str]) -> OperatorTable:
    sums = Sums(folder)
    for path in files:
        _add_simulated(path, sums)
    notes = [f"from {len(files)} simulated core(s); a simulator's cycles are no time of a chip"]
    return OperatorTable.of(sums.rows.values(), folder, "instruction", notes=notes)


def read_simulated(path: str | os.PathLike[str]) -> OperatorTable:
    """One `*_instr_exe.csv` (a row per instruction, its unit as the type) or `*_code_exe.csv` (a row per source line).

    Raises:
        ProfileError: a line can't be read.
    """
    sums = Sums(os.fspath(path))
    _add_simulated(os.fspath(path), sums)
    return OperatorTable.of(sums.rows.values(), os.fspath(path), "instruction")


def _add_simulated(path: str, sums: Sums) -> None:
    core = Path(path).name.removesuffix(".csv").removesuffix("_instr_exe").removesuffix("_code_exe")
    for cells in read_rows(path, notes=[]):
        name = cells.text("instr", "code")
        if not name:
            refuse(path, cells.line, "the instruction has no name", "simulate again, or correct the line")
        took = cells.time("running_time(us)")
        kind = cells.text("pipe") or "source line"
        sums.add(OperatorRow(name, kind, cells.count("call_count"), took, device_us=took, core=core), cells.line)
