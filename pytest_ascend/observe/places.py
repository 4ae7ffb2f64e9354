"""Where a check's outputs are wrong: the patterns and pictures of judge/ beside what was captured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pytest_ascend.judge.pictures import picture
from pytest_ascend.judge.places import with_pattern
from pytest_ascend.judge.verdict import OutputResult, Verdict, worst_output
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.reference import Judged, Reference, leaves

__all__ = ["with_places"]

_PICTURES = 3  # of one check


def with_places(judged: Judged, reference: Reference, actual: Capture) -> Judged:
    """The judgement with the patterns of what is wrong, and pictures of the worst: of outputs, and of the first layer
    that is."""
    first = next((layer for layer in judged.checkpoints if layer.diverges), None)
    if first is None and all(output.status == "pass" for output in judged.outputs):
        return judged
    golden, own, here = leaves(reference.golden), leaves(reference.own), leaves(actual)

    spreads = {} if reference.yardsticks is None else reference.yardsticks.known
    drawn = _worst(judged.outputs) + ([] if first is None else _worst(first.outputs)[:1])

    def one(output: OutputResult) -> OutputResult:
        path = output.path
        if path not in golden or path not in here:
            return output
        found = with_pattern(output, golden[path], here[path], own.get(path), reference.criterion)
        if not any(output is other for other in drawn):
            return found
        seen = picture(golden[path], here[path], own.get(path), spreads.get(path))
        return dataclasses.replace(found, picture=seen)

    layers = tuple(
        dataclasses.replace(layer, outputs=tuple(map(one, layer.outputs))) if layer is first else layer
        for layer in judged.checkpoints
    )
    return dataclasses.replace(judged, outputs=tuple(map(one, judged.outputs)), checkpoints=layers)


def _worst(outputs: Iterable[OutputResult]) -> list[OutputResult]:
    """Those to draw: the worst of what has numbers and failed, or nearly did."""
    left = [o for o in outputs if o.metrics and (o.verdict.outcome == "failed" or o.verdict is Verdict.MARGINAL)]
    found: list[OutputResult] = []
    while left and len(found) < _PICTURES and (worst := worst_output(left)) is not None:
        found.append(worst)
        left = [output for output in left if output is not worst]
    return found
