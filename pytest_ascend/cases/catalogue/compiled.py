"""A function or a module under ``torch.compile``, and what compiled it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_ascend.cases.catalogue.laid import tensors_of

__all__ = ["Compiled", "CompiledModule", "Eager", "EagerModule", "Log", "compiled", "log"]


@dataclass
class Log:
    """What compilers did in this process.

    Attributes:
        graphs: how many graphs they were given.
        backend: name of the last one that was asked for.
        device: type of the device that it was asked for.
    """

    graphs: int = 0
    backend: str = ""
    device: str = ""


log = Log()


class Eager:
    """Calls a function as it is: what a compiled one is compared with, wrapped alike."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class Compiled(Eager):
    """Calls a function compiled for the device that its tensors are on; each call compiles anew."""

    def eager(self) -> Eager:
        """The same, as it is."""
        return Eager(self.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = list(self.fn.parameters()) if isinstance(self.fn, nn.Module) else []
        log.device = next((t.device.type for t in tensors_of((args, kwargs, held))), "cpu")
        log.backend = _backend(log.device)
        torch._dynamo.reset()
        return torch.compile(self.fn, backend=_counting(log.backend), dynamic=False)(*args, **kwargs)


class EagerModule(nn.Module):
    """A module as it is, below the name that a compiled one has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.train(inner.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.inner(*args, **kwargs)


class CompiledModule(EagerModule):
    """Calls a module compiled for the device that its tensors are on; each call compiles anew."""

    def eager(self) -> EagerModule:
        """The same, as it is."""
        return EagerModule(self.inner)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compile and call it."""
        return Compiled(self.inner)(*args, **kwargs)


def compiled(fn: Callable[..., Any]) -> Compiled | CompiledModule:
    """A callable, compiled anew at each call; what ``torch.compile`` made is compiled from what it was made of."""
    fn = getattr(fn, "_orig_mod", fn) if isinstance(fn, nn.Module) else getattr(fn, "_torchdynamo_orig_callable", fn)
    return CompiledModule(fn) if isinstance(fn, nn.Module) else Compiled(fn)


def _backend(device: str) -> str:
    """The device's own compiler where it has one; else ``aot_eager``: graphs are captured, and run by eager kernels."""
    if device in ("npu", "privateuseone"):
        return "npu" if "npu" in torch.compiler.list_backends() else "aot_eager"
    return "inductor" if device == "cuda" else "aot_eager"


def _counting(backend: str) -> Callable[..., Any]:
    compiles: Callable[..., Any] = torch._dynamo.lookup_backend(backend)

    def compiler(graph: Any, inputs: Any, **options: Any) -> Any:
        log.graphs += 1
        return compiles(graph, inputs, **options)

    return compiler
