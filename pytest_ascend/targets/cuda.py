"""A CUDA (or ROCm) device as a target, to see whether a difference is the NPU's own or any accelerator's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_ascend.targets.base import Target, TimingEvent

if TYPE_CHECKING:
    import torch

__all__ = ["CudaTarget"]


class CudaTarget(Target):
    """One CUDA device."""

    name: ClassVar[str] = "cuda"

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        import torch

        torch.cuda.synchronize(self.index)

    def manual_seed(self, seed: int) -> None:
        """Seed the CPU's generator and every CUDA device's."""
        import torch

        torch.default_generator.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor | None:
        """The device generator's state."""
        import torch

        return torch.cuda.get_rng_state(self.index)

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put the generator's state back."""
        import torch

        torch.cuda.set_rng_state(state, self.index)

    def activate(self) -> AbstractContextManager[Any]:
        """Make this the current CUDA device."""
        import torch

        return torch.cuda.device(self.index)

    def memory(self) -> Mapping[str, int]:
        """Bytes on the device."""
        import torch

        free, total = torch.cuda.mem_get_info(self.index)
        return {
            "allocated": torch.cuda.memory_allocated(self.index),
            "peak": torch.cuda.max_memory_allocated(self.index),
            "reserved": torch.cuda.memory_reserved(self.index),
            "free": free,
            "total": total,
        }

    def started(self) -> bool:
        """Whether CUDA runs already."""
        import torch

        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def allocated(self) -> int:
        """Bytes that this process's tensors take."""
        import torch

        return torch.cuda.memory_allocated(self.index)

    def release_memory(self) -> None:
        """Give back what the caching allocator keeps."""
        import torch

        torch.cuda.empty_cache()

    def limit_memory(self, share: float) -> None:
        """Let this process take no more than a share of the device's memory."""
        import torch

        torch.cuda.set_per_process_memory_fraction(share, self.index)

    def reset_peak_memory(self) -> None:
        """Start the peak afresh."""
        import torch

        torch.cuda.reset_peak_memory_stats(self.index)

    def event(self) -> TimingEvent:
        """A mark in the current stream."""
        import torch

        made: TimingEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return made

    def clock(self) -> str:
        """The card's own clock."""
        return f"events of cuda:{self.index}"

    def cache_size(self) -> int:
        """The card's L2."""
        import torch

        return int(torch.cuda.get_device_properties(self.index).L2_cache_size)

    def soc(self, initialised: bool = False) -> str | None:
        """The card's name, once the device runs."""
        import torch

        running = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        return torch.cuda.get_device_name(self.index) if initialised or running else None

    def modes(self, initialised: bool = False) -> dict[str, Any]:
        """TF32 switches, which do to float32 what HF32 does on an NPU."""
        import torch

        return {
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_conv": torch.backends.cudnn.allow_tf32,
        }

    def versions(self) -> dict[str, str]:
        """Versions of torch and of the CUDA (or HIP) toolkit it was built with."""
        import torch

        toolkit = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        return {**super().versions(), **{name: str(version) for name, version in toolkit.items() if version}}
