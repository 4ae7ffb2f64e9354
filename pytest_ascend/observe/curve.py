"""The error curve of a model: how far off each layer is, in units of what the model itself explains there.

The unit of an element is how far the golden moves when every parameter is multiplied by 1 ± its dtype's roundoff
(``conditioning``), plus what storing it rounds away. In these units a right model stays on the benchmark's curve at any
depth, and a fault is a step at the guilty layer, from which later layers carry it on: on MiniLM in float32 a layer that
is 1 % too large goes from 2.8 to 9988.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_ascend.judge import budget
from pytest_ascend.judge.verdict import CheckpointResult, Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.reference import Judged, leaves

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["Point", "judge", "measure", "prepare", "step", "words"]


@dataclass(frozen=True)
class Point:
    """One layer's root mean square error in units, the target's and the benchmark's."""

    name: str
    actual: float
    benchmark: float

    @property
    def times(self) -> float:
        """How many times as far off as the benchmark the target is; rounding once is not counted as less than it is."""
        return self.actual / max(self.benchmark, budget.SPREAD / budget.SPREAD_RATIO)


def prepare(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """A step of a second look: measure the units of all layers together with what is measured next; changes nothing."""
    if look.reference.criterion.name == "auto" and actual.checkpoints and look.reference.benchmark is not None:
        failing = {output.path for output in judged.failing}
        look.measure().spreads(failing | set().union(*_paths(look, actual).values()))
    return judged, []


def measure(look: SecondLook, actual: Capture) -> list[Point]:
    """The curve, in the order in which layers ended; layers without floating outputs are left out.

    Raises:
        RunFailed: the model raised with slightly changed parameters.
    """
    paths = _paths(look, actual)
    if look.reference.benchmark is None or not paths:
        return []
    spreads = look.measure().spreads(set().union(*paths.values()))
    golden, benchmark, here = (leaves(side) for side in (look.reference.golden, look.reference.benchmark, actual))
    points = []
    for name, of_layer in paths.items():
        known = [path for path in of_layer if path in spreads]
        errors = [
            (
                _rms(golden[p], here[p], here[p].dtype, spreads[p]),
                _rms(golden[p], benchmark[p], here[p].dtype, spreads[p]),
            )
            for p in known
        ]
        if errors:
            points.append(Point(name, *max(errors)))
    return points


def step(points: Sequence[Point]) -> Point | None:
    """Where the curve leaves the benchmark's: the first layer that is half as far off as the worst, in powers.

    What is a little outside before a real step is chance, and what comes after it was carried there.
    """
    worst = max((point.times for point in points), default=0.0)
    least = max(budget.SPREAD_RATIO, math.sqrt(min(worst, 1e300)))
    return next((point for point in points if point.times > least), None)


def words(points: Sequence[Point], name: str) -> str:
    """``error rms 9988 units here, 2.8 before``, and the benchmark's."""
    at = next((i for i, point in enumerate(points) if point.name == name), None)
    if at is None:
        return ""
    before = f", {points[at - 1].actual:.3g} before" if at else ""
    return f"error rms {points[at].actual:.4g} units here{before} (the CPU's own: {points[at].benchmark:.3g})"


def judge(judged: Judged, points: Sequence[Point]) -> Judged:
    """The judgement with the step as its first wrong layer: what was a little outside before it is MARGINAL."""
    found = step(points)
    if found is None:
        return judged
    order = [layer.name for layer in judged.checkpoints]
    at = order.index(found.name) if found.name in order else 0
    reason = f"a step in the error curve: {words(points, found.name)}"
    known = {point.name for point in points}

    def layer(number: int, result: CheckpointResult) -> CheckpointResult:
        if number == at:
            return CheckpointResult.of(result.name, (_marked(o, Verdict.FAIL, reason) for o in result.outputs))
        if number < at and result.name in known:
            why = f"{words(points, result.name)}; the step in the error curve is later, at {found.name!r}"
            outputs = (
                _marked(o, Verdict.MARGINAL, why) if o.verdict is Verdict.FAIL and o.kind in _NUMERIC else o
                for o in result.outputs
            )
            return CheckpointResult.of(result.name, outputs)
        return result

    return Judged(judged.outputs, tuple(layer(i, result) for i, result in enumerate(judged.checkpoints)))


_NUMERIC = (Kind.local, Kind.spread, Kind.bias)


def _marked(output: OutputResult, verdict: Verdict, reason: str) -> OutputResult:
    if output.metrics is None or "float" not in output.dtype:
        return output
    why = f"{reason}; {output.reason}" if output.reason else reason
    failed = verdict is Verdict.FAIL
    kind = (output.kind or Kind.spread) if failed else None
    return dataclasses.replace(output, verdict=verdict, kind=kind, reason=why, status="fail" if failed else "warning")


def _paths(look: SecondLook, actual: Capture) -> Mapping[str, set[str]]:
    """Floating outputs that all sides have in one shape, by layer."""
    assert look.reference.benchmark is not None
    found: dict[str, set[str]] = {}
    for name in actual.checkpoints:
        sides = [
            leaves(Capture(None, checkpoints={name: side.checkpoints[name]})) if name in side.checkpoints else {}
            for side in (look.reference.golden, look.reference.benchmark, actual)
        ]
        golden, benchmark, here = sides
        paths = {
            path
            for path, value in here.items()
            if value.is_floating_point() and value.numel() and path in golden and path in benchmark
            if golden[path].dtype is torch.float64 and golden[path].shape == value.shape == benchmark[path].shape
        }
        if paths:
            found[name] = paths
    return found


def _rms(golden: torch.Tensor, other: torch.Tensor, dtype: torch.dtype, spread: torch.Tensor) -> float:
    errors = budget.normalised(golden, other, budget.unit(golden, dtype, spread))
    return float(errors.square().mean().sqrt())
