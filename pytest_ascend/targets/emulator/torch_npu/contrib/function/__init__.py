"""`torch_npu.contrib.function`."""

from __future__ import annotations

import torch as _torch

from . import npu_functional as npu_functional
from .npu_functional import dropout_with_byte_mask as dropout_with_byte_mask


def matmul_transpose(tensor1: _torch.Tensor, tensor2: _torch.Tensor) -> _torch.Tensor:
    """`tensor1 @ tensor2ᵀ` over the last two dimensions."""
    return _torch.matmul(tensor1, tensor2.transpose(-2, -1))


def roll(input1: _torch.Tensor, shifts: list[int], dims: list[int]) -> _torch.Tensor:
    """`torch.roll`."""
    return _torch.roll(input1, shifts, dims)
