"""`torch_npu.contrib.module`."""

from __future__ import annotations

from . import (
    activations as activations,
)
from . import (
    crossentropy as crossentropy,
)
from . import (
    drop_path as drop_path,
)
from . import (
    npu_modules as npu_modules,
)
from . import (
    ps_roi_pooling as ps_roi_pooling,
)
from . import (
    roi_align as roi_align,
)
from .activations import Mish as Mish
from .activations import SiLU as SiLU
from .activations import Swish as Swish
from .crossentropy import LabelSmoothingCrossEntropy as LabelSmoothingCrossEntropy
from .drop_path import NpuDropPath as NpuDropPath
from .npu_modules import DropoutWithByteMask as DropoutWithByteMask
from .ps_roi_pooling import PSROIPool as PSROIPool
from .roi_align import ROIAlign as ROIAlign
