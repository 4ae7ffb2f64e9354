"""Arguments as plain JSON: enough of a tensor to make it again, in any dtype, on any machine.

A tensor is written as its shape, dtype (``*``: the case's own), memory layout where it isn't the plain one, and how its
values come about: drawn from a range with a seed, of a special structure, or, where they matter (indices, lengths,
masks, sorted boundaries), one by one. Other values are themselves, tagged where JSON has no such type.

========================  ==========================================================================================
``{"T": [...]}``          a tensor: ``{"s": shape, "d": dtype, "v": values, "g": 1 when it requires grad,
                          "st": [strides, offset, elements of the storage]}``
``{"l": [...]}``          a list; a bare JSON list is a tuple
``{"m": [[k, v], ...]}``  a dict
``{"dt": "float16"}``     a torch.dtype, ``*`` for the case's own; ``{"tc": "channels_last"}`` other torch constants
``{"f": "nan"}``          a float that JSON hasn't; ``{"c": [re, im]}`` a complex number; ``{"sl": [a, b, c]}`` a slice;
                          ``{"e": 1}`` Ellipsis; ``{"fn": name}`` one of torch's functions
========================  ==========================================================================================

Values: ``["u", low, high]`` uniform, ``["i", low, high]`` whole numbers with both ends, ``["b"]`` booleans,
``["x", v]`` listed (``["z", v]`` complex), ``["k", c]`` a constant, ``["pd"]`` positive definite matrices, and those of
:data:`SPECIAL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_ascend.cases.catalogue.names import constant_name, public_name, resolve

__all__ = ["Builder", "Unwritable", "decode", "encode"]

#: elements of a tensor whose values are listed at most
MOST_LISTED = 2048
_FEW = 8
_INTEGERS_LISTED = 256


class Unwritable(ValueError):
    """An argument that the list has no words for; the text says which."""


# ------------------------------------------------------------------------------------------------------- to JSON


def encode(value: Any, own: torch.dtype, *, listed: bool = False) -> Any:
    """``value`` as JSON.

    Args:
        value: an argument: tensors, containers, numbers, dtypes, modules of torch.nn.
        own: the dtype that stands for "the case's own".
        listed: list all values of floating tensors rather than their range.

    Raises:
        Unwritable: sparse, quantized, too large to list, or an object of another kind.
    """

    def inner(item: Any) -> Any:
        return encode(item, own, listed=listed)

    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.Tensor):
        return {"T": _tensor(value, own, listed)}
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": str(value)}
    if isinstance(value, complex):
        return {"c": [inner(value.real), inner(value.imag)]}
    if isinstance(value, torch.dtype):
        return {"dt": "*" if value is own else str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        raise Unwritable("a device")
    if isinstance(value, (torch.layout, torch.memory_format)):
        return {"tc": constant_name(value)}
    if isinstance(value, slice):
        return {"sl": [inner(value.start), inner(value.stop), inner(value.step)]}
    if value is Ellipsis:
        return {"e": 1}
    if isinstance(value, tuple):
        return [inner(item) for item in value]
    if isinstance(value, list):
        return {"l": [inner(item) for item in value]}
    if isinstance(value, Mapping):
        return {"m": [[inner(k), inner(v)] for k, v in value.items()]}
    if callable(value) and (name := public_name(value)) is not None:
        return {"fn": name}
    raise Unwritable(f"a {type(value).__name__}")


def _tensor(value: torch.Tensor, own: torch.dtype, listed: bool) -> dict[str, Any]:
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise Unwritable("a tensor that isn't dense")
    spec: dict[str, Any] = {"s": list(value.shape)}
    spec["d"] = "*" if value.dtype is own else str(value.dtype).removeprefix("torch.")
    if value.requires_grad:
        spec["g"] = 1
    plain = value.detach().resolve_conj().resolve_neg()
    flat = plain
    if not plain.is_contiguous() and plain.numel():
        extent = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
        offset = min(plain.storage_offset(), 8)
        spec["st"] = [list(plain.stride()), offset, extent + offset]
        flat = plain.as_strided((extent,), (1,), plain.storage_offset())
        flat = torch.cat([flat.new_zeros(offset), flat])
    spec["v"] = _values(flat.reshape(-1), plain, listed)
    return spec


def _values(flat: torch.Tensor, whole: torch.Tensor, listed: bool) -> list[Any]:
    size = flat.numel()
    if not size:
        return ["k", 0]
    if flat.dtype is torch.bool:
        return ["x", flat.int().tolist()] if size <= _INTEGERS_LISTED else ["b"]
    if flat.is_complex():
        parts = torch.view_as_real(flat)
        if listed or size <= _FEW or not bool(parts.isfinite().all()):
            return ["z", _listed(parts.reshape(-1))]
        return ["u", *_range(parts)]
    if not flat.is_floating_point():
        if size <= _INTEGERS_LISTED or (listed and size <= MOST_LISTED):
            return ["x", flat.tolist()]
        return ["i", int(flat.min()), int(flat.max())]
    if bool((flat == flat[0]).all()):
        return ["k", encode(float(flat[0]), flat.dtype)]
    distinct = len(set(flat.tolist())) if size <= MOST_LISTED else size
    if listed or size <= _FEW or not bool(flat.isfinite().all()) or (distinct < size / 2 and size <= MOST_LISTED):
        return ["x", _listed(flat)]
    if _is_positive_definite(whole):
        return ["pd"]
    return ["u", *_range(flat)]


def _range(values: torch.Tensor) -> tuple[float, float]:
    """Ends of the values, inward to four digits so that they stay within the domain of the function."""
    low, high = float(values.min()), float(values.max())
    place = 10.0 ** (math.floor(math.log10(max(abs(low), abs(high)) or 1.0)) - 3)
    inner = round(math.ceil(low / place) * place, 12), round(math.floor(high / place) * place, 12)
    return inner if inner[0] < inner[1] else (low, high)


def _listed(flat: torch.Tensor) -> list[Any]:
    if flat.numel() > MOST_LISTED:
        raise Unwritable(f"{flat.numel()} values that matter one by one")
    return [encode(float(f"{v:.7g}"), torch.float64) for v in flat.double().tolist()]


def _is_positive_definite(value: torch.Tensor) -> bool:
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] < 2:
        return False
    if not torch.allclose(value, value.mT, rtol=1e-4, atol=1e-5):
        return False
    return bool((torch.linalg.eigvalsh(value.double()) > 0).all())


# ----------------------------------------------------------------------------------------------------- from JSON


def decode(spec: Any, dtype: torch.dtype, seed: int) -> Any:
    """The argument that :func:`encode` wrote, its own dtype replaced by ``dtype``."""
    return Builder(dtype, seed).build(spec)


class Builder:
    """Makes arguments out of what the list says of them; the same seed gives the same values in every dtype.

    Args:
        dtype: what ``*`` stands for.
        seed: of the values that are drawn.
        device: where the tensors are made.
    """

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self.generator = torch.Generator(device="cpu").manual_seed(seed)

    def build(self, spec: Any) -> Any:
        """One argument."""
        if isinstance(spec, list):
            return tuple(self.build(item) for item in spec)
        if not isinstance(spec, dict):
            return spec
        (tag, body), *_ = spec.items()
        return _TAGS[tag](self, body)

    def _tensor(self, spec: Mapping[str, Any]) -> torch.Tensor:
        shape, dtype = tuple(spec["s"]), self._dtype(spec["d"])
        values = spec["v"]
        if "st" in spec:
            strides, offset, extent = spec["st"]
            made = self._values(values, (extent,), dtype).as_strided(shape, strides, offset)
        else:
            made = self._values(values, shape, dtype)
        return made.requires_grad_() if spec.get("g") and (dtype.is_floating_point or dtype.is_complex) else made

    def _dtype(self, name: str) -> torch.dtype:
        if name == "*":
            return self.dtype
        if name == "complex64" and self.dtype is torch.float64:
            return torch.complex128
        return getattr(torch, name)  # type: ignore[no-any-return]

    def _values(self, values: list[Any], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        kind, *given = values
        if kind == "u":
            low, high = given
            return _stay_inside(self._uniform(shape, low, high, dtype), low, high)
        if kind == "i":
            first, last = given
            return torch.randint(first, last + 1, shape, generator=self.generator).to(dtype)
        if kind == "b":
            return (torch.rand(shape, generator=self.generator) < 0.5).to(dtype)
        if kind == "k":
            return torch.full(shape, self.build(given[0]), dtype=torch.float64).to(dtype)
        if kind == "x":
            numbers = [self.build(item) for item in given[0]]
            whole = all(isinstance(item, int) for item in numbers)
            return torch.tensor(numbers, dtype=torch.int64 if whole else torch.float64).reshape(shape).to(dtype)
        if kind == "z":
            parts = torch.tensor([self.build(item) for item in given[0]], dtype=torch.float64).reshape(*shape, 2)
            return torch.view_as_complex(parts).to(dtype)
        if kind == "pd":
            root = self._uniform(shape, -1.0, 1.0, torch.float64)
            return (root @ root.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)).to(dtype)
        return SPECIAL[kind](self, shape, dtype)

    def _uniform(self, shape: tuple[int, ...], low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_complex:
            parts = torch.rand((*shape, 2), generator=self.generator, dtype=torch.float64) * (high - low) + low
            return torch.view_as_complex(parts).to(dtype)
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low
        return drawn.to(dtype)


def _stay_inside(value: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Rounding to a narrow dtype must not leave the range: a domain may end there (1 for atanh)."""
    if value.dtype.is_complex or not value.dtype.is_floating_point or value.dtype.itemsize > 2:
        return value
    wide = value.double()
    inward = torch.nextafter(value, torch.zeros_like(value))
    return torch.where((wide > high) | (wide < low), inward, value)


# ------------------------------------------------------------------------------------------------- special values


def _numbers(dtype: torch.dtype) -> list[float]:
    """What kernels stumble over: zeros of both signs, ties, the ends of the range, subnormals, NaN, infinities."""
    ends = torch.finfo(dtype)
    plain = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, 2.5, -2.5, 3.0, -3.5, 0.75, 10.0, -10.0, 100.0, -127.5]
    edges = [ends.tiny, -ends.tiny, ends.smallest_normal / 4, -ends.smallest_normal / 2, ends.max, ends.min, ends.eps]
    return [*plain, *edges, math.sqrt(ends.max) / 2, -math.sqrt(ends.max) / 2, 1 + ends.eps, 1 - ends.eps / 2]


def _special(self: Builder, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-3, 4, shape, generator=self.generator).to(dtype)
    numbers = [*_numbers(dtype), math.nan, math.inf, -math.inf]
    pool = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    count = math.prod(shape)
    order = torch.randint(len(numbers), (count,), generator=self.generator)
    order[: len(numbers)] = torch.randperm(len(numbers), generator=self.generator)[:count]
    return pool[order].reshape(shape)


def _non_finite(self: Builder, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Ordinary values with a NaN and infinities strewn in: one row in three has one, the others none."""
    value = self._uniform(shape, -4.0, 4.0, torch.float64)
    if value.numel() and dtype.is_floating_point:
        rows = value.reshape(-1, shape[-1]) if shape else value.reshape(1, 1)
        for i, odd in zip(range(0, rows.shape[0], 3), [math.nan, math.inf, -math.inf] * rows.shape[0], strict=False):
            rows[i, int(torch.randint(rows.shape[1], (1,), generator=self.generator))] = odd
    return value.to(dtype)


def _large_mean(self: Builder, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A mean many times the spread: what cancels (E[x²] − E[x]²) shows. The steps are ones the dtype can hold."""
    step = {torch.float16: 0.5, torch.bfloat16: 4.0}.get(dtype, 1 / 256)
    steps = torch.randint(-8, 9, shape, generator=self.generator).double()
    return (500.0 + step * steps).to(dtype)


def _ties(self: Builder, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Few distinct values, halves among them: equal keys, equal maxima, rounding to even."""
    return (torch.randint(-3, 4, shape, generator=self.generator).double() / 2).to(dtype)


def _every(self: Builder, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 bit patterns of a 16-bit type; of a wider one as many, spread evenly over all exponents and signs."""
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    if dtype.itemsize == 2:
        return patterns.to(torch.int16).view(dtype)
    if dtype is torch.float32:
        return (patterns << 16 | (patterns * 40503 & 0xFFFF)).view(dtype)
    return (patterns << 16 | (patterns * 40503 & 0xFFFF)).view(torch.float32).to(dtype)


SPECIAL: dict[str, Callable[[Builder, tuple[int, ...], torch.dtype], torch.Tensor]] = {
    "special": _special,
    "nonfinite": _non_finite,
    "mean": _large_mean,
    "ties": _ties,
    "every": _every,
}


_TAGS: dict[str, Callable[[Builder, Any], Any]] = {
    "T": Builder._tensor,
    "l": lambda b, body: [b.build(item) for item in body],
    "m": lambda b, body: {b.build(k): b.build(v) for k, v in body},
    "f": lambda b, body: float(body),
    "c": lambda b, body: complex(*map(b.build, body)),
    "dt": lambda b, body: b._dtype(body),
    "tc": lambda b, body: getattr(torch, body),
    "sl": lambda b, body: slice(*map(b.build, body)),
    "e": lambda b, body: ...,
    "fn": lambda b, body: resolve(body),
}
