"""Verdicts, the results that carry them, and how a person reads them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
import subprocess
import sys

import pytest

from pytest_ascend.judge.verdict import (
    CheckpointResult,
    CheckResult,
    Element,
    Kind,
    Metrics,
    OutputResult,
    Verdict,
    fold,
    jsonable,
    worst_output,
)

NOTED = {"MODE_DIFF", "AMPLIFIED", "REFERENCE_SUSPECT", "UNDEFINED", "NOT_COMPARABLE", "MARGINAL"}


def metrics(cosine=1.0, largest=0.0, **more):
    zeros = (
        "mean_abs_error",
        "rmse",
        "max_rel_error",
        "mean_rel_error",
        "relative_euclidean_distance",
        "mean_signed_error",
    )
    numbers = {"count": 10, "cosine_similarity": cosine, "max_abs_error": largest, "within_tolerance_ratio": 1.0}
    numbers.update(dict.fromkeys(zeros, 0.0))
    return Metrics(**{**numbers, **more})


def output(path="output", verdict=Verdict.PASS, kind=None, reason="", status=None, m=None):
    status = status or ("fail" if verdict is Verdict.FAIL else "pass")
    return OutputResult(path, verdict, kind, reason, status, "float32", (2, 5), m)


def layer(name, status="pass", cosine=1.0):
    verdict = Verdict.FAIL if status == "fail" else Verdict.PASS
    return CheckpointResult.of(name, [output(verdict=verdict, status=status, m=metrics(cosine))])


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_an_outcome_and_a_rank(verdict):
    expected = "failed"
    if verdict.value == "PASS":
        expected = "passed"
    elif verdict.value in NOTED:
        expected = "noted"
    elif verdict.value in ("UNSUPPORTED", "INFRA"):
        expected = {"UNSUPPORTED": "skipped", "INFRA": "error"}[verdict.value]
    assert verdict.outcome == expected
    assert isinstance(verdict.severity, int)
    assert str(verdict) == verdict.value == f"{verdict}"


def test_severities_order_pass_noted_skipped_failed_error():
    ranks = {}
    for verdict in Verdict:
        ranks.setdefault(verdict.outcome, []).append(verdict.severity)
    order = ["passed", "noted", "skipped", "failed", "error"]
    assert len({v.severity for v in Verdict}) == len(Verdict)
    for mild, bad in itertools.pairwise(order):
        assert max(ranks[mild]) < min(ranks[bad])


def test_a_kind_named_index_is_a_kind():
    assert Kind("index") is Kind.index
    assert str(Kind.non_finite) == "non_finite"
    assert len(Kind) == 14


def test_the_module_loads_neither_torch_nor_numpy():
    code = (
        "import sys, pytest_ascend.judge.verdict; print([m for m in ('torch', 'numpy', 'pytest') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- metrics --------------------------------------------------------------------------------------------------------


def test_metrics_answer_by_name():
    found = metrics(0.5, 2.0)
    assert found["cosine_similarity"] == 0.5
    assert found["max_abs_error"] == found.max_abs_error == 2.0
    with pytest.raises(KeyError, match=r"no metric named 'cosine'; known: count, cosine_similarity"):
        found["cosine"]
    assert set(found.keys()) >= {"rmse", "within_tolerance_ratio", "worst"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1.5, 1.5),
        (2**70, 2**70),
        (True, True),
        (None, None),
        (1 + 2j, "(1+2j)"),
        (Kind.local, "local"),
        ({"a": (math.nan,)}, {"a": ["nan"]}),
    ],
)
def test_non_finite_numbers_become_text(value, expected):
    assert jsonable(value) == expected
    json.dumps(jsonable(value), allow_nan=False)


def test_metrics_are_strict_json():
    found = metrics(math.nan, math.inf, worst=(Element((1, 2), math.nan, 1j, math.inf),))
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (data["cosine_similarity"], data["max_abs_error"]) == ("nan", "inf")
    assert data["worst"] == [{"index": [1, 2], "golden": "nan", "actual": "1j", "error": "inf", "ulp": None}]


# --- choosing what to show ------------------------------------------------------------------------------------------


def test_the_worst_output_is_the_one_with_the_worst_verdict():
    bad = output("b", Verdict.FAIL, Kind.local, m=metrics(0.99))
    assert worst_output([output("a", m=metrics(0.1)), bad, output("c", Verdict.MARGINAL)]) is bad
    assert worst_output([]) is None


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (metrics(0.5), metrics(0.9)),
        (metrics(math.nan), metrics(-1.0, 9.0)),
        (metrics(1.0, 2.0), metrics(1.0, 1.0)),
        (metrics(1.0, non_finite_mismatches=1), metrics(0.5)),
        (None, metrics(0.0)),
    ],
    ids=["cosine", "no cosine", "error", "non-finite", "no metrics"],
)
def test_among_failures_the_worst_is_by_numbers(worse, better):
    first, second = (output("x", Verdict.FAIL, m=m) for m in (worse, better))
    assert worst_output([second, first]) is first
    assert worst_output([first, second]) is first


@pytest.mark.parametrize(
    ("outputs", "layers", "expected"),
    [
        ([], [], Verdict.PASS),
        ([Verdict.PASS, Verdict.MARGINAL], [], Verdict.MARGINAL),
        ([Verdict.PASS], ["fail"], Verdict.FAIL),
        ([Verdict.PASS], ["warning", "pass"], Verdict.PASS),
        ([Verdict.UNSUPPORTED, Verdict.FAIL], [], Verdict.FAIL),
        ([Verdict.UNSUPPORTED, Verdict.PASS], [], Verdict.UNSUPPORTED),
        ([Verdict.FAIL, Verdict.INFRA], ["fail"], Verdict.INFRA),
    ],
)
def test_fold_takes_the_worst(outputs, layers, expected):
    assert fold([output(verdict=v) for v in outputs], [layer(str(i), s) for i, s in enumerate(layers)]) is expected


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_judged_by_its_worst_output():
    bad = output("output[1]", Verdict.FAIL, Kind.bias, "off", m=metrics(0.5, 3.0))
    found = CheckpointResult.of("layer1.0.conv1", [output(m=metrics(0.1)), bad])
    assert (found.verdict, found.kind, found.reason, found.status) == (Verdict.FAIL, Kind.bias, "off", "fail")
    assert found["cosine_similarity"] == found.cosine_similarity == 0.5
    assert found["max_abs_error"] == found.max_abs_error == 3.0
    assert found["status"] == "fail"
    assert found.diverges
    assert found.to_dict() == {"cosine_similarity": 0.5, "max_abs_error": 3.0, "status": "fail"}


def test_a_warning_does_not_diverge():
    found = layer("a", "warning", 0.995)
    assert not found.diverges
    assert found.to_dict()["status"] == "warning"


def test_a_checkpoint_without_metrics_says_why():
    found = CheckpointResult.of("a", [output(verdict=Verdict.FAIL, kind=Kind.shape, reason="golden has shape (2,)")])
    assert found.to_dict() == {"cosine_similarity": "nan", "max_abs_error": "nan", "status": "fail"}
    with pytest.raises(KeyError, match="golden has shape"):
        found["cosine_similarity"]


def test_an_empty_checkpoint_passes():
    assert CheckpointResult.of("a", []).verdict is Verdict.PASS


# --- whole results --------------------------------------------------------------------------------------------------


def test_a_result_is_folded_from_its_parts():
    layers = [layer("a"), layer("b", "warning", 0.995), layer("c", "fail", 0.5), layer("d", "fail", 0.1)]
    result = CheckResult.of([output(verdict=Verdict.FAIL, kind=Kind.spread, reason="off")], layers, api="f")
    assert (result.verdict, result.kind, result.reason) == (Verdict.FAIL, Kind.spread, "off")
    assert result.first_divergence == "c"
    assert list(result.checkpoints) == ["a", "b", "c", "d"]
    assert not result.passed


def test_a_failing_checkpoint_alone_names_itself():
    result = CheckResult.of([output()], [layer("a"), layer("b", "fail")])
    assert result.verdict is Verdict.FAIL
    assert result.reason.startswith("b: ")


@pytest.mark.parametrize(
    ("verdict", "passed"),
    [(Verdict.PASS, True), (Verdict.MODE_DIFF, True), (Verdict.UNSUPPORTED, False), (Verdict.FAIL, False)],
)
def test_passed(verdict, passed):
    assert CheckResult.of([output(verdict=verdict)]).passed is passed


def test_to_dict_follows_the_results_schema():
    bad = output("grad(weight)", Verdict.FAIL, Kind.gradient, "off", m=metrics(0.25, 1.0))
    result = CheckResult.of(
        [output(m=metrics(0.1)), bad],
        [layer("layer1")],
        api="torch.softmax",
        dtype="float16",
        criterion="cosine",
        target="npu:0 (emulated Ascend910B)",
        reproducer="repro.py",
    )
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {k: data[k] for k in ("api", "dtype", "verdict", "kind", "reason", "criterion", "target", "reproducer")} == {
        "api": "torch.softmax",
        "dtype": "float16",
        "verdict": "FAIL",
        "kind": "gradient",
        "reason": "off",
        "criterion": "cosine",
        "target": "npu:0 (emulated Ascend910B)",
        "reproducer": "repro.py",
    }
    assert data["metrics"]["cosine_similarity"] == 0.25
    assert data["checkpoints"] == {"layer1": {"cosine_similarity": 1.0, "max_abs_error": 0.0, "status": "pass"}}
    assert [o["path"] for o in data["outputs"]] == ["output", "grad(weight)"]


def test_results_survive_pickling():
    result = CheckResult.of([output(m=metrics())], [layer("a")], environment={"torch": "2"})
    assert pickle.loads(pickle.dumps(result)) == result


# --- what a person reads --------------------------------------------------------------------------------------------


def text(result):
    return "\n".join(result.render())


def test_the_verdict_comes_first():
    bad = output("output.logits", Verdict.FAIL, Kind.local, "1 of 10 elements is wrong", m=metrics(0.5, 2.0))
    lines = list(CheckResult.of([bad], api="torch.softmax", dtype="float16", target="npu:0").render())
    assert lines[0] == "FAIL (local): torch.softmax, float16, npu:0"
    labels = [line.split(":")[0].strip() for line in lines[1:]]
    assert labels == ["what", "where", "how much", "why"]
    assert "output.logits" in lines[2]
    assert "(2, 5)" in lines[2]
    assert "cosine 0.500000, max abs 2" in lines[3]


def test_worst_elements_are_listed():
    m = metrics(worst=(Element((1, 2), 1.5, math.nan, math.inf), Element((), 3, 4, 1.0)))
    shown = text(CheckResult.of([output(verdict=Verdict.FAIL, kind=Kind.non_finite, m=m)]))
    assert "worst:     [1, 2]  golden 1.5, actual nan, error inf" in shown
    assert "(scalar)  golden 3, actual 4, error 1" in shown


def test_patterns_and_ulp_are_shown():
    m = dataclasses.replace(metrics(), max_ulp=8_388_608, worst=(Element((1, 2), 1.5, 1.625, 0.125, 1_048_576),))
    bad = dataclasses.replace(output(verdict=Verdict.FAIL, m=m), pattern="last 5 of 133 elements")
    result = CheckResult.of([bad], [CheckpointResult.of("layer1", [bad])])
    shown = text(result)
    assert "where:     output, shape (2, 5), float32: last 5 of 133 elements" in shown
    assert "max ulp 8.39e+06" in shown
    assert "error 0.125 (1.05e+06 ulp)" in shown
    assert "first divergence: layer1: last 5 of 133 elements" in shown
    assert result.to_dict()["outputs"][0]["pattern"] == "last 5 of 133 elements"


def test_a_pass_is_short():
    assert len(list(CheckResult.of([output(m=metrics())], [layer("a")] * 1, api="f").render())) == 3


def test_a_nearly_perfect_cosine_is_not_printed_as_one():
    assert "cosine 1 - 3.0e-09" in str(metrics(1 - 3e-9))
    assert "cosine 1.000000" in str(metrics(1.0))


def test_other_failing_outputs_are_counted_not_listed_endlessly():
    many = [output(f"output[{i}]", Verdict.FAIL, Kind.local, "off", m=metrics(0.5 + i / 100)) for i in range(40)]
    shown = text(CheckResult.of(many))
    assert "where:     output[0]" in shown
    assert shown.count("also:") == 6
    assert "34 more outputs" in shown


def test_a_structural_failure_shows_no_numbers_of_another_output():
    wrong = output("output[1]", Verdict.FAIL, Kind.structure, "missing")
    assert "how much" not in text(CheckResult.of([output(m=metrics(0.123)), wrong]))


def test_the_first_divergence_has_its_own_line_and_mark():
    layers = [layer(f"layer{i}.0.conv1", "fail" if i >= 20 else "pass", 0.5 if i >= 20 else 1.0) for i in range(60)]
    shown = text(CheckResult.of([output(verdict=Verdict.FAIL)], layers)).splitlines()
    assert "first divergence: layer20.0.conv1" in [line.strip() for line in shown]
    marked = [line for line in shown if "<- first divergence" in line]
    assert len(marked) == 1
    assert marked[0].split()[0] == "layer20.0.conv1"
    rows = [line.split()[0] for line in shown if line.startswith("    layer")]
    assert rows == [f"layer{i}.0.conv1" for i in range(17, 29)]
    assert "    ... 17 before, all pass" in shown
    assert "    ... 31 after, 31 of them diverge" in shown


def test_warnings_alone_show_the_table_without_a_divergence():
    shown = text(CheckResult.of([output()], [layer("a"), layer("b", "warning", 0.995)]))
    assert "first divergence" not in shown
    assert "warning" in shown


def test_notes_and_the_reproducer_are_shown():
    result = CheckResult.of([output(verdict=Verdict.FAIL)], notes=["HF32 was on"], reproducer="pytest x.py")
    assert "note:      HF32 was on" in text(result)
    assert "reproduce: pytest x.py" in text(result)


def test_a_long_result_stays_readable():
    layers = [layer(f"layer{i}", "fail", 0.5) for i in range(1000)]
    many = [output(f"o{i}", Verdict.FAIL, Kind.local, "off", m=metrics(0.5)) for i in range(1000)]
    assert len(list(CheckResult.of(many, layers).render())) < 40
