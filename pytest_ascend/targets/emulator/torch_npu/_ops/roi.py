"""Pooling of image regions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .registry import narrow, op, wide

__all__: list[str] = []


def _bilinear(image: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """Samples `(C, rows, columns)` of `(C, H, W)` at `ys × xs`: zero beyond one pixel outside, clamped to the border
    within.
    """
    _, h, w = image.shape

    def axis(places: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outside = (places < -1) | (places > size)
        inner = places.clamp(0, size - 1)
        low = inner.floor().long()
        return outside, low, (low + 1).clamp_max(size - 1), inner - low

    out_y, top, bottom, fy = axis(ys, h)
    out_x, left, right, fx = axis(xs, w)
    fy = fy.unsqueeze(1)
    above = image[:, top][:, :, left] * (1 - fx) + image[:, top][:, :, right] * fx
    below = image[:, bottom][:, :, left] * (1 - fx) + image[:, bottom][:, :, right] * fx
    return torch.where(out_y.unsqueeze(1) | out_x, 0.0, above * (1 - fy) + below * fy)


def _roi_align(
    x: Tensor, rois: Tensor, scale: float, height: int, width: int, sample_num: int, end_mode: int
) -> Tensor:
    pooled = []
    for index, x1, y1, x2, y2 in rois.detach().double().tolist():
        extra = 1 if end_mode == 1 else 0
        start_x, start_y = x1 * scale, y1 * scale
        roi_w = max((x2 + extra) * scale - start_x, 0 if end_mode == 2 else 1)
        roi_h = max((y2 + extra) * scale - start_y, 0 if end_mode == 2 else 1)
        if end_mode in (2, 3):
            start_x, start_y = start_x - 0.5, start_y - 0.5
        nx = sample_num or max(math.ceil(roi_w / width), 1)
        ny = sample_num or max(math.ceil(roi_h / height), 1)
        xs = start_x + (torch.arange(width * nx, device=x.device, dtype=x.dtype) + 0.5) * (roi_w / width / nx)
        ys = start_y + (torch.arange(height * ny, device=x.device, dtype=x.dtype) + 0.5) * (roi_h / height / ny)
        samples = _bilinear(x[int(index)], ys, xs)
        pooled.append(samples.view(-1, height, ny, width, nx).mean((2, 4)))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)


@op(
    "npu_roi_align(Tensor self, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, int sample_num, "
    "int roi_end_mode) -> Tensor"
)
def npu_roi_align(
    x: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> Tensor:
    """Average of bilinear samples in each cell of a region: `(regions, C, pooled_height, pooled_width)`.

    Args:
        x: `(N, C, H, W)`.
        rois: `(regions, 5)`: image index and corners.
        spatial_scale: from the coordinates of `rois` to pixels of `x`.
        pooled_height, pooled_width: cells of a region.
        sample_num: samples of a cell along each side; 0 for one a pixel.
        roi_end_mode: 0 ends a region at its corner, 1 one unit beyond (before scaling), 2 and 3 shift it by half a
            pixel.
    """
    if x.device != rois.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {x.device} and "
            f"{rois.device}!"
        )
    (wx,) = wide(x)
    result = _roi_align(wx, rois, spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode)
    return narrow(result, x)


@op(
    "npu_roi_alignbk(Tensor self, Tensor rois, int[] xdiff_shape, int pooled_width, int pooled_height, float "
    "spatial_scale, "
    "int sample_num, int? roi_end_mode=None) -> Tensor"
)
def npu_roi_alignbk(
    grad: Tensor,
    rois: Tensor,
    xdiff_shape: list[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None = None,
) -> Tensor:
    """Gradient of `npu_roi_align` for an input of `xdiff_shape`; `roi_end_mode` is 1 unless given."""
    end_mode = 1 if roi_end_mode is None else roi_end_mode
    with torch.enable_grad():
        (wg,) = wide(grad)
        x = torch.zeros(xdiff_shape, dtype=wg.dtype, device=grad.device, requires_grad=True)
        pooled = _roi_align(x, rois, spatial_scale, pooled_height, pooled_width, sample_num, end_mode)
        (result,) = torch.autograd.grad(pooled, x, wg)
    return narrow(result, grad)


@op("npu_ps_roi_pooling(Tensor self, Tensor rois, float spatial_scale, int group_size, int output_dim) -> Tensor")
def npu_ps_roi_pooling(x: Tensor, rois: Tensor, spatial_scale: float, group_size: int, output_dim: int) -> Tensor:
    """Position-sensitive average pooling: cell (i, j) of output channel c reads channel `(c · g + i) · g + j`.

    Args:
        x: `(N, output_dim · g², H, W)`, g = `group_size`.
        rois: `(batch, 5, regions)`: image index and corners, for each group of regions.
        spatial_scale: from the coordinates of `rois` to pixels of `x`.
        group_size: cells of a region along each side.
        output_dim: channels of the result.

    Returns:
        `(batch · regions, output_dim, g, g)`; a cell that holds no pixel, or whose image doesn't exist, is zero.
    """
    g = group_size
    images, channels, height, width = x.shape
    if channels != output_dim * g * g:
        raise RuntimeError(
            f"npu_ps_roi_pooling: {channels} channels are not output_dim · group_size² = {output_dim * g * g}"
        )
    (wx,) = wide(x)
    maps = wx.view(images, output_dim, g, g, height, width)
    regions = rois.detach().double().transpose(1, 2).reshape(-1, 5).tolist()
    pooled = []
    for index, x1, y1, x2, y2 in regions:
        start_x, start_y = round(x1) * spatial_scale, round(y1) * spatial_scale
        cell_w = max((round(x2) + 1) * spatial_scale - start_x, 0.1) / g
        cell_h = max((round(y2) + 1) * spatial_scale - start_y, 0.1) / g
        cells = []
        for i in range(g):
            top = min(max(math.floor(start_y + i * cell_h), 0), height)
            bottom = min(max(math.ceil(start_y + (i + 1) * cell_h), 0), height)
            for j in range(g):
                left = min(max(math.floor(start_x + j * cell_w), 0), width)
                right = min(max(math.ceil(start_x + (j + 1) * cell_w), 0), width)
                if bottom > top and right > left and 0 <= index < images:
                    cells.append(maps[int(index), :, i, j, top:bottom, left:right].mean((1, 2)))
                else:
                    cells.append(maps.new_zeros(output_dim))
        pooled.append(torch.stack(cells, 1).view(output_dim, g, g))
    result = torch.stack(pooled)
    if result.grad_fn is None and wx.requires_grad:  # no region touched the image: a gradient of zeros
        result = result + 0 * wx.sum()
    return narrow(result, x)
