"""`torch.npu.utils`: device indices and versions."""

from __future__ import annotations

from typing import Any as _Any

import torch as _torch

from ...device import machine as _machine


def index_of(device: _Any) -> int:
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
