"""A case made ready to be called many times on a device: copies of its arguments that take turns, and fresh ones.

A call that finds its inputs in the cache from the call before measures the cache. So there are as many copies of the
arguments as exceed it, and each call gets the next one. A call that changes its arguments in place would soon work on
other numbers (sorted ones, infinities); then each copy is put back, outside of what is timed, before it is used again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable

import torch

from pytest_ascend.cases.case import Built, Case
from pytest_ascend.cases.transfer import Entry, flat_storage, same_bits
from pytest_ascend.perf.options import MOST_COPIES, PerfOptions
from pytest_ascend.targets.base import Target

__all__ = ["Workload"]

#: The copies together are this many times the cache: caches don't throw out strictly what is oldest.
TIMES_CACHE = 2
#: Bytes that the copies of a case may take together, beyond the first.
MOST_BYTES = 1 << 30


class Workload:
    """A case on a device, with its copies.

    Attributes:
        case: what is called.
        copies: how many sets of arguments there are so far.
        changes: whether a call changes its arguments; known after :meth:`first`.
        notes: what a reader of the timings should know.
    """

    def __init__(self, case: Case, target: Target, options: PerfOptions) -> None:
        self.case = case
        self.target = target
        self.options = options
        self.changes = False
        self.notes: list[str] = []
        self._built = case.build(target.device())
        self.notes += self._built.notes
        self._entries = [_arguments(self._built.entries)]
        self._calls = [_bound(self._built)]
        self._next = 0
        self._scratch: torch.Tensor | None = None

    @property
    def copies(self) -> int:
        """How many sets of arguments take turns."""
        return len(self._calls)

    @property
    def most_calls(self) -> int | None:
        """How many calls a block may have: no copy twice where each has to be fresh, or out of the cache."""
        return self.copies if self.changes or self.options.clear_cache else None

    def first(self) -> Callable[[], object]:
        """The call with the first copy."""
        return self._calls[0]

    def settle(self) -> None:
        """After the first call: see whether it changed its arguments, and make the other copies.

        Raises:
            ValueError: an argument can't be copied.
            RuntimeError: the device has no memory for it.
        """
        self.changes = any(not same_bits(e.copy.detach().to("cpu"), _on_cpu(e.source)) for e in self._entries[0])
        wanted = self._wanted()
        if wanted > 1:
            case = self._without_the_module()
            if case is None:
                self.notes.append("the arguments aren't rotated: there is a module among them")
            else:
                for _ in range(wanted - 1):
                    built = case.build(self.target.device())
                    self._entries.append(_arguments(built.entries))
                    self._calls.append(_bound(built, self._built.fn if self.case.module is not None else None))
        if self.changes:
            self.notes.append("the call changes its arguments: each call gets fresh ones, made outside of the timing")

    def batch(self, calls: int) -> list[Callable[[], object]]:
        """The next calls, their arguments fresh and, where asked for, out of the cache."""
        turn = itertools.islice(itertools.cycle(range(self.copies)), self._next, self._next + calls)
        numbers = list(turn)
        self._next = (self._next + calls) % self.copies
        if self.changes:
            for number in set(numbers):
                _put_back(self._entries[number])
        if self.options.clear_cache:
            self._clear()
        return [self._calls[number] for number in numbers]

    def _wanted(self) -> int:
        """How many copies to have."""
        rotate = self.options.rotate
        if isinstance(rotate, int) and not isinstance(rotate, bool):
            return rotate
        size = sum(_bytes(entry.copy) for entry in self._entries[0])
        if rotate is False or not size:
            return 1
        bound = min(MOST_BYTES, self.target.memory().get("free", MOST_BYTES) // 4)
        most = max(1, min(MOST_COPIES, 1 + bound // size))
        if self.changes or self.options.clear_cache:
            return int(most)
        held = sum(_bytes(entry.copy) for entry in self._built.entries) - size  # weights drive inputs out as well
        if held >= TIMES_CACHE * self.target.cache_size():
            return 1
        return int(min(most, 1 + math.ceil(TIMES_CACHE * self.target.cache_size() / size)))

    def _without_the_module(self) -> Case | None:
        """The case whose arguments alone are copied again; None where weights stand among the arguments."""
        modules = self.case.modules
        if not modules:
            return self.case
        own = self.case.module
        within = {id(part) for part in own.modules()} if own is not None else set()
        if any(id(module) not in within for module in modules):
            return None
        return Case(_nothing, self.case.args, self.case.kwargs, api=self.case.api)

    def _clear(self) -> None:
        if self._scratch is None:
            count = TIMES_CACHE * self.target.cache_size() // 4
            self._scratch = torch.zeros(count, dtype=torch.int32, device=self.target.device())
        self._scratch.add_(1)


def _nothing(*args: object, **kwargs: object) -> None:
    """Stands for a module whose arguments are copied."""


def _bound(built: Built, fn: Callable[..., object] | None = None) -> Callable[[], object]:
    return functools.partial(fn or built.fn, *built.args, **built.kwargs)


def _arguments(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.role == "argument"]


def _bytes(tensor: torch.Tensor) -> int:
    flat = flat_storage(tensor)
    return int(tensor.untyped_storage().nbytes() if flat is not None else tensor.numel() * tensor.element_size())


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu")


@torch.no_grad()
def _put_back(entries: Iterable[Entry]) -> None:
    """Copy the values that the case has over what a call left of them."""
    for entry in entries:
        copy, source = entry.copy.detach(), entry.source.detach()
        if copy.dim() and any(size > 1 and step == 0 for size, step in zip(copy.shape, _strides(copy), strict=False)):
            continue  # elements share memory: torch refuses to write there, so no call has
        copy.copy_(source)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()
