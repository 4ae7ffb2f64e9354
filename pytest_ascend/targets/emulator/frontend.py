"""torch's Python entry points that know no hook for a device written in Python, taught about `npu`.

Everything here forwards to what was there before unless the call is about an `npu` device.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

from .device import machine
from .memory import empty_cache, reset_peak, statistics, to_npu

__all__ = ["name_backend", "patch"]


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True


def name_backend(module: ModuleType) -> None:
    """Call torch's spare backend `npu` and give it `module` as `torch.npu`."""
    backend_registration._setup_privateuseone_for_python_backend("npu", backend_module=module, hook=_Hooks())
    backend_registration._generate_storage_methods_for_privateuse1_backend("npu")


def _is_npu(device: Any) -> bool:
    if device is None:
        return False
    return bool(torch.device(device).type == "npu") if isinstance(device, (str, torch.device)) else False


def _index(device: Any) -> int:
    if device is None:
        return machine.current
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return machine.current if index is None else index


# ------------------------------------------------------------------------------------------------ storage


def _patch_storage() -> None:
    """There is no C++ allocator to make an `npu` storage with: `UntypedStorage(n, device="npu")` would crash."""
    make: Any = torch.UntypedStorage.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if _is_npu(device):
            size = int(args[0]) if args and isinstance(args[0], int) else 0
            return to_npu(torch.empty(size, dtype=torch.uint8, device="cpu"), _index(device)).untyped_storage()
        return make(cls, *args, **kwargs) if device is None else make(cls, *args, device=device, **kwargs)

    torch.UntypedStorage.__new__ = new  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------ random generators


class _GeneratorType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, torch._C.Generator)


class _NpuGenerator(torch._C.Generator):
    """A generator of an emulated device: the engine is the CPU's, the stream isn't."""

    _device: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def manual_seed(self, seed: int) -> torch._C.Generator:
        from .device import _SEED_SALT

        return super().manual_seed((seed ^ _SEED_SALT) & 0xFFFF_FFFF_FFFF_FFFF)


def _patch_generator() -> None:
    plain = torch._C.Generator

    class Generator(metaclass=_GeneratorType):
        """torch.Generator, which also makes generators for `npu` devices."""

        def __new__(cls, device: Any = None) -> Any:
            if _is_npu(device):
                generator = _NpuGenerator()
                generator._device = torch.device("npu", _index(device))
                return generator
            return plain() if device is None else plain(device=device)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    torch.Generator = Generator  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ pinned memory

_pinned_pointers: dict[int, weakref.ref[torch.Tensor]] = {}


def _patch_pinning() -> None:
    """Pinned memory is host memory that a device may read at leisure; here all of it is. A copy is marked as pinned."""

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin 'torch.{self.device.type}.Tensor': only dense CPU tensors can be pinned")
        if is_pinned(self):
            return self
        copy = self.clone()
        pointer = copy.data_ptr()
        _pinned_pointers[pointer] = weakref.ref(copy, lambda _: _pinned_pointers.pop(pointer, None))
        return copy

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return self.device.type == "cpu" and self.untyped_storage().data_ptr() in _pinned_pointers

    tensor: Any = torch.Tensor
    tensor.pin_memory, tensor.is_pinned = pin_memory, is_pinned


# ------------------------------------------------------------------------------------------------ torch.accelerator


def _patch_accelerator() -> None:
    accelerator = torch.accelerator

    def device_count() -> int:
        return len(machine.devices)

    def synchronize(device: Any = None, /) -> None:
        return None

    def memory_stats(device: Any = None, /) -> OrderedDict[str, Any]:
        return OrderedDict(statistics(machine.devices[_index(device)]))

    def memory_allocated(device: Any = None, /) -> int:
        return machine.devices[_index(device)].allocated

    def max_memory_allocated(device: Any = None, /) -> int:
        return machine.devices[_index(device)].peak

    def memory_reserved(device: Any = None, /) -> int:
        return machine.devices[_index(device)].reserved

    def max_memory_reserved(device: Any = None, /) -> int:
        return machine.devices[_index(device)].reserved_peak

    def reset_peak_memory_stats(device: Any = None, /) -> None:
        reset_peak(machine.devices[_index(device)])

    def get_memory_info(device: Any = None, /) -> tuple[int, int]:
        one = machine.devices[_index(device)]
        return max(one.limit - one.allocated, 0), machine.soc.total_memory

    for function in (
        device_count,
        synchronize,
        empty_cache,
        memory_stats,
        memory_allocated,
        max_memory_allocated,
        memory_reserved,
        max_memory_reserved,
        reset_peak_memory_stats,
        get_memory_info,
    ):
        for module in (accelerator, accelerator.memory):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


def patch() -> None:
    """Apply all of the above; called once."""
    _patch_storage()
    _patch_generator()
    _patch_pinning()
    _patch_accelerator()
