"""Fixed workloads that tell the state of the machine."""

from __future__ import annotations

import math

import pytest
import torch

import pytest_ascend.perf.sentinels as module
from pytest_ascend.perf.sentinels import ROUNDS, medians, sentinels
from pytest_ascend.targets import resolve

from . import simulated


def test_there_is_one_for_each_thing_a_workload_may_wait_for() -> None:
    before = torch.get_num_threads()
    found = sentinels(resolve("cpu"))
    assert set(found) == {"numpy", "copy", "torch", "python"}
    assert all(len(times) == ROUNDS for times in found.values())
    assert all(0 < seconds < 1 and math.isfinite(seconds) for times in found.values() for seconds in times)
    assert torch.get_num_threads() == before


def test_they_run_once_before_they_are_timed_and_in_one_thread(monkeypatch) -> None:
    threads = []
    monkeypatch.setattr(module, "_on_the_host", lambda: {"it": (3, lambda: threads.append(torch.get_num_threads()))})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sentinels(resolve("cpu"))
    finally:
        torch.set_num_threads(before)
    assert threads == [1] * 3 * (1 + ROUNDS)


def test_the_emulated_device_has_none_of_its_own() -> None:
    assert set(sentinels(resolve("emulated"))) == {"numpy", "copy", "torch", "python"}


def test_a_card_is_timed_by_its_own_clock(monkeypatch) -> None:
    simulated.restart()
    monkeypatch.setattr(module, "_on_the_card", lambda target: {"device": (3, simulated.launch)})
    found = sentinels(simulated.Simulated(), simulated.TIMER)
    assert found["device"] == pytest.approx([simulated.KERNEL] * ROUNDS, rel=0.02)


def test_what_the_host_adds_is_not_the_cards_time(monkeypatch) -> None:
    """A kernel shorter than what launching and waiting take."""
    simulated.restart()
    waits = simulated.Simulated.synchronize

    def slowly(self):
        waits(self)
        simulated.time += 1.0

    monkeypatch.setattr(simulated.Simulated, "synchronize", slowly)
    monkeypatch.setattr(module, "_on_the_card", lambda target: {"device": (3, simulated.launch)})
    found = sentinels(simulated.Simulated(), simulated.TIMER)
    assert found["device"] == pytest.approx([simulated.KERNEL] * ROUNDS, rel=0.02)


def test_what_a_card_is_given_runs_on_it() -> None:
    for calls, call in module._on_the_card(resolve("emulated")).values():
        assert calls >= 1
        assert call().device.type == "npu"


def test_the_visits_of_a_process_become_one_number() -> None:
    assert medians({"a": [1.0, 9.0]}, {"a": [2.0], "b": [4.0]}) == {"a": 2.0, "b": 4.0}
