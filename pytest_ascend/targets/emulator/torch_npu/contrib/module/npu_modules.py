"""Dropout with a byte mask."""

from __future__ import annotations

import torch as _torch
from torch import nn as _nn

from ..function import npu_functional as F

__all__ = ["DropoutWithByteMask"]


class DropoutWithByteMask(_nn.Module):
    """Dropout whose mask takes a byte an element.

    Raises:
        ValueError: `p` is no probability.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input1: _torch.Tensor) -> _torch.Tensor:
        return F.dropout_with_byte_mask(input1, self.p, self.training, self.inplace)
