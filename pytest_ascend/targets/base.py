"""What every target offers, and the words for a target that isn't there. Torch-free at import."""

from __future__ import annotations

import abc
import contextlib
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["MemoryFault", "MemoryWatch", "Target", "TargetUnavailable", "TimingEvent", "Trespass", "host_cache_size"]

_CACHES = "/sys/devices/system/cpu/cpu0/cache"
_CACHE = 32 << 20  # where the system doesn't tell


@dataclass(frozen=True)
class Trespass:
    """Bytes beside a block of device memory that something wrote.

    Attributes:
        address, size: of the block, in bytes.
        first, last: which bytes, counted from the block's start: negative before it, from ``size`` on behind it.
    """

    address: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryFault:
    """A fault that a device found in its own memory.

    Attributes:
        kind: ``illegal write``, ``illegal read``, ``uninitialized read``, ``illegal free`` or ``leak``.
        direction: ``read``, ``write`` or ``""``.
        op: the operator that did it; ``""`` where that wasn't seen.
        address, size: bytes.
        region: the block's first address and the one behind its last.
        detail: what exactly, in words.
        allocated: which operator and line the block is from.
        frames: source lines, the kernel's own first.
        count: how often.
    """

    kind: str
    direction: str
    op: str
    address: int | None
    size: int | None
    region: tuple[int, int] | None
    detail: str
    allocated: str
    frames: tuple[str, ...]
    count: int = 1


class MemoryWatch(Protocol):
    """A device that watches its own memory.

    Attributes:
        fill: the byte that fresh blocks are filled with; None leaves them as they are.
    """

    fill: int | None

    def found(self) -> list[Trespass]:
        """What was written beside blocks since it was last asked."""


class TimingEvent(Protocol):
    """A mark in a device's queue of work, which notes the time when the device reaches it."""

    def record(self) -> None:
        """Put the mark behind what the current stream was given so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this mark to another one."""


def host_cache_size() -> int:
    """Bytes of the CPU's last-level cache, as far as one core sees it; 32 MiB where the system doesn't tell."""
    found = []
    for path in Path(_CACHES).glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            text = path.read_text().strip()
            found.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]])
    return max(found, default=_CACHE)


class TargetUnavailable(RuntimeError):
    """The asked-for target can't be had on this machine; the message says why and what to do, in one sentence."""


class Target(abc.ABC):
    """A place where code runs: one device.

    Attributes:
        name: torch's device type: ``npu``, ``cuda`` or ``cpu``.
        index: which device of that type.
        emulated: whether the device only exists in software.
        spec: the string that resolves to this target again.
    """

    name: ClassVar[str]
    emulated: bool = False

    def __init__(self, index: int = 0, spec: str = "") -> None:
        self.index = index
        self.spec = spec or f"{self.name}:{index}"

    def device(self) -> torch.device:
        """The torch device; making one doesn't initialise anything."""
        import torch

        return torch.device(self.name, self.index)

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished everything it was given; errors of earlier calls surface here."""

    @abc.abstractmethod
    def manual_seed(self, seed: int) -> None:
        """Seed the CPU's and this device's default generators."""

    @abc.abstractmethod
    def rng_state(self) -> torch.Tensor | None:
        """The device generator's state, or None where it has none of its own."""

    @abc.abstractmethod
    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back a state that :meth:`rng_state` returned."""

    def activate(self) -> AbstractContextManager[Any]:
        """A context in which this is the current device of its type."""
        return contextlib.nullcontext()

    def memory(self) -> Mapping[str, int]:
        """Device memory in bytes: ``allocated``, ``peak``, ``reserved``, ``free``, ``total``, as far as known."""
        return {}

    def reset_peak_memory(self) -> None:
        """Start the peak of :meth:`memory` afresh."""
        return

    def started(self) -> bool:
        """Whether the device runs already, so that asking it something doesn't start it."""
        return True

    def allocated(self) -> int:
        """Bytes of device memory that this process's tensors take; 0 where that can't be known."""
        return 0

    def release_memory(self) -> None:
        """Give back memory that the allocator keeps and no tensor takes."""
        return

    def limit_memory(self, share: float) -> None:
        """Let this process take no more than a share (0 to 1) of the device's memory, where that can be said."""
        return

    def kernel_count(self) -> int | None:
        """How many kernels the device has run so far, or None where that can't be known."""
        return None

    def downloads(self) -> int | None:
        """How many bytes the device has handed to the CPU so far, or None where that can't be known."""
        return None

    def pool(self) -> list[tuple[int, int]]:
        """Address and bytes of what the device's memory pool has in use; empty without a pool that tells."""
        return []

    def watch(self) -> AbstractContextManager[MemoryWatch | None]:
        """A context in which the device watches its memory, as the emulated one does; None where it can't."""
        return contextlib.nullcontext(None)

    def event(self) -> TimingEvent | None:
        """A new mark for the device's queue, or None where there is no queue: calls are over when they return."""
        return None

    def clock(self) -> str | None:
        """What the device's events read, in words; None without events."""
        return None

    def cache_size(self) -> int:
        """Bytes of the last-level cache that the device's memory is read through."""
        return host_cache_size()

    def soc(self, initialised: bool = False) -> str | None:
        """The chip's family, such as ``Ascend910B``, or None when unknown. Asking initialises a card: see describe."""
        return None

    def modes(self, initialised: bool = False) -> dict[str, Any]:
        """Numeric modes that change results, as far as known: ``hf32_matmul``, ``hf32_conv``, ``overflow_mode``, ..."""
        return {}

    def switches(self) -> Mapping[str, str]:
        """Documented modes that change results and are on: how to switch each off, to what it is."""
        return {}

    def without(self, *switches: str) -> AbstractContextManager[Any]:
        """A context in which these keys of :meth:`switches` are off."""
        return contextlib.nullcontext()

    def versions(self) -> dict[str, str]:
        """Versions of what computes, by name."""
        import torch

        return {"torch": torch.__version__}

    def describe(self, initialised: bool = False) -> dict[str, Any]:
        """What results have to be read with: device, soc, emulated, versions and numeric modes.

        Args:
            initialised: the device may be initialised to ask it. False by default, because a process that has
                initialised an NPU can't fork any more, and a controller of test workers must not touch it at all;
                what only a running device can tell is then left out, unless the device already runs.
        """
        return {
            "device": f"{self.name}:{self.index}" if self.name != "cpu" else "cpu",
            "soc": self.soc(initialised),
            "emulated": self.emulated,
            "versions": {**self.versions(), "python": platform.python_version()},
            "modes": self.modes(initialised),
        }

    def title(self, initialised: bool = False) -> str:
        """One line for a person, such as ``npu:0 (emulated Ascend910B)``."""
        soc = self.soc(initialised)
        words = " ".join(word for word in ("emulated" if self.emulated else "", soc or "") if word)
        return f"{self.name}:{self.index}" + (f" ({words})" if words else "")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"
