"""In which precision a fused kernel computes, and what it returns."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rounded", "single"]


def single(value: Tensor) -> Tensor:
    """A 16-bit tensor in float32, any other one as it is."""
    return value.float() if value.is_floating_point() and value.dtype.itemsize == 2 else value


def rounded(value: Tensor, like: Tensor) -> Tensor:
    """A result in the dtype of an input, rounded once."""
    return value if value.dtype is like.dtype else value.to(like.dtype)


def dtype_by_number(number: int | torch.dtype) -> torch.dtype:
    """The dtype that an ``int dtype`` argument means: torch's own numbering of its types.

    Raises:
        ValueError: no type of that number.
    """
    if isinstance(number, torch.dtype):
        return number
    named = {
        0: torch.uint8,
        1: torch.int8,
        2: torch.int16,
        3: torch.int32,
        4: torch.int64,
        5: torch.float16,
        6: torch.float32,
        7: torch.float64,
        11: torch.bool,
        12: torch.int8,  # qint8, quint8 and qint32 come back as their plain types
        13: torch.uint8,
        14: torch.int32,
        15: torch.bfloat16,
    }
    if number not in named:
        raise ValueError(f"{number} is no dtype that this reference knows")
    return named[number]
