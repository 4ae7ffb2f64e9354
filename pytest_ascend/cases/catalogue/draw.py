"""Inputs for test code, as the catalogue draws them: what ``pytest-ascend generate --api`` writes uses this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_ascend.cases.catalogue.entries import module_of
from pytest_ascend.cases.catalogue.laid import laid_out
from pytest_ascend.cases.catalogue.specs import SPECIAL, Builder

__all__ = ["Draw"]


class Draw:
    """Draws tensors on the CPU, one after the other; the same seed and the same order give the same values.

    Args:
        dtype: of the tensors, where a call names no other: ``"float16"`` or ``torch.float16``.
        seed: of the values.

    Raises:
        ValueError: no such dtype.
    """

    def __init__(self, dtype: str | torch.dtype, seed: int) -> None:
        found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if not isinstance(found, torch.dtype):
            raise ValueError(f"no dtype is called {dtype!r}: give one such as 'float32'")
        self.dtype = found
        self.seed = seed
        self._builder = Builder(found, seed)

    def _made(self, values: list[Any], shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
        return self._builder._values(values, tuple(shape), self.dtype if dtype is None else dtype)

    def uniform(self, shape: Sequence[int], low: float, high: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Values between two bounds, evenly spread; of complex ones both parts."""
        return self._made(["u", low, high], shape, dtype)

    def integers(self, shape: Sequence[int], low: int, high: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Whole numbers from ``low`` to ``high``, both included."""
        return self._made(["i", low, high], shape, dtype)

    def booleans(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """True and False, or 1 and 0."""
        return self._made(["b"], shape, dtype)

    def positive_definite(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Symmetric matrices whose eigenvalues are positive."""
        return self._made(["pd"], shape, dtype)

    def values(
        self, numbers: Sequence[complex], shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """These numbers, each rounded once; in one dimension without a shape."""
        wide = torch.int64 if all(isinstance(one, int) for one in numbers) else torch.float64
        wide = torch.complex128 if any(isinstance(one, complex) for one in numbers) else wide
        made = torch.tensor(numbers, dtype=wide).to(self.dtype if dtype is None else dtype)
        return made if shape is None else made.reshape(tuple(shape))

    def full(self, shape: Sequence[int], value: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One number everywhere."""
        return self._made(["k", value], shape, dtype)

    def kind(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Values that kernels stumble over.

        ``special``: NaN, infinities, zeros of both signs, subnormals, the ends of the range; ``nonfinite``: a NaN or an
        infinity in one row of three; ``mean``: a mean many times the spread; ``ties``: few distinct values; ``every``:
        all 65,536 bit patterns of a 16-bit type, and as many of a wider one.

        Raises ``ValueError`` for another name.
        """
        if name not in SPECIAL:
            raise ValueError(f"no kind of values is called {name!r}: give one of {', '.join(SPECIAL)}")
        return self._made([name], shape, dtype)

    def laid_out(self, layout: str, *tensors: torch.Tensor) -> Any:
        """The tensors with the same values in another layout; one tensor for one, else a list.

        ``transposed``, ``sliced``, ``channels_last``; ``expanded``, which repeats the first row with a stride of 0.
        What can't take the layout stays as it is.

        Raises:
            CaseUnavailable: none of them can.
        """
        laid = laid_out(tensors, {}, layout, "the call")[0]
        return laid[0] if len(laid) == 1 else list(laid)

    def module(
        self,
        kind: Callable[..., torch.nn.Module],
        *args: Any,
        training: bool = False,
        first_call: Callable[[Draw], Sequence[Any]] | None = None,
        **kwargs: Any,
    ) -> torch.nn.Module:
        """A module with weights drawn from the seed, in this dtype.

        Args:
            kind: its class; ``args`` and ``kwargs`` are what it is made with.
            training: whether it is in training.
            first_call: for a lazy module: makes the arguments of the call that gives it its shapes.
        """

        def first() -> Sequence[Any]:
            assert first_call is not None
            return first_call(Draw(torch.float32, self.seed))

        return module_of(kind, args, kwargs, self.dtype, self.seed, training, first)
