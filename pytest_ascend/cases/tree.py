"""Walk and rebuild trees: nested containers, objects and closures with tensors at their leaves."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

__all__ = ["Rebuilder", "holds_tensors", "reach", "snapshot"]

ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.device,
    torch.Generator,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
_WALK_LIMIT = 20_000  # objects looked into before an argument is taken for one without tensors


def _attributes(value: object) -> dict[str, Any]:
    """An ordinary object's attributes, from its slots and its ``__dict__``."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    found.update(getattr(value, "__dict__", {}))
    return found


def _free_variables(function: types.FunctionType) -> dict[str, Any]:
    """The variables a function closes over, those not assigned yet left out."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _method_of_tensor(value: object) -> bool:
    return isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, torch.Tensor)


def _children(value: object) -> Iterable[Any]:
    """What a walk looks into next."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return value
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType) or _method_of_tensor(value):
        return [value.__self__]  # type: ignore[attr-defined]
    if isinstance(value, types.FunctionType):
        return _free_variables(value).values()
    return _attributes(value).values()


def reach(*roots: object) -> Iterator[torch.Tensor | nn.Module]:
    """The tensors and modules that can be reached from values through containers, objects and closures, in order.

    Modules aren't looked into. At most 20,000 objects are.
    """
    todo, seen = list(reversed(roots)), set[int]()
    while todo and len(seen) < _WALK_LIMIT:
        current = todo.pop()
        if id(current) in seen or (isinstance(current, ATOMS) and not _method_of_tensor(current)):
            continue
        seen.add(id(current))
        if isinstance(current, (torch.Tensor, nn.Module)):
            yield current
        else:
            todo.extend(reversed(list(_children(current))))


def holds_tensors(value: object) -> bool:
    """Whether a tensor or a module can be reached from a value."""
    return next(reach(value), None) is not None


class Rebuilder:
    """Builds a tree anew: the same containers, other leaves.

    Lists, tuples, named tuples, dicts of any kind (``OrderedDict``, ``UserDict``, transformers' ``ModelOutput`` and
    ``BatchEncoding``), sets, dataclasses, ``functools.partial``, bound methods, closures and plain objects that hold
    tensors come out as objects of the same type. Containers are always new, so that a callable may change its own;
    objects without tensors are passed through. The same object comes out as one object wherever it stands.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = []  # originals, so that an id keeps meaning one object

    def tensor(self, value: torch.Tensor, path: str) -> Any:
        """What becomes of a tensor."""
        return value

    def module(self, value: nn.Module, path: str) -> Any:
        """What becomes of a module."""
        return value

    def atom(self, value: Any, name: str) -> Any:
        """What becomes of a number, string, dtype, ...; ``name`` is the keyword or key it stands under."""
        return value

    def plain(self, value: Any, path: str) -> Any:
        """What becomes of an ordinary object that holds tensors."""
        shell = self.remember(value, copy.copy(value))
        for name, child in _attributes(value).items():
            object.__setattr__(shell, name, self.build(child, f"{path}.{name}", name))
        return shell

    def remember(self, original: Any, new: Any) -> Any:
        """Note that ``original`` comes out as ``new`` from now on."""
        self._memo[id(original)] = new
        self._alive.append(original)
        return new

    def known(self, original: Any) -> Any | None:
        """What an object has come out as before, or None."""
        return self._memo.get(id(original))

    def build(self, value: Any, path: str, name: str = "") -> Any:
        """The new form of ``value``, which stands at ``path``.

        Raises:
            ValueError: the value can be read only once (a generator).
        """
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, torch.Tensor):
            return self.remember(value, self.tensor(value, path))
        if isinstance(value, nn.Module):
            return self.remember(value, self.module(value, path))
        if _method_of_tensor(value):
            return self.remember(value, getattr(self.build(value.__self__, f"{path}.__self__"), value.__name__))
        if isinstance(value, ATOMS):
            return self.atom(value, name)
        if isinstance(value, (tuple, list, deque, set, frozenset, dict, UserDict)):
            return self._container(value, path)
        if isinstance(value, types.GeneratorType):
            raise ValueError(
                f"{path} is a generator, which can be read once, and a case runs several times: give a list"
            )
        if type(value).__module__ == "numpy" and hasattr(value, "copy"):
            return self.remember(value, value.copy())
        if not holds_tensors(value):
            return value
        if isinstance(value, functools.partial):
            return self._partial(value, path)
        if isinstance(value, types.MethodType):
            return self.remember(value, types.MethodType(value.__func__, self.build(value.__self__, path)))
        if isinstance(value, types.FunctionType):
            return self._closure(value, path)
        return self.plain(value, path)

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, tuple):
            return self.remember(value, self._tuple(value, path))
        if isinstance(value, (dict, UserDict)):
            return self._mapping(value, path)
        if isinstance(value, (set, frozenset)):
            return self.remember(value, type(value)(self.build(item, f"{path}{{}}") for item in value))
        shell = self.remember(value, copy.copy(value))
        shell.clear()
        shell.extend(self.build(item, f"{path}[{i}]") for i, item in enumerate(value))
        return shell

    def _tuple(self, value: tuple[Any, ...], path: str) -> Any:
        fields = getattr(type(value), "_fields", None)
        if fields is not None:
            return type(value)(*[self.build(v, f"{path}.{f}", f) for f, v in zip(fields, value, strict=True)])
        built = tuple(self.build(item, f"{path}[{i}]") for i, item in enumerate(value))
        if type(value) is tuple:
            return built
        try:  # torch.return_types.* and torch.Size take one sequence
            return type(value)(built)
        except TypeError:
            return built

    def _mapping(self, value: MutableMapping[Any, Any], path: str) -> Any:
        shell = self.remember(value, copy.copy(value))
        for key in list(shell.keys()):
            if isinstance(key, torch.Tensor):  # an optimizer's state is keyed by parameter
                del shell[key]
        for key, child in value.items():
            if isinstance(key, torch.Tensor):
                shell[self.build(key, path)] = self.build(child, path)
            else:
                shell[key] = self.build(child, f"{path}[{key!r}]", key if isinstance(key, str) else "")
        return shell

    def _partial(self, value: functools.partial[Any], path: str) -> Any:
        args = [self.build(item, f"{path}.args[{i}]") for i, item in enumerate(value.args)]
        keywords = {name: self.build(item, name, name) for name, item in value.keywords.items()}
        return self.remember(value, functools.partial(self.build(value.func, path), *args, **keywords))

    def _closure(self, value: types.FunctionType, path: str) -> Any:
        """A function over new cells: what it closes over is an input, as an argument is."""
        cells = {name: types.CellType() for name in value.__code__.co_freevars}
        closure = tuple(cells.values()) if value.__closure__ is not None else None
        new = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        new.__kwdefaults__, new.__qualname__, new.__dict__ = (
            value.__kwdefaults__,
            value.__qualname__,
            {**value.__dict__},
        )
        self.remember(value, new)
        for name, child in _free_variables(value).items():
            cells[name].cell_contents = self.build(child, name, name)
        return new


class _Snapshot(Rebuilder):
    """Plain values on the CPU; objects that are no containers become dicts of what they hold."""

    def __init__(self, keep: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self.keep = keep

    def tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        if value._is_zerotensor():  # a gradient that autograd knows to be zero has no memory to copy
            return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
        plain = value.detach()
        if self.keep is not None:
            return self.keep(plain)
        return plain.clone() if plain.device.type == "cpu" else plain.to("cpu")

    def plain(self, value: Any, path: str) -> Any:
        if dataclasses.is_dataclass(value):
            return super().plain(value, path)
        held: dict[str, Any] = self.remember(value, {})
        for name, child in _attributes(value).items():
            if child is not value and holds_tensors(child):
                held[name] = self.build(child, f"{path}.{name}")
        return held


def snapshot(tree: Any, keep: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
    """The values of a tree as they are now: tensors detached and cloned to the CPU, containers kept.

    An ordinary object that holds tensors (a key-value cache) becomes a dict of its attributes that do. ``keep`` makes
    the clones; else they are made in memory.
    """
    with torch.no_grad():
        return _Snapshot(keep).build(tree, "")
