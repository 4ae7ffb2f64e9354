"""The CPU as a target: useful to try a suite out, and to compare an implementation with its reference."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, ClassVar

from pytest_ascend.targets.base import Target

if TYPE_CHECKING:
    import torch

__all__ = ["CpuTarget", "HostTarget"]


class HostTarget(Target):
    """A target whose arguments and results lie in the host's memory, and whose calls are over when they return."""

    def device(self) -> torch.device:
        """``torch.device("cpu")``, without an index, as CPU tensors carry it."""
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing to wait for."""
        return

    def manual_seed(self, seed: int) -> None:
        """Seed torch's CPU generator only, so that an accelerator beside it stays untouched."""
        import torch

        torch.default_generator.manual_seed(seed)

    def rng_state(self) -> torch.Tensor | None:
        """None: the CPU generator's state is the caller's to keep."""
        return None

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Nothing to put back."""
        return


class CpuTarget(HostTarget):
    """The CPU of this machine."""

    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        super().__init__(0, "cpu")

    def soc(self, initialised: bool = False) -> str | None:
        """The machine's architecture, such as ``x86_64``."""
        return platform.machine() or None

    def title(self, initialised: bool = False) -> str:
        """``cpu (x86_64)``."""
        soc = self.soc()
        return f"cpu ({soc})" if soc else "cpu"
