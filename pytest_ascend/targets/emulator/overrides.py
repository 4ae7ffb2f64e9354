"""Planting faults: replace one kernel of the emulated device for a while."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .device import machine
from .dispatch import Kernel, is_view, kernel_of, replacements
from .raw import Raw, lending

__all__ = ["Override", "override"]

Library: Any = torch.library.Library


class Override:
    """One replaced kernel. `calls` counts how often it ran."""

    def __init__(self, op: str, kernel: Callable[..., Any], raw: bool = False) -> None:
        self.op, self.kernel, self.calls, self.raw = op, kernel, 0, raw
        self.base, _, self.overload = op.partition(".")

    def __call__(self, kernel: Kernel, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.overload and (kernel.op._overloadname != self.overload):
            return kernel.call(*args, **kwargs)
        self.calls += 1
        outs = [kwargs[name] for name in kernel.outs if name in kwargs]
        plain = {name: value for name, value in kwargs.items() if name not in kernel.outs and name != "generator"}
        targets = outs or [args[i] for i in kernel.alias if i is not None]
        if self.raw:
            return self._run_raw(kernel, args, plain, targets)
        result = self.kernel(*args, **plain)
        if not targets:
            return result
        # In-place and out= forms: the kernel's answer lands in the tensor that the caller named.
        answers = result if isinstance(result, (tuple, list)) else [result]
        for target, answer in zip(targets, answers, strict=False):
            if target is not answer:
                target.resize_(answer.shape).copy_(answer) if target.shape != answer.shape else target.copy_(answer)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _run_raw(self, kernel: Kernel, args: list[Any], kwargs: dict[str, Any], targets: list[Any]) -> Any:
        """Give the kernel addresses: where its results go, then its arguments."""
        made = [] if targets else _results_of(kernel, args, kwargs)
        outs = targets or [out for out, _ in made]
        if machine.watch is None:
            with lending() as lend:
                self.kernel(*map(lend, outs), *_raw(args, lend), **_raw(kwargs, lend))
        else:
            self.kernel(*map(Raw, outs), *_raw(args, Raw), **_raw(kwargs, Raw))
        for out, room in made:
            if room is not None and machine.watch is not None:
                machine.watch.inspect(room, out.nbytes)
        return outs[0] if len(outs) == 1 else tuple(outs)


def _raw(value: Any, make: Callable[[torch.Tensor], Raw]) -> Any:
    """A structure with addresses in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return make(value)
    if isinstance(value, dict):
        return {name: _raw(one, make) for name, one in value.items()}
    return type(value)(_raw(one, make) for one in value) if type(value) in (list, tuple) else value


def _results_of(
    kernel: Kernel, args: list[Any], kwargs: dict[str, Any]
) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Memory for an operator's results, not written yet, with its bands; its shapes are asked of the meta device."""
    meta = torch.utils._pytree.tree_map_only(torch.Tensor, _shape_only, (args, kwargs))
    try:
        result = kernel.call(*meta[0], **meta[1])
    except (RuntimeError, NotImplementedError):
        result = kernel.call(*args, **kwargs)
    shapes = result if isinstance(result, (tuple, list)) else [result]
    if not shapes or not all(isinstance(one, torch.Tensor) for one in shapes):
        raise RuntimeError(f"{kernel.name} returns no tensors: override it without raw=True")
    made: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for one in shapes:
        like, watch = torch.empty_like(one, device="meta"), machine.watch  # dense
        if watch is not None and one.numel():
            room, start = watch.room(one.nbytes, one.dtype)
            watch.offer(room)
            made.append((room.as_strided(like.shape, like.stride(), start), room))
        else:
            made.append((torch.empty_strided(like.shape, like.stride(), dtype=one.dtype, device="cpu"), None))
    return made


def _shape_only(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _operator(name: str) -> Any:
    namespace, separator, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if not separator or not packet:
        raise ValueError(f"{name!r} is not an operator's name: write it as 'aten::cumsum' or 'aten::add.Tensor'")
    try:
        found = getattr(getattr(torch.ops, namespace), packet)
    except AttributeError:
        raise ValueError(
            f"there is no operator {namespace}::{packet}: see torch.ops.{namespace} for those there are"
        ) from None
    if overload and overload not in found.overloads():
        raise ValueError(f"{namespace}::{packet} has no overload {overload!r}: it has {', '.join(found.overloads())}")
    return found


def _variants(base: str) -> list[str]:
    """The operator itself and its in-place twin, which a card serves with the same kernel."""
    namespace, _, packet = base.partition("::")
    twin = packet[:-1] if packet.endswith("_") else packet + "_"
    return [base, f"{namespace}::{twin}"] if hasattr(getattr(torch.ops, namespace), twin) else [base]


@contextlib.contextmanager
def override(op: str, kernel: Callable[..., Any], *, raw: bool = False) -> Iterator[Override]:
    """Replace one kernel of the emulated device: plant a fault, and see whether your suite catches it.

    Args:
        op: the operator, `"aten::cumsum"` (all overloads, `out=` and the in-place twin) or `"aten::add.Tensor"` (one
        overload). kernel: called with the operator's own arguments, tensors as CPU tensors that share the device's
        memory, without
            `out` and `generator`; returns CPU tensors. An in-place or `out=` call receives a copy of what it returns.

        raw: the kernel gets addresses (:class:`.raw.Raw`), as it would on a card: first where each of its results goes,
            memory that nobody has written yet, then the operator's own arguments. It returns nothing. It can read and
            write out of bounds; `--ascend-sanitize` finds it.

    Yields:
        An object whose `calls` counts how often the kernel ran.

    Raises:
        ValueError: no such operator, or one that torch decomposes before it reaches a device.
    """
    packet = _operator(op)
    base, _, overload = op.partition(".")
    if is_view(packet):
        raise ValueError(f"{base} only makes a view and has no kernel to replace")
    overloads = [
        o
        for o in (getattr(packet, name) for name in packet.overloads() if not overload or name == overload)
        if torch._C._dispatch_has_kernel(o.name())  # scalar-only overloads exist for TorchScript alone
    ]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    functional = [o for o in overloads if not any(a.is_out for a in o._schema.arguments)] or overloads
    if all(has(o.name(), "CompositeImplicitAutograd") and not has(o.name(), "PrivateUse1") for o in functional):
        hint = getattr(torch.ops.aten, "_" + base.partition("::")[2], None)
        raise ValueError(
            f"{base} never reaches a device: torch decomposes it first. Override what it becomes"
            + (
                f", probably aten::_{base.partition('::')[2]}"
                if hint is not None
                else ", e.g. aten::addmm for a linear layer"
            )
        )
    replaced = Override(op, kernel, raw)
    names = [base] if overload else _variants(base)
    before = {name: replacements.get(name) for name in names}
    # Composite kernels written in C++ run above the device; while the override lasts the device has one of its own.
    library: Any = Library(base.partition("::")[0], "IMPL")
    for o in overloads:
        if has(o.name(), "CompositeExplicitAutograd") and not has(o.name(), "PrivateUse1"):
            library.impl(o.name().partition("::")[2], kernel_of(o), "PrivateUse1")
    replacements.update(dict.fromkeys(names, replaced))
    try:
        yield replaced
    finally:
        for name, previous in before.items():
            if previous is None:
                replacements.pop(name, None)
            else:
                replacements[name] = previous
        library._destroy()
    if not replaced.calls:
        warnings.warn(f"the override of {op} was never called: nothing computed with it", stacklevel=3)
