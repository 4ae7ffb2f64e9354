"""The gate's simulation counts what it says, and fails when the gate does."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gate
from pytest_ascend.perf import PerfVerdict, decide

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gate.py"


def test_a_short_run_holds_and_prints_every_rule() -> None:
    command = [sys.executable, str(SCRIPT), "--runs", "2", "--jobs", "1", "--profile", "quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for rule in ("two-stage", "pytest-benchmark mean:5%", "minimum > 3 %", "Mann-Whitney", "history of 10 sessions"):
        assert rule in done.stdout
    for threshold in ("1.0%", "3.0%", "5.0%", "10.0%"):
        assert f"threshold {threshold}" in done.stdout


@pytest.mark.parametrize(
    ("verdict", "missed"),
    [("ok", "0.0% of slowdowns by 3% are found"), ("regressed", "3 of 3 runs raise a false alarm")],
)
def test_a_gate_that_always_says_the_same_is_missed(monkeypatch, capsys, verdict: str, missed: str) -> None:
    def stubborn(*sides: Any, **options: Any) -> Any:
        return dataclasses.replace(decide(*sides, **options), verdict=PerfVerdict(verdict), needs_more=0)

    monkeypatch.setattr(gate, "decide", stubborn)
    tally = gate.measure("quiet", 0, 3, (0.03,), 1)
    assert any(missed in line for line in gate.show("quiet", tally))
    assert "two-stage" in capsys.readouterr().out


def test_sides_take_turns() -> None:
    """Order A B B A: the sides share a steady drift evenly."""
    noise = gate.PROFILES["quiet"]._replace(session=0, drift=0, process=0, correlated=0, jitter=0, spikes=0)
    base, other = gate.taking_turns(np.random.default_rng(0), noise, 1)
    assert base.shape == other.shape == (1, gate.OPS, gate.PAIRS, gate.TIMINGS)
    assert (base == 1).all()
    assert (other == 1).all()


def test_mann_whitney_agrees_with_its_definition() -> None:
    rng = np.random.default_rng(1)
    base, other = rng.random((3, 9)), rng.random((3, 9)) + 0.3
    u = (other[:, :, None] > base[:, None, :]).sum((1, 2))
    assert gate.mann_whitney(base, other) == pytest.approx((u - 40.5) / (81 * 19 / 12) ** 0.5)
