"""An Ascend card on a laptop: a real torch device called `npu`, in pure Python, over host memory.

Rooms: `soc` (the chips' table) · `device` (the machine's state) · `memory` (relabelled host memory and its books) ·
`watch` (guard bands around it) · `sanitizer` (faults of all memory, by bands and the patterns of `poison`) · `raw`
(memory as a kernel has it) · `guard` (several devices) · `dispatch` (one kernel for every operator) · `numerics`
(how the chip computes) · `accepts` (what a card takes and CPU kernels refuse) · `card_ops` (what the CPU lacks) ·
`kernels`, `autocast` (registration) · `frontend` (torch's Python entry points) · `overrides` (planting faults into
kernels) · `faults` (into a whole device) · `torch_npu/` (what `import torch_npu` gives).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..visible import VISIBLE, emulated_cards

if TYPE_CHECKING:
    from .overrides import override as override
    from .raw import Raw as Raw
    from .raw import free as free
    from .raw import malloc as malloc
    from .sanitizer import Sanitizer
    from .soc import SoC
    from .watch import Watch

__all__ = [
    "EmulatorUnavailable",
    "Raw",
    "downloaded",
    "free",
    "install",
    "is_installed",
    "kernel_count",
    "live_allocations",
    "malloc",
    "override",
    "profile",
    "sanitizing",
    "sicken",
    "watching",
    "wedge",
]

MINIMUM_TORCH = (2, 13)
_installed = False


class EmulatorUnavailable(RuntimeError):
    """The emulated device can't be had in this process; the message says why and what to do."""


def is_installed() -> bool:
    """Whether this process has the emulated device."""
    return _installed


def install(soc: str = "Ascend910B", *, devices: int | None = None) -> None:
    """Make the emulated device `npu` available in this process (`x.to("npu")`, `torch.npu`, `import torch_npu`).

    A second call may change the SoC, and with it all modes; devices can be added but not taken away.

    Args:
        soc: `Ascend910A`, `Ascend310P`, `Ascend910B` or `Ascend950`.
        devices: how many cards this process sees (`npu:0`, `npu:1`, …); None: those that `ASCEND_RT_VISIBLE_DEVICES`
            lists, else two.

    Raises:
        EmulatorUnavailable: the real torch_npu is installed, torch is older than 2.13, or another backend took
            the place.
        ValueError: an unknown SoC, or fewer than one device.
    """
    global _installed
    from . import soc as chips

    chosen = chips.profile(soc)
    cards = emulated_cards(os.environ.get(VISIBLE))
    if devices is None:
        devices = len(cards)
    if devices < 1:
        raise ValueError(f"devices={devices}: an emulated machine has at least one")
    if not _installed:
        _check_place()
    from . import autocast, card_ops, engine, frontend, guard, kernels
    from . import torch_npu as package
    from .device import machine

    if _installed:
        machine.configure(chosen, devices, cards)
        return
    counted = engine.count_devices()
    machine.configure(chosen, devices, cards)
    frontend.name_backend(package.npu)
    if not guard.allow_several_devices():
        machine.devices = machine.devices[:1]
    if counted:
        with guard.reporting(engine.MOST):
            engine.start_threads()
    kernels.register()
    card_ops.register()
    autocast.register()
    frontend.patch()
    package.expose()
    _installed = True
    from . import faults

    faults.arrived()


def _check_place() -> None:
    import sys

    if "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None:
        raise EmulatorUnavailable(
            "torch_npu is installed, and the emulated NPU is never put beside it: use the card, or uninstall torch_npu"
        )
    try:
        import torch
    except ImportError:
        raise EmulatorUnavailable("the emulated npu needs PyTorch: pip install 'torch>=2.13'") from None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        raise EmulatorUnavailable(
            f"the emulated npu needs torch 2.13 or newer, this is {torch.__version__}: "
            "pip install -U torch, or use --ascend-compare=cpu"
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "npu") or hasattr(torch, "npu"):
        raise EmulatorUnavailable(
            f"another backend ({taken}) is loaded as torch's extra device: the emulated npu can't be added"
        )


def profile() -> SoC:
    """The SoC that is emulated at present."""
    from .device import machine

    return machine.soc


def kernel_count() -> int:
    """How many kernels the emulated devices have run since the process started (views and copies don't count)."""
    from .device import machine

    return machine.kernels


def downloaded() -> int:
    """How many bytes were copied from the emulated devices to the host since the process started."""
    from .device import machine

    return machine.copied["d2h"]


def live_allocations() -> int:
    """How many blocks of device memory are alive, over all devices; zero once every npu tensor is gone."""
    from .device import machine

    return sum(device.live for device in machine.devices)


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Guard bands around fresh device memory, and a pattern in it, for a while; see :mod:`.watch`."""
    from .device import machine
    from .watch import Watch

    before, around = machine.watch, machine.sanitizer
    if around is None:
        machine.watch = Watch()
    else:
        machine.watch = machine.sanitizer = around.nested()
    try:
        yield machine.watch
    finally:
        machine.watch, machine.sanitizer = before, around


@contextlib.contextmanager
def sanitizing(sanitizer: Sanitizer | None = None) -> Iterator[Sanitizer]:
    """Find memory faults for a while: see :mod:`.sanitizer`. ``faults`` of what it yields are whole at the end.

    Args:
        sanitizer: one that has looked before, and knows the blocks of then.
    """
    from .device import machine
    from .sanitizer import Sanitizer

    before, around = machine.watch, machine.sanitizer
    sanitizer = machine.watch = machine.sanitizer = Sanitizer() if sanitizer is None else sanitizer
    try:
        yield sanitizer
    finally:
        machine.watch, machine.sanitizer = before, around
        sanitizer.finish()


def sicken(code: int = 507015, device: int | None = None) -> None:
    """Plant a device error: see :func:`.faults.sicken`."""
    from .faults import sicken

    sicken(code, device)


def wedge(device: int | None = None) -> None:
    """Plant a device that hangs: see :func:`.faults.wedge`."""
    from .faults import wedge

    wedge(device)


def __getattr__(name: str) -> object:
    if name == "override":
        from .overrides import override

        return override
    if name in ("Raw", "free", "malloc"):
        from . import raw

        return getattr(raw, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
