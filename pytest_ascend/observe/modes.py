"""A dispatch mode that doesn't load torch's compiler."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode"]


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``TorchDispatchMode`` for modes that ``torch.compile`` has to leave alone.

    torch itself shields ``__torch_dispatch__`` from its compiler, and imports the compiler for that: more than a second
    in a process that compiles nothing. Here that is done once something else has loaded it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        raw = cls.__dict__.get("__torch_dispatch__")
        if raw is not None:
            cls.__torch_dispatch__ = _shielded(raw)  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # older releases of torch don't ask, and don't import the compiler either


def _shielded(raw: Callable[..., Any]) -> Callable[..., Any]:
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(raw)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if not disabled:
            if "torch._dynamo" not in sys.modules:
                return raw(*args, **kwargs)
            import torch

            disabled.append(torch._dynamo.disable(raw, recursive=True))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return dispatch
