"""Where a check's outputs are wrong: the patterns of judge/places.py beside what was captured."""

from __future__ import annotations

import dataclasses

from pytest_ascend.judge.places import with_pattern
from pytest_ascend.judge.verdict import OutputResult
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.reference import Judged, Reference, leaves

__all__ = ["with_places"]


def with_places(judged: Judged, reference: Reference, actual: Capture) -> Judged:
    """The judgement with the patterns of what is wrong: of outputs, and of the first layer that is."""
    first = next((layer for layer in judged.checkpoints if layer.diverges), None)
    if first is None and all(output.status == "pass" for output in judged.outputs):
        return judged
    golden, own, here = leaves(reference.golden), leaves(reference.own), leaves(actual)

    def one(output: OutputResult) -> OutputResult:
        path = output.path
        if path not in golden or path not in here:
            return output
        return with_pattern(output, golden[path], here[path], own.get(path), reference.criterion)

    layers = tuple(
        dataclasses.replace(layer, outputs=tuple(map(one, layer.outputs))) if layer is first else layer
        for layer in judged.checkpoints
    )
    return dataclasses.replace(judged, outputs=tuple(map(one, judged.outputs)), checkpoints=layers)
