"""Public bug reports about the checkers themselves (rows C of the list in test_bug_reports.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    """Whether a tensor lies on the device under test."""
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


class Out(NamedTuple):
    logits: torch.Tensor
    state: Any
    cache: Any


# ------------------------------------------------------------------------------------------ one metric is blind


def one_off():
    golden = torch.randn(100_000)
    actual = golden.clone()
    actual[777] += 0.9
    return golden, actual


SMALL = torch.linspace(-1, 1, 1000) * 1e-4
PUBLISHED_RULE_PASSES = {
    "twice_a_small_tensor": lambda: (SMALL, SMALL * 2),
    "noise_of_a_third": lambda: (SMALL, SMALL + 0.3 * SMALL.square().mean().sqrt() * torch.randn(1000)),
    "another_constant": lambda: (torch.full((100,), 0.5), torch.full((100,), 0.75)),
    "one_of_many": one_off,
}


@pytest.mark.parametrize("name", PUBLISHED_RULE_PASSES)
def test_c01_what_cosine_or_absolute_error_lets_pass(name):
    """CANN 7.0, AImpug_000197: fails only if (cosine < 0.99 and error > 1e-3) or cosine < 0.9 or error > 1."""
    golden, actual = PUBLISHED_RULE_PASSES[name]()
    result = pa.compare(golden, actual)
    m = result.metrics
    poor = (m.cosine_similarity < 0.99 and m.max_abs_error > 1e-3) or m.cosine_similarity < 0.9 or m.max_abs_error > 1
    assert not poor, "the published rule says yes"
    assert result.verdict is Verdict.FAIL


def test_c01_what_the_rule_calls_wrong(check):
    """CANN 7.0, AImpug_000197: one unit in the last place of a float16 near 3000 is an error of 2."""
    golden = torch.linspace(2900, 3100, 64).half()
    actual = golden + torch.where(torch.arange(64) % 2 > 0, 2.0, -2.0).half()
    result = pa.compare(golden.double(), actual)
    assert result.verdict is Verdict.PASS
    assert result.metrics.max_abs_error == 2
    assert check(lambda x: x * 1.01, golden).verdict is Verdict.PASS


@pytest.mark.parametrize("criterion", ["auto", "cosine", "close", "exact"])
def test_c02_nothing_against_nothing(criterion):
    """pytorch/torchdynamo#587; kendryte/nncase#1110, #1205: no cosine of zeros, or beside an infinity."""
    zeros = torch.zeros(9)
    assert pa.compare(zeros, zeros.clone(), criterion=criterion).verdict is Verdict.PASS
    infinite = torch.tensor([1.0, float("inf"), -2.0, float("nan")])
    assert pa.compare(infinite, infinite.clone(), criterion=criterion).verdict is Verdict.PASS
    assert pa.compare(zeros, zeros + 1, criterion=criterion).verdict is Verdict.FAIL
    x = torch.linspace(1, 2, 50)
    assert pa.compare(x, x * 2, criterion=criterion).verdict is Verdict.FAIL  # of cosine 1


RAMP = torch.linspace(-3, 3, 200)


@pytest.mark.parametrize(
    ("golden", "actual"),
    [
        (RAMP, RAMP * 2),
        (RAMP, RAMP + 1),
        (torch.full((64,), 5.0), torch.full((64,), 5.5)),
        (torch.tensor(3.0), torch.tensor(3.1)),
        (torch.tensor([7.0]), torch.tensor([-7.0])),
    ],
    ids=["scale", "offset", "constant", "scalar", "sign"],
)
def test_c03_what_correlation_does_not_see(golden, actual):
    """tenstorrent/tt-metal#22994, #47585, #25137: scale, offset, constants and scalars."""
    assert pa.compare(golden, actual).verdict is Verdict.FAIL
    assert pa.compare(golden, golden.clone()).verdict is Verdict.PASS


def test_c03_moved_data_is_exact(check):
    """tenstorrent/tt-metal#22994: a permutation that is off by one bit is no permutation."""
    x = torch.randn(8, 8)
    assert check(lambda x: x.t().contiguous(), x).verdict is Verdict.PASS
    result = check(lambda x: (x * (1 + 2**-22) if here(x) else x).t().contiguous(), x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact


def test_c06_errors_beside_the_scale_of_the_values(check):
    """kaldi-asr/kaldi#3949, mitdbg/Kramabench#33, facebookresearch/faiss#847: neither relative nor absolute."""
    golden = torch.cat([torch.zeros(1), torch.linspace(0.1, 1, 63)])
    actual = golden.clone()
    actual[0] = -9.5e-7
    assert pa.compare(golden, actual).verdict is Verdict.PASS
    tiny = torch.full((64,), 1.2e-13)
    assert pa.compare(tiny, torch.full((64,), 3.2e-13)).verdict is Verdict.FAIL
    x = torch.linspace(0.1, 1, 64)
    result = check(lambda x: x * 1e-13 + (2e-13 if here(x) else 0.0), x)
    assert result.verdict is Verdict.FAIL
    assert check(lambda x: x * 1e-13, x).verdict is Verdict.PASS


def test_c09_gathered_in_another_order():
    """ndif-team/nnsight#719: [q0 k0 v0, q1 k1 v1] holds the same values as [q0 q1, k0 k1, v0 v1]."""
    golden = torch.randn(2, 12)
    q, k, v = golden.chunk(3, -1)
    actual = torch.cat([part.chunk(2, -1)[rank] for rank in (0, 1) for part in (q, k, v)], -1)
    assert torch.equal(golden.sort(-1).values, actual.sort(-1).values)
    result = pa.compare(golden, actual)
    assert result.verdict is Verdict.FAIL


def test_c15_both_are_compared_with_float64():
    """pytorch/pytorch#100075, #106171: compiled against eager; right when it is about as far from float64."""
    golden = torch.randn(1000, dtype=torch.float64) * 3
    eager = (golden * (1 + 1e-5 * torch.randn(1000, dtype=torch.float64))).float()
    compiled = (golden * (1 + 1e-5 * torch.randn(1000, dtype=torch.float64))).float()
    wrong = (golden * (1 + 1e-3 * torch.randn(1000, dtype=torch.float64))).float()
    assert pa.compare(eager, compiled).verdict is Verdict.FAIL, "one against the other says nothing"
    assert pa.compare(golden, compiled, benchmark=eager).verdict is Verdict.PASS
    assert pa.compare(golden, wrong, benchmark=eager).verdict is Verdict.FAIL


# ------------------------------------------------------------------------------------------ structure


def test_c05_none_among_the_outputs():
    """pytorch/pytorch#61035, #38509: a named tuple with None, nested."""
    x = torch.randn(3)
    golden = {"out": [Out(x, None, (None, x + 1))]}
    assert pa.compare(golden, {"out": [Out(x.clone(), None, (None, x + 1))]}).verdict is Verdict.PASS
    wrong = pa.compare(golden, {"out": [Out(x.clone(), None, (None, x + 2))]})
    assert wrong.verdict is Verdict.FAIL
    assert wrong.worst.path == "output['out'][0].cache[1]"
    missing = pa.compare(golden, {"out": [Out(x.clone(), None, (x, x + 1))]})
    assert missing.kind is Kind.structure
    assert missing.worst.path == "output['out'][0].cache[0]"


# ------------------------------------------------------------------------------------------ power


def test_c10_a_tolerance_that_noise_passes(check):
    """Xilinx/mlir-air#1427: values in [0.5, 1], atol 0.5 and rtol 0.2."""
    loose = {"criterion": "close", "rtol": 0.2, "atol": 0.5}
    x = torch.rand(64) / 2 + 0.5
    assert pa.compare(x, torch.full((64,), 0.75), rtol=0.2, atol=0.5).verdict is Verdict.PASS  # a constant passes
    assert check(lambda x: x * 1.0, x, options=loose).verdict is Verdict.VACUOUS


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2, device=x.device), align_corners=False),
    ],
    ids=["reflection_pad", "grid_sampler"],
)
def test_c11_the_cpu_compared_with_itself(check, fn):
    """pytorch/xla#6559, facebookincubator/velox#18513, intel/torch-xpu-ops#318: green, because it fell back."""
    x = torch.randn(1, 2, 4, 4)
    assert check(lambda x: fn(x.cpu()).to(x.device), x).verdict is Verdict.NOT_EXERCISED
    assert check(fn, x).passed


def test_c14_the_same_wrong_formula_twice(check):
    """hw-native-sys/pypto-lib#111: a reference of its own tells that the root is missing."""

    def wrong(x):
        return x * x.square().mean(-1, keepdim=True)

    def rms_norm(x):
        return F.rms_norm(x, x.shape[-1:])

    x = torch.randn(4, 16) * 3
    assert check(wrong, x).verdict is Verdict.PASS
    assert check(wrong, x, options={"reference": rms_norm}).verdict is Verdict.FAIL
    result = check(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True)), x, options={"reference": rms_norm})
    assert result.passed


# ------------------------------------------------------------------------------------------ dropout


def dropout(x):
    return F.dropout(x, 0.1)


def masks(keep, scale):
    """native_dropout that keeps the elements of a mask, which it gets made, and scales them."""

    def native_dropout(x, p, train):
        mask = keep(torch.rand(x.shape), p)
        return x * mask * scale(p), mask

    return native_dropout


def right_scale(p):
    return 1 / (1 - p)


WRONG_DROPOUTS = {
    "p_inverted": (lambda random, p: random < p, lambda p: 1 / p),
    "first_dropped": (lambda random, p: torch.arange(random.numel()) >= p * random.numel(), right_scale),
    "not_scaled": (lambda random, p: random >= p, lambda p: 1.0),
    "nothing_dropped": (lambda random, p: random >= 0, lambda p: 1.0),
}


def test_c13_right_dropout(check):
    """pytorch/pytorch#2976, flagos-ai/FlagGems#161, PaddlePaddle/Paddle#62642: masks differ between devices."""
    assert check(dropout, torch.ones(4000)).verdict is Verdict.NOT_COMPARABLE
    with pa.emulator.override("aten::native_dropout", masks(lambda random, p: random >= p, right_scale)) as planted:
        assert check(dropout, torch.ones(4000, requires_grad=True), options={"backward": False}).passed
    assert planted.calls


@pytest.mark.parametrize("name", WRONG_DROPOUTS)
def test_c13_wrong_dropout(check, name):
    """flagos-ai/FlagGems#161, intel/torch-xpu-ops#4851: the keep rate, the scale and the places tell."""
    with pa.emulator.override("aten::native_dropout", masks(*WRONG_DROPOUTS[name])):
        result = check(dropout, torch.ones(4000, requires_grad=True), options={"backward": False})
    assert result.verdict is Verdict.FAIL
