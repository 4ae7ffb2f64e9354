"""The bytes of a tensor's file: what ``torch.save`` or safetensors would write, as parts that go out in one call.

``torch.save`` takes several times as long as the disk does for the tensors of a recording, which are many and small. A
``.pt`` file is a zip archive of stored records: the pickle that describes the tensor (``data.pkl``), its values
(``data/0``), and the byte order and version of the format. The values begin at a multiple of 64 bytes, as torch's own
do, so that they can be mapped into memory.
"""

from __future__ import annotations

import collections
import functools
import io
import json
import mmap
import pickle
import struct
import sys
import zlib
from typing import Any

import torch

from pytest_ascend.dumps.dtypes import CODES, STORAGES

__all__ = ["SUFFIXES", "Room", "crc32", "parts", "values"]

SUFFIXES = {"pt": ".pt", "safetensors": ".safetensors"}
"""What files of each format end in."""
_ALIGNMENT = 64
_LARGEST = (1 << 32) - (1 << 20)  # beyond that a zip archive has other fields
_DOS_DATE = 0x21  # 1980-01-01, as torch writes it


def values(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, without a copy."""
    flat = tensor.detach().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")  # type: ignore[arg-type]


def crc32(tensor: torch.Tensor) -> str:
    """What msprobe calls ``md5``: the CRC-32 of a tensor's bytes, as 8 hexadecimal digits. Contiguous, on the CPU."""
    return f"{zlib.crc32(values(tensor)):08x}"


def parts(tensor: torch.Tensor, form: str, checksum: int | None = None) -> list[bytes | bytearray | memoryview]:
    """A file's bytes, in pieces.

    Args:
        tensor: contiguous, on the CPU.
        form: ``pt`` or ``safetensors``.
        checksum: the CRC-32 of the values, where it is known.

    Raises:
        ValueError: safetensors have no such dtype.
    """
    dtype = _named(tensor.dtype)
    if form == "safetensors":
        if dtype not in CODES:
            raise ValueError(f"safetensors have no {dtype}")
        data = values(tensor)
        return [_safetensors_head(dtype, tuple(tensor.shape), len(data)), data]
    if dtype not in STORAGES or tensor.nbytes > _LARGEST or sys.byteorder != "little":
        return [_as_torch_saves(tensor)]
    data = values(tensor)
    described = _pickled(dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.numel())
    return _archive(described, data, zlib.crc32(data) if checksum is None else checksum)


@functools.lru_cache(maxsize=64)
def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _as_torch_saves(tensor: torch.Tensor) -> memoryview:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getbuffer()


def _safetensors_head(dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    entry = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [0, nbytes]}
    text = json.dumps({"data": entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


@functools.lru_cache(maxsize=4096)
def _pickled(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], numel: int) -> bytes:
    """``data.pkl``: how torch describes a tensor whose values lie in record ``data/0``."""
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=2)
    pickler.dump(_Described(getattr(torch, STORAGES[dtype]), shape, strides, numel))
    return file.getvalue()


class _Described:
    """Pickles as a tensor does."""

    def __init__(self, storage: type, shape: tuple[int, ...], strides: tuple[int, ...], numel: int) -> None:
        self.storage = _Storage(storage, numel)
        self.shape = shape
        self.strides = strides

    def __reduce__(self) -> tuple[Any, ...]:
        from torch._utils import _rebuild_tensor_v2

        return _rebuild_tensor_v2, (self.storage, 0, self.shape, self.strides, False, collections.OrderedDict())


class _Storage:
    def __init__(self, kind: type, numel: int) -> None:
        self.kind = kind
        self.numel = numel


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return ("storage", obj.kind, "0", "cpu", obj.numel) if isinstance(obj, _Storage) else None


def _archive(described: bytes, data: memoryview, checksum: int) -> list[bytes | bytearray | memoryview]:
    """A zip archive of the records that ``torch.load`` asks for."""
    head, tail = _around(described, len(data), _ALIGNMENT, checksum)
    return [head, data, tail]


def _around(described: bytes, size: int, alignment: int, checksum: int) -> tuple[bytearray, bytearray]:
    """What lies in an archive before the values and after them."""
    (head, in_head), (tail, in_tail) = _templates(described, size, alignment)
    before, after = bytearray(head), bytearray(tail)
    struct.pack_into("<I", before, in_head, checksum)
    struct.pack_into("<I", after, in_tail, checksum)
    return before, after


@functools.lru_cache(maxsize=1024)
def _templates(described: bytes, size: int, alignment: int) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """As :func:`_around`, with where in each the checksum goes. Tensors of one shape have the same."""
    records: list[tuple[bytes, bytes | None]] = [
        (b"archive/data.pkl", described),
        (b"archive/byteorder", b"little"),
        (b"archive/data/0", None),
        (b"archive/version", b"3\n"),
    ]
    pieces: list[bytes] = []
    directory = b""
    at = in_head = in_tail = split = 0
    for name, record in records:
        length, crc = (size, 0) if record is None else (len(record), zlib.crc32(record))
        begins = at + 30 + len(name)
        padding = -(begins + 4) % (alignment if record is None else _ALIGNMENT)
        extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
        fields = struct.pack("<HHHHHIIIHH", 0, 0, 0, 0, _DOS_DATE, crc, length, length, len(name), len(extra))
        central = struct.pack(
            "<HHHHHHIIIHHHHHII", 0, 0, 0, 0, 0, _DOS_DATE, crc, length, length, len(name), *_NOTHING, at
        )
        pieces.append(b"PK\x03\x04" + fields + name + extra)
        if record is None:
            in_head, split, in_tail = at + 14, len(pieces), len(directory) + 16
        else:
            pieces.append(record)
        directory += b"PK\x01\x02" + central + name
        at = begins + len(extra) + length
    end = struct.pack("<HHHHIIH", 0, 0, len(records), len(records), len(directory), at, 0)
    after = b"".join(pieces[split:])
    return (b"".join(pieces[:split]), in_head), (after + directory + b"PK\x05\x06" + end, len(after) + in_tail)


class Room:
    """Memory for a tensor with room for the rest of its ``.pt`` file around it, so that the file goes out in one piece.

    Pages of the machine, which are used again and again: fresh ones take longer than a copy.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = mmap.mmap(-1, _up(nbytes + 2 * _PAGE))

    def tensor(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        """Where the values go."""
        import torch

        flat = torch.frombuffer(self.memory, dtype=torch.uint8, count=self.nbytes, offset=_PAGE)
        return flat.view(dtype).view(shape)

    def finished(self, tensor: torch.Tensor) -> int:
        """Put the rest of the file around the values; how many bytes it has."""
        data = memoryview(self.memory)[_PAGE : _PAGE + self.nbytes]
        described = _pickled(_named(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.numel())
        head, tail = _around(described, self.nbytes, _PAGE, zlib.crc32(data))
        length = _PAGE + self.nbytes + len(tail)
        self.memory[:_PAGE] = bytes(head)
        self.memory[_PAGE + self.nbytes : length] = bytes(tail)
        return length

    @staticmethod
    def suits(tensor: torch.Tensor, nbytes: int) -> bool:
        """Whether a tensor is worth one, and its file can be made in it."""
        return _WORTH <= nbytes <= _LARGEST and sys.byteorder == "little" and _named(tensor.dtype) in STORAGES


def _up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


_PAGE = 4096  # the header of an archive is shorter; disks want whole ones
_WORTH = 1 << 17
_NOTHING = (0, 0, 0, 0, 0)  # extra, comment, disk, internal and external attributes
