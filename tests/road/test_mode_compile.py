"""mode='compile': the callable runs under torch.compile on the target, beside the eager call and beside the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Verdict

pytestmark = pytest.mark.usefixtures("_emulated")


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def check(fn, *args, **options):
    return pa.check(fn, *args, options=pa.CheckOptions(target="emulated", **options))


@pytest.mark.parametrize(
    "make", [Small, lambda: torch.compile(Small(), backend="aot_eager")], ids=["plain", "compiled"]
)
def test_a_model_is_compared_compiled_with_its_gradients(make):
    result = check(make(), torch.randn(4, 8), mode="compile")
    assert result.verdict is Verdict.PASS, str(result)
    assert "grad(inner.a.weight)" in [output.path for output in result.outputs]
    assert any(note.startswith("compiled with") for note in result.notes)
    assert any("eager result" in note for note in result.notes)


def test_a_function_is_compared_compiled():
    result = check(lambda x: torch.tanh(x) * 2.0, torch.randn(4, 8), mode="compile")
    assert result.verdict is Verdict.PASS, str(result)


def test_a_wrong_kernel_fails_compiled_too_and_the_compiler_is_not_blamed():
    right = torch.ops.aten.tanh
    with pa.emulator.override("aten::tanh", lambda *args: right(*args) * 1.01):
        result = check(Small(), torch.randn(4, 8), mode="compile")
    assert result.verdict is Verdict.FAIL
    assert any("none of torch.compile's" in note for note in result.notes), result.notes


def test_layers_of_compiled_code_are_not_called_and_nothing_passes_for_that():
    model = torch.compile(Small(), backend="aot_eager")
    asked = check(model, torch.randn(4, 8), checkpoints=True)
    assert asked.verdict is Verdict.NOT_EXERCISED
    assert "none of the 3 layers to compare was called" in asked.reason
    left = check(model, torch.randn(4, 8))
    assert left.verdict is Verdict.PASS
    assert any("code under torch.compile calls no layers" in note for note in left.notes)


def test_a_layer_that_was_compiled_in_place_is_compared_as_eager_code_and_a_note_says_so():
    model = Small()
    model.a.compile(backend="aot_eager")
    result = check(model, torch.randn(4, 8), checkpoints=True)
    assert result.verdict is Verdict.PASS
    assert any(note.startswith("a: compiled in place") for note in result.notes), result.notes


def test_layers_can_not_be_asked_for_in_compiled_code():
    with pytest.raises(ValueError, match="checkpoints= needs mode='eager'"):
        pa.CheckOptions(mode="compile", checkpoints=True)
    with pytest.raises(ValueError, match="mode='compiled' is not known"):
        pa.CheckOptions(mode="compiled")


@pytest.mark.parametrize("model", [nn.Sequential(), nn.Sequential(nn.Sequential(), nn.Tanh())], ids=["empty", "nested"])
def test_a_module_of_length_0_is_a_module(model):
    result = check(model, torch.randn(4, 8), checkpoints=True)
    assert "Sequential" in result.api
    assert result.verdict in (Verdict.PASS, Verdict.NOT_EXERCISED)
