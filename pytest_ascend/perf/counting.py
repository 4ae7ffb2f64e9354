"""What one call does, seen outside of any timing: how many kernels it runs and how much memory it takes."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pytest_ascend.cases.tree import reach
from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.targets.base import Target

__all__ = ["Effort", "effort"]

# What takes or describes memory and computes and moves nothing, without a namespace.
_IDLE = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        *("detach", "detach_", "lift_fresh", "lift", "alias", "resize_", "set_", "_local_scalar_dense"),
    }
)


@dataclass(frozen=True)
class Effort:
    """What a call did.

    Attributes:
        kernels: that it ran on the device; None where there was nothing of torch's to count.
        peak_bytes: the most memory that it held at once beyond what was there before; None where nobody counts.
        peak_source: who counted, or why nobody did.
    """

    kernels: int | None
    peak_bytes: int | None
    peak_source: str


class _Work(DispatchMode):
    """Counts the operators that compute or move something on a device, while it lasts."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device.type
        self.count = 0
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen = True
        space, _, name = func._schema.name.partition("::")
        if not func.is_view and not (space == "aten" and name in _IDLE):
            values = reach(args, kwargs or {}, result)
            self.count += any(isinstance(v, torch.Tensor) and v.device.type == self.device for v in values)
        return result


def effort(call: Callable[[], object], target: Target, *, holds_tensors: bool) -> Effort:
    """Make a call twice, once to count and once to weigh.

    Args:
        call: what to call; of a workload that changes its arguments give it fresh ones.
        target: where it runs.
        holds_tensors: whether the case has tensors or modules.

    Kernels are counted by the device where it counts them itself, and by torch's dispatcher: operators of one call that
    compute or move something on the device. An operator may be several kernels to the device.
    """
    before = target.kernel_count()
    work = _Work(target.device())
    with work:
        call()
        target.synchronize()
    after = target.kernel_count()
    own = after - before if before is not None and after is not None else 0
    kernels: int | None = max(work.count, own)
    if not kernels and target.name == "cpu" and not holds_tensors and not work.seen:
        kernels = None
    peak, source = _peak(call, target, kernels)
    return Effort(kernels, peak, source)


def _peak(call: Callable[[], object], target: Target, kernels: int | None) -> tuple[int | None, str]:
    if "peak" in target.memory():
        target.synchronize()
        target.reset_peak_memory()
        held = target.memory()["allocated"]
        call()
        target.synchronize()
        return max(0, target.memory()["peak"] - held), f"the allocator of {target.name}:{target.index}"
    if kernels is not None:
        return None, "torch doesn't count what it takes on the CPU"
    with _traced() as traced:
        if not traced:
            return None, "tracemalloc is in use already"
        held = tracemalloc.get_traced_memory()[0]
        call()
        return max(0, tracemalloc.get_traced_memory()[1] - held), "tracemalloc"


@contextlib.contextmanager
def _traced() -> Iterator[bool]:
    if tracemalloc.is_tracing():
        yield False
        return
    tracemalloc.start(1)
    try:
        yield True
    finally:
        tracemalloc.stop()
