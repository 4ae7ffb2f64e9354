"""Cross entropy with smoothed labels."""

from __future__ import annotations

import torch as _torch
from torch import nn as _nn

__all__ = ["LabelSmoothingCrossEntropy"]


class LabelSmoothingCrossEntropy(_nn.Module):
    """Mean cross entropy of `(rows, num_classes)` logits against labels of `1 − smooth_factor`, the rest spread
    evenly.
    """

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.on_value = 1.0 - smooth_factor
        self.off_value = smooth_factor / (num_classes - 1)

    def forward(self, pred: _torch.Tensor, target: _torch.Tensor) -> _torch.Tensor:
        labels = _torch.ops.npu.npu_one_hot(target, -1, pred.size(-1), self.on_value, self.off_value)
        loss: _torch.Tensor = _torch.ops.npu.npu_softmax_cross_entropy_with_logits(pred, labels.to(pred.dtype))
        return loss.mean()
