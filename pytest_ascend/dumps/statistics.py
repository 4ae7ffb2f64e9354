"""Values for a tensor of which only the shape, the dtype and statistics are known: smallest, largest, mean and norm."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from pytest_ascend.dumps.values import TensorSpec

__all__ = ["generate"]

#: Numbers so large, where the squares had no room in float32, hide places: such a tensor is a mask, nothing between.
_MASKED = 2.0**126


def generate(spec: TensorSpec, name: str) -> torch.Tensor:
    """Values with the recorded statistics.

    The smallest and the largest value occur; mean and norm come out within the rounding of the dtype where any values
    have them. Integers are spread over their range. A NaN or infinity among the statistics puts one into the tensor.
    The numbers drawn depend on ``name`` alone.

    Returns:
        A contiguous tensor on the CPU of the declared dtype and shape.
    """
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    n = spec.numel
    if n == 0:
        return torch.empty(spec.shape, dtype=dtype)
    if dtype is torch.bool:
        return torch.from_numpy(_bools(spec, n, rng)).reshape(spec.shape)
    if dtype.is_complex:
        turn = np.exp(2j * math.pi * rng.random(n))
        return torch.from_numpy(_floats(spec, n, rng) * turn).to(dtype).reshape(spec.shape)
    if not dtype.is_floating_point:
        return torch.from_numpy(_integers(spec, n, rng)).to(dtype).reshape(spec.shape)
    return torch.from_numpy(_floats(spec, n, rng)).to(dtype).reshape(spec.shape)


def _bools(spec: TensorSpec, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    low, high = bool(spec.min), spec.max is None or bool(spec.max)
    if low == high:
        return np.full(n, low)
    values = rng.random(n) < 0.5
    if n > 1:
        first, second = rng.choice(n, 2, replace=False) if n < 1 << 20 else (0, n - 1)
        values[first], values[second] = False, True
    return values


def _integers(spec: TensorSpec, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Whole numbers spread over the range, both ends among them. Indices stay indices."""
    bounds = np.iinfo(spec.dtype)
    low = _whole(spec.min, 0, bounds)
    high = max(_whole(spec.max, max(low, 1) if spec.max is None else low, bounds), low)
    dtype = np.uint64 if spec.dtype == "uint64" else np.int64
    values = rng.integers(low, high, n, dtype=dtype, endpoint=True)
    return _with_ends(values, low, high, rng)


def _whole(bound: float | None, default: int, bounds: np.iinfo[Any]) -> int:
    if bound is None or not math.isfinite(bound):
        return default
    return min(max(int(bound), int(bounds.min)), int(bounds.max))


def _with_ends(values: np.ndarray[Any, Any], low: Any, high: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    n = len(values)
    if n == 1:
        values[0] = high
    else:
        first = int(rng.integers(n))
        values[first], values[(first + 1 + int(rng.integers(n - 1))) % n] = low, high
    return values


def _floats(spec: TensorSpec, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Real numbers with the recorded statistics, in float64."""
    if spec.min is None or spec.max is None:
        return rng.standard_normal(n)
    if not (math.isfinite(spec.min) and math.isfinite(spec.max)):
        return _non_finite(spec, n, rng)
    low, high = float(spec.min), float(spec.max)
    if n == 1 or low >= high:
        return np.full(n, high)
    if n == 2:
        return np.array([low, high])
    if spec.norm is not None and math.isinf(spec.norm) and max(abs(low), abs(high)) > _MASKED:
        return _with_ends(rng.choice([low, high], n), low, high, rng)
    # In units of the largest, a power of two, squares neither overflow nor vanish.
    unit = math.frexp(max(abs(low), abs(high)))[1]
    low, high = math.ldexp(low, -unit), math.ldexp(high, -unit)
    mean = _in_units(spec.mean, unit)
    norm = _in_units(spec.norm, unit)
    square = norm * norm if norm is not None else None
    # What is left for the other elements once both ends have their place.
    rest = n - 2
    centre = (low + high) / 2 if mean is None else (mean * n - low - high) / rest
    centre = min(max(centre, low), high)
    spread = ((high - low) / 8) ** 2 if square is None else (square - low * low - high * high) / rest - centre**2
    values = np.empty(n)
    values[2:] = _between(rest, low, high, centre, spread, rng)
    values[:2] = low, high
    for place in (0, 1):
        other = int(rng.integers(n))
        values[place], values[other] = values[other], values[place]
    return np.ldexp(values, unit)


def _in_units(number: float | None, unit: int) -> float | None:
    """A statistic in units of ``2**unit``; None for one that no values of that size can have."""
    if number is None or not math.isfinite(number):  # a norm may be too large where no value is
        return None
    mantissa, exponent = math.frexp(number)
    return math.ldexp(mantissa, exponent - unit) if exponent - unit < 100 else None


def _between(
    n: int, low: float, high: float, centre: float, spread: float, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Numbers in an interval with a mean and a variance: a beta distribution has any that an interval allows."""
    width = high - low
    place = (centre - low) / width
    most = place * (1 - place)
    share = spread / width**2 if width * width > 0 else 0.0
    if most <= 0 or share <= 1e-14:
        return np.full(n, centre)
    if share >= 0.999 * most:  # all of it lies at the ends: a mask
        values = np.full(n, low)
        values[rng.permutation(n)[: round(place * n)]] = high
        return values
    weight = most / share - 1
    values = low + width * rng.beta(max(place * weight, 1e-6), max((1 - place) * weight, 1e-6), n)
    for _ in range(4):  # what was drawn has nearly the moments; shift and stretch the rest of the way
        deviation = values.std()
        if deviation == 0:
            break
        values = np.clip(centre + (values - values.mean()) * (math.sqrt(spread) / deviation), low, high)
    return values


def _non_finite(spec: TensorSpec, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Ordinary numbers with one NaN, or an infinity at either end, as the statistics say."""
    values = rng.standard_normal(n)
    high = spec.max if spec.max is not None and math.isfinite(spec.max) else None
    low = spec.min if spec.min is not None and math.isfinite(spec.min) else None
    if high is not None or low is not None:
        values = np.clip(values, low, high)
    odd = list(dict.fromkeys(str(x) for x in (spec.max, spec.min) if x is not None and not math.isfinite(x)))
    for place, word in zip(rng.permutation(n) if n < 1 << 20 else range(n), odd, strict=False):
        values[place] = float(word)
    return values
