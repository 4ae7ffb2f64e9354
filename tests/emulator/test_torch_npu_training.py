"""Optimiser steps, losses, dropout and the parts of batch norm against torch's own in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed

HALF_TOO = [torch.float32, torch.float16]


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(got.detach().cpu().double(), want.double(), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------ optimisers


@pytest.mark.parametrize("dtype", HALF_TOO)
def test_adam_steps_like_torchs(dtype: torch.dtype):
    start, grads = torch.randn(40).to(dtype), [torch.randn(40).to(dtype) for _ in range(3)]
    golden = start.double().requires_grad_()
    optimizer = torch.optim.Adam([golden], lr=0.01, betas=(0.8, 0.9), eps=1e-8)
    var, m, v = start.npu(), torch.zeros(40, dtype=dtype).npu(), torch.zeros(40, dtype=dtype).npu()
    for t, grad in enumerate(grads, 1):
        golden.grad = grad.double()
        optimizer.step()
        out = torch_npu.npu_apply_adam(0.8**t, 0.9**t, 0.01, 0.8, 0.9, 1e-12, grad.npu(), False, False, out=(var, m, v))
        assert out[0] is var
    close(var, golden, dtype)
    close(m, optimizer.state[golden]["exp_avg"], dtype)
    close(v, optimizer.state[golden]["exp_avg_sq"], dtype)


def test_adam_with_nesterov_and_a_first_power_of_one():
    var, m, v, grad = (torch.rand(5).npu() for _ in range(4))
    before = [t.cpu().double() for t in (var, m, v)]
    g = grad.cpu().double()
    torch_npu.npu_apply_adam(0.5, 0.75, 0.1, 0.6, 0.7, 0.01, grad, False, True, out=(var, m, v))
    new_m, new_v = 0.6 * before[1] + 0.4 * g, 0.7 * before[2] + 0.3 * g * g
    close(var, before[0] - 0.1 * math.sqrt(0.25) / 0.5 * (0.6 * new_m + 0.4 * g) / (new_v.sqrt() + 0.01))
    torch_npu.npu_apply_adam(1, 1, 0.1, 0.6, 0.7, 0.01, grad, False, False, out=(var, m, v))
    assert var.isnan().all()


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_steps_like_torchs(amsgrad: bool, maximize: bool):
    start, grads = torch.randn(40), [torch.randn(40) for _ in range(3)]
    golden = start.double().requires_grad_()
    optimizer = torch.optim.AdamW(
        [golden], lr=0.01, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=False, maximize=maximize
    )
    var, m, v, largest = start.npu(), *(torch.zeros(40, device="npu") for _ in range(3))
    for t, grad in enumerate(grads):
        golden.grad = grad.double()
        optimizer.step()
        top = largest if amsgrad else None
        torch_npu.npu_apply_adam_w(
            0.8**t, 0.9**t, 0.01, 0.1, 0.8, 0.9, 1e-8, grad.npu(), top, amsgrad, maximize, out=(var, m, v)
        )
    close(m, optimizer.state[golden]["exp_avg"])
    close(v, optimizer.state[golden]["exp_avg_sq"])
    if amsgrad:
        assert (largest >= v).all()
        assert (largest > v).any()
    else:
        close(var, golden)


def test_amsgrad_needs_its_memory():
    tensors = [torch.ones(2, device="npu") for _ in range(4)]
    with pytest.raises(RuntimeError, match="max_grad_norm"):
        torch_npu.npu_apply_adam_w(
            0.9, 0.9, 0.1, 0, 0.9, 0.9, 1e-8, tensors[0], None, True, False, out=tuple(tensors[1:])
        )


def test_bert_adam_clips_and_decays():
    var, m, v, grad = (torch.rand(5).npu() for _ in range(4))
    b_var, b_m, b_v, g = (t.cpu().double() for t in (var, m, v, grad))
    torch_npu.npu_bert_apply_adam(0.1, 0.9, 0.99, 1e-6, grad, 1.0, 4.0, 0.01, out=(var, m, v))
    g = g / 4
    new_m, new_v = 0.9 * b_m + 0.1 * g, 0.99 * b_v + 0.01 * g * g
    close(m, new_m)
    close(v, new_v)
    close(var, b_var - 0.1 * (new_m / (new_v.sqrt() + 1e-6) + 0.01 * b_var))


# ------------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_loss(reduction: str):
    x, target = torch.randn(6, 9), torch.tensor([0, 8, -100, 3, 3, 1])
    weight = torch.rand(9)
    golden, device = x.double().requires_grad_(), x.npu().requires_grad_()
    want = F.cross_entropy(golden, target, weight.double(), reduction=reduction, label_smoothing=0.1)
    loss, log_probability, zloss, lse = torch_npu.npu_cross_entropy_loss(
        device, target.npu(), weight.npu(), reduction, -100, 0.1, 0.5, True
    )
    close(loss, want.detach())
    close(log_probability, golden.detach().log_softmax(1))
    close(lse, golden.detach().logsumexp(1))
    squares = 0.5 * golden.detach().logsumexp(1) ** 2 * (target != -100)
    close(zloss, {"none": squares, "sum": squares.sum(), "mean": squares.sum() / 5}[reduction])
    want.sum().backward()
    loss.sum().backward()
    close(device.grad, golden.grad)
    assert torch_npu.npu_cross_entropy_loss(device, target.npu())[2].numel() == 0


@pytest.mark.parametrize("saved_softmax", [True, False])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_a_vocabulary_over_two_cards_gives_the_whole_cross_entropy(index: torch.dtype, saved_softmax: bool):
    batch, hidden, vocabulary = 11, 16, 40
    x, weight = torch.randn(batch, hidden).half(), torch.randn(vocabulary, hidden).half()
    target, grad = torch.randint(0, vocabulary, (batch,)), torch.randn(batch)
    golden, golden_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    want = F.cross_entropy(golden @ golden_weight.t(), target, reduction="none")
    want.backward(grad.double())
    cards = []
    for start in (0, 20):
        part = weight[start : start + 20].npu()
        cards.append(
            torch_npu.npu_fused_linear_online_max_sum(x.npu(), part, target.to(index).npu(), start, start + 19, True)
        )
    # What the cards would exchange: maxima, then sums and shifted target logits on that common maximum.
    maximum = torch.maximum(cards[0][0], cards[1][0])
    sums = sum(c[1] * (c[0] - maximum).exp() for c in cards)
    held = torch.stack([(target >= s) & (target < s + 20) for s in (0, 20)]).npu()
    predicted = sum(torch.where(h, c[2] + c[0] - maximum, 0.0) for c, h in zip(cards, held, strict=True))
    total_x = torch.zeros(batch, hidden)
    for card, start in zip(cards, (0, 20), strict=True):
        assert card[4].dtype is index
        bits = [int(b) for byte in card[3].tolist() for b in f"{byte:08b}"]
        assert bits == [int(not h) for h in held[start // 20].tolist()] + [1] * (-batch % 8)
        loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
            maximum, sums, predicted, vocab_parallel_logits=card[5]
        )
        close(loss, want, torch.float16)
        part = weight[start : start + 20].npu()
        saved = {"softmax": softmax} if saved_softmax else {"logits_max": maximum, "sum_exp_logits": sums}
        grad_x, grad_weight = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            grad.npu(), x.npu(), part, card[3], card[4], **saved
        )
        assert grad_x.dtype is grad_weight.dtype is torch.float16
        total_x += grad_x.cpu().float()
        reference = golden_weight.grad[start : start + 20]
        assert (grad_weight.cpu().double() - reference).norm() / reference.norm() < 5e-3
    assert (total_x.double() - golden.grad).norm() / golden.grad.norm() < 5e-3


def test_what_the_vocabulary_parallel_losses_refuse():
    one = torch.ones(2, device="npu")
    with pytest.raises(RuntimeError, match="label_smoothing"):
        torch_npu.npu_fused_cross_entropy_loss_with_max_sum(one, one, one, label_smoothing=0.1)
    with pytest.raises(RuntimeError, match="softmax"):
        torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            one, one.view(2, 1).half(), one.view(2, 1).half(), one.to(torch.uint8), one.int()
        )


# ------------------------------------------------------------------------------------------------ dropout


def unpack(mask: torch.Tensor, count: int) -> torch.Tensor:
    bits = [(byte >> i) & 1 for byte in mask.tolist() for i in range(8)]
    return torch.tensor(bits[:count], dtype=torch.bool)


@pytest.mark.parametrize("dtype", HALF_TOO)
def test_packed_dropout_scales_what_its_mask_keeps(dtype: torch.dtype):
    x = torch.randn(37, 40).to(dtype).npu().requires_grad_()
    y, mask = torch_npu._npu_dropout(x, 0.3)
    assert mask.dtype is torch.uint8
    assert mask.numel() == 12 * 16  # 1480 bits in whole blocks of 128
    kept = unpack(mask, 1480).view(37, 40)
    assert 0.62 < kept.double().mean() < 0.78
    close(y, torch.where(kept, x.detach().cpu().double() / 0.7, 0.0), dtype)
    y.backward(torch.ones_like(y))
    close(x.grad, kept.double() / 0.7, dtype)
    again, same = torch_npu.npu_dropout_do_mask(x.detach(), mask, 0.3)
    assert torch.equal(again.cpu(), y.detach().cpu())
    assert torch.equal(same.cpu(), mask.cpu())
    close(torch_npu.npu_dropout_backward(torch.ones_like(y), mask, 0.3), kept.double() / 0.7, dtype)


def test_dropout_at_its_ends():
    x = torch.randn(300, device="npu")
    y, mask = torch_npu._npu_dropout(x, 0.0)
    assert torch.equal(y.cpu(), x.cpu())
    assert (mask == 255).all()
    assert not torch_npu._npu_dropout(x, 1.0)[0].any()
    assert not torch_npu._dropout_with_byte_mask(x, 1.0)[0].any()
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch_npu._npu_dropout(x, 1.5)
    masks = [torch_npu._npu_dropout_gen_mask(x, [3, 100], 0.5, seed, 7) for seed in (1, 1, 2)]
    assert masks[0].numel() == 48
    assert torch.equal(masks[0].cpu(), masks[1].cpu())
    assert not torch.equal(masks[0].cpu(), masks[2].cpu())
    assert torch_npu.npu_dropout_gen_mask([3, 100], 0.5, device="npu").numel() == 48


def test_byte_mask_dropout():
    x = torch.randn(4000, device="npu", requires_grad=True)
    y, mask = torch_npu._dropout_with_byte_mask(x, 0.25)
    close(y, torch.where(mask.cpu().bool(), x.detach().cpu() / 0.75, 0.0))
    y.sum().backward()
    assert torch.equal(x.grad, torch_npu._dropout_with_byte_mask_backward(torch.ones_like(y), mask, 0.25))
    assert torch.equal(torch_npu.dropout_with_byte_mask(x, 0.5, False), x)
    assert 0.4 < (torch_npu.dropout_with_byte_mask(x, 0.5, True) == 0).float().mean().item() < 0.6


def test_dropout_after_softmax():
    x, y = torch.randn(8, 100).npu(), torch.randn(8, 100).npu()
    mask, soft, out = torch_npu.npu_dropout_with_add_softmax(x, y, 0.5, 0.4, -1)
    want = torch.softmax(y.cpu().double() + 0.5 * x.cpu().double(), -1)
    close(soft, want)
    close(out, torch.where(unpack(mask, 800).view(8, 100), want / 0.6, 0.0))


# ------------------------------------------------------------------------------------------------ batch norm


@pytest.mark.parametrize("dtype", HALF_TOO)
@pytest.mark.parametrize("shape", [(12, 3), (12, 3, 5), (12, 3, 4, 5)])
def test_synchronised_batch_norm_of_two_ranks_is_batch_norm_of_the_whole(shape: tuple[int, ...], dtype: torch.dtype):
    eps, momentum = 1e-3, 0.2
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight, bias = torch.rand(3) + 0.5, torch.rand(3)
    golden = [t.double().requires_grad_() for t in (x, weight, bias)]
    mean64, var64 = torch.rand(3).double(), torch.rand(3).double()
    running = [mean64.float().npu(), var64.float().npu()]
    want = F.batch_norm(golden[0], mean64, var64, golden[1], golden[2], True, momentum, eps)
    want.backward(grad.double())
    ranks = [(x[:8].npu(), grad[:8].npu()), (x[8:].npu(), grad[8:].npu())]
    stats = [torch.batch_norm_stats(r, eps) for r, _ in ranks]
    counts = torch.tensor([r.numel() / 3 for r, _ in ranks]).npu()
    means, stds = torch.stack([s[0] for s in stats]), torch.stack([s[1] for s in stats])
    mean, invstd = torch.batch_norm_gather_stats_with_counts(ranks[0][0], means, stds, *running, momentum, eps, counts)
    close(running[0], mean64)
    close(running[1], var64)
    y = [torch.batch_norm_elemt(r, weight.npu(), bias.npu(), mean, invstd, eps) for r, _ in ranks]
    assert y[0].dtype is dtype
    close(torch.cat(y), want.detach(), dtype)
    parts = [torch.batch_norm_backward_reduce(g, r, mean, invstd, weight.npu(), True, True, True) for r, g in ranks]
    sums = [sum(p[i] for p in parts) for i in range(4)]
    close(sums[2], golden[1].grad, dtype)
    close(sums[3], golden[2].grad, dtype)
    dx = [
        torch.batch_norm_backward_elemt(g, r, mean, invstd, weight.npu(), sums[0], sums[1], counts.int())
        for r, g in ranks
    ]
    close(torch.cat(dx), golden[0].grad, dtype)


def test_batch_norm_parts_without_weights_into_out_and_with_one_count():
    x = torch.randn(6, 2, 3)
    mean, invstd = torch.batch_norm_stats(x.npu(), 1e-5)
    out = torch.empty(0, device="npu")
    torch.batch_norm_elemt(x.npu(), None, None, mean, invstd, 1e-5, out=out)
    close(out, F.batch_norm(x.double(), None, None, training=True))
    twice = torch.stack([mean, mean]), torch.stack([invstd, invstd])
    again = torch.batch_norm_gather_stats(x.npu(), *twice, None, None, 0.1, 1e-5, 18)
    close(again[0], mean.cpu())
    close(again[1], invstd.cpu())
    assert torch.batch_norm_backward_reduce(x.npu(), x.npu(), mean, invstd, None, False, False, False) == (None,) * 4


@pytest.mark.parametrize("dtype", HALF_TOO)
def test_batch_norm_from_sums(dtype: torch.dtype):
    x = torch.randn(8, 3, 5).to(dtype)
    sums = [torch_npu.batch_norm_reduce(part.npu(), 1e-5) for part in (x[:3], x[3:])]
    close(sums[0][0], x[:3].double().sum((0, 2)))
    close(sums[1][1], (x[3:].double() ** 2).sum((0, 2)))
    running = [torch.zeros(3, device="npu"), torch.ones(3, device="npu")]
    mean, invstd = torch_npu.batch_norm_gather_stats_update(
        x.npu(),
        *(torch.stack([s[i] for s in sums]) for i in (0, 1)),
        *running,
        0.25,
        1e-5,
        torch.tensor([15.0, 25.0]).npu(),
    )
    whole = x.double().transpose(0, 1).reshape(3, -1)
    close(mean, whole.mean(1))
    close(invstd, (whole.var(1, unbiased=False) + 1e-5).rsqrt())
    close(running[0], 0.25 * whole.mean(1))
    close(running[1], 0.75 + 0.25 * whole.var(1, unbiased=False))
    with pytest.raises(RuntimeError, match="must more than 1"):
        torch_npu.batch_norm_reduce(torch.ones(3, device="npu"), 1e-5)


@pytest.mark.parametrize("parameters", [torch.float32, torch.float16])
def test_half_batch_norm_sums_in_float32(parameters: torch.dtype):
    x, grad = torch.rand(64, 3, 30, 30).half(), torch.rand(64, 3, 30, 30).half()
    layer, golden = torch.nn.BatchNorm2d(3).to(parameters).npu(), torch.nn.BatchNorm2d(3).double()
    device, wide = x.npu().requires_grad_(), x.double().requires_grad_()
    y, want = layer(device), golden(wide)
    assert y.dtype is torch.float16
    close(y, want.detach(), torch.float16)
    y.backward(grad.npu())
    want.backward(grad.double())
    close(device.grad, wide.grad, torch.float16)
    assert layer.weight.grad.dtype is parameters
    loose = 2e-3 if parameters is torch.float16 else 1e-4
    torch.testing.assert_close(layer.weight.grad.cpu().double(), golden.weight.grad, rtol=loose, atol=0.05)
    torch.testing.assert_close(layer.running_var.cpu().double(), golden.running_var, rtol=loose, atol=loose)
    torch.testing.assert_close(layer.running_mean.cpu().double(), golden.running_mean, rtol=loose, atol=loose)
    close(layer.eval()(device), golden.eval()(wide).detach(), torch.float16)
    used = torch.ops.aten.native_batch_norm(device, None, None, layer.running_mean, layer.running_var, False, 0.1, 1e-5)
    close(used[1], golden.running_mean, torch.float16)
    close(used[2], (golden.running_var + 1e-5).rsqrt(), torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_binary_cross_entropy_is_rounded_once(reduction: str, dtype: torch.dtype):
    x, target, weight, positive = torch.randn(20, 5), torch.rand(20, 5), torch.rand(5), torch.rand(5)
    x, target, weight, positive = (t.to(dtype) for t in (x * 5, target, weight, positive))
    wide, device = x.double().requires_grad_(), x.npu().requires_grad_()
    options = {"weight": weight, "pos_weight": positive}
    want = F.binary_cross_entropy_with_logits(
        wide, target.double(), **{k: v.double() for k, v in options.items()}, reduction=reduction
    )
    got = F.binary_cross_entropy_with_logits(
        device, target.npu(), **{k: v.npu() for k, v in options.items()}, reduction=reduction
    )
    close(got, want.detach(), dtype)
    got.sum().backward()
    want.sum().backward()
    close(device.grad, wide.grad, dtype)
    plain = F.binary_cross_entropy_with_logits(device.detach(), target.npu(), reduction=reduction)
    close(plain, F.binary_cross_entropy_with_logits(x.double(), target.double(), reduction=reduction), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mish_gradient_is_rounded_once(dtype: torch.dtype):
    x = (torch.rand(2000) * 100).to(dtype)
    wide, device = x.double().requires_grad_(), x.npu().requires_grad_()
    F.mish(wide).sum().backward()
    F.mish(device).sum().backward()
    assert torch.equal(device.grad.cpu(), wide.grad.to(dtype))


# ------------------------------------------------------------------------------------------------ other gradients


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_renorm_gradient(dim: int, p: float):
    x, grad = torch.randn(4, 5, 6, dtype=torch.float64), torch.randn(4, 5, 6, dtype=torch.float64)
    limit = torch.linalg.vector_norm(x.movedim(dim, 0).flatten(1), p, 1).median().item() * 0.999
    golden = x.clone().requires_grad_()
    torch.renorm(golden, p, dim, limit).backward(grad)
    got = torch_npu.npu_renorm_backward(grad.float().npu(), x.float().npu(), p, dim, limit)
    close(got, golden.grad)


def test_activation_gradient_operators():
    x, grad = torch.randn(20), torch.randn(20)
    golden = x.double().requires_grad_()
    (golden * torch.sigmoid(1.702 * golden)).backward(grad.double())
    close(torch_npu.npu_fast_gelu_backward(grad.npu(), x.npu()), golden.grad)
    y = x.npu()
    assert torch_npu.npu_silu_(y) is y
    close(y, F.silu(x.double()))


def test_linear_and_convolution_gradient_operators():
    x, w, grad = torch.randn(5, 6), torch.randn(4, 6), torch.randn(5, 4)
    dx, dw = torch_npu.npu_linear_backward(grad.npu(), x.npu(), w.npu())
    close(dx, grad @ w)
    close(dw, grad.t() @ x)
    torch.npu.conv.allow_hf32 = False
    for padding in ([1, 1], [0, 1, 2, 0]):
        x, w = torch.randn(2, 3, 5, 5).double().requires_grad_(), torch.randn(4, 3, 3, 3).double().requires_grad_()
        sides = padding if len(padding) == 4 else [1, 1, 1, 1]
        y = F.conv2d(F.pad(x, (sides[2], sides[3], sides[0], sides[1])), w)
        grad = torch.randn_like(y)
        y.backward(grad)
        got = torch_npu.npu_conv2d_backward(
            x.detach().float().npu(),
            grad.float().npu(),
            w.detach().float().npu(),
            [1, 1],
            padding,
            [1, 1],
            1,
            [True] * 3,
        )
        for g, want in zip(got, (x.grad, w.grad, grad.sum((0, 2, 3))), strict=True):
            close(g, want, torch.float16)
    only_weight = torch_npu.npu_conv3d_backward(
        torch.ones(1, 1, 2, 2, 2).npu(), torch.ones(1, 1, 1, 1, 1).npu(), torch.ones(1, 1, 2, 2, 2).npu(),
        [1] * 3, [0] * 3, [1] * 3, 1, [False, True, False],
    )  # fmt: skip
    assert only_weight[0] is None
    assert torch.equal(only_weight[1].cpu(), torch.ones(1, 1, 2, 2, 2))


def test_the_gradient_of_binary_cross_entropy_doesnt_cancel():
    """A card takes torch's own formula, sigmoid(x) - t, which is right where both are small."""
    x, t = torch.tensor([-7.0, -9.0, -12.0]), torch.tensor([2e-3, 1e-4, 7e-6])
    here = x.npu().requires_grad_()
    F.binary_cross_entropy_with_logits(here, t.npu(), reduction="sum").backward()
    want = torch.sigmoid(x.double()) - t.double()
    assert torch.allclose(here.grad.cpu().double(), want, rtol=1e-5, atol=0)
