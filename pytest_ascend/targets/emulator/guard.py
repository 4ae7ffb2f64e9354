"""Several devices: teaches torch's C++ device guard that there is more than one `npu`, and which one is current.

The guard that torch lets Python register answers "one device, number 0" to everything. Its virtual table is replaced
by a copy in which a few entries lead to the functions below; the order of the entries is read from the header that
ships with torch, and two of them are called first to see that the order is right. Without this, `.to("npu")` would
ignore `torch.npu.set_device` and backward passes on `npu:1` would trip an assertion in the autograd engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .device import machine

__all__ = ["allow_several_devices", "reporting"]

_PRIVATE_USE_1 = 20  # c10::DeviceType::PrivateUse1, c10/core/DeviceType.h
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_kept: list[Any] = []  # the callbacks and the table must outlive the process's last guard


def _device(index: int) -> int:
    return _PRIVATE_USE_1 | index << 8  # c10::Device: int8 type, int8 index


def _get_device(_guard: int) -> int:
    return _device(machine.current)


def _set_device(_guard: int, device: int) -> None:
    index = device >> 8
    if index < len(machine.devices):
        machine.current = index


def _device_count(_guard: int) -> int:
    return max(len(machine.devices), _reported)


_reported = 0


@contextlib.contextmanager
def reporting(count: int) -> Iterator[None]:
    """Tell torch of so many devices at least, while it prepares for them."""
    global _reported
    _reported = count
    try:
        yield
    finally:
        _reported = 0


def _synchronize(_guard: int, _index: int) -> None:
    return None


_pointer = ctypes.c_void_p
_REPLACED: dict[str, tuple[Any, Any]] = {
    "getDevice": (ctypes.CFUNCTYPE(ctypes.c_uint16, _pointer), _get_device),
    "setDevice": (ctypes.CFUNCTYPE(None, _pointer, ctypes.c_uint16), _set_device),
    "deviceCount": (ctypes.CFUNCTYPE(ctypes.c_int8, _pointer), _device_count),
    "synchronizeDevice": (ctypes.CFUNCTYPE(None, _pointer, ctypes.c_int8), _synchronize),
}


def _virtual_functions() -> list[str]:
    header = Path(torch.__file__).parent / "include/c10/core/impl/DeviceGuardImplInterface.h"
    source = re.sub(r"//.*|/\*[\s\S]*?\*/", "", header.read_text())
    body = source[source.index("DeviceGuardImplInterface {") :]
    return re.findall(r"virtual\s+[\w:*&<>\s]*?\b(\w+)\s*\(", body)


def allow_several_devices() -> bool:
    """Patch the registered guard; return False, with nothing changed, where torch's layout isn't the expected one."""
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / f"lib/libc10.{suffix}"))
        registry = (_pointer * (_PRIVATE_USE_1 + 1)).in_dll(library, _REGISTRY)
        names = _virtual_functions()
        slots = {name: names.index(name) for name in ("type", *_REPLACED)}
    except (OSError, ValueError, AttributeError):
        return False
    guard = registry[_PRIVATE_USE_1]
    if not guard or slots["type"] != 0:
        return False
    table = _pointer.from_address(guard)
    entries = (_pointer * len(names)).from_address(table.value or 0)
    ask = ctypes.CFUNCTYPE(ctypes.c_int8, _pointer)
    if ask(entries[slots["type"]] or 0)(guard) != _PRIVATE_USE_1 or ask(entries[slots["deviceCount"]] or 0)(
        guard
    ) not in (0, 1):
        return False
    word = ctypes.sizeof(_pointer)
    # Two words before the entries (offset to top, type information), two after them (the destructors).
    copy = (_pointer * (len(names) + 4)).from_buffer_copy(
        (ctypes.c_char * (word * (len(names) + 4))).from_address((table.value or 0) - 2 * word)
    )
    for name, (kind, function) in _REPLACED.items():
        callback = kind(function)
        _kept.append(callback)
        copy[2 + slots[name]] = ctypes.cast(callback, _pointer).value
    _kept.append(copy)
    table.value = ctypes.addressof(copy) + 2 * word
    return True
