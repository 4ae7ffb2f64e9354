"""Backward passes: gives torch's autograd engine threads for the emulated devices, whenever they came to be.

The engine counts devices once, at the first backward pass of the process, and starts a thread for each. What was
registered later has none, and its backward passes trip an assertion. So a backward pass is run before the emulated
device is registered, and the engine is asked again afterwards: by the function that it called itself
(``Engine::start_device_threads``, torch/csrc/autograd/engine.cpp), which is safe while there were no devices before.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["MOST", "count_devices", "start_threads"]

#: Devices may be added later, and their threads may not: so many are started.
MOST = 16

_ENGINE = "_ZN5torch8autograd6Engine18get_default_engineEv"
_START = "_ZN5torch8autograd6Engine20start_device_threadsEv"


def _library() -> Any:
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / f"lib/libtorch_cpu.{suffix}"))
        engine, start = getattr(library, _ENGINE), getattr(library, _START)
    except (OSError, AttributeError):
        return None
    engine.restype = ctypes.c_void_p
    start.argtypes = (ctypes.c_void_p,)
    return engine, start


def count_devices() -> bool:
    """Make the engine count devices now, before the emulated ones exist; False where it can't be asked again later."""
    if torch.cuda.is_available() or _library() is None:
        return False  # threads of other devices can't be started twice
    with torch.enable_grad():
        torch.autograd.backward(torch.zeros((), device="cpu", requires_grad=True).clone())
    return True


def start_threads() -> None:
    """Start a thread for every device there is now; only after :func:`count_devices` was True, and once."""
    engine, start = _library()
    start(engine())
