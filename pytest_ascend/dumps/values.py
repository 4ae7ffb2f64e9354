"""What stands in a dump: tensors as they are declared, and the other arguments of a call."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ascend.dumps.text import short

__all__ = ["ITEMSIZES", "NotADump", "Opaque", "TensorSpec", "Token", "read_value", "tensors"]

ITEMSIZES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element by dtype, without ``torch.``."""
_TENSOR_TYPES = re.compile(r"(torch|mindspore)\.(\w+\.)*\w*(Tensor|Parameter)")
_PLAIN: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool, "str": str}
_LARGEST_DIM = 1 << 48
_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}


class NotADump(ValueError):
    """A value isn't what msprobe writes; the message says where and what, the caller adds the file."""


@dataclass(frozen=True)
class TensorSpec:
    """A recorded tensor.

    Attributes:
        dtype: without its library: ``float32``, ``bool``; MindSpore's ``Float32`` is ``float32`` too.
        shape: sizes, each >= 0.
        max, min, mean, norm: statistics of the values (``norm``: the 2-norm of all of them; complex tensors: of the
            absolute values), or None where none were recorded. ``nan`` and infinities as they are.
        requires_grad: whether autograd followed it.
        data_name: name of the file that holds its values, or None.
        md5: its checksum, which is a CRC-32, or None.
        sampled: only some of its elements were recorded, in one dimension; shape and values are of those.
    """

    dtype: str
    shape: tuple[int, ...]
    max: float | None = None
    min: float | None = None
    mean: float | None = None
    norm: float | None = None
    requires_grad: bool = False
    data_name: str | None = None
    md5: str | None = None
    sampled: bool = False

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its values, packed."""
        return self.numel * ITEMSIZES[self.dtype]

    @property
    def signature(self) -> tuple[Any, ...]:
        """What two calls must have in common to be the same call with other values."""
        return ("tensor", self.dtype, self.shape, self.requires_grad)


@dataclass(frozen=True)
class Token:
    """An argument of a type that only torch has, by name: ``torch.dtype``, ``torch.device``, ``torch.Size``,
    ``torch.memory_format``.
    """

    kind: str
    value: Any


@dataclass(frozen=True)
class Opaque:
    """An argument that a dump only names: a process group, an array, an object."""

    kind: str


_TOKENS = ("torch.dtype", "torch.device", "torch.Size", "torch.memory_format", "mindspore.dtype")


def tensors(value: Any) -> Iterator[TensorSpec]:
    """The tensors in a value, in the order they stand."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)


def read_value(value: Any, place: str) -> Any:
    """A JSON value as an argument: None, bool, int, float, str, slice, Ellipsis, list, dict, or a class of this file.

    Raises:
        NotADump: it isn't what msprobe writes; the message begins with ``place``.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [read_value(one, f"{place}[{i}]") for i, one in enumerate(value)]
    kind = value.get("type")
    if not isinstance(kind, str):
        if "class_type" in value:
            return Opaque(short(str(value["class_type"])))
        return {name: read_value(one, f"{place}.{short(name)}") for name, one in value.items()}
    if _TENSOR_TYPES.fullmatch(kind):
        return _tensor(value, place)
    return _other(kind, value, place)


def _other(kind: str, value: Mapping[str, Any], place: str) -> Any:
    held = value.get("value")
    if kind in _PLAIN:
        if not isinstance(held, _PLAIN[kind]) or (kind != "bool" and isinstance(held, bool)):
            raise NotADump(f"{place}: the {kind} has the value {short(repr(held))}")
        return float(_as_float(held)) if kind == "float" and isinstance(held, int) else held
    if kind == "NoneType":
        return None
    if kind == "slice":
        if not isinstance(held, list) or len(held) != 3 or not all(_is_whole(x) or x is None for x in held):
            raise NotADump(f"{place}: the slice has the value {short(repr(held))}, not start, stop and step")
        return slice(*held)
    if kind == "ellipsis":
        return ...
    if kind in _TOKENS:
        return _token(kind, value.get("format") if kind == "torch.memory_format" else held, place)
    if kind.startswith(("int", "uint", "float", "bool")) and isinstance(held, (bool, int, float)):
        return held  # a numpy scalar
    return Opaque(short(kind))


def _token(kind: str, held: Any, place: str) -> Token:
    if kind == "torch.Size":
        if not isinstance(held, list) or not all(_is_size(x) for x in held):
            raise NotADump(f"{place}: the torch.Size has the value {short(repr(held))}")
        return Token(kind, tuple(held))
    if not isinstance(held, str) and not (kind == "torch.device" and _is_whole(held)):
        raise NotADump(f"{place}: the {kind} has the value {short(repr(held))}")
    return Token(kind, held)


def _tensor(value: Mapping[str, Any], place: str) -> TensorSpec:
    dtype = value.get("dtype")
    name = dtype.removeprefix("torch.").lower() if isinstance(dtype, str) else ""
    name = _ALIASES.get(name, name)
    if name not in ITEMSIZES:
        raise NotADump(f"{place}: no dtype is called {short(repr(dtype))}")
    shape = value.get("shape")
    if not isinstance(shape, list) or not all(_is_size(x) for x in shape) or math.prod(shape) > _LARGEST_DIM:
        raise NotADump(f"{place}: {short(repr(shape))} is no shape")
    if len(shape) > 64:
        raise NotADump(f"{place}: a shape of {len(shape)} dimensions")
    statistics = {}
    for key in ("Max", "Min", "Mean", "Norm"):
        number = value.get(key)
        if number is not None and not isinstance(number, (bool, int, float)):
            number = None  # words such as "N/A"; complex numbers as text
        statistics[key.lower()] = None if number is None else _as_float(number)
    data_name, md5 = value.get("data_name"), value.get("md5")
    for key, text in (("data_name", data_name), ("md5", md5)):
        if text is not None and not isinstance(text, str):
            raise NotADump(f"{place}: {key} is {short(repr(text))}, not a text")
    if data_name == "-1":  # written by msprobe where a tensor could not be saved
        data_name = None
    return TensorSpec(
        name,
        tuple(shape),
        **statistics,
        requires_grad=value.get("requires_grad") is True,
        data_name=data_name,
        md5=md5,
        sampled="sampled" in value,
    )


def _as_float(number: float) -> float:
    """A number as a float; whole numbers that floats can't hold stay whole, because they are an integer's bounds."""
    if isinstance(number, bool):
        return float(number)
    if isinstance(number, int):
        return number if abs(number) < 1 << 64 else math.inf if number > 0 else -math.inf
    return number


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_size(value: Any) -> bool:
    return _is_whole(value) and 0 <= value <= _LARGEST_DIM
