"""`torch_npu.utils`: versions."""

from __future__ import annotations

from .npu.utils import get_cann_version as get_cann_version
