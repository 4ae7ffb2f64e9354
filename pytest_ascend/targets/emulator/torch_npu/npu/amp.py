"""`torch.npu.amp`: torch's automatic mixed precision for this device."""

from __future__ import annotations

import functools as _functools
from typing import Any as _Any

import torch as _torch

from .utils import (
    clear_npu_overflow_flag as _clear_npu_overflow_flag,
)
from .utils import (
    get_npu_overflow_flag as _get_npu_overflow_flag,
)

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_torch.amp.autocast_mode.autocast):
    """`torch.autocast("npu")`."""

    def __init__(self, enabled: bool = True, dtype: _torch.dtype = _torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(_torch.amp.GradScaler):
    """`torch.amp.GradScaler("npu")`, with the overflow flag of the saturation mode at hand.

    Args:
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as torch's.
        dynamic: False keeps the scale as it starts.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            "npu",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self._dynamic = dynamic

    def update(self, new_scale: _Any = None) -> None:
        if new_scale is None and not self._dynamic:
            new_scale = self.get_scale()
        super().update(new_scale)

    @staticmethod
    def clear_npu_overflow_flag() -> None:
        """Forget that an operator overflowed."""
        _clear_npu_overflow_flag()

    @staticmethod
    def get_npu_overflow_flag() -> bool:
        """Whether an operator overflowed; saturation mode only."""
        return _get_npu_overflow_flag()


custom_fwd = _functools.partial(_torch.amp.custom_fwd, device_type="npu")
custom_bwd = _functools.partial(_torch.amp.custom_bwd, device_type="npu")
