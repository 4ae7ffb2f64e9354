"""Passes of a criterion that couldn't have failed (judge/power.py), found in the outputs of a check.

Every output of its own must be told from an impostor. Gradients are one body, and so are changed arguments: among a
model's many there are some that no absolute tolerance can see, and the others still show a wrong backward pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch

from pytest_ascend.judge.power import blind_reason, blind_spot, has_thresholds
from pytest_ascend.judge.structure import UnsupportedTensor, as_tensor
from pytest_ascend.judge.verdict import OutputResult, Verdict
from pytest_ascend.observe.reference import Reference, leaves

__all__ = ["without_power"]


def without_power(reference: Reference, outputs: Sequence[OutputResult]) -> list[OutputResult]:
    """The outputs, VACUOUS in place of PASS where the criterion accepts an impostor too.

    ``auto`` needs no such proof: its budget comes from the values themselves.
    """
    if not has_thresholds(reference.criterion):
        return list(outputs)
    golden, own = leaves(reference.golden), leaves(reference.own)
    blind: dict[str, str] = {}
    for body in _bodies(outputs):
        found = {path: _spot(reference, golden.get(path), own.get(path)) for path in body}
        seeing = [path for path, reason in found.items() if reason == ""]
        if not seeing:
            blind |= {path: reason for path, reason in found.items() if reason}

    def one(output: OutputResult) -> OutputResult:
        if output.verdict is not Verdict.PASS or output.path not in blind:
            return output
        return dataclasses.replace(output, verdict=Verdict.VACUOUS, kind=None, reason=blind[output.path], status="fail")

    return [one(output) for output in outputs]


def _bodies(outputs: Sequence[OutputResult]) -> Iterator[list[str]]:
    passed = [o.path for o in outputs if o.verdict is Verdict.PASS]
    together: dict[str, list[str]] = {}
    for path in passed:
        body = next((name for name in ("grad(", "mutated(") if path.startswith(name)), path)
        together.setdefault(body, []).append(path)
    yield from together.values()


def _spot(reference: Reference, golden: torch.Tensor | None, own: torch.Tensor | None) -> str | None:
    """Why the criterion is blind to an output; empty where it sees it; None where there is nothing to be told."""
    with contextlib.suppress(UnsupportedTensor):
        left, right = as_tensor(golden), as_tensor(own)
        if left is not None and right is not None and (right.is_floating_point() or right.is_complex()):
            spot = blind_spot(left, None if own is golden else right, reference.criterion)
            return blind_reason(reference.criterion, spot, right.dtype) if spot else ""
    return None
