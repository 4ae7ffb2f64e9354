"""`torch_npu.contrib`: layers and functions made of torch_npu's operators."""

from __future__ import annotations

from . import function as function
from . import module as module
from .function import matmul_transpose as matmul_transpose
from .function import roll as roll
from .module import (
    LabelSmoothingCrossEntropy as LabelSmoothingCrossEntropy,
)
from .module import (
    Mish as Mish,
)
from .module import (
    NpuDropPath as NpuDropPath,
)
from .module import (
    PSROIPool as PSROIPool,
)
from .module import (
    ROIAlign as ROIAlign,
)
from .module import (
    SiLU as SiLU,
)
from .module import (
    Swish as Swish,
)
