"""A few fixed workloads that no commit of anyone's changes: what they take tells the state of the machine.

They are timed in every process beside its tests, so that what a whole session shares (another clock, a busy neighbour)
is known, divided out and reported apart: ``history.session_factors``. They use one thread of the host, whatever the
tests use, because threads that wait for each other on a busy machine tell of themselves; a card gets a product and a
copy of its own, in device time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from pytest_ascend.perf.blocks import take
from pytest_ascend.perf.measure import Timer, Window
from pytest_ascend.perf.quiet import quiet
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["ROUNDS", "medians", "sentinels"]

#: Blocks per workload and visit; a block takes about a millisecond on a machine of today.
ROUNDS = 15


def sentinels(target: Target, timer: Timer | None = None) -> dict[str, list[float]]:
    """Time the fixed workloads.

    Args:
        target: whose card is timed as well, where it is one.
        timer: the clock.

    Returns:
        Seconds per call, one per block, by name: ``numpy``, ``copy``, ``torch``, ``python``, and on a card ``device``
        and ``device copy`` (device time).

    Raises:
        Refused: something watches the program.
    """
    timer = timer or Timer.of()
    found: dict[str, list[float]] = {}
    with quiet(threads=1), torch.no_grad():
        for name, (calls, call) in _on_the_host().items():
            window = Window(lambda count, call=call: [call] * count, CpuTarget(), timer)  # type: ignore[misc]
            found[name] = _timed(window, calls, timer)
        if target.clock() is not None and not target.emulated:
            with target.activate():
                for name, (calls, call) in _on_the_card(target).items():
                    window = Window(lambda count, call=call: [call] * count, target, timer)  # type: ignore[misc]
                    found[name] = _timed(window, calls, timer)
    return found


def medians(*visits: Mapping[str, list[float]]) -> dict[str, float]:
    """One number of seconds for each workload, over all the visits of a process."""
    names = dict.fromkeys(name for visit in visits for name in visit)
    return {name: float(np.median([s for visit in visits for s in visit.get(name, ())])) for name in names}


def _timed(window: Window, calls: int, timer: Timer) -> list[float]:
    window(calls)
    blocks = take(window, calls, timer.now, min_rounds=ROUNDS, max_time=1e-9)
    return [(block.wall if block.device is None else block.device) / calls for block in blocks]


_Sized = tuple[int, Callable[[], Any]]


def _on_the_host() -> dict[str, _Sized]:
    """Calls per block, fixed so that every process and session times the same, and what is called."""
    numbers = np.linspace(0.0, 1.0, 1 << 14)
    into = np.empty_like(numbers)
    source = np.zeros(1 << 22, dtype=np.float64)  # 32 MiB: with where it goes, beyond most caches
    other = np.zeros_like(source)
    left = torch.linspace(-1.0, 1.0, 96 * 96).reshape(96, 96)
    return {
        "numpy": (16, lambda: np.sin(numbers, out=into)),
        "copy": (1, lambda: np.copyto(other, source)),
        "torch": (32, lambda: torch.mm(left, left)),
        "python": (4, _loop),
    }


def _on_the_card(target: Target) -> dict[str, _Sized]:
    device = target.device()
    left = torch.linspace(-1.0, 1.0, 1024 * 1024).reshape(1024, 1024).to(device, torch.float16)
    source = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    other = torch.empty_like(source)
    return {"device": (32, lambda: torch.mm(left, left)), "device copy": (8, lambda: other.copy_(source))}


def _loop() -> int:
    total = 0
    for number in range(4000):
        total += number & 7
    return total
