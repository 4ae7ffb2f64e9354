"""What a card accepts and torch's CPU kernels refuse: 16-bit types, int32 indices and the like.

Nothing is tried unless the CPU kernel has refused; its message says why, and the call is repeated with the arguments
widened: 16-bit floats to float32, int32 indices to int64. Results return to the type that the device would give. An
error that no widening cures is raised as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["retry"]

_HALF = (torch.float16, torch.bfloat16)
_REFUSED = re.compile(
    r"not implemented for|not support|[Uu]nsupported|only supports?|expected scalar type|Expected .*type|must be|"
    r"should be|same dtype|dtypes? to be|to have (?:the )?same|type.* but (?:got|found)|mixed dtype|Found dtype|"
    r"[Mm]ismatched|result type|can't be cast|Index tensor|indices|Long|Half|BFloat16|Int\b"
)


def _cast(value: Any, mapping: dict[torch.dtype, torch.dtype]) -> Any:
    if isinstance(value, Tensor) and value.dtype in mapping:
        return value.to(mapping[value.dtype])
    if isinstance(value, (list, tuple)):
        return [_cast(v, mapping) for v in value]
    return value


def _dtypes(values: Any, found: set[torch.dtype]) -> set[torch.dtype]:
    for value in values:
        if isinstance(value, Tensor):
            found.add(value.dtype)
        elif isinstance(value, (list, tuple)):
            _dtypes(value, found)
    return found


def _attempts(seen: set[torch.dtype]) -> list[dict[torch.dtype, torch.dtype]]:
    widen = {d: torch.float32 for d in _HALF if d in seen}
    index = {d: torch.int64 for d in (torch.int32, torch.int16, torch.int8, torch.uint8) if d in seen}
    tries: list[dict[torch.dtype, torch.dtype]] = []
    if widen:
        tries.append(widen)
    if index:
        only32 = {torch.int32: torch.int64}
        if torch.int32 in seen and len(index) > 1:
            tries.append(only32)
        tries.append(index)
    if widen and index:
        tries.append({**widen, **index})
    return tries


def retry(kernel: Any, error: Exception, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Repeat a refused call with wider arguments; results return in the narrow types, in place where it was in place.

    Raises:
        Exception: `error` itself, when widening doesn't help or isn't what the error is about.
    """
    if not _REFUSED.search(str(error)):
        raise error
    seen = _dtypes(list(args) + list(kwargs.values()), set())
    outs = {name: kwargs[name] for name in kernel.outs if isinstance(kwargs.get(name), Tensor)}
    for mapping in _attempts(seen):
        wide_args = [_cast(a, mapping) for a in args]
        wide = {name: _cast(v, mapping) for name, v in kwargs.items() if name not in outs}
        for name, out in outs.items():
            wide[name] = torch.empty(0, dtype=mapping.get(out.dtype, out.dtype))
        try:
            result = call(*wide_args, **wide)
        except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError):
            continue
        narrow = _narrow(seen, mapping)
        for position in kernel.written:  # also what no result aliases: the noise of rrelu
            if position < len(args) and args[position] is not wide_args[position]:
                args[position].copy_(wide_args[position])
        if outs:
            for name, out in outs.items():
                kwargs[name] = wide[name].to(out.dtype)
            return result
        if kwargs.get("dtype") is not None:
            return result
        narrowed = _cast(result, narrow)
        return tuple(narrowed) if isinstance(result, tuple) else narrowed
    raise error


def _narrow(seen: set[torch.dtype], mapping: dict[torch.dtype, torch.dtype]) -> dict[torch.dtype, torch.dtype]:
    """float32 results of a widened call go back to the 16-bit type, unless float32 was an argument's type anyway."""
    half = [d for d in _HALF if d in mapping]
    return {torch.float32: half[0]} if len(half) == 1 and torch.float32 not in seen else {}
