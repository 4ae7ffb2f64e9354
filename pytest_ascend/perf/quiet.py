"""The conditions of a timing: nothing that watches the program is on, and what is changed is put back."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["Refused", "quiet", "throttled", "watched_by"]

_THROTTLE = "/sys/devices/system/cpu"
_TOOLS = {0: "a debugger", 2: "a profiler"}


class Refused(RuntimeError):
    """A workload that can't be timed as things are; the message is one sentence: what, why and what to do."""


def watched_by() -> str | None:
    """What watches the program and would be timed with it: a profiler, a recording; None when nothing does.

    A tracer (coverage, a debugger's) isn't among them: it can be switched off for a while.
    """
    if sys.getprofile() is not None:
        return "a profiler (sys.setprofile)"
    monitoring = getattr(sys, "monitoring", None)
    for tool, what in _TOOLS.items():
        if monitoring is not None and monitoring.get_tool(tool) is not None:
            return f"{what} ({monitoring.get_tool(tool)})"
    if torch._C._autograd._profiler_enabled():
        return "torch's profiler"
    if torch.is_anomaly_enabled():
        return "autograd's anomaly detection"
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]  # type: ignore[no-untyped-call]
    for mode in modes:
        kind = type(mode)
        if kind.__module__ == "torch.utils._device":  # `with torch.device(...)`: the caller's way to say where
            continue
        recording = kind.__module__.startswith("pytest_ascend.observe.")
        return "a recording (pytest_ascend.record)" if recording else f"the mode {kind.__module__}.{kind.__qualname__}"
    return None


@contextlib.contextmanager
def quiet(threads: int) -> Iterator[None]:
    """Time in here: no tracer, no garbage collection, so many threads. All of it is put back.

    Raises:
        Refused: something watches the program that can't be switched off for a while.
    """
    if (what := watched_by()) is not None:
        raise Refused(f"not timed: {what} is active and would be timed with the workload; time it without")
    tracer, before = sys.gettrace(), torch.get_num_threads()
    collects = gc.isenabled()
    if before != threads:
        torch.set_num_threads(threads)
    gc.collect(1)  # what the test has just left; all objects of torch would take a fifth of a second
    gc.disable()
    if tracer is not None:
        sys.settrace(None)
    try:
        yield
    finally:
        if tracer is not None:
            sys.settrace(tracer)
        if collects:
            gc.enable()
        if before != threads:
            torch.set_num_threads(before)


def throttled() -> int:
    """How often the CPU's cores have been slowed down for their heat so far; 0 where the system doesn't tell."""
    total: Any = 0
    for path in Path(_THROTTLE).glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            total += int(path.read_text())
    return int(total)
