"""The float status register: eight numbers, the first of which says whether something overflowed."""

from __future__ import annotations

import torch
from torch import Tensor

from ...device import machine
from .registry import op

__all__: list[str] = []


@op("npu_alloc_float_status(Tensor self) -> Tensor")
def npu_alloc_float_status(x: Tensor) -> Tensor:
    """Eight float32 zeros to read the status into."""
    return torch.zeros(8, dtype=torch.float32, device=x.device)


@op("npu_get_float_status(Tensor self, int mode=0) -> Tensor")
def npu_get_float_status(x: Tensor, mode: int = 0) -> Tensor:
    """The status: its first element is 1 after an overflow. `x` receives it too."""
    x.zero_()
    if machine.overflow:
        x[0] = 1
    return x.clone()


@op("npu_clear_float_status(Tensor self, int mode=0) -> Tensor")
def npu_clear_float_status(x: Tensor, mode: int = 0) -> Tensor:
    """Forget an overflow; returns eight zeros."""
    machine.overflow = False
    return torch.zeros_like(x)
