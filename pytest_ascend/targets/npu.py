"""The NPU as a target: one class for a card and for the emulated device.

It calls ``torch.npu.*`` only, and there only names that torch_npu has (``tests/data/torch_npu_names.txt`` lists them,
a test holds this file to the list). Whether a card or the emulator answers is none of its business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_ascend.targets.base import MemoryWatch, Target, TimingEvent

if TYPE_CHECKING:
    import torch

__all__ = ["SOC_FAMILIES", "NpuTarget", "overflow_flag", "saturates", "soc_family"]

SOC_FAMILIES: tuple[tuple[range, str], ...] = (
    (range(100, 105), "Ascend910A"),
    (range(200, 206), "Ascend310P"),
    (range(220, 226), "Ascend910B"),
    (range(240, 244), "Ascend310B"),
    (range(250, 257), "Ascend910_93"),
    (range(260, 261), "Ascend950"),
)
"""torch_npu's integer SoC versions (``torch_npu.npu.get_soc_version()``) and the chip families they stand for."""

# Ascend910B's L2 (l2_size in CANN's platform_config): the largest of the family, so enough to overflow any of them.
_L2 = 192 << 20


def soc_family(version: int) -> str:
    """The chip family of an integer SoC version; ``SoC 999`` for one this table doesn't know yet."""
    return next((family for versions, family in SOC_FAMILIES if version in versions), f"SoC {version}")


def _npu() -> Any:
    """The module ``torch.npu``, which torch_npu or the emulator puts there at run time."""
    import torch

    return torch.npu  # type: ignore[attr-defined]


class NpuTarget(Target):
    """One NPU, real or emulated.

    Args:
        index: which device, counted among the visible ones.
        emulated: whether the emulator provides it.
        kernels: for the emulated device, a function that counts the kernels run so far.
        downloads: for the emulated device, a function that counts the bytes copied to the CPU so far.
        watching: for the emulated device, a context in which it watches its memory.
        spec: the string that resolves to this target.
    """

    name: ClassVar[str] = "npu"

    def __init__(
        self,
        index: int = 0,
        *,
        emulated: bool = False,
        kernels: Callable[[], int] | None = None,
        downloads: Callable[[], int] | None = None,
        watching: Callable[[], AbstractContextManager[MemoryWatch]] | None = None,
        spec: str = "",
    ) -> None:
        super().__init__(index, spec)
        self.emulated = emulated
        self._kernels = kernels
        self._downloads = downloads
        self._watching = watching

    def synchronize(self) -> None:
        """Wait for all streams of the device; an error of an earlier asynchronous call is raised here."""
        _npu().synchronize(self.index)

    def manual_seed(self, seed: int) -> None:
        """Seed the CPU's generator and every NPU's."""
        import torch

        torch.default_generator.manual_seed(seed)
        _npu().manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor | None:
        """The device generator's state."""
        state: torch.Tensor = _npu().get_rng_state(self.index)
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put the generator's state back."""
        _npu().set_rng_state(state, self.index)

    def activate(self) -> AbstractContextManager[Any]:
        """Make this the current NPU."""
        context: AbstractContextManager[Any] = _npu().device(self.index)
        return context

    def memory(self) -> Mapping[str, int]:
        """Bytes on the device."""
        free, total = _npu().mem_get_info(self.index)
        return {
            "allocated": _npu().memory_allocated(self.index),
            "peak": _npu().max_memory_allocated(self.index),
            "reserved": _npu().memory_reserved(self.index),
            "free": free,
            "total": total,
        }

    def reset_peak_memory(self) -> None:
        """Start the peak afresh."""
        _npu().reset_peak_memory_stats(self.index)

    def started(self) -> bool:
        """Whether the card runs already; the emulated one always does."""
        return self._may_ask(False)

    def allocated(self) -> int:
        """Bytes that this process's tensors take."""
        return int(_npu().memory_allocated(self.index))

    def release_memory(self) -> None:
        """Give back what the caching allocator keeps."""
        _npu().empty_cache()

    def limit_memory(self, share: float) -> None:
        """Let this process take no more than a share of the device's memory."""
        _npu().set_per_process_memory_fraction(share, self.index)

    def kernel_count(self) -> int | None:
        """Kernels the emulated device has run; None on a card, which doesn't tell."""
        return self._kernels() if self._kernels is not None else None

    def downloads(self) -> int | None:
        """Bytes the emulated device has handed to the CPU; None on a card, which doesn't tell."""
        return self._downloads() if self._downloads is not None else None

    def pool(self) -> list[tuple[int, int]]:
        """What torch_npu's caching allocator has in use; nothing on the emulated device, which caches nothing."""
        if self.emulated or not self.started():
            return []
        found = []
        for segment in _npu().memory_snapshot():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"].startswith("active"):
                    found.append((int(block.get("address", address)), int(block["size"])))
                address += block["size"]
        return found

    def watch(self) -> AbstractContextManager[MemoryWatch | None]:
        """The emulated device watches its memory; a card can't."""
        return super().watch() if self._watching is None else self._watching()

    def event(self) -> TimingEvent:
        """A mark in the current stream."""
        made: TimingEvent = _npu().Event(enable_timing=True)
        return made

    def clock(self) -> str:
        """The card's own clock, or the host's: the emulated device has none."""
        return "the host's clock, by the emulated device's events" if self.emulated else f"events of npu:{self.index}"

    def cache_size(self) -> int:
        """A card's L2; the emulated device's memory is the host's."""
        return super().cache_size() if self.emulated else _L2

    def soc(self, initialised: bool = False) -> str | None:
        """The chip's family, once the device runs or may be started."""
        if not self._may_ask(initialised):
            return None
        return soc_family(int(_npu().get_soc_version()))

    def modes(self, initialised: bool = False) -> dict[str, Any]:
        """HF32 switches and the overflow mode (``inf_nan`` or ``saturation``), once the device runs."""
        if not self._may_ask(initialised):
            return {}
        modes: dict[str, Any] = {"hf32_matmul": _npu().matmul.allow_hf32, "hf32_conv": _npu().conv.allow_hf32}
        with contextlib.suppress(AttributeError):  # an older torch_npu can't tell
            modes["overflow_mode"] = "inf_nan" if _npu().utils.is_support_inf_nan() else "saturation"
        return modes

    def switches(self) -> dict[str, str]:
        """HF32 in convolution and matmul, and the chip's own form of gelu, where they are on."""
        found = {}
        if _npu().conv.allow_hf32:
            found["torch.npu.conv.allow_hf32 = False"] = "HF32 (11 mantissa bits) in convolution"
        if _npu().matmul.allow_hf32:
            found["torch.npu.matmul.allow_hf32 = False"] = "HF32 (11 mantissa bits) in matmul"
        with contextlib.suppress(AttributeError):  # an older torch_npu has no such switch
            if not _npu().are_compatible_impl_enabled():
                found["torch.npu.use_compatible_impl(True)"] = "the chip's own form of gelu (tanh)"
        return found

    @contextlib.contextmanager
    def without(self, *switches: str) -> Iterator[None]:
        """These modes off for a while."""
        conv, matmul = _npu().conv.allow_hf32, _npu().matmul.allow_hf32
        try:
            for switch in switches:
                if switch.startswith("torch.npu.conv"):
                    _npu().conv.allow_hf32 = False
                elif switch.startswith("torch.npu.matmul"):
                    _npu().matmul.allow_hf32 = False
                else:
                    _npu().use_compatible_impl(True)
            yield
        finally:
            _npu().conv.allow_hf32, _npu().matmul.allow_hf32 = conv, matmul
            if "torch.npu.use_compatible_impl(True)" in switches:
                _npu().use_compatible_impl(False)

    def versions(self) -> dict[str, str]:
        """Versions of torch and, on a card, of torch_npu and CANN."""
        versions = super().versions()
        if self.emulated:
            return versions
        with contextlib.suppress(metadata.PackageNotFoundError):  # built from source and never installed
            versions["torch_npu"] = metadata.version("torch_npu")
        with contextlib.suppress(Exception):  # an older CANN can't tell; a missing version must not stop a test
            versions["cann"] = str(_npu().utils.get_cann_version("CANN"))
        return versions

    def _may_ask(self, initialised: bool) -> bool:
        """Whether the device may be asked: asking starts a card, and a started card forbids forking."""
        return initialised or self.emulated or bool(_npu().is_initialized())


def overflow_flag() -> bool:
    """Whether the NPU has noted an overflow since its flag was cleared; only for a device that saturates.

    It is read and never cleared: loss scaling on such a device lives by it.
    """
    return bool(_npu().get_npu_overflow_flag())


def saturates() -> bool:
    """Whether the NPU makes the largest finite number of what overflows, rather than Inf; asked of a running device."""
    try:
        return not _npu().utils.is_support_inf_nan()
    except AttributeError:  # an older torch_npu can't tell
        return False
