"""Tensors' files as plain arrays, without torch: ``.pt``, ``.npy``, ``.safetensors``.

The files are untrusted: none is executed, sizes are compared with the file's before memory is taken, and every refusal
is one sentence. What is read of a ``.pt`` file is its directory, the list of its pickle's operations and the bytes of
the one tensor in it.
"""

from __future__ import annotations

import functools
import io
import json
import math
import mmap
import os
import pickletools
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_ascend.dumps.dtypes import BY_CODE, BY_STORAGE
from pytest_ascend.dumps.text import DumpError, short
from pytest_ascend.dumps.values import ITEMSIZES

__all__ = [
    "LARGE",
    "Held",
    "array_of",
    "bfloat16_of",
    "npy",
    "npy_header",
    "pt",
    "raw_dtype",
    "read_file",
    "safetensors",
]

LARGE = 32 << 20
"""Bytes from which a file is mapped and not read, so that no tensor is in memory whole."""
LARGEST = 1 << 40
"""Bytes of the largest file that is looked at: 1 TiB."""
_LARGEST_HEADER = 16 << 20
_RAW = {"bfloat16": "<u2", "complex32": None}
_Bytes = bytes | mmap.mmap
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Held(NamedTuple):
    """A tensor's values as a file holds them.

    Attributes:
        dtype: without its library: ``bfloat16``.
        values: in the tensor's shape, strided where the tensor is. bfloat16 lies in ``uint16``, float8 in ``uint8``:
            numpy knows neither.
        mapped: the file in memory that the values are a part of, where it wasn't read.
    """

    dtype: str
    values: NDArray[Any]
    mapped: mmap.mmap | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        return tuple(self.values.shape)


def raw_dtype(dtype: str) -> np.dtype[Any] | None:
    """numpy's dtype that holds the bits of one of torch's; None where there is none."""
    if dtype in _RAW:
        name = _RAW[dtype]
        return np.dtype(name) if name else None
    if dtype.startswith("float8"):
        return np.dtype("u1")
    return np.dtype(dtype).newbyteorder("<")


def read_file(path: str, where: str, *, folder: int | None = None, most: int = LARGEST) -> _Bytes:
    """A regular file's bytes, mapped where they are many; links aren't followed.

    Args:
        path: of the file, or its name in ``folder``, a descriptor of an open directory.
        where: what to call it in errors.
        most: bytes that it may have.
    """
    try:
        handle = os.open(path, _FLAGS, dir_fd=folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DumpError(f"{where}: can't be read: {why}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise DumpError(f"{where}: is no regular file")
        size = status.st_size
        if size > most:
            raise DumpError(f"{where}: has {size} bytes, more than the {most} that are read")
        if size >= LARGE:
            return mmap.mmap(handle, size, access=mmap.ACCESS_READ)
        pieces, left = [], size
        while left and (piece := os.read(handle, left)):
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except (OSError, ValueError) as error:
        if isinstance(error, DumpError):
            raise
        raise DumpError(f"{where}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    finally:
        os.close(handle)


def array_of(data: _Bytes, dtype: str, shape: tuple[int, ...], start: int, where: str) -> Held:
    """Packed values that begin at a byte of a file. Raises ``DumpError`` when it ends before they do."""
    raw = raw_dtype(dtype)
    if raw is None:
        raise DumpError(f"{where}: holds {dtype}, which can't be compared")
    count = math.prod(shape)
    if start < 0 or start + count * raw.itemsize > len(data):
        raise DumpError(f"{where}: was cut off: {len(data)} bytes, and {start + count * raw.itemsize} are declared")
    values = np.frombuffer(data, raw, count, start).reshape(shape)
    return Held(dtype, values, data if isinstance(data, mmap.mmap) else None)


def bfloat16_of(held: Held) -> Held:
    """bfloat16 out of the float32 that MindSpore writes it as, which holds the same values."""
    wide = np.ascontiguousarray(held.values).view(np.uint32)
    if (wide & 0xFFFF).any():
        raise DumpError("bfloat16 is declared, and the file's float32 values are no bfloat16")
    return Held("bfloat16", (wide >> 16).astype(np.uint16))


# ------------------------------------------------------------------------------------------------ .npy


def npy_header(data: _Bytes, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, dtype, and where the values of a ``.npy`` file begin. Raises ``DumpError``."""
    file = io.BytesIO(data[:_LARGEST_HEADER])
    try:
        version = np.lib.format.read_magic(file)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(file)
    except Exception:  # it isn't an array, in whatever way
        raise DumpError(f"{where}: isn't a .npy file, or was cut off") from None
    return tuple(shape), fortran, dtype, file.tell()


def npy(data: _Bytes, where: str) -> Held:
    """The array in a ``.npy`` file."""
    shape, fortran, dtype, start = npy_header(data, where)
    name = dtype.name
    if dtype.hasobject or name not in ITEMSIZES:
        raise DumpError(f"{where}: holds {short(str(dtype))}, which is no tensor's dtype")
    if any(size < 0 for size in shape):
        raise DumpError(f"{where}: {short(repr(shape))} is no shape")
    if fortran:
        held = array_of(data, name, tuple(reversed(shape)), start, where)
        values = held.values.T
    else:
        held = array_of(data, name, tuple(shape), start, where)
        values = held.values
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and not np.little_endian):
        values = values.view(dtype).astype(dtype.newbyteorder("<"))
    return Held(name, values, held.mapped)


# ------------------------------------------------------------------------------------------------ .safetensors


def safetensors(data: _Bytes, where: str) -> dict[str, Held]:
    """The tensors of a ``.safetensors`` file by name: 8 bytes of length, a JSON object, the packed values."""
    if len(data) < 8:
        raise DumpError(f"{where}: isn't a .safetensors file, or was cut off")
    (length,) = struct.unpack_from("<Q", data, 0)
    if length > min(len(data) - 8, _LARGEST_HEADER):
        raise DumpError(f"{where}: isn't a .safetensors file, or was cut off")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise DumpError(f"{where}: its header isn't JSON") from None
    if not isinstance(header, dict):
        raise DumpError(f"{where}: its header isn't a JSON object")
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        place = f"{where}: {short(name)}"
        dtype = BY_CODE.get(str(entry.get("dtype"))) if isinstance(entry, Mapping) else None
        if dtype is None or not _whole_numbers(entry.get("shape")) or not _whole_numbers(entry.get("data_offsets")):
            raise DumpError(f"{place}: its header has no dtype, shape and data_offsets of a tensor")
        shape, offsets = tuple(entry["shape"]), entry["data_offsets"]
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * ITEMSIZES[dtype] or len(shape) > 64:
            raise DumpError(f"{place}: {short(str(list(shape)))} of {dtype} doesn't fill its data_offsets")
        found[name] = array_of(data, dtype, shape, 8 + length + offsets[0], place)
    return found


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 1 << 48 for x in value)


# ------------------------------------------------------------------------------------------------ .pt

_ENTRY = struct.Struct("<4s6xH8xIIHHH8xI")  # signature, method, sizes, lengths of what follows, place
_EOCD, _EOCD64, _CENTRAL, _LOCAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x01\x02", b"PK\x03\x04"
_CONTAINERS = {"SETITEM", "SETITEMS", "APPEND", "APPENDS", "BUILD"}


def pt(data: _Bytes, where: str) -> Held | None:
    """The one tensor in a file of ``torch.save``; None for a file of another form, which torch may know to read.

    Raises ``DumpError`` for a file that is broken, compressed, or asks for more than a tensor.
    """
    by_name = _records(data, where)
    stored = [name for name in by_name if name.startswith("data/")]
    if "data.pkl" not in by_name:
        raise DumpError(f"{where}: isn't a file of torch.save, or was cut off")
    if len(stored) != 1:
        return None
    if "byteorder" in by_name and _record(data, by_name["byteorder"], where) != b"little":
        return None
    program = _record(data, by_name["data.pkl"], where)
    if len(program) > 1 << 16:
        return None
    found = _described(program)
    if found is None:
        return None
    if isinstance(found, str):
        raise DumpError(f"{where}: {found}")
    start, size = _place(data, by_name[stored[0]], where)
    held, offset, shape, strides = found.held, found.offset, found.shape, found.strides
    raw = raw_dtype(found.dtype)
    assert raw is not None
    reach = (
        offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    )
    if min((offset, *strides), default=0) < 0 or reach * raw.itemsize > size or held * raw.itemsize != size:
        raise DumpError(f"{where}: the tensor is larger than its values")
    flat = np.frombuffer(data, raw, size // raw.itemsize, start)
    mapped = data if isinstance(data, mmap.mmap) else None
    if found.packed:
        return Held(found.dtype, flat[offset : offset + math.prod(shape)].reshape(shape), mapped)
    values = np.lib.stride_tricks.as_strided(
        flat[offset:], shape, tuple(s * raw.itemsize for s in strides), writeable=False
    )
    return Held(found.dtype, values, mapped)


def _records(data: _Bytes, where: str) -> dict[str, tuple[int, int]]:
    """Names of the archive's records, without the folder that all are in: their local headers' places, and lengths."""
    cut = f"{where}: isn't a file of torch.save, or was cut off"
    end = data.rfind(_EOCD, max(0, len(data) - 66_000))
    if end < 0 or end + 22 > len(data):
        raise DumpError(cut)
    count, size, start = struct.unpack_from("<HII", data, end + 10)
    if data[end - 20 : end - 16] == b"PK\x06\x07" and end >= 76:
        (at,) = struct.unpack_from("<Q", data, end - 12)
        if at + 56 > len(data) or data[at : at + 4] != _EOCD64:
            raise DumpError(cut)
        count, size, start = struct.unpack_from("<QQQ", data, at + 32)
    if start + size > len(data) or count > 4096:
        if count > 4096:
            raise DumpError(f"{where}: holds {count} records, more than a tensor")
        raise DumpError(cut)
    directory = data[start : start + size]
    found: dict[str, tuple[int, int]] = {}
    at, total = 0, 0
    for _ in range(count):
        if at + 46 > size:
            raise DumpError(cut)
        sign, method, packed, length, names, extra, comment, local = _ENTRY.unpack_from(directory, at)
        if sign != _CENTRAL:
            raise DumpError(cut)
        name = directory[at + 46 : at + 46 + names].decode("utf-8", "replace").partition("/")[2]
        if length == 0xFFFFFFFF or local == 0xFFFFFFFF or packed == 0xFFFFFFFF:
            packed, length, local = _zip64(
                directory[at + 46 + names : at + 46 + names + extra], (length, packed, local), cut
            )
        if method:
            raise DumpError(f"{where}: is compressed, which torch.save never does")
        total += length
        if packed != length or total > len(data) or name in found:
            raise DumpError(f"{where}: its records are larger than the file")
        found[name] = local, length
        at += 46 + names + extra + comment
    return found


def _zip64(extra: bytes, fields: tuple[int, int, int], cut: str) -> tuple[int, int, int]:
    """Packed length, length and offset, where one of them needs eight bytes."""
    at = 0
    while at + 4 <= len(extra):
        tag, size = struct.unpack_from("<HH", extra, at)
        if tag == 1:
            wide = list(struct.unpack_from(f"<{size // 8}Q", extra, at + 4)) if at + 4 + size <= len(extra) else []
            values = [wide.pop(0) if field == 0xFFFFFFFF and wide else field for field in fields]
            return values[1], values[0], values[2]
        at += 4 + size
    raise DumpError(cut)


def _place(data: _Bytes, record: tuple[int, int], where: str) -> tuple[int, int]:
    """Where a record's bytes begin, and how many there are."""
    local, length = record
    if local + 30 > len(data) or data[local : local + 4] != _LOCAL:
        raise DumpError(f"{where}: isn't a file of torch.save, or was cut off")
    names, extra = struct.unpack_from("<HH", data, local + 26)
    start = local + 30 + names + extra
    if start + length > len(data):
        raise DumpError(f"{where}: its records are larger than the file")
    return start, length


def _record(data: _Bytes, record: tuple[int, int], where: str) -> bytes:
    start, length = _place(data, record, where)
    return bytes(data[start : start + length])


@dataclass(frozen=True)
class _Described:
    dtype: str
    held: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def packed(self) -> bool:
        wanted, strides = 1, []
        for size in reversed(self.shape):
            strides.append(wanted)
            wanted *= size
        return 0 in self.shape or all(
            a == b or n == 1 for a, b, n in zip(reversed(strides), self.strides, self.shape, strict=True)
        )


@functools.lru_cache(maxsize=4096)
def _described(program: bytes) -> _Described | str | None:
    """What a pickle describes: a tensor, or a sentence about it, or None for a form that isn't known here.

    The program is the same for every tensor of a dtype, shape and place: it is taken apart once for all of them.
    """
    from pytest_ascend.dumps.tensors import harmless_names, operations

    try:
        names, numbers = operations(program, "")
    except DumpError as error:
        return str(error).removeprefix(": ")
    storages = {name for name in names if name.startswith("torch ") and name.endswith("Storage")}
    strangers = names - harmless_names() - storages - {f"torch {dtype}" for dtype in ITEMSIZES}
    if strangers:
        return "holds more than a tensor: " + short(", ".join(sorted(name.replace(" ", ".") for name in strangers)))
    dtype = BY_STORAGE.get(next(iter(storages)).removeprefix("torch ")) if len(storages) == 1 else None
    kinds = [operation.name for operation, _, _ in pickletools.genops(program)]
    if kinds.count("BINPERSID") != 1 or not _CONTAINERS.isdisjoint(kinds):
        return None  # several tensors on one storage, or one in a container
    plain = {"torch._utils _rebuild_tensor_v2"} <= names and "torch._utils _rebuild_tensor_v3" not in names
    if dtype is None or not plain or len(numbers) % 2 or len(numbers) < 2 or b"conj" in program or b"neg" in program:
        return None
    ndim = (len(numbers) - 2) // 2
    shape, strides = tuple(numbers[2 : 2 + ndim]), tuple(numbers[2 + ndim :])
    if any(not 0 <= n < 1 << 48 for n in (*shape, *strides, numbers[0], numbers[1])):
        return "the tensor is larger than its values"
    return _Described(dtype, numbers[0], numbers[1], shape, strides)
