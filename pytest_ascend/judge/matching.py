"""Which values of two sets belong together."""

from __future__ import annotations

import math

import torch

__all__ = ["match"]

Tensor = torch.Tensor


def match(golden: Tensor, actual: Tensor) -> Tensor:
    """Which element of ``actual`` (..., n) belongs to each of ``golden``, as indices (..., n): nearest pairs first."""
    distance = (golden.unsqueeze(-1) - actual.unsqueeze(-2)).abs().nan_to_num(nan=math.inf)
    n = golden.shape[-1]
    rows = distance.reshape(-1, n, n)
    index = torch.arange(n).repeat(rows.shape[0], 1)
    for row, table in enumerate(rows):
        free_left, free_right = [True] * n, [True] * n
        for flat in table.reshape(-1).argsort(stable=True).tolist():
            i, j = divmod(flat, n)
            if free_left[i] and free_right[j]:
                index[row, i] = j
                free_left[i] = free_right[j] = False
    return index.reshape(golden.shape)
