"""Hypothesis strategies for the inputs of an operator: ``from pytest_ascend.strategies import tensors``."""

from pytest_ascend.cases.strategies import LAYOUTS, SIZES, SPECIAL, dim, dtype, indices, ints, tensors

__all__ = ["LAYOUTS", "SIZES", "SPECIAL", "dim", "dtype", "indices", "ints", "tensors"]
