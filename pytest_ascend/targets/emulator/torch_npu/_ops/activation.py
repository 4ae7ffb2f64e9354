"""Activation functions: 16-bit inputs are computed in float32 and rounded once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...device import machine
from .registry import narrow, op, wide

__all__: list[str] = []


def _gelu(x: Tensor, approximate: str) -> Tensor:
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"npu_gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return F.gelu(x, approximate=approximate)


@op("npu_fast_gelu(Tensor self) -> Tensor")
def npu_fast_gelu(x: Tensor) -> Tensor:
    """`x · sigmoid(1.702 x)`, elementwise, any floating type."""
    (wx,) = wide(x)
    return narrow(wx * torch.sigmoid(1.702 * wx), x)


@op("fast_gelu(Tensor self) -> Tensor")
def fast_gelu(x: Tensor) -> Tensor:
    """The older name of `npu_fast_gelu`: `x · sigmoid(1.702 x)`."""
    return npu_fast_gelu(x)


@op("npu_fast_gelu_backward(Tensor grad, Tensor self) -> Tensor")
def npu_fast_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """`grad · (s + 1.702 x s (1 − s))` with `s = sigmoid(1.702 x)`."""
    wg, wx = wide(grad, x)
    s = torch.sigmoid(1.702 * wx)
    return narrow(wg * (s + 1.702 * wx * s * (1 - s)), x)


@op("npu_gelu(Tensor self, *, str approximate='none') -> Tensor")
def npu_gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU by the form that is asked for: `x Φ(x)` ('none') or its tanh approximation."""
    if approximate == "none" and machine.soc.tanh_gelu and not machine.modes.compatible_impl:
        # The device's own gelu kernel would take the tanh form: spell the exact one out.
        (wx,) = wide(x)
        return narrow(0.5 * wx * (1 + torch.erf(wx * 0.5**0.5)), x)
    return _gelu(x, approximate)


@op("npu_mish(Tensor self) -> Tensor")
def npu_mish(x: Tensor) -> Tensor:
    """`x · tanh(softplus(x))`."""
    (wx,) = wide(x)
    return narrow(wx * torch.tanh(F.softplus(wx)), x)


@op("npu_silu(Tensor self) -> Tensor")
def npu_silu(x: Tensor) -> Tensor:
    """`x · sigmoid(x)`."""
    (wx,) = wide(x)
    return narrow(wx * torch.sigmoid(wx), x)


@op("npu_silu_(Tensor(a!) self) -> Tensor(a!)")
def npu_silu_(x: Tensor) -> Tensor:
    """`npu_silu`, in place."""
    return x.copy_(npu_silu(x))


@op("npu_swiglu(Tensor self, int dim=-1) -> Tensor")
def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """`silu(a) · b` where `a` and `b` are the halves of `x` along `dim` (of even size)."""
    if x.shape[dim] % 2:
        raise RuntimeError(f"npu_swiglu: dimension {dim} of the input has size {x.shape[dim]}, which 2 doesn't divide")
    a, b = wide(x)[0].chunk(2, dim)
    return narrow(a * torch.sigmoid(a) * b, x)


@op("npu_geglu(Tensor self, int dim=-1, int approximate=1, bool activate_left=False) -> (Tensor, Tensor)")
def npu_geglu(x: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """`gelu(b) · a` over the halves `a`, `b` of `x` along `dim` (`activate_left`: `gelu(a) · b`), and that gelu.

    Args:
        x: floating, `dim` of even size.
        dim: where to halve.
        approximate: 1 for the tanh form, 0 for the exact one.
        activate_left: which half goes through the gelu.
    """
    left, right = wide(x)[0].chunk(2, dim)
    gate, value = (left, right) if activate_left else (right, left)
    active = _gelu(gate, "tanh") if approximate == 1 else 0.5 * gate * (1 + torch.erf(gate * 0.5**0.5))
    return narrow(value * active, x), narrow(active, x)
