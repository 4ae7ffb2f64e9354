"""A tensor's four figures, as msprobe has them: largest, smallest, mean and 2-norm. Of integers the first two alone.

They are taken in as few passes over memory as torch offers, and not at all for a tensor that hasn't changed since: what
one call returns is what the next one is given.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["SMALL", "Figures", "Seen", "figures", "figures_on_device", "named"]

Figures = tuple[Any, Any, Any, Any]
"""Max, Min, Mean, Norm; None where there is none."""
_NONE: Figures = (None, None, None, None)
SMALL = 1024
"""Elements; a look at what is known takes longer than such a tensor."""
_MOST = 4096  # tensors that are remembered


def named(found: Figures) -> dict[str, Any]:
    """The figures under the names that dumps have for them."""
    return {"Max": found[0], "Min": found[1], "Mean": found[2], "Norm": found[3]}


def figures(tensor: torch.Tensor, total: float | None = None) -> Figures:
    """The figures of a tensor on the CPU: of any dtype and layout of memory, not empty. Autograd must be off.

    ``total`` is the sum of its elements, where that is known and the dtype is float32 or float64.

    Means and norms of half precision are added up in float32; those that leave float32 are taken again in float64.
    """
    import torch

    dtype = tensor.dtype
    if dtype is torch.bool:
        return bool(tensor.any()), bool(tensor.all()), None, None
    if dtype.is_complex:
        return figures(tensor.abs())
    if not dtype.is_floating_point:
        return _of_integers(tensor)
    wide = tensor if dtype is torch.float32 or dtype is torch.float64 else tensor.float()
    smallest, largest = torch.aminmax(wide)
    low, high = smallest.item(), largest.item()
    mean = (wide.sum().item() if total is None or wide is not tensor else total) / wide.numel()
    norm = torch.linalg.vector_norm(wide).item()
    if not math.isfinite(mean + norm) and math.isfinite(low) and math.isfinite(high):
        double = wide.double()  # the sum or the squares went beyond float32: a mask of its smallest number
        mean, norm = double.mean().item(), torch.linalg.vector_norm(double).item()
    return high, low, mean, norm


def _of_integers(tensor: torch.Tensor) -> Figures:
    import torch

    if tensor.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        wide = tensor.to(torch.int64)
        if tensor.dtype is torch.uint64 and int(wide.min()) < 0:  # beyond what int64 holds
            return _NONE
        tensor = wide
    smallest, largest = torch.aminmax(tensor)
    return int(largest), int(smallest), None, None


def figures_on_device(tensor: torch.Tensor) -> torch.Tensor | None:
    """The figures as one float32 or float64 tensor of 4 on the tensor's own device, so that nobody waits for them.

    None for a dtype whose figures aren't floating-point numbers: those are small, and are copied.
    """
    import torch

    if not tensor.dtype.is_floating_point:
        return None
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    smallest, largest = torch.aminmax(wide)
    return torch.stack((largest, smallest, wide.mean(), torch.linalg.vector_norm(wide)))


class Seen:
    """What is known of tensors that were looked at before.

    A tensor is the same as before when it is the same object, or a view of the same, neither was written to by any
    operator of torch's (autograd's version counter) nor by anything else: its sum is the same, to the bit. The last is
    for kernels that write to memory without autograd's knowledge, such as a collective or an extension's.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, dict[Any, tuple[float, Any]]]] = {}

    def find(self, tensor: torch.Tensor, key: Any) -> tuple[dict[Any, tuple[float, Any]] | None, float | None, Any]:
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
        version = tensor._version
        number = id(base)
        known = self._known.get(number)
        if known is None or known[0]() is not base or known[1] != version:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[number] = (weakref.ref(base), version, {})
        total = tensor.sum().item()
        found = known[2].get(key)
        return known[2], total, found[1] if found is not None and found[0] == total else None

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
