"""A device that is ill: planted to see that a suite survives it.

A real device that hit a fault raises at the next synchronisation rather than at the operator to blame, and at every
call after that until its process ends (error 507015 and its like). One that hangs does so in native code, for every
process, until somebody resets it. Both are here: :func:`sicken` is for this process; :func:`wedge` leaves a file in the
folder that the environment variable `ASCEND_EMULATED_FAULTS` names, where processes to come find it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from .device import machine

__all__ = ["FAULTS", "Ill", "arrived", "sicken", "wedge"]

FAULTS = "ASCEND_EMULATED_FAULTS"

_MESSAGE = (
    "The Inner error is reported as above. The process exits for this inner error, and the current working operator "
    "name is unknown, for it ran asynchronously. Synchronizing the stream failed, error code is {code}"
)


class Ill:
    """Which devices of this process are ill; asked before every kernel, copy and synchronisation once one is."""

    def __init__(self) -> None:
        self.pending: dict[int, str] = {}  # device → what it will say at the next synchronisation
        self.sick: dict[int, str] = {}  # device → what it says to everything
        self.wedged: set[int] = set()

    def ask(self, index: int, waits: bool = False) -> None:
        """Raise, hang or return. `waits`: whether the caller waits for what the device was given before."""
        if index in self.wedged:
            hang()
        if waits and index in self.pending:
            self.sick[index] = self.pending.pop(index)
        if index in self.sick:
            raise RuntimeError(self.sick[index])


def _ill() -> Ill:
    if machine.ill is None:
        machine.ill = Ill()
    return machine.ill


def sicken(code: int = 507015, device: int | None = None) -> None:
    """Let a device fail as cards do: called by a kernel that is to blame.

    With `ASCEND_LAUNCH_BLOCKING=1` it raises here, in the kernel; without, the next synchronisation or copy to the
    host does. From then on everything on the device raises.

    Args:
        code: the runtime's error code.
        device: its index; None: the current one.

    Raises:
        RuntimeError: in blocking mode.
    """
    index, ill = machine.current if device is None else device, _ill()
    if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        ill.sick[index] = _MESSAGE.format(code=code)
        raise RuntimeError(ill.sick[index])
    ill.pending.setdefault(index, _MESSAGE.format(code=code))


def wedge(device: int | None = None) -> None:
    """Let a device hang from now on, in this process and in others that see the same card.

    Args:
        device: its index; None: the current one.

    Raises:
        RuntimeError: nobody said where processes look for it.
    """
    folder = os.environ.get(FAULTS)
    if not folder:
        raise RuntimeError(f"set {FAULTS} to a folder in which other processes find that the card hangs")
    index = machine.current if device is None else device
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{machine.devices[index].card}.wedged").touch()
    _ill().wedged.add(index)


def arrived() -> None:
    """Find out which of the cards that this process sees hang."""
    folder = os.environ.get(FAULTS)
    if folder and (hung := {d.index for d in machine.devices if Path(folder, f"{d.card}.wedged").exists()}):
        _ill().wedged |= hung


def hang() -> None:
    """Wait in native code for ever, with the interpreter's lock held."""
    pause = ctypes.PyDLL(None).pause
    while True:
        pause()
