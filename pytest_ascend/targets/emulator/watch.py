"""Device memory that tells: fresh blocks lie between two guard bands and hold a pattern until they are written.

On a card, what a kernel writes beside its output lands in a neighbour, and what it never writes holds whatever was
there before. While a :class:`Watch` is on, every block the device hands out (copies of arguments, ``torch.empty``, not
the results that a CPU kernel makes itself) gets both made visible, without a trace for the code that uses it: offset 0,
the exact storage size, the same alignment.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch

from pytest_ascend.targets.base import Trespass

__all__ = ["GUARD", "Watch"]

GUARD = 512  # bytes on either side: the caching allocator's granularity, which keeps a block's alignment
_BAND = bytes((i * 37 + 0xA5) & 0xFF for i in range(GUARD))


@dataclass
class Watch:
    """One watch over the device's memory.

    Attributes:
        fill: the byte that fresh blocks are filled with; None leaves them as the host gave them.
        seen: what was found in blocks that are gone already.
    """

    fill: int | None = None
    seen: list[Trespass] = field(default_factory=list)

    def room(self, nbytes: int, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """Host memory for a block between its bands, as one row of a dtype, and where in it the block starts."""
        size = dtype.itemsize
        room = torch.empty(nbytes // size + 2 * GUARD // size, dtype=dtype, device="cpu")
        start = room.data_ptr()
        ctypes.memmove(start, _BAND, GUARD)
        ctypes.memmove(start + GUARD + nbytes, _BAND, GUARD)
        if self.fill is not None:
            ctypes.memset(start + GUARD, self.fill & 1 if dtype is torch.bool else self.fill, nbytes)
        return room, GUARD // size

    def found(self) -> list[Trespass]:
        """What was written beside blocks since it was last asked, those in use and those that are gone."""
        from .memory import watched

        for room, nbytes in watched(self):
            self.inspect(room, nbytes)
        found, self.seen = self.seen, []
        return found

    def offer(self, room: torch.Tensor) -> None:
        """A block will be a kernel's result."""

    def released(self, room: torch.Tensor, nbytes: int) -> None:
        """A block is gone."""
        self.inspect(room, nbytes)

    def inspect(self, room: torch.Tensor, nbytes: int) -> None:
        """Note what was written into the bands of a block, and mend them."""
        start = room.data_ptr()
        for place, offset in ((start, -GUARD), (start + GUARD + nbytes, nbytes)):
            band = ctypes.string_at(place, GUARD)
            if band != _BAND:
                bad = [i for i in range(GUARD) if band[i] != _BAND[i]]
                found = Trespass(start + GUARD, nbytes, offset + bad[0], offset + bad[-1])
                self.seen.append(found)
                ctypes.memmove(place, _BAND, GUARD)
