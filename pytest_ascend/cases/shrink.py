"""Make a failing case small and plain while it keeps failing.

Dimensions are cut first, those that belong together (the rows of a matrix and of its bias) together; then layouts
become contiguous and values 1, 0 or whole numbers. What fails is for the caller to say, who runs the case; a case that
can't be run any more has stopped failing. The search is greedy and bounded in time: what it has when time is up still
fails.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.layouts import is_plain_layout, relay
from pytest_ascend.cases.tree import Rebuilder

__all__ = ["SECONDS", "shrink", "with_tensors"]

_Dims = dict[str, tuple[int, ...]]  # an argument's path → which of its dimensions
#: After so long nothing new is tried.
SECONDS = 4.0
#: Values of so many elements are made plain one by one.
ONE_BY_ONE = 64


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float = SECONDS) -> Case:
    """The smallest case found that fails as the given one does; the case itself where none is smaller.

    Args:
        case: one that fails.
        fails: whether another case does.
        seconds: after which no other case is tried.
    """
    search = _Search(case, fails)
    if not search.attempt(case):
        return case
    search.deadline = time.monotonic() + seconds  # from here: the first run in a process may be a slow one
    try:
        if case.starts:  # what they belong to has the shape of the whole result
            search.attempt(Case(case.fn, case.args, case.kwargs, case.api))
            if search.case.starts:
                return case
        search.narrow()
        search.straighten()
        search.simplify()
    except _Over:
        pass
    return search.case


def with_tensors(case: Case, new: Mapping[int, torch.Tensor]) -> Case:
    """The same call with some of its tensors replaced, by ``id`` of the old one."""
    swap = _Swap(new)
    fn = swap.build(case.fn, "fn")
    args = tuple(swap.build(value, f"args[{i}]") for i, value in enumerate(case.args))
    kwargs = {name: swap.build(value, name, name) for name, value in case.kwargs.items()}
    return Case(fn, args, kwargs, case.api, case.starts)


class _Swap(Rebuilder):
    def __init__(self, new: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._new = new

    def tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        """The tensor's replacement, or itself."""
        return self._new.get(id(value), value)


class _Over(Exception):
    """No time is left."""


class _Search:
    """A case that fails, made smaller step by step."""

    def __init__(self, case: Case, fails: Callable[[Case], bool]) -> None:
        self.case = case
        self.deadline = math.inf
        self._fails = fails

    def attempt(self, case: Case) -> bool:
        """Take a case if it fails."""
        if time.monotonic() > self.deadline:
            raise _Over
        try:
            failed = self._fails(case)
        except Exception:  # whatever a cut does to a call, it isn't the failure that was seen
            failed = False
        if failed:
            self.case = case
        return failed

    def _replace(self, new: Mapping[str, torch.Tensor]) -> bool:
        by_id = {id(self.case.arguments[path]): tensor for path, tensor in new.items()}
        return self.attempt(with_tensors(self.case, by_id))

    def _strided(self) -> dict[str, torch.Tensor]:
        arguments = self.case.arguments.items()
        return {path: x for path, x in arguments if x.layout is torch.strided and not x.is_quantized}

    # -- sizes ----------------------------------------------------------------------------------------------------

    def narrow(self) -> None:
        """Cut dimensions until none can be cut further."""
        done = False
        while not done:
            done = True
            sizes = sorted({n for x in self._strided().values() for n in x.shape if n > 1}, reverse=True)
            for size in sizes:
                for cut in self._cuts(size):
                    done = not self._cut(cut) and done

    def _cuts(self, size: int) -> Iterator[_Dims]:
        """Dimensions of a size that may belong together: all, the first of each tensor, one alone."""
        dims = {path: tuple(d for d, n in enumerate(x.shape) if n == size) for path, x in self._strided().items()}
        dims = {path: found for path, found in dims.items() if found}
        seen: list[_Dims] = []
        together: list[_Dims] = [
            dims,
            {path: found[:1] for path, found in dims.items()},
            {p: found[-1:] for p, found in dims.items()},
        ]
        alone: list[_Dims] = [{path: (d,)} for path, found in dims.items() for d in found]
        cuts: list[_Dims] = [*together, *alone]
        for cut in cuts:
            if cut and cut not in seen:
                seen.append(cut)
                yield cut

    def _cut(self, cut: Mapping[str, tuple[int, ...]]) -> bool:
        """Cut what belongs together as far as it fails; whether anything could be cut."""

        def size() -> int:
            path, dims = next(iter(cut.items()))
            return self.case.arguments[path].shape[dims[0]]

        before = {path: self.case.arguments[path].shape for path in cut}
        if len({shape[d] for path, shape in before.items() for d in cut[path]}) > 1:  # another cut came in between
            return False
        start = size()
        if start > 1 and not self._keep(cut, 0, 1):
            step = start // 2
            while step:
                n = size()
                if step < n and (self._keep(cut, 0, n - step) or self._keep(cut, step, n)):
                    continue
                step //= 2
        return size() < start

    def _keep(self, cut: Mapping[str, tuple[int, ...]], start: int, stop: int) -> bool:
        new = {}
        for path, dims in cut.items():
            whole = self.case.arguments[path]
            part = whole.detach()
            for dim in dims:
                part = part.narrow(dim, start, stop - start)
            new[path] = _laid_like(part, whole).requires_grad_(whole.requires_grad)
        return self._replace(new)

    # -- layouts and values ---------------------------------------------------------------------------------------

    def straighten(self) -> None:
        """Make layouts contiguous."""
        for path, x in list(self._strided().items()):
            if not is_plain_layout(x):
                plain = x.detach().clone(memory_format=torch.contiguous_format)
                self._replace({path: plain.requires_grad_(x.requires_grad)})

    def simplify(self) -> None:
        """Make values plain: all of a tensor at once, then halves of it, down to single elements."""
        for path, x in list(self._strided().items()):
            if x.is_floating_point() and x.numel():
                if not (self._fill(path, 1.0) or self._fill(path, 0.0)):
                    self._round(path)
                if self.case.arguments[path].numel() <= ONE_BY_ONE:
                    self._elements(path, 0, self.case.arguments[path].numel())

    def _fill(self, path: str, value: float, start: int = 0, stop: int | None = None) -> bool:
        def filled(flat: torch.Tensor) -> torch.Tensor:
            flat[start:stop] = value
            return flat

        return self._change(path, filled)

    def _round(self, path: str) -> None:
        for digits in (0, 1, 2):
            if self._change(path, lambda flat, d=digits: torch.round(flat, decimals=d)):  # type: ignore[misc]
                return

    def _elements(self, path: str, start: int, stop: int) -> None:
        """Fill a range with 1 or 0 if it fails still, else look at its halves."""
        now = _flat(self.case.arguments[path])[start:stop]
        if bool((now == 1).all()) or bool((now == 0).all()):
            return
        if self._fill(path, 1.0, start, stop) or self._fill(path, 0.0, start, stop) or stop - start == 1:
            return
        middle = (start + stop) // 2
        self._elements(path, start, middle)
        self._elements(path, middle, stop)

    def _change(self, path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        whole = self.case.arguments[path]
        if any(stride == 0 and n > 1 for stride, n in zip(whole.stride(), whole.shape, strict=True)):
            return False  # its elements are one element
        changed = change(_flat(whole).double()).to(whole.dtype).reshape(whole.shape)
        if torch.equal(changed, whole.detach()):
            return False
        return self._replace({path: _laid_like(changed, whole).requires_grad_(whole.requires_grad)})


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.detach().reshape(-1).clone()


def _laid_like(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Values in memory of their own, laid out in the way another tensor is."""
    strides: Any = whole.stride()
    if any(stride == 0 and n > 1 for stride, n in zip(strides, whole.shape, strict=True)):
        small = part
        for dim, stride in enumerate(strides):
            if stride == 0 and part.shape[dim] > 1:
                small = small.narrow(dim, 0, 1)
        return small.clone(memory_format=torch.contiguous_format).expand(part.shape)
    if is_plain_layout(whole):
        return part.clone(memory_format=torch.contiguous_format)
    if not _dense(whole) or whole.storage_offset():
        laid = relay(part, "sliced")
        return part.clone() if laid is None else laid
    if part.stride() != strides:  # new values: in the order of the old memory
        order = sorted(range(whole.dim()), key=lambda d: -strides[d])
        back = sorted(range(whole.dim()), key=order.__getitem__)
        return part.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    return part.clone(memory_format=torch.preserve_format)


def _dense(x: torch.Tensor) -> bool:
    """Whether a tensor's elements lie in one block without gaps, in whatever order."""
    expected = 1
    for stride, n in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= n
    return True
