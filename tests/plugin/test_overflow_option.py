"""``--ascend-overflow``: tests that are watched, what fails them, and what the terminal and the results file say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pytest_ascend.report.results_json import SCHEMA

HEAD = """
import pytest
import torch
from torch import nn

HALF = torch.float16

def rms_norm(x, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
"""

TESTS = """
def test_lstm(ascend_device):
    torch.manual_seed(0)
    lstm = nn.LSTM(16, 8).to(ascend_device, HALF)
    x = torch.randn(5, 2, 16)
    x[2, 1, 3] = 91234.5
    lstm(x.half().to(ascend_device))

def test_hidden(ascend_device):
    x = torch.ones(4, 64, device=ascend_device, dtype=HALF)
    x[1] = 8000.0
    assert rms_norm(x).isfinite().all()

def test_mask(ascend_device):
    q = torch.randn(2, 8, 16, device=ascend_device, dtype=HALF)
    mask = torch.full((8, 8), float("-inf"), device=ascend_device, dtype=HALF).triu(1)
    torch.softmax(q @ q.transpose(-1, -2) / 4 + mask, -1)

def test_plain():
    assert 1 + 1 == 2

def test_on_the_cpu():
    torch.full((4,), 300.0, dtype=HALF).square()
"""


@pytest.fixture
def watch(pytester):
    """Run a file under ``--ascend-overflow``; ``(result, records)``, records by test."""

    def watch(source, *args, subprocess=False):
        pytester.makepyfile(HEAD + source)
        fixed = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--ascend-overflow", "--ascend-json=out.json")
        runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        done = runner(*fixed, *args)
        written = Path(pytester.path, "out.json")
        records = json.loads(written.read_text())["results"] if written.exists() else []
        return done, {record["nodeid"].partition("::")[2]: record for record in records}

    return watch


def test_around_any_test(watch):
    done, records = watch(TESTS)
    done.assert_outcomes(passed=3, failed=2)
    assert set(records) == {"test_lstm", "test_hidden", "test_mask"}  # the others ran nothing on the target
    lstm, hidden = records["test_lstm"], records["test_hidden"]
    assert (lstm["verdict"], lstm["kind"], lstm["criterion"]) == ("FAIL", "overflow", "overflow")
    found = lstm["overflows"][0]
    assert list(found)[:6] == ["op_name", "op_type", "overflow_type", "input_dtype", "input_max", "issue_hint"]
    assert (found["op_type"], found["overflow_type"], found["input_dtype"]) == ("MatMul", "overflow_up", "float16")
    assert found["input_max"] == 91234.5
    assert found["op_name"] == "LSTM.MatMul"
    assert hidden["overflows"][0]["overflow_type"] == "overflow_hidden"
    assert records["test_mask"]["overflows"] == []
    assert records["test_mask"]["verdict"] == "PASS"
    done.stdout.fnmatch_lines(
        [
            "*overflow_up: LSTM.MatMul made Inf from float16 inputs up to 91234.5*",
            "*float16 input overflow: MatMul is given float32 values*",
            "overflow  *::test_lstm",
            "    overflow_up: LSTM.MatMul (aten::_to_copy), float16 inputs up to 91234.5, result Inf",
            "      where: LSTM, *:*",
            "      hint: *scale or normalise its input*",
            "      went on to: *",
            "overflow  *::test_hidden",
            "overflow: 3 watched on npu:0*: 2 failed by an overflow",
        ]
    )
    done.stdout.no_fnmatch_line("*compared on*")


def test_the_results_fit_the_schema(watch):
    jsonschema = pytest.importorskip("jsonschema")
    _, records = watch(TESTS)
    schema = {"$defs": SCHEMA["$defs"], "$ref": "#/$defs/result"}
    for record in records.values():
        jsonschema.validate(record, schema)
    keys = set(SCHEMA["$defs"]["result"]["properties"]["overflows"]["items"]["properties"])
    assert {key for record in records.values() for found in record["overflows"] for key in found} <= keys


def test_under_xdist(watch):
    done, records = watch(TESTS, "-n", "2", subprocess=True)
    done.assert_outcomes(passed=3, failed=2)
    assert records["test_lstm"]["overflows"][0]["input_max"] == 91234.5
    done.stdout.fnmatch_lines(["overflow: 3 watched on npu:0*: 2 failed by an overflow"])


def test_backward_and_loss_scaling(watch):
    done, records = watch(
        """
@pytest.mark.parametrize("scale", [2.0 ** 8, 2.0 ** 24])
def test_amp(ascend_device, scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(ascend_device)
    best, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("npu", init_scale=scale)
    with torch.autocast("npu", dtype=HALF):
        loss = model(torch.randn(4, 8, device=ascend_device)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(best)

def test_without_a_scaler(ascend_device):
    torch.manual_seed(0)
    model = nn.Linear(8, 1).to(ascend_device, HALF)
    (model(torch.randn(4, 8, device=ascend_device, dtype=HALF)).float().sum() * 1e6).backward()
"""
    )
    done.assert_outcomes(passed=2, failed=1)
    assert [r["verdict"] for r in records.values()] == ["PASS", "NOT_COMPARABLE", "FAIL"]
    handled = records["test_amp[16777216.0]"]
    assert all(found["handled"] for found in handled["overflows"])
    assert handled["outcome"] == "noted"
    assert records["test_without_a_scaler"]["overflows"][0]["pass"] == "backward"
    done.stdout.fnmatch_lines(["*a loss scaler saw it and skipped the step"])


def test_strict_fails_what_is_noted(watch):
    source = """
def test_some(ascend_device):
    x = torch.ones(1000, device=ascend_device)
    x[:700] = 1e-6
    x.half() + 1
"""
    done, records = watch(source)
    done.assert_outcomes(passed=1)
    assert records["test_some"]["overflows"][0]["overflow_type"] == "overflow_down"
    watch(source, "--ascend-strict")[0].assert_outcomes(failed=1)


def test_a_failing_test_keeps_its_error(watch):
    done, records = watch(
        """
def test_wrong(ascend_device):
    y = torch.full((4,), 300.0, device=ascend_device, dtype=HALF).square()
    assert y.isfinite().all(), "not finite"

@pytest.mark.xfail(strict=True)
def test_expected(ascend_device):
    torch.full((4,), 300.0, device=ascend_device, dtype=HALF).square()

def test_skipped(ascend_device):
    torch.full((4,), 300.0, device=ascend_device, dtype=HALF).square()
    pytest.skip("later")
"""
    )
    done.assert_outcomes(failed=1, xfailed=1, skipped=1)
    done.stdout.fnmatch_lines(["*AssertionError: not finite*"])
    assert records["test_wrong"]["verdict"] == "FAIL"
    assert records["test_expected"]["outcome"] == "expected"
    assert set(records) == {"test_wrong", "test_expected"}


COMPARED = """
def test_both(ascend_compare):
    ascend_compare(torch.square, torch.full((64,), 300.0, dtype=HALF))

def test_fine(ascend_compare):
    ascend_compare(torch.square, torch.arange(64, dtype=HALF))

class Norm(nn.Module):
    def forward(self, x):
        return rms_norm(x)

def test_hidden_on_both(ascend_compare):
    x = torch.randn(4, 64, dtype=HALF)
    x[1] *= 4000
    ascend_compare.using(criterion="close", rtol=9.0, atol=9.0).check(Norm(), x)
"""


def test_what_the_cpu_overflows_in_too_is_a_note(watch):
    done, records = watch(COMPARED, "--ascend-compare=emulated")
    both = records["test_both"]
    assert both["outcome"] in ("passed", "noted")
    assert both["overflows"][0]["also_on_cpu"] is True
    assert any("the CPU as well" in note for note in both["notes"])
    assert records["test_fine"]["overflows"] == []
    assert all(found["also_on_cpu"] for found in records["test_hidden_on_both"]["overflows"])
    done.stdout.fnmatch_lines(["*the CPU overflows there too", "overflow: 3 watched on npu:0*"])


PLANTED = """
import pytest_ascend as pa

def overflowing(x, y):
    return (x.double() * 100.0).matmul(y.double()).half() * 0.01 if x.abs().max() > 10 else x.matmul(y)

def test_planted(ascend_compare):
    torch.manual_seed(0)
    layer = nn.Linear(16, 8, bias=False).half()
    with pa.emulator.override("aten::mm", lambda x, y: x.float().mm(y.float() * 1e5).half()):
        ascend_compare(layer, torch.randn(4, 16, dtype=HALF))

def test_right(ascend_compare):
    torch.manual_seed(0)
    ascend_compare(nn.Linear(16, 8, bias=False).half(), torch.randn(4, 16, dtype=HALF))
"""


def test_an_overflow_of_the_targets_alone_fails(watch):
    done, records = watch(PLANTED, "--ascend-compare=emulated")
    done.assert_outcomes(passed=1, failed=1)
    planted = records["test_planted"]
    assert (planted["verdict"], planted["kind"]) == ("FAIL", "overflow")
    assert "MatMul made Inf" in planted["reason"]
    assert planted["overflows"][0]["also_on_cpu"] is False
    assert records["test_right"]["overflows"] == []


def test_a_check_within_a_test_is_not_watched_from_outside(watch):
    _, records = watch(
        """
import pytest_ascend as pa

def test_it(ascend_device):
    torch.ones(3, device=ascend_device) + 1
    pa.check(torch.square, torch.full((64,), 300.0, dtype=HALF), options=pa.CheckOptions(target="emulated"))
"""
    )
    assert records["test_it"]["overflows"] == []


@pytest.mark.whole
def test_what_is_compared_stays_compiled(watch):
    """torch runs compiled code eagerly while it is watched, so the runs that are judged are not."""
    _, records = watch(
        """
def test_compiled(ascend_compare):
    ascend_compare.using(mode="compile")(torch.square, torch.full((64,), 300.0, dtype=HALF))
""",
        "--ascend-compare=emulated",
        subprocess=True,
    )
    record = records["test_compiled"]
    assert record["verdict"] == "PASS"
    assert any("compiled with" in note for note in record["notes"])
    assert record["overflows"][0]["also_on_cpu"] is True


def test_compiled_code_is_told(watch):
    done, records = watch(
        """
def test_compiled(ascend_device):
    fn = torch.compile(lambda x: torch.sin(x) * 2, backend="aot_eager")
    fn(torch.ones(4, device=ascend_device))
""",
        subprocess=True,  # torch's compiler can't be loaded twice in a process
    )
    done.assert_outcomes(passed=1)
    assert any("compiled" in note for note in records["test_compiled"]["notes"])


def test_beside_a_recording(watch):
    _, records = watch(TESTS, "--ascend-record=dumps")
    assert records["test_lstm"]["overflows"][0]["op_name"] == "LSTM.MatMul"
    assert Path("dumps").is_dir()


def test_listed_cases_are_watched(watch):
    """Operators of the catalogue, special values among them: what overflows on the CPU as well fails nothing."""
    done, records = watch("", "--ascend-compare=emulated", "--ascend-api=torch.square", "--ascend-dtypes=float16")
    assert done.ret == 0
    assert len(records) > 3
    assert all(record["overflows"] is not None for record in records.values())


def test_nothing_was_watched(watch):
    done, records = watch("def test_plain(): pass")
    assert not records
    done.stdout.fnmatch_lines(["ascend: --ascend-overflow was given but no test ran an operator on *"])
    assert watch("def test_plain(): pass", "--ascend-strict")[0].ret == 1


def test_from_the_ini_file(pytester):
    pytester.makeini("[pytest]\nascend_overflow = true\nascend_compare = emulated\n")
    pytester.makepyfile(HEAD + TESTS)
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=3, failed=2)


def test_off_nothing_is_watched(pytester):
    pytester.makepyfile(HEAD + TESTS)
    args = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--ascend-compare=emulated")
    pytester.runpytest_inprocess(*args).assert_outcomes(passed=5)


def test_options_of_a_check():
    import pytest_ascend as pa

    x = torch.full((64,), 300.0, dtype=torch.float16)
    watched = pa.check(torch.square, x, options=pa.CheckOptions(target="emulated", overflow=True))
    assert watched.overflows
    assert watched.overflows[0]["op_type"] == "Pow"
    assert pa.check(torch.square, x, options=pa.CheckOptions(target="emulated")).overflows is None
    with pytest.raises(TypeError, match="True or False"):
        pa.CheckOptions(overflow="yes")
