"""Errors that a result brings along from its inputs: what a wrong operator is told apart from."""

from __future__ import annotations

import math

import torch

from pytest_ascend.judge.metrics import measure
from pytest_ascend.judge.quick import CARRIED
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.verdict import Metrics

__all__ = ["is_carried"]


def is_carried(golden: torch.Tensor, actual: torch.Tensor, metrics: Metrics, distance: float) -> bool:
    """Whether a result outside its tolerance is no further from the golden than its inputs explain.

    Every element has to be within ``rtol * |golden| + 6 * e * rms(golden)``, where ``e`` is the relative Euclidean
    distance of the inputs and a rounding of each side together. An error that is mostly a factor isn't explained,
    unless it is a rounding itself: noise has no direction.

    Args:
        golden, actual: dense CPU tensors of one shape, floating or complex.
        metrics: of the pair.
        distance: of the inputs; of several, the root of the sum of squares.
    """
    if metrics.non_finite_mismatches or not metrics.count:
        return False
    dtypes = [t.dtype for t in (golden, actual)]
    unit = max(torch.finfo(d).eps for d in dtypes) / 2
    far = metrics.relative_euclidean_distance
    if not 0.0 < far < math.inf:
        return False
    explained = math.hypot(distance, unit)
    sine = math.sqrt(max(0.0, 1.0 - metrics.cosine_similarity**2))
    if metrics.count >= 16 and sine < 0.1 * far and abs(metrics.scale - 1.0) > explained:
        return False
    rtol, _ = Criterion().tolerance(*dtypes)
    allowed = CARRIED * explained * metrics.rmse / far
    return not measure(golden, actual, rtol=rtol, atol=allowed, worst=0).mismatches
