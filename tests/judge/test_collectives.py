"""Collectives judged by what all ranks put in: pure, without processes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_ascend.judge.collectives import MOVES, REDUCES, Call, judge
from pytest_ascend.judge.verdict import Kind

WORLD = (0, 1, 2)


def values(rank: int, dtype=torch.float32, size: int = 12) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank)).mul(4).to(dtype)


def right(kind: str, reduction: str = "sum", dtype=torch.float32) -> dict[int, list[Call]]:
    """One call of each rank, made as its definition says, by plain loops."""
    given = {rank: [values(rank, dtype)] for rank in WORLD}
    if kind in ("reduce_scatter", "scatter", "all_to_all"):
        given = {rank: [values(10 * rank + i, dtype) for i in WORLD] for rank in WORLD}
    root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else None
    calls = {}
    for rank in WORLD:
        if kind in REDUCES:
            i = rank if kind == "reduce_scatter" else 0
            total = given[0][i].clone()
            for other in WORLD[1:]:
                x = given[other][i]
                total = {"sum": total + x, "avg": total + x, "product": total * x, "max": torch.maximum(total, x)}[
                    reduction
                ]
            outputs = [total / 3 if reduction == "avg" else total]
            if kind == "reduce" and rank != root:
                outputs = [torch.full_like(total, 77)]  # nobody promises anything there
        elif kind == "broadcast":
            outputs = [given[1][0]]
        elif kind == "all_gather":
            outputs = [given[other][0] for other in WORLD]
        elif kind == "gather":
            outputs = [given[other][0] for other in WORLD] if rank == root else []
        elif kind == "scatter":
            outputs = [given[1][rank]]
        else:
            outputs = [given[other][rank] for other in WORLD]
        mine = given[rank] if kind != "scatter" or rank == root else []
        calls[rank] = [
            Call(kind, WORLD, reduction if kind in REDUCES else "", root, mine, [t.clone() for t in outputs])
        ]
    return calls


def failing(calls) -> list:
    return [one for one in judge(calls)[0] if one.verdict.outcome == "failed"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("kind", [*REDUCES, *MOVES])
def test_what_is_right_holds(kind: str, dtype: torch.dtype) -> None:
    found, notes = judge(right(kind, dtype=dtype))
    assert [one.path for one in found] == [f"rank {rank}: 1 collective" for rank in WORLD]
    assert notes == []


@pytest.mark.parametrize("reduction", ["sum", "avg", "product", "max"])
def test_every_reduction_has_a_golden(reduction: str) -> None:
    calls = right("all_reduce", reduction)
    assert failing(calls) == []
    calls[2][0].outputs[0][5] *= 1.01
    (one,) = failing(calls)
    assert one.path == "rank 2: collective 0, all_reduce"
    assert "gave rank 2 a wrong result" in one.reason


@pytest.mark.parametrize("kind", [*REDUCES, *MOVES])
def test_a_rank_that_got_something_else_is_named(kind: str) -> None:
    calls = right(kind)
    calls[1][0].outputs[0][3] += 1.0
    (one,) = failing(calls)
    assert one.path.startswith(f"rank 1: collective 0, {kind}")


def test_other_bits_that_are_right_are_told() -> None:
    calls = right("all_reduce")
    calls[1][0].outputs[0][3] *= 1 + 2**-23
    found, notes = judge(calls)
    assert all(one.verdict.outcome == "passed" for one in found)
    assert "gave ranks other bits" in notes[0]


def test_who_calls_something_else_is_named_and_what_follows_is_left_out() -> None:
    calls = right("all_reduce")
    for rank in WORLD:
        calls[rank].append(right("all_gather" if rank == 2 else "all_reduce")[rank][0])
        calls[rank].append(right("broadcast")[rank][0])
    (one,) = failing(calls)
    assert (one.path, one.kind) == ("rank 2: collective 1", Kind.structure)
    assert "rank 2 called all_gather" in one.reason
    assert "where others called all_reduce" in one.reason


def test_a_rank_that_never_called_is_named() -> None:
    calls = right("all_reduce")
    del calls[1][0]
    (one,) = failing(calls)
    assert "rank 1 never called all_reduce(sum, float32[12]), which rank 0, 2 did" in one.reason


@pytest.mark.parametrize(("change", "kind"), [(lambda t: t[:5], Kind.shape), (lambda t: t.half(), Kind.dtype)])
def test_other_shapes_and_dtypes_are_named(change, kind) -> None:
    calls = right("all_reduce")
    calls[0] = [dataclasses.replace(calls[0][0], inputs=[change(calls[0][0].inputs[0])])]
    (one,) = failing(calls)
    assert (one.kind, one.path) == (kind, "rank 0: collective 0")


def test_groups_are_matched_apart_and_what_was_not_kept_is_told() -> None:
    pair = [dataclasses.replace(right("all_reduce")[0][0], group=(0, 1)) for _ in (0, 1)]
    total = pair[0].inputs[0] * 2
    pair = [dataclasses.replace(one, outputs=[total]) for one in pair]
    calls = right("broadcast")
    for rank in (0, 1):
        calls[rank].insert(0, pair[rank])
    found, notes = judge(calls)
    assert [one.path for one in found] == ["rank 0: 2 collectives", "rank 1: 2 collectives", "rank 2: 1 collective"]
    assert notes == []
    calls[0][0] = dataclasses.replace(calls[0][0], kept=False)
    assert judge(calls)[1] == ["not compared: 1 collective, the limit of what is kept was reached"]
