"""In which precision a fused kernel computes, and what it returns."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ascend.targets.dtypes import DTYPES

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
    found = DTYPES.get(number)
    if found is None or found.is_complex or found is torch.quint4x2:
        raise ValueError(f"{number} is no dtype that this reference knows")
    return _PLAIN.get(found, found)


#: What quantised types come back as.
_PLAIN = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
