"""How much slower the emulated device is while its memory watches itself: single operators and three models.

Plain and watched runs take turns. Prints one line each, and exits with 1 where watching costs more than the limit::

    python benchmarks/sanitize.py [--limit 3.0]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

import pytest_ascend as pa


def chain(size: int) -> Callable[[], float]:
    """Six operators on a row, and its way home."""

    def run() -> float:
        x = torch.ones(size, device="npu")
        for _ in range(4):
            x = (x * 1.01 + 0.5).relu()
            x = x - x.mean()
        return x.sum().item()

    return run


def training(model: nn.Module, batch: torch.Tensor) -> Callable[[], float]:
    """A forward and a backward pass."""
    model = model.to("npu")

    def run() -> float:
        loss = model(batch.to("npu")).sum()
        loss.backward()
        model.zero_grad()
        return loss.item()

    return run


def workloads() -> Iterator[tuple[str, Callable[[], float]]]:
    for size in (10, 1_000, 100_000, 1_000_000):
        yield f"operators on {size:,} elements", chain(size)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    yield "perceptron", training(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), torch.randn(16, 64))
    yield "encoder", training(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(4, 64, 128))
    convolutions = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    yield "convolutions", training(convolutions, torch.randn(4, 3, 32, 32))


def ratio(run: Callable[[], float]) -> float:
    """The median of watched over plain time, in turns."""
    found = []
    with pa.emulator.sanitizing() as sanitizer:
        run()
    started = time.perf_counter()
    run()
    repeats = max(1, int(0.05 / (time.perf_counter() - started)))
    for _ in range(7):
        spent = []
        for context in (contextlib.nullcontext(), pa.emulator.sanitizing(sanitizer)):
            with context:
                started = time.perf_counter()
                for _ in range(repeats):
                    run()
                spent.append(time.perf_counter() - started)
        found.append(spent[1] / spent[0])
    assert not sanitizer.faults
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--limit", type=float, default=3.0)
    limit = parser.parse_args().limit
    torch.manual_seed(0)
    pa.emulator.install()
    worst = 0.0
    for name, run in workloads():
        times = ratio(run)
        worst = max(worst, times)
        print(f"{name:34} {times:.2f} times as long")
    print(f"at most {worst:.2f}, limit {limit:g}")
    return int(worst > limit)


if __name__ == "__main__":
    raise SystemExit(main())
