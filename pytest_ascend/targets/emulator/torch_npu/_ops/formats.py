"""Private storage formats: a label that a tensor's storage carries, while its values stay in the plain layout."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import Tensor

from .registry import op, python_api

__all__ = ["Format"]


class Format(enum.IntEnum):
    """Storage formats by their number."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51


# Formats that hold images: asked for plain ND, they give their own plain format.
_IMAGES = {Format.NC1HWC0, Format.FRACTAL_Z}


def _default(x: Tensor) -> int:
    return {4: Format.NCHW, 5: Format.NCDHW}.get(x.dim(), Format.ND)


def _format(x: Tensor) -> int:
    return int(getattr(x.untyped_storage(), "_npu_format", _default(x)))


def _label(x: Tensor, acl_format: int) -> Tensor:
    x.untyped_storage()._npu_format = int(acl_format)  # type: ignore[attr-defined]
    return x


def _target(x: Tensor, acl_format: int) -> int:
    return Format.NCHW if acl_format == Format.ND and _format(x) in _IMAGES else Format(acl_format)


@op("get_npu_format(Tensor self) -> int")
def get_npu_format(x: Tensor) -> int:
    """Number of the tensor's storage format; see `torch_npu.Format`."""
    return _format(x)


@op("npu_format_cast(Tensor self, int acl_format, int? customize_dtype=None) -> Tensor")
def npu_format_cast(x: Tensor, acl_format: int, customize_dtype: int | None = None) -> Tensor:
    """A tensor of the same values in another storage format (the tensor itself if it has that format already).

    Args:
        x: any tensor.
        acl_format: a `torch_npu.Format` or its number, or a tensor whose format is meant.
        customize_dtype: accepted, without effect.
    """
    target = _target(x, acl_format)
    return x if target == _format(x) else _label(x.clone(), target)


@op("npu_format_cast.Tensor(Tensor self, Tensor dst) -> Tensor")
def _npu_format_cast_tensor(x: Tensor, dst: Tensor) -> Tensor:
    return npu_format_cast(x, _format(dst))


@op("npu_format_cast_.acl_format(Tensor(a!) self, int acl_format) -> Tensor(a!)")
def npu_format_cast_(x: Tensor, acl_format: int) -> Tensor:
    """Change the storage format of `x` itself."""
    return _label(x, _target(x, acl_format))


@op("npu_format_cast_(Tensor(a!) self, Tensor src) -> Tensor(a!)")
def _npu_format_cast_from(x: Tensor, src: Tensor) -> Tensor:
    return _label(x.copy_(src), _format(src))


@op("get_storage_size(Tensor self) -> int")
def get_storage_size(x: Tensor) -> int:
    """Number of elements that the tensor's storage holds."""
    return int(x.untyped_storage().nbytes() // x.element_size())


@python_api("empty_with_format")
def _empty_with_format(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = "npu",
    pin_memory: bool | None = None,
    acl_format: int = Format.ND,
) -> Tensor:
    """An uninitialised tensor in a storage format."""
    return _label(torch.empty(size, dtype=dtype, device=device), acl_format)
