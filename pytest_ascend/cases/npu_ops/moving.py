"""Operators that move, select or cast values and compute none."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ascend.cases.npu_ops.rounding import dtype_by_number


def npu_confusion_transpose(self: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """Permute, then reshape (``transpose_first``); or reshape, then permute."""
    if transpose_first:
        return self.permute(perm).reshape(shape)
    return self.reshape(shape).permute(perm).contiguous()


def npu_transpose(self: Tensor, perm: list[int], require_contiguous: bool = True) -> Tensor:
    """The dimensions in the order of ``perm``, in memory of its own."""
    return self.permute(perm).contiguous()


def npu_reshape(self: Tensor, shape: list[int], can_refresh: bool = False) -> Tensor:
    """The values in another shape, in memory of its own."""
    return self.clone().reshape(shape)


def npu_broadcast(self: Tensor, size: list[int]) -> Tensor:
    """The values repeated to ``size``."""
    return self.broadcast_to(size).contiguous()


def npu_slice(self: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    """The block of ``size`` (-1: all that is left) that starts at ``offsets``."""
    result = self
    for dim, (start, length) in enumerate(zip(offsets, size, strict=True)):
        result = result.narrow(dim, start, self.shape[dim] - start if length == -1 else length)
    return result.clone()


def npu_pad(input: Tensor, paddings: list[int]) -> Tensor:
    """Zeros around the input: (before, after) for each dimension, the first dimension first."""
    before, after = paddings[::2], paddings[1::2]
    result = input.new_zeros([b + n + a for b, n, a in zip(before, input.shape, after, strict=True)])
    result[tuple(slice(b, b + n) for b, n in zip(before, input.shape, strict=True))] = input
    return result


def npu_dtype_cast(self: Tensor, dtype: int, input_dtype: int | None = None) -> Tensor:
    """The values in another dtype, given by torch's number of it."""
    return self.to(dtype_by_number(dtype))


def npu_dtype_cast_(self: Tensor, src: Tensor) -> Tensor:
    """``src`` written into ``self``, in the dtype of ``self``."""
    return self.copy_(src)


def npu_format_cast(self: Tensor, acl_format: int | Tensor, customize_dtype: int | None = None) -> Tensor:
    """The same values: a storage format says only where they lie."""
    return self.clone()


def npu_format_cast_(self: Tensor, acl_format: int | Tensor) -> Tensor:
    """The tensor itself; with a tensor as second argument, that one's values."""
    return self.copy_(acl_format) if isinstance(acl_format, Tensor) else self


def npu_one_hot(
    self: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0
) -> Tensor:
    """float32 ``(*shape, depth)``: ``on_value`` where the last index equals the element, else ``off_value``."""
    result = torch.full((*self.shape, depth), float(off_value))
    for i in range(depth):
        result[..., i][self == i] = float(on_value)
    return result


def npu_sort_v2(self: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The values in order along ``dim``, without their indices."""
    return torch.sort(self, dim, descending).values


def npu_max(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest value along ``dim`` and its index, int32."""
    values, indices = torch.max(self, dim, keepdim)
    return values, indices.int()


def npu_min(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest value along ``dim`` and its index, int32."""
    values, indices = torch.min(self, dim, keepdim)
    return values, indices.int()


def npu_scatter(self: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """A copy whose element at ``indices[i]`` along ``dim``, in slice i, is ``updates[i]``."""
    return torch.scatter(self, dim, indices.long().unsqueeze(dim), updates.unsqueeze(dim))


def npu_scatter_nd_update(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy with ``updates[i]`` at the coordinates ``indices[i]`` of its leading dimensions."""
    places = indices.long().movedim(-1, 0)
    return self.index_put(tuple(places), updates)


def npu_scatter_nd_update_(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """``npu_scatter_nd_update``, in place."""
    return self.copy_(npu_scatter_nd_update(self, indices, updates))
