"""Losses, and the parts of a cross entropy whose vocabulary is spread over several cards."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import narrow, op, wide

__all__: list[str] = []


@op("npu_softmax_cross_entropy_with_logits(Tensor self, Tensor labels) -> Tensor")
def npu_softmax_cross_entropy_with_logits(x: Tensor, labels: Tensor) -> Tensor:
    """`−Σ labels · log_softmax(x)` of each row; both `(rows, classes)`."""
    wx, wl = wide(x, labels)
    return narrow(-(wl * F.log_softmax(wx, -1)).sum(-1), x)


@op(
    "npu_cross_entropy_loss(Tensor input, Tensor target, Tensor? weight=None, str reduction='mean', int "
    "ignore_index=-100, "
    "float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0, bool return_zloss=False) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_cross_entropy_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross entropy of `(rows, classes)` logits: loss, log-probabilities, z-loss and log-sum-exp.

    The z-loss is `lse_square_scale_for_zloss · lse²`, reduced as the loss is; both it and the log-sum-exp are empty
    unless `return_zloss`.
    """
    (wx,) = wide(x)
    log_probabilities = F.log_softmax(wx, -1)
    loss = F.cross_entropy(
        wx,
        target.long(),
        None if weight is None else weight.float(),
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    zloss = lse = torch.empty(0, dtype=x.dtype, device=x.device)
    if return_zloss:
        lse = torch.logsumexp(wx, -1)
        squares = torch.where(target == ignore_index, 0.0, lse_square_scale_for_zloss * lse * lse)
        zloss = {"none": squares, "sum": squares.sum(), "mean": squares.sum() / (target != ignore_index).sum()}[
            reduction
        ]
    return narrow(loss, x), narrow(log_probabilities, x), narrow(zloss, x), lse


@op(
    "npu_fused_linear_online_max_sum(Tensor input, Tensor weight, Tensor target, int vocab_start_index, int "
    "vocab_end_index, "
    "bool return_logits=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def npu_fused_linear_online_max_sum(
    x: Tensor, weight: Tensor, target: Tensor, vocab_start_index: int, vocab_end_index: int, return_logits: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """This card's part of a vocabulary-parallel cross entropy, before the cards exchange it.

    Args:
        x: 16-bit `(batch, hidden)`.
        weight: `(this card's vocabulary, hidden)`, the type of `x`.
        target: int32 or int64 `(batch,)`, indices of the whole vocabulary.
        vocab_start_index, vocab_end_index: the card holds the indices from start to end, both included.
        return_logits: whether the logits are wanted.

    Returns:
        Row maxima of the logits, row sums of `exp(logits − maximum)` and the shifted logit of each target (0 where
        another card holds it), float32 `(batch,)` each; a mask of the targets held elsewhere, packed highest bit first,
        padded with ones; targets counted from `vocab_start_index` (0 where held elsewhere); the logits in the type of
        `x`, or None.
    """
    logits = x.float() @ weight.float().t()
    maxima = logits.amax(-1)
    shifted = logits - maxima.unsqueeze(-1)
    sums = shifted.exp().sum(-1)
    elsewhere = (target < vocab_start_index) | (target > vocab_end_index)
    masked = torch.where(elsewhere, 0, target - vocab_start_index).to(target.dtype)
    predicted = shifted.gather(1, masked.long().unsqueeze(1)).squeeze(1)
    predicted = torch.where(elsewhere, 0.0, predicted)
    bits = F.pad(elsewhere.to(torch.int32), [0, -target.numel() % 8], value=1).view(-1, 8)
    packed = (bits * 2 ** torch.arange(7, -1, -1, device=x.device, dtype=torch.int32)).sum(1).to(torch.uint8)
    return maxima, sums, predicted, packed, masked, logits.to(x.dtype) if return_logits else None


@op(
    "npu_fused_cross_entropy_loss_with_max_sum(Tensor logits_max, Tensor sum_exp_logits, Tensor predicted_logits, *, "
    "float? label_smoothing=0.0, Tensor? input=None, Tensor? weight=None, Tensor? vocab_parallel_logits=None) -> "
    "(Tensor, Tensor)"
)
def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max: Tensor,
    sum_exp_logits: Tensor,
    predicted_logits: Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    vocab_parallel_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The rest of that cross entropy, after the exchange: `log(sum_exp_logits) − predicted_logits` and the softmax.

    The softmax, `exp(logits − logits_max) / sum_exp_logits` in float32, is None without `vocab_parallel_logits`.

    Raises:
        RuntimeError: label smoothing, which the operator doesn't know.
    """
    if label_smoothing:
        raise RuntimeError(
            f"npu_fused_cross_entropy_loss_with_max_sum: label_smoothing only supports 0.0, got {label_smoothing}"
        )
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, None
    shifted = vocab_parallel_logits.float() - logits_max.unsqueeze(-1)
    return loss, shifted.exp() / sum_exp_logits.unsqueeze(-1)


@op(
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward(Tensor grad, Tensor input, Tensor weight, Tensor "
    "target_mask, "
    "Tensor masked_target, float label_smoothing=0.0, Tensor? logits_max=None, Tensor? sum_exp_logits=None, "
    "Tensor? softmax=None) -> (Tensor, Tensor)"
)
def npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    target_mask: Tensor,
    masked_target: Tensor,
    label_smoothing: float = 0.0,
    logits_max: Tensor | None = None,
    sum_exp_logits: Tensor | None = None,
    softmax: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of that cross entropy for input and weight, from a saved softmax or from the row maxima and sums.

    Raises:
        RuntimeError: neither of the two was given.
    """
    if softmax is None:
        if logits_max is None or sum_exp_logits is None:
            raise RuntimeError("either softmax, or both logits_max and sum_exp_logits must be given")
        shifted = x.float() @ weight.float().t() - logits_max.unsqueeze(-1)
        softmax = shifted.exp() / sum_exp_logits.unsqueeze(-1)
    shifts = torch.arange(7, -1, -1, device=x.device, dtype=torch.uint8)
    elsewhere = ((target_mask.view(-1, 1) >> shifts) & 1).view(-1)[: x.shape[0]]
    held = 1 - elsewhere.to(torch.float32)
    error = softmax.float().scatter_add(1, masked_target.long().unsqueeze(1), -held.unsqueeze(1)) * grad.unsqueeze(-1)
    return (error @ weight.float()).to(x.dtype), (error.t() @ x.float()).to(weight.dtype)
