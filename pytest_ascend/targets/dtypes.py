"""torch's numbers of its dtypes, as an ``int dtype`` argument of an operator carries them."""

from __future__ import annotations

import torch

__all__ = ["DTYPES"]

#: c10/core/ScalarType.h
DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
    16: torch.quint4x2,
}
