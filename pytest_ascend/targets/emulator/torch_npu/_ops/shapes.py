"""Data movement: transposes, slices, padding, broadcasts, one-hot, sorting and bit packing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import dtype_of, op

__all__: list[str] = []


def _into(out: Tensor, result: Tensor) -> Tensor:
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


@op("npu_transpose(Tensor self, int[] perm, bool require_contiguous=True) -> Tensor")
def npu_transpose(x: Tensor, perm: list[int], require_contiguous: bool = True) -> Tensor:
    """`x.permute(perm)`, laid out contiguously."""
    return x.permute(perm).contiguous()


@op("npu_transpose.out(Tensor self, int[] perm, bool require_contiguous=True, *, Tensor(a!) out) -> Tensor(a!)")
def _npu_transpose_out(x: Tensor, perm: list[int], require_contiguous: bool = True, *, out: Tensor) -> Tensor:
    return _into(out, x.permute(perm))


@op("npu_confusion_transpose(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor")
def npu_confusion_transpose(x: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """Permute then reshape (`transpose_first`), or reshape then permute, in one pass."""
    return x.permute(perm).reshape(shape) if transpose_first else x.reshape(shape).permute(perm).contiguous()


@op("npu_confusion_transpose_backward(Tensor grad, int[] perm, SymInt[] shape, bool transpose_first) -> Tensor")
def npu_confusion_transpose_backward(grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """Gradient of `npu_confusion_transpose` for an input of `shape`."""
    inverse = sorted(range(len(perm)), key=perm.__getitem__)
    if transpose_first:
        return grad.reshape([shape[p] for p in perm]).permute(inverse).contiguous()
    return grad.permute(inverse).reshape(shape)


@op("npu_reshape(Tensor self, int[] shape, bool can_refresh=False) -> Tensor")
def npu_reshape(x: Tensor, shape: list[int], can_refresh: bool = False) -> Tensor:
    """A copy of `x` in another shape."""
    return x.reshape(shape).clone()


@op("npu_broadcast(Tensor self, int[] size) -> Tensor")
def npu_broadcast(x: Tensor, size: list[int]) -> Tensor:
    """`x` broadcast to `size`, written out."""
    return x.expand(size).clone(memory_format=torch.contiguous_format)


@op("npu_broadcast.out(Tensor self, int[] size, *, Tensor(a!) out) -> Tensor(a!)")
def _npu_broadcast_out(x: Tensor, size: list[int], *, out: Tensor) -> Tensor:
    return _into(out, x.expand(size))


@op("npu_slice(Tensor self, int[] offsets, int[] size) -> Tensor")
def npu_slice(x: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    """The block of `x` that starts at `offsets` and has `size` (−1: up to the end)."""
    where = tuple(slice(o, None if s == -1 else o + s) for o, s in zip(offsets, size, strict=True))
    return x[where].clone()


@op("npu_slice.out(Tensor self, int[] offsets, int[] size, *, Tensor(a!) out) -> Tensor(a!)")
def _npu_slice_out(x: Tensor, offsets: list[int], size: list[int], *, out: Tensor) -> Tensor:
    return _into(out, npu_slice(x, offsets, size))


_INDEXING = (
    "Tensor self, int[] begin, int[] end, int[] strides, int begin_mask=0, int end_mask=0, int ellipsis_mask=0, "
    "int new_axis_mask=0, int shrink_axis_mask=0"
)


@op(f"npu_indexing({_INDEXING}) -> Tensor")
def npu_indexing(
    x: Tensor,
    begin: list[int],
    end: list[int],
    strides: list[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    """Strided slice `begin:end:strides`; bit i of a mask says what entry i means.

    Args:
        x: the tensor to slice.
        begin, end, strides: one entry for each part of the index.
        begin_mask, end_mask: entry i has no begin (end).
        ellipsis_mask: entry i stands for all dimensions that aren't named.
        new_axis_mask: entry i inserts a dimension of size 1.
        shrink_axis_mask: entry i is the single index `begin[i]`.
    """
    index: list[Any] = []
    axis = 0
    for i, (b, e, s) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(Ellipsis)
            named = sum(1 for j in range(i + 1, len(begin)) if not new_axis_mask >> j & 1)
            axis = x.dim() - named
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(b)
            axis += 1
        else:
            part = slice(None if begin_mask & bit else b, None if end_mask & bit else e, s)
            if s < 0:  # torch slices forwards only
                places = range(*part.indices(x.shape[axis]))
                x = x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))
                part = slice(None)
            index.append(part)
            axis += 1
    return x[tuple(index)].clone()


@op(f"npu_indexing.out({_INDEXING}, *, Tensor(a!) out) -> Tensor(a!)")
def _npu_indexing_out(*args: Any, out: Tensor) -> Tensor:
    return _into(out, npu_indexing(*args))


@op("npu_pad(Tensor input, int[] paddings) -> Tensor")
def npu_pad(x: Tensor, paddings: list[int]) -> Tensor:
    """Zeros around `x`: `paddings` holds (before, after) for each dimension, the first dimension first."""
    if len(paddings) != 2 * x.dim():
        raise RuntimeError(f"npu_pad: {x.dim()} dimensions need {2 * x.dim()} paddings, not {len(paddings)}")
    reversed_pairs = [p for d in reversed(range(x.dim())) for p in paddings[2 * d : 2 * d + 2]]
    return F.pad(x, reversed_pairs)


@op("npu_stride_add(Tensor self, Tensor other, Scalar offset1, Scalar offset2, Scalar c1_len) -> Tensor")
def npu_stride_add(x: Tensor, y: Tensor, offset1: float, offset2: float, c1_len: float) -> Tensor:
    """Sum of `c1_len` blocks of 16 channels, from block `offset1` of `x` and block `offset2` of `y` (dimension 1).

    Channels beyond an input's end count as zero, as in a layout that stores channels in blocks of 16.
    """
    count = int(c1_len) * 16

    def block(t: Tensor, offset: float) -> Tensor:
        part = t[:, int(offset) * 16 : int(offset) * 16 + count]
        missing = count - part.shape[1]
        return F.pad(part, [0, 0] * (t.dim() - 2) + [0, missing]) if missing else part

    return block(x, offset1) + block(y, offset2)


@op("npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1, Scalar off_value=0) -> Tensor")
def npu_one_hot(x: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0) -> Tensor:
    """float32 of shape `(*x.shape, depth)`: `on_value` where the last index equals `x`, else `off_value`.

    Args:
        x: integers; those outside `[0, depth)` give rows of `off_value`.
        num_classes: the axis of the new dimension; only −1, the last one.
        depth: size of the new dimension.
        on_value, off_value: the two values.
    """
    classes = torch.arange(depth, device=x.device, dtype=x.dtype)
    hit = x.unsqueeze(-1) == classes
    result = torch.full(hit.shape, float(off_value), dtype=torch.float32, device=x.device)
    result.masked_fill_(hit, float(on_value))
    return result if num_classes == -1 else result.movedim(-1, num_classes)


@op("npu_sort_v2(Tensor self, int dim=-1, bool descending=False) -> Tensor")
def npu_sort_v2(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The sorted values along `dim`, without indices."""
    return torch.sort(x, dim=dim, descending=descending)[0]


@op("npu_sort_v2.out(Tensor self, int dim=-1, bool descending=False, *, Tensor(a!) out) -> Tensor(a!)")
def _npu_sort_v2_out(x: Tensor, dim: int = -1, descending: bool = False, *, out: Tensor) -> Tensor:
    return _into(out, npu_sort_v2(x, dim, descending))


@op("npu_max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
def npu_max(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Largest values along `dim` and their int32 indices."""
    values, indices = torch.max(x, dim, keepdim)
    return values, indices.to(torch.int32)


@op("npu_min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
def npu_min(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest values along `dim` and their int32 indices."""
    values, indices = torch.min(x, dim, keepdim)
    return values, indices.to(torch.int32)


@op("npu_masked_fill_range(Tensor self, Tensor start, Tensor end, Tensor value, int axis=-1) -> Tensor")
def npu_masked_fill_range(x: Tensor, start: Tensor, end: Tensor, value: Tensor, axis: int = -1) -> Tensor:
    """Fill `[start, end)` along `axis` with a value, in each row of the leading dimension.

    Args:
        x: 1 to 3 dimensions.
        start, end: integers `(groups, rows)`; where `axis` is 0, or `x` has three dimensions and `axis` is 1, the
            ranges hold for the whole tensor, else range `[g, r]` holds for row `r` of dimension 0.
        value: one value for each group.
        axis: the dimension that the ranges count along.
    """
    axis %= x.dim()
    place = torch.arange(x.shape[axis], device=x.device, dtype=start.dtype)
    result = x.clone()
    for group in range(start.shape[0]):
        inside = (place >= start[group].unsqueeze(-1)) & (place < end[group].unsqueeze(-1))  # (rows, size of axis)
        if axis == x.dim() - 1 and x.dim() > 1:
            rows = inside.shape[0]
            mask = inside.view(rows, *[1] * (x.dim() - 2), x.shape[axis])
            result[:rows] = torch.where(mask, value[group], result[:rows])
        else:
            shape = [1] * x.dim()
            shape[axis] = x.shape[axis]
            result = torch.where(inside.any(0).view(shape), value[group], result)
    return result


@op("npu_sign_bits_pack(Tensor self, int size) -> Tensor")
def npu_sign_bits_pack(x: Tensor, size: int) -> Tensor:
    """Signs of a one-dimensional tensor as bits (1 where x ≥ 0), lowest bit first: uint8 of `(size, ⌈n / 8⌉ / size)`.

    The input is padded with negative values to a whole number of bytes.
    """
    if x.dim() != 1:
        raise RuntimeError(f"npu_sign_bits_pack: the input must have one dimension, not {x.dim()}")
    bits = F.pad((x >= 0).to(torch.int32), [0, -x.numel() % 8])
    if size <= 0 or (bits.numel() // 8) % size:
        raise RuntimeError(f"npu_sign_bits_pack: {bits.numel() // 8} bytes can't be divided into size={size} rows")
    weights = 2 ** torch.arange(8, device=x.device, dtype=torch.int32)
    return (bits.view(-1, 8) * weights).sum(1).to(torch.uint8).view(size, -1)


@op("npu_sign_bits_unpack(Tensor input, int size, ScalarType dtype) -> Tensor")
def npu_sign_bits_unpack(x: Tensor, size: int, dtype: torch.dtype | int) -> Tensor:
    """The reverse: each bit of a uint8 tensor becomes 1.0 or −1.0, in `size` rows of `dtype`."""
    shifts = torch.arange(8, device=x.device, dtype=torch.uint8)
    bits = (x.reshape(-1, 1) >> shifts) & 1
    return (bits.to(torch.float32) * 2 - 1).to(dtype_of(dtype)).view(size, -1)


@op("npu_dtype_cast(Tensor self, int dtype, int? input_dtype=None) -> Tensor")
def npu_dtype_cast(x: Tensor, dtype: int, input_dtype: int | None = None) -> Tensor:
    """`x` in another type; the gradient returns in the type of `x`."""
    return x.to(dtype_of(dtype))


@op("npu_dtype_cast_(Tensor(a!) self, Tensor src) -> Tensor(a!)")
def npu_dtype_cast_(x: Tensor, src: Tensor) -> Tensor:
    """Write `src` into `x`, cast to the type of `x`."""
    return x.copy_(src)


@op("copy_memory_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)")
def copy_memory_(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy `src` over `x`; both of one type, device and size."""
    if x.dtype != src.dtype or x.device != src.device:
        raise RuntimeError("copy_memory_: both tensors must have the same type and be on the same npu device")
    return x.copy_(src)


@op("one_(Tensor(a!) self) -> Tensor(a!)")
def one_(x: Tensor) -> Tensor:
    """Fill with ones."""
    return x.fill_(1)


@op("npu_scatter(Tensor self, Tensor indices, Tensor updates, int dim) -> Tensor")
def npu_scatter(x: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """A copy of `x` where, along `dim`, the element at `indices[i]` of slice i is `updates[i]`."""
    return x.scatter(dim, indices.long().unsqueeze(dim), updates.unsqueeze(dim))


@op("npu_scatter_nd_update(Tensor self, Tensor indices, Tensor updates) -> Tensor")
def npu_scatter_nd_update(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy of `x` with `updates[i]` at the coordinates `indices[i]` (last dimension: coordinates of leading
    dimensions).
    """
    return x.index_put(tuple(indices.long().unbind(-1)), updates)


@op("npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)")
def npu_scatter_nd_update_(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`npu_scatter_nd_update`, in place."""
    return x.index_put_(tuple(indices.long().unbind(-1)), updates)
