"""Memory that was never written, and memory that wasn't the callable's to write; found by running again.

What a kernel never writes holds whatever was there before: the right values as often as not, when the same test ran
just now. So memory that the call takes is filled with one pattern, then with another, and what differs between the two
runs was never written, or depends on what wasn't. The emulated device fills every block; on a card the calls of
``torch.empty`` and its kin are caught, which is how hand-written kernels get their outputs, and memory that an operator
takes inside isn't seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from pytest_ascend.cases.transfer import flat_storage
from pytest_ascend.judge.verdict import Kind, Verdict
from pytest_ascend.observe import guards
from pytest_ascend.observe.capture import FILL, Capture, RunFailed, run
from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.observe.reference import Judged, leaves
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["Filled", "find_unwritten", "written_outside"]

#: Another pattern: a finite number in every floating dtype.
OTHER = 0x5A
_EMPTY = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "empty_like", "empty_permuted", "new_empty")
) | {"aten::new_empty_strided"}
_FORM = (Kind.structure, Kind.shape, Kind.dtype)


class Filled(DispatchMode):
    """While active, what ``torch.empty`` and its kin return is filled with one byte; ``count`` counts them."""

    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte, self.count = byte, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _EMPTY and isinstance(result, torch.Tensor) and result.numel():
            storage = flat_storage(result)
            if storage is not None:
                self.count += 1
                whole = storage[1]
                whole.fill_(bool(self.byte & 1)) if whole.dtype is torch.bool else whole.view(torch.uint8).fill_(
                    self.byte
                )
        return result


def find_unwritten(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """Failures at elements that hold, or come from, whatever the memory held before."""
    paths = {o.path for o in judged.failing if o.kind not in (*_FORM, Kind.mutation)}
    if not paths or look.case.module is not None:
        return judged, []
    first, again = _filled(look, look.target, FILL), None
    if first is None:
        return judged, []
    other = _filled(look, look.target, OTHER)
    if other is None:
        return judged, []
    unwritten = {path: where for path, where in _differing(first, other).items() if path in paths}
    if unwritten:
        again = _filled(look, look.target, FILL)
        unsteady = {} if again is None else _differing(first, again)
        unwritten = {path: where for path, where in unwritten.items() if path not in unsteady}
    if not unwritten:
        return judged, []
    open_too = _left_open(look)
    here, there = leaves(first), leaves(other)
    for path, where in unwritten.items():
        of = where & open_too[path] if path in open_too and open_too[path].shape == where.shape else None
        if of is not None and bool((of == where).all()):
            reason = "the function leaves memory unwritten on the CPU too, so there are no values to compare"
            judged = judged.replaced(lambda o, path=path: o.path == path, Verdict.NOT_COMPARABLE, reason)  # type: ignore[misc]
            continue
        raw = _holds(here[path], FILL) & _holds(there[path], OTHER) & where
        count, what = int(raw.sum()), "were never written"
        if not count:
            count, what, raw = int(where.sum()), "depend on memory that was never written", where
        reason = f"{count} of {where.numel()} elements {what}{_place(raw)}"
        judged = look.settle(judged, {path: (Kind.unwritten, reason)})
    return judged, []


def _filled(look: SecondLook, target: Target, byte: int) -> Capture | None:
    """A run with the memory it takes filled; None where it takes none that can be filled, or raises."""
    fn: Callable[..., Any] | None = look.fn if target is not look.target else None
    relaid = look.relaid if target is look.target else None
    mode = None if _watches(target) else Filled(byte)
    try:
        capture = run(look.case, target, look.setting, relaid=relaid, fn=fn, mode=mode, fill=byte)
    except (RunFailed, ValueError):
        return None
    return None if mode is not None and not mode.count else capture


def _left_open(look: SecondLook) -> dict[str, torch.Tensor]:
    """Which elements the CPU leaves unwritten too."""
    first, other = (_filled(look, CpuTarget(), byte) for byte in (FILL, OTHER))
    return {} if first is None or other is None else _differing(first, other)


def _differing(left: Capture, right: Capture) -> dict[str, torch.Tensor]:
    """Where two captures hold other bits, by path."""
    here, there = leaves(left), leaves(right)
    found = {}
    for path in here.keys() & there.keys():
        a, b = here[path], there[path]
        if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
            continue
        apart = _bytes(a) != _bytes(b)
        where = apart.any(-1).view(a.shape)
        if bool(where.any()):
            found[path] = where
    return found


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """A row of bytes per element."""
    plain = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return plain.view(torch.uint8).view(plain.numel(), plain.element_size())


def _holds(value: torch.Tensor, byte: int) -> torch.Tensor:
    """Which elements hold nothing but one byte."""
    wanted = byte & 1 if value.dtype is torch.bool else byte
    return (_bytes(value) == wanted).all(-1).view(value.shape)


def _place(where: torch.Tensor) -> str:
    if where.dim() == 0:
        return ""
    places = where.reshape(-1).nonzero().reshape(-1)
    if where.dim() == 1 and int(places[-1]) == where.numel() - 1 and places.numel() == where.numel() - int(places[0]):
        return " (all)" if places.numel() == where.numel() else f" (the last {places.numel()})"
    first = [int(n) for n in where.nonzero()[0]]
    return f" (first at {first})"


def written_outside(look: SecondLook, actual: Capture, judged: Judged) -> Judged:
    """The judgement with a result for every place beside which the target wrote."""
    found = _beside(look, actual, judged)
    return Judged((*judged.outputs, *guards.results(found)), judged.checkpoints) if found else judged


def _beside(look: SecondLook, actual: Capture, judged: Judged) -> list[tuple[str, str]]:
    """What the device saw, else what a run with guard bands shows where that pays.

    That is after a failure, and for callables that aren't torch's own. The run may raise, for the offsets it has.
    """
    if actual.beside or look.case.modules or _watches(look.target):
        return actual.beside
    if _is_torch_s(look.case.api) and not judged.failed:
        return []
    try:
        return look.run(guard=True).beside
    except (RunFailed, ValueError):
        return []


def _watches(target: Target) -> bool:
    with target.watch() as watch:
        return watch is not None


def _is_torch_s(api: str) -> bool:
    return api.startswith("torch.") and (not api.startswith("torch.ops.") or api.startswith("torch.ops.aten."))
