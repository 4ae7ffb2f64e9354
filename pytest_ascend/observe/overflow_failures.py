"""Failures that are overflows: right with smaller inputs, and magnitudes here that the dtype can't hold.

An overflow inside a kernel comes out as NaN, as Inf, or as plain zeros (the inverse of an infinite norm), so what is
wrong doesn't tell why. Two things together do. The numbers on the way are too large: the CPU's run in float64 shows
every intermediate result, and for sums of products the sum of their sizes, since partial sums may grow beyond a result
that cancels. And the target is right when its inputs are divided by 2^6 or 2^10: what a constant, an index or a formula
gets wrong stays wrong then.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from pytest_ascend.cases.transfer import Entry, flat_storage
from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture, run
from pytest_ascend.observe.reference import Judged
from pytest_ascend.observe.undefined import golden_precision
from pytest_ascend.observe.variants import CONVOLUTIONS, MATMULS, Variant
from pytest_ascend.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["overflow"]

#: powers of two that inputs are divided by, one after the other
POWERS = (6, 10)
_NOT = (Kind.structure, Kind.shape, Kind.dtype, Kind.mutation, Kind.layout, Kind.unwritten, Kind.exact)
_SUMS = ("sum", "cumsum", "nansum", "linalg_vector_norm", "norm")


def overflow(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """Name failures an overflow, where they are one; they stay failures."""
    paths = {o.path for o in judged.failing if o.kind not in _NOT and _is_floating(o.dtype)}
    paths -= look.settled.keys()
    dtype = getattr(torch, look.case.dtype, None)
    if not paths or dtype is None or not dtype.is_floating_point:
        return judged, []
    limit = torch.finfo(dtype).max
    sizes = _Sizes(limit)
    precision = golden_precision(look)
    run(look.case, CpuTarget(), look.setting, floating=precision, fn=look.fn, mode=sizes)
    squared = max((_largest(t) ** 2 for t in look.case.tensors if t.is_floating_point()), default=0.0)
    if not sizes.met and not squared > limit:
        return judged, []
    for power in POWERS:
        right = frozenset(paths - _wrong_when_smaller(look, power, precision))
        if right:
            what = sizes.words() if sizes.met else f"squares of the inputs reach {squared:.3g}"
            reason = (
                f"an overflow: right with inputs divided by {2**power}, and {what}, more than the largest "
                f"{dtype_name(dtype)} number {limit:.6g}"
            )
            here = functools.partial(_is_one_of, right)
            return judged.replaced(here, Verdict.FAIL, reason, kind=Kind.overflow), []
    return judged, []


def _is_one_of(paths: frozenset[str], output: OutputResult) -> bool:
    return output.path in paths


def _wrong_when_smaller(look: SecondLook, power: int, precision: torch.dtype | None) -> set[str]:
    """Paths that fail with the inputs divided, on both sides."""
    cpu = CpuTarget()
    golden = run(look.case, cpu, look.setting, floating=precision, fn=look.fn, poison=_divided(power))
    benchmark: Capture | None = golden
    if look.reference.benchmark is None:
        benchmark = None
    elif precision is not None:
        benchmark = run(look.case, cpu, look.setting, fn=look.fn, poison=_divided(power))
    reference = dataclasses.replace(look.reference, golden=golden, benchmark=benchmark, inputs=())
    again = reference.judge(look.run(poison=_divided(power)), only_arguments=look.only_arguments)
    return {output.path for output in again.failing}


def _divided(power: int) -> Callable[[Entry], None]:
    """Divides arguments that hold numbers above 1, storage by storage so that views stay consistent."""
    done: set[int] = set()

    def divide(entry: Entry) -> None:
        storage = flat_storage(entry.copy)
        if entry.role != "argument" or storage is None or storage[0] in done or not entry.copy.is_floating_point():
            return
        done.add(storage[0])
        if _largest(storage[1]) > 1.0:  # masks, labels and probabilities stay
            with torch.no_grad():
                storage[1].mul_(2.0**-power)

    return divide


class _Sizes(Variant):
    """Notes the largest number on the way, and the operator it came from."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.largest = limit
        self.name = ""

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor):
                self._note(one, f"results of {name} reach")
        plain = name.removesuffix("_")
        if plain in MATMULS or plain in CONVOLUTIONS or plain in _SUMS:
            sizes = [a.detach().abs() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
            if name == plain and "out" not in kwargs:
                summed = func(*sizes, **kwargs)
                summed = summed[0] if isinstance(summed, (tuple, list)) else summed
                self._note(summed, f"sums of {name} reach")
        elif plain in ("_softmax", "_log_softmax"):  # a kernel that doesn't subtract the maximum first
            self._note(
                torch.tensor(_largest(args[0]), dtype=torch.float64).exp(),
                f"exponentials in {plain.removeprefix('_')} reach",
            )
        elif plain in ("mean", "native_layer_norm", "var", "std", "var_mean"):
            self._note(args[0].detach().abs().sum(), f"sums of {name} reach")
        return result

    def _note(self, value: torch.Tensor, what: str) -> None:
        largest = _largest(value) if value.is_floating_point() else 0.0
        if largest > self.limit:
            self.met += 1
        if largest > self.largest:
            self.largest, self.name = largest, what

    def words(self) -> str:
        """Which number is the largest."""
        return f"{self.name} {self.largest:.3g}"


def _largest(value: torch.Tensor) -> float:
    """The largest finite size: an infinite mask is no overflow."""
    value = value.detach()
    if not value.numel() or value.layout is not torch.strided or value.dtype.itemsize < 2:
        return 0.0
    return float(value.abs().nan_to_num(nan=0.0, posinf=0.0).max())


def _is_floating(name: str) -> bool:
    dtype = getattr(torch, name, None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point
