"""What the emulated machine is at any moment: its devices, the current one, its modes and its counters.

Everything mutable of the emulator lives in the one `machine` object; the rest of the rooms are functions over it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from .soc import DEFAULT, PROFILES, SoC
from .watch import Watch

if TYPE_CHECKING:
    from .faults import Ill
    from .sanitizer import Sanitizer

__all__ = ["Device", "Machine", "Modes", "machine"]

# A card's random stream is not the CPU's: the same seed gives other numbers there, so it does here.
_SEED_SALT = 0x41736365


@dataclass
class Modes:
    """Numeric modes that a program can switch, with the defaults torch_npu documents.

    Attributes:
        hf32_matmul: float32 matmul inputs are rounded to HF32 (`torch.npu.matmul.allow_hf32`, default False).
        hf32_conv: the same for convolution (`torch.npu.conv.allow_hf32`, default True).
        saturation: overflow becomes the largest finite value and NaN becomes 0, instead of Inf and NaN.
        compatible_impl: exact `gelu` where the chip's own is the tanh form (`TORCH_NPU_USE_COMPATIBLE_IMPL=1`).
        numerics: False makes the device compute exactly as the CPU does (for debugging the emulator itself).
    """

    hf32_matmul: bool = False
    hf32_conv: bool = True
    saturation: bool = False
    compatible_impl: bool = False
    numerics: bool = True

    @classmethod
    def of(cls, soc: SoC) -> Modes:
        """The modes in which `soc` starts, the two environment variables that torch_npu honours included."""
        saturation = soc.overflow_modes[0] == "saturation"
        if "saturation" in soc.overflow_modes and os.environ.get("INF_NAN_MODE_ENABLE") == "0":
            saturation = True
        return cls(
            hf32_conv=soc.hf32,
            saturation=saturation,
            compatible_impl=os.environ.get("TORCH_NPU_USE_COMPATIBLE_IMPL") == "1",
        )


@dataclass
class Device:
    """One emulated card: its random generator and its memory book-keeping (bytes).

    `card` is its number in the machine, which isn't `index` where a process sees some of the machine's cards.
    """

    index: int
    card: str = ""
    generator: torch.Generator = field(default_factory=torch.Generator)
    seed: int = 0
    limit: int = 0
    allocated: int = 0
    peak: int = 0
    reserved: int = 0
    reserved_peak: int = 0
    live: int = 0
    live_peak: int = 0
    allocations: int = 0
    bytes_total: int = 0
    out_of_memory: int = 0

    def manual_seed(self, seed: int) -> None:
        """Restart this device's random stream; `seed` is any Python int."""
        self.seed = seed
        self.generator.manual_seed((seed ^ _SEED_SALT) & 0xFFFF_FFFF_FFFF_FFFF)

    @contextlib.contextmanager
    def lend_stream(self) -> Iterator[None]:
        """Let CPU kernels that take no generator draw from this device's stream, the CPU's own left as it was."""
        cpu = torch.default_generator
        before = cpu.get_state()
        cpu.set_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(cpu.get_state())
            cpu.set_state(before)


class Machine:
    """The emulated host: a SoC, some devices of it, its modes, and counters of what ran."""

    def __init__(self) -> None:
        self.soc: SoC = PROFILES[DEFAULT]
        self.devices: list[Device] = []
        self.modes = Modes()
        self.kernels = 0
        self.overflow = False
        self.copied: dict[str, int] = {"h2d": 0, "d2h": 0, "d2d": 0}
        self.watch: Watch | None = None
        self.sanitizer: Sanitizer | None = None  # the watch, where it is over all memory
        self.ill: Ill | None = None  # where a fault was planted into a whole device
        self._thread = threading.local()

    def configure(self, soc: SoC, devices: int, cards: Sequence[str] = ()) -> None:
        """Become a host with `devices` cards of `soc`, in the modes in which they start; `cards`: their numbers."""
        self.soc, self.modes = soc, Modes.of(soc)
        while len(self.devices) < devices:
            index = len(self.devices)
            device = Device(index, cards[index] if index < len(cards) else str(index))
            device.manual_seed(0)
            self.devices.append(device)
        for device in self.devices:
            device.limit = soc.total_memory

    @property
    def current(self) -> int:
        """Index of this thread's current device."""
        return getattr(self._thread, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        if not 0 <= index < len(self.devices):
            raise RuntimeError(f"npu:{index} does not exist: this machine has {len(self.devices)} (emulated) devices")
        self._thread.index = index


machine = Machine()
