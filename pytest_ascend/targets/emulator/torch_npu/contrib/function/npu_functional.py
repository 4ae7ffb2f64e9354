"""`torch_npu.contrib.function.npu_functional`."""

from __future__ import annotations

import torch as _torch


def dropout_with_byte_mask(
    input1: _torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> _torch.Tensor:
    """Dropout whose mask takes a byte an element.

    Raises:
        ValueError: `p` is no probability.
    """
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    result: _torch.Tensor = _torch.ops.npu.dropout_with_byte_mask(input1, p, training)
    return input1.copy_(result) if inplace else result
