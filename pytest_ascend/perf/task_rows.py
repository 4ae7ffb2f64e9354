"""kernel_details.csv and op_summary_*.csv: one line per task on the device, often hundreds of megabytes of them.

The lines are read as bytes and added up at once, so memory holds the different operators and never the file. A cell of
these files has no line break, so a line is a row, and a broken one can't swallow its neighbour.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .operators import OperatorRow, OperatorTable, stem_of
from .tabular import (
    CUT_OFF,
    LONGEST_US,
    MOST_OPERATORS,
    Header,
    cells_of,
    check_width,
    checked_time,
    header_of,
    lines_of,
    refuse,
    text_of,
    told,
)

#: From so many calls of an operator the counters of the core's units are read; they only tell what limits it, and
#: they are half of each line.
COUNTED_CALLS = 64

#: After so many different names, those that differ in their counters only are added up.
FOLDED = 20_000

#: The counters of a core's units that say what an operator waits for, under the name of the unit.
UNITS = {
    "cube": ("aic_mac_time(us)", "aic_cube_time(us)"),
    "vector": ("aiv_vec_time(us)", "aic_vec_time(us)"),
    "scalar": ("aic_scalar_time(us)", "aiv_scalar_time(us)"),
    "mte1": ("aic_mte1_time(us)",),
    "mte2": ("aic_mte2_time(us)", "aiv_mte2_time(us)"),
    "mte3": ("aic_mte3_time(us)", "aiv_mte3_time(us)"),
    "fixpipe": ("aic_fixpipe_time(us)",),
}

NAME = ("Name", "Op Name")
KIND = ("Type", "OP Type")
CORE = ("Accelerator Core", "Task Type")
DURATION = ("Duration(us)", "Task Duration(us)")
WAIT = ("Wait Time(us)", "Task Wait Time(us)")


def is_task_file(header: Header) -> bool:
    """Whether a CSV file with this header holds one line per task."""
    return header.find(*NAME) is not None and header.find(*DURATION) is not None and header.find(*CORE) is not None


@dataclass(slots=True)
class _Group:
    identity: tuple[str, ...]
    calls: int = 0
    device_us: float = 0.0
    wait_us: float = 0.0
    counted: int = 0
    busy: dict[str, float] = field(default_factory=dict)

    def add(self, other: _Group) -> None:
        self.calls += other.calls
        self.device_us += other.device_us
        self.wait_us += other.wait_us
        self.counted += other.counted
        for unit, took in other.busy.items():
            self.busy[unit] = self.busy.get(unit, 0.0) + took


class _Columns:
    """Where in a line what is needed stands."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.width = len(header.names)
        self.name, self.kind, self.core = header.need(*NAME), header.need(*KIND), header.need(*CORE)
        self.duration, self.wait = header.need(*DURATION), header.need(*WAIT)
        self.step, self.device = header.find("Step Id"), header.find("Device_id", "Device Id")
        self.inputs = tuple(header.find(f"Input {what}") for what in ("Shapes", "Data Types", "Formats"))
        self.units = {
            unit: tuple(header.index[name] for name in names if header.has(name)) for unit, names in UNITS.items()
        }
        plain = [self.name, self.kind, self.core, self.duration, self.wait, self.step, self.device]
        #: the last column that every line is split for, before and after the quoted lists of shapes are looked at
        self.last_plain = max(place for place in plain if place is not None)
        self.last = max(self.last_plain, *(place for place in self.inputs if place is not None), 0)

    def identity(self, cells: list[str]) -> tuple[str, ...]:
        """What makes a task the same operator: name without counters, type, core, device and inputs."""
        name, kind = told(cells[self.name]), told(cells[self.kind])
        kind = "" if kind == "0" else kind.rstrip("_")
        if not kind or not name.endswith(kind):
            name = stem_of(name)
        places = (self.core, self.device, *self.inputs)
        rest = ("" if place is None else told(cells[place].replace('"', "")) for place in places)
        return name, kind or name, *rest


class _Lists:
    """How many commas stand before and after each quoted part that was seen.

    From the first three quotes to the last, a line holds the lists of shapes with what is between them. A few hundred
    of these texts come back in every line, so the csv module takes each apart once.
    """

    def __init__(self, columns: _Columns) -> None:
        self.columns = columns
        self.around: dict[bytes, tuple[int, int]] = {}

    def cells(self, raw: bytes) -> tuple[bytes, list[bytes]] | None:
        """The quoted part and the cells before it, or ``None`` where the csv module has to look."""
        start = raw.find(b'"""')
        if start < 0:
            cells = raw.split(b",")
            if len(cells) != self.columns.width or b'"' in raw or b"\r" in raw[:-2]:
                return None
            return b",".join([cells[place] for place in self.columns.inputs if place is not None]), cells
        end = raw.rfind(b'"""') + 3
        quoted, before, after = raw[start:end], raw[:start], raw[end:]
        around = self.around.get(quoted)
        if around is None or around != (before.count(b","), after.count(b",")):
            return None
        if b'"' in before or b'"' in after or b"\r" in before:
            return None
        return quoted, before.split(b",", self.columns.last_plain + 1)

    def learn(self, raw: bytes) -> None:
        """Remember the quoted part of a line that the csv module has read and found right."""
        start, end = raw.find(b'"""'), raw.rfind(b'"""') + 3
        before, quoted, after = raw[:start], raw[start:end], raw[end:]
        whole = before.endswith(b",") and (after.startswith(b",") or not after.strip())
        if 0 <= start < end - 3 and whole and b'"' not in before + after and len(self.around) < MOST_OPERATORS:
            commas = before.count(b",")
            if commas > self.columns.last_plain:
                self.around[quoted] = commas, after.count(b",")


def read_tasks(path: str | os.PathLike[str]) -> OperatorTable:
    """The table of kernel_details.csv or op_summary_*.csv of any version and level.

    Tasks with the same name, type, core, inputs and device are one row. `Step Id` and `Device_id` are used where they
    are there; a step on two devices counts as two.

    Raises:
        ProfileError: a line can't be read.
        OSError: the file can't be opened.
    """
    path = os.fspath(path)
    groups: dict[object, _Group] = {}
    merged: dict[tuple[str, ...], _Group] = {}
    steps: set[tuple[bytes, bytes]] = set()
    raw = b"\n"
    with open(path, "rb") as file:
        lines = lines_of(path, file)
        columns = _Columns(header_of(path, next(lines, b"")))
        lists = _Lists(columns)
        name, kind, core, device, step = columns.name, columns.kind, columns.core, columns.device, columns.step
        duration, wait = columns.duration, columns.wait
        for number, raw in enumerate(lines, 2):
            split = lists.cells(raw)
            if split is None:
                careful = cells_of(path, number, raw)
                if not careful:
                    continue
                check_width(path, number, len(careful), columns.width)
                lists.learn(raw)
                cells = [cell.encode() for cell in careful]
                key: object = columns.identity(careful)
            else:
                quoted, cells = split
                key = quoted, cells[name], cells[kind], cells[core], b"" if device is None else cells[device]
            times = cells[duration], cells[wait]
            try:
                took, waited = float(times[0]), float(times[1])
                good = 0.0 <= took < LONGEST_US and 0.0 <= waited < LONGEST_US
            except ValueError:
                good = False
            if not good or b"_" in times[0] or b"_" in times[1]:
                took, waited = _times(columns, number, times)
            group = groups.get(key)
            if group is None:
                if len(groups) >= FOLDED:
                    _fold(groups, merged)
                    if len(merged) > MOST_OPERATORS:
                        refuse(path, number, f"there are more than {MOST_OPERATORS:,} different operators",
                               "give a profile of fewer steps")  # fmt: skip
                group = groups[key] = _Group(columns.identity(cells_of(path, number, raw)))
            group.calls += 1
            group.device_us += took
            group.wait_us += waited
            if group.calls <= COUNTED_CALLS:
                _count(group, columns, number, raw)
            if step is not None or device is not None:
                steps.add((b"" if step is None else cells[step], b"" if device is None else cells[device]))
    _fold(groups, merged)
    rows = [_row(group) for group in merged.values()]
    notes = [*_untyped(rows), *([] if raw.endswith(b"\n") else [CUT_OFF])]
    return OperatorTable.of(rows, path, "kernel", steps=len(steps), notes=notes)


def _fold(groups: dict[object, _Group], merged: dict[tuple[str, ...], _Group]) -> None:
    """Add the groups to those of the same operator: names such as `hcom_allReduce__865_17_1` differ in every call."""
    for group in groups.values():
        merged.setdefault(group.identity, _Group(group.identity)).add(group)
    groups.clear()


def _times(columns: _Columns, line: int, cells: tuple[bytes, bytes]) -> tuple[float, float]:
    """Duration and wait of a line whose cells aren't both plain numbers: an empty wait counts as none."""
    path, names = columns.header.path, columns.header.names
    took, waited = (text_of(path, line, cell) for cell in cells)
    return (
        checked_time(path, line, names[columns.duration], took),
        checked_time(path, line, names[columns.wait], waited) if told(waited) else 0.0,
    )


def _count(group: _Group, columns: _Columns, line: int, raw: bytes) -> None:
    """Add the counters of one call."""
    if not any(columns.units.values()):
        return
    header = columns.header
    cells = cells_of(header.path, line, raw)
    check_width(header.path, line, len(cells), columns.width)
    found = False
    for unit, places in columns.units.items():
        for place in places:
            if told(cells[place]):
                found = True
                took = checked_time(header.path, line, header.names[place], cells[place])
                group.busy[unit] = group.busy.get(unit, 0.0) + took
    group.counted += found


def _row(group: _Group) -> OperatorRow:
    name, kind, core, device, shapes, dtypes, formats = group.identity
    return OperatorRow(
        name=name,
        kind=kind,
        calls=group.calls,
        total_us=group.device_us,
        device_us=group.device_us,
        wait_us=group.wait_us,
        core=core,
        shapes=shapes,
        dtypes=dtypes,
        formats=formats,
        device=device,
        busy={unit: took / group.counted for unit, took in group.busy.items() if took},
    )


def _untyped(rows: list[OperatorRow]) -> tuple[str, ...]:
    if rows and not any(row.core for row in rows):
        return ("the profile has no types and cores of operators: profile with ProfilerLevel.Level1 to get them",)
    return ()
