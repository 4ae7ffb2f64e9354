"""The profilers' database form: ascend_pytorch_profiler_<rank>.db, msprof_*.db and analysis.db.

A database is untrusted: it is opened read-only, its schema isn't trusted to call functions, only real tables are read,
and the time that a query may take is bounded. Times in `TASK` are nanoseconds, in `StepTraceTime` microseconds and in
`CommAnalyzerTime` milliseconds; all leave here as microseconds.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from .operators import OperatorRow, OperatorTable, stem_of
from .summaries import StepTime, Sums, step_table
from .tabular import LONGEST_US, checked_time, refuse, shown, told

MAGIC = b"SQLite format 3\x00"
#: seconds that reading one database may take
PATIENCE = 120.0

_AGAIN = "profile again, or give the text form (ExportType.Text)"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
        refuse(path, None, "the profiler hasn't finished writing it (there is a -wal file)", "wait until it has")
    deadline = time.monotonic() + PATIENCE
    try:
        connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, OverflowError, UnicodeDecodeError, MemoryError) as error:
        refuse(path, None, f"the database can't be read ({shown(str(error))})", _AGAIN)


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a real table, none where there is no such table; views aren't looked at."""
    kinds = connection.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,)).fetchall()
    if len(kinds) != 1 or kinds[0][0] != "table" or str(kinds[0][1]).upper().startswith("CREATE VIRTUAL"):
        return set()
    return {str(row[1]) for row in connection.execute(f'PRAGMA table_xinfo("{table}")') if not row[6]}


def read_database(path: str | os.PathLike[str]) -> OperatorTable:
    """The table of a profiler's database: kernels where it has a `TASK` table, or the parts of steps (analysis.db).

    Raises:
        ProfileError: the file is no such database, or a row can't be read; the row is named by table and rowid.
        OSError: the file can't be opened.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            refuse(path, None, "this isn't an SQLite database", "give ascend_pytorch_profiler_<rank>.db or analysis.db")
    with _opened(path) as connection:
        task, info = _columns(connection, "TASK"), _columns(connection, "COMPUTE_TASK_INFO")
        if task and info and _columns(connection, "STRING_IDS"):
            return _kernels(path, connection, task, info)
        if _columns(connection, "StepTraceTime"):
            return step_table(_steps(path, connection), path)
        return refuse(path, None, "it has neither the tables TASK, COMPUTE_TASK_INFO and STRING_IDS nor StepTraceTime",
               "give ascend_pytorch_profiler_<rank>.db or analysis.db")  # fmt: skip


def _kernels(path: str, connection: sqlite3.Connection, task: set[str], info: set[str]) -> OperatorTable:
    for table, columns, needed in (
        ("TASK", task, {"startNs", "endNs", "globalTaskId"}),
        ("COMPUTE_TASK_INFO", info, {"globalTaskId", "name", "opType", "taskType"}),
    ):
        if missing := sorted(needed - columns):
            refuse(path, None, f"the table {table} has no column {', '.join(missing)}", _AGAIN)
    twice = "SELECT globalTaskId FROM COMPUTE_TASK_INFO GROUP BY globalTaskId HAVING count(*) > 1 LIMIT 1"
    if (found := connection.execute(twice).fetchone()) is not None:
        refuse(path, None, f"COMPUTE_TASK_INFO describes the task {found[0]} twice", _AGAIN)
    described = [name for name in ("inputShapes", "inputDataTypes", "inputFormats") if name in info]
    device = "task.deviceId" if "deviceId" in task else "NULL"
    tasks = "FROM TASK AS task JOIN COMPUTE_TASK_INFO AS info ON info.globalTaskId = task.globalTaskId"
    # The database adds up, seven times as fast as row by row; what it would add up wrongly is looked for first.
    bad = connection.execute(
        f"SELECT task.rowid, startNs, endNs {tasks} WHERE typeof(startNs) <> 'integer' OR typeof(endNs) <> 'integer' "
        f"OR startNs < 0 OR endNs < startNs OR endNs - startNs >= {int(LONGEST_US)} * 1000 LIMIT 1"
    ).fetchone()
    if bad is not None:
        _lasted(path, "TASK", *bad)
    groups = ", ".join(f"info.{name}" for name in ("name", "opType", "taskType", *described))
    texts = ", ".join(
        f"(SELECT value FROM STRING_IDS WHERE id = one.{name})" for name in ("name", "opType", "taskType", *described)
    )
    query = (
        f"SELECT first, calls, lasted, device, {texts} FROM (SELECT min(task.rowid) AS first, count(*) AS calls, "
        f"sum(endNs - startNs) AS lasted, {device} AS device, {groups} {tasks} GROUP BY {device}, {groups}) AS one"
    )
    sums = Sums(path)
    seen = 0
    for rowid, calls, lasted, on, name, kind, core, *inputs in connection.execute(query):
        took = lasted / 1000.0
        name, kind = _text(path, rowid, "name", name), _text(path, rowid, "opType", kind)
        given = dict(zip(described, (told(str(text or "")).replace('"', "") for text in inputs), strict=True))
        sums.add(
            OperatorRow(
                name if kind and name.endswith(kind) else stem_of(name),
                kind or stem_of(name),
                calls,
                took,
                device_us=took,
                core=told(str(core or "")),
                shapes=given.get("inputShapes", ""),
                dtypes=given.get("inputDataTypes", ""),
                formats=given.get("inputFormats", ""),
                device="" if on is None else str(on)[:20],
            )
        )
        seen += calls
    others = connection.execute("SELECT count(*) FROM TASK").fetchone()[0] - seen
    notes = [f"{others} tasks that are no operators (events, copies) are left out"] if others > 0 else []
    for row in _collectives(path, connection):
        sums.add(row)
    steps = 1
    if _columns(connection, "STEP_TIME"):
        steps = connection.execute("SELECT count(*) FROM STEP_TIME").fetchone()[0]
    return OperatorTable.of(sums.rows.values(), path, "kernel", steps=steps, notes=notes)


def _collectives(path: str, connection: sqlite3.Connection) -> Iterator[OperatorRow]:
    if not {"opName", "startNs", "endNs"} <= _columns(connection, "COMMUNICATION_OP"):
        return
    query = (
        "SELECT rowid, startNs, endNs, (SELECT value FROM STRING_IDS WHERE id = COMMUNICATION_OP.opName) "
        "FROM COMMUNICATION_OP"
    )
    for rowid, start, end, name in connection.execute(query):
        took = _lasted(path, "COMMUNICATION_OP", rowid, start, end)
        name = stem_of(_text(path, rowid, "opName", name))
        yield OperatorRow(name, name, 1, took, device_us=took, core="COMMUNICATION")


def _lasted(path: str, table: str, rowid: object, start: object, end: object) -> float:
    """The microseconds between two times in nanoseconds."""
    if type(start) is not int or type(end) is not int:
        refuse(path, None, f"{table} row {rowid} has the times {shown(str(start))} and {shown(str(end))}, not integers",
               _AGAIN)  # fmt: skip
    if start < 0 or end < start:
        refuse(path, None, f"{table} row {rowid} ends before it starts", _AGAIN)
    return checked_time(path, None, f"{table} row {rowid}", repr((end - start) / 1000.0))


def _text(path: str, rowid: object, column: str, value: object) -> str:
    if not isinstance(value, str):
        refuse(
            path,
            None,
            f"the task in row {rowid} has the {column} {shown(str(value))}, which STRING_IDS doesn't name",
            _AGAIN,
        )
    return told(value)


_PARTS = {
    "computing": "computing",
    "exposed": "communication_not_overlapped",
    "overlapped": "overlapped",
    "communication": "communication",
    "free": "free",
}


def _steps(path: str, connection: sqlite3.Connection) -> list[StepTime]:
    columns = _columns(connection, "StepTraceTime")
    if missing := sorted({"step", *_PARTS.values()} - columns):
        refuse(path, None, f"the table StepTraceTime has no column {', '.join(missing)}", _AGAIN)
    device = "deviceId" if "deviceId" in columns else "NULL"
    query = f"SELECT rowid, step, {device}, {', '.join(_PARTS.values())} FROM StepTraceTime"
    steps = []
    for rowid, step, on, *times in connection.execute(query):
        told_times = [
            checked_time(path, None, f"StepTraceTime row {rowid}, {name}", str(value))
            for name, value in zip(_PARTS.values(), times, strict=True)
        ]
        steps.append(StepTime(str(step)[:40], "" if on is None else str(on)[:20], *told_times))
    return steps


def read_communication(path: str | os.PathLike[str]) -> OperatorTable:
    """The collective calls of analysis.db (`CommAnalyzerTime`), with their waiting time, in microseconds.

    Raises:
        ProfileError: the file is no such database, or a row can't be read.
    """
    path = os.fspath(path)
    with _opened(path) as connection:
        if not {"hccl_op_name", "elapse_time", "wait_time"} <= _columns(connection, "CommAnalyzerTime"):
            refuse(path, None, "it has no table CommAnalyzerTime", "give analysis.db")
        sums = Sums(path)
        query = "SELECT rowid, hccl_op_name, elapse_time, wait_time FROM CommAnalyzerTime"
        for rowid, name, elapsed, waited in connection.execute(query):
            took, wait = (
                checked_time(path, None, f"CommAnalyzerTime row {rowid}", str(value)) * 1000.0
                for value in (elapsed, waited)
            )
            name = stem_of(_text(path, rowid, "hccl_op_name", name))
            sums.add(OperatorRow(name, name, 1, took, device_us=took, wait_us=wait, core="COMMUNICATION"))
    return OperatorTable.of(sums.rows.values(), path, "kernel")
