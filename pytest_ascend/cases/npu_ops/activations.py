"""Activation functions, elementwise over any shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pytest_ascend.cases.npu_ops.rounding import rounded, single


def npu_fast_gelu(self: Tensor) -> Tensor:
    """``x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|))``, which is ``x sigmoid(1.702 x)`` without an overflow."""
    x = single(self)
    size = x.abs()
    return rounded(x / (1 + torch.exp(-1.702 * size)) * torch.exp(0.851 * (x - size)), self)


def fast_gelu(self: Tensor) -> Tensor:
    """The older name of ``npu_fast_gelu``."""
    return npu_fast_gelu(self)


def npu_fast_gelu_backward(grad: Tensor, self: Tensor) -> Tensor:
    """``grad`` times the derivative of ``npu_fast_gelu`` at ``self``."""
    x = single(self)
    e = torch.exp(-1.702 * x.abs())
    small, large = e / (1 + e), 1 / (1 + e)
    gate = torch.where(x < 0, small, large)
    return rounded(single(grad) * (gate + 1.702 * x * small * large), self)


def _gaussian(x: Tensor) -> Tensor:
    """``x Phi(x)``; ``erfc`` keeps the digits of the tail."""
    tail: Tensor = torch.special.erfc(-x / math.sqrt(2))
    return 0.5 * x * tail


def _gaussian_by_tanh(x: Tensor) -> Tensor:
    """``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def npu_gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    """``x Phi(x)`` (``none``), or its form with ``tanh``."""
    form = {"none": _gaussian, "tanh": _gaussian_by_tanh}[approximate]
    return rounded(form(single(self)), self)


def npu_mish(self: Tensor) -> Tensor:
    """``x tanh(log(1 + exp(x)))``."""
    x = single(self)
    return rounded(x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x))), self)


def npu_silu(self: Tensor) -> Tensor:
    """``x sigmoid(x)``."""
    return rounded(torch.nn.functional.silu(single(self)), self)


def npu_silu_(self: Tensor) -> Tensor:
    """``npu_silu``, in place."""
    return self.copy_(npu_silu(self))


def _halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half), x.narrow(dim, half, half)


def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """``silu(a) b`` where ``a`` and ``b`` are the first and second half of the input along ``dim``."""
    a, b = _halves(single(self), dim)
    return rounded(torch.nn.functional.silu(a) * b, self)


def npu_geglu(self: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """``gelu(b) a`` of the halves ``a``, ``b`` along ``dim``, and that gelu; ``activate_left``: ``gelu(a) b``.

    ``approximate``: 1 for the form with ``tanh``, 0 for the exact one.
    """
    a, b = _halves(single(self), dim)
    gate, other = (a, b) if activate_left else (b, a)
    active = _gaussian_by_tanh(gate) if approximate == 1 else _gaussian(gate)
    return rounded(active * other, self), rounded(active, self)
