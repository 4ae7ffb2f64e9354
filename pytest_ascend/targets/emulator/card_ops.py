"""Operators of torch itself that a card has and the CPU lacks, or has in another quality.

The parts of a synchronised batch norm, `one_hot` of int32 (which torch refuses before a device is asked), and
operators that a card computes in float32 and rounds once where the CPU rounds 16-bit values on the way. Each is made
of torch's own operators on the device's tensors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import kernel_of

__all__ = ["register"]

_Library: Any = torch.library.Library
_libraries: list[Any] = []

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def _channel(t: Tensor, like: Tensor) -> Tensor:
    """A `(C,)` tensor in float32, broadcast over dimension 1 of `like`."""
    return t.float().view(1, -1, *[1] * (like.dim() - 2))


def _others(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and `1 / sqrt(variance + eps)` of each channel of `(N, C, …)`, float32."""
    wide = x.float()
    mean = wide.mean(_others(x))
    variance = ((wide - _channel(mean, x)) ** 2).mean(_others(x))
    return mean, torch.rsqrt(variance + eps)


def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """`(x − mean) · invstd · weight + bias`, in the type of `x`."""
    y = (x.float() - _channel(mean, x)) * _channel(invstd, x)
    if weight is not None:
        y = y * _channel(weight, x)
    if bias is not None:
        y = y + _channel(bias, x)
    return y.to(x.dtype)


def _batch_norm_elemt_out(*args: Any, out: Tensor) -> Tensor:
    result = batch_norm_elemt(*args)
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of all ranks from those of each, `(ranks, C)`, weighted by how many elements a rank saw.

    The running statistics are updated in place, the variance without bias.
    """
    n = counts.float().view(-1, 1)
    total = n.sum()
    means = mean.float()
    variances = invstd.float().pow(-2) - eps
    overall = (means * n).sum(0) / total
    squares = ((variances + (means - overall) ** 2) * n).sum(0)
    variance = squares / total
    for running, new in ((running_mean, overall), (running_var, squares / (total - 1))):
        if running is not None:
            running.copy_((1 - momentum) * running.float() + momentum * new)
    return overall.to(mean.dtype), torch.rsqrt(variance + eps).to(invstd.dtype)


def batch_norm_gather_stats(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The same where every rank saw `count` elements."""
    counts = torch.full((mean.shape[0],), float(count), device=mean.device)
    return batch_norm_gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


def batch_norm_backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Sums over a rank's elements: of the gradient and of gradient times centred input, and the gradients of weight
    and bias.
    """
    wide = grad.float()
    total = wide.sum(_others(x))
    moment = (wide * (x.float() - _channel(mean, x))).sum(_others(x))
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        total.to(mean.dtype) if input_g else None,
        moment.to(mean.dtype) if input_g else None,
        (moment * invstd.float()).to(dtype) if weight_g else None,
        total.to(dtype) if bias_g else None,
    )


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """`(dy − Σdy / n − (x − mean) · invstd² · Σ(dy · (x − mean)) / n) · invstd · weight`, n the sum of `count`."""
    n = count.float().sum()
    scale = _channel(invstd, x)
    centred = x.float() - _channel(mean, x)
    y = grad.float() - _channel(sum_dy, x) / n - centred * scale * scale * _channel(sum_dy_xmu, x) / n
    y = y * scale
    if weight is not None:
        y = y * _channel(weight, x)
    return y.to(x.dtype)


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """int64 `(*x.shape, num_classes)`, 1 where the last index equals `x`; `x` may be int32 here.

    Raises:
        RuntimeError: a type that isn't int32 or int64, or an index outside `[0, num_classes)`.
    """
    if x.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"one_hot is only applicable to index tensors of int32 or int64, not {x.dtype}.")
    if not x.numel():
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return torch.empty(*x.shape, num_classes, dtype=torch.int64, device=x.device)
    index = x.long()
    if int(index.min()) < 0:
        raise RuntimeError("Class values must be non-negative.")
    largest = int(index.max())
    if num_classes == -1:
        num_classes = largest + 1
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    elif largest >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    result = torch.zeros(*x.shape, num_classes, dtype=torch.int64, device=x.device)
    return result.scatter_(-1, index.unsqueeze(-1), 1)


# ------------------------------------------------------------------------------------------------ rounded once


def _wide(t: Tensor | None) -> Tensor | None:
    return t.float() if t is not None and t.dtype in _HALF else t


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm of `(N, C, …)`: the result in the type of `x`, mean and reciprocal deviation of the batch in
    float32.
    """
    running = [_wide(running_mean), _wide(running_var)]
    y, mean, invstd = kernel_of(aten.native_batch_norm.default)(
        _wide(x), _wide(weight), _wide(bias), *running, training, momentum, eps
    )
    for stored, new in zip((running_mean, running_var), running, strict=True):
        if training and stored is not None and new is not None and stored is not new:
            stored.copy_(new)
    if not training and running[0] is not None and running[1] is not None:  # the CPU leaves them empty
        mean, invstd = running[0].clone(), torch.rsqrt(running[1] + eps)
    return y.to(x.dtype), mean, invstd


def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of `native_batch_norm` for input, weight and bias, those that `output_mask` asks for."""
    statistics = (_wide(t) for t in (running_mean, running_var, mean, invstd))
    grads = kernel_of(aten.native_batch_norm_backward.default)(
        _wide(grad), _wide(x), _wide(weight), *statistics, train, eps, output_mask
    )
    types = (x.dtype, *[weight.dtype if weight is not None else torch.float32] * 2)
    return tuple(None if g is None else g.to(dtype) for g, dtype in zip(grads, types, strict=True))


def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of `x · tanh(softplus(x))`."""
    result: Tensor = kernel_of(aten.mish_backward.default)(_wide(grad), _wide(x))
    return result.to(x.dtype)


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """`(1 − t) x + w log(1 + exp(−x))`, `w = 1 + (pos_weight − 1) t`, times `weight`, then reduced (0 none, 1 mean, 2
    sum).
    """
    wide, t = x.float() if x.dtype in _HALF else x, target.to(torch.float32 if x.dtype in _HALF else x.dtype)
    log = F.softplus(-wide)
    if pos_weight is not None:
        log = log * (1 + (pos_weight - 1) * t)
    loss = (1 - t) * wide + log
    if weight is not None:
        loss = loss * weight
    loss = loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss
    return loss.to(x.dtype)


_KERNELS = {
    "native_batch_norm": native_batch_norm,
    "native_batch_norm_backward": native_batch_norm_backward,
    "mish_backward": mish_backward,
    "batch_norm_stats": batch_norm_stats,
    "batch_norm_elemt": batch_norm_elemt,
    "batch_norm_elemt.out": _batch_norm_elemt_out,
    "batch_norm_gather_stats": batch_norm_gather_stats,
    "batch_norm_gather_stats_with_counts": batch_norm_gather_stats_with_counts,
    "batch_norm_backward_reduce": batch_norm_backward_reduce,
    "batch_norm_backward_elemt": batch_norm_backward_elemt,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
}


def register() -> None:
    """Register these kernels with torch's dispatcher; called once."""
    library: Any = _Library("aten", "IMPL")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):  # in front of torch's own composition
        library.impl("one_hot", one_hot, key)
    _libraries.append(library)
