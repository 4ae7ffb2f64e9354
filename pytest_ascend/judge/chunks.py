"""How a pair of tensors of one shape is cut into chunks, whatever their strides."""

from __future__ import annotations

import math

import torch

__all__ = ["Plan"]


class Plan:
    """How a pair is cut: dimensions reordered so that the golden is read along memory, then ranges of at most a chunk.

    ``view(i)`` gives both sides of chunk ``i`` (not necessarily contiguous), ``index(i, k)`` the position of its k-th
    element in the original shape.
    """

    def __init__(self, golden: torch.Tensor, actual: torch.Tensor, chunk: int) -> None:
        self.golden_dtype, self.actual_dtype = golden.dtype, actual.dtype
        self.count = golden.numel()
        self.parts = 2 if golden.is_complex() or actual.is_complex() else 1
        strides = golden.stride(), actual.stride()
        if golden.is_contiguous() and actual.is_contiguous():
            self.order = tuple(range(golden.dim()))
        else:
            # Expanded dimensions (stride 0) go outermost: they are read again and again anyway.
            self.order = tuple(
                sorted(
                    range(golden.dim()), key=lambda d: tuple(s[d] if s[d] else 1 << 62 for s in strides), reverse=True
                )
            )
            golden, actual = golden.permute(self.order), actual.permute(self.order)
        self.shape = tuple(golden.shape)
        lazy = any(t.is_conj() or t.is_neg() for t in (golden, actual))
        self.flat = golden.is_contiguous() and actual.is_contiguous() and not lazy
        if self.flat:
            golden, actual = golden.reshape(-1), actual.reshape(-1)
        elif golden.dim() == 0:
            golden, actual = golden.reshape(1), actual.reshape(1)
        self.sides = golden, actual
        self._cut(tuple(golden.shape), max(1, chunk // self.parts))

    def _cut(self, shape: tuple[int, ...], chunk: int) -> None:
        inner, axis = 1, len(shape) - 1
        while axis > 0 and inner * shape[axis] <= chunk:
            inner *= shape[axis]
            axis -= 1
        self.axis, self.inner, self.extent, self.outer = axis, inner, shape[axis], shape[:axis]
        self.step = max(1, min(self.extent, chunk // inner))
        self.per_row = -(-self.extent // self.step)
        self.chunks = self.per_row * math.prod(self.outer) if self.count else 0
        self.length = self.step * inner

    def view(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        row, column = divmod(i, self.per_row)
        start = column * self.step
        golden, actual = self.sides
        if self.axis:
            at = _unravel(row, self.outer)
            golden, actual = golden[at], actual[at]
        return golden[start : start + self.step], actual[start : start + self.step]

    def index(self, i: int, k: int) -> tuple[int, ...]:
        row, column = divmod(i, self.per_row)
        at = _unravel((row * self.extent + column * self.step) * self.inner + k, self.shape)
        place = dict(zip(self.order, at, strict=True))
        return tuple(place[d] for d in range(len(at)))


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    at = []
    for extent in reversed(shape):
        flat, r = divmod(flat, extent)
        at.append(r)
    return tuple(reversed(at))
