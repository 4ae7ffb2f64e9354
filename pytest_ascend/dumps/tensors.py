"""Load a recorded tensor. Its file is untrusted: it can't lie outside the dump, run code, or take more memory than is
declared for it.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import stat
import zipfile
from typing import TYPE_CHECKING

from pytest_ascend.dumps.dtypes import CODES, STORAGES
from pytest_ascend.dumps.text import DumpError, is_plain, short
from pytest_ascend.dumps.values import ITEMSIZES, TensorSpec

if TYPE_CHECKING:
    import torch

__all__ = ["FOLDER", "LARGEST", "harmless_names", "load", "operations"]

FOLDER = "dump_tensor_data"
LARGEST = 8 << 30
"""Bytes of the largest tensor that is loaded."""
_OVERHEAD = 1 << 16  # what a file holds beside the values: names, alignment, the pickle; a few kilobytes in practice
_HARMLESS = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
_INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"}


def load(folder: str, spec: TensorSpec, place: str) -> torch.Tensor:
    """A tensor's values, out of the file that it names.

    Args:
        folder: where the dump lies.
        spec: what is declared.
        place: what to call the tensor in errors.

    Returns:
        A contiguous tensor on the CPU of the declared dtype and shape.

    Raises:
        DumpError: there is no such file in the dump, or it doesn't hold what is declared.
    """
    if spec.numel == 0:
        return _empty(spec)
    if spec.data_name is None:
        raise DumpError(f"{place}: no values were recorded for this tensor")
    data = _read(folder, spec, place)
    where = f"{place}: {short(spec.data_name)}"
    reader = next((_OTHERS[end] for end in _OTHERS if spec.data_name.endswith(end)), _pt)
    loaded = reader(data, spec, where)
    if tuple(loaded.shape) != spec.shape:
        raise DumpError(f"{where}: holds the shape {tuple(loaded.shape)}, and {spec.shape} is declared")
    return loaded.detach().contiguous()


def _empty(spec: TensorSpec) -> torch.Tensor:
    import torch

    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))


def _read(folder: str, spec: TensorSpec, place: str) -> bytes:
    """The bytes of a tensor's file, which has to be a plain file in the dump's own folder of a fitting size."""
    name = spec.data_name or ""
    where = f"{place}: {short(repr(name))}"
    if not is_plain(name):
        raise DumpError(f"{where} is no file name: a dump's tensors lie in its own folder {FOLDER}")
    if spec.nbytes > LARGEST:
        raise DumpError(
            f"{where}: {spec.nbytes >> 30} GiB are declared, more than the {LARGEST >> 30} GiB that are read"
        )
    path = os.path.join(folder, FOLDER, name)
    if os.path.realpath(path) != os.path.join(os.path.realpath(folder), FOLDER, name):
        raise DumpError(f"{where} leads out of the dump's folder")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise DumpError(f"{where}: can't be read from {FOLDER}: {error.strerror or error}") from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DumpError(f"{where}: is no regular file")
        if status.st_size > 2 * spec.nbytes + _OVERHEAD:  # bfloat16 is float32 in MindSpore's files
            raise DumpError(f"{where}: has {status.st_size} bytes, and the declared tensor needs {spec.nbytes}")
        return file.read(status.st_size + 1)


def _pt(data: bytes, spec: TensorSpec, where: str) -> torch.Tensor:
    """The tensor in a ``.pt`` file; what it will take is known before torch reads it."""
    import torch

    _check_pt(data, spec, where)
    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever a broken file leads it to
        raise DumpError(f"{where}: can't be loaded: {short(' '.join(str(error).split()), 200)}") from None
    if not isinstance(loaded, torch.Tensor):
        raise DumpError(f"{where}: holds a {type(loaded).__name__}, not a tensor")
    if str(loaded.dtype) != f"torch.{spec.dtype}":
        raise DumpError(f"{where}: holds {loaded.dtype}, and torch.{spec.dtype} is declared")
    return loaded


def _check_pt(data: bytes, spec: TensorSpec, where: str) -> None:
    """Refuse a file that isn't one tensor of the declared size, by its directory and pickle, without running either."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            records = archive.infolist()
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                raise DumpError(f"{where}: is compressed, which torch.save never does")
            if sum(record.file_size for record in records) > len(data):
                raise DumpError(f"{where}: its records are larger than the file")
            sizes = {record.filename.partition("/")[2]: record.file_size for record in records}
            if sum(name.startswith("data/") for name in sizes) != 1 or "data.pkl" not in sizes:
                raise DumpError(f"{where}: doesn't hold one tensor")
            program = archive.read(next(r for r in records if r.filename.partition("/")[2] == "data.pkl"))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError, RuntimeError) as error:
        if isinstance(error, DumpError):
            raise
        raise DumpError(f"{where}: isn't a file of torch.save, or was cut off") from None
    values = next(size for name, size in sizes.items() if name.startswith("data/"))
    names, numbers = operations(program, where)
    allowed = _HARMLESS | {f"torch {STORAGES.get(spec.dtype, 'UntypedStorage')}", "torch.storage UntypedStorage"}
    strangers = names - allowed - {"torch._utils _rebuild_tensor_v3", f"torch {spec.dtype}"}
    if strangers:
        listed = ", ".join(sorted(name.replace(" ", ".") for name in strangers))
        raise DumpError(f"{where}: holds more than a {spec.dtype} tensor: {short(listed)}")
    held, start, shape, strides = _geometry(numbers, len(spec.shape), where)
    if shape != spec.shape:
        raise DumpError(f"{where}: holds the shape {shape}, and {spec.shape} is declared")
    itemsize = ITEMSIZES[spec.dtype]
    reach = start + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    if min((start, *strides), default=0) < 0 or reach * itemsize > values or held not in (values, values // itemsize):
        raise DumpError(f"{where}: the tensor is larger than its values")


def harmless_names() -> frozenset[str]:
    """What the pickle of a tensor may ask for beside its storage, as ``module name``."""
    return frozenset(_HARMLESS | {"torch.storage UntypedStorage", "torch._utils _rebuild_tensor_v3"})


def operations(program: bytes, where: str) -> tuple[set[str], list[int]]:
    """The names that a pickle asks for and the integers in it, in order; it is only listed, never run."""
    names: set[str] = set()
    numbers: list[int] = []
    try:
        for operation, argument, _ in pickletools.genops(program):
            if operation.name == "GLOBAL":
                names.add(str(argument))
            elif operation.name in _INTEGERS:
                numbers.append(int(str(argument)))
            elif operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "LONG_BINPUT", "PUT"):
                raise DumpError(f"{where}: holds more than a tensor ({operation.name})")
    except DumpError:
        raise
    except Exception:  # pickletools raises many kinds for a broken one
        raise DumpError(f"{where}: its description of the tensor is broken") from None
    return names, numbers


def _geometry(numbers: list[int], ndim: int, where: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Elements of the storage, offset, shape and strides; torch.save writes them in this order."""
    if len(numbers) < 2 + 2 * ndim:
        raise DumpError(f"{where}: holds another shape than the declared one")
    shape, strides = numbers[2 : 2 + ndim], numbers[2 + ndim : 2 + 2 * ndim]
    if len(numbers) > 2 + 2 * ndim:
        raise DumpError(f"{where}: holds more than a tensor of the declared shape")
    return numbers[0], numbers[1], tuple(shape), tuple(strides)


def _npy(data: bytes, spec: TensorSpec, where: str) -> torch.Tensor:
    """The tensor in a ``.npy`` file. MindSpore's bfloat16 lies there as float32, which holds the same values."""
    import numpy as np
    import torch

    from pytest_ascend.dumps.arrays import npy_header

    shape, _, dtype, start = npy_header(data, where)
    if shape != spec.shape:
        raise DumpError(f"{where}: holds the shape {shape}, and {spec.shape} is declared")
    wanted = "float32" if spec.dtype == "bfloat16" else spec.dtype
    if dtype.hasobject or dtype.name != wanted:
        raise DumpError(f"{where}: holds {dtype.name}, and {wanted} is declared")
    if len(data) - start < spec.numel * dtype.itemsize:
        raise DumpError(f"{where}: was cut off")
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DumpError(f"{where}: can't be loaded: {short(str(error))}") from None
    return torch.from_numpy(np.ascontiguousarray(loaded).reshape(spec.shape)).to(getattr(torch, spec.dtype))


def _safetensors(data: bytes, spec: TensorSpec, where: str) -> torch.Tensor:
    """The one tensor in a ``.safetensors`` file: 8 bytes with the length of a JSON object, that, and the values."""
    import torch

    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _OVERHEAD):
        raise DumpError(f"{where}: isn't a .safetensors file, or was cut off")
    try:
        head = json.loads(data[8 : 8 + size])
        held = [head[name] for name in head if name != "__metadata__"]
        (entry,) = held
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DumpError(f"{where}: its description of one tensor is broken") from None
    if dtype != CODES.get(spec.dtype):
        raise DumpError(f"{where}: holds {short(str(dtype))}, and {spec.dtype} is declared")
    if shape != spec.shape:
        raise DumpError(f"{where}: holds the shape {short(str(shape))}, and {spec.shape} is declared")
    whole = type(begin) is int and type(end) is int and begin == 0 and end == spec.nbytes
    if not whole or len(data) < 8 + size + end:
        raise DumpError(f"{where}: the tensor is larger than its values")
    raw = bytearray(memoryview(data)[8 + size : 8 + size + end])
    return torch.frombuffer(raw, dtype=torch.uint8).view(getattr(torch, spec.dtype)).reshape(spec.shape)


_OTHERS = {".npy": _npy, ".safetensors": _safetensors}
