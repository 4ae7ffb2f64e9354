"""MiniLM, Llama and ResNet-18 in small: right ones pass at every checkpoint, each planted fault is named at its layer.

The models and faults are those of benchmarks/judgement/models.py, which prints the same for the full sizes.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.judgement import models
from pytest_ascend.judge.verdict import Verdict

pytest.importorskip("transformers")

SUBJECTS = {name: make(small=True) for name, make in models.SUBJECTS.items()}
FAULTS = [(name, fault) for name, subject in SUBJECTS.items() for fault in subject.faults]
# The benchmark tries all in every dtype; here all in bfloat16, where only isolation sees many, and some in the others.
CASES = [(name, fault, torch.bfloat16) for name, fault in FAULTS]
CASES += [("minilm", fault, torch.float32) for fault in SUBJECTS["minilm"].faults[::2]]
CASES += [("llama", fault, torch.float16) for fault in SUBJECTS["llama"].faults[:4]]
CASES += [("resnet18", fault, torch.float32) for fault in SUBJECTS["resnet18"].faults[1:3]]


def name_of(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else getattr(value, "name", value)


@pytest.fixture
def exact(_emulated):
    """The chip's modes off: HF32 in convolutions and its own gelu are on by default."""
    with _emulated.without(*_emulated.switches()):
        yield


@pytest.mark.parametrize("dtype", models.DTYPES, ids=name_of)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_right_model_passes_at_every_checkpoint(exact, name, dtype):
    result = SUBJECTS[name].check(dtype)
    assert result.verdict is Verdict.PASS, str(result)
    assert {checkpoint.status for checkpoint in result.checkpoints.values()} == {"pass"}
    assert len(result.checkpoints) >= 5
    assert result.notes == ()


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("name", "fault", "dtype"), CASES, ids=name_of)
def test_a_planted_fault_is_named_at_its_layer(name, fault, dtype):
    result = SUBJECTS[name].check(dtype, fault)
    assert models.expected(result, fault, dtype), str(result)
    if result.first_divergence is not None:
        assert "with equal inputs" in result.checkpoints[result.first_divergence].reason


@pytest.mark.parametrize("name", ["minilm", "llama"])
def test_hf32_is_a_mode(exact, name):
    torch.npu.matmul.allow_hf32 = True
    try:
        result = SUBJECTS[name].check(torch.float32)
        fault = SUBJECTS[name].faults[0]
        wrong = SUBJECTS[name].check(torch.float32, fault)
    finally:
        torch.npu.matmul.allow_hf32 = False
    assert result.verdict is Verdict.MODE_DIFF, str(result)
    assert "HF32" in result.reason
    assert result.first_divergence is None
    assert wrong.verdict is Verdict.FAIL
    assert wrong.first_divergence == fault.named, "the mode is off everywhere, the fault in one layer"


@pytest.mark.usefixtures("_emulated")
def test_hf32_in_convolutions_is_a_mode():
    assert torch.npu.conv.allow_hf32, "on by default"
    result = SUBJECTS["resnet18"].check(torch.float32)
    assert result.verdict is Verdict.MODE_DIFF, str(result)
    assert "HF32 (11 mantissa bits) in convolution" in result.reason


@pytest.mark.parametrize("name", ["minilm", "llama"])
def test_bfloat16_hides_one_per_cent_from_all_but_isolation(exact, name):
    fault = SUBJECTS[name].faults[0]
    whole = SUBJECTS[name].check(torch.bfloat16, fault, isolate=False)
    assert whole.verdict is Verdict.PASS, "the whole run sees it now: isolation needn't be the default any more"
    assert SUBJECTS[name].check(torch.bfloat16, fault).first_divergence == fault.named


@pytest.mark.parametrize("dtype", models.DTYPES, ids=name_of)
@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("name", ["minilm", "llama"])
def test_without_isolation_the_error_curve_names_the_layer(exact, name, number, dtype):
    """A stale channel, and heads that changed places: both are seen in every dtype."""
    fault = SUBJECTS[name].faults[number]
    result = SUBJECTS[name].check(dtype, fault, isolate=False)
    assert result.first_divergence == fault.named, str(result)
    assert "units here" in result.checkpoints[fault.named].reason


def test_the_reason_says_how_large_the_step_is(exact):
    fault = SUBJECTS["minilm"].faults[0]
    result = SUBJECTS["minilm"].check(torch.float32, fault)
    assert "error rms" in result.checkpoints[fault.named].reason
    assert "before (the CPU's own: " in result.checkpoints[fault.named].reason
