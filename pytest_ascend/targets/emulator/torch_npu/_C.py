"""`torch_npu._C`: the few entries of the binary module that programs reach for."""

from __future__ import annotations

from .npu.backends import _options


def _npu_getOption(name: str) -> bytes | None:
    """An option's value, or None if it was never set."""
    return _options.get(name)


def _npu_setOption(options: dict[str, str]) -> None:
    """Set options."""
    _options.update({name: value.encode() for name, value in options.items()})
