"""The header line and the ascend section: what is said, where, and how much of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_ascend.report import terminal
from pytest_ascend.report.terminal import Line, header, summary, worst_layer

MODEL = """
import pytest
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_model(dtype, pretend, ascend_compare):
    layer = pretend.layer
    layers = [layer("conv1", cosine=0.9999, max_abs=0.5), layer("fc", cosine=0.99, max_abs=0.25)]
    pretend("PASS", dtype=dtype, layers=layers)
    ascend_compare(abs, 1)
def test_broken(pretend, ascend_compare):
    layer = pretend.layer
    pretend("FAIL", layers=[layer("conv1"), layer("layer2.0.conv1", "fail", 0.5, 2.0), layer("fc", "fail", 0.25, 4.0)],
            first_divergence="layer2.0.conv1")
    ascend_compare(abs, 1)
"""


def record(verdict: str = "PASS", outcome: str = "passed", **fields: Any) -> dict[str, Any]:
    base = {
        "nodeid": "test_a.py::test_it", "api": "torch.relu", "dtype": "float32", "kind": None, "reason": "why",
        "target": "npu:0", "metrics": {}, "checkpoints": {}, "first_divergence": None, "reproducer": "pytest a",
    }  # fmt: skip
    return {**base, "verdict": verdict, "outcome": outcome, **fields}


def layers(**cosines: Any) -> dict[str, Any]:
    return {n: {"cosine_similarity": c, "max_abs_error": 0.5, "status": "pass"} for n, c in cosines.items()}


def texts(*records: dict[str, Any], verbosity: int = 0) -> list[str]:
    return [line.text for line in summary(records, verbosity)]


def test_a_failure_says_where() -> None:
    right = {"path": "output[0]", "status": "pass", "pattern": ""}
    wrong = {"path": "output[1]", "status": "fail", "pattern": "channel 3 (dim 1)"}
    assert "    where: output[1]: channel 3 (dim 1)" in texts(record("FAIL", "failed", outputs=[right, wrong]))
    assert not [line for line in texts(record("FAIL", "failed", outputs=[right])) if "where" in line]


def test_models_are_listed_with_their_worst_layer(run) -> None:
    result = run(MODEL)
    result.stdout.fnmatch_lines(
        [
            "*= ascend =*",
            "FAIL  *::test_broken",
            "    torch.relu float32: pretended FAIL",
            "    first divergence: layer2.0.conv1",
            "    reproduce: pytest *::test_broken --ascend-compare=cpu",
            "models, each with its worst layer:",
            "        dtype    layers  worst layer  cosine    max abs   test",
            "  PASS  float32  2       fc           0.990000  2.50e-01  *::test_model?float32?",
            "  PASS  float16  2       fc           0.990000  2.50e-01  *::test_model?float16?",
            "  FAIL  float32  3       fc           0.250000  4.00e+00  *::test_broken",
            "ascend: 3 compared on npu:0: 2 PASS, 1 FAIL",
        ],
        consecutive=False,
    )


def test_quiet_prints_one_line(run) -> None:
    result = run(MODEL, "-q")
    result.stdout.no_fnmatch_line("*= ascend =*")
    result.stdout.no_fnmatch_line("models,*")
    result.stdout.fnmatch_lines(["ascend: 3 compared on npu:0: 2 PASS, 1 FAIL"])


def test_very_quiet_prints_nothing(run) -> None:
    run(MODEL, "-qq").stdout.no_fnmatch_line("ascend: 3*")


def test_off_nothing_is_printed(pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_inprocess().stdout.no_fnmatch_line("*ascend:*")


def test_header_on_the_emulated_device(run) -> None:
    result = run("def test_it(): pass", "--ascend-compare=emulated")
    result.stdout.fnmatch_lines(["ascend: npu:0 (emulated Ascend910B), torch 2.*, hf32 conv on / matmul off*"])


def test_nothing_compared_is_said(run) -> None:
    result = run("def test_it(): pass")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ascend: --ascend-compare was given but nothing was compared*"])


def test_nothing_compared_fails_a_strict_run(run) -> None:
    assert run("def test_it(): pass", "--ascend-strict").ret == pytest.ExitCode.TESTS_FAILED


def test_nothing_compared_keeps_a_worse_exit_status(run) -> None:
    assert run("", "--ascend-strict").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_collecting_only_says_nothing(run) -> None:
    run("def test_it(): pass", "--collect-only").stdout.no_fnmatch_line("*nothing was compared*")


def test_reproduce_quotes_and_repeats_options(run) -> None:
    source = """
        import pytest
        @pytest.mark.parametrize("x", ["a b"])
        def test_it(x, pretend, ascend_compare):
            pretend("FAIL")
            ascend_compare(abs, x)
        """
    result = run(
        source, "--ascend-criterion=cosine", "--ascend-max-abs=0.001", "--ascend-checkpoints=none", "--ascend-json=a"
    )
    wanted = (
        "    reproduce: pytest 'test_reproduce_quotes_and_repeats_options.py::test_it?a b?' --ascend-compare=cpu "
        "--ascend-criterion=cosine --ascend-max-abs=0.001 --ascend-checkpoints=none"
    )
    result.stdout.fnmatch_lines([wanted, f"E   {wanted[2:]}"][:1])


def test_reproduce_works_as_printed(run, pytester) -> None:
    run(MODEL)
    import shlex

    printed = run(MODEL).stdout.str().split("    reproduce: ")[-1].splitlines()[0]
    pytester.runpytest_inprocess("-p", "no:cacheprovider", *shlex.split(printed)[1:]).assert_outcomes(failed=1)


def test_failures_come_worst_first() -> None:
    lines = texts(
        record("FAIL", "failed", nodeid="mild", metrics={"cosine_similarity": 0.9}),
        record("CRASH", "failed", nodeid="crash"),
        record("FAIL", "failed", nodeid="nan", metrics={"cosine_similarity": "nan"}),
        record("FAIL", "failed", nodeid="bad", metrics={"cosine_similarity": 0.1}),
        record("INFRA", "error", nodeid="sick"),
    )
    assert [line.split()[1] for line in lines if not line.startswith((" ", "ascend"))] == [
        "sick",
        "crash",
        "nan",
        "bad",
        "mild",
    ]


def test_counts_go_from_mild_to_bad_and_tell_expected_apart() -> None:
    records = [record("FAIL", "failed"), record("FAIL", "expected"), record(), record("MODE_DIFF", "noted"), record()]
    assert texts(*records, verbosity=-1) == [
        "ascend: 5 compared on npu:0: 2 PASS, 1 MODE_DIFF, 1 FAIL, 1 FAIL (expected)"
    ]


def test_every_target_is_named_once() -> None:
    records = [record(), record(target="cpu"), record()]
    assert texts(*records, verbosity=-1) == ["ascend: 3 compared on npu:0, cpu: 3 PASS"]


@pytest.mark.parametrize(
    ("outcome", "colour"), [("passed", "green"), ("failed", "red"), ("error", "red"), ("noted", "green")]
)
def test_the_closing_line_is_coloured_by_the_worst(outcome, colour) -> None:
    verdict = {"failed": "FAIL", "error": "INFRA", "noted": "MODE_DIFF"}.get(outcome, "PASS")
    assert next(summary([record(verdict, outcome)], -1)).colour == colour


@pytest.mark.parametrize(
    ("cosines", "worst"),
    [
        ({"a": 0.9, "b": 0.8, "c": 1.0}, "b"),
        ({"a": 0.9, "b": "nan"}, "b"),
        ({"a": 1.0, "b": 1.0}, "a"),
        ({"a": "nan", "b": -1.0}, "a"),
    ],
)
def test_worst_layer(cosines, worst) -> None:
    layer = worst_layer(record(checkpoints=layers(**cosines)))
    assert layer is not None
    assert layer.name == worst


def test_a_failing_layer_is_worse_than_any_passing_one() -> None:
    checkpoints = layers(a=0.5, b=0.99)
    checkpoints["b"]["status"] = "fail"
    layer = worst_layer(record(checkpoints=checkpoints))
    assert layer is not None
    assert layer.name == "b"


def test_equal_cosines_are_told_apart_by_error() -> None:
    checkpoints = layers(a=1.0, b=1.0)
    checkpoints["b"]["max_abs_error"] = "inf"
    layer = worst_layer(record(checkpoints=checkpoints))
    assert layer is not None
    assert (layer.name, layer.max_abs) == ("b", math.inf)


def test_no_layers_no_worst_layer_and_no_table() -> None:
    assert worst_layer(record()) is None
    assert not any("models" in text for text in texts(record()))


def test_header_words() -> None:
    description = {
        "versions": {"torch": "2.14.0", "torch_npu": "2.14.0", "cann": "8.5", "python": "3.11.7"},
        "modes": {"hf32_matmul": False, "hf32_conv": True, "overflow_mode": "inf_nan"},
    }
    assert header("npu:0 (Ascend910B)", description) == (
        "ascend: npu:0 (Ascend910B), torch 2.14.0, torch_npu 2.14.0, cann 8.5, hf32 conv on / matmul off, "
        "overflow inf_nan"
    )
    assert header("cpu", {"versions": {}, "modes": {}}) == "ascend: cpu"


def test_lines_have_a_colour_pytest_knows() -> None:
    allowed = {"", "red", "green", "yellow", "bold"}
    records = [
        record(v, o, checkpoints=layers(a=1.0))
        for v, o in [("PASS", "passed"), ("FAIL", "failed"), ("FAIL", "expected")]
    ]
    assert {line.colour for line in summary(records)} <= allowed
    assert Line("x").colour == ""
    assert terminal.Line is Line


def test_reproduce_from_another_folder(pytester, monkeypatch, run) -> None:
    folder = pytester.mkdir("inner")
    pytester.makeini("[pytest]")
    pytester.makepyfile("def test_it(pretend, ascend_compare):\n    pretend('FAIL')\n    ascend_compare(abs, 1)")
    monkeypatch.chdir(folder)
    result = pytester.runpytest_inprocess("--ascend-compare=cpu", "..")
    name = "../test_reproduce_from_another_folder.py::test_it"
    result.stdout.fnmatch_lines([f"    reproduce: pytest {name} --ascend-compare=cpu"])
