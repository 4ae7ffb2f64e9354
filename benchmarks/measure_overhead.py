"""What timing costs and how well it repeats: the timer's part of a block, and medians and minima of fresh processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_ascend.cases.case import Case
from pytest_ascend.perf.blocks import OVERHEAD, idle
from pytest_ascend.perf.measure import Timer, Window, measure
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.targets import resolve

PROCESSES = 6
WORKLOADS = """
import numpy as np
import pytest
import torch

def test_relu(ascend_perf):
    ascend_perf(torch.relu, torch.randn(64))

def test_softmax(ascend_perf):
    ascend_perf(torch.softmax, torch.randn(64, 1024), dim=-1)

def test_linear(ascend_perf):
    ascend_perf(torch.nn.Linear(256, 256), torch.randn(32, 256))

def test_matmul(ascend_perf):
    ascend_perf(torch.mm, torch.randn(512, 512), torch.randn(512, 512))

def test_copy(ascend_perf):
    ascend_perf(torch.clone, torch.randn(1 << 22))

def test_in_place(ascend_perf):
    ascend_perf(torch.Tensor.add_, torch.randn(4096), 1.0)
"""


def overheads() -> None:
    """Print what an empty block takes on each target, and how much of a real block that is."""
    import torch

    timer = Timer.of()
    print(f"the clock's step: {timer.resolution * 1e9:.0f} ns; wanted: at most {OVERHEAD:.1%} of a block")
    for spec in ("cpu", "emulated"):
        target = resolve(spec)
        empty = idle(Window(lambda calls: [], target, timer))
        print(f"{spec}: a block without calls takes {empty.wall * 1e9:.0f} ns of wall time", end="")
        print("" if empty.device is None else f", {empty.device * 1e9:.0f} ns between the events")
        for size in (4, 1 << 12, 1 << 20):
            found = measure(Case(torch.relu, (torch.randn(size),)), target, PerfOptions(max_time=0.2), timer)
            median = statistics.median(found.seconds)
            print(
                f"{spec}: relu of {size} numbers: {median * 1e6:.3g} us per call, {found.calls_per_block} calls per "
                f"block, {found.copies} copies, timer {found.overhead:.4%}, warm after {found.warmup_calls} calls"
            )


def repeatability() -> None:
    """Time some workloads in fresh processes; print how the processes' medians and minima differ."""
    seen: dict[str, list[list[float]]] = {}
    sentinels: dict[str, list[float]] = {}
    took = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_workloads.py").write_text(WORKLOADS)
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
        for number in range(PROCESSES):
            path = Path(folder, f"{number}.json")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
            command += ["--ascend-compare=cpu", f"--ascend-perf-child={path}", "test_workloads.py"]
            begin = time.perf_counter()
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - begin)
            file = json.loads(path.read_text())
            for call in file["calls"]:
                assert not call["unusable"], call["unusable"]
                seen.setdefault(call["nodeid"].rpartition("::")[2], []).append(call["metrics"]["wall"])
            for name, seconds in file["sentinels"].items():
                sentinels.setdefault(f"sentinel {name}", []).append(seconds)
    print(f"{PROCESSES} processes, {statistics.median(took):.1f} s each; spread: (largest - smallest) / median")
    for name, processes in seen.items():
        medians, minima = [statistics.median(p) for p in processes], [min(p) for p in processes]
        line = f"{name:18} {statistics.median(medians) * 1e6:10.3g} us, spread of medians {spread(medians):6.1%}"
        print(f"{line}, of minima {spread(minima):6.1%}, {len(processes[0])} blocks")
    for name, values in sentinels.items():
        print(f"{name:18} {statistics.median(values) * 1e6:10.3g} us, spread of medians {spread(values):6.1%}")


def spread(values: list[float]) -> float:
    """The range of some numbers as a fraction of their median."""
    return (max(values) - min(values)) / statistics.median(values)


if __name__ == "__main__":
    overheads()
    repeatability()
