"""How fast a pair of tensors is measured, beside plain numpy, ``torch.allclose`` and merely reading the memory.

    python benchmarks/compare_speed.py [--elements 100000000] [--repeats 5]

GB/s counts the bytes of both tensors, read once. The best of the repeats is shown with the median behind it: on a busy
machine the two are far apart. Extra memory is the growth of the process's peak during the run (Linux only). A naive way
that needs many times the tensors' memory runs on a tenth of the elements.
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from pytest_ascend.judge.metrics import measure


def naive(golden: torch.Tensor, actual: torch.Tensor) -> None:
    """The same metrics in plain float64 numpy, one whole-array pass each."""
    x, y = golden.numpy().astype(np.float64), actual.numpy().astype(np.float64)
    d = np.abs(y - x)
    size = np.abs(x)
    _ = (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()), d.max(), d.mean(), math.sqrt((d * d).mean())
    _ = (d / size).max(), (d / size).mean(), (d <= 1e-5 + 1.3e-6 * size).mean(), (y - x).mean()


def read(golden: torch.Tensor, actual: torch.Tensor) -> None:
    """Both tensors read once, by one thread each."""
    threads = [threading.Thread(target=np.maximum.reduce, args=(t.numpy(),)) for t in (golden, actual)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ours(golden: torch.Tensor, actual: torch.Tensor) -> None:
    """What this package does."""
    measure(golden, actual, rtol=1.3e-6, atol=1e-5)


def peak() -> float:
    """Peak resident memory since the last reset in MB; NaN where the system doesn't tell."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return math.nan


def reset_peak() -> None:
    """Start counting the peak from now."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def row(
    name: str, run: Callable[[torch.Tensor, torch.Tensor], object], pair: tuple[torch.Tensor, torch.Tensor], n: int
):
    """Time one way and print its line; returns its best GB/s."""
    size = sum(t.numel() * t.itemsize for t in pair) / 1e9
    reset_peak()
    before, times = peak(), []
    for _ in range(n):
        start = time.perf_counter()
        run(*pair)
        times.append(time.perf_counter() - start)
    best, median = size / min(times), size / statistics.median(times)
    extra = peak() - before
    print(f"{name:<44} {min(times):8.3f} s {best:7.2f} GB/s (median {median:5.2f}) {extra:7.0f} MB extra", flush=True)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    n, repeats = options.elements, options.repeats
    generator = torch.Generator().manual_seed(0)
    golden = torch.randn(n, generator=generator)
    actual = torch.randn(n, generator=generator).mul_(1e-6).add_(1).mul_(golden)
    few = golden[: n // 10], actual[: n // 10]
    print(f"{n:,} elements, {torch.get_num_threads()} threads, torch {torch.__version__}, numpy {np.__version__}")
    plain = row("numpy, whole arrays in float64 (a tenth)", naive, few, 1)
    row("torch.allclose alone", torch.allclose, (golden, actual), min(repeats, 2))
    limit = row("reading the memory and no more", read, (golden, actual), repeats)
    best = row("measure, float32, every element differs", ours, (golden, actual), repeats)
    row("measure, float32, equal", ours, (golden, golden.clone()), repeats)
    side = math.isqrt(n)
    square = golden[: side * side].view(side, side), actual[: side * side].view(side, side)
    row("measure, float32, one side transposed", ours, (square[0].T, square[1].T.contiguous()), repeats)
    for dtype in (torch.float16, torch.bfloat16):
        row(f"measure, {str(dtype)[6:]}", ours, (golden.to(dtype), actual.to(dtype)), repeats)
    row(
        "measure, float64 golden, float16 actual (half)",
        ours,
        (golden[: n // 2].double(), actual[: n // 2].half()),
        repeats,
    )
    row("measure, int64 (half)", ours, tuple((t[: n // 2] * 1e6).long() for t in (golden, actual)), repeats)
    golden[:: n // 1000] = math.nan
    row("measure, float32, a thousand NaN on one side", ours, (golden, actual), repeats)
    print(f"every element differing: {best / plain:.0f} x numpy, {best / limit:.0%} of reading the memory")


if __name__ == "__main__":
    main()
