"""torch_npu's own operators, one module for each idea; importing them registers them."""

from __future__ import annotations

from . import (
    activation as activation,
)
from . import (
    attention as attention,
)
from . import (
    boxes as boxes,
)
from . import (
    deformable as deformable,
)
from . import (
    dropout as dropout,
)
from . import (
    formats as formats,
)
from . import (
    linear as linear,
)
from . import (
    loss as loss,
)
from . import (
    nms as nms,
)
from . import (
    norm as norm,
)
from . import (
    optimizer as optimizer,
)
from . import (
    quant as quant,
)
from . import (
    registry as registry,
)
from . import (
    roi as roi,
)
from . import (
    rotary as rotary,
)
from . import (
    rotated as rotated,
)
from . import (
    shapes as shapes,
)
from . import (
    status as status,
)
