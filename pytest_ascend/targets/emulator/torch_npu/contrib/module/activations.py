"""Activation layers."""

from __future__ import annotations

import torch as _torch
from torch import nn as _nn

__all__ = ["Mish", "SiLU", "Swish"]


class Mish(_nn.Module):
    """`x · tanh(softplus(x))`."""

    def forward(self, x: _torch.Tensor) -> _torch.Tensor:
        result: _torch.Tensor = _torch.ops.npu.npu_mish(x)
        return result


class SiLU(_nn.Module):
    """`x · sigmoid(x)`."""

    def forward(self, x: _torch.Tensor) -> _torch.Tensor:
        result: _torch.Tensor = _torch.ops.npu.npu_silu(x)
        return result


Swish = SiLU
