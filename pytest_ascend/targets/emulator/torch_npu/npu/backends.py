"""`torch.npu.matmul`, `torch.npu.conv` and `torch.npu.config`: switches that accept only a bool."""

from __future__ import annotations

from typing import Any as _Any

from ...device import machine as _machine


def _checked(name: str, value: _Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


class _MatmulSwitches:
    @property
    def allow_hf32(self) -> bool:
        """Round float32 matmul inputs to HF32 (default False)."""
        return _machine.modes.hf32_matmul

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        _machine.modes.hf32_matmul = _checked("torch.npu.matmul.allow_hf32", value) and _machine.soc.hf32


class _ConvSwitches:
    @property
    def allow_hf32(self) -> bool:
        """Round float32 convolution inputs to HF32 (default True)."""
        return _machine.modes.hf32_conv

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        _machine.modes.hf32_conv = _checked("torch.npu.conv.allow_hf32", value) and _machine.soc.hf32


# Options by the name under which torch_npu keeps them, as bytes.
_options: dict[str, bytes] = {}


class _Config:
    """Settings that can be written, not read."""

    def __setattr__(self, name: str, value: _Any) -> None:
        if name != "allow_internal_format":
            raise AttributeError(f"torch.npu.config has no setting {name!r}")
        _options["ALLOW_INTERNAL_FORMAT"] = b"enable" if value else b"disable"


matmul = _MatmulSwitches()
conv = _ConvSwitches()
config = _Config()
