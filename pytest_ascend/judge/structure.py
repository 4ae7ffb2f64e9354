"""Nested outputs: which leaf of one side belongs to which leaf of the other, by a path a person can read.

Walks tuples, lists, named tuples (torch's own return types too), mappings, dataclasses, transformers' ``ModelOutput``
and key-value caches. Everything else is a leaf. Sequences match by position and mappings by key, so a list and a tuple
of the same items are the same structure, and the order of a dictionary's keys doesn't matter.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

#: deeper nesting is a mistake, and would end in Python's own recursion limit
MOST_DEPTH = 100
#: more leaves than that (a list of lists of lists ...) can't be judged one by one
MOST_LEAVES = 100_000
#: from that length on, a list of plain numbers is one leaf
_LONG = 16


class StructureError(ValueError):
    """A value that can't be walked: it contains itself, or is nested too deeply or too widely."""


class UnsupportedTensor(ValueError):
    """A tensor whose values can't be read as dense numbers; the message says which and what to do."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A value at the end of a path such as ``output[0].logits``."""

    path: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two leaves with the same place in both structures."""

    path: str
    golden: Any
    actual: Any


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A place where the structures differ; ``reason`` names both sides."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class _Node:
    """A container: its items by key, each with the way to write it in a path."""

    by_key: bool
    items: tuple[tuple[Any, str, Any], ...]


def flatten(value: Any, root: str = "output") -> list[Leaf]:
    """All leaves of ``value`` in order, None included.

    Raises StructureError when the value contains itself, or is nested too deeply or too widely.
    """
    leaves: list[Leaf] = []

    def walk(value: Any, path: str, above: tuple[int, ...]) -> None:
        node = _node(value)
        if node is None:
            _room(leaves, root)
            leaves.append(Leaf(path, value))
            return
        above = _descend(value, path, above)
        for _, suffix, child in node.items:
            walk(child, path + suffix, above)

    walk(value, root, ())
    return leaves


def pair(golden: Any, actual: Any, root: str = "output") -> tuple[list[Pair], list[Mismatch]]:
    """The leaves of both sides that belong together, and the places where the structures differ.

    Raises StructureError when a side contains itself, or is nested too deeply or too widely.
    """
    pairs: list[Pair] = []
    mismatches: list[Mismatch] = []

    def walk(golden: Any, actual: Any, path: str, above: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        left, right = _node(golden), _node(actual)
        _room(pairs, root)
        if left is None and right is None and (golden is None) == (actual is None):
            pairs.append(Pair(path, golden, actual))
            return
        if left is None or right is None or left.by_key != right.by_key:
            mismatches.append(Mismatch(path, f"golden is {describe(golden)}, actual is {describe(actual)}"))
            return
        above = _descend(golden, path, above[0]), _descend(actual, path, above[1])
        there = {key: child for key, _, child in right.items}
        for key, suffix, child in left.items:
            if key in there:
                walk(child, there.pop(key), path + suffix, above)
            else:
                reason = f"missing from the actual: golden has {describe(child)} here, actual is {describe(actual)}"
                mismatches.append(Mismatch(path + suffix, reason))
        for key, suffix, child in right.items:
            if key in there:
                reason = f"not in the golden: actual has {describe(child)} here, golden is {describe(golden)}"
                mismatches.append(Mismatch(path + suffix, reason))

    walk(golden, actual, root, ((), ()))
    return pairs, mismatches


def _room(found: list[Any], root: str) -> None:
    if len(found) >= MOST_LEAVES:
        raise StructureError(f"{root} has more than {MOST_LEAVES:,} leaves: return tensors, not lists of numbers")


def _descend(value: Any, path: str, above: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in above:
        raise StructureError(f"{path} contains itself, so it can't be compared: return tensors, not their owner")
    if len(above) >= MOST_DEPTH:
        raise StructureError(f"{path[:80]}... is nested more than {MOST_DEPTH} deep: return a flat structure")
    return (*above, id(value))


def _node(value: Any) -> _Node | None:
    """``value`` as a container, or None for a leaf."""
    if value is None or isinstance(value, (torch.Tensor, np.ndarray, np.generic, numbers.Number, str, bytes, type)):
        return None
    if isinstance(value, Mapping):
        # A ModelOutput is a mapping and a dataclass: people write output.logits, not output['logits'].
        attributes = dataclasses.is_dataclass(value)
        return _Node(True, tuple((k, f".{k}" if attributes else f"[{k!r}]", v) for k, v in value.items()))
    if dataclasses.is_dataclass(value):
        known = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        return _Node(True, tuple((name, f".{name}", getattr(value, name)) for name in known))
    if isinstance(value, (tuple, list)):
        if _is_vector(value):
            return None
        names = _field_names(value)
        suffixes = [f".{name}" for name in names] if names else [f"[{i}]" for i in range(len(value))]
        return _Node(False, tuple((i, suffix, v) for i, (suffix, v) in enumerate(zip(suffixes, value, strict=True))))
    return _cache(value)


def _is_vector(value: list[Any] | tuple[Any, ...]) -> bool:
    return len(value) >= _LONG and type(value[0]) in (int, float) and len({type(v) for v in value}) == 1


def _field_names(value: list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    names = getattr(value, "_fields", None) or getattr(value, "__match_args__", None)
    return tuple(names) if names and len(names) == len(value) else ()


def _cache(value: Any) -> _Node | None:
    """A transformers key-value cache, by its attributes: neither a sequence nor a mapping, but made of tensors."""
    layers = getattr(value, "layers", None)
    if type(value).__name__.endswith("Cache") and isinstance(layers, (list, tuple)):
        both = [(i, n, getattr(layer, n, None)) for i, layer in enumerate(layers) for n in ("keys", "values")]
        return _Node(True, tuple(((i, n), f".layers[{i}].{n}", v) for i, n, v in both))
    keys, values = getattr(value, "key_cache", None), getattr(value, "value_cache", None)
    if isinstance(keys, list) and isinstance(values, list):
        return _Node(True, (("keys", ".key_cache", keys), ("values", ".value_cache", values)))
    return None


def describe(value: Any) -> str:
    """A few words that tell one leaf or container from another."""
    if isinstance(value, torch.Tensor):
        layout = "" if value.layout == torch.strided else f"{str(value.layout).removeprefix('torch.')} "
        if value.is_nested:
            return "a nested tensor"
        return f"a {layout}{dtype_name(value.dtype)} tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    if value is None:
        return "None"
    if isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        text = repr(value)
        return f"the {type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, Mapping):
        keys = [repr(k) for k in value]
        more = ", ..." if len(keys) > 5 else ""
        return f"a {type(value).__name__} with the keys {', '.join(keys[:5])}{more}" if keys else "an empty mapping"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__} object"


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def widened(value: torch.Tensor) -> torch.Tensor:
    """The values in float64, or complex128 where they are complex: errors are counted there."""
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def as_tensor(value: Any) -> torch.Tensor | None:
    """A numeric leaf as a dense CPU tensor without a copy where possible; None when the value isn't numeric.

    Sparse tensors are densified and quantized ones dequantized. Python numbers become 0-d tensors of bool, int64,
    float64 or complex128; numpy arrays, numpy scalars, lists of numbers and objects with ``asnumpy()`` (MindSpore
    tensors) become tensors of their dtype.

    Raises UnsupportedTensor for nested and meta tensors, for packed dtypes, and for values that don't fit in memory.
    """
    if isinstance(value, torch.Tensor):
        return _dense(value)
    if isinstance(value, (bool, int, float, complex)):
        try:
            return torch.tensor(value, dtype=_PYTHON.get(type(value)))
        except (OverflowError, RuntimeError, ValueError):  # an int beyond 64 bits is compared as an object
            return None
    if isinstance(value, (list, tuple)) and _is_vector(value):
        try:
            return torch.tensor(value, dtype=_PYTHON[type(value[0])])
        except (OverflowError, RuntimeError, ValueError):
            return None
    if not isinstance(value, (np.ndarray, np.generic)) and callable(getattr(value, "asnumpy", None)):
        value = value.asnumpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(np.asarray(value))
    return None


_PYTHON = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_nested:
        raise UnsupportedTensor("a nested tensor can't be compared: return its unbind() instead")
    if tensor.device.type == "meta":
        raise UnsupportedTensor("a meta tensor has no values to compare: run on a real device")
    if _is_packed(tensor.dtype):
        raise UnsupportedTensor(f"{dtype_name(tensor.dtype)} packs several values: return them unpacked")
    try:
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        return tensor.cpu()
    except (RuntimeError, MemoryError, NotImplementedError) as error:
        what = f"{describe(tensor)} can't be made dense: {str(error).splitlines()[0]}"
        raise UnsupportedTensor(f"{what}; return dense tensors") from error


def _is_packed(dtype: torch.dtype) -> bool:
    """Whether torch converts the dtype to no other: sub-byte integers, raw bits, two float4 in a byte."""
    name = dtype_name(dtype)
    return name.startswith(("bits", "float4")) or name.removeprefix("u") in {f"int{bits}" for bits in range(1, 8)}


def _from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    if array.dtype.name == "bfloat16":  # an extension dtype, as MindSpore and ml_dtypes have it
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16).reshape(array.shape)
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        return None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Nothing here writes to it, so an array that can't be written is no reason to warn.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def same_object(golden: Any, actual: Any) -> bool | None:
    """Whether two non-numeric leaves are equal; None when that can't be told.

    Devices differ between golden and target by nature, so any two are equal.
    """
    if isinstance(golden, torch.device) and isinstance(actual, torch.device):
        return True
    try:
        if isinstance(golden, np.ndarray) and isinstance(actual, np.ndarray):
            return bool(np.array_equal(golden, actual))
        if isinstance(golden, _SINGLETONS):
            return golden is actual
        equal = golden == actual
        if isinstance(equal, bool) and (equal or _has_values(golden)):
            return equal
    except Exception:  # an object's own comparison may do anything
        return None
    return None


#: what is compared by identity and nevertheless means something
_SINGLETONS = (torch.dtype, torch.layout, torch.memory_format, enum.Enum, type)


def _has_values(value: Any) -> bool:
    # The default == compares identity, which says nothing about two results of two runs.
    comparison: object = type(value).__eq__
    return comparison is not object.__eq__
