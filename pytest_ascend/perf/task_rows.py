"""kernel_details.csv and op_summary_*.csv: one line per task on the device, often hundreds of megabytes of them.

The lines are read as bytes and added up at once, so memory holds the different operators and never the file. A cell of
these files has no line break, so a line is a row, and a broken one can't swallow its neighbour.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from .operators import OperatorRow, OperatorTable, stem_of
from .tabular import (
    CUT_OFF,
    LONGEST_LINE,
    LONGEST_US,
    MOST_OPERATORS,
    Header,
    blocks_of,
    cells_of,
    check_width,
    checked_time,
    ends_well,
    header_of,
    refuse,
    text_of,
    told,
)

#: From so many calls of an operator the counters of the core's units are read; they only tell what limits it, and
#: they are half of each line.
COUNTED_CALLS = 8

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
        #: the last column that has to stand before the quoted lists of shapes for a line to be split quickly
        self.last_plain = max(place for place in plain if place is not None)
        self.plain_key = [place for place in (self.name, self.kind, self.core, self.device) if place is not None]
        self.step_key = [place for place in (self.step, self.device) if place is not None]

    def has_no_counters(self, cells: list[bytes]) -> bool:
        """Whether all counters of a line without quotes are `N/A`, as those of collective calls are."""
        return all(cells[place] == b"N/A" for places in self.units.values() for place in places)

    def identity(self, cell: Callable[[int], str]) -> tuple[str, ...]:
        """What makes a task the same operator: name without counters, type, core, device and inputs."""
        name, kind = told(cell(self.name)), told(cell(self.kind))
        kind = "" if kind == "0" else kind.rstrip("_")
        if not kind or not name.endswith(kind):
            name = stem_of(name)
        places = (self.core, self.device, *self.inputs)
        rest = ("" if place is None else told(cell(place).replace('"', "")) for place in places)
        return name, kind or name, *rest


class _Alike:
    """All lines with the same quoted part: how many cells stand before and commas after it, and their operators."""

    __slots__ = ("after", "before", "groups")

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = before, after
        self.groups: dict[object, _Group] = {}


class _Reader:
    """Adds up the lines of one file.

    From the first quote to the last, a line holds the lists of shapes with what is between them. A few hundred of these
    texts come back in every line, so the csv module takes each apart once; another line with the same text and as many
    commas on both sides splits at its commas.
    """

    def __init__(self, header: Header) -> None:
        self.path, self.columns = header.path, _Columns(header)
        self.alike: dict[bytes, _Alike] = {}
        self.careful: dict[object, _Group] = {}
        self.unquoted: dict[object, _Group] = {}
        self.merged: dict[tuple[str, ...], _Group] = {}
        self.steps: set[object] = set()
        self.loose = 0  # groups that aren't in `merged` yet

    def read(self, blocks: Iterable[list[bytes]]) -> None:
        """Add up these lines, the second of the file and those that follow.

        This loop is what reading costs: less for a line than the csv module takes to split it.
        """
        columns, alike, unquoted, width = self.columns, self.alike, self.unquoted, self.columns.width
        name, core, duration, wait = columns.name, columns.core, columns.duration, columns.wait
        key_of = itemgetter(*columns.plain_key)
        all_of = itemgetter(*columns.plain_key, *(place for place in columns.inputs if place is not None))
        step_of = itemgetter(*columns.step_key) if columns.step_key else None
        last_step: object = None
        number = 1
        for block in blocks:
            for raw in block:
                number += 1
                first = raw.find(b'"')
                if first < 0:
                    cells = raw.split(b",")
                    groups = unquoted if len(cells) == width else None
                    if groups is not None:
                        key = all_of(cells)
                        if cells[core] == b"COMMUNICATION":
                            key = cells[name].rstrip(b"_0123456789"), *key[1:]
                else:
                    end = raw.rfind(b'"') + 1
                    known = alike.get(raw[first:end])
                    groups = None
                    if known is not None and raw.count(b",", end) == known.after:
                        cells = raw[:first].split(b",")
                        if len(cells) == known.before:
                            groups, key = known.groups, key_of(cells)
                if groups is None:
                    found = self._carefully(number, raw)
                    if found is None:
                        continue
                    groups, key, cells = found
                waits = cells[wait]
                times = cells[duration]
                try:
                    took, waited = float(times), float(waits)
                except ValueError:
                    took = waited = -1.0
                good = 0.0 <= took < LONGEST_US and 0.0 <= waited < LONGEST_US
                if not good or times.find(b"_") >= 0 or waits.find(b"_") >= 0:
                    took, waited = _times(columns, number, times, waits)
                group = groups.get(key)
                if group is None:
                    group = groups[key] = self._group(number, raw, cells if groups is unquoted else None)
                group.device_us += took
                group.wait_us += waited
                group.calls = calls = group.calls + 1
                if calls <= COUNTED_CALLS and not (groups is unquoted and columns.has_no_counters(cells)):
                    _count(group, columns, number, raw)
                if step_of is not None and (step := step_of(cells)) != last_step:
                    last_step = step
                    self.steps.add(step)
            if self.loose > FOLDED:
                self.fold(number)
        self.fold(None)

    def _carefully(self, number: int, raw: bytes) -> tuple[dict[object, _Group], object, list[bytes]] | None:
        """A line that the csv module has to look at: its group's place and its cells; ``None`` for an empty line."""
        columns = self.columns
        cells = cells_of(self.path, number, raw)
        if not cells:
            return None
        check_width(self.path, number, len(cells), columns.width)
        first, end = raw.find(b'"'), raw.rfind(b'"') + 1
        quoted, commas = raw[first:end], raw.count(b",", 0, max(first, 0))
        lists = quoted.startswith(b'"""') and quoted.endswith(b'"""')
        apart = raw[first - 1 : first] == b"," and raw[end : end + 1] in (b",", b"\r", b"")
        if lists and apart and commas > columns.last_plain and len(self.alike) < FOLDED:
            self.alike[quoted] = _Alike(commas + 1, raw.count(b",", end))
        return self.careful, columns.identity(cells.__getitem__), [cell.encode() for cell in cells]

    def _group(self, number: int, raw: bytes, cells: list[bytes] | None) -> _Group:
        """A new group; ``cells`` are all cells of a line without quotes, or ``None``."""
        self.loose += 1
        if cells is None:
            return _Group(self.columns.identity(cells_of(self.path, number, raw).__getitem__))
        text_of(self.path, number, raw)
        if b"\r" in raw[:-1]:
            refuse(self.path, number, "there is a line break inside the row", "profile again, or correct the line")
        return _Group(self.columns.identity(lambda place: cells[place].decode()))

    def fold(self, number: int | None) -> None:
        """Add the groups to those of the same operator: names like `hcom_allReduce__865_17_1` differ in every call."""
        for groups in (self.careful, self.unquoted, *(alike.groups for alike in self.alike.values())):
            for group in groups.values():
                known = self.merged.get(group.identity)
                if known is None:
                    self.merged[group.identity] = group
                else:
                    known.add(group)
            groups.clear()
        self.loose = 0
        if len(self.merged) > MOST_OPERATORS:
            refuse(self.path, number, f"there are more than {MOST_OPERATORS:,} different operators",
                   "give a profile of fewer steps")  # fmt: skip


def read_tasks(path: str | os.PathLike[str]) -> OperatorTable:
    """The table of kernel_details.csv or op_summary_*.csv of any version and level.

    Tasks with the same name, type, core, inputs and device are one row. `Step Id` and `Device_id` are used where they
    are there; a step on two devices counts as two.

    Raises:
        ProfileError: a line can't be read.
        OSError: the file can't be opened.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        header = header_of(path, file.readline(LONGEST_LINE))
        reader = _Reader(header)
        reader.read(blocks_of(path, file))
        ended = ends_well(file)
    rows = [_row(group) for group in reader.merged.values()]
    notes = [*_untyped(rows), *([] if ended else [CUT_OFF])]
    return OperatorTable.of(rows, path, "kernel", steps=len(reader.steps), notes=notes)


def _times(columns: _Columns, line: int, *cells: bytes) -> tuple[float, float]:
    """Duration and wait of a line whose cells aren't both plain numbers: an empty wait counts as none."""
    path, label = columns.header.path, columns.header.label
    took, waited = (text_of(path, line, cell) for cell in cells)
    return (
        checked_time(path, line, label(columns.duration), took),
        checked_time(path, line, label(columns.wait), waited) if told(waited) else 0.0,
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
                took = checked_time(header.path, line, header.label(place), cells[place])
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
