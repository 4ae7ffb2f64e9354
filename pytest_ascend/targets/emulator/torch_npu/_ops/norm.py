"""Normalisation: root-mean-square norms, parts of a synchronised batch norm, and relatives. Statistics are float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import narrow, op, wide

__all__: list[str] = []


def _rms(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Normalised float32 values and the reciprocal root mean square over the dimensions of `gamma`."""
    dims = list(range(-gamma.dim(), 0))
    wx, wg = wide(x, gamma)
    rstd = torch.rsqrt((wx * wx).mean(dims, keepdim=True) + epsilon)
    return wx * rstd * wg, rstd


@op("npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)")
def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`x / sqrt(mean(x²) + epsilon) · gamma` over the trailing dimensions that `gamma` has.

    Returns:
        The normalised tensor in the type of `x`, and the reciprocal root mean square (float32, those dimensions of
        size 1).
    """
    y, rstd = _rms(x, gamma, epsilon)
    return narrow(y, x), rstd


@op("npu_gemma_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)")
def npu_gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`npu_rms_norm` with the factor `1 + gamma`."""
    y, rstd = _rms(x, 1 + wide(gamma)[0], epsilon)
    return narrow(y, x), rstd


@op("npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)")
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of `x1 + x2`: the norm, the reciprocal root mean square (float32) and the sum."""
    total = x1 + x2
    y, rstd = _rms(total, gamma, epsilon)
    return narrow(y, x1), rstd, total


@op(
    "_npu_quant_rms_norm(Tensor x, Tensor gamma, Tensor beta, Tensor scale, Tensor offset, Tensor(a!) y, float "
    "eps=1e-05) -> ()"
)
def _npu_quant_rms_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, scale: Tensor, offset: Tensor, y: Tensor, eps: float = 1e-5
) -> None:
    """Write `round((rms_norm(x) · gamma + beta) / scale + offset)`, clamped to int8, into `y`.

    Args:
        x: 16-bit, `(…, hidden)`.
        gamma, beta: `(1, hidden)` or `(hidden,)`.
        scale: one element, the type of `x`.
        offset: one int8 element.
        y: int8, the shape of `x`.
        eps: added to the mean square.
    """
    hidden = x.shape[-1]
    values, _ = _rms(x, gamma.reshape(hidden), eps)
    (wide_beta,) = wide(beta)
    quantised = torch.round((values + wide_beta.reshape(hidden)) / scale.float() + offset.float())
    y.copy_(quantised.clamp(-128, 127).to(torch.int8))


@op(
    "npu_layer_norm_eval(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float "
    "eps=1e-05) -> Tensor"
)
def npu_layer_norm_eval(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Layer norm for inference."""
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


@op(
    "npu_deep_norm(Tensor x, Tensor gx, Tensor beta, Tensor gamma, float alpha=0.3, float epsilon=1e-06) -> "
    "(Tensor, Tensor, Tensor)"
)
def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of `alpha · x + gx` over the dimensions of `gamma`: mean, reciprocal deviation (float32) and the
    norm.
    """
    wx, wgx, w_beta, w_gamma = wide(x, gx, beta, gamma)
    dims = list(range(-gamma.dim(), 0))
    total = alpha * wx + wgx
    mean = total.mean(dims, keepdim=True)
    rstd = torch.rsqrt(((total - mean) ** 2).mean(dims, keepdim=True) + epsilon)
    return mean, rstd, narrow((total - mean) * rstd * w_gamma + w_beta, x)


@op(
    "npu_group_norm_silu(Tensor input, Tensor? weight, Tensor? bias, int group, float eps=0.00001) -> (Tensor, "
    "Tensor, Tensor)"
)
def npu_group_norm_silu(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`silu(group_norm(x))`, the means and the reciprocal deviations, `(N, group)` each, in the type of `x`."""
    wx, ww, wb = wide(x, weight, bias)
    rows = wx.reshape(x.shape[0], group, -1)
    mean = rows.mean(2)
    rstd = torch.rsqrt(((rows - mean.unsqueeze(2)) ** 2).mean(2) + eps)
    y = ((rows - mean.unsqueeze(2)) * rstd.unsqueeze(2)).view_as(wx)
    shape = (1, -1, *[1] * (x.dim() - 2))
    if ww is not None:
        y = y * ww.view(shape)
    if wb is not None:
        y = y + wb.view(shape)
    return narrow(y * torch.sigmoid(y), x), narrow(mean, x), narrow(rstd, x)


@op("batch_norm_reduce(Tensor input, float eps) -> (Tensor, Tensor)")
def batch_norm_reduce(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of each channel (dimension 1), float32; `eps` takes no part.

    Raises:
        RuntimeError: fewer than two dimensions.
    """
    if x.dim() < 2:
        raise RuntimeError(f"batch_norm_reduce: the dim input tensor must more than 1, but got {x.dim()}")
    dims = [d for d in range(x.dim()) if d != 1]
    wide_x = x.float()
    return wide_x.sum(dims), (wide_x * wide_x).sum(dims)


@op(
    "batch_norm_gather_stats_update(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, Tensor? "
    "running_var, "
    "float momentum, float eps, Tensor counts) -> (Tensor, Tensor)"
)
def batch_norm_gather_stats_update(
    x: Tensor,
    total: Tensor,
    square_total: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of all ranks from their sums, and an update of the running ones in place.

    Args:
        x: the layer's input; only its type matters.
        total, square_total: `(ranks, channels)`, what `batch_norm_reduce` gave on each rank.
        running_mean, running_var: `(channels,)` or None; `running_var` takes the biased variance.
        momentum: weight of the new statistics.
        eps: added to the variance.
        counts: elements that each rank summed.

    Returns:
        Mean and `1 / sqrt(variance + eps)` of each channel.
    """
    n = counts.float().sum()
    mean = total.float().sum(0) / n
    variance = square_total.float().sum(0) / n - mean * mean
    for running, new in ((running_mean, mean), (running_var, variance)):
        if running is not None:
            running.copy_(momentum * new + (1 - momentum) * running.float())
    return narrow(mean, total), narrow(torch.rsqrt(variance + eps), total)


@op("npu_normalize_batch(Tensor self, Tensor seq_len, int normalize_type=0) -> Tensor")
def npu_normalize_batch(x: Tensor, seq_len: Tensor, normalize_type: int = 0) -> Tensor:
    """Standardise each sequence over its valid length: `(x − mean) / (std + 1e-5)`.

    Args:
        x: float32 `(batch, features, time)`.
        seq_len: int32 `(batch,)`, valid steps of each sequence.
        normalize_type: 0 for statistics of each feature over time, 1 for those of the whole sequence.
    """
    inside = torch.arange(x.shape[2], device=x.device, dtype=seq_len.dtype) < seq_len.view(-1, 1)
    mask = inside.view(x.shape[0], 1, x.shape[2]).to(x.dtype)
    dims = [2] if normalize_type == 0 else [1, 2]
    count = seq_len.view(-1, 1, 1).to(x.dtype) * (1 if normalize_type == 0 else x.shape[1])
    mean = (x * mask).sum(dims, keepdim=True) / count
    centred = (x - mean) * mask
    deviation = ((centred * centred).sum(dims, keepdim=True) / (count - 1)).sqrt()
    return (x - mean) / (deviation + 1e-5)


@op("npu_renorm_backward(Tensor grad, Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor")
def npu_renorm_backward(grad: Tensor, x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Gradient of `torch.renorm(x, p, dim, maxnorm)`.

    A slice whose p-norm `n` exceeds `maxnorm` was scaled by `s = maxnorm / (n + 1e-7)`; its gradient is
    `s · grad − s / (n + 1e-7) · (∂n/∂x) Σ grad · x`. Other slices pass `grad` on.
    """
    if p <= 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    wg, wx = wide(grad.detach(), x.detach())
    dims = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(wx, p, dims, keepdim=True)
    slope = wx.sign() * wx.abs().pow(p - 1) * norm.pow(1 - p)
    slope = torch.where((norm > 0) & (wx != 0), slope, 0.0)
    scale = maxnorm / (norm + 1e-7)
    shrunk = scale * (wg - slope * (wg * wx).sum(dims, keepdim=True) / (norm + 1e-7))
    return narrow(torch.where(norm > maxnorm, shrunk, wg), x)
