"""Device memory that finds faults: every block between guard bands, poisoned before it is written and when it is freed.

A :class:`Sanitizer` is a :class:`~.watch.Watch` over all of the device's memory, the results of its own kernels
included. It finds what kernels under ``override``, custom operators and whoever else has an address do wrong:

- writes before and behind a block, by the bands;
- reads from there, from memory that was never written, and from memory that was freed, by the poison in a result;
- writes into freed memory, which is kept for a while and looked at again;
- memory of ``malloc`` that is freed twice, or never.

What a kernel under ``override`` does is found when it returns, and has its name. What others do is found when a block
is freed, when the next such kernel runs, or at the end.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_ascend.targets.base import MemoryFault, Trespass

from . import poison
from .watch import Watch

if TYPE_CHECKING:
    from .dispatch import Kernel

__all__ = ["Sanitizer"]

BAND = 1024  # bytes on either side
_KEPT = 8 << 20  # bytes of freed memory that are kept
_EDGES = 4 << 10  # of a larger freed block so much is looked at, at either end
_MOST = 100  # faults that are kept
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

Site = tuple[str, int, str]


def site() -> Site:
    """Whose line is at work: the first frame outside of torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OWN, _TORCH)) and not name.startswith("<"):
            return name, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return "", 0, ""


def _said(place: Site) -> str:
    return f"{place[0]}:{place[1]} in {place[2]}" if place[0] else ""


@dataclass(eq=False)
class _Block:
    """One block: its memory with the bands, where it starts, and where it came from.

    ``raw``: of ``malloc``; ``open``: a kernel was given it for its result, and no tensor
    of the device owns it yet. ``op``: the operator that was at work.
    """

    room: Tensor
    address: int
    nbytes: int
    dtype: torch.dtype
    op: str
    place: Site
    raw: bool = False
    open: bool = False
    number: int = 0
    freed: Site | None = None

    @property
    def allocated(self) -> str:
        return ", ".join(part for part in (self.op, _said(self.place)) if part)


@dataclass
class _Books:
    """What all sanitizers of one test share."""

    blocks: dict[int, _Block] = field(default_factory=dict)  # by the address of their room
    freed: OrderedDict[int, _Block] = field(default_factory=OrderedDict)  # by the block's own address
    kept: int = 0
    faults: list[MemoryFault] = field(default_factory=list)
    more: int = 0
    op: str = ""
    frames: tuple[str, ...] = ()
    last: str = ""  # the last operator that ran
    kernels: int = 0
    made: int = 0  # blocks so far
    since: int = 0  # so many when the test's own code began


class Sanitizer(Watch):
    """A watch over all memory that finds faults.

    Args:
        books: of another one, around this one.

    Attributes:
        uninitialised: whether reads of memory that was never written are looked for.
    """

    def __init__(self, uninitialised: bool = True, books: _Books | None = None) -> None:
        super().__init__()
        self.uninitialised = uninitialised
        self._books = _Books() if books is None else books

    def nested(self) -> Sanitizer:
        """One for a check within the test, which asks for its own trespasses and may want its own fill."""
        return Sanitizer(self.uninitialised, self._books)

    @property
    def faults(self) -> list[MemoryFault]:
        """What was found, in order."""
        return self._books.faults

    @property
    def more(self) -> int:
        """How many faults were found beyond those that are kept."""
        return self._books.more

    @property
    def looked(self) -> bool:
        """Whether there was anything to look at: a kernel ran or memory was taken since :meth:`begin`."""
        return self._books.kernels > 0 or self._books.made > self._books.since

    def begin(self) -> None:
        """A test's own code begins: what was found before isn't its own, and what it allocates it must free."""
        books = self._books
        self.sweep()
        self.seen.clear()
        books.faults, books.more, books.kernels, books.since, books.last = [], 0, 0, books.made, ""

    # -- blocks -------------------------------------------------------------------------------------------------------

    def room(self, nbytes: int, dtype: torch.dtype, fresh: bool = True) -> tuple[Tensor, int]:
        """Memory for a block between its bands; ``fresh``: poisoned, as nobody has written it yet."""
        size = dtype.itemsize
        room = torch.empty(nbytes // size + 2 * BAND // size, dtype=dtype, device="cpu")
        start = room.data_ptr()
        band = poison.pattern(dtype, poison.BAND, BAND)
        ctypes.memmove(start, band, BAND)
        ctypes.memmove(start + BAND + nbytes, band, BAND)
        if self.fill is not None:
            ctypes.memset(start + BAND, self.fill & 1 if dtype is torch.bool else self.fill, nbytes)
        elif fresh and nbytes > 4096:
            poison.fill(room[BAND // size : BAND // size + nbytes // size], poison.FRESH)
        elif fresh and nbytes:
            ctypes.memmove(start + BAND, poison.pattern(dtype, poison.FRESH, nbytes), nbytes)
        books = self._books
        books.made += 1
        books.blocks[start] = _Block(room, start + BAND, nbytes, dtype, books.op, site(), number=books.made)
        return room, BAND // size

    def place(self, cpu: Tensor) -> tuple[Tensor, Tensor]:
        """A kernel's result, moved between bands: its memory with them, and the result. It covers its whole storage."""
        nbytes = cpu.nbytes
        room, start = self.room(nbytes, cpu.dtype, fresh=False)
        ctypes.memmove(room.data_ptr() + BAND, cpu.data_ptr(), nbytes)
        return room, room.as_strided(cpu.shape, cpu.stride(), start)

    def offer(self, room: Tensor) -> None:
        """A block will be a kernel's result."""
        self._books.blocks[room.data_ptr()].open = True

    def unowned(self, cpu: Tensor) -> Tensor | None:
        """The memory with its bands of a result that a kernel has written into a block made for it."""
        block = self._books.blocks.get(cpu.data_ptr() - BAND)
        if block is None or block.raw or not block.open or cpu.nbytes != block.nbytes:
            return None
        block.open = False
        return block.room

    def malloc(self, count: int, dtype: torch.dtype) -> Tensor:
        """Memory that no tensor owns."""
        room, start = self.room(count * dtype.itemsize, dtype)
        self._books.blocks[room.data_ptr()].raw = True
        return room[start : start + count]

    def free(self, address: int) -> None:
        """Give it back; a second time is a fault."""
        books = self._books
        block = books.blocks.get(address - BAND)
        if block is not None and block.raw:
            self._look(block)
            self._bury(books.blocks.pop(address - BAND))
            return
        before = books.freed.get(address)
        region = None if before is None else (before.address, before.address + before.nbytes)
        detail = (
            "no memory of malloc() begins there"
            if before is None
            else f"freed before: {_said(before.freed or ('', 0, ''))}"
        )
        self._note("illegal free", "", address, None, region, detail, before.allocated if before else "")

    def inspect(self, room: Tensor, nbytes: int) -> None:
        """Look at a block's bands."""
        block = self._books.blocks.get(room.data_ptr())
        if block is not None:
            self._look(block)

    def released(self, room: Tensor, nbytes: int) -> None:
        """A tensor's block is gone: look at it a last time, and keep it for a while."""
        block = self._books.blocks.pop(room.data_ptr(), None)
        if block is not None:
            self._look(block)
            self._bury(block)

    def _look(self, block: _Block) -> None:
        band = poison.pattern(block.dtype, poison.BAND, BAND)
        start = block.address - BAND
        for place, offset in ((start, -BAND), (block.address + block.nbytes, block.nbytes)):
            there = ctypes.string_at(place, BAND)
            if there == band:
                continue
            bad = [i for i in range(BAND) if there[i] != band[i]]
            ctypes.memmove(place, band, BAND)
            first, last = offset + bad[0], offset + bad[-1]
            self.seen.append(Trespass(block.address, block.nbytes, first, last))
            beyond = first - block.nbytes
            behind = f"{beyond} bytes behind the end of" if beyond else "right behind the end of"
            where = f"{-first} bytes before" if first < 0 else behind
            self._note(
                "illegal write",
                "write",
                block.address + first,
                len(bad),
                (block.address, block.address + block.nbytes),
                f"{where} a block of {block.nbytes} bytes" + ("" if last - first + 1 == len(bad) else ", with gaps"),
                block.allocated,
            )

    def _bury(self, block: _Block) -> None:
        books = self._books
        block.freed = site()
        for start, size in _parts(block):
            ctypes.memmove(start, poison.pattern(block.dtype, poison.FREED, size), size)
        books.freed[block.address] = block
        books.kept += block.nbytes
        while books.kept > _KEPT and len(books.freed) > 1:
            self._dig(books.freed.popitem(last=False)[1], forget=True)

    def _dig(self, block: _Block, forget: bool = False) -> None:
        """See whether freed memory was written."""
        if forget:
            self._books.kept -= block.nbytes
        for start, size in _parts(block):
            wanted = poison.pattern(block.dtype, poison.FREED, size)
            there = ctypes.string_at(start, size)
            if there == wanted:
                continue
            bad = [i for i in range(size) if there[i] != wanted[i]]
            ctypes.memmove(start, wanted, size)
            first = start + bad[0] - block.address
            self._note(
                "illegal write",
                "write",
                start + bad[0],
                len(bad),
                (block.address, block.address + block.nbytes),
                f"use after free: {first} bytes into a block of {block.nbytes} bytes that was freed"
                + (f" at {_said(block.freed)}" if block.freed and block.freed[0] else ""),
                block.allocated,
            )

    def sweep(self) -> None:
        """Look at all blocks, those in use and those that were freed."""
        for block in [*self._books.blocks.values()]:
            self._look(block)
        for block in [*self._books.freed.values()]:
            self._dig(block)

    def finish(self) -> None:
        """The test is over: a last look, and what of ``malloc`` was never freed is a leak."""
        self._books.op, self._books.frames = "", ()
        self.sweep()
        for key, block in [*self._books.blocks.items()]:
            if block.raw and block.number > self._books.since:
                del self._books.blocks[key]
                self._note(
                    "leak",
                    "",
                    block.address,
                    block.nbytes,
                    None,
                    "never freed",
                    block.allocated,
                    op=block.op,
                    frames=_line(block.place),
                )

    # -- kernels ------------------------------------------------------------------------------------------------------

    def around(self, kernel: Kernel, run: Callable[[], Any], inputs: list[Tensor], replaced: Any) -> Any:
        """Run a kernel and see what it does.

        Args:
            kernel: of the device.
            run: computes, on the CPU.
            inputs: its tensors.
            replaced: the override, where one is in force.
        """
        books = self._books
        books.kernels += 1
        if replaced is None:
            before, books.op = books.op, kernel.name
            try:
                result = run()
            finally:
                books.op, books.last = before, kernel.name
            if kernel.name == "aten::_local_scalar_dense" and inputs:
                self.downloads(inputs[0])
            return result
        self.sweep()  # what was wrong before isn't its doing
        before, frames = books.op, books.frames
        books.op = kernel.name
        books.frames = (*_definition(replaced.kernel), *_line(site()))
        try:
            result = run()
            self.sweep()
            self._results(kernel, result)
        finally:
            books.op, books.frames, books.last = before, frames, kernel.name
        return result

    def _results(self, kernel: Kernel, result: Any) -> None:
        values = result if isinstance(result, (tuple, list)) else (result,)
        for number, value in enumerate(values):
            if not isinstance(value, Tensor) or not value.is_cpu or not value.numel():
                continue
            name = f"result {number}" if len(values) > 1 else "its result"
            for code, kind, why in (
                (poison.BAND, "illegal read", "memory before or behind a block"),
                (poison.FREED, "illegal read", "memory that was freed (use after free)"),
                (poison.FRESH, "uninitialized read", "memory that was never written"),
            ):
                if code == poison.FRESH and not self.uninitialised:
                    continue
                there = poison.found(value, code)
                if there is not None:
                    count = int(there.sum())
                    first = int(there.to(torch.uint8).argmax())
                    self._note(
                        kind,
                        "read",
                        None,
                        count * value.element_size(),
                        None,
                        f"{count} of {there.numel()} elements of {name}, the first at {first}, hold {why}",
                        "",
                    )

    def downloads(self, source: Tensor) -> None:
        """Memory goes to the host: poison in it has reached an output."""
        if self.fill is not None:
            return
        for code, kind, why in (
            (poison.FREED, "illegal read", "freed (use after free)"),
            (poison.BAND, "illegal read", "beside a block"),
            (poison.FRESH, "uninitialized read", "never written"),
        ):
            if code == poison.FRESH and not self.uninitialised:
                continue
            there = poison.found(source, code)
            if there is not None:
                count = int(there.sum())
                block = self._books.blocks.get(source.data_ptr() - BAND)
                self._note(
                    kind,
                    "read",
                    source.data_ptr(),
                    count * source.element_size(),
                    None,
                    f"{count} of {there.numel()} elements that were copied to the host hold or come from memory that "
                    f"was {why}",
                    "" if block is None else block.allocated,
                    op=self._books.last,
                    frames=_line(site()),
                )

    def _note(
        self,
        kind: str,
        direction: str,
        address: int | None,
        size: int | None,
        region: tuple[int, int] | None,
        detail: str,
        allocated: str,
        *,
        op: str | None = None,
        frames: tuple[str, ...] | None = None,
    ) -> None:
        books = self._books
        if op is None and not books.op and kind == "illegal write":
            detail += f"; noticed after {books.last}" if books.last else ""
        fault = MemoryFault(
            kind,
            direction,
            books.op if op is None else op,
            address,
            size,
            region,
            detail,
            allocated,
            books.frames if frames is None else frames,
        )
        like = next((i for i, one in enumerate(books.faults) if _same(one, fault)), None)
        if like is not None:
            books.faults[like] = replace(books.faults[like], count=books.faults[like].count + 1)
        elif len(books.faults) < _MOST:
            books.faults.append(fault)
        else:
            books.more += 1


def _same(one: MemoryFault, other: MemoryFault) -> bool:
    """Whether a fault is the same as another, but for where the memory lies."""
    return (one.kind, one.direction, one.op, one.size, one.detail, one.frames) == (
        other.kind,
        other.direction,
        other.op,
        other.size,
        other.detail,
        other.frames,
    )


def _parts(block: _Block) -> list[tuple[int, int]]:
    """What of a freed block is looked at: address and bytes."""
    if block.nbytes <= 2 * _EDGES:
        return [(block.address, block.nbytes)] if block.nbytes else []
    return [(block.address, _EDGES), (block.address + block.nbytes - _EDGES, _EDGES)]


def _line(place: Site) -> tuple[str, ...]:
    return (f"{place[0]}:{place[1]}",) if place[0] else ()


def _definition(kernel: Any) -> tuple[str, ...]:
    code = getattr(kernel, "__code__", None)
    return () if code is None else (f"{code.co_filename}:{code.co_firstlineno}",)
