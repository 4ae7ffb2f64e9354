"""`torch.npu` random numbers: one stream for each device."""

from __future__ import annotations

import os as _os
from collections.abc import Iterable as _Iterable
from typing import Any as _Any

import torch as _torch

from ...device import machine as _machine
from .utils import _index_of


def manual_seed(seed: int) -> None:
    """Seed the current device's stream."""
    _machine.devices[_machine.current].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's stream."""
    for device in _machine.devices:
        device.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's stream at random."""
    manual_seed(int.from_bytes(_os.urandom(6), "little"))


def seed_all() -> None:
    """Seed every device's stream at random, all alike."""
    manual_seed_all(int.from_bytes(_os.urandom(6), "little"))


def initial_seed() -> int:
    """The current device's seed."""
    return _machine.devices[_machine.current].seed


def get_rng_state(device: _Any = "npu") -> _torch.Tensor:
    """State of one device's stream, a uint8 CPU tensor."""
    return _machine.devices[_index_of(device)].generator.get_state()


def get_rng_state_all() -> list[_torch.Tensor]:
    """States of all devices' streams."""
    return [device.generator.get_state() for device in _machine.devices]


def set_rng_state(new_state: _torch.Tensor, device: _Any = "npu") -> None:
    """Restore one device's stream."""
    _machine.devices[_index_of(device)].generator.set_state(new_state.cpu())


def set_rng_state_all(new_states: _Iterable[_torch.Tensor]) -> None:
    """Restore all devices' streams."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
