"""Public bug reports about Ascend devices (rows A of the list in test_bug_reports.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    """Whether a tensor lies on the device under test."""
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


# ------------------------------------------------------------------------------------------ last bits and rounding


def test_a02_a_last_bit_before_a_floor(check):
    """triton-lang/triton-ascend#1348: exp(floor(column sums of a softmax)), of sums that differ by 1e-7."""

    def fn(x):
        total = torch.softmax(x, 0).sum(0)
        return {"sum": total, "exp": torch.exp(torch.floor(total))}

    def lower(x, *args, **kwargs):
        return torch.sum(x, *args, **kwargs) - 1.2e-7

    with pa.emulator.override("aten::sum.dim_IntList", lower):
        outputs = by_path(check(fn, torch.linspace(0, 1, 32).view(32, 1).repeat(1, 32)))
    assert outputs["output['sum']"].verdict is Verdict.PASS  # the first stage that differs, by 1e-7
    assert 0 < outputs["output['sum']"].metrics.max_abs_error < 4e-7
    assert outputs["output['exp']"].metrics.max_abs_error == pytest.approx(1.71828, abs=1e-4)
    assert outputs["output['exp']"].verdict is Verdict.AMPLIFIED


def quantise(x):
    """To the nearest integer, as many write it: wrong next to a tie and above 2^23."""
    return torch.floor(x + 0.5).to(torch.int32)


def nearest(x):
    return torch.round(x).to(torch.int32)


def test_a03_rounding_by_adding_a_half(check):
    """triton-lang/triton-ascend#285: exact inputs and no tie among them, so the integers have one right value."""
    x = torch.tensor([0.49999997, 8388609.0, 2.25, -3.75])
    assert quantise(x).tolist() == [1, 8388610, 2, -4]
    result = check(quantise, x, options={"reference": nearest})
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact
    assert check(quantise, x[2:], options={"reference": nearest}).verdict is Verdict.PASS


def test_a43_a_matmul_that_differs_in_its_last_bits(check):
    """mindspore-ai/mindspore#353: filed as a bug, 2.4e-7 beside values of size one; another order of the sum."""
    a, b = torch.randn(2, 5), torch.randn(5, 2)

    def backwards(a, b):
        return (a.flip(1).unsqueeze(2) * b.flip(0)).cumsum(1)[:, -1]

    for _ in range(20):
        a, b = torch.randn(2, 5), torch.randn(5, 2)
        with pa.emulator.override("aten::mm", backwards) as planted:
            assert check(torch.matmul, a, b).verdict is Verdict.PASS
        assert planted.calls
    with pa.emulator.override("aten::mm", lambda a, b: torch.mm(a, b) * 1.0001):
        assert check(torch.matmul, a, b).verdict is Verdict.FAIL


def test_a45_convolutions_run_in_hf32_by_default(check):
    """The vendor's documents: conv.allow_hf32 is on, matmul.allow_hf32 is off."""
    x, w = torch.randn(1, 170, 6, 6), torch.randn(8, 170, 3, 3)  # K = 1530
    torch.npu.conv.allow_hf32 = True
    result = check(F.conv2d, x, w)
    assert result.verdict is Verdict.MODE_DIFF
    assert "hf32" in result.reason.lower()
    torch.npu.conv.allow_hf32 = False
    assert check(F.conv2d, x, w).verdict is Verdict.PASS
    assert check(torch.matmul, torch.randn(8, 1530), torch.randn(1530, 8)).verdict is Verdict.PASS


# ------------------------------------------------------------------------------------------ gradients


def causal_convolution(x, w, state):
    """Depthwise, over the last dimension, from an initial state; a device loses the gradient of w at length 1."""
    w = w * 1.0
    if here(w) and x.shape[-1] == 1 and w.requires_grad:
        w.register_hook(lambda grad: grad * float("nan"))
    windows = torch.cat([state, x], -1).unfold(-1, w.shape[-1], 1)
    return F.silu((windows * w[:, None, :]).sum(-1))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a09_one_gradient_is_nan_at_one_length(check, length):
    """fla-org/flash-linear-attention#1141: the forward pass and dx are right, dw is NaN for T=1 only."""
    x, w, state = (torch.randn(s, requires_grad=True) for s in ((2, 4, length), (4, 3), (2, 4, 2)))
    result = check(causal_convolution, x, w, state)
    if length > 1:
        assert result.verdict is Verdict.PASS
        return
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.gradient
    assert [path for path, o in by_path(result).items() if o.verdict.outcome != "passed"] == ["grad(args[1])"]


class Deep(nn.Module):
    """A stack of linear layers, through one of which a device sends back gradients 5 % too large."""

    def __init__(self, guilty, depth=6, width=8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.guilty = guilty

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if i == self.guilty and here(x) and x.requires_grad:
                x.register_hook(lambda grad: grad * 1.05)
        return x.square().mean()


def test_a30_gradients_that_go_wrong_half_way_back(check):
    """Ascend/pytorch#107: the loss and the last layers agree, the first layers don't."""
    result = check(Deep(guilty=3), torch.randn(5, 8))
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.gradient
    wrong = {path for path, o in by_path(result).items() if o.verdict is Verdict.FAIL}
    assert wrong == {f"grad(layers.{i}.{name})" for i in range(4) for name in ("weight", "bias")}
    assert result.first_divergence is None  # no layer's output is wrong
    assert check(Deep(guilty=None), torch.randn(5, 8)).verdict is Verdict.PASS


def test_a31_the_backward_pass_of_a_batch_norm(check):
    """PaddlePaddle/PaddleCustomDevice#592, #553: conv-transpose and batch norm; only gradients differ."""
    torch.npu.conv.allow_hf32 = False
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    assert check(model, x).verdict is Verdict.PASS

    def wrong(*args):
        dx, dw, db = torch.ops.aten.native_batch_norm_backward(*args)
        return dx * 1.1, dw, db

    with pa.emulator.override("aten::native_batch_norm_backward", wrong):
        result = check(model, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.gradient
    outputs = by_path(result)
    assert outputs["output"].verdict is Verdict.PASS
    assert outputs["grad(args[0])"].verdict is Verdict.FAIL
    assert outputs["grad(1.weight)"].verdict is Verdict.PASS
    assert result.checkpoints["1"].verdict is Verdict.PASS
    assert result.first_divergence == "1", "its backward pass is the first that is wrong"
    assert result.culprit.op == "aten.native_batch_norm_backward.default"


# ------------------------------------------------------------------------------------------ fused kernels, models


def rms_norm(x, weight, eps=1e-6, broken=()):
    variance = x.float().square().mean(-1, keepdim=True)
    if here(x) and tuple(x.shape[-2:]) == broken:
        variance = variance * 0
    return (x.float() * torch.rsqrt(variance + eps) * weight.float()).to(x.dtype)


def test_a10_a_norm_whose_variance_is_zero_for_one_shape(check):
    """vllm-project/vllm-ascend#12642: bfloat16, 4 key heads of 256; the output is x / sqrt(eps)."""

    def fn(x, w):
        return rms_norm(x, w, broken=(4, 256))

    w = torch.rand(256).bfloat16() + 0.5
    result = check(fn, torch.randn(6, 4, 256).bfloat16(), w)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.bias
    assert "x the golden" in result.reason
    assert check(fn, torch.randn(6, 8, 256).bfloat16(), w).verdict is Verdict.PASS


def split_norm_rope(qkv, weight, sin, cos, precise=True, sign=1.0):
    """The first third of qkv, normed and rotated: in float32 and rounded once, or rounded at each step."""
    q = qkv.chunk(3, -1)[0]
    q = q.float() if precise else q
    scale = torch.rsqrt(q.float().square().mean(-1, keepdim=True) + 1e-6).to(q.dtype)
    q = q * scale * weight.to(q.dtype)
    left, right = q.chunk(2, -1)
    turned = torch.cat([-right, left], -1) * sign
    return (q * cos.to(q.dtype) + turned * sin.to(q.dtype)).to(qkv.dtype)


def test_a11_a_fused_kernel_beside_its_composition(check):
    """vllm-project/vllm-ascend#5352: both forms of rounding are right against float64; another rotation isn't."""
    angle = torch.rand(16, 32) * 3
    args = torch.randn(16, 96).bfloat16(), torch.rand(32).bfloat16(), torch.sin(angle), torch.cos(angle)

    def composition(*args):
        return split_norm_rope(*args, precise=False)

    assert check(split_norm_rope, *args, options={"reference": composition}).passed
    assert check(composition, *args).passed
    turned = check(lambda *args: split_norm_rope(*args, sign=-1.0), *args, options={"reference": composition})
    assert turned.verdict is Verdict.FAIL
    assert turned.kind is Kind.spread


@pytest.mark.parametrize("rows", [1023, 1024, 1025, 2048])
def test_a13_gating_of_more_than_1024_rows(check, rows):
    """vllm-project/vllm-ascend#11391: values are infinite from row 1024 on. The smallest failing size is 1025."""

    def gate(x):
        return torch.softmax(x, -1).topk(2)

    def broken(x, *args, **kwargs):
        values, indices = torch.topk(x, *args, **kwargs)
        values[1024:] = float("inf")
        return values, indices

    with pa.emulator.override("aten::topk", broken):
        result = check(gate, torch.randn(rows, 8))
    assert result.verdict is (Verdict.FAIL if rows > 1024 else Verdict.PASS)
    if rows > 1024:
        assert result.kind is Kind.non_finite
        assert "[1024, 0]" in result.reason
        assert "right up to 1024 rows (dim 0 of args[0]), wrong from 1025" in result.reason


def test_a14_lora_with_the_wrong_adapter(check):
    """vllm-project/vllm-ascend#11221: an error as large as the signal is no rounding."""

    def expand(x, adapters, index):
        if here(x):
            index = (index + 1) % adapters.shape[0]
        return torch.bmm(x.unsqueeze(1), adapters[index]).squeeze(1)

    args = torch.randn(64, 16).bfloat16(), torch.randn(4, 16, 32).bfloat16(), torch.arange(64) % 4
    result = check(expand, *args)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.spread
    assert result.metrics.relative_euclidean_distance > 1


def test_a19_index_that_corrupts_values(check):
    """flagos-ai/FlagGems#5594: wrong and slow; here the wrong half, which is told without a clock."""
    x, i = torch.randn(16, 4), torch.arange(15, -1, -1)

    def off_by_one(x, indices):
        return torch.ops.aten.index(x, [None if i is None else (i + 1) % x.shape[0] for i in indices])

    with pa.emulator.override("aten::index.Tensor", off_by_one):
        result = check(lambda x, i: x[i], x, i)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact
    assert check(lambda x, i: x[i], x, i).verdict is Verdict.PASS


@pytest.mark.parametrize("dim", [192, 200])
def test_a26_head_dimensions_that_are_no_multiple_of_16(check, dim):
    """MinghuasLab/flash-attention-npu#135: wrong after the softmax, in the tail of each head."""

    def attention(q, k, v):
        scores = q @ k.transpose(-1, -2) / dim**0.5
        weights = torch.softmax(scores, -1)
        out = weights @ v
        if here(q) and dim % 16:
            out = torch.cat([out[..., : -(dim % 16)], torch.zeros_like(out[..., -(dim % 16) :])], -1)
        return {"scores": scores, "weights": weights, "out": out}

    result = check(attention, *(torch.randn(1, 2, 64, dim).half() for _ in range(3)))
    failed = [path for path, o in by_path(result).items() if o.verdict.outcome == "failed"]
    assert failed == (["output['out']"] if dim % 16 else [])
    if dim % 16:
        assert result.verdict is Verdict.FAIL
        assert result.kind is Kind.local


@pytest.mark.parametrize(
    ("golden", "actual", "words"),
    [
        (1.5, float("nan"), "NaN where the golden is finite"),
        (float("-inf"), 3.0, "finite where the golden is -Inf"),
        (float("inf"), float("-inf"), "-Inf where the golden is +Inf"),
    ],
)
def test_a27_masks_come_before_numbers(check, golden, actual, words):
    """MinghuasLab/flash-attention-npu#216: one element, beside others that are far off too."""
    x = torch.randn(4, 59).half()
    x[2, 3] = golden

    def fn(x):
        y = x.clone()
        if here(x):
            y[2, 3] = actual
            y[0, 0] += 9.9
        return y

    result = check(fn, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.non_finite
    assert by_path(result)["output"].metrics.non_finite_mismatches == 1
    assert words in check(lambda x: fn(x) * 1.1, x).reason


def geglu(x, w):
    gate, up = (x @ w).chunk(2, -1)
    return F.silu(gate) * up


WIDE = {"criterion": "close", "rtol": 0.0, "atol": 1e4}


def test_a29_a_tolerance_that_nothing_can_exceed(check):
    """linkedin/Liger-Kernel#1031: bfloat16 with a tolerance of 1e4 where values are of size ten."""
    result = check(geglu, torch.randn(8, 32).bfloat16(), torch.randn(32, 16).bfloat16(), options=WIDE)
    assert result.verdict is Verdict.VACUOUS


def test_a29_both_sides_are_judged_against_float64(check):
    """linkedin/Liger-Kernel#1031: without a tolerance, right results pass and wrong ones don't."""
    args = torch.randn(8, 32).bfloat16(), torch.randn(32, 16).bfloat16()
    assert check(geglu, *args).passed
    assert check(lambda x, w: geglu(x, w) * (1.1 if here(x) else 1), *args).verdict is Verdict.FAIL


def test_a34_a_loss_of_zero_is_no_success(check):
    """hiyouga/LlamaFactory#5627, #8439, #3344: NaN in one layer, and a loss that is printed as 0.0."""

    class Overflows(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y * float("nan") if here(y) else y

    class Loss(nn.Module):
        def forward(self, x):
            return torch.nan_to_num(x.square().mean())

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Overflows(4, 4), nn.Tanh(), Loss())
    result = check(model, torch.randn(3, 4), options={"checkpoints": True})
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence == "2"
    assert result.checkpoints["2"].kind is Kind.non_finite
    assert by_path(result)["output"].verdict is Verdict.FAIL
    alone = check(lambda x: torch.nan_to_num((x * (float("nan") if here(x) else 1)).square().mean()), torch.randn(9))
    assert alone.verdict is Verdict.FAIL


def half_accumulator(x, w, *args):
    """A 3x3 convolution that adds up 64 products at a time, in float16."""
    total = torch.zeros(x.shape[0], w.shape[0], 1)
    for part in (w.reshape(w.shape[0], -1, 1) * F.unfold(x.float(), 3).half()).split(64, 1):
        total = (total + part.sum(1).half()).half()
    return total.view(1, -1, 1, 1)


def overflowing(check, size):
    """640 channels whose partial sums grow, and whose sum is 0."""
    x, w = torch.full((1, 640, 3, 3), size).half(), torch.ones(4, 640, 3, 3).half()
    w[:, 320:] = -1.0
    with pa.emulator.override("aten::convolution", half_accumulator) as planted:
        result = check(F.conv2d, x, w)
    assert planted.calls
    return result


def test_a35_a_convolution_that_accumulates_in_float16(check):
    """Tencent-Hunyuan/HunyuanDiT#226, huggingface/diffusers#1556: partial sums overflow, the result wouldn't."""
    assert overflowing(check, 16.0).verdict is Verdict.PASS
    result = overflowing(check, 64.0)
    assert result.verdict is Verdict.FAIL
    assert result.kind in (Kind.non_finite, Kind.overflow)
    assert result.api.endswith("conv2d")
    assert by_path(result)["output"].shape == (1, 4, 1, 1)


def test_a35_is_named_an_overflow(check):
    """Tencent-Hunyuan/HunyuanDiT#226: with smaller inputs it is right, so the range is at fault."""
    assert overflowing(check, 64.0).kind is Kind.overflow


def test_a39_loss_curves_have_a_criterion_of_their_own():
    """verl-project/verl#332: a team accepts 2 % between two devices' losses; no operator could be judged so."""
    curve = 2.0 * torch.exp(-torch.arange(50.0) / 20) + 0.3
    other = curve * (1 + 0.01 * torch.sin(torch.arange(50.0)))
    assert pa.compare(curve, other, rtol=0.02, atol=0.0).verdict is Verdict.PASS
    assert pa.compare(curve, other).verdict is Verdict.FAIL
    assert pa.compare(curve, other * 1.03, rtol=0.02, atol=0.0).verdict is Verdict.FAIL


# ------------------------------------------------------------------------------------------ layout


def reads_linearly(x):
    """What a kernel sees that takes memory for the values in order."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride(), 0) if here(x) else x


def test_a15_the_strides_of_one_argument_are_ignored(check):
    """vllm-project/vllm-ascend#2388, #95, #11790; sgl-project/sglang#34936: positions as a transposed view."""

    def mrope(positions, q):
        angle = reads_linearly(positions).float().mean(0)[:, None] * torch.linspace(0.1, 1, 8, device=q.device)
        return q * torch.cos(angle)

    positions, q = torch.arange(3 * 7).view(7, 3).t(), torch.randn(7, 16)[:, ::2]
    result = check(mrope, positions, q)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout
    assert "args[0]" in result.reason
    assert "args[1]" not in result.reason
    assert check(mrope, positions.contiguous(), q).verdict is Verdict.PASS
    assert check(mrope, torch.full((7, 3), 5).t(), q).verdict is Verdict.PASS  # a constant hides it


# ------------------------------------------------------------------------------------------ nothing


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 4, 5, 6)])
def test_a42_the_mean_of_nothing(check, shape):
    """mindspore-ai/mindspore#346, #350, #352; pytorch/pytorch#176383: Inf is another class than NaN."""

    def mean(x, *args, **kwargs):
        return torch.full((), float("inf")) if not x.numel() else torch.mean(x, *args, **kwargs)

    assert check(torch.mean, torch.zeros(shape)).verdict is Verdict.PASS  # NaN on both sides
    with pa.emulator.override("aten::mean", mean):
        result = check(torch.mean, torch.zeros(shape))
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.non_finite
    assert "+Inf where the golden is NaN" in result.reason
