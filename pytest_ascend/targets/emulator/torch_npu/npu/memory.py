"""`torch.npu` memory statistics, in bytes."""

from __future__ import annotations

from collections import OrderedDict as _OrderedDict
from typing import Any as _Any

from ...device import Device as _Device
from ...device import machine as _machine
from ...memory import empty_cache as empty_cache
from ...memory import reset_peak as _reset_peak
from ...memory import statistics as _statistics
from .utils import _index_of


def _one(device: _Any) -> _Device:
    return _machine.devices[_index_of(device)]


def caching_allocator_alloc(size: int, device: _Any = None, stream: _Any = None) -> int:
    """Raw device memory isn't handed out here.

    Raises:
        RuntimeError: always; make a tensor instead.
    """
    raise RuntimeError(
        "the emulated npu hands out no raw memory: use torch.empty(size, dtype=torch.uint8, device='npu')"
    )


def memory_allocated(device: _Any = None) -> int:
    """Bytes that tensors occupy."""
    return _one(device).allocated


def max_memory_allocated(device: _Any = None) -> int:
    """The most bytes that tensors occupied since the last reset."""
    return _one(device).peak


def memory_reserved(device: _Any = None) -> int:
    """Bytes that the allocator holds."""
    return _one(device).reserved


def max_memory_reserved(device: _Any = None) -> int:
    """The most bytes that the allocator held since the last reset."""
    return _one(device).reserved_peak


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def memory_stats(device: _Any = None) -> dict[str, _Any]:
    """All counters by their dotted names, e.g. `allocated_bytes.all.peak`."""
    return _OrderedDict(sorted(_statistics(_one(device)).items()))


def memory_stats_as_nested_dict(device: _Any = None) -> dict[str, _Any]:
    """The same, nested."""
    nested: dict[str, _Any] = {}
    for name, value in _statistics(_one(device)).items():
        *path, leaf = name.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[leaf] = value
    return nested


def memory_summary(device: _Any = None, abbreviated: bool = False) -> str:
    """A table of the main counters for people."""
    one = _one(device)
    rows = [
        ("allocated", one.allocated, one.peak),
        ("reserved", one.reserved, one.reserved_peak),
    ]
    lines = [f"npu:{one.index} memory (MiB)", f"{'':10} {'current':>10} {'peak':>10}"]
    lines += [f"{name:10} {now / 2**20:10.1f} {peak / 2**20:10.1f}" for name, now, peak in rows]
    return "\n".join([*lines, f"{'blocks':10} {one.live:10d} {one.live_peak:10d}"])


def reset_peak_memory_stats(device: _Any = None) -> None:
    """Let the peaks start from what is in use now."""
    _reset_peak(_one(device))


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: _Any = None) -> None:
    """Start the totals anew."""
    one = _one(device)
    one.allocations, one.bytes_total = one.live, one.allocated


def mem_get_info(device: _Any = None) -> tuple[int, int]:
    """Free and total bytes."""
    one = _one(device)
    return max(one.limit - one.allocated, 0), _machine.soc.total_memory


def set_per_process_memory_fraction(fraction: float, device: _Any = None) -> None:
    """Limit what this process may allocate to a share (0 to 1) of the device's memory; beyond it allocation raises.

    Raises:
        TypeError: `fraction` isn't a float.
        ValueError: `fraction` isn't between 0 and 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _one(device).limit = int(_machine.soc.total_memory * fraction)
