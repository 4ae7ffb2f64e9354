"""Which operator did it: wrong kernels below four models are found by name, layer and pass, and nobody else is blamed.

The faults are those of benchmarks/culprits/faults.py, which tries all forty.
"""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import pytest_ascend as pa
from benchmarks.culprits import faults as planted
from pytest_ascend.cases.case import Case
from pytest_ascend.judge.culprit import Culprit
from pytest_ascend.judge.verdict import CheckResult, Verdict
from pytest_ascend.observe import ops

pytest.importorskip("transformers")

# The benchmark tries all forty; here those that differ in kind.
CHOSEN = [
    ("minilm", "addmm"),
    ("minilm", "gelu_backward"),
    ("llama", "rsqrt"),
    ("llama", "neg"),
    ("llama", "_softmax_backward_data"),
    ("resnet18", "max_pool2d_with_indices"),
    ("resnet18", "native_batch_norm_backward"),
    ("lstm", "sigmoid"),
    ("lstm", "_log_softmax"),
    ("lstm", "_log_softmax_backward_data"),
]
LONG = ("addmm", "rsqrt", "native_batch_norm_backward")
FAULTS = [
    pytest.param(
        name,
        next(f for f in planted.MODELS[name][1] if f.op == op),
        id=f"{name}-{op}",
        marks=[pytest.mark.whole] * (op in LONG),
    )
    for name, op in CHOSEN
]


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_wrong_kernel_is_named_with_its_layer_and_pass(name, fault):
    outcome = planted.examine(name, fault)
    assert outcome.result.verdict is Verdict.FAIL
    assert outcome.op, str(outcome.result)
    assert outcome.module, str(outcome.result.culprit)
    assert outcome.divergence, str(outcome.result)
    assert outcome.victims == ()


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_too(dtype):
    fault = next(f for f in planted.MODELS["minilm"][1] if f.op == "native_layer_norm")
    outcome = planted.examine("minilm", fault, dtype)
    assert (outcome.op, outcome.module, outcome.divergence, outcome.victims) == (True, True, True, ()), outcome.result


@pytest.mark.usefixtures("_emulated")
def test_modes_that_a_model_carries_far_are_no_fault():
    """Normalisation over two values and relus near zero: HF32 moves gradients by any amount."""
    model, inputs = planted.MODELS["resnet18"][0]()
    options = pa.CheckOptions(target="emulated", backward=True, checkpoints=True)
    result = pa.check(model.train(), options=options, **inputs)
    assert result.verdict is Verdict.MODE_DIFF, str(result)
    assert "HF32" in result.reason
    assert result.culprit is None


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * 2.0)


def wrong(op, damage):
    right = getattr(torch.ops.aten, op)
    return pa.emulator.override(f"aten::{op}", lambda *args, **kwargs: damage(right(*args, **kwargs)))


def check(fn, *args, **options):
    return pa.check(fn, *args, options=pa.CheckOptions(target="emulated", **options))


@pytest.mark.usefixtures("_emulated")
def test_the_result_tells_operator_inputs_layer_and_line():
    with wrong("tanh", lambda y: y * 1.01):
        result = check(Chain(), torch.randn(4, 8))
    culprit = result.culprit
    assert (culprit.op, culprit.inputs, culprit.phase, culprit.module) == (
        "aten.tanh.default",
        ("float32[4, 8]",),
        "forward",
        "",
    )
    assert culprit.confirmed
    assert "test_culprits.py" in culprit.source
    assert "forward" in culprit.source
    assert 1 <= culprit.number <= culprit.total
    text = str(result)
    assert "culprit:   aten.tanh.default(float32[4, 8])" in text
    assert "test_culprits.py" in text
    assert result.to_dict()["culprit"]["op"] == "aten.tanh.default"
    assert Culprit.of(result.to_dict()["culprit"]) == culprit == pickle.loads(pickle.dumps(culprit))


@pytest.mark.usefixtures("_emulated")
def test_in_place_operators_and_those_that_return_nothing_are_judged_by_what_they_change():
    class Changes(nn.Module):
        def forward(self, x):
            y = x.clone()
            y.mul_(3.0)
            return y - 1.0

    with wrong("mul", lambda y: y * 1.01):
        result = check(Changes(), torch.randn(4, 8))
    assert result.culprit.op == "aten.mul_.Tensor"
    assert result.culprit.confirmed


@pytest.mark.usefixtures("_emulated")
def test_a_function_of_several_operators_has_a_culprit_and_one_operator_has_none():
    def several(x):
        return torch.tanh(x) + torch.exp(x)

    with wrong("exp", lambda y: y * 1.01):
        assert check(several, torch.randn(4, 8)).culprit.op == "aten.exp.default"
        alone = check(torch.exp, torch.randn(4, 8))
    assert alone.verdict is Verdict.FAIL
    assert alone.culprit is None


@pytest.mark.usefixtures("_emulated")
def test_code_that_does_something_else_on_the_device_has_no_culprit_and_says_so():
    class Differs(nn.Module):
        def forward(self, x):
            y = torch.tanh(x)
            return y * 1.5 if x.device.type == "npu" else y * 2.0

    result = check(Differs(), torch.randn(4, 8))
    assert result.verdict is Verdict.FAIL
    assert result.culprit is None
    assert any("operators that were judged is right" in note for note in result.notes), result.notes


@pytest.mark.usefixtures("_emulated")
def test_bisection_can_be_switched_off():
    with wrong("tanh", lambda y: y * 1.01):
        result = check(Chain(), torch.randn(4, 8), bisect=False)
    assert result.verdict is Verdict.FAIL
    assert result.culprit is None


@pytest.mark.usefixtures("_emulated")
def test_a_kernel_that_is_right_alone_is_suspected_and_not_confirmed():
    """It is wrong after another operator left something behind."""
    left = [False]

    class After(nn.Module):
        def forward(self, x):
            return torch.tanh(torch.exp(x)) * 2.0

    def leaves_something(y):
        left[0] = True
        return y

    def stumbles(y):
        was, left[0] = left[0], False
        return y * 1.01 if was else y

    with wrong("exp", leaves_something), wrong("tanh", stumbles):
        result = check(After(), torch.randn(4, 8))
    assert result.culprit.op == "aten.tanh.default"
    assert not result.culprit.confirmed
    assert "run alone it is right" in str(result)


@pytest.fixture
def device(_emulated):
    return _emulated


def test_an_error_of_a_suspect_alone_is_told(device):
    case = Case(Chain(), (torch.randn(4, 8),))
    from pytest_ascend.check import _Check
    from pytest_ascend.observe.reference import Reference

    checked = _Check(case, device, pa.CheckOptions(target="emulated"), None)
    look = checked._look(Reference.of(case, checked.setting, checked.criterion, None), {})

    def raises(_: Case) -> CheckResult:
        raise RuntimeError("no such kernel alone")

    with wrong("tanh", lambda y: y * 1.01):
        found = ops.bisect(look, raises)
    assert not found.cleared
    assert not found.culprit.confirmed
    assert "alone it raised RuntimeError: no such kernel alone" in found.culprit.reason


def test_what_one_side_leaves_empty_is_no_fault():
    """In evaluation a batch norm's saved statistics are empty on one device and zeros on another."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)).eval()

    def wrong_pool(x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        y, where = torch.ops.aten.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)
        return y * 1.01, where

    with pa.emulator.override("aten::max_pool2d_with_indices", wrong_pool):
        result = check(model, torch.randn(2, 3, 24, 24))
    assert result.culprit.op == "aten.max_pool2d_with_indices.default"
    assert result.culprit.confirmed
    assert result.culprit.module == "3"
