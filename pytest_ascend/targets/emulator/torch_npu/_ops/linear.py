"""Matrix products and convolutions: the cube unit's work, done by torch's own operators on the device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import op

__all__: list[str] = []

_CONV = "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups"
_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@op("npu_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
def npu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weightᵀ + bias`; weight `(out, in)`, bias `(out,)`."""
    return F.linear(x, weight, bias)


@op("npu_linear_backward(Tensor grad, Tensor input, Tensor weight) -> (Tensor, Tensor)")
def npu_linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `npu_linear` with respect to input and weight (both two-dimensional)."""
    return grad @ weight, grad.t() @ x


@op("npu_bmmV2(Tensor self, Tensor mat2, int[] output_sizes) -> Tensor")
def npu_bmm_v2(x: Tensor, y: Tensor, output_sizes: list[int]) -> Tensor:
    """Batched matrix product over broadcast batch dimensions.

    Args:
        x: `(…, n, k)`.
        y: `(…, k, m)`.
        output_sizes: empty for the natural shape; else the result, whose batch matrices stand side by side, in this
            shape.
    """
    result = torch.matmul(x, y)
    if not output_sizes or list(result.shape) == list(output_sizes):
        return result
    if math.prod(output_sizes) != result.numel():
        raise RuntimeError(
            f"npu_bmmV2: a result of shape {tuple(result.shape)} can't be given the shape {tuple(output_sizes)}"
        )
    return result.movedim(-2, 0).reshape(output_sizes)


def _convolve(
    x: Tensor, w: Tensor, b: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    spatial = w.dim() - 2
    pairs = _pairs(padding, spatial)
    if pairs:
        x, padding = F.pad(x, pairs), [0] * spatial
    return torch.convolution(x, w, b, stride, padding, dilation, False, [0] * spatial, groups)


@op(f"npu_conv2d({_CONV}) -> Tensor")
def npu_conv2d(
    x: Tensor, w: Tensor, b: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Two-dimensional convolution; `padding` has two entries (or four: top, bottom, left, right)."""
    return _convolve(x, w, b, stride, padding, dilation, groups)


@op(f"npu_conv2d.out({_CONV}, *, Tensor(a!) out) -> Tensor(a!)")
def _npu_conv2d_out(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    *,
    out: Tensor,
) -> Tensor:
    return out.copy_(_convolve(x, w, b, stride, padding, dilation, groups))


@op(f"npu_conv3d({_CONV}) -> Tensor")
def npu_conv3d(
    x: Tensor, w: Tensor, b: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Three-dimensional convolution."""
    return _convolve(x, w, b, stride, padding, dilation, groups)


@op(f"npu_convolution({_CONV}) -> Tensor")
def npu_convolution(
    x: Tensor, w: Tensor, b: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Convolution over two or three dimensions, as the weight has."""
    return _convolve(x, w, b, stride, padding, dilation, groups)


_BACKWARD = (
    "Tensor input, Tensor grad_output, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)


def _pairs(padding: list[int], spatial: int) -> list[int]:
    """Padding as `torch.nn.functional.pad` has it, where (before, after) is given for each dimension; else nothing."""
    if len(padding) != 2 * spatial or spatial == 1:
        return []
    return [p for d in reversed(range(spatial)) for p in padding[2 * d : 2 * d + 2]]


@op(f"npu_conv2d_backward({_BACKWARD}")
@op(f"npu_conv3d_backward({_BACKWARD}")
def _convolve_backward(
    x: Tensor,
    grad: Tensor,
    w: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> _Gradients:
    """Gradients of `npu_conv2d` and `npu_conv3d` for input, weight and bias, those that `output_mask` asks for."""
    spatial = w.dim() - 2
    pairs = _pairs(padding, spatial)
    padded, symmetric = (F.pad(x, pairs), [0] * spatial) if pairs else (x, padding)
    grad_x, grad_w, grad_b = torch.ops.aten.convolution_backward(
        grad, padded, w, [w.shape[0]], stride, symmetric, dilation, False, [0] * spatial, groups, output_mask
    )
    if pairs and grad_x is not None:
        grad_x = F.pad(grad_x, [-p for p in pairs])
    return grad_x, grad_w, grad_b


@op(
    "npu_conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, int[] padding, int[] output_padding, int[] "
    "stride, "
    "int[] dilation, int groups) -> Tensor"
)
def npu_conv_transpose2d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Two-dimensional transposed convolution."""
    return torch.convolution(x, w, b, stride, padding, dilation, True, output_padding, groups)
