"""A device that works asynchronously, on a clock of its own: what a card does, without one.

Its state is the module's, because what a workload closes over is copied before it is called.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from pytest_ascend.perf.measure import Timer
from pytest_ascend.targets.base import Target

READING = 5e-8  # seconds that reading the clock takes
LAUNCH = 2e-6  # seconds of the host's to hand over a kernel
KERNEL = 1e-4  # seconds of the device's

time = 0.0
queues: dict[tuple[int, str], float] = defaultdict(float)  # device and stream → when it will be done
stream = "default"


def restart() -> None:
    global time, stream
    time, stream = 0.0, "default"
    queues.clear()


def now() -> float:
    global time
    time += READING
    return time


def launch(seconds: float = KERNEL, device: int = 0, on: str | None = None) -> None:
    """Hand a kernel to a stream and go on."""
    global time
    time += LAUNCH
    queue = (device, on or stream)
    queues[queue] = max(queues[queue], time) + seconds


def wait(device: int) -> None:
    global time
    time = max([time + READING, *(end for (index, _), end in queues.items() if index == device)])


class Event:
    def record(self) -> None:
        self.mark = max(queues[0, stream], time)

    def synchronize(self) -> None:
        global time
        time = max(time + READING, self.mark)

    def elapsed_time(self, end: Any) -> float:
        return (end.mark - self.mark) * 1e3


class Simulated(Target):
    """The first of two such devices; tensors lie on the CPU."""

    name = "cuda"

    def device(self) -> torch.device:
        return torch.device("cpu")

    def synchronize(self) -> None:
        wait(0)

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def rng_state(self) -> None:
        return None

    def set_rng_state(self, state: torch.Tensor) -> None:
        raise AssertionError("it has none")

    def event(self) -> Event:
        return Event()

    def clock(self) -> str:
        return "events of the simulated device"

    def cache_size(self) -> int:
        return 1 << 20


TIMER = Timer(now, READING)
