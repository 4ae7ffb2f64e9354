"""Device memory: host memory under another label, and the books that a caching allocator would keep.

An `npu` tensor and its CPU alias share one block of host memory. The alias is made with a DLPack capsule whose device
type is rewritten on the way (`kDLCPU` = 1, `kDLExtDev` = 12, which torch maps to PrivateUse1), so both are real
tensors with real storage, strides and `data_ptr`. DLPack: https://dmlc.github.io/dlpack/latest/c_api.html (struct
DLTensor: `data`, then `DLDevice{int32 device_type, int32 device_id}` at byte 8).
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, NoReturn

import torch

from .device import Device, machine
from .watch import Watch

__all__ = [
    "OutOfMemoryError",
    "adopt",
    "allocate",
    "empty_cache",
    "out_of_memory",
    "reserve",
    "reset_peak",
    "restride",
    "statistics",
    "to_cpu",
    "to_npu",
    "watched",
]

OutOfMemoryError: type[RuntimeError] = torch.OutOfMemoryError

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_device_field = ctypes.c_int64.from_address  # device_type in the low half, device_id in the high half
_to_dlpack: Any = torch._C._to_dlpack
_from_dlpack: Any = torch._C._from_dlpack
_NAME = b"dltensor"
_CPU, _EXT_DEV = 1, 12

_BLOCK = 512  # the caching allocator's granularity, and the size of the segments it takes from the driver
_SEGMENT = 2 << 20
_owners: dict[int, _Owner] = {}  # by id: comparing two of them would compare the tensors they watch


class _Owner(weakref.ref[torch.Tensor]):
    """Watches the CPU tensor that owns a block: its death is the release, even while an exception is in flight."""

    __slots__ = ("device", "nbytes", "room", "size", "watch")
    device: Device
    size: int
    room: torch.Tensor | None
    nbytes: int
    watch: Watch | None


def _release(owner: Any) -> None:
    if owner.watch is not None:
        owner.watch.released(owner.room, owner.nbytes)
    owner.device.allocated -= owner.size
    owner.device.live -= 1
    _owners.pop(id(owner), None)


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.2f} {unit}"


def out_of_memory(device: Device, nbytes: int) -> NoReturn:
    """Raise the error that a full card raises when `nbytes` more don't fit.

    Raises:
        torch.OutOfMemoryError: with the sizes in question; `torch.npu.set_per_process_memory_fraction` sets the limit.
    """
    device.out_of_memory += 1
    raise OutOfMemoryError(
        f"NPU out of memory. Tried to allocate {_size(nbytes)} (NPU {device.index}; "
        f"{_size(machine.soc.total_memory)} total capacity; {_size(device.allocated)} already allocated; "
        f"{_size(max(device.limit - device.allocated, 0))} free; {_size(device.reserved)} reserved by PyTorch; "
        f"limit {_size(device.limit)})"
    )


def to_npu(cpu: torch.Tensor, index: int) -> torch.Tensor:
    """Relabel a CPU tensor as one on `npu:index`, taking its memory over without a copy where its layout allows.

    The result covers its whole storage: a tensor that is a window into a larger storage is copied first.
    """
    if cpu.is_conj():
        cpu = cpu.resolve_conj()
    if cpu.is_neg():
        cpu = cpu.resolve_neg()
    nbytes = cpu.nbytes
    watch = machine.sanitizer
    if watch is not None and nbytes and (own := watch.unowned(cpu)) is not None:
        return _relabel(cpu, index, nbytes, own, watch)
    if cpu.storage_offset() or cpu.untyped_storage().nbytes() != nbytes:
        cpu = cpu.clone()
        nbytes = cpu.untyped_storage().nbytes()
    if nbytes and watch is not None:
        room, placed = watch.place(cpu.detach())
        return _relabel(placed, index, nbytes, room, watch)
    return _relabel(cpu, index, nbytes)


def allocate(size: Any, stride: Any, dtype: torch.dtype, index: int, watch: Watch) -> torch.Tensor:
    """A fresh block of `npu:index` under watch; `stride` leaves no gaps."""
    elements = math.prod(size)
    nbytes = elements * dtype.itemsize
    room, start = watch.room(nbytes, dtype)
    return _relabel(room.as_strided(size, stride, start), index, nbytes, room, watch)


def watched(watch: Watch) -> list[tuple[torch.Tensor, int]]:
    """The blocks in use that a watch is over: their memory with its bands, and their size in bytes."""
    mine = [owner for owner in list(_owners.values()) if owner.watch is watch]
    return [(owner.room, owner.nbytes) for owner in mine if owner.room is not None]


def _relabel(
    cpu: torch.Tensor, index: int, nbytes: int, room: torch.Tensor | None = None, watch: Watch | None = None
) -> torch.Tensor:
    """`cpu`'s memory as a tensor of `npu:index`, entered into the books."""
    device = machine.devices[index]
    size = (nbytes + _BLOCK - 1) // _BLOCK * _BLOCK
    if device.allocated + size > device.limit:
        out_of_memory(device, nbytes)
    if cpu.requires_grad:
        cpu = cpu.detach()
    capsule = _to_dlpack(cpu)
    _device_field(_capsule_pointer(capsule, _NAME) + 8).value = _EXT_DEV | index << 32
    owner = _Owner(cpu, _release)
    owner.device, owner.size = device, size
    owner.room, owner.nbytes, owner.watch = room, nbytes, watch
    _owners[id(owner)] = owner
    device.live += 1
    device.allocations += 1
    device.bytes_total += size
    device.allocated += size
    if device.allocated > device.peak:
        device.peak = device.allocated
        if device.peak > device.reserved:
            reserve(device)
    if device.live > device.live_peak:
        device.live_peak = device.live
    return _from_dlpack(capsule)  # type: ignore[no-any-return]


def to_cpu(npu: torch.Tensor) -> torch.Tensor:
    """Return the CPU alias of an `npu` tensor: same memory, shape, strides and lazy conjugate and negative bits."""
    if npu.is_conj() or npu.is_neg():
        return _lazy_alias(npu)
    capsule = _to_dlpack(npu)
    _device_field(_capsule_pointer(capsule, _NAME) + 8).value = _CPU
    return _from_dlpack(capsule)  # type: ignore[no-any-return]


def _lazy_alias(npu: torch.Tensor) -> torch.Tensor:
    aten = torch.ops.aten
    conj, neg = npu.is_conj(), npu.is_neg()
    if conj:
        npu = aten._conj.default(npu)
    if neg:
        npu = aten._neg_view.default(npu)
    alias = to_cpu(npu)
    if conj:
        alias = torch._conj(alias)
    return torch._neg_view(alias) if neg else alias


def restride(npu: torch.Tensor, storage: torch.UntypedStorage, offset: Any, size: Any, stride: Any) -> torch.Tensor:
    """Point the tensor object `npu` at a window of a storage of its device."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(keys, npu, storage, offset, size, stride)
    return npu


def adopt(npu: torch.Tensor, cpu: torch.Tensor) -> torch.Tensor:
    """Make the tensor object `npu` take the values and shape of `cpu`, as a resize on the device would.

    `cpu` is either an alias of `npu` that a kernel resized in place, or memory of its own, which is taken over.
    """
    if cpu.data_ptr() == npu.data_ptr():
        return restride(npu, npu.untyped_storage(), npu.storage_offset(), cpu.shape, cpu.stride())
    fresh = to_npu(cpu.contiguous(), npu.get_device())
    return restride(npu, fresh.untyped_storage(), 0, fresh.shape, fresh.stride())


def reserve(device: Device) -> None:
    """Let the device's pool grow to hold what is allocated, in whole segments."""
    device.reserved = (device.allocated + _SEGMENT - 1) // _SEGMENT * _SEGMENT
    device.reserved_peak = max(device.reserved_peak, device.reserved)


def empty_cache() -> None:
    """Give unused segments of every device's pool back."""
    for device in machine.devices:
        reserve(device)


def reset_peak(device: Device) -> None:
    """Start the peak statistics of one device anew."""
    device.peak, device.reserved_peak, device.live_peak = device.allocated, device.reserved, device.live


def statistics(device: Device) -> dict[str, int]:
    """Counters of one device under the names of `torch.npu.memory_stats` (bytes and counts)."""
    stats: dict[str, int] = {}
    rows = {
        "allocated_bytes": (device.allocated, device.peak, device.bytes_total),
        "active_bytes": (device.allocated, device.peak, device.bytes_total),
        "reserved_bytes": (device.reserved, device.reserved_peak, device.reserved_peak),
        "allocation": (device.live, device.live_peak, device.allocations),
        "active": (device.live, device.live_peak, device.allocations),
    }
    for name, (current, peak, total) in rows.items():
        stats[f"{name}.all.current"] = current
        stats[f"{name}.all.peak"] = peak
        stats[f"{name}.all.allocated"] = total
        stats[f"{name}.all.freed"] = max(total - current, 0)
    stats["num_alloc_retries"] = 0
    stats["num_ooms"] = device.out_of_memory
    return stats
