"""Whether collectives gave every rank what they should have: the golden is computed from what all ranks put in.

Sums and products are computed in float64 and judged by ``auto`` beside the same reduction in the tensors' own dtype;
what only moves must arrive to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch

from pytest_ascend.judge.compare import judge_tree
from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict

__all__ = ["MOVES", "REDUCES", "Call", "judge"]

REDUCES = ("all_reduce", "reduce", "reduce_scatter")
MOVES = ("broadcast", "all_gather", "gather", "scatter", "all_to_all")
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True)
class Call:
    """One collective, as one rank saw it.

    Attributes:
        kind: one of ``REDUCES`` or ``MOVES``, or another name, of which nothing is known but that it was called.
        group: the ranks that take part, in the order of the group.
        reduction: ``sum``, ``avg``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor``; else empty.
        root: the rank that sends or receives alone, or None.
        inputs, outputs: dense CPU tensors, before and after. In kinds where every rank has a part of its own
            (``scatter``'s and ``reduce_scatter``'s inputs, ``gather``'s outputs, both of ``all_to_all``), one for each
            rank of the group.
        place: the line that made the call.
        kept: whether the tensors were kept; a limit may have been reached.
    """

    kind: str
    group: tuple[int, ...]
    reduction: str = ""
    root: int | None = None
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    place: str = ""
    kept: bool = True

    def __str__(self) -> str:
        """``all_reduce(sum, float32[8])``."""
        about = [self.reduction] if self.reduction else []
        about += [f"{dtype_name(t.dtype)}{list(t.shape)}" for t in self.inputs[:2]]
        about += [f"root {self.root}"] if self.root is not None else []
        return f"{self.kind}({', '.join(about)})"


def judge(calls: Mapping[int, Sequence[Call]]) -> tuple[list[OutputResult], list[str]]:
    """The outputs that failed, each named after its rank and call, then one for each rank that is right; and notes.

    Args:
        calls: of each rank, in the order it made them.
    """
    found: list[OutputResult] = []
    notes: list[str] = []
    done: dict[int, int] = dict.fromkeys(calls, 0)
    unkept = unknown = apart = 0
    for number, together in _matched(calls):
        strange = _strange(together)
        if strange is not None:
            found.append(strange(number))
            break  # whatever follows belongs to nobody
        first = next(iter(together.values()))
        if not all(call.kept for call in together.values()):
            unkept += 1
            continue
        if first.kind not in REDUCES + MOVES or (first.kind in REDUCES and not first.reduction):
            unknown += first.kind != "barrier"
            continue
        before = len(found)
        for rank, call in together.items():
            wrong = _judged(rank, number, call, together)
            found += wrong
            done[rank] += not wrong
        if len(found) == before and first.kind == "all_reduce":
            apart += not _same(together)
    for count, why in ((unkept, "the limit of what is kept was reached"), (unknown, "their kind has no golden")):
        notes += [f"not compared: {count} collective{'s' * (count != 1)}, {why}"] if count else []
    if apart:
        notes.append(f"{apart} all_reduce gave ranks other bits, each of them right: what ranks hold drifts apart")
    right = [
        OutputResult(f"rank {rank}: {count} collective{'s' * (count != 1)}", Verdict.PASS)
        for rank, count in done.items()
        if count
    ]
    return found + right, notes


def _matched(calls: Mapping[int, Sequence[Call]]) -> Iterator[tuple[int, dict[int, Call]]]:
    """Calls that belong together, in the order of the lowest rank of each: the n-th of a group is one of all its ranks.

    A rank that made fewer calls than others is missing in the last ones.
    """
    by_group: dict[tuple[int, ...], dict[int, list[tuple[int, Call]]]] = {}
    for rank, made in calls.items():
        for number, call in enumerate(made):
            by_group.setdefault(call.group, {}).setdefault(rank, []).append((number, call))
    rows: list[tuple[int, dict[int, Call]]] = []
    for members in by_group.values():
        for i in range(max(map(len, members.values()))):
            there = {rank: made[i] for rank, made in members.items() if i < len(made)}
            rows.append((min(number for number, _ in there.values()), {r: call for r, (_, call) in there.items()}))
    rows.sort(key=lambda row: row[0])
    yield from rows


def _strange(together: Mapping[int, Call]) -> _Strange | None:
    """What is wrong with who called what, before any number is looked at."""
    first = next(iter(together.values()))
    known = [rank for rank in first.group if rank in together]
    missing = [rank for rank in first.group if rank not in together]
    kinds = {rank: (call.kind, call.reduction, call.root) for rank, call in together.items()}
    if len(set(kinds.values())) > 1:
        odd = _odd_one({rank: str(kind) for rank, kind in kinds.items()})
        others = next(call for rank, call in together.items() if kinds[rank] != kinds[odd])
        reason = f"rank {odd} called {together[odd]} where others called {others}"
        return _Strange(odd, together[odd], f"{reason}{_at(together[odd])}", Kind.structure)
    if missing:
        ranks = ", ".join(map(str, known))
        reason = f"rank {missing[0]} never called {first}, which rank {ranks} did{_at(first)}"
        return _Strange(missing[0], first, reason, Kind.structure)
    if first.kind in ("all_reduce", "broadcast", "reduce", "all_gather"):
        shapes = {rank: str([tuple(t.shape) for t in call.inputs]) for rank, call in together.items()}
        dtypes = {rank: str([t.dtype for t in call.inputs]) for rank, call in together.items()}
        for what, values, kind in (("shapes", shapes, Kind.shape), ("dtypes", dtypes, Kind.dtype)):
            if len(set(values.values())) > 1 and all(call.kept for call in together.values()):
                odd = _odd_one(values)
                reason = f"rank {odd} gave other {what} than the others: {together[odd]}{_at(together[odd])}"
                return _Strange(odd, together[odd], reason, kind)
    return None


@dataclass(frozen=True)
class _Strange:
    rank: int
    call: Call
    reason: str
    kind: Kind

    def __call__(self, number: int) -> OutputResult:
        path = f"rank {self.rank}: collective {number}"
        return OutputResult(path, Verdict.FAIL, self.kind, self.reason, "fail")


def _odd_one(values: Mapping[int, str]) -> int:
    """The rank that says what fewest say; of two, the higher."""
    told = list(values.values())
    return min(values, key=lambda rank: (told.count(values[rank]), -rank))


def _at(call: Call) -> str:
    return f", at {call.place}" if call.place else ""


def _judged(rank: int, number: int, call: Call, together: Mapping[int, Call]) -> list[OutputResult]:
    golden, own = _golden(rank, call, together)
    found = []
    for i, (wanted, beside, got) in enumerate(zip(golden, own, call.outputs, strict=False)):
        if wanted is None:
            continue
        if wanted.numel() != got.numel():
            reason = f"{call} gave {got.numel()} elements where {wanted.numel()} belong{_at(call)}"
            found.append(OutputResult(_path(rank, number, i, call), Verdict.FAIL, Kind.shape, reason, "fail"))
            continue
        criterion = "exact" if call.kind in MOVES else "auto"
        yardstick = None if beside is None else beside.reshape(-1)
        for one in judge_tree(wanted.reshape(-1), got.reshape(-1), yardstick, criterion, "", got.dtype):
            if one.verdict.outcome == "failed":
                reason = f"{call} gave rank {rank} a wrong result: {one.reason}{_at(call)}"
                found.append(replace(one, path=_path(rank, number, i, call), reason=reason))
    return found


def _path(rank: int, number: int, i: int, call: Call) -> str:
    which = f"[{i}]" if len(call.outputs) > 1 else ""
    return f"rank {rank}: collective {number}, {call.kind}{which}"


_Tensors = list[torch.Tensor | None]


def _golden(rank: int, call: Call, together: Mapping[int, Call]) -> tuple[_Tensors, _Tensors]:
    """What a rank should have got, in float64 and in the tensors' own dtype; None for what nobody promises."""
    group, mine = call.group, call.group.index(rank)
    given = [together[member].inputs for member in group]
    root = None if call.root is None else group.index(call.root)
    nothing: _Tensors = [None] * len(call.outputs)
    if call.kind in REDUCES:
        if call.kind == "reduce" and mine != root:
            return nothing, nothing
        parts = [[of_rank[mine]] for of_rank in given] if call.kind == "reduce_scatter" else given
        pieces = list(zip(*parts, strict=False))
        return (
            [_reduced(call.reduction, [_wide(t) for t in piece]) for piece in pieces],
            [_reduced(call.reduction, list(piece)) for piece in pieces],
        )
    moved: _Tensors
    if call.kind == "broadcast":
        moved = list(given[root or 0])
    elif call.kind == "all_gather":
        moved = [of_rank[i] for i in range(len(call.inputs)) for of_rank in given]
    elif call.kind == "gather":
        moved = [of_rank[0] for of_rank in given] if mine == root else nothing
    elif call.kind == "scatter":
        moved = [given[root or 0][mine]] if len(given[root or 0]) > mine else nothing
    else:
        moved = [of_rank[mine] for of_rank in given]
    return moved, moved


def _wide(value: torch.Tensor) -> torch.Tensor:
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def _reduced(reduction: str, values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    flat = [value.reshape(-1) for value in values]
    if len({value.numel() for value in flat}) > 1:
        return None
    if reduction in ("sum", "avg"):
        total = reduce(torch.add, flat)
        return total if reduction == "sum" else total / len(flat) if total.is_floating_point() else total // len(flat)
    if reduction == "product":
        return reduce(torch.mul, flat)
    if reduction in ("min", "max"):
        return reduce(torch.minimum if reduction == "min" else torch.maximum, flat)
    bitwise = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}.get(reduction)
    return None if bitwise is None else reduce(bitwise, flat)


def _same(together: Mapping[int, Call]) -> bool:
    first, *others = (call.outputs for call in together.values())
    return all(
        torch.equal(a, b) or _equal_with_nan(a, b) for other in others for a, b in zip(first, other, strict=False)
    )


def _equal_with_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all()) and not math.isnan(a.numel())
