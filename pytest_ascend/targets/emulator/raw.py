"""Device memory as a kernel has it: an address, and nothing that stops at its end.

A kernel on a card gets pointers. :class:`Raw` is that: it reads and writes where it is told, beside the tensor as well,
so that a faulty kernel can be written as it is on the card. :func:`malloc` and :func:`free` are the runtime's
(``aclrtMalloc``, ``aclrtFree``): workspaces that no tensor owns. Without ``--ascend-sanitize`` what is written a little
out of bounds lands in spare memory and nobody is told, as on a card.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .device import machine

__all__ = ["Raw", "free", "lending", "malloc"]


class Raw:
    """A tensor's memory without its bounds.

    ``raw[i]`` and ``raw[i] = value`` are the element ``i`` places after the first one in memory, whatever the tensor's
    shape; ``i`` may be negative and may lie behind the end.

    Attributes:
        tensor: the memory within its bounds, as a CPU tensor that shares it.
        address: of the first element, in bytes.
        nbytes: bytes of all elements.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self.nbytes = tensor.nbytes

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's dtype."""
        return self.tensor.dtype

    def numel(self) -> int:
        """How many elements the tensor has."""
        return self.tensor.numel()

    def window(self, first: int, last: int) -> torch.Tensor:
        """Elements ``first`` to ``last`` (exclusive), counted from the first one in memory, as one row.

        Args:
            first: negative for elements before the tensor.
            last: beyond the tensor's size for elements behind it.
        """
        size = self.dtype.itemsize
        count = last - first
        if count <= 0:
            return torch.empty(0, dtype=self.dtype)
        memory = (ctypes.c_char * (count * size)).from_address(self.address + first * size)
        return torch.frombuffer(memory, dtype=self.dtype)

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes, ``offset`` bytes from the first element."""
        ctypes.memmove(self.address + offset, data, len(data))

    def read(self, offset: int, count: int) -> bytes:
        """Read bytes, ``offset`` bytes from the first element."""
        return ctypes.string_at(self.address + offset, count)

    def __getitem__(self, index: int) -> Any:
        return self.window(index, index + 1)[0].item()

    def __setitem__(self, index: int, value: Any) -> None:
        self.window(index, index + 1)[0] = value

    def __repr__(self) -> str:
        return f"<Raw {self.address:#x}, {self.nbytes} bytes of {self.dtype}>"


_SPARE = 4096  # bytes around memory that nobody watches, or a fault would end the process
_held: dict[int, torch.Tensor] = {}  # what is allocated and nobody watches
_freed: deque[torch.Tensor] = deque(maxlen=64)


@contextlib.contextmanager
def lending() -> Iterator[Callable[[torch.Tensor], Raw]]:
    """Make addresses of tensors for a kernel: of copies with memory to spare around them, copied back at the end."""
    lent: dict[tuple[int, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def lend(tensor: torch.Tensor) -> Raw:
        if not tensor.numel():
            return Raw(tensor)
        length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        key = tensor.data_ptr(), length, tensor.dtype
        if key not in lent:
            row = tensor.as_strided((length,), (1,), tensor.storage_offset())
            lent[key] = row, _spacious(length, tensor.dtype).copy_(row)
        return Raw(lent[key][1].as_strided(tensor.shape, tensor.stride(), lent[key][1].storage_offset()))

    yield lend
    for row, copy in lent.values():
        row.copy_(copy)


def _spacious(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A row of elements with memory to spare on either side."""
    spare = _SPARE // dtype.itemsize
    return torch.empty(count + 2 * spare, dtype=dtype, device="cpu")[spare : spare + count]


def malloc(count: int, dtype: torch.dtype = torch.uint8) -> Raw:
    """Device memory that no tensor owns, until :func:`free` is called for it.

    Args:
        count: how many elements.
        dtype: of them.
    """
    if count < 1:
        raise ValueError(f"malloc({count}): give a number of elements, 1 or more")
    if (watch := machine.sanitizer) is not None:
        return Raw(watch.malloc(count, dtype))
    memory = _spacious(count, dtype)
    _held[memory.data_ptr()] = memory
    return Raw(memory)


def free(raw: Raw) -> None:
    """Give memory of :func:`malloc` back.

    Raises:
        RuntimeError: there is no such memory, or it was given back already; while ``--ascend-sanitize`` looks, that is
            a fault that it reports.
    """
    if (watch := machine.sanitizer) is not None:
        watch.free(raw.address)
    elif (memory := _held.pop(raw.address, None)) is not None:
        _freed.append(memory)
    else:
        raise RuntimeError(f"free({raw.address:#x}): no memory of malloc() begins there, or it was freed before")
