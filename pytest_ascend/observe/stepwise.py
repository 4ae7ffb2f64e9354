"""Results of rounding (floor, round, a cast to integers, an index): where a step is near, element by element.

Nothing is between two neighbouring integers, so the last bit of an input decides at a tie, and one element that fell
the other way is no fault. What is no tie is exact, though. An element is right when it is the golden's or the CPU's
own, or when the golden itself changes that much with the last bits of its inputs (observe/conditioning.py); every other
one is wrong, however many ties there are beside it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from pytest_ascend.cases.case import Case
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.reference import Judged, leaves

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["judge_steps"]

#: The least that a jump between whole numbers is.
_STEP = 0.5


def judge_steps(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """Failures whose values are integers, judged without the elements at a tie."""
    reference = look.reference
    if reference.criterion.name != "auto" or reference.golden.backward_error is not None or reference.own.drew:
        return judged, []
    doubtful = look.doubtful(judged)
    values = {o.path for o in judged.failing if o.kind in (Kind.exact, Kind.local, Kind.spread, Kind.bias)} | doubtful
    golden, own, here = leaves(look.reference.golden), leaves(look.reference.own), leaves(actual)
    paths = {
        path
        for path in values - look.settled.keys()
        if path in golden and path in own and path in here and golden[path].shape == here[path].shape == own[path].shape
        if _is_stepwise(golden[path]) and _is_stepwise(here[path]) and _is_stepwise(own[path])
    }
    if not paths:
        return judged, []
    found: dict[str, tuple[Verdict, str]] = {}
    floating = {path for path in paths if golden[path].is_floating_point()}
    if _one_number(look.case):  # round, floor and the like have nothing to compute before the step
        floating = set()
    spreads = look.measure().spreads(floating) | look.measure().jumps(paths - floating)
    for path in paths:
        spread = spreads.get(path, torch.zeros(golden[path].shape, dtype=torch.float64))
        if path in floating and not bool(((spread == 0) | (spread >= _STEP)).all()):
            continue  # whole numbers by chance: what is rounded stays whole when the inputs move, or jumps
        left, right = golden[path].double(), here[path].double()
        differs = left != right
        apart, theirs = (left - right).abs(), (left - own[path].double()).abs()
        excused = differs & ((own[path].double() == right) | (apart <= spread))
        # Where nothing can be told, or the CPU fell the other way where four draws didn't, no element is sure. Among
        # integers, which may be indices, the size of a jump says nothing.
        if path in doubtful or (path in floating and bool((theirs > spread).any())):
            excused |= differs & (apart <= torch.maximum(theirs.max(), spread.nan_to_num(posinf=0.0).max()))
        wrong, at_ties = int((differs & ~excused).sum()), int(excused.sum())
        if wrong and (at_ties or path in doubtful):
            more = f"; {at_ties} more lie at a tie of rounding and may fall either way" if at_ties else ""
            first = [int(n) for n in (differs & ~excused).nonzero()[0]]
            place = f" (first at {first})" if first else ""
            found[path] = Verdict.FAIL, f"{wrong} of {left.numel()} elements are wrong{place}{more}"
        elif at_ties and not wrong:
            found[path] = (
                Verdict.AMPLIFIED,
                f"{at_ties} of {left.numel()} elements lie at a tie, where a last bit decides",
            )

    def one(output: OutputResult) -> OutputResult:
        verdict, said = found.get(output.path, (None, ""))
        if verdict is None:
            return output
        reason = f"{said}; {output.reason}" if output.reason else said
        if verdict is Verdict.AMPLIFIED:
            return dataclasses.replace(output, verdict=verdict, kind=None, reason=reason, status="warning")
        new = dataclasses.replace(output, verdict=verdict, kind=output.kind or Kind.local, reason=reason, status="fail")
        if output.path in doubtful:
            look.settled[output.path] = new
        return new

    return Judged(tuple(map(one, judged.outputs)), judged.checkpoints), []


def _one_number(case: Case) -> bool:
    """Whether no two floating numbers meet in the call, so that a single kernel has nothing to round before a step."""
    values = tree_leaves((case.args, dict(case.kwargs)))
    floats = [v for v in values if isinstance(v, float) or (isinstance(v, torch.Tensor) and not _whole(v))]
    return len(floats) <= 1


def _whole(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _is_stepwise(value: torch.Tensor) -> bool:
    """Whether all values are whole numbers."""
    if value.is_complex() or not value.numel():
        return False
    if not value.is_floating_point():
        return True
    finite = bool(value.isfinite().all())
    return finite and bool((value == value.round()).all()) and bool((value.abs() < 2**53).all())
