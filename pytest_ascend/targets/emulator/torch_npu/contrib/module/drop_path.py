"""Stochastic depth."""

from __future__ import annotations

import torch as _torch
from torch import nn as _nn

__all__ = ["NpuDropPath"]


class NpuDropPath(_nn.Module):
    """While training, drop whole samples with probability `drop_prob` and scale the others by `1 / (1 − drop_prob)`."""

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob or 0.0
        self.keep_prob = 1 - self.drop_prob

    def forward(self, x: _torch.Tensor) -> _torch.Tensor:
        if self.drop_prob == 0 or not self.training:
            return x
        kept = _torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.drop_prob
        return x * kept.to(x.dtype) / self.keep_prob if self.keep_prob else x * 0
