"""The table: which operators grew, what kind of work they are, and what to do about them."""

from __future__ import annotations

import json

import pytest

from pytest_ascend.perf import profiles as reading
from pytest_ascend.perf.advice import OperatorClass, classify
from pytest_ascend.perf.operators import OperatorRow, OperatorTable
from pytest_ascend.perf.summaries import Sums


def row(name: str, us: float, *, calls: int = 1, kind: str = "", **more) -> OperatorRow:
    return OperatorRow(name, kind or name, calls, us, device_us=us, **more)


def table(*rows: OperatorRow, steps: int = 1, unusable=()) -> OperatorTable:
    return OperatorTable.of(rows, "a profile", "kernel", steps=steps, unusable=unusable)


def test_rows_are_ordered_and_shared() -> None:
    one = table(row("a", 10.0), row("b", 30.0))
    assert [(r.name, r.ratio) for r in one.rows] == [("b", 0.75), ("a", 0.25)]
    assert table().rows == ()
    assert table(row("a", 0.0)).rows[0].ratio == 0.0


def test_what_grew_comes_first() -> None:
    before = table(row("mm", 100.0), row("add", 10.0), row("old", 5.0))
    after = table(row("mm", 103.0), row("add", 30.0), row("fresh", 2.0))
    diff = before.diff(after)
    assert [(r.name, r.grew_us, r.why) for r in diff.rows] == [
        ("add", 20.0, "slower"),
        ("mm", 3.0, "slower"),
        ("fresh", 2.0, "new"),
        ("old", -5.0, "gone"),
    ]
    assert [r.name for r in diff.grown()] == ["add", "mm", "fresh"]
    assert (diff.before_us, diff.after_us) == (115.0, 135.0)


def test_more_calls_are_told_from_slower_ones() -> None:
    before, after = table(row("add", 10.0, calls=10)), table(row("add", 21.0, calls=20))
    (one,) = before.diff(after).rows
    assert (one.why, one.before_calls, one.after_calls) == ("more calls", 10, 20)
    (other,) = after.diff(before).rows
    assert other.why == "fewer calls"
    (same,) = before.diff(before).rows
    assert (same.why, same.grew_us) == ("same", 0.0)


def test_steps_are_compared_and_not_runs() -> None:
    """Twice the steps in twice the time is no growth."""
    before, after = table(row("mm", 100.0, calls=2), steps=2), table(row("mm", 200.0, calls=4), steps=4)
    assert before.diff(after).grown() == ()
    (same,) = before.diff(after).rows
    assert (same.before_us, same.before_calls, same.after_calls, same.why) == (50.0, 1, 1, "same")


def test_counters_in_names_are_no_difference() -> None:
    before = table(row("hcom_allReduce__865_0_1", 10.0, kind="hcom_allReduce"), row("Conv2D4", 5.0, kind="Conv2D"))
    after = table(row("hcom_allReduce__271_9_1", 12.0, kind="hcom_allReduce"), row("Conv2D7", 5.0, kind="Conv2D"))
    assert [(r.name, r.grew_us) for r in before.diff(after).rows] == [("hcom_allReduce", 2.0), ("Conv2D", 0.0)]


@pytest.mark.parametrize(
    ("name", "kind", "stem"),
    [
        ("aclnnMm_MatMulV3Common_MatMulV3", "MatMulV3", "aclnnMm_MatMulV3Common_MatMulV3"),
        ("aclnnMm_MatMulCommon_MatMulV2", "", "aclnnMm_MatMulCommon_MatMulV2"),
        ("trans_TransData_12", "TransData", "trans_TransData"),
        ("Conv2DBackpropInput5", "Conv2DBackpropInput", "Conv2DBackpropInput"),
        ("hcom_allReduce__865_0_1", "hcom_allReduce", "hcom_allReduce"),
        ("Conv2D", "Conv2D", "Conv2D"),
        ("123", "", "123"),
    ],
)
def test_stems(name, kind, stem) -> None:
    assert OperatorRow(name, kind, 1, 1.0).stem() == stem


def test_shapes_keep_operators_apart() -> None:
    before = table(row("mm", 10.0, shapes="4,4"), row("mm", 20.0, shapes="8,8"))
    after = table(row("mm", 10.0, shapes="4,4"), row("mm", 25.0, shapes="8,8"))
    assert [(r.shapes, r.grew_us) for r in before.diff(after).grown()] == [("8,8", 5.0)]


def test_a_lowered_clock_is_carried_into_the_comparison() -> None:
    slow = table(row("mm", 10.0), unusable=["800 MHz of 1650 MHz"])
    assert table(row("mm", 10.0)).diff(slow).unusable == ("a profile: 800 MHz of 1650 MHz",)


def test_different_levels_are_not_compared() -> None:
    steps = OperatorTable.of([row("Computing", 10.0)], "steps.csv", "step")
    with pytest.raises(ValueError, match="compare two profiles of the same kind"):
        table(row("mm", 1.0)).diff(steps)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (row("hcom_allReduce", 1.0, core="COMMUNICATION"), "communication"),
        (row("trans_TransData", 1.0, kind="TransData", core="AI_VECTOR_CORE"), "layout conversion"),
        (row("aclnnMaxPool2d_TransDataSpecial_TransData", 1.0), "layout conversion"),
        (row("aclnnInplaceCopy_TensorMoveAiCore_TensorMove", 1.0, kind="TensorMove"), "copy"),
        (row("MEMCPY_ASYNC", 1.0), "copy"),
        (row("aten::copy_", 1.0), "copy"),
        (row("Index", 1.0, core="AI_CPU"), "AI CPU"),
        (row("MatMulV3", 1.0, core="AI_CORE"), "compute"),
        (row("aten::addmm", 1.0), "compute"),
        (row("FlashAttentionScore", 1.0, core="MIX_AIC"), "compute"),
        (row("Add", 1.0, core="AI_VECTOR_CORE"), "memory-bound"),
        (row("ZerosLike", 1.0, core="AI_CORE"), "memory-bound"),
        (row("MatMulV3", 1.0, busy={"cube": 3.0, "mte2": 5.0}), "memory-bound"),
        (row("Exp", 1.0, core="AI_VECTOR_CORE", busy={"vector": 3.0, "mte2": 2.0}), "compute"),
        (row("Add", 1.0, busy={"vector": 1.0, "scalar": 2.0, "mte2": 1.5}), "scalar-bound"),
        (OperatorRow("aclnnCast", "aclnnCast", 1, 12.0, 2.0, 10.0), "host-bound"),
        (OperatorRow("aclnnFoo", "aclnnFoo", 1, 12.0, 10.0, 2.0), "other"),
        (OperatorRow("aten::mm", "aten::mm", 1, 10.0, None, 10.0), "compute"),
    ],
)
def test_classes(one, expected) -> None:
    assert str(classify(one)) == expected


def test_shares_of_the_classes_add_up(profiles) -> None:
    for name in ("v1_level2_block_dim", "v3_device_id_block_num"):
        one = reading.open(profiles / "torch_npu_profiler" / name)
        shares = one.classes()
        assert sum(share.total_us for share in shares) == pytest.approx(one.total_us)
        assert sum(share.ratio for share in shares) == pytest.approx(1.0)
        assert sum(share.calls for share in shares) == one.calls


def test_advice_names_the_conversions_and_the_waiting(profiles) -> None:
    one = reading.open(profiles / "torch_npu_profiler" / "v1_level2_block_dim")
    said = {advice.about: advice for advice in one.advice()}
    layout = said[OperatorClass.LAYOUT]
    assert layout.total_us == pytest.approx(55.16 + 50.402 + 34.854 + 19.2 + 16.772, abs=0.2)
    assert "5 conversions of the layout (from NC1HWC0, NCHW)" in layout.sentence
    assert said[OperatorClass.HOST].total_us == pytest.approx(2195.493)
    assert [advice.total_us for advice in one.advice()] == sorted((a.total_us for a in one.advice()), reverse=True)


def test_advice_on_chains_and_loops() -> None:
    one = OperatorTable.of(
        [row("Add", 40.0, calls=10), row("Mul", 30.0, calls=10), row("Cast", 20.0, calls=8),
         row("MEMCPY_ASYNC", 50.0, calls=100), row("MatMul", 300.0, core="AI_CORE")],
        "a profile", "kernel", steps=10,
    )  # fmt: skip
    chain, copies = {a.about: a.sentence for a in one.advice()}.values()
    assert chain.startswith("28 element-wise operators (Add, Mul, Cast)")
    assert "100 copies cost 50 us" in copies
    assert "10 per step: move them out of the loop" in copies


def test_nothing_worth_saying_is_not_said() -> None:
    assert table(row("MatMul", 1000.0, core="AI_CORE"), row("TransData", 5.0)).advice() == ()
    assert OperatorTable.of([row("Free", 10.0)], "steps", "step").advice() == ()


def test_by_kind_merges_shapes() -> None:
    one = table(
        row("mm", 10.0, kind="MatMul", shapes="4,4", calls=1, busy={"cube": 2.0}),
        row("mm", 30.0, kind="MatMul", shapes="8,8", calls=3, busy={"cube": 6.0}),
        row("add", 1.0),
    )
    merged = one.by_kind()[0]
    assert (merged.name, merged.calls, merged.total_us, merged.shapes) == ("mm", 4, 40.0, "")
    assert merged.busy == {"cube": 5.0}
    assert merged.host_us is None


def test_the_table_is_plain_json(profiles) -> None:
    one = reading.open(profiles / "torch_npu_profiler" / "v1_level2_block_dim")
    again = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert again["unit"] == "us"
    assert sum(r["total_us"] for r in again["rows"]) == pytest.approx(one.total_us)


def test_runs_whose_counters_were_not_read_do_not_dilute_the_others() -> None:
    sums = Sums("a profile")
    for more in ({}, {"busy": {"cube": 2.0}}, {"busy": {"cube": 4.0, "mte2": 1.0}}, {}):
        sums.add(row("mm", 10.0, wait_us=1.0, **more))
    (one,) = sums.rows.values()
    assert (one.calls, one.total_us, one.device_us, one.host_us, one.wait_us) == (4, 40.0, 40.0, None, 4.0)
    assert one.busy == {"cube": 3.0, "mte2": 0.5}
