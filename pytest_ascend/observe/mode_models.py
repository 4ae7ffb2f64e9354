"""Modes of a chip as models of the golden, for what the target has no switch to turn off.

A documented mode that can be switched off is switched off (``SecondLook``): the target itself then shows that it was
the cause. Saturation of the 910A and 310P, flushed subnormals of the 950, gelu of an older torch_npu can't be. There
the CPU computes golden and benchmark as the mode would have it (observe/variants.py), and the target is judged beside
these: MODE_DIFF where it is right then. A mode is tried only where the case runs an operator it changes, and excuses
only on a chip that documents it and has it on. A mode that isn't on here is no excuse for anything; where it would
explain the failure, a note says so, because somebody who wrote a kernel wants to know that it computes in HF32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_ascend.judge.verdict import Kind, Verdict
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.reference import Judged, apart, leaves
from pytest_ascend.observe.undefined import variant_of
from pytest_ascend.observe.variants import Flushing, Products, Saturating, TanhGelu, Variant
from pytest_ascend.targets.base import Target

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["modelled"]

# Sources: torch_npu's documentation of HF32 (A2, A3 and 950), of the overflow mode (910A and 310P saturate only), of
# gelu (the tanh form before 950), of subnormal numbers (950 flushes them).
_HF32 = ("Ascend910B", "Ascend910_93", "Ascend950")
_SATURATES = ("Ascend910A", "Ascend310P")
_FLUSHES = ("Ascend950",)
_TANH = ("Ascend910A", "Ascend310P", "Ascend310B", "Ascend910B", "Ascend910_93")

_FORM = (Kind.structure, Kind.shape, Kind.dtype, Kind.mutation)
#: errors beside the result's size that rounded factors and another form of gelu leave at most
_SLIGHT = 2.0**-7


@dataclass(frozen=True)
class _Mode:
    """A mode: what it is, whether this target documents it and has it on, and how the CPU models it.

    ``slight`` modes leave small errors only, so larger ones needn't be looked at.
    """

    what: str
    on: bool
    make: Callable[[], Variant]
    slight: bool = True


def modelled(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """MODE_DIFF where a mode of the chip, modelled on the CPU, explains every failure; a note where it isn't on."""
    if look.reference.criterion.name != "auto":
        return judged, []
    failing = [o for o in judged.failing if o.path not in look.settled]
    if not failing or any(o.kind in _FORM for o in failing):
        return judged, []
    dtype = getattr(torch, look.case.dtype, None)
    if dtype is None or not dtype.is_floating_point:
        return judged, []
    slight = _are_slight({o.path for o in failing}, look.reference.golden, actual)
    look.measure()  # of the golden as it is: a mode's own error doesn't widen its unit
    note = ""
    for mode in _modes(look.target, dtype):
        if (mode.slight and not slight) or (note and not mode.on):
            continue
        (golden, benchmark), met = variant_of(look, lambda _, mode=mode: mode.make())  # type: ignore[misc]
        if not met.met:
            continue
        reference = dataclasses.replace(look.reference, golden=golden, benchmark=benchmark)
        beside = dataclasses.replace(look, reference=reference, settled={}, sure=set())
        if beside.judge(actual).failed:
            continue
        # An infinity's unit is infinite, and what stands in its place is exact.
        if not mode.slight and reference.judge(actual, only_arguments=look.only_arguments).failed:
            continue
        if not _signs_agree(look.reference.golden, golden, actual):
            continue
        if mode.on:
            reason = f"explained by {mode.what}: within the criterion beside a CPU that computes so"
            return judged.replaced(lambda o: True, Verdict.MODE_DIFF, reason, status="warning"), []
        note = f"it is as if computed with {mode.what}, which is no mode of this target, or is off"
    return judged, [note] if note else []


def _modes(target: Target, dtype: torch.dtype) -> Iterator[_Mode]:
    """The modes there are, those that are on first."""
    info = torch.finfo(dtype)
    soc, modes = target.soc(initialised=True), target.modes(initialised=True)
    switches = " ".join(target.switches().values())
    convolution, matmul = (modes.get(f"hf32_{name}", False) is True for name in ("conv", "matmul"))
    found = []
    if dtype is torch.float32:
        hf32 = soc in _HF32
        for name, on in (("convolution", convolution), ("matmul", matmul)):
            make = _products(11, name)
            found.append(_Mode(f"HF32 (factors of 11 mantissa bits) in {name}", hf32 and on, make))
        both = _Mode("HF32 in convolution and matmul", hf32 and convolution and matmul, lambda: Products(11))
        tf32 = any(modes.get(f"tf32_{name}", False) for name in ("conv", "matmul"))
        found += [both, _Mode("TF32 (factors of 10 mantissa bits)", tf32, lambda: Products(10))]
    tanh = soc in _TANH and ("gelu" in switches or not hasattr(_npu(), "are_compatible_impl_enabled"))
    found.append(_Mode("the tanh form of gelu", tanh, TanhGelu))
    saturates = soc in _SATURATES or modes.get("overflow_mode") == "saturation"
    what = "saturation (the largest number for Inf, 0 for NaN)"
    found.append(_Mode(what, saturates, lambda: Saturating(info.max), slight=False))
    for inputs in (False, True):
        what = f"subnormal numbers flushed to zero{', inputs too' if inputs else ''}"
        make = _flushing(info.smallest_normal, inputs)
        found.append(_Mode(what, soc in _FLUSHES, make, slight=False))
    yield from sorted(found, key=lambda mode: not mode.on)


def _npu() -> object:
    return getattr(torch, "npu", None)


def _products(bits: int, name: str) -> Callable[[], Variant]:
    return lambda: Products(bits, matmul=name == "matmul", convolution=name == "convolution")


def _flushing(smallest: float, inputs: bool) -> Callable[[], Variant]:
    return lambda: Flushing(smallest, inputs=inputs)


def _are_slight(paths: set[str], golden: Capture, actual: Capture) -> bool:
    """Whether errors are as small as fewer mantissa bits leave them, beside the size of the result."""
    there, here = leaves(golden), leaves(actual)
    for path in paths:
        if path not in there or path not in here or there[path].shape != here[path].shape:
            return False
        error, size = apart(there[path], here[path])
        if not error <= _SLIGHT * size:
            return False
    return True


def _signs_agree(before: Capture, after: Capture, actual: Capture) -> bool:
    """Whether what a mode turned into zeros are zeros of the mode's sign on the target."""
    left, right, here = leaves(before), leaves(after), leaves(actual)
    for path, value in right.items():
        if path not in left or path not in here or not value.is_floating_point() or value.shape != here[path].shape:
            continue
        made = (value == 0) & (left[path] != 0)
        if bool((made & ((here[path] != 0) | (torch.signbit(here[path]) != torch.signbit(value)))).any()):
            return False
    return True
