"""How far a function itself carries a change in the last bits of its inputs (Monte-Carlo arithmetic).

The golden is computed again with every floating input multiplied by 1 ± 2^-23, signs drawn at random, and for a module
every parameter by 1 ± its dtype's unit roundoff. The largest change of an element over four such runs is its spread:
large under cancellation, on steep slopes, and as large as the jump where a discontinuity is near (a floor, a tie). Runs
come in pairs of opposite signs, so that a jump on either side of an input is met. An error is legal when it is no
larger, in units of that spread, than errors of the CPU's own result are (judge/budget.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.transfer import Entry, flat_storage
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, run
from pytest_ascend.observe.reference import Reference, leaves
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["Yardsticks", "conditioning"]

RUNS = 4
INPUT_ROUNDOFF = 2.0**-23
_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def conditioning(
    case: Case, setting: Setting, golden: Capture, fn: Callable[..., Any] | None, paths: Collection[str]
) -> dict[str, torch.Tensor]:
    """The spread of every element at the given paths, as float64 tensors of the outputs' shapes.

    Raises:
        RunFailed: the function raised with slightly changed inputs.
    """
    if not paths:
        return {}
    before = leaves(golden)
    found: dict[str, torch.Tensor] = {}
    for i in range(RUNS):
        after = leaves(run(case, CpuTarget(), setting, floating=torch.float64, fn=fn, poison=_shaker(case, i)))
        for path in paths:
            if path in before and path in after and before[path].shape == after[path].shape:
                change = _distance(after[path], before[path])
                found[path] = change if path not in found else torch.maximum(found[path], change)
    return found


def _shaker(case: Case, number: int) -> Callable[[Entry], None]:
    """Changes the last bit of every floating input, storage by storage so that views stay consistent."""
    generator = torch.Generator(device="cpu").manual_seed(number // 2)
    direction = 1 if number % 2 else -1
    done: set[int] = set()

    def shake(entry: Entry) -> None:
        roundoff = INPUT_ROUNDOFF
        if entry.role != "argument":
            roundoff = _ROUNDOFF.get(entry.source.dtype, INPUT_ROUNDOFF)
        storage = flat_storage(entry.copy)
        if storage is None or storage[0] in done or not (entry.copy.is_floating_point() or entry.copy.is_complex()):
            return
        done.add(storage[0])
        if entry.role == "argument" and bool(((storage[1] == 0) | (storage[1].abs() == 1)).all()):
            return  # labels and masks are compared for equality and have no last bit
        with torch.no_grad():
            signs = torch.randint(0, 2, storage[1].shape, generator=generator).mul_(2).sub_(1)
            storage[1].mul_(1 + direction * roundoff * signs.to(torch.float64))

    return shake


def _distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Element-wise, NaN-safe; integers and booleans that differ are infinitely far apart."""
    if not (left.is_floating_point() or left.is_complex()):
        return torch.where(left == right, 0.0, float("inf")).double()
    wide = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
    left, right = left.to(wide), right.to(wide)
    equal = (left == right) | (left.isnan() & right.isnan())
    return torch.where(equal, 0.0, (left - right).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))).double()


@dataclass
class Yardsticks:
    """What a result in 16 bits is measured by beside golden and benchmark; computed on first use, and once.

    Attributes:
        case, setting, reference: as in the run that is judged.
        fn: the reference callable, or None when the case is its own.
    """

    case: Case
    setting: Setting
    reference: Reference
    fn: Callable[..., Any] | None = None
    _spreads: dict[str, torch.Tensor] = field(default_factory=dict)
    _once: dict[str, torch.Tensor] | None = None
    _composed: bool = True

    def spreads(self, paths: Collection[str]) -> dict[str, torch.Tensor]:
        """The spread of every element at the paths; paths that have none are missing.

        Raises:
            RunFailed: the function raised with slightly changed inputs.
        """
        missing = set(paths) - self._spreads.keys()
        if missing:
            self._spreads |= conditioning(self.case, self.setting, self.reference.golden, self.fn, missing)
        return {path: self._spreads[path] for path in paths if path in self._spreads}

    def once(self, path: str, dtype: torch.dtype) -> torch.Tensor | None:
        """What the CPU computes in float32, rounded once; None where it doesn't."""
        found = self._in_float32().get(path)
        return None if found is None else found.to(dtype)

    @property
    def composed(self) -> bool:
        """Whether the call is a composition of several compute kernels, or isn't known to be one kernel."""
        self._in_float32()
        return self._composed

    def _in_float32(self) -> dict[str, torch.Tensor]:
        if self._once is None:
            self._once = {}
            if self.setting.autocast is None:  # autocast rounds the inputs of single operators, on purpose
                kernels = _Kernels()
                fn = self.case.fn if self.fn is None else self.fn

                def counted(*args: Any, **kwargs: Any) -> Any:
                    with kernels:
                        return fn(*args, **kwargs)

                with contextlib.suppress(RunFailed, ValueError):
                    self._once = leaves(run(self.case, CpuTarget(), self.setting, floating=torch.float32, fn=counted))
                    self._composed = kernels.count > 1
        return self._once


_MOVES = frozenset(
    {
        *("aten::_to_copy", "aten::clone", "aten::copy_", "aten::detach", "aten::lift_fresh", "aten::resize_"),
        *("aten::cat", "aten::stack", "aten::constant_pad_nd", "aten::gather", "aten::index", "aten::index_select"),
        *("aten::where", "aten::arange", "aten::scalar_tensor", "aten::_local_scalar_dense"),
        *(f"aten::{name}{suffix}" for name in ("empty", "full", "ones", "zeros") for suffix in ("", "_like")),
        *(f"aten::new_{name}" for name in ("empty", "empty_strided", "full", "ones", "zeros")),
        *("aten::empty_strided", "aten::fill_", "aten::zero_"),
    }
)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the kernels that compute: not views, copies, conversions and fillings."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func._schema.name not in _MOVES:
            self.count += 1
        return func(*args, **(kwargs or {}))
