"""Every form and version of the profiles is read with the right sums; they were added up with awk and sqlite3."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_ascend.perf import profiles as reading
from pytest_ascend.perf.opprof import read_metric, read_opprof, read_runs
from pytest_ascend.perf.torch_npu_profiler import read_communication, read_step_times

NPU = "torch_npu_profiler"
OP = "msopprof"

# path (with one * per folder), level, calls, total, waiting time; microseconds
SUMS = [
    (f"{NPU}/v1_level0_block_dim/*/*/kernel_details.csv", "kernel", 12, 383.859, 2398.819),
    (f"{NPU}/v1_level2_block_dim/*/*/kernel_details.csv", "kernel", 12, 403.273, 2195.493),
    (f"{NPU}/v2_device_id_block_dim/*/*/kernel_details.csv", "kernel", 15, 312981.717, 4759.747251),
    (f"{NPU}/v3_device_id_block_num/*/*/kernel_details.csv", "kernel", 15, 306889.6, 4751.536442),
    ("msprof/old_2023/op_summary_old.csv", "kernel", 5, 7674.6548, 1705.6687),
    ("msprof/PROF_*/*/op_summary_*.csv", "kernel", 3, 568.14, 124.14),
    (f"{NPU}/v1_level2_block_dim/*/*/op_statistic.csv", "kernel", 33, 3203.086, 0.0),
    (f"{NPU}/v2_device_id_block_dim/*/*/op_statistic.csv", "kernel", 334, 80588.02, 0.0),
    (f"{NPU}/v3_device_id_block_num/*/*/op_statistic.csv", "kernel", 334, 77363.95, 0.0),
    (f"{NPU}/v1_level2_block_dim/*/*/api_statistic.csv", "api", 187, 849.9, 0.0),
    (f"{NPU}/v2_device_id_block_dim/*/*/api_statistic.csv", "api", 526, 6819.99, 0.0),
    (f"{NPU}/v3_device_id_block_num/*/*/api_statistic.csv", "api", 526, 7032.53, 0.0),
    (f"{NPU}/v1_level0_block_dim/*/*/operator_details.csv", "operator", 8, 1389.045085, 0.0),
    (f"{NPU}/v1_level2_block_dim/*/*/operator_details.csv", "operator", 8, 1221.552632, 0.0),
    (f"{NPU}/v1_level0_block_dim/*/*/step_trace_time.csv", "step", 3, 116251.182, 0.0),
    (f"{NPU}/v1_level2_block_dim/*/*/step_trace_time.csv", "step", 3, 129862.875, 0.0),
    (f"{NPU}/v2_device_id_block_dim/*/*/step_trace_time.csv", "step", 3, 810022.36, 0.0),
    (f"{NPU}/v1_level2_block_dim/*/*/trace_view.json", "kernel", 4, 86854.112, 0.0),
    (f"{NPU}/db/*/*/ascend_pytorch_profiler_0.db", "kernel", 12, 867.262, 0.0),
    (f"{NPU}/db/*/*/analysis.db", "step", 3, 123803.97482, 0.0),
    (f"{OP}/OPPROF_20260301101112131_*/OpBasicInfo.csv", "kernel", 1, 6.14, 0.0),
    (f"{OP}/OPPROF_20260301111213141_*", "kernel", 1, 151.240005, 0.0),
    (f"{OP}/variants/ascend950", "kernel", 1, 4.22, 0.0),
    (f"{OP}/variants/ascend310p", "kernel", 1, 9.88, 0.0),
    (f"{OP}/simulator", "instruction", 192, 10.43, 0.0),
    (f"{OP}/simulator/*/*/*/*_code_exe.csv", "instruction", 7170, 9.0, 0.0),
    # folders: the most detailed file counts, once
    (f"{NPU}/v1_level2_block_dim", "kernel", 12, 403.273, 2195.493),
    (f"{NPU}/db", "kernel", 12, 867.262, 0.0),
    ("msprof/PROF_*", "kernel", 3, 568.14, 124.14),
]


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


@pytest.mark.parametrize(("pattern", "level", "calls", "total", "wait"), SUMS, ids=[one[0] for one in SUMS])
def test_sums(profiles, pattern, level, calls, total, wait) -> None:
    table = reading.open(only(profiles, pattern))
    assert table.level == level
    assert table.calls == calls
    assert table.total_us == pytest.approx(total, rel=1e-9)
    assert table.wait_us == pytest.approx(wait, rel=1e-9)
    assert sum(row.ratio for row in table.rows) == pytest.approx(1.0)
    assert [row.total_us for row in table.rows] == sorted((row.total_us for row in table.rows), reverse=True)


def test_every_sample_with_times_is_listed(profiles) -> None:
    """A profile added to the samples and to no list here would be read by nobody."""
    listed = {path for pattern, *_ in SUMS for path in profiles.glob(pattern)}
    forgotten = [
        path.relative_to(profiles)
        for path in profiles.rglob("*")
        if path.suffix in (".csv", ".json", ".db") and not any(path.is_relative_to(one) for one in listed)
        and path.name not in ("step_trace_time.csv",) and "OPPROF_2026030110" not in str(path)
    ]  # fmt: skip
    assert forgotten == []


def test_versions_differ_in_names_and_not_in_rows(profiles) -> None:
    """`Block Dim` became `Block Num`; the rows are the same operators."""
    dim = reading.open(profiles / NPU / "v2_device_id_block_dim")
    num = reading.open(profiles / NPU / "v3_device_id_block_num")
    assert {row.name: (row.shapes, row.core, row.calls) for row in dim.rows} == {
        row.name: (row.shapes, row.core, row.calls) for row in num.rows
    }
    assert {row.device for row in num.rows} == {"0"}


def test_what_a_row_says(profiles) -> None:
    table = reading.open(profiles / NPU / "v1_level2_block_dim")
    row = next(row for row in table.rows if row.shapes == "32,3,224,224")
    assert (row.name, row.kind, row.core) == ("trans_TransData", "TransData", "AI_VECTOR_CORE")
    assert (row.dtypes, row.formats) == ("FLOAT", "NCHW")
    assert (row.calls, row.device_us, row.wait_us, row.host_us) == (1, 55.16, 0.0, None)
    assert row.busy == {"vector": 9.95, "scalar": 4.293, "mte2": 29.26, "mte3": 30.487}


def test_collective_calls_are_one_row_whatever_their_counters(profiles) -> None:
    table = reading.open(profiles / NPU / "v3_device_id_block_num")
    assert [(row.name, row.calls) for row in table.rows if row.core == "COMMUNICATION"] == [("hcom_batchSendRecv", 3)]


def test_operator_details_keep_own_times_apart(profiles) -> None:
    table = reading.open(only(profiles, f"{NPU}/v1_level2_block_dim/*/*/operator_details.csv"))
    assert table.host_us == pytest.approx(314.2)
    assert table.device_us == pytest.approx(907.352632)
    muls = next(row for row in table.rows if row.name == "aclnnMuls")
    assert muls.calls == 3


def test_steps(profiles) -> None:
    (step,) = read_step_times(only(profiles, f"{NPU}/v3_device_id_block_num/*/*/step_trace_time.csv"))
    assert (step.device, step.step, step.stage_us, step.preparing_us) == ("0", "13", 810022.25, 206.25)
    assert step.communication_us == pytest.approx(step.overlapped_us + step.exposed_communication_us)


def test_times_per_step(tmp_path) -> None:
    """Two steps on two devices are four."""
    lines = ["Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num"]
    lines += [f"{step},{device},Add,Add,AI_VECTOR_CORE,1\t,2.5,0,1" for step in (1, 2) for device in (0, 1)]
    path = tmp_path / "kernel_details.csv"
    path.write_text("\r\n".join(lines) + "\r\n")
    table = reading.open(path)
    assert (table.steps, table.calls, table.total_us, len(table.rows)) == (4, 4, 10.0, 2)


def test_communication_times_are_milliseconds(profiles) -> None:
    table = read_communication(only(profiles, f"{NPU}/db/*/*/analysis.db"))
    assert table.total_us == pytest.approx(85125.800875)
    assert table.wait_us == pytest.approx(185.36371875)
    assert [row.name for row in table.rows] == ["hcom_allReduce"]


def test_a_lowered_clock_makes_a_table_unusable(profiles) -> None:
    table = read_opprof(only(profiles, f"{OP}/OPPROF_20260301111213141_*"))
    assert len(table.unusable) == 1
    assert "at 800 MHz of 1650 MHz" in table.unusable[0]
    assert read_opprof(profiles / OP / "variants" / "ascend950").unusable == ()


@pytest.mark.parametrize(("now", "slow"), [(950, True), (951, False), (1000, False), (0, True)])
def test_the_frequency_guard_is_at_95_percent(tmp_path, now, slow) -> None:
    header = "Op Name,Op Type,Task Duration(us),Block Dim,Mix Block Dim,Device Id,Pid,Current Freq,Rated Freq"
    (tmp_path / "OpBasicInfo.csv").write_text(f"{header}\nadd,vector,4.0,8,NA,0,1,{now},1000\n")
    table = reading.open(tmp_path)
    assert bool(table.unusable) is slow
    assert table.notes == ()


@pytest.mark.parametrize("told", ["NA", "N/A", "0"])
def test_an_unknown_frequency_is_said(tmp_path, told) -> None:
    header = "Op Name,Op Type,Task Duration(us),Block Dim,Device Id,Pid,Current Freq,Rated Freq"
    (tmp_path / "OpBasicInfo.csv").write_text(f"{header}\nadd,vector,4.0,8,0,1,{told},{told}\n")
    table = reading.open(tmp_path)
    assert table.unusable == ()
    assert "frequency isn't told" in table.notes[0]


def test_several_operators_and_devices(profiles, tmp_path) -> None:
    """`device<N>/<operator>/<n>/`: runs of one operator add up, devices stay apart."""
    one = only(profiles, f"{OP}/OPPROF_20260301101112131_*")
    top = tmp_path / "OPPROF_20260301101112131_ABCDEFGHIJKLMNOP"
    for device in (0, 1):
        for run in (0, 1):
            folder = top / f"device{device}" / "add_custom" / str(run)
            folder.mkdir(parents=True)
            for path in one.iterdir():
                shutil.copy(path, folder / f"{path.stem}_2026030111122598{run}.csv")
            basic = folder / f"OpBasicInfo_2026030111122598{run}.csv"
            basic.write_text(basic.read_text().replace(",0,42101,", f",{device},42101,"))
    table = reading.open(tmp_path)
    assert [(row.name, row.device, row.calls) for row in table.rows] == [
        ("add_custom", "0", 2),
        ("add_custom", "1", 2),
    ]
    assert table.total_us == pytest.approx(4 * 6.14)
    assert len(read_runs(top)) == 4


def test_metrics_by_name_and_chip(profiles) -> None:
    mixed = only(profiles, f"{OP}/OPPROF_20260301111213141_*")
    (run,) = read_runs(mixed)
    assert run.files.keys() == {
        "ArithmeticUtilization", "L2Cache", "Memory", "MemoryL0", "MemoryUB", "PipeUtilization", "ResourceConflictRatio"
    }  # fmt: skip
    lines = read_metric(run.files["PipeUtilization"])
    assert lines[0]["sub_block_id"] == "cube0"
    assert lines[0]["aic_time(us)"] == 5.185455
    assert lines[0]["aiv_time(us)"] is None
    assert lines[1]["aiv_vec_time(us)"] == 3.690905
    older = read_metric(profiles / OP / "variants" / "ascend310p" / "PipeUtilization.csv")
    assert older[0]["aic_vec_time(us)"] == 5.659618
    assert "block_id" not in older[0]
    for name in run.files.values():
        assert len(read_metric(name)) == 6


def test_units_of_the_cores(profiles) -> None:
    """The mean over the cores that have the unit, `NA` left out."""
    path = only(profiles, f"{OP}/OPPROF_20260301111213141_*/*/0/PipeUtilization_*.csv")
    lines = path.read_text().splitlines()
    place = lines[0].split(",").index("aic_cube_time(us)")
    cube = [float(line.split(",")[place]) for line in lines[1:] if line.split(",")[place] != "NA"]
    (row,) = read_opprof(only(profiles, f"{OP}/OPPROF_20260301111213141_*")).rows
    assert len(cube) == 2
    assert row.busy["cube"] == pytest.approx(sum(cube) / 2)


def test_the_list_of_costs(tmp_path) -> None:
    """aicore_*.json; the ratio is worked out from the times, whatever the file says."""
    entries = [
        {"op_name": "trans_TransData_1", "op_type": "TransData", "total_time_us": 30.0, "device_time_us": 25.0,
         "host_time_us": 5.0, "ratio": 30.0},
        {"op_name": "mm", "op_type": "MatMul", "total_time_us": 90, "device_time_us": 88.5, "host_time_us": 1.5,
         "ratio": 0.9},
    ]  # fmt: skip
    path = tmp_path / "aicore_0.json"
    path.write_text(json.dumps(entries))
    table = reading.open(path)
    assert [(row.name, row.total_us, row.device_us, row.host_us) for row in table.rows] == [
        ("mm", 90.0, 88.5, 1.5),
        ("trans_TransData_1", 30.0, 25.0, 5.0),
    ]
    assert [row.ratio for row in table.rows] == [0.75, 0.25]


def test_a_trace_of_the_host_counts_own_times(tmp_path) -> None:
    """linear calls addmm, which calls copy_; beside it a second thread."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
        for name, tid, ts, dur in [
            ("aten::linear", 1, 0, 100), ("aten::addmm", 1, 10, 80), ("aten::copy_", 1, 20, 30),
            ("aten::relu", 1, 100, 7), ("aten::linear", 2, 5, 50),
        ]
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    table = reading.open(path)
    assert {row.name: (row.calls, row.host_us) for row in table.rows} == {
        "aten::linear": (2, 70.0),
        "aten::addmm": (1, 50.0),
        "aten::copy_": (1, 30.0),
        "aten::relu": (1, 7.0),
    }
    assert table.total_us == 157.0  # what the two threads were busy for


def test_a_trace_of_the_device_counts_each_task_once(profiles) -> None:
    """Neither the overlap analysis nor the parts of a collective call are added to the tasks."""
    table = reading.open(only(profiles, f"{NPU}/v1_level2_block_dim/*/*/trace_view.json"))
    assert {row.name: row.calls for row in table.rows} == {
        "hcom_allReduce": 1,
        "MEMCPY_ASYNC": 2,
        "PROFILING_ENABLE": 1,
    }
