"""What a range doesn't tell: rows that a normalisation made zero, and shares that became zero or subnormal.

All of it is computed on the device, and comes back as one number with the ranges.
"""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["NORMS", "lost_share", "zero_rows"]

NORMS = ("rms_norm", "layer_norm", "deep_norm")
"""Parts of the names of fused normalisations."""

SAMPLE = 1 << 14
"""Elements that a share is estimated from, evenly over the tensor."""

_LEAST = 16


def zero_rows(name: str, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> torch.Tensor | None:
    """Whether a fused normalisation made whole rows zero because their squares overflow.

    A bool on the device; None where it can't be told. A row counts that is zero while its input isn't, and while the
    input's size times the root of its length is beyond the root of the dtype's largest number.

    Args:
        name: the operator's, such as ``npu_rms_norm``.
        tensors: its floating arguments.
        results: what it returned.
    """
    if name.endswith("backward") or not tensors or not results:
        return None
    x = tensors[0]
    result = next((one for one in results if one.shape == x.shape and one.dtype == x.dtype), None)
    gain = next((t for t in tensors[1:] if 0 < t.dim() <= x.dim() and t.shape == x.shape[-t.dim() :]), None)
    if result is None or not x.dim():
        return None
    if "add_rms" in name:
        x = x + tensors[1]
        gain = tensors[2] if len(tensors) > 2 else None
    dims = tuple(range(-(gain.dim() if gain is not None and gain.dim() < x.dim() else 1), 0))
    length = math.prod(x.shape[dim] for dim in dims)
    low, high = x.amin(dims).double(), x.amax(dims).double()
    size = torch.maximum(high.abs(), low.abs()) if "rms" in name else (high - low) / 2
    zero = torch.linalg.vector_norm(result, math.inf, dims) == 0
    found: torch.Tensor = ((size * math.sqrt(length) > math.sqrt(torch.finfo(x.dtype).max)) & zero).any()
    if gain is not None:
        found = found & (gain != 0).any()
    return found


def lost_share(source: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor | None:
    """Which share of the elements that aren't zero became zero or subnormal: a float32 on the device.

    None where a tensor is too small to speak of shares.

    Args:
        source: what was cast, in which zeros are looked for; None: the result itself.
        result: the tensor.
    """
    if result.numel() < _LEAST:
        return None
    sample = _sample(result)
    before = sample if source is None or source.shape != result.shape else _sample(source)
    if before.shape != sample.shape:
        before = sample
    whole = before != 0
    small = whole & (sample.abs() < torch.finfo(result.dtype).tiny)
    return small.sum() / whole.sum().clamp(min=1)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Elements evenly over a tensor, without copying it where its memory allows; first rows of another."""
    step = -(-tensor.numel() // SAMPLE)
    if step == 1:
        return tensor.reshape(-1)
    if tensor.is_contiguous():
        return tensor.view(-1)[::step]
    return tensor[::step] if tensor.dim() and tensor.shape[0] >= step else tensor[:1]


def floating(values: Any) -> list[torch.Tensor]:
    """The floating tensors among arguments."""
    return [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
