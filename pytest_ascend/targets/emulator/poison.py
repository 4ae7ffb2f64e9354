"""Patterns that memory holds while it is watched, and how to find them in results.

Floating numbers hold NaNs with a payload of ours: arithmetic keeps a NaN's payload (IEEE 754-2019, 6.2.3), so that what
a kernel computes of memory that it must not read shows it in the result. Six bits tell why the memory must not be read;
they lie at the top of the payload, where conversions between dtypes keep them. Integers hold one word, which arithmetic
destroys: there only copies show. Booleans hold ones and never tell.
"""

from __future__ import annotations

import torch

__all__ = ["BAND", "FREED", "FRESH", "fill", "found", "pattern", "word"]

FRESH, BAND, FREED = 0b101101, 0b110011, 0b011011

# dtype → (integer dtype of its words, bits of a quiet NaN, where the code lies, bits below it)
_FLOATS = {
    torch.float16: (torch.int16, 0x7E00, 3, 0b101),
    torch.bfloat16: (torch.int16, 0x7FC0, 0, 0),
    torch.float32: (torch.int32, 0x7FC00000, 16, 0x5A5A),
    torch.float64: (torch.int64, 0x7FF8 << 48, 45, 0x5A5A5A5A5A),
}
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_WORDS = {torch.int64: 8, torch.int32: 4, torch.int16: 2}
_SURE = {torch.int16: 3}  # so many neighbours must hold it, or chance might


def word(dtype: torch.dtype, code: int) -> bytes:
    """The bytes that are repeated in memory of a dtype."""
    dtype = _REAL.get(dtype, dtype)
    if dtype is torch.bool:
        return b"\x01"
    if (known := _FLOATS.get(dtype)) is not None:
        _, quiet, shift, rest = known
        return (quiet | code << shift | rest).to_bytes(dtype.itemsize, "little")
    return bytes((code * 5 + 0x53 * i + 0x21) & 0xFF for i in range(_WORDS.get(dtype, 1)))


def fill(row: torch.Tensor, code: int) -> None:
    """Fill a row of memory of any dtype."""
    unit = word(row.dtype, code)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[len(unit)]
    bare = row if row.dtype is torch.bool else row.view(torch.uint8).view(words)
    bare.fill_(int.from_bytes(unit, "little", signed=True))


_patterns: dict[tuple[torch.dtype, int, int], bytes] = {}


def pattern(dtype: torch.dtype, code: int, nbytes: int) -> bytes:
    """So many bytes of the word; kept for sizes that come often."""
    key = dtype, code, nbytes
    if (made := _patterns.get(key)) is None:
        unit = word(dtype, code)
        made = (unit * (nbytes // len(unit) + 1))[:nbytes]
        if nbytes <= 4096:
            _patterns[key] = made
    return made


def found(value: torch.Tensor, code: int) -> torch.Tensor | None:
    """Which elements of a dense CPU tensor hold the pattern, as a row of booleans; None where none does, or none can.

    Args:
        value: any dtype.
        code: one of ``FRESH``, ``BAND`` and ``FREED``.
    """
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
        there = found(value, code)
        return None if there is None else there.view(-1, 2).any(1)
    dtype = value.dtype
    if (known := _FLOATS.get(dtype)) is not None:
        words, quiet, shift, _ = known
        bits = value.reshape(-1).view(words)
        sign = -1 << (dtype.itemsize * 8 - 1)
        there = (bits & ((-1 << shift) & ~sign)) == (quiet | code << shift)
    elif dtype in _WORDS:
        there = value.reshape(-1) == int.from_bytes(word(dtype, code), "little", signed=True)
        if (sure := _SURE.get(dtype)) is not None and value.numel() >= sure:
            runs = there.unfold(0, sure, 1).all(1)
            there = torch.zeros_like(there)
            for shift in range(sure):
                there[shift : shift + runs.numel()] |= runs
        elif sure is not None:
            return None
    else:
        return None
    return there if bool(there.any()) else None
