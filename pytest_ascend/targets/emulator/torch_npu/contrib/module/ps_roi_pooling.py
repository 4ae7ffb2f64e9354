"""Position-sensitive pooling."""

from __future__ import annotations

import torch as _torch
from torch import nn as _nn

__all__ = ["PSROIPool"]


class PSROIPool(_nn.Module):
    """`torch_npu.npu_ps_roi_pooling` as a layer; the cells of a region are `group_size` along each side."""

    def __init__(
        self, pooled_height: int, pooled_width: int, spatial_scale: float, group_size: int, output_dim: int
    ) -> None:
        super().__init__()
        self.pooled_height, self.pooled_width = pooled_height, pooled_width
        self.spatial_scale, self.group_size, self.output_dim = spatial_scale, group_size, output_dim

    def forward(self, features: _torch.Tensor, rois: _torch.Tensor) -> _torch.Tensor:
        result: _torch.Tensor = _torch.ops.npu.npu_ps_roi_pooling(
            features, rois, self.spatial_scale, self.group_size, self.output_dim
        )
        return result
