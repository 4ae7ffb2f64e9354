"""Every test here runs on the emulated device, and leaves modes, SoC and memory limits as it found them."""

import gc
from collections.abc import Iterator

import pytest
import torch

from pytest_ascend.targets import emulator
from pytest_ascend.targets.emulator.device import machine


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    emulator.install("Ascend910B", devices=2)
    machine.current = 0
    torch.manual_seed(0)
    yield
    emulator.install("Ascend910B", devices=2)
    machine.current = 0
    torch.set_default_device(None)


@pytest.fixture
def no_leak() -> Iterator[None]:
    gc.collect()
    before = emulator.live_allocations()
    yield
    gc.collect()
    assert emulator.live_allocations() == before, "device memory is still alive after the test"
