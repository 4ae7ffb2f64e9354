"""What `import torch_npu` gives while the emulator is installed: the real package's names over the emulated device."""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from importlib.abc import Loader as _Loader
from importlib.abc import MetaPathFinder as _Finder
from importlib.machinery import ModuleSpec as _ModuleSpec
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import Any as _Any

from . import _C as _C
from . import contrib as contrib
from . import npu as npu
from . import utils as utils
from ._ops import formats as _formats
from ._ops import registry as _registry

__version__ = "2.13.0+emulated"
Format = _formats.Format
# Every operator under its own name, as torch_npu binds them.
globals().update(_registry.public())


class _Alias(_Finder, _Loader):
    """Serves `torch_npu.x` as the very module that lies here, so that there is one copy of each."""

    def find_spec(self, name: str, path: _Any = None, target: _Any = None) -> _ModuleSpec | None:
        if not name.startswith("torch_npu."):
            return None
        here = __name__ + name.removeprefix("torch_npu")
        try:
            found = _find_spec(here)
        except ModuleNotFoundError:
            return None
        return _ModuleSpec(name, self, is_package=found.submodule_search_locations is not None) if found else None

    def create_module(self, spec: _ModuleSpec) -> _ModuleType:
        return _import_module(__name__ + spec.name.removeprefix("torch_npu"))

    def exec_module(self, module: _ModuleType) -> None:
        return None


def expose() -> None:
    """Make this package importable as `torch_npu`."""
    _sys.modules["torch_npu"] = _sys.modules[__name__]
    _sys.meta_path.insert(0, _Alias())
