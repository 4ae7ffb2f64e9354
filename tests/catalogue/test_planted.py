"""Faults planted in single operators are noticed by the cases of their APIs; the benchmark plants all of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.catalogue import faults
from pytest_ascend.cases.catalogue.caselist import load

CHOSEN = ("exp", "_softmax", "upsample_nearest2d", "floor", "tanh", "native_layer_norm", "sqrt", "add", "gather")


@pytest.fixture(scope="module")
def listed() -> Any:
    return load()


def test_forty_operators_and_twenty_conditions() -> None:
    assert len({fault.op for fault in faults.FAULTS}) >= 40
    assert sum(fault.only is not None for fault in faults.FAULTS) >= 20


@pytest.mark.parametrize("op", CHOSEN)
def test_a_planted_fault_is_found(listed, op: str) -> None:
    (fault,) = (one for one in faults.FAULTS if one.op == op)
    assert faults.found(fault, listed) is not None


def test_without_a_fault_nothing_fails(listed) -> None:
    assert [by for api in ("torch.exp", "torch.gather") if (by := faults.first_failure(api, listed))] == []


@pytest.mark.whole
def test_the_command_finds_a_fault_and_leaves_a_small_file_that_fails_alone(tmp_path) -> None:
    fault = next(one for one in faults.FAULTS if one.op == "exp")
    found = faults.by_command(fault, tmp_path)
    assert found.problem == ""
    assert "transposed" in found.case
    assert (found.broken, found.healthy) == (1, 0)
    assert found.elements is not None
    assert found.elements <= faults.LARGEST


@pytest.mark.whole
def test_the_command_misses_what_no_case_shows(tmp_path) -> None:
    never = faults.Fault("exp", "torch.linspace", faults.scaled)
    assert "not found by" in faults.by_command(never, tmp_path).problem
