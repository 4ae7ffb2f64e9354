"""The profilers' files that are summed up already: op_statistic, api_statistic, operator_details, step_trace_time.

All times in these files are microseconds. Columns are found by name, so a `Device_id` in front or a missing column at
the end changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .operators import OperatorRow, OperatorTable, known_sum
from .tabular import MOST_OPERATORS, Cells, read_rows, refuse


class Sums:
    """Rows added up under what makes them the same operator."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: dict[tuple[str, ...], OperatorRow] = {}
        self._counted: dict[tuple[str, ...], int] = {}  # calls with counters of units

    def add(self, row: OperatorRow, line: int | None = None) -> None:
        """Add the calls and times of one row."""
        key = (row.name, row.kind, row.core, row.shapes, row.dtypes, row.device)
        known = self.rows.get(key)
        if known is None:
            if len(self.rows) >= MOST_OPERATORS:
                refuse(
                    self.path, line, f"there are more than {MOST_OPERATORS:,} different operators",
                    "give a profile of fewer steps",
                )  # fmt: skip
            self.rows[key] = row
            self._counted[key] = row.calls if row.busy else 0
            return
        before, now = self._counted[key], row.calls if row.busy else 0
        self._counted[key] = before + now
        self.rows[key] = replace(
            row,
            calls=known.calls + row.calls,
            total_us=known.total_us + row.total_us,
            device_us=known_sum((known.device_us, row.device_us)),
            host_us=known_sum((known.host_us, row.host_us)),
            wait_us=known_sum((known.wait_us, row.wait_us)),
            busy={
                unit: (known.busy.get(unit, 0.0) * before + row.busy.get(unit, 0.0) * now) / (before + now)
                for unit in {**known.busy, **row.busy}
            },
        )


def read_op_statistic(path: str | os.PathLike[str]) -> OperatorTable:
    """op_statistic.csv: one row per operator type and core. Its `Ratio(%)` is worked out again from the times.

    Raises:
        ProfileError: a line can't be read.
    """
    notes: list[str] = []
    sums = Sums(os.fspath(path))
    for cells in read_rows(path, notes=notes):
        kind, took = cells.text("OP Type").rstrip("_"), cells.time("Total Time(us)")
        _named(cells, kind, "OP Type")
        sums.add(
            OperatorRow(
                kind,
                kind,
                cells.count("Count"),
                took,
                device_us=took,
                core=cells.text("Core Type"),
                device=cells.text("Device_id"),
            ),
            cells.line,
        )
    return OperatorTable.of(sums.rows.values(), os.fspath(path), "kernel", notes=notes)


def read_api_statistic(path: str | os.PathLike[str]) -> OperatorTable:
    """api_statistic.csv: the host's calls of the runtime (`runtime`, `acl`, `node`, ...), each as often as it was made.

    Calls nest: an `acl` call's time holds the `runtime` calls that it makes, so the sum is more than the host's time.

    Raises:
        ProfileError: a line can't be read.
    """
    notes = ["calls of different levels nest, so their sum is more than the host's time"]
    sums = Sums(os.fspath(path))
    for cells in read_rows(path, notes=notes):
        name, took = cells.text("API Name"), cells.time("Time(us)")
        _named(cells, name, "API Name")
        sums.add(OperatorRow(name, cells.text("Level") or name, cells.count("Count"), took, host_us=took), cells.line)
    return OperatorTable.of(sums.rows.values(), os.fspath(path), "api", notes=notes)


def read_operator_details(path: str | os.PathLike[str]) -> OperatorTable:
    """operator_details.csv: one row per call of a torch operator, with its own time on the host and on the device.

    Only the `Self` columns are added up; the `Total` columns hold the operators that were called inside.

    Raises:
        ProfileError: a line can't be read.
    """
    notes: list[str] = []
    sums = Sums(os.fspath(path))
    for cells in read_rows(path, multiline=("Call Stack", "Input Shapes"), notes=notes):
        name = cells.text("Name")
        _named(cells, name, "Name")
        host, device = cells.time("Host Self Duration(us)"), cells.time("Device Self Duration(us)")
        shapes = " ".join(cells.text("Input Shapes").replace('"', "").split())
        sums.add(OperatorRow(name, name, 1, host + device, device, host, shapes=shapes), cells.line)
    return OperatorTable.of(sums.rows.values(), os.fspath(path), "operator", notes=notes)


@dataclass(frozen=True)
class StepTime:
    """One step of a training on one device; times in microseconds.

    `computing_us`, `exposed_communication_us` (not hidden behind computing) and `free_us` add up to the step.
    """

    step: str
    device: str
    computing_us: float
    exposed_communication_us: float
    overlapped_us: float
    communication_us: float
    free_us: float
    stage_us: float | None = None
    bubble_us: float | None = None
    preparing_us: float | None = None


def read_step_times(path: str | os.PathLike[str], notes: list[str] | None = None) -> tuple[StepTime, ...]:
    """step_trace_time.csv, one entry per step and device.

    Raises:
        ProfileError: a line can't be read.
    """
    steps = []
    for cells in read_rows(path, notes=[] if notes is None else notes):
        steps.append(
            StepTime(
                cells.text("Step"),
                cells.text("Device_id"),
                cells.time("Computing"),
                cells.time("Communication(Not Overlapped)"),
                cells.time("Overlapped"),
                cells.time("Communication"),
                cells.time("Free"),
                cells.optional_time("Stage"),
                cells.optional_time("Bubble"),
                cells.optional_time("Preparing"),
            )
        )
    return tuple(steps)


def step_table(steps: Iterable[StepTime], source: str, notes: Iterable[str] = ()) -> OperatorTable:
    """What the steps spent their time on, as a table: computing, communication that nothing hides, and nothing."""
    sums = Sums(source)
    count = 0
    for step in steps:
        count += 1
        for name, took in (
            ("Computing", step.computing_us),
            ("Communication(Not Overlapped)", step.exposed_communication_us),
            ("Free", step.free_us),
        ):
            sums.add(OperatorRow(name, name, 1, took, device_us=took, device=step.device))
    return OperatorTable.of(sums.rows.values(), source, "step", steps=count, notes=notes)


def read_step_trace(path: str | os.PathLike[str]) -> OperatorTable:
    """step_trace_time.csv as a table of the three parts that add up to a step.

    Raises:
        ProfileError: a line can't be read.
    """
    notes: list[str] = []
    steps = read_step_times(path, notes)
    return step_table(steps, os.fspath(path), notes)


def _named(cells: Cells, name: str, column: str) -> None:
    if not name:
        refuse(cells.header.path, cells.line, f"{column} is empty", "profile again, or correct the line")
