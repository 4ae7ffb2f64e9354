"""A failed output made small enough to look at: a histogram of its errors, a map of them, and the values at the worst.

Errors are in *units*, what storing an element rounds away plus what the inputs' last bits move it (see
:mod:`pytest_ascend.judge.budget`), so that 1 is an error that needs no explanation. Of integers and booleans a unit is
1.
A picture takes a few kilobytes of JSON whatever the size of the output.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_ascend.judge import budget
from pytest_ascend.judge.structure import UnsupportedTensor, as_tensor, dtype_name, widened
from pytest_ascend.judge.verdict import jsonable

__all__ = ["EDGES", "LEVELS", "picture"]

#: Borders of the histogram's bins in units, four to a power of ten; below the first and above the last is one each.
EDGES = tuple(float(f"{10 ** (k / 4):.3g}") for k in range(-8, 25))
#: What a cell of the map says: nothing is there, equal, within one unit, over 1, 10, 100, 1e3, 1e4, 1e5 units, and
#: NaN or infinity on one side only.
LEVELS = " =.123456x"
#: Larger outputs get no picture: it would take longer than it helps.
MOST = 1 << 25
_ROWS, _COLUMNS = 32, 64
_PIECE = 1 << 16
_STRANGE, _MOST_UNITS = 1e30, 1e29
_ABOVE, _BESIDE = 2, 3


def picture(
    golden: Any, actual: Any, benchmark: Any = None, spread: torch.Tensor | None = None
) -> dict[str, Any] | None:
    """The picture of a failed output as strict JSON; None where its values can't be drawn.

    Args:
        golden: a dense tensor or array.
        actual: the target's, of the same shape.
        benchmark: the CPU's in the actual's dtype, or None.
        spread: how far each element of the golden moves with its inputs' last bits, where that was measured.
    """
    try:
        sides = [None if side is None else as_tensor(side) for side in (golden, actual, benchmark)]
    except UnsupportedTensor:
        return None
    right, here, own = (None if side is None else side.detach() for side in sides)
    if right is None or here is None or right.shape != here.shape or not 1 < here.numel() <= MOST:
        return None
    own = own if own is not None and own.shape == here.shape and benchmark is not golden else None
    spread = spread if spread is not None and spread.shape == here.shape else None
    errors = _errors(right, here, here.dtype, spread)
    cpu = None if own is None else _errors(right, own, here.dtype, spread)
    worst = int(np.argmax(errors))
    return {
        "unit": _unit(here.dtype, spread is not None),
        "histogram": {
            "edges": list(EDGES),
            "counts": _counts(errors),
            "equal": int(np.count_nonzero(errors == 0)),
            "strange": int(np.count_nonzero(errors >= _STRANGE)),
            "cpu": None if cpu is None else _counts(cpu),
        },
        "map": _map(errors, tuple(here.shape)),
        "around": _around(worst, errors, {"golden": right, "cpu": own, "actual": here}),
    }


def _unit(dtype: torch.dtype, measured: bool) -> str:
    if not (dtype.is_floating_point or dtype.is_complex):
        return "1"
    rounding = f"what storing it in {dtype_name(dtype)} rounds away"
    return f"{rounding} and what its inputs' last bits change" if measured else rounding


def _errors(
    golden: torch.Tensor, other: torch.Tensor, dtype: torch.dtype, spread: torch.Tensor | None
) -> NDArray[np.float32]:
    """The size of each error in units, in memory order; ``_STRANGE`` where one side alone is NaN or infinite."""
    floating = dtype.is_floating_point or dtype.is_complex
    x, y = golden.reshape(-1), other.reshape(-1)
    moved = None if spread is None else spread.reshape(-1)
    found = np.zeros(x.numel(), dtype=np.float32)
    for start in range(0, x.numel(), _PIECE):
        here = slice(start, start + _PIECE)
        a, b = widened(x[here]), widened(y[here])
        width = budget.unit(a, dtype, None if moved is None else moved[here]) if floating else torch.ones_like(a)
        errors = budget.normalised(a, b, width).abs()
        if not floating and x.dtype == y.dtype:  # beyond 2**53 only the integers themselves tell
            errors = torch.where((x[here] != y[here]) & (errors == 0), torch.ones_like(errors), errors)
        # Where the golden is zero a unit is next to nothing, and an error many of them, which isn't strange.
        strange = (errors > 0) & ~(a.isfinite() & b.isfinite())
        found[here] = torch.where(strange, _STRANGE, errors.clamp_max(_MOST_UNITS)).float().numpy()
    return found


def _counts(errors: NDArray[np.float32]) -> list[int]:
    """Errors in each bin; those of 0 and those that aren't numbers are in none."""
    some = errors[(errors > 0) & (errors < _STRANGE)]
    bins = np.digitize(some, EDGES)
    return [int(count) for count in np.bincount(bins, minlength=len(EDGES) + 1)]


def _map(errors: NDArray[np.float32], shape: tuple[int, ...]) -> dict[str, Any]:
    """The errors on a grid: the last dimension across, all others down; each cell shows the worst of what it covers."""
    columns = shape[-1] if len(shape) > 1 else min(_COLUMNS, 1 << math.ceil(math.log2(math.sqrt(errors.size)) + 1))
    rows = -(-errors.size // columns)
    padded = np.full(rows * columns, -1.0, dtype=np.float32)
    padded[: errors.size] = errors
    grid = padded.reshape(rows, columns)
    down, across = -(-rows // _ROWS), -(-columns // _COLUMNS)
    grid = np.maximum.reduceat(grid, np.arange(0, rows, down), axis=0)
    grid = np.maximum.reduceat(grid, np.arange(0, columns, across), axis=1)
    over = np.clip(np.ceil(np.log10(np.maximum(grid, 1.0))) + 2, 2, 8).astype(int)
    levels = np.select([grid < 0, grid == 0, grid >= _STRANGE], [0, 1, 9], over)
    cells = ["".join(LEVELS[level] for level in row) for row in levels]
    return {"rows": rows, "columns": columns, "down": down, "across": across, "cells": cells}


def _around(worst: int, errors: NDArray[np.float32], sides: dict[str, torch.Tensor | None]) -> dict[str, Any]:
    """The values in the window about the worst element, in the last two dimensions."""
    shape = next(tuple(side.shape) for side in sides.values() if side is not None)
    index = [int(i) for i in np.unravel_index(worst, shape)]
    spans = []
    for at, extent, reach in zip(index[-2:], shape[-2:], (_ABOVE, _BESIDE)[-min(2, len(shape)) :], strict=True):
        first = max(0, min(at - reach, extent - 2 * reach - 1))
        spans.append((first, min(extent, first + 2 * reach + 1)))
    window: Any = (*index[:-2], *(slice(*span) for span in spans))
    values = {
        name: [[_plain(value) for value in row] for row in _rows(side[window])]
        for name, side in sides.items()
        if side is not None
    }
    there = errors.reshape(shape)[window]
    units = [
        [_plain(math.inf if value >= _STRANGE else float(value)) for value in row]
        for row in (there if there.ndim == 2 else there[None])
    ]
    return {"index": index, "first": [first for first, _ in spans], **values, "units": units}


def _rows(values: torch.Tensor) -> list[list[Any]]:
    rows: list[list[Any]] = (values if values.dim() == 2 else values[None]).tolist()
    return rows


def _plain(value: Any) -> Any:
    """A number of nine digits, which tell float32 values apart."""
    return jsonable(float(f"{value:.9g}") if isinstance(value, float) else value)
