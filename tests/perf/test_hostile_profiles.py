"""Broken and hostile profiles: one sentence with file and line, and never a wrong sum."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from pathlib import Path

import pytest

from pytest_ascend.perf import npu_database, task_rows
from pytest_ascend.perf import profiles as reading
from pytest_ascend.perf.opprof import read_metric
from pytest_ascend.perf.tabular import ProfileError

HEADER = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num,Input Shapes"
GOOD = '1,mm,MatMulV3,AI_CORE,17\t,{},{},20,"""4,4"""'


def kernels(path: Path, *lines: str, header: str = HEADER, end: str = "\r\n") -> Path:
    file = path / "kernel_details.csv"
    file.write_bytes("\r\n".join([header, *lines]).encode() + end.encode())
    return file


def refused(path: Path, message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        reading.open(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 600


@pytest.mark.parametrize(
    "cell", ["nan", "inf", "-inf", "1e400", "-1", "-0.5", "1e12", "1_0", "0x10", "", "N/A", "12,5"[:1] + "x", "１２"]
)
@pytest.mark.parametrize("line", [2, 5])
def test_a_duration_that_is_none(tmp_path, cell, line) -> None:
    lines = [GOOD.format("2.5", "0")] * 4
    lines[line - 2] = GOOD.format(cell, "0")
    refused(kernels(tmp_path, *lines), rf"kernel_details.csv, line {line}: Duration\(us\) is ")


@pytest.mark.parametrize("cell", ["nan", "-1", "1e999", "1_0", "x"])
def test_a_wait_that_is_none(tmp_path, cell) -> None:
    refused(kernels(tmp_path, GOOD.format("1", "2"), GOOD.format("1", cell)), r"line 3: Wait Time\(us\) is ")


def test_no_wait_is_none(tmp_path) -> None:
    table = reading.open(kernels(tmp_path, GOOD.format("1", "N/A"), GOOD.format("1", "2")))
    assert (table.calls, table.wait_us) == (2, 2.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,mm,MatMulV3,AI_CORE,17\t,1,0", "there are 7 cells and the header has 9 columns"),
        (GOOD.format("1", "0") + ",7", "there are 10 cells"),
        (GOOD.format("1", "0").replace(",20", ""), "there are 8 cells"),
        (GOOD.format("1", "0").replace(",20", ",20,20"), "there are 10 cells"),
        (GOOD.format("1", "0")[:-1], "the quotes don't match"),
        ('1,"mm,MatMulV3,AI_CORE,17\t,1,0,20,"""4,4"""', "the quotes don't match|cells"),
        ("1,mm\x00,MatMulV3,AI_CORE,17\t,1,0,20,4", "NUL"),
        ("1,m\rm,MatMulV3,AI_CORE,17\t,1,0,20,4", "line break"),
    ],
)
def test_a_broken_line(tmp_path, line, message) -> None:
    refused(kernels(tmp_path, GOOD.format("1", "0"), line, GOOD.format("1", "0")), f"line 3: .*({message})")


def test_a_line_that_is_no_text(tmp_path) -> None:
    path = kernels(tmp_path, GOOD.format("1", "0"), GOOD.format("1", "0"))
    path.write_bytes(path.read_bytes().replace(b"1,mm", b"1,m\xff", 1))
    refused(path, "line 2: this isn't UTF-8 text")


def test_a_lost_quote_does_not_swallow_the_next_row(tmp_path, profiles) -> None:
    """With the csv module alone, the two rows below are one with the right number of cells."""
    header = "Name,Input Shapes,Call Stack,Host Self Duration(us),Device Self Duration(us)"
    path = tmp_path / "operator_details.csv"
    path.write_text(f'{header}\na,"1,2,s,5,6\nb,1",s,7,8\n')
    with pytest.raises(ProfileError, match="line 2"):
        reading.open(path)
    path.write_text(f'{header}\na,"1,2","s1\ns2",5,6\nb,1,"s3",7,8\n')
    assert reading.open(path).total_us == 26.0


def test_a_cut_off_file(tmp_path) -> None:
    """In the middle of a row it is an error; within the last number only the missing line end tells."""
    refused(kernels(tmp_path, GOOD.format("1", "0"), "1,mm,Mat", end=""), "line 3: .*the file may be cut off")
    table = reading.open(kernels(tmp_path, GOOD.format("1", "0"), end=""))
    assert "may be cut off" in table.notes[0]
    assert reading.open(kernels(tmp_path, GOOD.format("1", "0"))).notes == ()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.replace("Wait Time(us)", "Wbit Time(us)"), r"line 1: there is no column 'Wait Time\(us\)'"),
        (HEADER.replace("Type,", "Typo,"), "line 1: there is no column 'Type' or 'OP Type'"),
        (HEADER.replace("Duration(us)", "Duratiom(us)"), "line 1: the columns .* are of no profile known here"),
        (HEADER.replace("Block Num", "Name"), "line 1: the column 'Name' is there twice"),
        ("", "line 1: the first line is empty"),
        ("\ufeff", "line 1: the first line isn't a header"),
        ('"Name', "line 1: the quotes don't match"),
    ],
)
def test_a_broken_header(tmp_path, header, message) -> None:
    refused(kernels(tmp_path, GOOD.format("1", "0"), header=header), message)


def test_a_byte_order_mark_and_other_line_ends_are_fine(tmp_path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(b"\xef\xbb\xbf" + HEADER.encode() + b"\n" + GOOD.format("1.5", "0").encode() + b"\n\n")
    assert reading.open(path).total_us == 1.5
    path.write_bytes(HEADER.encode("utf-16"))
    refused(path, "line 1: this isn't UTF-8 text")


def test_lines_without_end(tmp_path) -> None:
    refused(kernels(tmp_path, "x" * (3 << 20)), "line 2: the line is longer than 1 MiB")
    refused(kernels(tmp_path, header="x," * (2 << 20)), "line 1: ")


def test_names_without_number(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(task_rows, "MOST_OPERATORS", 50)
    monkeypatch.setattr(task_rows, "FOLDED", 20)
    lines = [f"1,name{chr(97 + i % 26)}{chr(97 + i // 26)},T,AI_CORE,1\t,1,0,1,4" for i in range(200)]
    refused(kernels(tmp_path, *lines), "more than 50 different operators")


def test_counters_do_not_make_operators(tmp_path, monkeypatch) -> None:
    """Names that differ in their counter only are added up as they come."""
    monkeypatch.setattr(task_rows, "FOLDED", 20)
    lines = [f"1,hcom_allReduce__865_{i}_1,hcom_allReduce_,COMMUNICATION,1\t,2,0,1,N/A" for i in range(500)]
    table = reading.open(kernels(tmp_path, *lines))
    assert [(row.name, row.calls, row.total_us) for row in table.rows] == [("hcom_allReduce", 500, 1000.0)]


def test_both_ways_to_read_a_line_agree(tmp_path) -> None:
    """Quoted, otherwise quoted, unquoted; first and later of its kind: one row."""
    lines = [GOOD.format("1", "0"), GOOD.format("2", "0"), GOOD.format("4", "0").replace('"""', '"'),
             GOOD.format("8", "0").replace("1,mm", '1,"mm"'), GOOD.format("16", "0")]  # fmt: skip
    table = reading.open(kernels(tmp_path, *lines))
    assert [(row.shapes, row.calls, row.total_us) for row in table.rows] == [("4,4", 5, 31.0)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "op_statistic.csv",
            "OP Type,Core Type,Count,Total Time(us)\nMatMul,AI_CORE,{},5\n",
            "Count is .*number of calls",
        ),
        ("api_statistic.csv", "Level,API Name,Time(us),Count\nacl,aclrtMalloc,5,{}\n", "Count is .*number of calls"),
    ],
)
@pytest.mark.parametrize("count", ["-1", "1.5", "nan", "1e16", "x", ""])
def test_a_count_that_is_none(tmp_path, name, text, message, count) -> None:
    path = tmp_path / name
    path.write_text(text.format(count))
    refused(path, f"line 2: {message}")


def test_metrics_that_are_no_numbers(tmp_path) -> None:
    path = tmp_path / "Memory.csv"
    path.write_text("block_id,aic_time(us)\n0,nan\n")
    with pytest.raises(ProfileError, match=r"Memory.csv, line 2: aic_time\(us\) is 'nan'"):
        read_metric(path)
    path.write_text("block_id,aic_time(us)\n0,NA\n1,N/A\n2,1.5\n")
    assert [line["aic_time(us)"] for line in read_metric(path)] == [None, None, 1.5]


def test_what_is_no_profile(tmp_path) -> None:
    refused(tmp_path, "there is no profile in it")
    refused(tmp_path / "none.csv", "there is no such file")
    (tmp_path / "empty.csv").write_text("")
    refused(tmp_path / "empty.csv", "line 1: the file is empty")
    (tmp_path / "memory_record.csv").write_text("Component,Timestamp(us)\nAPP,1\n")
    refused(tmp_path / "memory_record.csv", "line 1: the columns .* are of no profile known here; give kernel_details")
    (tmp_path / "Memory.csv").write_text("block_id,aic_time(us)\n0,1\n")
    refused(tmp_path / "Memory.csv", "its time is in OpBasicInfo beside it; give the folder")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "neither a file nor a folder")


def test_several_profiles_are_not_mixed(tmp_path) -> None:
    for name in ("a_ascend_pt", "b_ascend_pt"):
        (tmp_path / name).mkdir()
    refused(tmp_path, r"holds several profiles \(a_ascend_pt, b_ascend_pt\); give one of them")


JSON = [
    ("[", "line 1: this isn't JSON"),
    ("[" * 100_000, "nested too deeply|can't be read"),
    ("[]", "neither a trace"),
    ('{"a": 1}', "neither a trace"),
    ('[{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": NaN}]', "event 0 .*dur is 'nan'"),
    ('[{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": -1}]', "dur is negative"),
    ('[{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1}]', "dur is 'None'"),
    ('[{"ph": "X", "name": "a", "cat": "cpu_op", "ts": "soon", "dur": 1}]', "ts is 'soon', not a time"),
    ('[{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 1' + "0" * 400 + "}]", "dur is '1e999', not a number"),
    ('[{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 1' + "0" * 9000 + "}]", "can't be read"),
    ('[{"ph": "X", "name": ["a"], "ts": 1, "dur": 1}]', "event 0 has no name"),
    ('[{"ph": "X", "name": "a", "cat": {}, "pid": [], "ts": 1, "dur": 1}]', "the trace holds no operator"),
    ('[{"ph": "M", "name": "process_name", "pid": {}, "args": []}]', "the trace holds no operator"),
    ('[{"ph": "X"}, 5]', "event 0 has no name"),
    ('[{"op_name": "a"}]', "entry 0 .'a'. has no total_time_us"),
    ('[{"op_name": "a", "total_time_us": true}]', "entry 0, total_time_us is 'True'"),
    ('[{"op_name": "a", "total_time_us": Infinity}]', "total_time_us is 'inf'"),
    ('[{"op_name": "a", "total_time_us": 1, "host_time_us": -3}]', "host_time_us is negative"),
    ('[{"op_name": "a", "total_time_us": 1, "count": 1.5}]', "entry 0 has '1.5' calls"),
    ('[{"op_name": null, "total_time_us": 1}]', "entry 0 has no name"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), JSON)
def test_broken_json(tmp_path, text, message) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    refused(path, message)


def test_json_of_any_size_is_not_taken_into_memory(tmp_path) -> None:
    path = tmp_path / "trace_view.json"
    with path.open("wb") as file:
        file.write(b"[")
        file.truncate(1 << 30)
    refused(path, "larger than 128 MiB; give kernel_details.csv")


@pytest.fixture
def database(tmp_path, profiles):
    """A copy of the profiler's database on which one statement was run."""

    def write(*statements: str, name: str = "ascend_pytorch_profiler_0.db") -> Path:
        path = tmp_path / name
        path.write_bytes(next(profiles.rglob(name)).read_bytes())
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        return path

    return write


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE TASK SET endNs = startNs - 1 WHERE rowid = 3", "TASK row 3 ends before it starts"),
        ("UPDATE TASK SET endNs = 'soon' WHERE rowid = 3", "TASK row 3 has the times .* not integers"),
        ("UPDATE TASK SET endNs = 9223372036854775807 WHERE rowid = 3", "TASK row 3 is .* more than 11 days"),
        ("UPDATE TASK SET startNs = NULL WHERE rowid = 3", "TASK row 3 has the times"),
        ("UPDATE COMPUTE_TASK_INFO SET name = 99999 WHERE rowid = 4", "which STRING_IDS doesn't name"),
        ("ALTER TABLE TASK RENAME COLUMN endNs TO stop", "the table TASK has no column endNs"),
        ("DROP TABLE STRING_IDS", "it has neither the tables TASK"),
        ("ALTER TABLE TASK RENAME TO OLD", "it has neither the tables TASK"),
    ],
)
def test_a_broken_database(database, statement, message) -> None:
    refused(database(statement), message)


def test_a_view_is_no_table(database) -> None:
    """A view may compute anything, for ever."""
    path = database(
        "ALTER TABLE TASK RENAME TO OLD",
        "CREATE VIEW TASK AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT i AS startNs, i AS endNs, 3 AS globalTaskId FROM n",
    )
    refused(path, "it has neither the tables TASK")


def test_a_task_described_twice(database) -> None:
    path = database(
        "CREATE TABLE COPY AS SELECT * FROM COMPUTE_TASK_INFO", "DROP TABLE COMPUTE_TASK_INFO",
        "ALTER TABLE COPY RENAME TO COMPUTE_TASK_INFO", "INSERT INTO COMPUTE_TASK_INFO SELECT * FROM COMPUTE_TASK_INFO",
    )  # fmt: skip
    refused(path, "describes the task 3 twice")


def test_a_database_is_not_written(database) -> None:
    path = database()
    path.chmod(0o444)
    before = path.read_bytes(), sorted(path.parent.iterdir())
    reading.open(path)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == before


def test_what_an_interrupted_writer_left_is_not_rolled_back(database) -> None:
    """Reading a file must not change the folder it lies in, as SQLite does when it finds such a journal."""
    path = database()
    (page,) = struct.unpack(">H", path.read_bytes()[16:18])
    header = struct.pack(">8s5I", bytes.fromhex("d9d505f920a163d7"), 0, 0, path.stat().st_size // page, 512, page)
    journal = path.with_name(f"{path.name}-journal")
    journal.write_bytes(header.ljust(512, b"\0"))
    before = path.read_bytes(), journal.read_bytes()
    reading.open(path)
    assert (path.read_bytes(), journal.read_bytes()) == before


def test_a_query_ends_when_patience_does(tmp_path, monkeypatch) -> None:
    path = tmp_path / "many.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, globalTaskId INTEGER)")
        connection.execute("CREATE TABLE COMPUTE_TASK_INFO (globalTaskId INTEGER, name INTEGER, opType, taskType)")
        connection.execute("CREATE TABLE STRING_IDS (id INTEGER, value TEXT)")
        many = [(number,) for number in range(20_000)]
        connection.executemany("INSERT INTO TASK VALUES (1, 2, ?)", many)
        connection.executemany("INSERT INTO COMPUTE_TASK_INFO VALUES (?, 1, 1, 1)", many)
        connection.execute("INSERT INTO STRING_IDS VALUES (1, 'mm')")
    connection.close()
    assert reading.open(path).calls == 20_000
    monkeypatch.setattr(npu_database, "PATIENCE", 0.0)
    refused(path, "the database can't be read .*interrupted")


def test_tasks_that_are_no_operators_are_left_out_and_said(database) -> None:
    path = database("INSERT INTO TASK (startNs, endNs, globalTaskId) VALUES (5, 10, 777)")
    table = reading.open(path)
    assert table.calls == 12
    assert table.notes == ("1 tasks that are no operators (events, copies) are left out",)


def test_collective_calls_of_a_newer_database(database) -> None:
    path = database(
        "CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER)",
        "INSERT INTO STRING_IDS VALUES (5000, 'hcom_allReduce__865_0_1')",
        "INSERT INTO COMMUNICATION_OP VALUES (5000, 1000, 51000)",
    )
    row = next(row for row in reading.open(path).rows if row.core == "COMMUNICATION")
    assert (row.name, row.total_us) == ("hcom_allReduce", 50.0)


def test_a_database_that_is_still_written(database) -> None:
    path = database()
    Path(f"{path}-wal").write_bytes(b"x")
    refused(path, "the profiler hasn't finished writing it")


def test_half_a_database(database) -> None:
    path = database()
    path.write_bytes(path.read_bytes()[:9000])
    refused(path, "the database can't be read")


def test_broken_steps(database) -> None:
    path = database("UPDATE StepTraceTime SET free = 'x'", name="analysis.db")
    refused(path, "StepTraceTime row 1, free is 'x'")


def test_what_is_printed_of_a_file_is_harmless(tmp_path) -> None:
    """A cell may hold anything; an error shows it quoted and short."""
    path = kernels(tmp_path, GOOD.format("\x1b]0;title\x07" * 50, "0"))
    with pytest.raises(ProfileError) as caught:
        reading.open(path)
    assert "\x1b" not in str(caught.value)
    assert len(json.dumps(str(caught.value))) < 500
