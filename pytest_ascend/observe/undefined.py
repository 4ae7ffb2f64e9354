"""Results that the API leaves open: casts beyond the range, and several writes to one place.

Both look at a failure element by element. What is the same in every legal result must be right; what differs from one
legal result to the next is no fault, where a legal result has the target's value there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from pytest_ascend.judge.structure import widened
from pytest_ascend.judge.verdict import Kind, Verdict
from pytest_ascend.observe.capture import Capture, run
from pytest_ascend.observe.reference import Judged, leaves
from pytest_ascend.observe.variants import Beyond, Variant, Winner, with_leaves
from pytest_ascend.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["duplicates", "golden_precision", "open_casts", "variant_of"]

_FORM = (Kind.structure, Kind.shape, Kind.dtype)
#: ranks of a winner that are tried: all where no more than so many writes go to one place
_RANKS = 32

Both = tuple[Capture, Capture | None]


def golden_precision(look: SecondLook) -> torch.dtype | None:
    """The precision the golden was computed in, as :func:`run` takes it."""
    if look.reference.golden is look.reference.benchmark:
        return None
    dtypes = {value.dtype for value in leaves(look.reference.golden).values()}
    narrow = torch.float32 in dtypes and not dtypes & {torch.float64, torch.complex128}
    return torch.float32 if narrow and look.reference.benchmark is not None else torch.float64


def variant_of(look: SecondLook, make: Callable[[torch.dtype | None], Variant]) -> tuple[Both, Variant]:
    """Golden and benchmark under a variant, and the variant that met the golden's run.

    Raises:
        RunFailed: it raised.
    """
    precision = golden_precision(look)
    mode = make(precision)
    golden = run(look.case, CpuTarget(), look.setting, floating=precision, fn=look.fn, mode=mode)
    if look.reference.benchmark is None or not mode.met:
        return (golden, None), mode
    if precision is None:
        return (golden, golden), mode
    return (golden, run(look.case, CpuTarget(), look.setting, fn=look.fn, mode=make(None))), mode


def open_casts(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """UNDEFINED where every wrong element changes between legal casts of numbers beyond the range."""
    failing = _looked_at(look, judged)
    if not failing:
        return judged, []
    results: list[Both] = [(look.reference.golden, look.reference.benchmark)]
    for how in Beyond.WAYS:
        both, mode = variant_of(look, lambda _, how=how: Beyond(how))  # type: ignore[misc]
        if not mode.met:
            return judged, []
        results.append(both)
    here = leaves(actual)
    open_, count = {}, {}
    for path in failing:
        mask = _varying([leaves(side)[path] for both in results for side in both if side and path in leaves(side)])
        if mask is not None and path in here and mask.shape == here[path].shape and bool(mask.any()):
            open_[path], count[path] = mask, int(mask.sum())
    excused = _judged_beside(look, actual, open_)
    for path in excused:
        reason = (
            f"{count[path]} of {here[path].numel()} elements come from a cast (or shift) beyond the range of its dtype,"
            " which has no defined result; the others are right"
        )
        judged = judged.replaced(lambda o, path=path: o.path == path, Verdict.UNDEFINED, reason)  # type: ignore[misc]
    return judged, []


def duplicates(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """NOT_COMPARABLE where every wrong element holds what another winner of duplicate writes would have left."""
    failing = _looked_at(look, judged)
    if not failing:
        return judged, []
    first, mode = variant_of(look, lambda _: Winner(0))
    assert isinstance(mode, Winner)
    if mode.most < 2:
        return judged, []
    ops = " and ".join(sorted(mode.ops))
    step = max(1, -(-mode.most // _RANKS))
    results = [(look.reference.golden, look.reference.benchmark), first]
    for rank in sorted({*range(step, mode.most, step), mode.most - 1}):
        results.append(variant_of(look, lambda _, rank=rank: Winner(rank))[0])  # type: ignore[misc]
    legal = _nearest(look, actual, failing, results)
    excused = failing - {o.path for o in legal.failing}
    if mode.computed or step > 1:
        excused |= _judged_beside(look, actual, _between(actual, failing - excused, results))
    reason = f"several values are written to one place ({ops}), and any may stay: give unique indices to compare them"
    return judged.replaced(lambda o: o.path in excused, Verdict.NOT_COMPARABLE, reason), []


def _looked_at(look: SecondLook, judged: Judged) -> set[str]:
    if look.reference.criterion.name != "auto":
        return set()
    return {o.path for o in judged.failing if o.kind not in _FORM and o.path not in look.settled}


def _varying(values: list[torch.Tensor]) -> torch.Tensor | None:
    """Where results differ in more than rounding."""
    if len({value.shape for value in values}) != 1:
        return None
    mask = torch.zeros(values[0].shape, dtype=torch.bool)
    wide = [widened(value) for value in values]
    for other in wide[1:]:
        same = (other == wide[0]) | (other.isnan() & wide[0].isnan())
        near = (other - wide[0]).abs() <= 2.0**-6 * wide[0].abs()
        mask |= ~(same | near)
    return mask


def _judged_beside(look: SecondLook, actual: Capture, open_: Mapping[str, torch.Tensor]) -> set[str]:
    """Paths that are right where the mask is False."""
    if not open_:
        return set()
    here, own = leaves(actual), leaves(look.reference.own)
    new = {path: torch.where(mask, own[path].to(here[path].dtype), here[path]) for path, mask in open_.items()}
    judged = look.judge(with_leaves(actual, here, new))
    return set(open_) - {o.path for o in judged.failing}


def _nearest(look: SecondLook, actual: Capture, paths: set[str], results: list[Both]) -> Judged:
    """Judge the target beside the legal result that is nearest to it, element by element."""
    here, goldens, own = leaves(actual), [leaves(g) for g, _ in results], leaves(look.reference.golden)
    benchmarks = [leaves(b) if b is not None else {} for _, b in results]
    golden, benchmark = {}, {}
    for path in paths:
        if path not in here or any(path not in g or g[path].shape != here[path].shape for g in goldens):
            continue
        value = widened(here[path])
        options = torch.stack([g[path] for g in goldens])
        apart = (widened(options) - value).abs()
        apart = torch.where(
            (widened(options) == value) | (widened(options).isnan() & value.isnan()), 0.0, apart.double()
        )
        best = apart.nan_to_num(nan=float("inf")).argmin(0, keepdim=True)
        golden[path] = options.gather(0, best)[0]
        if all(path in b for b in benchmarks):
            benchmark[path] = torch.stack([b[path] for b in benchmarks]).gather(0, best)[0]
    reference = look.reference
    look.measure()  # of the golden as it is: it is shared by what replaces it
    left = with_leaves(reference.golden, own, golden)
    right = left if reference.benchmark is reference.golden else reference.benchmark
    if right is not None and right is not left:
        right = with_leaves(right, leaves(right), benchmark)
    beside = dataclasses.replace(reference, golden=left, benchmark=right)
    return dataclasses.replace(look, reference=beside, settled={}, sure=set()).judge(actual)


def _between(actual: Capture, paths: set[str], results: list[Both]) -> dict[str, torch.Tensor]:
    """Where legal results differ, and the target lies between the outermost: a mixture of winners that was computed."""
    here, found = leaves(actual), {}
    goldens = [leaves(golden) for golden, _ in results]
    for path in paths:
        if path not in here or here[path].is_complex() or any(path not in g for g in goldens):
            continue
        options = torch.stack([g[path].double() for g in goldens])
        low, high = options.min(0).values, options.max(0).values
        room = 2.0**-7 * (high - low)
        value = here[path].double()
        inside = (high > low) & (value >= low - room) & (value <= high + room)
        if bool(inside.any()):
            found[path] = inside
    return found
