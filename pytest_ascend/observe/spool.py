"""Captured tensors, in memory as long as they are few, beyond that in files.

A model with hundreds of compared layers leaves a copy of each behind in every run. What goes beyond a budget is laid
into files without a name that are mapped into memory: the system writes pages out and reads them again as it needs to,
nothing else of the program has to know, and a file is gone when its last tensor is.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import torch

__all__ = ["IN_MEMORY", "Spool"]

IN_MEMORY = 512 << 20
"""Bytes that one run keeps in memory."""
SMALL = 1 << 16
"""Bytes of a tensor that isn't worth a file."""


class Spool:
    """Where the tensors of one run are kept.

    Args:
        in_memory: bytes that stay in memory.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self.left = in_memory
        self.spooled = 0
        """Bytes that lie in files."""

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor as they are now, detached, on the CPU, in memory of their own."""
        with torch.no_grad():
            held = tensor.detach()
            size = held.nbytes if held.layout is torch.strided else 0
            if size <= max(self.left, SMALL) or not held.is_contiguous() or held.is_conj() or held.is_neg():
                self.left -= size
                return held.to("cpu", copy=True)
            room = _file(held)
            if room is None:
                return held.to("cpu", copy=True)
            self.spooled += size
            return room.copy_(held)


def _file(like: torch.Tensor) -> torch.Tensor | None:
    """A tensor of that form in a file of its own; None where the disk has no room, or the system no such files."""
    if not hasattr(os, "posix_fallocate"):
        return None
    try:
        with tempfile.TemporaryFile(prefix="pytest-ascend-") as file:
            os.posix_fallocate(file.fileno(), 0, like.nbytes)  # else a full disk kills the process when it is written
            memory: Any = mmap.mmap(file.fileno(), like.nbytes)
    except OSError:
        return None
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)
