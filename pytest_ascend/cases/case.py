"""A case: one callable with concrete inputs, and its copies where it runs."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pytest_ascend.cases.transfer import Copier, Entry, Room
from pytest_ascend.cases.tree import Rebuilder, reach

__all__ = ["Built", "Case", "api_name"]


@dataclass(frozen=True)
class Built:
    """A case's copy on one device, ready to be called once.

    Attributes:
        fn, args, kwargs: what to call, with what.
        module: the copied module under test, or None when the callable isn't one (or a module's method).
        entries: every tensor that was copied.
        notes: what had to be changed to make the copy.
        rooms: the guarded storages, when they were asked for.
        starts: the gradients that a backward pass starts from, as the case has them.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: nn.Module | None
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    rooms: tuple[Room, ...] = ()
    starts: tuple[torch.Tensor | None, ...] = ()

    def call(self) -> Any:
        """Run it."""
        return self.fn(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Case:
    """One callable with concrete inputs.

    Attributes:
        fn: a function, module, bound method or any other callable.
        args, kwargs: its arguments: any nesting of containers, objects, tensors, modules and plain values.
        api: what it is called in reports.
        starts: the gradients that a backward pass starts from, one for each tensor that is returned, or for each that
            can have one; None where there is none. Without any, numbers of the case's seed.
        remark: looks at what the CPU returned in the case's own dtype, and says what a reader of the result should
            know, or ``""``.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    api: str = ""
    starts: tuple[torch.Tensor | None, ...] = ()
    remark: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"{self.fn!r} can't be called: give a function or a module, then its arguments")
        if not self.api:
            object.__setattr__(self, "api", api_name(self.fn))

    @property
    def module(self) -> nn.Module | None:
        """The module under test: the callable itself, or the module whose method it is."""
        owner = self.fn if isinstance(self.fn, nn.Module) else getattr(self.fn, "__self__", None)
        return owner if isinstance(owner, nn.Module) else None

    @functools.cached_property
    def arguments(self) -> dict[str, torch.Tensor]:
        """The tensors among the arguments and closed-over variables by path, without those of modules."""
        paths = _Paths()
        if self.module is None:
            paths.build(self.fn, "fn")
        for i, value in enumerate(self.args):
            paths.build(value, f"args[{i}]")
        for name, value in self.kwargs.items():
            paths.build(value, name, name)
        return paths.found

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors of :attr:`arguments`."""
        return tuple(self.arguments.values())

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules involved: the one under test first, then those among arguments and closed-over variables."""
        return tuple(found for found in reach(self.fn, self.args, dict(self.kwargs)) if isinstance(found, nn.Module))

    @property
    def root(self) -> nn.Module | None:
        """The module whose layers are looked at: the one under test, else the only one there is."""
        if self.module is not None:  # not by its truth: a module may have a length of 0, or none
            return self.module
        return self.modules[0] if len(self.modules) == 1 else None

    @property
    def is_model(self) -> bool:
        """Whether there are layers that may stand for more than one operator: not one layer of ``torch.nn`` alone."""
        modules = self.modules
        if len(modules) != 1 or modules[0] is not self.module:
            return bool(modules)
        return any(True for _ in modules[0].children()) or not type(modules[0]).__module__.startswith("torch.nn.")

    @property
    def dtype(self) -> str:
        """The dtype of the case: its first floating argument's, else its module's, else its first tensor's."""
        held = [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]
        everything = [*self.tensors, *held]
        floating = [t for t in everything if t.dtype.is_floating_point or t.dtype.is_complex]
        first = next(iter(floating or everything), None)
        return str(first.dtype).removeprefix("torch.") if first is not None else ""

    def build(
        self,
        device: torch.device,
        *,
        floating: torch.dtype | None = None,
        relaid: Mapping[int, torch.Tensor] | None = None,
        fn: Callable[..., Any] | None = None,
        guard: bool = False,
    ) -> Built:
        """Copy everything to a device.

        Args:
            device: where tensors and modules go. When some argument lies on an accelerator, CPU arguments stay on the
                CPU: the case then mixes devices on purpose.
            floating: precision to promote to, or None to keep the case's own.
            relaid: arguments to be given in another layout, ``id(tensor)`` to the re-laid tensor.
            fn: another callable to be given the same arguments (a reference).
            guard: copy storages between guard bands; the code under test can tell by the storage offsets.

        Raises:
            ValueError: an argument or module can't be copied.
        """
        mixed = device.type != "cpu" and any(t.device.type != "cpu" for t in self.tensors)
        copier = Copier(device, floating=floating, keep_cpu=mixed, relaid=relaid, guard=guard)
        callee = self.fn if fn is None else fn
        owner = callee if isinstance(callee, nn.Module) else getattr(callee, "__self__", None)
        module = copier.build(owner, "module") if isinstance(owner, nn.Module) else None
        for i, value in enumerate(self.args):  # modules first: an optimizer among the arguments refers to their weights
            if isinstance(value, nn.Module):
                copier.build(value, f"args[{i}]")
        for name, value in self.kwargs.items():
            if isinstance(value, nn.Module):
                copier.build(value, name)
        new = copier.build(callee, "fn")
        args = tuple(copier.build(value, f"args[{i}]") for i, value in enumerate(self.args))
        kwargs = {name: copier.build(value, name, name) for name, value in self.kwargs.items()}
        made = tuple(copier.entries), tuple(copier.notes), tuple(copier.rooms)
        return Built(new, args, kwargs, module, *made, self.starts)


class _Paths(Rebuilder):
    """Notes where each tensor stands."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, torch.Tensor] = {}

    def tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        self.found[path] = value
        return value


def api_name(fn: Callable[..., Any]) -> str:
    """What a callable is called in reports.

    ``torch.softmax``, ``torch.nn.functional.relu``, ``torch.Tensor.add_``, ``torch.ops.aten.add.Tensor``; a module's
    class; ``BertModel.generate`` for a module's method; else the module and name it was defined under.
    """
    if isinstance(fn, nn.Module):
        return type(fn).__name__
    if isinstance(fn, functools.partial):
        return api_name(fn.func)
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{fn}"
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, nn.Module):
        return f"{type(owner).__name__}.{getattr(fn, '__name__', '?')}"
    if isinstance(owner, torch.Tensor):
        return f"torch.Tensor.{getattr(fn, '__name__', '?')}"
    known = torch.overrides.resolve_name(fn) if isinstance(fn, _TORCH_KINDS) else None
    if known:
        return str(known).replace("torch.functional.", "torch.")
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__
    name = name.rpartition("<locals>.")[2]
    home = getattr(fn, "__module__", None) or getattr(type(fn), "__module__", "")
    return f"{home}.{name}" if home and home not in ("builtins", "__main__") else str(name)


_TORCH_KINDS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.FunctionType,
)
