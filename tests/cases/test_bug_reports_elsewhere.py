"""Public bug reports about other back ends (rows B of the list in test_bug_reports.py), planted on the emulated NPU."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
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


def linearly(x):
    """What a kernel sees that takes memory for the values in order: it ignores strides and offset."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride(), 0)


def blind(x):
    """``linearly`` on the device only."""
    return linearly(x) if here(x) else x


# ------------------------------------------------------------------------------------------ layout


def test_b01_where_with_a_transposed_condition(check):
    """pytorch/pytorch#150967: the strides of argument 0 are ignored."""
    condition, x, y = torch.tensor([[True, False], [True, True]]).t(), torch.arange(4).view(2, 2), torch.zeros(2, 2)
    y = y.long() - 1

    def wrong(condition, x, y):
        return torch.where(linearly(condition), x, y)

    with pa.emulator.override("aten::where.self", wrong) as planted:
        result = check(torch.where, condition, x, y)
        assert check(torch.where, condition.contiguous(), x, y).verdict is Verdict.PASS
    assert planted.calls
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout
    assert "args[0]" in result.reason


@pytest.mark.parametrize("which", ["weight", "input"])
def test_b02_linear_and_silu_of_slices(check, which):
    """pytorch/pytorch#161641, #139006; vllm-project/vllm#3324: weight[::2], and a chunk of a larger tensor."""
    if which == "weight":
        fn, args = (lambda x, w: F.linear(x, blind(w))), (torch.randn(3, 8), torch.randn(8, 8)[::2])
    else:
        fn, args = (lambda x: F.silu(blind(x))), (torch.randn(4, 8).chunk(2, -1)[1],)
    result = check(fn, *args)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout
    assert f"args[{len(args) - 1}]" in result.reason
    assert check(fn, *(a.contiguous().clone() for a in args)).verdict is Verdict.PASS


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("rows", [4, 40])
def test_b03_strides_ignored_in_large_outputs_only(check, plain, rows):
    """pytorch/pytorch#197636: bmm, scaled down from 2^32 elements to 1000."""

    def bmm(a, b):
        large = a.shape[0] * a.shape[1] * b.shape[2] > 1000
        return torch.bmm(blind(a) if large else a, b)

    a = torch.randn(2, 7, rows).transpose(1, 2)
    result = check(bmm, a.contiguous() if plain else a, torch.randn(2, 7, 20))
    if plain or rows == 4:
        assert result.verdict is Verdict.PASS
        return
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout


def test_b05_a_view_of_one_element(check):
    """pytorch/pytorch#191929, #187117, #193057: the storage offset of a 0-dim operand is ignored."""

    def fn(x, c):
        return x * blind(c)

    x, c = torch.tensor([4.0]), torch.tensor([9.0, 2.0, 7.0])
    result = check(fn, x, c[2])
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout
    assert result.metrics.worst[0].golden == 28
    assert result.metrics.worst[0].actual == 36
    assert check(fn, x, c[2].clone()).verdict is Verdict.PASS


def test_b07_channels_last_and_an_offset_together(check):
    """pytorch/pytorch#174345, #180984: each alone is right."""

    def fn(x):
        both = x.storage_offset() > 0 and x.is_contiguous(memory_format=torch.channels_last)
        return torch.exp(x.as_strided(x.shape, x.stride(), 0) if here(x) and both else x)

    def channels_last(x, offset):
        room = torch.randn(2 * 3 * 4 * 5 + offset)
        room[offset:] = x.permute(0, 2, 3, 1).reshape(-1)
        return room[offset:].view(2, 4, 5, 3).permute(0, 3, 1, 2)

    x = torch.randn(2, 3, 4, 5)
    assert check(fn, channels_last(x, 0)).verdict is Verdict.PASS
    assert check(fn, torch.cat([torch.ones(1, 3, 4, 5), x])[1:]).verdict is Verdict.PASS
    result = check(fn, channels_last(x, 6))
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout


def test_b34_the_lazy_conjugate_is_ignored(check):
    """pytorch/pytorch#59946: the same values, resolved, are right."""

    def fn(z):
        return torch.view_as_real(z.conj().resolve_conj() if here(z) and z.is_conj() else z.resolve_conj())

    z = torch.randn(5, dtype=torch.complex64)
    result = check(fn, z.conj())
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout
    assert check(fn, z.conj().resolve_conj()).verdict is Verdict.PASS


# ------------------------------------------------------------------------------------------ memory


def cut_short(at):
    """``torch.cat`` into ``out=``, of which a device writes the first elements only."""

    def cat(a, b, *, out):
        if here(out):
            out[:at] = torch.cat([a, b])[:at]
            return out
        return torch.cat([a, b], out=out)

    return cat


def test_b09_the_part_beyond_a_limit_is_never_written(check):
    """pytorch/pytorch#189960, scaled down from 2^31; it also writes before the buffer."""
    a, b = torch.randint(1, 100, (2, 40)).to(torch.int8)
    result = check(cut_short(64), a, b, out=torch.zeros(80, dtype=torch.int8))
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.unwritten
    assert "16 of 80" in result.reason
    assert check(cut_short(80), a, b, out=torch.zeros(80, dtype=torch.int8)).verdict is Verdict.PASS

    def before_the_buffer(a, b, *, out):
        if here(out):
            ctypes.memset(out.data_ptr() - 3, 7, 3)
        return cut_short(80)(a, b, out=out)

    result = check(before_the_buffer, a, b, out=torch.zeros(80, dtype=torch.int8))
    assert result.verdict is Verdict.MEMORY_FAULT
    assert "3 bytes before out" in result.reason


def test_b11_a_kernel_that_does_nothing(check):
    """triton-lang/triton#7260: a grid that is too large, and no error."""
    a, b = torch.rand(2, 40) + 1
    result = check(cut_short(0), a, b, out=torch.zeros(80))
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.unwritten
    assert "80 of 80" in result.reason


def test_b33_the_base_of_a_slice_is_not_updated(check):
    """Oneflow-Inc/oneflow#8578, pytorch/pytorch#12230: the returned values are right."""

    def fn(x, copy=True):
        part = x[:, :2]
        part = part.clone() if here(x) and copy else part
        part += x[:, 4:]
        return part

    x = torch.arange(18.0).view(3, 6)
    result = check(fn, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.mutation
    assert by_path(result)["output"].verdict is Verdict.PASS
    assert check(fn, x, copy=False).verdict is Verdict.PASS


# ------------------------------------------------------------------------------------------ NaN and infinities


def test_b13_a_row_that_is_masked_out(check):
    """iree-org/iree#24175; ml-explore/mlx#2395; pytorch/pytorch#131060: attention says 0, a plain softmax NaN."""
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    right = check(F.scaled_dot_product_attention, q, k, v, attn_mask=mask)
    assert right.verdict is Verdict.PASS

    def naive(q, k, v, mask):
        if here(q):
            scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
            return torch.softmax(scores, -1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    wrong = check(naive, q, k, v, mask)
    assert wrong.verdict is Verdict.FAIL
    assert wrong.kind is Kind.non_finite
    rows = torch.tensor([[float("-inf")] * 3, [0.0, 1.0, 2.0]])
    assert check(torch.softmax, rows, dim=-1).verdict is Verdict.PASS
    with pa.emulator.override("aten::_softmax", lambda x, *a: torch._softmax(x, *a).nan_to_num()):
        zeros = check(torch.softmax, rows, dim=-1)
    assert zeros.kind is Kind.non_finite


def rms_norm(x):
    """With squares in float16 on the device."""
    wide = x if here(x) else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_b19_an_overflow_that_comes_out_as_zeros(check):
    """microsoft/onnxruntime#29034, #17692: the sum of float16 squares is infinite, its root's inverse 0."""
    result = check(rms_norm, torch.full((2, 64), 8000.0).half())
    assert result.verdict is Verdict.FAIL
    assert result.metrics.non_finite_mismatches == 0  # nothing in the output tells but its values
    assert result.metrics.worst[0].actual == 0
    assert check(rms_norm, torch.randn(2, 64).half()).passed


def test_b19_is_named_an_overflow(check):
    """microsoft/onnxruntime#29034: with smaller inputs it is right, so the range is at fault."""
    assert check(rms_norm, torch.full((2, 64), 8000.0).half()).kind is Kind.overflow


# ------------------------------------------------------------------------------------------ precision


def test_b14_a_matmul_that_is_wrong_in_absolute_terms_only(check):
    """pytorch/pytorch#75778, #79270; tensorflow/tensorflow#127346: TF32 there, HF32 here, and large values."""
    x, w = torch.randn(2, 17, 1536) * 1000, torch.randn(24, 1536) * 50
    torch.npu.matmul.allow_hf32 = True
    result = check(F.linear, x, w)
    assert result.metrics.max_abs_error > 100
    assert result.metrics.max_rel_error > 0.01  # near zero, where it says nothing
    assert result.verdict is Verdict.MODE_DIFF
    assert "torch.npu.matmul.allow_hf32" in result.reason
    torch.npu.matmul.allow_hf32 = False
    assert check(F.linear, x, w).verdict is Verdict.PASS


def test_b15_a_running_sum_in_float16(check):
    """pytorch/pytorch#180150: 0.125 with a float32 accumulator, 8.4 without."""
    x = torch.randn(20_000).half()

    def half_accumulator(x, dim, **kwargs):
        return torch.from_numpy(np.cumsum(x.numpy(), dtype=np.float16))

    assert check(torch.cumsum, x, dim=0).verdict is Verdict.PASS
    with pa.emulator.override("aten::cumsum", half_accumulator):
        result = check(torch.cumsum, x, dim=0)
    assert result.verdict is Verdict.FAIL
    assert result.kind in (Kind.spread, Kind.bias)


def cancelling(x, shape, weight, bias, eps):
    """Layer norm by E[x^2] - E[x]^2."""
    mean = x.mean(-1, keepdim=True)
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + eps)
    return (x - mean) * scale, mean, scale


def test_b18_the_variance_of_a_large_mean(check):
    """tracel-ai/burn#5607; ml-explore/mlx#2238: 16 values around 1000, 1e-3 apart; random inputs never show it."""

    def fn(x):
        return F.layer_norm(x, (16,))

    rows = 1000 + 1e-3 * torch.arange(16.0).repeat(3, 1)
    assert check(fn, rows).passed
    with pa.emulator.override("aten::native_layer_norm", cancelling) as planted:
        assert check(fn, torch.randn(3, 16)).passed
        result = check(fn, rows)
    assert planted.calls
    assert result.verdict is Verdict.FAIL


def test_b22_keys_that_are_rounded(check):
    """tenstorrent/tt-metal#25012: 49406 and 49407 are the same number in bfloat16."""
    tokens = torch.tensor([49406, 320, 1237, 533, 550, 8225, 49407, 0])

    with pa.emulator.override("aten::argmax", lambda x, *a, **k: torch.argmax(x.to(torch.bfloat16), *a, **k)):
        result = check(torch.argmax, tokens)
    assert result.verdict is Verdict.FAIL
    assert result.kind in (Kind.exact, Kind.index)
    assert "0" in str(result.metrics.worst[0].actual)
    assert result.metrics.worst[0].golden == 6


PATTERNS = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def table(x, **kwargs):
    """gelu from a table that is off by 1e-4 around zero, so that small positive inputs come out negative."""
    y = torch.ops.aten.gelu(x, **kwargs)
    return torch.where(x.abs() < 1e-3, torch.full_like(y, -1e-4), y)


def test_b35_gelu_of_zero(check):
    """tenstorrent/tt-metal#52407: of all bfloat16 numbers up to ten."""
    x = PATTERNS[PATTERNS.abs() < 10]
    assert check(F.gelu, x).passed
    with pa.emulator.override("aten::gelu", table):
        result = check(F.gelu, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind in (Kind.local, Kind.spread, Kind.bias)


def test_b35_gelu_of_every_number(check):
    """tenstorrent/tt-metal#52407: the sweep over all 65,536 patterns must not hide what a part of it shows."""
    assert check(F.gelu, PATTERNS).passed
    with pa.emulator.override("aten::gelu", table):
        assert check(F.gelu, PATTERNS).verdict is Verdict.FAIL


SMALLEST = torch.tensor([1e-39, -1e-39]).repeat(20)


def test_b30_a_chip_that_flushes_subnormals(check):
    """gpuweb/cts#1118, ROCm/rocMLIR#1962: documented for this chip, and with the right sign."""
    result = check(lambda x: x * 1.5, SMALLEST, options={"target": "emulated:Ascend950"})
    assert result.metrics.worst[0].actual == 0
    assert result.passed


def test_b30_a_chip_that_does_not_flush(check):
    """gpuweb/cts#1118: no mode of this chip says that subnormals become zero."""
    assert check(lambda x: x * 1.5, SMALLEST).verdict is Verdict.PASS
    with pa.emulator.override("aten::mul.Tensor", lambda x, y: x * y * 0.0):
        result = check(lambda x: x * 1.5, SMALLEST)
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize("factor", [-1.0, 8.0])
def test_b30_subnormals_are_not_skipped(check, factor):
    """ROCm/rocMLIR#1962: a checker that passes over subnormals hides faults."""
    with pa.emulator.override("aten::mul.Tensor", lambda x, y: x * y * factor):
        result = check(lambda x: x * 1.5, SMALLEST)
    assert result.verdict is Verdict.FAIL


# ------------------------------------------------------------------------------------------ integers, undefined


def test_b25_a_cast_beyond_the_range(check):
    """intel/torch-xpu-ops#889, PaddlePaddle/Paddle#73710: 215.26 to int8 is -41 or 127, and neither is wrong."""

    def saturating(x):
        return (x.clamp(-128, 127) if here(x) else x).to(torch.int8)

    result = check(saturating, torch.tensor([215.26, 3.7, -5.0]))
    assert result.verdict is Verdict.UNDEFINED


def test_b25_a_cast_within_the_range(check):
    """intel/torch-xpu-ops#889: there, every integer counts."""
    x = torch.tensor([127.3, 3.7, -5.2, -128.0])
    assert check(lambda x: (x.clamp(-128, 127) if here(x) else x).to(torch.int8), x).verdict is Verdict.PASS
    result = check(lambda x: (x.round() if here(x) else x).to(torch.int8), x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact
    half = check(lambda x: x.to(torch.float16) * (float("inf") if here(x) else 1), torch.tensor([65510.0]))
    assert half.kind is Kind.non_finite


@pytest.mark.parametrize(
    ("fn", "x", "wrong"),
    [
        (
            lambda x: torch.sum(x, dtype=torch.uint8),
            torch.tensor([255, 2, 1, 5, 3, 6], dtype=torch.uint8),
            lambda x, **k: x.long().sum().clamp(max=255).to(torch.uint8),
        ),
        (torch.sum, torch.tensor([2**32, 5]), lambda x, **k: x.to(torch.int32).sum().long()),
        (torch.sum, torch.tensor([2**31 - 1] * 2), lambda x, **k: x.sum(dtype=torch.int32).long()),
    ],
    ids=["saturated", "cut", "negative"],
)
def test_b26_integers_of_the_wrong_width(check, fn, x, wrong):
    """pytorch/pytorch#179415, #78848; apple/coreai-torch#45; tensorflow/tensorflow#125978: no tolerance."""
    assert check(fn, x).verdict is Verdict.PASS
    with pa.emulator.override("aten::sum", wrong) as planted:
        result = check(fn, x)
    assert planted.calls
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact


DUPLICATES = torch.zeros(8), 0, torch.zeros(3, dtype=torch.long), torch.tensor([1.0, 2.0, 3.0])


def winner(choose):
    """scatter, of whose duplicate writes the chosen one stays."""

    def scatter(x, dim, index, src):
        y = torch.scatter(x, dim, index, src)
        y[0] = choose(src)
        return y

    return scatter


@pytest.mark.parametrize("random", [False, True])
def test_b27_duplicate_writes_have_no_winner(check, random):
    """pytorch/pytorch#33798, #55516, #88244: any of the values written may stay, in each run another."""
    runs = itertools.count()
    with pa.emulator.override("aten::scatter.src", winner(lambda src: src[next(runs) % 2 if random else 0])):
        assert check(torch.scatter, *DUPLICATES).verdict is Verdict.NOT_COMPARABLE


def test_b27_other_writes_are_exact(check):
    """pytorch/pytorch#33798: a value that nobody wrote is wrong, and so is any other where indices are unique."""
    assert check(torch.scatter, *DUPLICATES).passed
    with pa.emulator.override("aten::scatter.src", winner(lambda src: 7.0)):
        assert check(torch.scatter, *DUPLICATES).verdict is Verdict.FAIL
    unique = torch.zeros(8), 0, torch.tensor([0, 5, 2]), torch.tensor([1.0, 2.0, 3.0])
    with pa.emulator.override("aten::scatter.src", winner(lambda src: src[1])):
        assert check(torch.scatter, *unique).verdict is Verdict.FAIL


def test_b29_an_error_where_the_cpu_broadcasts(check):
    """pytorch/pytorch#39227: an exception on one side is no numeric difference."""

    def broken(x, indices, values, *args):
        if values.dim() == 0:
            raise RuntimeError("shape mismatch: the value can't be broadcast")
        return torch.ops.aten.index_put(x, indices, values, *args)

    args = torch.zeros(4), (torch.tensor([1, 2]),), torch.tensor(5.0)
    assert check(torch.index_put, *args).verdict is Verdict.PASS
    with pa.emulator.override("aten::index_put", broken):
        result = check(torch.index_put, *args)
    assert result.verdict is Verdict.CRASH
    assert result.kind is None
    assert result.metrics is None
    assert "not on the CPU" in result.reason


def test_b31_remainders_of_minus_zero_and_negatives(check):
    """tenstorrent/tt-metal#55581, #12835: remainder(-0.0, 2) is no 2, and fmod has the dividend's sign."""
    x = torch.tensor([-0.0, 0.0, 1.0, 3.5, -3.5, -1.0, 5.0, -4.25])
    for fn in (torch.remainder, torch.fmod):
        assert check(fn, x, 2.0).verdict is Verdict.PASS

    def remainder(x, y):
        return torch.where(torch.signbit(x) & (x == 0), y, torch.remainder(x, y))

    with pa.emulator.override("aten::remainder", remainder):
        assert check(torch.remainder, x, 2.0).verdict is Verdict.FAIL
    with pa.emulator.override("aten::fmod", lambda x, y: torch.remainder(x, y)):
        assert check(torch.fmod, x, 2.0).verdict is Verdict.FAIL
    with pytest.raises(RuntimeError):  # IntelPython/dpctl#1260: the CPU refuses, so there is nothing to compare
        check(torch.floor_divide, torch.tensor([1]), torch.tensor([0]))


# ------------------------------------------------------------------------------------------ chance, conditioning


def test_b37_random_operators_can_not_be_compared(check):
    """intel/torch-xpu-ops#754: rrelu in training."""
    assert check(F.rrelu, torch.randn(64), training=True).verdict is Verdict.NOT_COMPARABLE


def test_b37_an_ill_conditioned_system(check):
    """intel/torch-xpu-ops#754: 7.6e4 between two right solutions; another right-hand side is wrong all the same."""
    i = torch.arange(1.0, 9.0)
    hilbert = 1 / (i[:, None] + i[None, :] - 1)

    def solve(a, b):
        if here(a):  # another order of elimination
            return torch.linalg.solve(a.flip(0), b.flip(0))
        return torch.linalg.solve(a, b)

    result = check(solve, hilbert, torch.ones(8))
    assert result.metrics.max_abs_error > 1
    assert result.verdict is Verdict.PASS
    assert any("judged by A X = B" in note for note in result.notes)
    good = torch.randn(8, 8) + 8 * torch.eye(8)
    assert check(solve, good, torch.ones(8)).verdict is Verdict.PASS
    assert check(lambda a, b: solve(a, b * (2 if here(b) else 1)), good, torch.ones(8)).verdict is Verdict.FAIL
