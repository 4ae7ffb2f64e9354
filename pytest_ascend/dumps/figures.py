"""A tensor's four figures, as msprobe has them: largest, smallest, mean and 2-norm. Of integers the first two alone.

They are taken in as few and as quick passes over memory as torch and numpy offer, and not at all for a tensor that
hasn't changed since: what one call returns is what the next one is given.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import torch

__all__ = ["SMALL", "Figures", "Seen", "figures", "figures_on_device", "named"]

Figures = tuple[Any, Any, Any, Any]
"""Max, Min, Mean, Norm; None where there is none."""
SMALL = 1024
"""Elements; a look at what is known takes longer than such a tensor."""
_MOST = 4096  # tensors that are remembered
_TINY = 2.0**-100  # a square beside which those that float32 loses, below 2**-126, don't count
_HUGE = 2.0**127  # sums of squares that float32 surely holds
_least, _most = np.minimum.reduce, np.maximum.reduce


def named(found: Figures) -> dict[str, Any]:
    """The figures under the names that dumps have for them."""
    return {"Max": found[0], "Min": found[1], "Mean": found[2], "Norm": found[3]}


def figures(tensor: torch.Tensor, total: float | None = None) -> Figures:
    """The figures of a tensor on the CPU: of any dtype and layout of memory, not empty. Autograd must be off.

    ``total`` is the sum of its elements, where that is known and the dtype is float32 or float64.

    Means and norms of half precision are added up in float32; those that leave float32, above or below, are taken again
    in float64.
    """
    dtype = tensor.dtype
    if dtype is torch.bool:
        return bool(tensor.any()), bool(tensor.all()), None, None
    if dtype.is_complex:
        return figures(tensor.abs())
    if not dtype.is_floating_point:
        return _of_integers(tensor)
    wide = tensor if dtype is torch.float32 or dtype is torch.float64 else tensor.float()
    mean = (wide.sum().item() if total is None or wide is not tensor else total) / wide.numel()
    if wide.is_contiguous():
        # numpy takes half the time of torch.aminmax and vector_norm, and its answers are numbers at once
        flat = wide.detach().numpy().reshape(-1)
        low, high = float(_least(flat)), float(_most(flat))
        furthest = max(high, -low)
        largest = furthest * furthest
        if largest >= _TINY and largest * flat.size <= _HUGE:
            norm = math.sqrt(flat.dot(flat))
        else:
            norm = largest if largest == 0.0 or largest == math.inf else math.nan
    else:
        low, high = (one.item() for one in torch.aminmax(wide))
        norm = torch.linalg.vector_norm(wide).item()
        if norm * norm < _TINY and (low, high) != (0.0, 0.0):
            norm = math.nan
    if not math.isfinite(mean + norm) and math.isfinite(low) and math.isfinite(high):
        double = wide.double()  # the sum or the squares left float32: a mask of its smallest number, tiny gradients
        furthest = max(high, -low) or 1.0
        mean, norm = double.mean().item(), furthest * torch.linalg.vector_norm(double / furthest).item()
    return high, low, mean, norm


def _of_integers(tensor: torch.Tensor) -> Figures:
    if tensor.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        wide = tensor.to(torch.int64)
        if tensor.dtype is torch.uint64 and int(wide.min()) < 0:  # beyond what int64 holds
            return None, None, None, None
        tensor = wide
    smallest, largest = torch.aminmax(tensor)
    return int(largest), int(smallest), None, None


def figures_on_device(tensor: torch.Tensor) -> torch.Tensor | None:
    """The figures as one float32 or float64 tensor of 4 on the tensor's own device, so that nobody waits for them.

    None for a dtype whose figures aren't floating-point numbers: those are small, and are copied.
    """
    if not tensor.dtype.is_floating_point:
        return None
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    smallest, largest = torch.aminmax(wide)
    return torch.stack((largest, smallest, wide.mean(), torch.linalg.vector_norm(wide)))


Slot = tuple[Any, Any, int]
"""Which tensor it is, under which key; a weak reference to it; how often it had been written to."""


class Seen:
    """What is known of tensors that were looked at before.

    A tensor is the same as before when it is the same object, or a view of the same, neither was written to by any
    operator of torch's (autograd's version counter) nor by anything else: its sum is the same, to the bit. The last is
    for kernels that write to memory without autograd's knowledge, such as a collective or an extension's.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, int, float, Any]] = {}

    def find(self, tensor: torch.Tensor, key: Any) -> tuple[Slot | None, float | None, Any]:
        """Where to remember something about a tensor, its sum, and what is known of it under a key.

        The first two are None for a tensor that isn't remembered, and the last is None for one that isn't known.

        Args:
            tensor: on the CPU. Autograd must be off.
            key: tells views of one tensor apart.
        """
        if tensor.numel() <= SMALL or tensor.is_inference():
            return None, None, None
        base = tensor._base
        if base is None:
            base = tensor
        number, version = (id(base), key), tensor._version
        total = tensor.sum().item()
        known = self._known.get(number)
        if known is not None and known[0]() is base and known[1] == version and known[2] == total:
            return None, total, known[3]
        return (number, weakref.ref(base), version), total, None

    def remember(self, slot: Slot | None, total: float | None, what: Any) -> None:
        """What :meth:`find` shall know of a tensor from now on, unless that is written to."""
        if slot is None or total is None:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        number, base, version = slot
        self._known[number] = base, version, total, what

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
