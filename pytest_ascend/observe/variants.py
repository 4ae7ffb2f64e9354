"""Other legal results of a case: the CPU runs it again with one behaviour replaced by another.

Some behaviour is open: which of several writes to one place stays, what a number too large for an integer is cast to.
Some is a documented mode of a chip: factors of a product rounded to fewer bits, infinities that saturate, subnormal
numbers that become zero. A :class:`Variant` is a dispatch mode that replaces such behaviour wherever the case's own
operators meet it, forward and backward, whatever functions they were called through; ``met`` tells whether it did. So a
variant can only excuse what the case really does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_ascend.cases.tree import Rebuilder
from pytest_ascend.observe.capture import Capture
from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.observe.movement import MOVES

__all__ = [
    "Beyond",
    "Flushing",
    "Names",
    "Products",
    "Saturating",
    "TanhGelu",
    "Variant",
    "Winner",
    "rounded",
    "with_leaves",
]

_NARROWEST = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class Variant:
    """A context in which every operator runs as it is; subclasses replace some.

    Attributes:
        met: how often there was something to replace.
    """

    def __init__(self) -> None:
        self.met = 0
        self._mode: _Mode | None = None

    def __enter__(self) -> Variant:
        self._mode = _Mode(self.call)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._mode is not None
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the operator ``name`` gives."""
        return func(*args, **kwargs)


class _Mode(DispatchMode):
    """Hands every operator to a function."""

    def __init__(self, call: Callable[[Any, str, list[Any], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, func._schema.name.removeprefix("aten::"), list(args), dict(kwargs or {}))


class Names(Variant):
    """Changes nothing, and notes the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        self.seen.add(name)
        return func(*args, **kwargs)


# --- open behaviour -------------------------------------------------------------------------------------------------

_SHIFTS = {"__lshift__", "__rshift__", "__ilshift__", "__irshift__"} | {
    f"bitwise_{side}_shift{suffix}" for side in ("left", "right") for suffix in ("", "_")
}


class Beyond(Variant):
    """What has no defined result gets another one: casts beyond the range, shifts by more bits than there are.

    Casting a floating number to an integer that can't hold it, NaN included, is undefined in C++ and in torch's
    documentation of ``Tensor.to``; hardware saturates, wraps, or gives its smallest integer. Float8 has no infinity, or
    hardware doesn't use it. ``how`` is one of :data:`Beyond.WAYS`.
    """

    WAYS = ("saturate", "wrap", "lowest")

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name in ("_to_copy", "copy_"):
            source = args[0] if name == "_to_copy" else args[1]
            result = func(*args, **kwargs)
            if source.is_floating_point() and not source.is_complex() and result.layout is torch.strided:
                bad, other = self._cast(source.detach(), result.dtype)
                return self._replaced(result, bad, other)
            return result
        if name in _SHIFTS:
            shift = args[1]
            result = func(*args, **kwargs)
            if result.dtype is torch.bool or result.is_floating_point():
                return result
            width = torch.iinfo(result.dtype).bits
            amount = torch.as_tensor(shift).expand(result.shape).long()
            value = {"saturate": 0, "wrap": 1, "lowest": -1 if torch.iinfo(result.dtype).min < 0 else 255}[self.how]
            return self._replaced(result, (amount < 0) | (amount >= width), torch.full_like(result, value))
        return func(*args, **kwargs)

    def _cast(self, source: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the dtype can't hold the number, and what is there instead."""
        if dtype in _NARROWEST:
            largest = torch.finfo(dtype).max
            bad = source.abs() > largest * (1 + torch.finfo(dtype).eps / 4)
            beyond = {"saturate": largest, "wrap": math.nan, "lowest": -largest}[self.how]
            return bad, torch.full_like(source, beyond, dtype=torch.float64)
        if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
            return torch.zeros_like(source, dtype=torch.bool), source
        info = torch.iinfo(dtype)
        whole = source.double().trunc()
        bad = ~((whole >= float(info.min)) & (whole < float(info.max) + 1.0))
        if self.how == "saturate":
            other = torch.where(whole > 0, info.max, info.min)
            other = torch.where(whole.isnan(), 0, other)
        elif self.how == "wrap":
            held = whole.abs() < 2.0**63
            other = torch.where(held, whole.nan_to_num(), 0.0).long()
        else:
            other = torch.full_like(whole, info.min if info.min else info.max, dtype=torch.int64)
        return bad, other

    def _replaced(self, result: torch.Tensor, bad: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        bad = bad.expand(result.shape) if bad.shape != result.shape else bad
        if not bool(bad.any()):
            return result
        self.met += int(bad.sum())
        with torch.no_grad():
            wide = torch.where(bad, other.to(result.dtype), result) if result.dtype not in _NARROWEST else None
            if wide is None:  # float8 has no torch.where of its own
                wide = torch.where(bad, other.double(), result.double()).to(result.dtype)
            return result.copy_(wide)


class Winner(Variant):
    """Of several writes to one place the ``rank``-th stays: scatter, index_put, index_copy and put without a reduction.

    torch's documentation leaves open which one does. ``rank`` counts the writes to one place from 0, anew after the
    last.

    Attributes:
        most: the most writes to one place.
        computed: operators that computed anything after duplicate writes.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.most = 0
        self.computed: set[str] = set()
        self.ops: set[str] = set()

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        plain = name.removesuffix("_")
        read = _WRITES.get(plain)
        writes = None
        if read is not None and "out" not in kwargs:
            writes = read(args, kwargs)
        if writes is None:
            if self.met and not func.is_view and name not in _KEEPS:
                self.computed.add(name)
            return func(*args, **kwargs)
        places, values = writes
        chosen, most = _choose(places, self.rank)
        self.most = max(self.most, most)
        if most < 2:
            return func(*args, **kwargs)
        self.met += 1
        self.ops.add(plain.removeprefix("_").removesuffix("_impl"))
        target = args[0]
        flat = target.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        flat[places[chosen]] = values[chosen].to(flat.dtype)
        result = flat.view(target.shape)
        return target.copy_(result) if name.endswith("_") else result


def _choose(places: torch.Tensor, rank: int) -> tuple[torch.Tensor, int]:
    """Which writes stay, one per place, and the most that go to one place."""
    order = torch.argsort(places, stable=True)
    _, counts = torch.unique_consecutive(places[order], return_counts=True)
    if not counts.numel():
        return order, 0
    starts = torch.cumsum(counts, 0) - counts
    return order[starts + torch.remainder(torch.full_like(counts, rank), counts)], int(counts.max())


Writes = tuple[torch.Tensor, torch.Tensor] | None


def _numbers(target: torch.Tensor) -> torch.Tensor:
    return torch.arange(target.numel()).view(target.shape)


def _scatter(args: list[Any], kwargs: dict[str, Any]) -> Writes:
    if len(args) < 4 or not isinstance(args[3], torch.Tensor) or "reduce" in kwargs or len(args) > 4:
        return None  # one value for all places, or a reduction
    target, dim, index, source = args
    if not target.dim() or not index.numel():
        return None
    numbers = _numbers(target)
    if index.dim() > 1:
        along = dim % target.dim()
        numbers = numbers[tuple(slice(None if d == along else n) for d, n in enumerate(index.shape))]
    values = source[tuple(slice(n) for n in index.shape)]
    return numbers.gather(dim, index).reshape(-1), values.detach().reshape(-1)


def _index_put(args: list[Any], kwargs: dict[str, Any]) -> Writes:
    target, indices, values = args[:3]
    if kwargs.get("accumulate", args[3] if len(args) > 3 else False):
        return None
    places = torch.ops.aten.index(_numbers(target), indices)
    return places.reshape(-1), values.detach().expand(places.shape).reshape(-1)


def _index_copy(args: list[Any], kwargs: dict[str, Any]) -> Writes:
    target, dim, index, source = args[:4]
    if not target.dim():
        return None
    places = _numbers(target).index_select(dim, index.reshape(-1))
    return places.reshape(-1), source.detach().expand(places.shape).reshape(-1)


def _put(args: list[Any], kwargs: dict[str, Any]) -> Writes:
    target, index, source = args[:3]
    if kwargs.get("accumulate", args[3] if len(args) > 3 else False):
        return None
    places = torch.remainder(index.reshape(-1), max(target.numel(), 1))
    return places, source.detach().reshape(-1)


_WRITES: dict[str, Callable[[list[Any], dict[str, Any]], Writes]] = {
    "scatter": _scatter,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "_index_put_impl": _index_put,
    "index_copy": _index_copy,
    "put": _put,
}

# --- modes of a chip ------------------------------------------------------------------------------------------------

#: operators of the cube unit, with the place of the first of their two factors
MATMULS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_scaled_dot_product_flash_attention_for_cpu"), 0),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addmv", "addr", "_addmm_activation"), 1),
}
CONVOLUTIONS = ("convolution", "convolution_backward", "convolution_overrideable", "mkldnn_convolution")


def rounded(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Rounded to so many explicit mantissa bits, half to even, in its own dtype; infinities and NaN stay."""
    mantissa, exponent = torch.frexp(value.double())
    scale = 2.0 ** (bits + 1)
    kept = torch.ldexp(torch.round(mantissa * scale), exponent - (bits + 1))
    return torch.where(value.isfinite(), kept, value.double()).to(value.dtype)


class Products(Variant):
    """Factors of matrix products and convolutions rounded to fewer bits.

    HF32 keeps 11 mantissa bits (torch_npu's documentation of ``torch.npu.matmul.allow_hf32`` and
    ``torch.npu.conv.allow_hf32``), TF32 10. Only float32 has the mode, so only what is float32 or the golden's float64
    is rounded.
    """

    def __init__(self, bits: int, *, matmul: bool = True, convolution: bool = True) -> None:
        super().__init__()
        self.bits, self.matmul, self.convolution = bits, matmul, convolution

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.matmul and name in MATMULS:
            places = [MATMULS[name], MATMULS[name] + 1]
        elif self.convolution and name in CONVOLUTIONS:
            places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.dim() > 1]
        else:
            return func(*args, **kwargs)
        for place in places:
            if isinstance(args[place], torch.Tensor) and args[place].dtype in (torch.float32, torch.float64):
                args[place] = rounded(args[place], self.bits)
                self.met += 1
        return func(*args, **kwargs)


class TanhGelu(Variant):
    """gelu in its tanh form, whatever was asked for: chips before Ascend 950 know no other (torch_npu's documents)."""

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name.removesuffix("_") in ("gelu", "gelu_backward"):
            self.met += kwargs.get("approximate", "none") != "tanh"
            kwargs["approximate"] = "tanh"
        return func(*args, **kwargs)


#: operators that move or make values, or only look at them, where no chip saturates or flushes
_KEEPS = MOVES | {
    *("alias", "set_", "masked_fill", "masked_fill_", "masked_select", "flip", "roll", "repeat", "tril", "triu"),
    *("neg", "abs", "sign", "sgn", "signbit", "copysign", "scatter", "index_put", "index_put_", "index_copy"),
    *("select_scatter", "slice_scatter", "rand", "rand_like", "as_strided", "resolve_conj", "resolve_neg"),
    *(
        "isnan",
        "isinf",
        "isfinite",
        "nan_to_num",
        "view_as_real",
        "view_as_complex",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    ),
}


_COMPUTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Results(Variant):
    """Changes every floating result that was computed."""

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func.is_view or name in _KEEPS:
            return result
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor) and one.dtype in _COMPUTED and one.layout is torch.strided and one.numel():
                with torch.no_grad():
                    self.change(one.detach())
        return result

    def change(self, value: torch.Tensor) -> None:
        """Change a result in place."""


class Saturating(_Results):
    """Infinities become the largest number of the dtype and NaN becomes 0 (INF_NAN_MODE_ENABLE=0; 910A and 310P).

    ``limit`` is the largest number of the case's own dtype, for a golden in a wider one.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def change(self, value: torch.Tensor) -> None:
        limit = min(self.limit, torch.finfo(value.dtype).max)
        bad = ~(value.abs() <= limit)
        if bool(bad.any()):
            self.met += int(bad.sum())
            value.nan_to_num_(nan=0.0, posinf=limit, neginf=-limit).clamp_(-limit, limit)


class Flushing(_Results):
    """Subnormal results become zeros of their sign (Ascend 950), with ``inputs`` subnormal operands as well.

    ``smallest`` is the smallest normal number of the case's own dtype, for a golden in a wider one.
    """

    def __init__(self, smallest: float, *, inputs: bool = False) -> None:
        super().__init__()
        self.smallest = smallest
        self.inputs = inputs

    def call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.inputs and not func.is_view and name not in _KEEPS:
            written = [a.alias_info is not None for a in func._schema.arguments]
            args = [a if written[i] else self._flushed(a) for i, a in enumerate(args)]
        return super().call(func, name, args, kwargs)

    def _flushed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in _COMPUTED or value.layout is not torch.strided:
            return value
        faint = self._faint(value)
        if not bool(faint.any()):
            return value
        self.met += int(faint.sum())
        return value * faint.logical_not()

    def _faint(self, value: torch.Tensor) -> torch.Tensor:
        return (value.abs() < max(self.smallest, torch.finfo(value.dtype).smallest_normal)) & (value != 0)

    def change(self, value: torch.Tensor) -> None:
        faint = self._faint(value)
        if bool(faint.any()):
            self.met += int(faint.sum())
            value.mul_(faint.logical_not())


# --- captures -------------------------------------------------------------------------------------------------------


class _Swapped(Rebuilder):
    def __init__(self, new: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._new = new

    def tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        return self._new.get(id(value), value)


def with_leaves(capture: Capture, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> Capture:
    """The capture with other tensors: ``old`` are its own by path (see ``reference.leaves``), ``new`` replace some."""
    swapped = _Swapped({id(old[path]): value for path, value in new.items()})
    changes = {
        path: dataclasses.replace(change, after=swapped.build(change.after, path))
        for path, change in capture.changes.items()
    }
    parts = {name: swapped.build(getattr(capture, name), name) for name in ("output", "gradients", "checkpoints")}
    return dataclasses.replace(capture, changes=changes, **parts)
