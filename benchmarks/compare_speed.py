"""How fast a pair of tensors is measured, beside plain numpy, ``torch.allclose`` and merely copying the memory.

    python benchmarks/compare_speed.py [--elements 100000000] [--repeats 5]

GB/s counts the bytes of both tensors, read once; of a copy, what is read and what is written. The best of the repeats
is shown with the median behind it, and by CPU time: on a busy machine these are far apart. Extra memory is the growth
of the process's peak during the run (Linux only). A naive way that needs many times the tensors' memory runs on a tenth
of the elements.
"fused" is the compiled loop (``pytest-ascend[fast]``), which large tensors take by themselves.
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


def copy(golden: torch.Tensor, actual: torch.Tensor) -> None:
    """Half as many bytes read and as many written: as many as both tensors have."""
    actual.copy_(golden)


def torch_only(golden: torch.Tensor, actual: torch.Tensor) -> None:
    """What this package does without numba."""
    measure(golden, actual, rtol=1.3e-6, atol=1e-5, fused=False)


def fused(golden: torch.Tensor, actual: torch.Tensor) -> None:
    """What it does with numba; the same as above where there is no loop for the dtypes."""
    measure(golden, actual, rtol=1.3e-6, atol=1e-5, fused=True)


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
    before, times, cpu = peak(), [], []
    for _ in range(n):
        start, start_cpu = time.perf_counter(), time.process_time()
        run(*pair)
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    best, median, own = size / min(times), size / statistics.median(times), size / min(cpu)
    extra = peak() - before
    print(
        f"{name:<48} {min(times):7.3f} s {best:6.2f} GB/s (median {median:5.2f}; {own:5.2f} per second of CPU time) "
        f"{extra:5.0f} MB extra",
        flush=True,
    )
    return best


def load_numba() -> bool:
    """Load the compiled loops and say what that costs; whether there are any."""
    try:
        import pytest_ascend.judge.fused  # noqa: F401
    except Exception as error:
        print(f"no fused back end: {error}")
        return False
    reset_peak()
    before, start = peak(), time.perf_counter()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        fused(torch.ones(1, dtype=dtype), torch.ones(1, dtype=dtype))
    print(f"loading the loops of three dtypes, once per process: {time.perf_counter() - start:.2f} s", end="")
    print(f" and {peak() - before:.0f} MB, whatever is measured")
    return True


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
    ways = {"torch": torch_only, **({"fused": fused} if load_numba() else {})}
    plain = row("numpy, whole arrays in float64 (a tenth)", naive, few, 1)
    row("torch.allclose alone", torch.allclose, (golden, actual), min(repeats, 2))
    row("reading the memory and no more", read, (golden, actual), repeats)
    limit = row("copying one into another", copy, (golden, torch.empty_like(golden)), repeats)
    best: dict[tuple[str, torch.dtype], float] = {}
    for name, way in ways.items():
        best[name, torch.float32] = row(f"{name}, float32, every element differs", way, (golden, actual), repeats)
        for dtype in (torch.float16, torch.bfloat16):
            pair = golden.to(dtype), actual.to(dtype)
            best[name, dtype] = row(f"{name}, {str(dtype)[6:]}", way, pair, repeats)
        outside = golden[: n // 2], golden[: n // 2] * 1.01
        row(f"{name}, float32, all outside tolerance (half)", way, outside, repeats)
        row(f"{name}, float32, equal (half)", way, (golden[: n // 2], golden[: n // 2].clone()), repeats)
        side = math.isqrt(n // 2)
        square = golden[: side * side].view(side, side), actual[: side * side].view(side, side)
        row(f"{name}, float32, one side transposed (half)", way, (square[0].T, square[1].T.contiguous()), repeats)
        wide = golden[: n // 2].double()
        row(f"{name}, float64 golden, float16 actual (half)", way, (wide, actual[: n // 2].half()), repeats)
        spoilt = golden[: n // 2].clone()
        spoilt[:: n // 2000] = math.nan
        row(f"{name}, float32, a thousand NaN on one side (half)", way, (spoilt, actual[: n // 2]), repeats)
    row("int64 (half)", torch_only, tuple((t[: n // 2] * 1e6).long() for t in (golden, actual)), repeats)
    for name in ways:
        figures = [best[name, dtype] for dtype in (torch.float32, torch.float16, torch.bfloat16)]
        print(
            f"{name}: {figures[0]:.2f} GB/s, {figures[0] / limit:.0%} of copying, {figures[0] / plain:.0f} x numpy; "
            f"float16 takes {figures[0] / figures[1]:.2f} and bfloat16 {figures[0] / figures[2]:.2f} x as long per byte"
        )
    print("wanted: torch >= 1 GB/s, fused >= 8 GB/s or 35% of copying, 16 bits <= 1.5 x, <= 64 MB extra")


if __name__ == "__main__":
    main()
