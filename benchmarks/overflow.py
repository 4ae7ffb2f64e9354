"""How much slower training is while it is watched for overflows: a small transformer, forward and backward.

Plain and watched steps take turns in one run, so that what else the machine does slows both. Prints one line per model
and exits with 1 where watching costs more than the limit::

    python benchmarks/overflow.py [--device npu] [--steps 10] [--limit 2.0]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import pytest_ascend as pa


def transformer(width: int, layers: int) -> nn.Module:
    """An encoder with 4 heads and feed-forward layers of four times its width, in training mode, without dropout."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def step(model: nn.Module, batch: torch.Tensor, autocast: bool) -> Callable[[], None]:
    """A forward and a backward pass."""
    kind = batch.device.type

    def run() -> None:
        model.zero_grad()
        with torch.autocast(kind, dtype=torch.float16, enabled=autocast):
            loss = model(batch).square().mean()
        (loss * 1024.0).backward()

    return run


def ratio(plain: Callable[[], None], model: nn.Module, steps: int) -> dict[str, Any]:
    """Median seconds of a plain and of a watched step, taking turns; and what the watch did per step."""
    plain()
    times: dict[str, list[float]] = {"plain": [], "watched": []}
    watches = []
    for _ in range(steps):
        start = time.perf_counter()
        plain()
        times["plain"].append(time.perf_counter() - start)
        with pa.watch_overflow(model) as watch:
            plain()  # the device is tried out once per watch
            operators, waits = watch.operators, watch.waits
            start = time.perf_counter()
            plain()
            found = len(watch.findings)
            times["watched"].append(time.perf_counter() - start)
        watches.append((watch.operators - operators, watch.waits - waits, found))
    medians = {name: statistics.median(values) for name, values in times.items()}
    operators, waits, found = watches[-1]
    return {
        **medians,
        "ratio": statistics.median(w / p for p, w in zip(times["plain"], times["watched"], strict=True)),
        "operators": operators,
        "waits": waits,
        "found": found,
    }


def main() -> int:
    """Measure, print and compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="npu", help="cpu, npu (emulated where there is no card) or cuda")
    parser.add_argument("--steps", type=int, default=10, help="steps of each kind")
    parser.add_argument("--limit", type=float, default=2.0, help="the slow-down that fails")
    options = parser.parse_args()
    if options.device == "npu" and not hasattr(torch, "npu"):
        pa.emulator.install()
    torch.manual_seed(0)
    worst = 0.0
    for width, layers, autocast in ((128, 4, False), (128, 4, True), (64, 4, False), (80, 12, False)):
        model = transformer(width, layers).to(options.device)
        batch = torch.randn(8, 128, width).to(options.device)
        made = ratio(step(model, batch, autocast), model, options.steps)
        worst = max(worst, made["ratio"])
        name = f"{layers} layers of {width}, batch 8 x 128, {'float16 autocast' if autocast else 'float32'}"
        print(
            f"{name}: plain {made['plain'] * 1e3:.1f} ms, watched {made['watched'] * 1e3:.1f} ms, ratio "
            f"{made['ratio']:.2f}; {made['operators']} operators, {made['waits']} waits, {made['found']} findings"
        )
    print(f"worst ratio {worst:.2f}, limit {options.limit:.2f}")
    return int(worst > options.limit)


if __name__ == "__main__":
    raise SystemExit(main())
