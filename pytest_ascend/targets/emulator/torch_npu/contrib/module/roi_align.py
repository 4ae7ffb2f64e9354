"""Region alignment."""

from __future__ import annotations

from typing import Any as _Any

import torch as _torch
from torch import nn as _nn

__all__ = ["ROIAlign"]


class ROIAlign(_nn.Module):
    """`torch_npu.npu_roi_align` as a layer.

    Args:
        output_size: height and width.
        spatial_scale: from the coordinates of the regions to pixels.
        sampling_ratio: samples of a cell along each side; 0 for one a pixel.
        aligned: shift regions by half a pixel, as a continuous coordinate system has it.
    """

    def __init__(self, output_size: _Any, spatial_scale: float, sampling_ratio: int, aligned: bool = True) -> None:
        super().__init__()
        self.output_size = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
        self.spatial_scale, self.sampling_ratio, self.aligned = spatial_scale, sampling_ratio, aligned

    def forward(self, input_tensor: _torch.Tensor, rois: _torch.Tensor) -> _torch.Tensor:
        result: _torch.Tensor = _torch.ops.npu.npu_roi_align(
            input_tensor,
            rois,
            self.spatial_scale,
            self.output_size[0],
            self.output_size[1],
            self.sampling_ratio,
            2 if self.aligned else 0,
        )
        return result
