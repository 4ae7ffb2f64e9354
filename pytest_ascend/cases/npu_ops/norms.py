"""Normalisations. Statistics are in float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ascend.cases.npu_ops.rounding import rounded, single


def _last(of: Tensor) -> tuple[int, ...]:
    """The trailing dimensions that another tensor has."""
    return tuple(range(-of.dim(), 0))


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``x / sqrt(mean(x^2) + epsilon) * gamma`` over the trailing dimensions of ``gamma``, and ``1 / sqrt(...)``.

    Shapes: ``(..., *gamma.shape)``; the second result has size 1 in those dimensions and is float32.
    """
    x = single(self)
    root = torch.sqrt(x.square().mean(_last(gamma), keepdim=True) + epsilon)
    return rounded(x / root * single(gamma), self), 1 / root


def npu_gemma_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``npu_rms_norm`` with the factor ``1 + gamma``."""
    x = single(self)
    root = torch.sqrt(x.square().mean(_last(gamma), keepdim=True) + epsilon)
    return rounded(x / root * (1 + single(gamma)), self), 1 / root


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """``x = x1 + x2``: its root-mean-square norm, ``1 / sqrt(mean(x^2) + epsilon)`` and ``x`` itself."""
    total = x1 + x2
    return *npu_rms_norm(total, gamma, epsilon), total


def npu_layer_norm_eval(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the trailing ``normalized_shape``."""
    x = single(input)
    dims = tuple(range(-len(normalized_shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    result = centred / torch.sqrt(centred.square().mean(dims, keepdim=True) + eps)
    if weight is not None:
        result = result * single(weight)
    if bias is not None:
        result = result + single(bias)
    return rounded(result, input)


def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of ``alpha x + gx`` over the dimensions of ``gamma``: mean, ``1 / sqrt(var + epsilon)``, norm."""
    total = single(x) * alpha + single(gx)
    mean = total.mean(_last(gamma), keepdim=True)
    root = torch.sqrt((total - mean).square().mean(_last(gamma), keepdim=True) + epsilon)
    return mean, 1 / root, rounded((total - mean) / root * single(gamma) + single(beta), x)


def npu_group_norm_silu(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """``silu(group_norm(x))`` of ``(N, C, ...)``; mean and ``1 / sqrt(var + eps)`` of each group, ``(N, group)``."""
    x = single(input)
    grouped = torch.unflatten(x, 1, (group, -1)).flatten(2)
    mean = grouped.mean(2)
    root = torch.sqrt(grouped.var(2, correction=0) + eps)
    gain, shift = (None if one is None else single(one) for one in (weight, bias))
    normal = torch.nn.functional.group_norm(x, group, gain, shift, eps)
    result = rounded(torch.nn.functional.silu(normal), input)
    return result, rounded(mean, input), rounded(1 / root, input)
