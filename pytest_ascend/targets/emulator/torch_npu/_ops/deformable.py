"""Deformable convolution: bilinear samples at learned places, then a convolution over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .registry import narrow, op, wide

__all__: list[str] = []


def _samples(
    x: Tensor,
    offset: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Modulated bilinear samples of `x` at every kernel tap: `(N, C, Ho · Kh, Wo · Kw)`.

    `offset` is `(N, 3 · groups · Kh · Kw, Ho, Wo)`: x offsets, y offsets and scales of each tap, group by group.
    Places are `output · stride − padding + tap · dilation + offset`; outside the image the value is zero.
    """
    n, c, h, w = x.shape
    kh, kw = kernel
    ho, wo = offset.shape[2:]
    dx, dy, scale = offset.view(n, 3, groups, kh, kw, ho, wo).unbind(1)

    def base(out: int, taps: int, step: int, pad: int, dil: int) -> Tensor:
        place = torch.arange(out, device=x.device, dtype=dx.dtype) * step - pad
        return torch.arange(taps, device=x.device, dtype=dx.dtype).view(-1, 1) * dil + place  # (taps, out)

    ys = dy + base(ho, kh, stride[-2], padding[0], dilation[-2]).view(kh, 1, ho, 1)
    xs = dx + base(wo, kw, stride[-1], padding[2], dilation[-1]).view(1, kw, 1, wo)
    top, left = ys.floor(), xs.floor()
    fy, fx = ys - top, xs - left
    flat = x.reshape(n, groups, c // groups, h * w)

    def corner(down: int, right: int) -> Tensor:
        row, column = (top + down).long(), (left + right).long()
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        place = (row.clamp(0, h - 1) * w + column.clamp(0, w - 1)).view(n, groups, 1, -1)
        value = flat.gather(3, place.expand(-1, -1, c // groups, -1))
        return value * inside.view(n, groups, 1, -1)

    fy, fx = fy.reshape(n, groups, 1, -1), fx.reshape(n, groups, 1, -1)
    # Differences first, then the weights: gradients of the places don't cancel over the channels that way.
    above = torch.lerp(corner(0, 0), corner(0, 1), fx)
    below = torch.lerp(corner(1, 0), corner(1, 1), fx)
    total = (torch.lerp(above, below, fy) * scale.reshape(n, groups, 1, -1)).view(n, c, kh, kw, ho, wo)
    return total.permute(0, 1, 4, 2, 5, 3).reshape(n, c, ho * kh, wo * kw)


@op(
    "npu_deformable_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor? bias, int[2] kernel_size, int[] stride, "
    "int[] padding, int[4] dilation=[1,1,1,1], int groups=1, int deformable_groups=1, bool modulated=True) -> "
    "(Tensor, Tensor)"
)
def npu_deformable_conv2d(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int] = [1, 1, 1, 1],  # noqa: B006 - never changed
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[Tensor, Tensor]:
    """Modulated deformable convolution (version 2).

    Args:
        x: `(N, C, H, W)`.
        weight: `(O, C / groups, Kh, Kw)`.
        offset: `(N, 3 · deformable_groups · Kh · Kw, Ho, Wo)`: x offsets, y offsets, scales.
        bias: `(O,)` or None.
        kernel_size: `(Kh, Kw)`.
        stride, dilation: four entries, the last two of which are for height and width.
        padding: top, bottom, left, right.
        groups: of the convolution.
        deformable_groups: channels of one group share their offsets.
        modulated: only True.

    Returns:
        The result `(N, O, Ho, Wo)` and the samples `(N, C, Ho · Kh, Wo · Kw)`.
    """
    wx, w_offset = wide(x, offset)
    samples = narrow(_samples(wx, w_offset, kernel_size, stride, padding, dilation, deformable_groups), x)
    result = torch.convolution(samples, weight, bias, kernel_size, [0, 0], [1, 1], False, [0, 0], groups)
    return result, samples


@op(
    "npu_deformable_conv2dbk(Tensor input, Tensor grad_output, Tensor offset_out, Tensor weight, Tensor offset, "
    "int[2] kernel_size, int[] stride, int[] padding, int[4] dilation=[1,1,1,1], int groups=1, int "
    "deformable_groups=1, "
    "bool modulated=True) -> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_deformable_conv2dbk(
    x: Tensor,
    grad: Tensor,
    samples: Tensor,
    weight: Tensor,
    offset: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int] = [1, 1, 1, 1],  # noqa: B006 - never changed
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> Any:
    """Gradients of `npu_deformable_conv2d` for input, weight, offset and bias, in this order."""
    grad_samples, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad, samples, weight, [weight.shape[0]], kernel_size, [0, 0], [1, 1], False, [0, 0], groups, [True, True, True]
    )
    with torch.enable_grad():
        wx, w_offset = (t.detach().requires_grad_() for t in wide(x, offset))
        again = _samples(wx, w_offset, kernel_size, stride, padding, dilation, deformable_groups)
        grad_x, grad_offset = torch.autograd.grad(again, (wx, w_offset), grad_samples.to(again.dtype))
    return narrow(grad_x, x), grad_weight, narrow(grad_offset, offset), grad_bias
