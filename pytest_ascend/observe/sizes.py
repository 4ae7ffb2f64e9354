"""The smallest size at which a function fails, found by bisection.

A kernel that is right up to 1024 rows and wrong from 1025 on has a tile, a counter or a launch limit there, and that
number is worth more to its author than any error. After a failure the arguments are cut along one dimension at a time,
the golden, the benchmark and the target run again with what is left, and the same criterion judges. Dimensions that
belong together (the rows of a matrix and of its bias) are found by trying: one argument alone, then every argument's
dimensions of that size.

Not every failure that vanishes with size is one of size. If it hangs on a value, the element that first failed also
fails among as many others as passed without it; if it hangs on a remainder (a tail that isn't a multiple of the block),
sizes between those that pass fail too. Both are told apart.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.tree import Rebuilder
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture, RunFailed
from pytest_ascend.observe.reference import Judged, Reference

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["find_size"]

#: Reruns (each of golden, benchmark and target), and seconds after which no other one is begun.
RUNS, SECONDS = 24, 2.0
#: Dimensions smaller than this have no threshold worth a search.
LEAST = 32
#: So many dimensions are tried, the longest first.
DIMENSIONS = 4
_NOT_OF_SIZE = (Kind.structure, Kind.shape, Kind.dtype, Kind.layout, Kind.unwritten, Kind.mutation)


def find_size(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """Failures with the smallest size at which they happen added to their reasons, where there is one."""
    failing = [o for o in judged.failing if o.kind not in _NOT_OF_SIZE and o.verdict is Verdict.FAIL]
    if not failing or look.case.module is not None or look.relaid or look.reference.own.drew or _indexed(look.case):
        return judged, []
    said = _Search(look).result()
    if not said:
        return judged, []
    paths = {o.path for o in failing}

    def one(output: OutputResult) -> OutputResult:
        if output.path not in paths or output.verdict is not Verdict.FAIL:
            return output
        new = dataclasses.replace(output, reason=f"{output.reason}; {said}")
        if output.path in look.settled:
            look.settled[output.path] = new
        return new

    return Judged(tuple(map(one, judged.outputs)), judged.checkpoints), []


def _indexed(case: Case) -> bool:
    """Whether integers are among the arguments: indices, lengths and offsets that point beyond what was cut.

    Not every kernel looks whether they do, and some read or write there.
    """
    return any(t.dtype is not torch.bool and not t.is_floating_point() and not t.is_complex() for t in case.tensors)


@dataclass(frozen=True)
class _Cut:
    """Dimensions that are cut together: by argument, and the size they all have."""

    size: int
    dims: Mapping[str, tuple[int, ...]]
    rank: int = 0

    def __str__(self) -> str:
        return ", ".join(f"dim {dim} of {path}" for path, dims in self.dims.items() for dim in dims)

    def count(self, n: int) -> str:
        """So many of what is cut."""
        dim = next(iter(self.dims.values()))[0]
        what = {(1, 0): "element", (2, 0): "row", (2, 1): "column"}.get((self.rank, dim), "")
        return f"{n} {what}{'s' if n != 1 else ''}" if what else f"size {n}"


class _Over(Exception):
    """No reruns or no time are left."""


@dataclass
class _Search:
    look: SecondLook
    runs: int = 0
    start: float = field(default_factory=time.monotonic)

    def result(self) -> str:
        """What a person should know of the size, or nothing."""
        for cut in self._cuts():
            try:
                if self._fails(cut, 0, 1) is not False:
                    continue
                found = self._bisect(cut)
            except _Over:
                return ""
            if found:
                return found
        return ""

    def _cuts(self) -> Iterator[_Cut]:
        """What may be cut, the longest dimensions first; an argument alone before all that have the same size."""
        arguments = {
            path: tensor
            for path, tensor in self.look.case.arguments.items()
            if path.split("[")[0] != "out" and tensor.layout is torch.strided and not tensor.is_quantized
        }
        places = [(tensor.shape[dim], path, dim) for path, tensor in arguments.items() for dim in range(tensor.dim())]
        places = sorted((place for place in places if place[0] >= LEAST), key=lambda place: -place[0])
        seen: set[int] = set()
        for size, path, dim in places[:DIMENSIONS]:
            rank = arguments[path].dim()
            yield _Cut(size, {path: (dim,)}, rank)
            if size in seen:
                continue
            seen.add(size)
            same: dict[str, tuple[int, ...]] = {}
            for one, tensor in arguments.items():
                dims = tuple(d for d in range(tensor.dim()) if tensor.shape[d] == size)
                if dims:
                    same[one] = dims
            first = {one: dims[:1] for one, dims in same.items()}
            if len(same) > 1:
                yield _Cut(size, first, arguments[next(iter(first))].dim())
            if same != first:
                yield _Cut(size, same, arguments[next(iter(same))].dim())

    def _bisect(self, cut: _Cut) -> str:
        """The largest size that passes below the smallest that fails, with what tells a threshold from the rest."""
        right, wrong = 1, cut.size
        while wrong - right > 1:
            middle = (right + wrong) // 2
            # Near a power of two there is a limit more often than elsewhere.
            round_number = 1 << (middle.bit_length() - 1)
            middle = round_number if right < round_number < wrong and round_number * 4 > wrong else middle
            fails = self._fails(cut, 0, middle)
            if fails is None:
                return ""
            right, wrong = (right, middle) if fails else (middle, wrong)
        if self._fails(cut, wrong - right, wrong) is not False:
            return f"wrong with index {wrong - 1} of {cut}, right with those before it alone, so it hangs on the values"
        smaller = {right - 1, right // 2 + 1} - {0, 1, right}
        larger = {wrong + 1, (wrong + cut.size) // 2 | 1} - {wrong}
        if any(self._fails(cut, 0, size) is not False for size in smaller) or any(
            self._fails(cut, 0, size) is False for size in larger if size < cut.size
        ):
            return f"right with {cut.count(right)} ({cut}) and wrong with {wrong}, though other sizes fall otherwise"
        return f"right up to {cut.count(right)} ({cut}), wrong from {wrong}"

    def _fails(self, cut: _Cut, start: int, stop: int) -> bool | None:
        """Whether the target fails with what lies between two indices; None where the CPU doesn't take it."""
        if self.runs >= RUNS or time.monotonic() - self.start > SECONDS:
            raise _Over
        self.runs += 1
        look = self.look
        by_id = {id(tensor): cut.dims[path] for path, tensor in look.case.arguments.items() if path in cut.dims}
        narrow = _Narrow(by_id, start, stop)
        whole = look.case
        fn = narrow.build(whole.fn, "fn")
        args = tuple(narrow.build(value, f"args[{i}]") for i, value in enumerate(whole.args))
        kwargs = {name: narrow.build(value, name, name) for name, value in whole.kwargs.items()}
        case = Case(fn, args, kwargs, whole.api)
        try:
            reference = Reference.of(case, look.setting, look.reference.criterion, look.fn)
        except (RunFailed, ValueError):
            return None
        other = dataclasses.replace(look, case=case, reference=reference, settled={}, sure=set(), calls=None)
        try:
            actual = other.run()
        except (RunFailed, ValueError):
            return True
        judged = other.rejudge(actual)
        return judged.failed and not _settles(other, actual, judged)


def _settles(look: SecondLook, actual: Capture, judged: Judged) -> bool:
    """Whether the function's own conditioning excuses every failure."""
    return not look.amplified(actual, judged)[0].failed


class _Narrow(Rebuilder):
    """The same arguments, some of them cut."""

    def __init__(self, dims: Mapping[int, Iterable[int]], start: int, stop: int) -> None:
        super().__init__()
        self._dims, self._start, self._stop = dims, start, stop

    def tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        """A tensor, cut or as it is; memory of its own where the whole has that, so that the layout stays plain."""
        if id(value) not in self._dims:
            return value
        new = value.detach()
        for dim in self._dims[id(value)]:
            new = new.narrow(dim, self._start, self._stop - self._start)
        return new.clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)
