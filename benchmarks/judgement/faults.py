"""The kinds of faults, part one: how a fault is planted, and those of a kernel's store.

A kind is a function that is registered under a name and says how its fault comes about in a kernel. Given a sample it
answers a :class:`Planted`, or None where the fault can't occur. Faults live in the run on the device only.

``common`` kinds fit nearly every operator; measure.py deals them out over the samples. The others are planted wherever
they fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from samples import Function, Sample, on_device, replace_leaves

__all__ = ["FAULTS", "Fault", "Planted", "fault", "in_result", "in_store", "relative"]


@dataclasses.dataclass
class Planted:
    """A fault in place.

    Attributes:
        fn: what is called: wrong on the device, right on the CPU.
        sample: the sample with other inputs, where the fault needs them to show.
        around: what has to be active while the device runs, such as a replaced kernel.
    """

    fn: Function
    sample: Sample | None = None
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


@dataclasses.dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name, about: what it is called, how it comes about.
        plant: puts it into a sample, with random numbers of its own; None where it doesn't fit.
        common: fits nearly every operator.
        rare: fits few operators, so that more of their samples are taken.
        gradients: concerns the backward pass, so that gradients are compared.
    """

    name: str
    about: str
    plant: Callable[[Sample, random.Random], Planted | None]
    common: bool = False
    rare: bool = False
    gradients: bool = False


FAULTS: dict[str, Fault] = {}


def fault(name: str, **where: bool) -> Callable[[Any], Any]:
    """Register the decorated function as a kind; its docstring says how the fault comes about."""

    def register(plant: Callable[[Sample, random.Random], Planted | None]) -> Any:
        FAULTS[name] = Fault(name, " ".join((plant.__doc__ or "").split()), plant, **where)
        return plant

    return register


# --- faults of the store ---------------------------------------------------------------------------------------------

Spoil = Callable[[torch.Tensor], None]


def in_result(fn: Function, spoil: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """The callable with every tensor it returns replaced by what ``spoil`` makes of its copy on the CPU."""

    def call(*args: Any, **kwargs: Any) -> Any:
        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.numel():
                return value
            plain = value.detach().cpu().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
            return spoil(plain).to(value.device)

        return tree_map(one, fn(*args, **kwargs))

    return on_device(fn, call)


def in_store(fn: Function, spoil: Spoil) -> Function:
    """The callable with ``spoil`` applied to the floating numbers it returns, in the order they lie in memory."""

    def one(value: torch.Tensor) -> torch.Tensor:
        if value.is_complex():
            spoil(torch.view_as_real(value).reshape(-1))
        elif value.is_floating_point() and value.numel() > 1:
            spoil(value.reshape(-1))
        return value

    return in_result(fn, one)


def relative(y: torch.Tensor) -> float:
    """A wrong factor's distance from 1, well above what the dtype rounds: 1 % or, of 16 bits, 5 %."""
    return 0.01 if y.dtype in (torch.float32, torch.float64) else 0.05


def _narrow(y: torch.Tensor) -> bool:
    return y.dtype in (torch.float16, torch.bfloat16)


def _stored(name: str) -> Callable[[Callable[[torch.Tensor, random.Random], None]], Any]:
    """Register a fault of the store: the decorated function changes a result, which lies in one dimension, in place."""

    def register(spoil: Callable[[torch.Tensor, random.Random], None]) -> Any:
        def plant(sample: Sample, chance: random.Random) -> Planted:
            seed = chance.random()
            return Planted(in_store(sample.fn, lambda y: spoil(y, random.Random(seed))))

        plant.__doc__ = spoil.__doc__
        fault(name, common=True)(plant)
        return spoil

    return register


@_stored("tail stale")
def _tail_stale(y: torch.Tensor, chance: random.Random) -> None:
    """The last n % 16 elements, which fill no whole block, still hold what the block before put into the buffer."""
    rest = y.numel() % 16
    if rest and y.numel() > 16:
        y[-rest:] = y[-rest - 16 : -16].clone()


@_stored("tail zeroed")
def _tail_zeroed(y: torch.Tensor, chance: random.Random) -> None:
    """The last sixteenth of the result was never computed: the loop stops one block early."""
    y[-max(1, y.numel() // 16) :] = 0


@_stored("last block duplicated")
def _last_block(y: torch.Tensor, chance: random.Random) -> None:
    """The last block holds what the block before it holds: its load was not waited for."""
    block = min(16, y.numel() // 2)
    y[-block:] = y[-2 * block : -block].clone()


@_stored("last element duplicated")
def _last_element(y: torch.Tensor, chance: random.Random) -> None:
    """The last element equals the one before: an index clamped one too low."""
    y[-1] = y[-2].clone()


@_stored("lane stale")
def _lane_stale(y: torch.Tensor, chance: random.Random) -> None:
    """One of eight vector lanes still holds what another block had there."""
    lane = chance.randrange(8)
    y[lane::8] = y.flip(0)[lane::8].clone()


@_stored("rolled")
def _rolled(y: torch.Tensor, chance: random.Random) -> None:
    """Every element stands one place too far: an address off by one."""
    y.copy_(torch.roll(y, 1))


@_stored("sign flipped")
def _sign_flipped(y: torch.Tensor, chance: random.Random) -> None:
    """One element has the wrong sign."""
    i = _noticeable(y, chance)
    y[i] = -y[i]


@_stored("one element off")
def _one_off(y: torch.Tensor, chance: random.Random) -> None:
    """One element is off by 1 % (5 % in 16 bits): a race, a wrong term."""
    i = _noticeable(y, chance)
    y[i] *= 1 + relative(y)


def _noticeable(y: torch.Tensor, chance: random.Random) -> int:
    """The place of an element that isn't small beside the others, because cancellation may excuse a small one."""
    size = y.float().abs().nan_to_num(0.0, 0.0, 0.0)
    places = (size >= 0.25 * size.square().mean().sqrt()).nonzero().flatten().tolist()
    return int(chance.choice(places)) if places else 0


@_stored("two swapped")
def _two_swapped(y: torch.Tensor, chance: random.Random) -> None:
    """Two neighbours stand in each other's place: an unpacking in the wrong order."""
    wide = y.double()
    left, right = wide[:-1], wide[1:]
    places = ((left - right).abs() > relative(y) * torch.maximum(left.abs(), right.abs())).nonzero().flatten().tolist()
    if places:
        i = chance.choice(places)
        y[[i, i + 1]] = y[[i + 1, i]]


@_stored("scaled")
def _scaled(y: torch.Tensor, chance: random.Random) -> None:
    """Everything is 0.2 % (1 % in 16 bits) too large: a wrong constant in a formula."""
    y.copy_((y.double() * (1.01 if _narrow(y) else 1.002)).to(y.dtype))


@_stored("constant bias")
def _biased(y: torch.Tensor, chance: random.Random) -> None:
    """A constant of 0.2 % (2 % in 16 bits) of the typical size is added to everything."""
    wide = y.double()
    rms = float(wide.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt())
    y.copy_((wide + (0.02 if _narrow(y) else 0.002) * rms).to(y.dtype))


@_stored("lower precision")
def _lower(y: torch.Tensor, chance: random.Random) -> None:
    """The result passed through a narrower type: float16 for float32, 8 bits (e4m3) for 16."""
    low = torch.float8_e4m3fn if _narrow(y) else torch.float16
    y.copy_(y.to(low).to(y.dtype))


@_stored("index wrap")
def _index_wrap(y: torch.Tensor, chance: random.Random) -> None:
    """An index counts to 2^k only and starts again: an overflow at 2^31, scaled down to the size of the result."""
    n = y.numel()
    if n > 16:
        size = 1 << ((n - 1).bit_length() - 1)
        y[size:] = y[: n - size].clone()


@_stored("block boundary")
def _block_boundary(y: torch.Tensor, chance: random.Random) -> None:
    """The first element of every block of 16 but the first holds the element before it: a halo read too early."""
    places = torch.tensor(range(16, y.numel(), 16), dtype=torch.long)
    y[places] = y[places - 1]


@fault("unwritten", common=True)
def _unwritten(sample: Sample, chance: random.Random) -> Planted:
    """A quarter of the result was never written and holds whatever the memory held, something else on each run."""
    where, memory = chance.random(), random.Random(chance.random())

    def spoil(y: torch.Tensor) -> None:
        size = max(1, y.numel() // 4)
        first = int(where * (y.numel() - size + 1))
        garbage = [memory.gauss(0.0, 1.0) * memory.choice((0.0, 1e-3, 1.0, 1.0, 30.0)) for _ in range(size)]
        y[first : first + size] = torch.tensor(garbage, dtype=torch.float64).to(y.dtype)

    return Planted(in_store(sample.fn, spoil))


@_stored("NaN in one element")
def _one_nan(y: torch.Tensor, chance: random.Random) -> None:
    """One element is NaN: 0/0 in a masked lane that was stored after all."""
    y[chance.randrange(y.numel())] = float("nan")


@_stored("Inf in one element")
def _one_inf(y: torch.Tensor, chance: random.Random) -> None:
    """One element is infinite: an intermediate left the range."""
    y[chance.randrange(y.numel())] = float("inf")


@fault("row wrong", common=True)
def _row_wrong(sample: Sample, chance: random.Random) -> Planted:
    """Rows 16, 32, ... of the longest dimension (4, 8, ... of a short one) are 1 % (5 %) too large: a tile's edge."""

    def spoil(y: torch.Tensor) -> torch.Tensor:
        if (y.is_floating_point() or y.is_complex()) and y.dim():
            dim = max(range(y.dim()), key=lambda d: y.shape[d])
            step = 16 if y.shape[dim] > 16 else 4
            rows = torch.tensor(range(step, y.shape[dim], step), dtype=torch.long)
            if rows.numel():
                y.index_copy_(dim, rows, (y.index_select(dim, rows) * (1 + relative(y))).to(y.dtype))
        return y

    return Planted(in_result(sample.fn, spoil))


@fault("channel swapped", common=True)
def _channel_swapped(sample: Sample, chance: random.Random) -> Planted:
    """The first two channels (rows of a matrix) stand in each other's place."""

    def spoil(y: torch.Tensor) -> torch.Tensor:
        dim = 1 if y.dim() > 2 else 0
        if y.dim() and y.shape[dim] > 1:
            order = torch.tensor([1, 0, *range(2, y.shape[dim])])
            return y.index_select(dim, order)
        return y

    return Planted(in_result(sample.fn, spoil))


@fault("integer off by one")
def _off_by_one(sample: Sample, chance: random.Random) -> Planted:
    """One integer of the result is one too large."""
    seed = chance.random()

    def spoil(y: torch.Tensor) -> torch.Tensor:
        if not (y.is_floating_point() or y.is_complex() or y.dtype is torch.bool):
            y.reshape(-1)[random.Random(seed).randrange(y.numel())] += 1
        return y

    return Planted(in_result(sample.fn, spoil))


@fault("boolean flipped")
def _flipped(sample: Sample, chance: random.Random) -> Planted:
    """One boolean of the result is the other one."""
    seed = chance.random()

    def spoil(y: torch.Tensor) -> torch.Tensor:
        if y.dtype is torch.bool:
            y.reshape(-1)[random.Random(seed).randrange(y.numel())] ^= True
        return y

    return Planted(in_result(sample.fn, spoil))


@fault("conjugated")
def _conjugated(sample: Sample, chance: random.Random) -> Planted:
    """Imaginary parts have the wrong sign."""
    return Planted(in_result(sample.fn, lambda y: y.conj().resolve_conj() if y.is_complex() else y))


@fault("state left", common=True)
def _state_left(sample: Sample, chance: random.Random) -> Planted | None:
    """The first element mixes in what the call before, with other inputs, left in a buffer."""
    floating = sample.floating()
    if not floating:
        return None
    left: dict[str, float] = {}
    place = floating[0][0]

    def first(result: Any) -> torch.Tensor | None:
        found = (v for v in tree_flatten(result)[0] if isinstance(v, torch.Tensor) and v.numel() > 1)
        return next((v for v in found if v.is_floating_point()), None)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not left:
            flat = tree_flatten((args, kwargs))[0]
            other = flat[place].detach().reshape(-1).roll(1).reshape(flat[place].shape)
            other_args, other_kwargs = replace_leaves(args, kwargs, {place: other})
            y = first(sample_fn(*other_args, **other_kwargs))
            left["value"] = float(y.reshape(-1)[0]) if y is not None else 0.0
        result = sample_fn(*args, **kwargs)
        y = first(result)
        if y is None:
            return result
        now = float(y.reshape(-1)[0])
        spoilt = y.detach().clone(memory_format=torch.contiguous_format)
        spoilt.reshape(-1)[0] = (now + left["value"]) / 2
        left["value"] = now
        return tree_map(lambda v: spoilt if v is y else v, result)

    sample_fn = sample.fn
    return Planted(on_device(sample.fn, call))


# --- faults of the arithmetic ----------------------------------------------------------------------------------------


@fault("truncating store", common=True)
def _truncating(sample: Sample, chance: random.Random) -> Planted | None:
    """The right value, stored without rounding: the low bits are cut off."""
    fn, dtype = sample.fn, sample.dtype
    bits = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23}[dtype]

    def store(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        value, info = value.detach().double(), torch.finfo(dtype)
        step = torch.frexp(value).exponent.double().sub(bits + 1).exp2().clamp_min(info.smallest_normal * info.eps)
        cut = torch.trunc(value / step) * step
        return torch.where(value.isfinite(), cut, value).to(dtype)

    def widen(v: Any) -> Any:
        if not isinstance(v, torch.Tensor):
            return v
        return v.cpu().double() if v.is_floating_point() else v.cpu()

    def call(*args: Any, **kwargs: Any) -> Any:
        device = next(v.device for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor))
        args, kwargs = tree_map(widen, (args, kwargs))
        result = tree_map(store, fn(*args, **kwargs))
        return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, result)

    return Planted(on_device(fn, call)) if sample.tensors() else None


@fault("half accumulator", common=True)
def _half_accumulator(sample: Sample, chance: random.Random) -> Planted:
    """Sums, means and products of matrices add up in 16 bits, one term after another."""
    fn = sample.fn

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), _HalfAccumulator():
            return fn(*args, **kwargs)

    return Planted(on_device(fn, call))


class _HalfAccumulator(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if first is None or not first.is_floating_point():
            return func(*args, **kwargs)
        aten, low = torch.ops.aten, torch.bfloat16 if first.dtype == torch.bfloat16 else torch.float16
        if name in (aten.mm, aten.bmm):
            return self.product(args[0].cpu(), args[1].cpu(), low).to(first.dtype).to(first.device)
        if name in (aten.addmm, aten.baddbmm) and not kwargs:
            added = self.product(args[1].cpu(), args[2].cpu(), low) + args[0].cpu()
            return added.to(first.dtype).to(first.device)
        if name in (aten.sum, aten.mean):
            dims = args[1] if len(args) > 1 and args[1] else list(range(first.dim()))
            keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
            return self.total(first.cpu(), dims, bool(keep), low, name is aten.mean).to(first.dtype).to(first.device)
        return func(*args, **kwargs)

    @staticmethod
    def product(a: torch.Tensor, b: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=low)
        for k in range(a.shape[-1]):
            total = (total.float() + a[..., :, k, None].float() * b[..., k, None, :].float()).to(low)
        return total.float()

    @staticmethod
    def total(x: torch.Tensor, dims: Any, keep: bool, low: torch.dtype, mean: bool) -> torch.Tensor:
        dims = sorted(d % max(1, x.dim()) for d in ([dims] if isinstance(dims, int) else dims))
        rest = [d for d in range(x.dim()) if d not in dims]
        terms = x.permute(*rest, *dims).reshape(*(x.shape[d] for d in rest), -1)
        total = torch.zeros(terms.shape[:-1], dtype=low)
        for k in range(terms.shape[-1]):
            total = (total.float() + terms[..., k].float()).to(low)
        result = total.float() / (max(1, terms.shape[-1]) if mean else 1)
        return result.reshape([1 if d in dims else s for d, s in enumerate(x.shape)]) if keep else result


# --- faults of the backward pass -------------------------------------------------------------------------------------


class _WrongGradient(torch.autograd.Function):
    """The input itself, whose gradient is spoilt."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: str) -> torch.Tensor:
        ctx.how = how
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gradient = grads[0].detach().cpu().clone(memory_format=torch.contiguous_format)
        flat = torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
        _GRADIENTS[ctx.how](flat.reshape(-1), random.Random(0))
        return gradient.to(grads[0].device), None


def _negate(y: torch.Tensor, chance: random.Random) -> None:
    y.neg_()


def _zero(y: torch.Tensor, chance: random.Random) -> None:
    y.zero_()


_GRADIENTS = {"tail": _tail_zeroed, "scaled": _scaled, "zero": _zero, "sign": _negate, "rolled": _rolled}
_GRADIENT_FAULTS = {
    "tail": "The last sixteenth of one argument's gradient is zero.",
    "scaled": "One argument's gradient is 0.2 % (1 % in 16 bits) too large: a factor of the formula is off.",
    "zero": "One argument gets no gradient: the branch that writes it was never taken.",
    "sign": "One argument's gradient has the wrong sign.",
    "rolled": "One argument's gradient stands one place too far.",
}


def _gradient_fault(how: str) -> Callable[[Sample, random.Random], Planted | None]:
    def plant(sample: Sample, chance: random.Random) -> Planted | None:
        places = [i for i, v in sample.tensors() if v.requires_grad and v.numel()]
        if not places:
            return None
        place, fn = chance.choice(places), sample.fn

        def call(*args: Any, **kwargs: Any) -> Any:
            leaf = tree_flatten((args, kwargs))[0][place]
            args, kwargs = replace_leaves(args, kwargs, {place: _WrongGradient.apply(leaf, how)})
            return fn(*args, **kwargs)

        return Planted(on_device(fn, call))

    plant.__doc__ = _GRADIENT_FAULTS[how]
    return plant


for _how in _GRADIENTS:
    fault(f"gradient {_how}", common=True, gradients=True)(_gradient_fault(_how))
