"""Keep a golden in float64 where the code under test names a dtype itself.

Models cast on their own (``x.float()`` in a norm, ``softmax(..., dtype=torch.float32)`` in attention). Run in float64
they would fall back to float32 there, and the golden would be no better than what it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Widened"]

_CASTS: dict[Any, torch.dtype] = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
}


class Widened(TorchFunctionMode):
    """While active, torch functions that are told one of the narrow dtypes work in float64 (complex128) instead.

    Args:
        dtypes: the case's own floating dtypes. float32 and complex64 count as narrow in any case: code widens to them.
            Others are left alone, for a cast to a dtype that isn't the case's own is meant to lose bits.
    """

    def __init__(self, dtypes: Iterable[torch.dtype]) -> None:
        super().__init__()
        narrow = {torch.float32, torch.complex64, *dtypes}
        self._wide = {dtype: torch.complex128 if dtype.is_complex else torch.float64 for dtype in narrow}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _CASTS.get(func) in self._wide:
            return args[0].to(torch.float64, **kwargs)
        if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
            args = tuple(self._widen(value) for value in args)
            kwargs = {name: self._widen(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _widen(self, value: Any) -> Any:
        return self._wide.get(value, value) if isinstance(value, torch.dtype) else value
