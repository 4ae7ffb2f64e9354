"""Fused attention and quantisation against their definitions; layouts, masks, lengths and what isn't emulated."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed


def golden(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hidden: Any = None, shift: Any = 0
) -> torch.Tensor:
    q, k, v = q.double(), k.double(), v.double()
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("bnqd,bnkd->bnqk", q, k) * scale + shift
    if hidden is not None:
        scores = torch.where(hidden, -math.inf, scores)
    return torch.einsum("bnqk,bnkd->bnqd", torch.softmax(scores, -1).nan_to_num(), v)


def arrange(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`(batch, heads, sequence, size)` in another layout."""
    return {
        "BNSD": lambda: x,
        "BSND": lambda: x.transpose(1, 2),
        "BSH": lambda: x.transpose(1, 2).flatten(2),
        "SBH": lambda: x.permute(2, 0, 1, 3).flatten(2),
    }[layout]().contiguous()


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-3) -> None:
    torch.testing.assert_close(got.detach().cpu().double(), want.double(), rtol=tolerance, atol=tolerance)


def inputs(
    dtype: torch.dtype = torch.float16, kv_heads: int = 4, queries: int = 5, keys: int = 7
) -> list[torch.Tensor]:
    shapes = [(2, 4, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 8)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_prompt_attention_in_every_layout(layout: str, kv_heads: int):
    q, k, v = inputs(kv_heads=kv_heads)
    got = torch_npu.npu_prompt_flash_attention(
        *(arrange(t, layout).npu() for t in (q, k, v)),
        num_heads=4, num_key_value_heads=kv_heads, input_layout=layout, scale_value=0.3,
    )  # fmt: skip
    close(got, arrange(golden(q, k, v, 0.3), layout))


DISTANCE = torch.arange(7) - torch.arange(5)[:, None]


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"sparse_mode": 2}, DISTANCE > 0),
        ({"sparse_mode": 3}, DISTANCE > 2),
        ({"sparse_mode": 4, "pre_tokens": 1, "next_tokens": 0}, (DISTANCE > 2) | (DISTANCE < 1)),
        ({"sparse_mode": 1, "atten_mask": True}, torch.arange(7) > 4),
        (
            {"sparse_mode": 0, "atten_mask": True, "pre_tokens": 2, "next_tokens": 1},
            (torch.arange(7) > 4) | (DISTANCE > 1) | (DISTANCE < -2),
        ),
        ({"sparse_mode": 0, "next_tokens": 0}, None),
    ],
)
def test_what_each_sparse_mode_hides(options: dict[str, Any], hidden: torch.Tensor | None):
    q, k, v = inputs()
    if "atten_mask" in options:
        options = {**options, "atten_mask": (torch.arange(7) > 4).expand(5, 7).npu()}
    got = torch_npu.npu_prompt_flash_attention(
        q.npu(), k.npu(), v.npu(), num_heads=4, input_layout="BNSD", scale_value=0.3, **options
    )
    close(got, golden(q, k, v, 0.3, hidden))


def test_lengths_and_shifts_of_prompt_attention():
    q, k, v = inputs()
    shift = torch.randn(1, 4, 5, 7).half()
    got = torch_npu.npu_prompt_flash_attention(
        q.npu(), k.npu(), v.npu(), num_heads=4, input_layout="BNSD", scale_value=0.3, pse_shift=shift.npu(),
        actual_seq_lengths=[5, 3], actual_seq_lengths_kv=[7, 2],
    )  # fmt: skip
    beyond = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
    beyond[1, :, 3:], beyond[1, :, :, 2:] = True, True
    close(got, golden(q, k, v, 0.3, beyond, shift.double()))
    assert not got[1, :, 3:].any()


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_one_new_token_attends_to_its_cache(kv_heads: int):
    q, k, v = inputs(kv_heads=kv_heads, queries=1)
    tensors = [arrange(t, "BSH").npu() for t in (q, k, v)]
    got = torch_npu.npu_incre_flash_attention(
        *tensors, num_heads=4, num_key_value_heads=kv_heads, scale_value=0.3, actual_seq_lengths=[7, 3]
    )
    beyond = torch.arange(7) >= torch.tensor([7, 3]).view(2, 1, 1, 1)
    close(got, arrange(golden(q, k, v, 0.3, beyond), "BSH"))
    mask = (torch.arange(7) > 3).expand(2, 7).npu()
    got = torch_npu.npu_incre_flash_attention(
        *tensors, num_heads=4, num_key_value_heads=kv_heads, scale_value=0.3, atten_mask=mask
    )
    close(got, arrange(golden(q, k, v, 0.3, torch.arange(7) > 3), "BSH"))
    same = torch_npu.npu_incre_flash_attention(
        *tensors, num_heads=4, num_key_value_heads=kv_heads, scale_value=0.3, actual_seq_lengths=[7]
    )
    close(same, arrange(golden(q, k, v, 0.3), "BSH"))


def test_training_attention_returns_its_softmax_statistics_and_drops():
    q, k, v = inputs(torch.float32)
    out, maxima, sums, empty, seed, offset, length = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), 4, "BNSD", scale=0.3, pse=torch.ones(1, 4, 5, 7).npu()
    )
    scores = (torch.einsum("bnqd,bnkd->bnqk", q.double(), k.double()) + 1) * 0.3
    assert maxima.shape == (2, 4, 5, 8)
    close(maxima[..., 0], scores.amax(-1), 1e-5)
    close(sums[..., 7], (scores - scores.amax(-1, keepdim=True)).exp().sum(-1), 1e-5)
    close(out, golden(q, k, v, 0.3), 1e-5)
    assert (empty.numel(), seed, offset, length) == (0, 0, 0, 0)
    ones = torch.ones(2, 4, 7, 8).npu()
    dropped = torch_npu.npu_fusion_attention(q.npu(), k.npu(), ones, 4, "BNSD", scale=0.0, keep_prob=0.5)[0]
    kept = dropped[..., 0].cpu() * 7 / 2  # every weight is 1/7, doubled when kept
    torch.testing.assert_close(kept, kept.round(), rtol=1e-4, atol=1e-4)
    assert kept.round().unique().numel() > 2
    mask = (torch.arange(7) > 2).expand(5, 7).npu()
    masked = torch_npu.npu_fusion_attention(q.npu(), k.npu(), v.npu(), 4, "BNSD", scale=0.3, atten_mask=mask)[0]
    close(masked, golden(q, k, v, 0.3, torch.arange(7) > 2), 1e-5)


def test_grouped_heads_in_training_attention():
    q, k, v = inputs(torch.float32, kv_heads=2)
    for layout in ("BNSD", "BSH", "BSND", "SBH"):
        tensors = [arrange(t, layout).npu() for t in (q, k, v)]
        close(
            torch_npu.npu_fusion_attention(*tensors, 4, layout, scale=0.3)[0],
            arrange(golden(q, k, v, 0.3), layout),
            1e-5,
        )


def test_what_attention_refuses():
    q, k, v = (t.npu() for t in inputs())
    with pytest.raises(RuntimeError, match="quantised"):
        torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=4, input_layout="BNSD", deq_scale1=q)
    with pytest.raises(RuntimeError, match="paged"):
        torch_npu.npu_incre_flash_attention(q, k, v, num_heads=4, input_layout="BNSD", block_table=q)
    with pytest.raises(RuntimeError, match="input_layout"):
        torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=4, input_layout="HSB")
    with pytest.raises(RuntimeError, match="sparse_mode"):
        torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=4, input_layout="BNSD", sparse_mode=9)
    with pytest.raises(RuntimeError, match="prefix"):
        torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", prefix=[1])
    with pytest.raises(RuntimeError, match="actual_seq"):
        torch_npu.npu_fusion_attention(q, k, v, 4, "TND")
    with pytest.raises(RuntimeError, match="rotary_mode"):
        torch_npu.npu_rotary_mul(q, q, q, "quarter")
    with pytest.raises(RuntimeError, match="layout"):
        torch_npu.npu_apply_rotary_pos_emb(q, q, q, q, "XYZ")
    with pytest.raises(RuntimeError, match="size 5"):
        torch_npu.npu_swiglu(q, 2)
    with pytest.raises(RuntimeError, match="approximate"):
        torch_npu.npu_gelu(q, approximate="erf")
    with pytest.raises(RuntimeError, match="can't be given the shape"):
        torch_npu.npu_bmmV2(q, q.transpose(-1, -2), [3, 3])


def test_rotation_by_a_matrix():
    x, c, s, turn = torch.randn(2, 3, 4, 8), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8), torch.randn(8, 8)
    close(torch_npu.npu_rotary_mul(x.npu(), c.npu(), s.npu(), "half", turn.npu()), x * c + (x @ turn) * s, 1e-4)


def test_a_triangle_may_be_the_softmax_mask():
    x = torch.randn(1, 1, 6, 6)
    got = torch_npu.npu_scaled_masked_softmax(x.npu(), torch.zeros(1, dtype=torch.bool).npu(), 2.0, True)
    close(got, torch.softmax(torch.where(torch.ones(6, 6).triu(1).bool(), -1e4, 2 * x.double()), -1), 1e-5)


@pytest.mark.parametrize("in_float", [True, False])
def test_a_whole_attention_layer(in_float: bool):
    batch, heads, size, length = 2, 4, 8, 6
    x = [torch.randn(batch * length, 32) / 3 for _ in range(3)]
    w = [torch.randn(32, 32) / 6 for _ in range(4)]
    b = [torch.randn(32) for _ in range(4)]
    mask = torch.randn(batch, heads, length, length)
    device = [t.npu().requires_grad_() for t in (*x, *w[:3])]
    result = torch_npu.npu_multi_head_attention(
        *device, mask.npu(), w[3].npu(), *(t.npu() for t in b), None, heads, size, length, length, 0.0, in_float
    )

    def project(t: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(t.double(), weight.double(), bias.double()).view(batch, length, heads, size).transpose(1, 2)

    q, k, v = (project(*p) for p in zip(x, w, b, strict=False))
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(size) + mask.double(), -1)
    context = (weights @ v).transpose(1, 2).reshape(batch * length, 32)
    close(result[0], F.linear(context, w[3].double(), b[3].double()), 1e-4)
    for got, want in zip(result[2:], (q / math.sqrt(size), k, v, weights, weights, context), strict=True):
        close(got, want, 1e-4)
        assert not got.requires_grad
    result[0].sum().backward()
    assert all(t.grad is not None for t in device)
    again = torch_npu.npu_multi_head_attention(
        *(t.detach() for t in device),
        mask.npu(),
        w[3].npu(),
        *(t.npu() for t in b),
        result[1],
        heads,
        size,
        length,
        length,
        0.5,
        True,
    )
    close(again[6], 2 * weights, 1e-4)  # the first call's mask keeps everything


# ------------------------------------------------------------------------------------------------ quantisation


def test_quantize_by_division_and_by_multiplication():
    x = torch.randn(4, 6) * 3
    scale, zero = torch.rand(6) + 0.1, torch.randint(-5, 5, (6,), dtype=torch.int8)
    got = torch_npu.npu_quantize(x.npu(), scale.npu(), zero.npu(), torch.qint8, 1)
    assert got.dtype is torch.int8
    assert torch.equal(got.cpu(), (x / scale + zero).round().clamp(-128, 127).to(torch.int8))
    got = torch_npu.npu_quantize(x.npu(), torch.tensor([2.0]).npu(), None, torch.quint8, 0, False)
    assert torch.equal(got.cpu(), (x * 2).round().clamp(0, 255).to(torch.uint8))
    rows = torch.rand(4) + 0.5
    got = torch_npu.npu_quantize(x.npu(), rows.npu(), None, torch.int32, 0)
    assert torch.equal(got.cpu(), (x / rows[:, None]).round().to(torch.int32))
    with pytest.raises(RuntimeError, match="not supported"):
        torch_npu.npu_quantize(x.npu(), scale.npu(), None, torch.float16)


def test_dynamic_quantisation_uses_each_rows_range():
    x = torch.randn(5, 8).half()
    x[2] = 0
    y, scale = torch_npu.npu_dynamic_quant(x.npu())
    assert y.dtype is torch.int8
    assert scale.shape == (5,)
    close(scale, x.float().abs().amax(1) / 127, 1e-5)
    assert (y.cpu().abs().amax(1) == torch.tensor([127, 127, 0, 127, 127])).all()
    close(y.cpu().float() * scale.cpu()[:, None], x, 0.02)
    smooth = torch.rand(2, 8).half()
    y, scale = torch_npu.npu_dynamic_quant(
        x.npu(), smooth_scales=smooth.npu(), group_index=torch.tensor([3, 5], dtype=torch.int32).npu()
    )
    close(scale, torch.cat([x[:3] * smooth[0].float(), x[3:] * smooth[1].float()]).abs().amax(1) / 127, 1e-3)
    whole = torch_npu.npu_dynamic_quant(x.npu(), quant_mode="pertensor")[1]
    close(whole, x.float().abs().amax().view(1) / 127, 1e-5)
    with pytest.raises(RuntimeError, match="int8"):
        torch_npu.npu_dynamic_quant(x.npu(), dst_type=torch.float16)


def test_products_of_int8_matrices():
    a, b = torch.randint(-128, 128, (5, 70), dtype=torch.int8), torch.randint(-128, 128, (70, 6), dtype=torch.int8)
    exact = a.long() @ b.long()
    scale, tokens, bias = torch.rand(6) / 1e3, torch.rand(5), torch.randint(-999, 999, (6,), dtype=torch.int32)
    whole = torch_npu.npu_quant_matmul(a.npu(), b.npu(), scale.npu(), bias=bias.npu(), output_dtype=torch.int32)
    assert torch.equal(whole.cpu().long(), exact + bias)
    got = torch_npu.npu_quant_matmul(
        a.npu(), b.npu(), scale.npu(), pertoken_scale=tokens.npu(), bias=bias.npu(), output_dtype=torch.float16
    )
    assert got.dtype is torch.float16
    close(got, (exact + bias).double() * scale * tokens[:, None])
    narrow = torch_npu.npu_quant_matmul(
        a.npu(), b.npu(), scale.npu(), offset=torch.tensor([3.0]).npu(), bias=scale.npu()
    )
    want = (exact.float() * scale + scale + 3).round().clamp(-128, 127)
    assert (narrow.cpu().float() - want).abs().max() <= 1
    got = torch_npu.npu_dequant_bias(exact.int().npu(), scale.npu(), tokens.npu(), bias.npu())
    close(got, (exact + bias).double() * scale * tokens[:, None])
    got = torch_npu.npu_dequant_bias(
        exact.int().npu(), scale.npu(), None, tokens[:1].expand(6).npu(), output_dtype=torch.bfloat16
    )
    assert got.dtype is torch.bfloat16
    close(got, exact.double() * scale + tokens[0], 1e-2)


def test_four_bits_are_packed_by_eight():
    x = torch.randn(4, 16) * 4
    packed = torch_npu.npu_quantize(x.npu(), torch.tensor([1.0]).npu(), None, torch.quint4x2, -1, False)
    assert packed.dtype is torch.int32
    assert packed.shape == (4, 2)
    values = [[((w >> s) & 15 ^ 8) - 8 for w in row for s in range(0, 32, 4)] for row in packed.tolist()]
    assert torch.equal(torch.tensor(values).float(), x.round().clamp(-8, 7))
    y, scale = torch_npu.npu_dynamic_quant(x.npu(), dst_type=torch.quint4x2)
    close(scale, x.abs().amax(1) / 7, 1e-5)
    values = [[((w >> s) & 15 ^ 8) - 8 for w in row for s in range(0, 32, 4)] for row in y.tolist()]
    assert torch.equal(torch.tensor(values).float(), (x / scale.cpu()[:, None]).round())
    with pytest.raises(RuntimeError, match="by eight"):
        torch_npu.npu_quantize(x[:, :3].npu(), torch.tensor([1.0]).npu(), None, torch.quint4x2, -1, False)


def test_packed_operands_and_packed_scales():
    a, b = torch.randint(-8, 8, (5, 16)), torch.randint(-8, 8, (16, 8))
    one = torch.tensor([1.0]).npu()
    packed = [torch_npu.npu_quantize(t.float().npu(), one, None, torch.quint4x2, -1, False) for t in (a, b)]
    scale = torch_npu.npu_trans_quant_param(torch.tensor([0.1], device="npu"))
    assert scale.dtype is torch.int64
    assert scale.item() == 0x3DCCC000 | 1 << 46  # 0.1 is 0x3DCCCCCD
    got = torch_npu.npu_quant_matmul(*packed, scale, output_dtype=torch.float16)
    close(got, (a @ b) * 0.1)
    turned = torch_npu.npu_quantize(b.t().float().npu(), one, None, torch.quint4x2, -1, False).t()
    close(torch_npu.npu_quant_matmul(packed[0], turned, scale, output_dtype=torch.float16), (a @ b) * 0.1)
    rounded = torch_npu.npu_trans_quant_param(torch.tensor([0.1], device="npu"), torch.tensor([-3.4]).npu(), 1)
    assert rounded.item() == 0x3DCCC000 | 1 << 46 | (-3 & 0x1FF) << 37
    with pytest.raises(RuntimeError, match="not emulated"):
        torch_npu.npu_quant_matmul(*packed, scale, group_sizes=[1, 1, 32])


def test_quantised_rms_norm_writes_into_its_output():
    x, gamma, beta = torch.randn(3, 1, 64).half(), torch.randn(1, 64).half(), torch.randn(1, 64).half()
    out = torch.zeros(3, 1, 64, dtype=torch.int8, device="npu")
    scale, offset = torch.tensor([0.05]).half(), torch.tensor([3], dtype=torch.int8)
    torch_npu._npu_quant_rms_norm(x.npu(), gamma.npu(), beta.npu(), scale.npu(), offset.npu(), out, eps=1e-5)
    y = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double() + beta.double()
    want = (y / scale.double() + 3).round().clamp(-128, 127)
    assert (out.cpu().double() - want).abs().max() <= 1
    assert ((out.cpu().double() - want) != 0).double().mean() < 0.02


def test_experts_of_a_mixture():
    x = torch.randn(5, 8)
    weights, experts, places = torch_npu.npu_moe_gating_top_k_softmax(x.npu(), None, 3)
    want = torch.softmax(x.double(), -1).topk(3)
    close(weights, want[0], 1e-5)
    assert torch.equal(experts.cpu().long(), want[1])
    assert places.tolist() == [[i, 5 + i, 10 + i] for i in range(5)]
    done = torch.tensor([False, True, False, False, True])
    assert (torch_npu.npu_moe_gating_top_k_softmax(x.npu(), done.npu(), 3)[1].cpu()[done] == 8).all()


@pytest.mark.parametrize("with_offset", [True, False])
def test_the_scale_search_finds_the_best_of_its_candidates(with_offset: bool):
    x = torch.randn(400) + 0.5
    low, high = x.min().view(1), x.max().view(1)
    counts = torch.histc(x, 128, low.item(), high.item()).cumsum(0).int()
    scale, offset = torch_npu.npu_ifmr(
        x.npu(), low.npu(), high.npu(), counts.npu(), 0.999, 0.999, 0.7, 1.3, 0.01, with_offset
    )

    def loss(s: float, o: float) -> float:
        return float((((x.double() / s).round() + o).clamp(-128, 127).sub(o) * s - x).pow(2).sum())

    found = loss(scale.item(), offset.item())
    assert offset.item() == 0 or with_offset
    naive = max(abs(low.item()), high.item()) / 127 if not with_offset else (high - low).item() / 255
    naive_offset = 0 if not with_offset else -(round(low.item() / naive) + 128)
    assert found < 1.3 * loss(naive, naive_offset)
    for factor in (0.5, 2.0):
        assert found < loss(
            scale.item() * factor, 0 if not with_offset else -(round(low.item() / (scale.item() * factor)) + 128)
        )


# ------------------------------------------------------------------------------------------------ deformable


@pytest.mark.parametrize("groups", [1, 2])
def test_deformable_convolution_tap_by_tap(groups: int):
    torch.npu.conv.allow_hf32 = False
    n, c, h, w, kh, kw = 1, 4, 5, 6, 3, 2
    stride, padding, dilation = [1, 1, 2, 1], [1, 0, 2, 1], [1, 1, 1, 2]
    ho, wo = (h + 1 + 0 - 3) // 2 + 1, (w + 3 - 3) // 1 + 1
    x, weight, bias = torch.randn(n, c, h, w).double(), torch.randn(2, c, kh, kw).double(), torch.randn(2).double()
    offset = torch.randn(n, 3 * groups * kh * kw, ho, wo).double()
    golden_inputs = [t.clone().requires_grad_() for t in (x, weight, offset, bias)]
    gx, gw, go, gb = golden_inputs
    parts = go.view(n, 3, groups, kh, kw, ho, wo)
    samples = torch.zeros(n, c, ho * kh, wo * kw).double()
    for g in range(groups):
        channels = slice(g * c // groups, (g + 1) * c // groups)
        for i in range(ho):
            for j in range(wo):
                for a in range(kh):
                    for b in range(kw):
                        px = j * 1 - padding[2] + b * 2 + parts[0, 0, g, a, b, i, j]
                        py = i * 2 - padding[0] + a * 1 + parts[0, 1, g, a, b, i, j]
                        top, left = math.floor(py.item()), math.floor(px.item())
                        value: Any = 0
                        for dy in (0, 1):
                            for dx in (0, 1):
                                r, s = top + dy, left + dx
                                if 0 <= r < h and 0 <= s < w:
                                    value = value + gx[0, channels, r, s] * (1 - (py - r).abs()) * (1 - (px - s).abs())
                        place = (0, channels, i * kh + a, j * kw + b)
                        samples = samples.index_put(
                            (
                                torch.tensor(0),
                                torch.arange(c)[channels],
                                torch.tensor(place[2]),
                                torch.tensor(place[3]),
                            ),
                            value * parts[0, 2, g, a, b, i, j] + torch.zeros(c // groups).double(),
                        )
    want = F.conv2d(samples, gw, gb, stride=(kh, kw))
    grad = torch.randn_like(want)
    want.backward(grad)
    device = [t.detach().float().npu() for t in golden_inputs]
    out, mine = torch_npu.npu_deformable_conv2d(*device[:3], device[3], [kh, kw], stride, padding, dilation, 1, groups)
    close(mine, samples.detach(), 1e-4)
    close(out, want.detach(), 1e-4)
    got = torch_npu.npu_deformable_conv2dbk(
        device[0], grad.float().npu(), mine, device[1], device[2], [kh, kw], stride, padding, dilation, 1, groups
    )
    for g, one in zip(got, golden_inputs, strict=True):
        close(g, one.grad, 1e-3)
