"""Compare models and APIs on a Huawei Ascend NPU against a CPU reference.

The names below are the public interface; everything else is private. They are loaded on first use, so that importing
the package (which pytest does for every run once the plugin is installed) imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ascend import dumps as dumps
    from pytest_ascend import perf as perf
    from pytest_ascend import strategies as strategies
    from pytest_ascend.cases.catalogue.draw import Draw as Draw
    from pytest_ascend.cases.references import register_reference as register_reference
    from pytest_ascend.cases.strategies import ascend_cases as ascend_cases
    from pytest_ascend.check import check as check
    from pytest_ascend.judge.compare import compare as compare
    from pytest_ascend.judge.verdict import CheckResult as CheckResult
    from pytest_ascend.judge.verdict import Verdict as Verdict
    from pytest_ascend.observe.overflow_watch import watch_overflow as watch_overflow
    from pytest_ascend.observe.recording import record as record
    from pytest_ascend.options import CheckOptions as CheckOptions
    from pytest_ascend.targets import emulator as emulator

__version__ = "0.1.0"

# Public name → (module that holds it, attribute; None: the module itself).
_HOMES: dict[str, tuple[str, str | None]] = {
    "check": ("pytest_ascend.check", "check"),
    "compare": ("pytest_ascend.judge.compare", "compare"),
    "CheckOptions": ("pytest_ascend.options", "CheckOptions"),
    "Draw": ("pytest_ascend.cases.catalogue.draw", "Draw"),
    "CheckResult": ("pytest_ascend.judge.verdict", "CheckResult"),
    "Verdict": ("pytest_ascend.judge.verdict", "Verdict"),
    "ascend_cases": ("pytest_ascend.cases.strategies", "ascend_cases"),
    "dumps": ("pytest_ascend.dumps", None),
    "perf": ("pytest_ascend.perf", None),
    "strategies": ("pytest_ascend.strategies", None),
    "record": ("pytest_ascend.observe.recording", "record"),
    "register_reference": ("pytest_ascend.cases.references", "register_reference"),
    "emulator": ("pytest_ascend.targets.emulator", None),
    "watch_overflow": ("pytest_ascend.observe.overflow_watch", "watch_overflow"),
}

__all__ = [
    "CheckOptions",
    "CheckResult",
    "Draw",
    "Verdict",
    "__version__",
    "ascend_cases",
    "check",
    "compare",
    "dumps",
    "emulator",
    "perf",
    "record",
    "register_reference",
    "strategies",
    "watch_overflow",
]


def __getattr__(name: str) -> Any:
    try:
        module_name, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class _Package(ModuleType):
    """This package. Loading the submodule `check` binds it to `pytest_ascend.check`, where the function belongs."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "check" and isinstance(value, ModuleType):
            value = value.check
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
