"""ATB's ``.bin`` files, which msit writes: lines ``name=value`` up to ``$End=1``, then the values.

The numbers of dtypes are those of Ascend's ``aclDataType``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_ascend.dumps import arrays
from pytest_ascend.dumps.text import DumpError, short
from pytest_ascend.dumps.values import ITEMSIZES

if TYPE_CHECKING:
    import mmap

    from pytest_ascend.dumps.arrays import Held

__all__ = ["DTYPES", "read_bin"]

DTYPES = {
    **{0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32"},
    **{9: "int64", 10: "uint64", 11: "float64", 12: "bool", 16: "complex64", 17: "complex128", 27: "bfloat16"},
}
_LARGEST_HEAD = 64 << 10
_END = b"$End=1\n"


def read_bin(data: bytes | mmap.mmap, where: str) -> Held:
    """The tensor of a ``.bin`` file. Raises ``DumpError`` when it isn't one, or was cut off."""
    head = bytes(data[:_LARGEST_HEAD])
    end = head.find(_END)
    if end < 0 or not head.startswith(b"$Version="):
        raise DumpError(f"{where}: isn't a .bin file of ATB: it begins with no lines from $Version= to $End=1")
    lines = head[:end].decode("ascii", "replace").splitlines()
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        if key in fields:
            raise DumpError(f"{where}: the line {short(key)!r} occurs twice")
        fields[key] = value
    dtype = DTYPES.get(_whole(fields.get("dtype")))
    if dtype is None:
        raise DumpError(f"{where}: no dtype has the number {short(fields.get('dtype', '(none)'))}")
    text = fields.get("dims", "").strip().rstrip(",")
    shape = tuple(_whole(size) for size in text.split(",")) if text else ()
    if any(size < 0 for size in shape) or len(shape) > 64 or math.prod(shape) >= 1 << 48:
        raise DumpError(f"{where}: dims={short(text)} is no shape")
    start, held = end + len(_END), len(data) - end - len(_END)
    needed = math.prod(shape) * ITEMSIZES[dtype]
    if held < needed:
        raise DumpError(f"{where}: was cut off: {held} bytes of values, and {needed} are declared")
    if held > needed:
        raise DumpError(f"{where}: {held} bytes of values, and dims={short(text)} of {dtype} are {needed}")
    return arrays.array_of(data, dtype, shape, start, where)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdigit() and len(text) < 19 else -1
