"""`torch.npu.utils`: overflow flags, versions and, for this package, device indices."""

from __future__ import annotations

import math as _math
from typing import Any as _Any

import torch as _torch

from ...device import machine as _machine


def _index_of(device: _Any) -> int:
    """Index of a device given as None (the current one), index, string, `torch.device` or npu tensor.

    Raises:
        RuntimeError: a device that isn't there.
        ValueError: a device of another type.
    """
    if device is None:
        return _machine.current
    if isinstance(device, _torch.Tensor):
        device = device.device
    if isinstance(device, int):
        index = device if device >= 0 else _machine.current
    else:
        parsed = _torch.device(device)
        if parsed.type != "npu":
            raise ValueError(f"Expected a npu device, but got: {parsed}")
        index = _machine.current if parsed.index is None else parsed.index
    if index >= len(_machine.devices):
        raise RuntimeError(f"npu:{index} does not exist: this machine has {len(_machine.devices)} (emulated) devices")
    return index


def get_cann_version(module: str = "CANN") -> str:
    """No CANN is needed here: an empty version, which `pytest_ascend` reports as emulated."""
    return ""


def get_soc_version() -> int:
    """torch_npu's integer for the SoC family."""
    return _machine.soc.version


def is_bf16_supported() -> bool:
    """Whether bfloat16 is a compute type of this SoC."""
    return _machine.soc.bf16


def is_support_inf_nan() -> bool:
    """Whether results may be Inf and NaN (INF/NAN mode) instead of being saturated."""
    return not _machine.modes.saturation


def clear_npu_overflow_flag() -> None:
    """Forget that an operator overflowed."""
    _machine.overflow = False


def get_npu_overflow_flag() -> bool:
    """Whether an operator overflowed since the flag was cleared; saturation mode only.

    Raises:
        RuntimeError: in INF/NAN mode, as on the card: look at the values instead.
    """
    if not _machine.modes.saturation:
        raise RuntimeError(
            "Unsupported api when soc_version >= Ascend910B1 and INF/NAN mode is on, please use isfinite on the tensors"
        )
    return _machine.overflow


def npu_check_overflow(grad: _Any) -> bool:
    """Whether a gradient (tensor or number) overflowed: in INF/NAN mode by its float32 sum, else by the flag."""
    if not is_support_inf_nan():
        overflowed = get_npu_overflow_flag()
        clear_npu_overflow_flag()
        return overflowed
    total = float(grad.float().sum()) if isinstance(grad, _torch.Tensor) else float(grad)
    return not _math.isfinite(total)


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:
    """Whether the toolkit is at least this old; what the emulated device offers depends on none."""
    return True
