"""Public names: ``torch.nn.functional.softmax`` to the callable and back."""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any

import torch

__all__ = ["constant_name", "is_property", "public_name", "resolve"]

#: where torch's functions are public, the plainest name first
HOMES = (
    *("torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special", "torch.masked"),
    *("torch.signal.windows", "torch.sparse", "torch.Tensor"),
)
_PROPERTIES = (types.GetSetDescriptorType, types.MemberDescriptorType, property)


@functools.cache
def resolve(name: str) -> Any:
    """The callable of a dotted public name; a property of Tensor (``torch.Tensor.mT``) becomes a function of it.

    Raises:
        AttributeError: this torch has no such name.
    """
    head, *rest = name.split(".")
    if head != "torch":
        raise AttributeError(f"{name} is no name of torch")
    found: Any = torch
    for i, part in enumerate(rest, start=1):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, types.ModuleType):
                raise
            try:
                found = importlib.import_module(".".join([head, *rest[:i]]))
            except ImportError:
                raise AttributeError(f"torch {torch.__version__} has no {name}") from None
    if isinstance(found, _PROPERTIES):
        return _Property(name)
    return found


class _Property:
    """A property of Tensor as a function."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self.__module__ = "torch.Tensor"

    def __call__(self, tensor: torch.Tensor) -> Any:
        return getattr(tensor, self.__name__)

    def __deepcopy__(self, memo: Any) -> _Property:
        return self


def is_property(value: Any) -> bool:
    """Whether :func:`resolve` made a function of a property."""
    return isinstance(value, _Property)


@functools.cache
def _index() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for home in HOMES:
        owner = resolve(home)
        for name in dir(owner):
            if name.startswith("_") and not name.startswith("__r"):
                continue
            value = getattr(owner, name, None)
            if callable(value) and not isinstance(value, type):
                try:
                    found.setdefault(value, f"{home}.{name}")
                except TypeError:  # not hashable
                    continue
    return found


def public_name(fn: Any) -> str | None:
    """The public name of one of torch's functions, methods or operators; None where it has none."""
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{fn}".replace("::", ".")
    try:
        found = _index().get(fn)
    except TypeError:
        return None
    if found is None and getattr(fn, "__name__", "") == "__get__":  # what a property's call is recorded as
        owner = getattr(fn, "__self__", None)
        found = f"torch.Tensor.{owner.__name__}" if owner is not None and hasattr(owner, "__name__") else None
    return found


def constant_name(value: Any) -> str:
    """``channels_last`` for ``torch.channels_last``."""
    return str(value).removeprefix("torch.")
