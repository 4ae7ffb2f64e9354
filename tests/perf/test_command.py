"""`pytest-ascend perf read` and `perf diff`: what they print."""

from __future__ import annotations

import json

import pytest

from pytest_ascend import cli


def test_a_table_worst_first_with_advice(capsys, profiles) -> None:
    assert cli.main(["perf", "read", str(profiles / "torch_npu_profiler" / "v1_level2_block_dim")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "operators on the device: 12, 12 calls, 403 us"
    assert lines[3].startswith("time: layout conversion 44%")
    head = next(i for i, line in enumerate(lines) if line.startswith("operator "))
    assert lines[head].split() == ["operator", "time", "%", "calls", "per", "call", "waited", "class", "shapes"]
    assert lines[head + 1].split()[:4] == ["Conv2DBackpropInput", "107", "us", "26.6%"]
    assert lines[head + 3].endswith("layout conversion 32,3,224,224")
    said = [line for line in lines if line.startswith("- ")]
    assert "5 conversions of the layout" in said[1]
    assert all(len(line) < 170 for line in lines[1 : head + 13])


def test_top_and_types(capsys, profiles) -> None:
    path = str(profiles / "torch_npu_profiler" / "v1_level2_block_dim")
    assert cli.main(["perf", "read", "--top", "3", path]) == 0
    assert "... 9 more" in capsys.readouterr().out
    assert cli.main(["perf", "read", "--by-type", path]) == 0
    out = capsys.readouterr().out
    first = next(line for line in out.splitlines() if line.startswith("TransData"))
    assert first.split()[:5] == ["TransData", "176", "us", "43.8%", "5"]


def test_json_holds_everything(capsys, profiles) -> None:
    assert cli.main(["perf", "read", "--json", str(profiles / "torch_npu_profiler" / "v3_device_id_block_num")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unit"] == "us"
    assert told["total_us"] == pytest.approx(306889.6)
    assert sum(row["total_us"] for row in told["rows"]) == pytest.approx(306889.6)
    assert sum(share["total_us"] for share in told["classes"]) == pytest.approx(306889.6)
    assert told["rows"][0]["class"] == "communication"
    assert told["advice"][0]["about"] == "communication"


def test_unusable_times_are_said_first(capsys, profiles) -> None:
    low = next((profiles / "msopprof").glob("OPPROF_20260301111213141_*"))
    assert cli.main(["perf", "read", str(low)]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("NO EVIDENCE: matmul_leakyrelu_custom_0_mix_aic ran on")
    assert cli.main(["perf", "diff", str(low), str(low)]) == 0
    out = capsys.readouterr().out
    assert "NO EVIDENCE: " in out
    assert out.endswith("no operator takes longer\n")


def test_which_operators_grew(capsys, profiles) -> None:
    names = ("v2_device_id_block_dim", "v3_device_id_block_num")
    paths = [str(profiles / "torch_npu_profiler" / name) for name in names]
    assert cli.main(["perf", "diff", *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "per step: 313 ms -> 307 ms, -1.9%"
    assert lines[3].split()[:8] == [
        "aclnnInplaceZero_ZerosLikeAiCore_ZerosLike",
        "1.81",
        "ms",
        "1.88",
        "ms",
        "63.2",
        "us",
        "1",
    ]
    assert cli.main(["perf", "diff", "--json", "--top", "1", *paths]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["after_us"] == pytest.approx(306889.6)
    grown = [row["grew_us"] for row in told["rows"]]
    assert grown == sorted(grown, reverse=True)


def test_steps_and_instructions_have_no_classes(capsys, profiles) -> None:
    (path,) = (profiles / "torch_npu_profiler" / "v1_level2_block_dim").rglob("step_trace_time.csv")
    assert cli.main(["perf", "read", str(path)]) == 0
    out = capsys.readouterr().out
    assert "parts of a step: 3" in out
    assert "time: " not in out
    assert "Communication(Not Overlapped)" in out


def test_a_terminal_gets_no_orders_from_a_file(capsys, tmp_path) -> None:
    path = tmp_path / "op_statistic.csv"
    path.write_text("OP Type,Core Type,Count,Total Time(us)\n\x1b[2Jevil\x07,AI_CORE,1,5\n")
    assert cli.main(["perf", "read", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "?[2Jevil?" in out


@pytest.mark.parametrize("action", [["read"], ["read", "--json"]])
def test_what_cannot_be_read_is_one_sentence(capsys, tmp_path, action) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_text("Name,Type,Accelerator Core,Duration(us),Wait Time(us)\nmm,MatMul,AI_CORE,nan,0\n")
    assert cli.main(["perf", *action, str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"pytest-ascend perf: {path}, line 2: Duration(us) is 'nan', not a number; ")
    assert said.err.count("\n") == 1


def test_profiles_that_do_not_compare(capsys, profiles) -> None:
    folder = next((profiles / "torch_npu_profiler" / "v1_level2_block_dim").rglob("ASCEND_PROFILER_OUTPUT"))
    assert cli.main(["perf", "diff", str(folder / "kernel_details.csv"), str(folder / "step_trace_time.csv")]) == 2
    assert "compare two profiles of the same kind" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["perf", "read", "--top", "0", str(folder)])
