"""A case made ready to be called many times on a device: copies of its arguments that take turns, and fresh ones.

A call that finds its inputs in the cache from the call before measures the cache. So there are as many copies of the
arguments as exceed it, and each call gets the next one. A call that changes its arguments in place would soon work on
other numbers (sorted ones, infinities); then each copy is put back, outside of what is timed, before it is used again.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pytest_ascend.cases.case import Built, Case
from pytest_ascend.cases.transfer import Entry, flat_storage, same_bits
from pytest_ascend.observe.capture import caller_autocast, keep_rng, on_cpu
from pytest_ascend.perf.options import MOST_COPIES, PerfOptions
from pytest_ascend.perf.quiet import quiet
from pytest_ascend.targets.base import Target

__all__ = ["MOST_BYTES", "TIMES_CACHE", "Workload", "prepared"]

#: The copies together are this many times the cache: caches don't throw out strictly what is oldest.
TIMES_CACHE = 2
#: Bytes that the copies of a case may take together, beyond the first.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class _Copy:
    """One set of arguments: the call with them, and what they were copied from.

    Attributes:
        call: calls the workload.
        tensors: anywhere among the arguments.
        arrays: of numpy, among the arguments themselves: the copy, and what it was made from.
    """

    call: Callable[[], object]
    tensors: tuple[Entry, ...]
    arrays: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, built: Built, case: Case, fn: Callable[..., object]) -> _Copy:
        tensors = tuple(entry for entry in built.entries if entry.role == "argument")
        pairs = [
            *zip(built.args, case.args, strict=True),
            *((built.kwargs[name], case.kwargs[name]) for name in case.kwargs),
        ]
        arrays = tuple((copy, source) for copy, source in pairs if isinstance(source, np.ndarray))
        return cls(functools.partial(fn, *built.args, **built.kwargs), tensors, arrays)

    @property
    def size(self) -> int:
        """Bytes that the arguments take."""
        return sum(_bytes(entry.copy) for entry in self.tensors) + sum(int(copy.nbytes) for copy, _ in self.arrays)

    def changed(self) -> bool:
        """Whether the arguments are no longer what they were copied from."""
        tensors = (same_bits(e.copy.detach().to("cpu"), e.source.detach().to("cpu")) for e in self.tensors)
        return not all(tensors) or any(copy.tobytes() != source.tobytes() for copy, source in self.arrays)

    @torch.no_grad()
    def put_back(self) -> None:
        """Copy the values that the case has over what a call left of them."""
        for entry in self.tensors:
            copy = entry.copy.detach()
            if copy.layout is torch.strided and any(
                s > 1 and not d for s, d in zip(copy.shape, copy.stride(), strict=True)
            ):
                continue  # elements share memory: torch refuses to write there, so no call has
            copy.copy_(entry.source.detach())
        for array, source in self.arrays:
            np.copyto(array, source)


class Workload:
    """A case on a device, with its copies.

    Attributes:
        case: what is called.
        changes: whether a call changes its arguments; known after :meth:`settle`.
        notes: what a reader of the timings should know.

    Raises:
        ValueError: the case can't be copied.
    """

    def __init__(self, case: Case, target: Target, options: PerfOptions) -> None:
        self.case = case
        self.target = target
        self.options = options
        self.changes = False
        self._built = case.build(target.device())
        self.notes = list(self._built.notes)
        self._copies = [_Copy.of(self._built, case, self._built.fn)]
        self._next = 0
        self._scratch: torch.Tensor | None = None

    @property
    def copies(self) -> int:
        """How many sets of arguments take turns."""
        return len(self._copies)

    @property
    def most_calls(self) -> int | None:
        """How many calls a block may have: no copy twice where each has to be fresh, or out of the cache."""
        return self.copies if self.changes or self.options.clear_cache else None

    def first(self) -> Callable[[], object]:
        """The call with the first copy."""
        return self._copies[0].call

    def settle(self) -> None:
        """After the first call: see whether it changed its arguments, and make the other copies.

        Raises:
            ValueError: an argument can't be copied.
            RuntimeError: the device has no memory for it.
        """
        self.changes = self._copies[0].changed()
        if self.changes:
            self.notes.append("the call changes its arguments: each call gets fresh ones, made outside of the timing")
        wanted = self._wanted()
        if wanted == 1:
            return
        case = self._without_the_module()
        if case is None:
            self.notes.append("the arguments aren't rotated: there is a module among them")
            return
        for _ in range(wanted - 1):
            built = case.build(self.target.device())
            self._copies.append(_Copy.of(built, case, built.fn if self.case.module is None else self._built.fn))

    def batch(self, calls: int) -> list[Callable[[], object]]:
        """The next calls, their arguments fresh and, where asked for, out of the cache."""
        turns = self._copies[self._next :] + self._copies * (calls // self.copies + 1)
        self._next = (self._next + calls) % self.copies
        if self.changes:
            for copy in turns[: min(calls, self.copies)]:
                copy.put_back()
        if self.options.clear_cache:
            self._clear()
        return [copy.call for copy in turns[:calls]]

    def _wanted(self) -> int:
        """How many copies to have."""
        rotate = self.options.rotate
        if isinstance(rotate, int) and not isinstance(rotate, bool):
            return rotate
        size, cache = self._copies[0].size, TIMES_CACHE * self.target.cache_size()
        if not size:
            return 1
        free = self.target.memory().get("free", 4 * MOST_BYTES) // 4
        most = int(min(MOST_COPIES, 1 + min(MOST_BYTES, free) // size))
        if self.most_calls is not None:
            return most  # a block has no more calls than there are copies
        held = sum(_bytes(entry.copy) for entry in self._built.entries if entry.role != "argument")
        if rotate is False or held >= cache:  # weights drive the inputs out by themselves
            return 1
        return min(most, 1 + math.ceil(cache / size))

    def _without_the_module(self) -> Case | None:
        """The case whose arguments alone are copied again; None where weights stand among the arguments."""
        modules, own = self.case.modules, self.case.module
        if not modules:
            return self.case
        within = {id(part) for part in own.modules()} if own is not None else set()
        if any(id(module) not in within for module in modules):
            return None
        return Case(_nothing, self.case.args, self.case.kwargs, api=self.case.api)

    def _clear(self) -> None:
        if self._scratch is None:
            count = TIMES_CACHE * self.target.cache_size() // 4
            self._scratch = torch.zeros(count, dtype=torch.int32, device=self.target.device())
        self._scratch.add_(1)


@contextlib.contextmanager
def prepared(case: Case, target: Target, options: PerfOptions) -> Iterator[Workload]:
    """The case on the target and, in here, the caller's modes around it and nothing that disturbs; all is put back.

    Raises:
        Refused: something watches the program that can't be switched off for a while.
        ValueError: the case can't be copied.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(keep_rng(target))
        stack.enter_context(quiet(options.threads))
        stack.enter_context(target.activate())
        default = stack.enter_context(on_cpu())
        workload = Workload(case, target, options)
        autocast = caller_autocast(target)
        if autocast is not None:
            stack.enter_context(torch.autocast(target.name, dtype=autocast))
        if default is not None and target.name != "cpu":
            stack.enter_context(default)
        yield workload


def _nothing(*args: object, **kwargs: object) -> None:
    """Stands for a module whose arguments are copied."""


def _bytes(tensor: torch.Tensor) -> int:
    if flat_storage(tensor) is not None:
        return tensor.untyped_storage().nbytes()
    return tensor.numel() * tensor.element_size()
