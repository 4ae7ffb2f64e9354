"""Public bug reports about Ascend devices that disagree with themselves or refuse (rows A of test_bug_reports.py)."""

from __future__ import annotations

import itertools

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Verdict


def here(x):
    """Whether a tensor lies on the device under test."""
    return x.device.type == "npu"


def test_a25_memory_left_over_from_before(check):
    """tile-ai/tilelang-mlir-ascend#99: one gradient is 8e33 in the first run, and clean when it is replayed."""
    runs = itertools.count()

    def fn(x):
        y = x * 2.0
        if here(y):
            y.register_hook(lambda grad: grad + (8e33 if next(runs) == 0 else 0.0))
        return y

    result = check(fn, torch.randn(9, requires_grad=True))
    assert not result.passed, "a clean replay doesn't clear the operator"
    assert result.verdict is Verdict.NONDETERMINISTIC
    assert {o.path: o.verdict for o in result.outputs}["output"] is Verdict.PASS


def test_a33_the_order_of_a_sum_depends_on_the_run(check):
    """vllm-project/vllm-ascend#6623, #9373, #11317, #12610: the device's own spread is the floor."""
    runs = itertools.count()

    def unsteady(x, *args, **kwargs):
        return torch.sum(x, *args, **kwargs) * (1 + next(runs) % 2 * 2**-23)

    with pa.emulator.override("aten::sum.dim_IntList", unsteady):
        result = check(torch.sum, torch.rand(4, 5000), dim=-1, options={"repeats": 4})
    assert result.verdict is Verdict.PASS
    assert any("4 runs of the target differ" in note for note in result.notes)
    lost = itertools.count()
    with pa.emulator.override("aten::sum.dim_IntList", lambda x, *a, **k: x[..., next(lost) % 2 :].sum(-1)):
        result = check(torch.sum, torch.rand(4, 50), dim=-1, options={"repeats": 4})
    assert result.verdict is Verdict.NONDETERMINISTIC


def refusing(words):
    def fn(x):
        if here(x):
            raise RuntimeError(words)
        return x + 1

    return fn


@pytest.mark.parametrize(
    "words",
    [
        "grid 123408 is larger than the limit of 65535",
        "coreDim=65536 exceeds UINT16_MAX",
        "grid (8192, 8): at most 65535 blocks can be launched",
    ],
)
def test_a22_a_launch_that_is_refused_for_its_size(check, words):
    """sgl-project/sglang#10554, triton-lang/triton-ascend#16, vllm-project/vllm-omni#6546: no wrong result."""
    assert check(refusing(words), torch.ones(3)).verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize("words", ["the kernel read more than it was given", "index 70000 exceeds the buffer"])
def test_an_error_that_merely_compares_numbers_stays_a_crash(check, words):
    assert check(refusing(words), torch.ones(3)).verdict is Verdict.CRASH


def test_a41_a_private_format_that_a_shape_can_not_have(check):
    """vllm-project/vllm-ascend#10287: the weight format is refused where n or k is 1."""
    result = check(refusing("format 29 is not supported for a weight of shape (1, 2048)"), torch.ones(1, 2048))
    assert result.verdict is Verdict.UNSUPPORTED
    assert "format 29" in result.reason
