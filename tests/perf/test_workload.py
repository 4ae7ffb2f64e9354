"""Copies that take turns, and fresh arguments for calls that change them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.perf.options import MOST_COPIES, PerfOptions
from pytest_ascend.perf.workload import Workload

from .simulated import Simulated

CACHE = 1 << 20


def ready(case: Case, **options) -> Workload:
    workload = Workload(case, Simulated(), PerfOptions(**options))
    workload.first()()
    workload.settle()
    return workload


def places(workload: Workload, calls: int) -> list[int]:
    return [call.args[0].data_ptr() for call in workload.batch(calls)]


def test_there_are_as_many_copies_as_exceed_the_cache() -> None:
    x = torch.ones(CACHE // 64)  # a sixteenth of the cache
    workload = ready(Case(torch.relu, (x,)))
    assert workload.copies * x.nbytes >= 2 * CACHE
    assert workload.copies == 33
    assert len(set(places(workload, 33))) == 33


def test_each_call_gets_the_next_copy_across_blocks() -> None:
    workload = ready(Case(torch.relu, (torch.ones(4),)), rotate=3)
    found = [*places(workload, 2), *places(workload, 5), *places(workload, 2)]
    assert found == [found[i % 3] for i in range(9)]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("size", "options", "copies"),
    [(4, {}, MOST_COPIES), (CACHE, {}, 2), (4, {"rotate": False}, 1), (4, {"rotate": 7}, 7), (0, {}, 1)],
)
def test_how_many(size, options, copies) -> None:
    assert ready(Case(torch.relu, (torch.ones(size),)), **options).copies == copies


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(Simulated, "memory", lambda self: {"free": 4 * 40_000})
    assert ready(Case(torch.relu, (torch.ones(2500),))).copies == 5


def test_weights_are_not_copied_and_drive_inputs_out_when_they_are_large() -> None:
    small, large = torch.nn.Linear(8, 8), torch.nn.Linear(8, CACHE // 8)
    workload = ready(Case(small, (torch.ones(2, 8),)))
    assert workload.copies == MOST_COPIES
    assert len({id(call.func) for call in workload.batch(MOST_COPIES)}) == 1
    assert ready(Case(large, (torch.ones(2, 8),))).copies == 1


def test_a_module_among_the_arguments_is_said_to_prevent_it() -> None:
    workload = ready(Case(lambda model, x: model(x), (torch.nn.Linear(2, 2), torch.ones(1, 2))))
    assert workload.copies == 1
    assert "the arguments aren't rotated: there is a module among them" in workload.notes


def test_a_call_that_changes_its_arguments_gets_fresh_ones() -> None:
    seen = []

    def doubles(x):
        seen.append(x[0].item())
        return x.mul_(2)

    workload = ready(Case(doubles, (torch.ones(4),)), rotate=3)
    assert workload.changes
    assert workload.most_calls == 3
    for calls in (3, 1, 2, 3):
        for call in workload.batch(calls):
            call()
    assert set(seen) == {1.0}
    assert any("changes its arguments" in note for note in workload.notes)


def test_so_does_one_that_changes_an_array() -> None:
    seen = []

    def sorts(values):
        seen.append(values[0])
        values.sort()

    workload = ready(Case(sorts, (np.array([3.0, 1.0, 2.0]),)), rotate=4)
    assert workload.changes
    for _ in range(5):
        for call in workload.batch(4):
            call()
    assert set(seen) == {3.0}


def test_nan_is_no_change() -> None:
    assert not ready(Case(torch.relu, (torch.full((3,), torch.nan),))).changes
    assert not ready(Case(np.sort, (np.full(3, np.nan),))).changes


def test_the_cache_is_cleared_before_a_block_where_asked() -> None:
    workload = ready(Case(torch.relu, (torch.ones(CACHE // 16),)), clear_cache=True)
    assert workload.most_calls == workload.copies
    workload.batch(1)
    workload.batch(1)
    assert workload._scratch is not None
    assert workload._scratch.nbytes >= 2 * CACHE
    assert int(workload._scratch[0]) == 2
    plain = ready(Case(torch.relu, (torch.ones(4),)))
    plain.batch(1)
    assert plain._scratch is None


def test_the_callers_tensors_stay_what_they_are() -> None:
    x = torch.ones(4)
    workload = ready(Case(torch.Tensor.add_, (x, 1.0)))
    for call in workload.batch(5):
        call()
    assert torch.equal(x, torch.ones(4))
