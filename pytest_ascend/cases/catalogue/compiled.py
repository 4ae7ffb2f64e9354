"""A case run twice, as it is and under ``torch.compile``, both held against the same reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.catalogue.laid import replaced, tensors_of

__all__ = ["both_ways"]


def both_ways(case: Case) -> tuple[Case, dict[str, Any]]:
    """The case with ``{"eager": ..., "compile": ...}`` as its output, and the options that judge it.

    On the CPU, the reference, both are the eager result: so each of the two modes is compared with the same golden
    under the same budget, and what the two differ in shows as one of them failing.
    """
    return Case(_Both(case.fn, True), case.args, case.kwargs, case.api), {"reference": _Both(case.fn, False)}


class _Both:
    """Calls a function eagerly on copies of the tensors, then compiled (or eagerly again) on the tensors themselves."""

    def __init__(self, fn: Callable[..., Any], compiles: bool) -> None:
        self.fn = fn
        self.compiles = compiles
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        copies = {id(t): t.clone() for t in tensors_of((args, kwargs))}
        fn = self.fn
        if self.compiles:
            torch._dynamo.reset()
            fn = torch.compile(self.fn, backend=_backend(args, kwargs), dynamic=False)
        changed = fn(*args, **kwargs)
        return {"eager": self.fn(*replaced(args, copies), **replaced(kwargs, copies)), "compile": changed}


def _backend(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The device's own compiler where it has one; else, as on the emulated device, ``aot_eager``."""
    kind = next((t.device.type for t in tensors_of((args, kwargs))), "cpu")
    if kind in ("npu", "privateuseone"):
        return "npu" if "npu" in torch.compiler.list_backends() else "aot_eager"
    return "inductor" if kind == "cuda" else "aot_eager"
