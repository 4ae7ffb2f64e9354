"""`torch.npu` of the emulated device: the real module's names, units and defaults."""

from __future__ import annotations

from typing import Any as _Any
from typing import NamedTuple as _NamedTuple

import torch as _torch

from ...device import machine as _machine
from . import amp as amp
from . import utils as utils
from .backends import _options
from .backends import config as config
from .backends import conv as conv
from .backends import matmul as matmul
from .memory import (
    caching_allocator_alloc as caching_allocator_alloc,
)
from .memory import (
    empty_cache as empty_cache,
)
from .memory import (
    max_memory_allocated as max_memory_allocated,
)
from .memory import (
    max_memory_cached as max_memory_cached,
)
from .memory import (
    max_memory_reserved as max_memory_reserved,
)
from .memory import (
    mem_get_info as mem_get_info,
)
from .memory import (
    memory_allocated as memory_allocated,
)
from .memory import (
    memory_cached as memory_cached,
)
from .memory import (
    memory_reserved as memory_reserved,
)
from .memory import (
    memory_stats as memory_stats,
)
from .memory import (
    memory_stats_as_nested_dict as memory_stats_as_nested_dict,
)
from .memory import (
    memory_summary as memory_summary,
)
from .memory import (
    reset_accumulated_memory_stats as reset_accumulated_memory_stats,
)
from .memory import (
    reset_max_memory_allocated as reset_max_memory_allocated,
)
from .memory import (
    reset_max_memory_cached as reset_max_memory_cached,
)
from .memory import (
    reset_peak_memory_stats as reset_peak_memory_stats,
)
from .memory import (
    set_per_process_memory_fraction as set_per_process_memory_fraction,
)
from .random import (
    get_rng_state as get_rng_state,
)
from .random import (
    get_rng_state_all as get_rng_state_all,
)
from .random import (
    initial_seed as initial_seed,
)
from .random import (
    manual_seed as manual_seed,
)
from .random import (
    manual_seed_all as manual_seed_all,
)
from .random import (
    seed as seed,
)
from .random import (
    seed_all as seed_all,
)
from .random import (
    set_rng_state as set_rng_state,
)
from .random import (
    set_rng_state_all as set_rng_state_all,
)
from .streams import (
    Event as Event,
)
from .streams import (
    Stream as Stream,
)
from .streams import (
    current_stream as current_stream,
)
from .streams import (
    default_stream as default_stream,
)
from .streams import (
    set_stream as set_stream,
)
from .streams import (
    stream as stream,
)
from .utils import (
    _index_of,
)
from .utils import (
    clear_npu_overflow_flag as clear_npu_overflow_flag,
)
from .utils import (
    get_npu_overflow_flag as get_npu_overflow_flag,
)
from .utils import (
    get_soc_version as get_soc_version,
)
from .utils import (
    is_bf16_supported as is_bf16_supported,
)

OutOfMemoryError = _torch.OutOfMemoryError


def is_available() -> bool:
    """Whether there is a device: always, here."""
    return True


def is_initialized() -> bool:
    """Whether the device is in use; the emulated one always is."""
    return True


def init() -> None:
    """Start the device; nothing to do here."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """Number of devices."""
    return len(_machine.devices)


def current_device() -> int:
    """Index of this thread's current device."""
    return _machine.current


def set_device(device: _Any) -> None:
    """Make `device` (index, string or `torch.device`) current in this thread."""
    _machine.current = _index_of(device)


def synchronize(device: _Any = None) -> None:
    """Wait until the device is done; the emulated one always is."""
    index = _index_of(device)
    if _machine.ill is not None:
        _machine.ill.ask(index, waits=True)


class device:
    """Context manager that makes a device current for a while."""

    def __init__(self, device: _Any) -> None:
        self.idx = _index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx, _machine.current = _machine.current, self.idx

    def __exit__(self, *error: object) -> None:
        _machine.current = self.prev_idx


class device_of(device):
    """The same for the device of a tensor or storage."""

    def __init__(self, obj: _Any) -> None:
        super().__init__(
            obj.get_device() if getattr(obj, "device", None) is not None and obj.device.type == "npu" else None
        )


class _Properties(_NamedTuple):
    name: str
    total_memory: int
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int


def get_device_name(device_name: _Any = None) -> str:
    """The chip's name; like the real function it answers the same for every index."""
    return _machine.soc.device_name


def get_device_properties(device_name: _Any = None) -> _Properties:
    """Name, memory (bytes), cores of each kind and L2 cache (bytes)."""
    soc = _machine.soc
    return _Properties(soc.device_name, soc.total_memory, soc.cube_cores, soc.vector_cores, soc.l2_cache)


def get_device_capability(device: _Any = None) -> None:
    """An NPU has no compute capability: None, as on the card."""


def get_amp_supported_dtype() -> list[_torch.dtype]:
    """Types that autocast accepts."""
    return [_torch.float16, _torch.bfloat16] if _machine.soc.bf16 else [_torch.float16]


def set_compile_mode(jit_compile: bool = False) -> None:
    """Choose between compiled and binary operators; both compute the same here."""


def use_compatible_impl(is_compatible: bool) -> None:
    """Use the implementation that agrees with other platforms (exact `gelu`)."""
    _machine.modes.compatible_impl = bool(is_compatible)


def are_compatible_impl_enabled() -> bool:
    """Whether `use_compatible_impl` is on."""
    return _machine.modes.compatible_impl


def set_option(option: dict[str, _Any]) -> None:
    """Set options of the operator compiler; there is none here, so they are only kept.

    Raises:
        TypeError: not a dictionary.
    """
    if not isinstance(option, dict):
        raise TypeError("npu option must be a dict")
    _options.update({name: str(value).encode() for name, value in option.items()})


def __dir__() -> list[str]:
    return sorted(name for name in globals() if not name.startswith("_") and name != "annotations")
