"""How an operator of torch_npu is made here: its published schema over a composition of torch's own operators.

An operator is registered in the dispatcher's `npu` namespace, so it is reachable as `torch_npu.npu_x` and as
`torch.ops.npu.npu_x`, checks its arguments as on a card and refuses CPU tensors as on a card. Its body runs above
autograd, on `npu` tensors, so that gradients come from the operators it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ....dtypes import DTYPES
from ...dispatch import kernel_of, replacements

__all__ = ["DTYPES", "dtype_of", "narrow", "op", "public", "python_api", "wide"]

Function = TypeVar("Function", bound=Callable[..., Any])

_HALF = (torch.float16, torch.bfloat16)
_Library: Any = torch.library.Library
_library: Any = _Library("npu", "FRAGMENT")
_public: dict[str, Any] = {}


def op(schema: str) -> Callable[[Function], Function]:
    """Register a Python composition under a schema such as `npu_mish(Tensor self) -> Tensor`.

    The body is called with the schema's arguments in order, keyword-only ones by name; defaults that the caller left
    out are left out too, so the body repeats them.
    """
    name = schema[: schema.index("(")]
    packet_name, _, overload_name = name.partition(".")

    def register(function: Function) -> Function:
        _library.define(schema)
        packet = getattr(torch.ops.npu, packet_name)
        overload = getattr(packet, overload_name or "default")
        qualified = f"npu::{packet_name}"

        def run(*args: Any, **kwargs: Any) -> Any:
            if qualified in replacements:  # a planted fault: go the way of every kernel, which applies it
                return kernel_of(overload)(*args, **kwargs)
            return function(*args, **kwargs)

        for key in ("PrivateUse1", "AutogradPrivateUse1", "Meta"):  # Meta: shapes and types for fake tensors
            _library.impl(name, run, key)
        if packet_name not in _public:
            packet.__doc__ = function.__doc__
            _public[packet_name] = packet
        return function

    return register


def python_api(name: str) -> Callable[[Function], Function]:
    """Offer a Python function as `torch_npu.<name>`, where its Python signature isn't the schema's (`out=` tuples)."""

    def register(function: Function) -> Function:
        function.__name__ = function.__qualname__ = name
        _public[name] = function
        return function

    return register


def public() -> dict[str, Any]:
    """Everything that `torch_npu` offers as an operator, by name."""
    return dict(_public)


def dtype_of(number: int | torch.dtype) -> torch.dtype:
    """The torch type behind an `int dtype` argument.

    Raises:
        RuntimeError: a number that stands for none of the device's types.
    """
    if isinstance(number, torch.dtype):
        return number
    try:
        return DTYPES[number]
    except KeyError:
        raise RuntimeError(f"{number} is not a data type of this device") from None


def wide(*tensors: Tensor | None) -> list[Any]:
    """float32 for 16-bit tensors, as fused kernels compute; anything else, None too, as it is."""
    return [t.float() if t is not None and t.dtype in _HALF else t for t in tensors]


def narrow(result: Tensor, like: Tensor) -> Tensor:
    """Round a float32 result once, to the type of the input it was computed from."""
    return result if result.dtype == like.dtype else result.to(like.dtype)
