"""The kinds of faults, part two: those of what a kernel reads, and of what it writes where it shouldn't."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from faults import Planted, fault, in_store, relative
from samples import Function, Sample, on_device, replace_leaves

__all__ = ["contiguous_strides"]


def contiguous_strides(shape: Any) -> tuple[int, ...]:
    """The strides of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _reading(fn: Function, place: int, misread: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """The callable that is given, on the device, ``misread`` of the tensor at a place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tensor = tree_flatten((args, kwargs))[0][place]
        args, kwargs = replace_leaves(args, kwargs, {place: misread(tensor)})
        return fn(*args, **kwargs)

    return on_device(fn, call)


def _pick(sample: Sample, chance: random.Random, fits: Callable[[torch.Tensor], bool]) -> tuple[int, Any] | None:
    """A floating argument that fits, by its place."""
    found = [(i, v.detach()) for i, v in sample.floating() if fits(v)]
    return chance.choice(found) if found else None


def _linear(x: torch.Tensor) -> torch.Tensor:
    """The memory an argument starts at, read from there on as if it were contiguous."""
    return x.as_strided(x.shape, contiguous_strides(x.shape), x.storage_offset())


def _differs(x: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two readings of an argument differ by more than rounding: a symmetric matrix is its own transpose."""
    x, other = x.double(), other.double()
    return bool(((x - other).abs() > relative(x) * x.square().mean().sqrt()).any())


def _without_gradients(sample: Sample) -> dict[int, torch.Tensor]:
    return {i: v.detach() for i, v in sample.tensors()}


def _misread(
    sample: Sample, place: int, view: torch.Tensor, wrong: Callable[[torch.Tensor], torch.Tensor]
) -> Planted | None:
    """An argument given as a view, and misread; None where that reads the same values."""
    if not _differs(view, wrong(view)):
        return None
    given = sample.with_tensors(_without_gradients(sample) | {place: view})
    return Planted(_reading(sample.fn, place, wrong), given)


# --- memory layout ---------------------------------------------------------------------------------------------------


@fault("stride ignored", common=True)
def _stride_ignored(sample: Sample, chance: random.Random) -> Planted | None:
    """A transposed argument is read as its memory lies."""
    found = _pick(sample, chance, lambda v: v.dim() > 1 and min(v.shape[-2:]) > 1)
    if found is None:
        return None
    place, x = found
    view = x.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)
    return _misread(sample, place, view, _linear)


@fault("gap ignored", common=True)
def _gap_ignored(sample: Sample, chance: random.Random) -> Planted | None:
    """An argument with gaps between its elements (``x[..., ::2]``) is read as its memory lies."""
    found = _pick(sample, chance, lambda v: v.dim() > 0 and v.numel() > 1)
    if found is None:
        return None
    place, x = found
    view = torch.stack([x, x.flip(-1)], dim=-1).reshape(*x.shape[:-1], -1)[..., ::2]
    return _misread(sample, place, view, _linear)


@fault("offset ignored", common=True)
def _offset_ignored(sample: Sample, chance: random.Random) -> Planted | None:
    """An argument that starts inside its storage is read from the storage's beginning."""
    found = _pick(sample, chance, lambda v: v.numel() > 1)
    if found is None:
        return None
    place, x = found
    flat = x.reshape(-1)
    view = torch.cat([flat.flip(0), flat])[flat.numel() :].view(x.shape)
    return _misread(sample, place, view, lambda v: v.as_strided(v.shape, v.stride(), 0))


@fault("broadcast ignored", common=True)
def _broadcast_ignored(sample: Sample, chance: random.Random) -> Planted | None:
    """An argument with stride 0 (``expand``) is read on through the memory behind it."""
    found = _pick(sample, chance, lambda v: v.dim() > 0 and v.shape[0] > 1)
    if found is None:
        return None
    place, x = found
    x = x.clone(memory_format=torch.contiguous_format)
    return _misread(sample, place, x[:1].expand(x.shape), _linear)


# --- values ----------------------------------------------------------------------------------------------------------


@fault("inputs in lower precision", common=True)
def _lower_inputs(sample: Sample, chance: random.Random) -> Planted | None:
    """One argument passes through a narrower type first: 11 bits for float32 (no mode is on), 8-bit e4m3 for 16."""
    found = _pick(sample, chance, lambda v: v.numel() > 1)
    if found is None:
        return None

    def misread(x: torch.Tensor) -> torch.Tensor:
        plain = x.detach().cpu()
        low = plain.to(torch.float16 if plain.dtype == torch.float32 else torch.float8_e4m3fn).to(plain.dtype)
        return torch.where(low.isfinite(), low, plain).to(x.device)

    return Planted(_reading(sample.fn, found[0], misread))


@fault("input tail unread", common=True)
def _tail_unread(sample: Sample, chance: random.Random) -> Planted | None:
    """The last sixteenth of one argument counts as zero: the loop over the input stops one block early."""
    found = _pick(sample, chance, lambda v: v.numel() > 1)
    if found is None:
        return None

    def misread(x: torch.Tensor) -> torch.Tensor:
        plain = x.detach().clone(memory_format=torch.contiguous_format)
        plain.view(-1)[-max(1, plain.numel() // 16) :] = 0
        return plain

    return Planted(_reading(sample.fn, found[0], misread))


@fault("keyword ignored")
def _keyword_ignored(sample: Sample, chance: random.Random) -> Planted | None:
    """A number given by keyword (``alpha``, ``beta``, ``eps``, ``negative_slope``) is taken to be its default."""
    numbers = [k for k, v in sample.kwargs.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if not numbers:
        return None
    name, fn = chance.choice(sorted(numbers)), sample.fn
    return Planted(on_device(fn, lambda *args, **kwargs: fn(*args, **{k: v for k, v in kwargs.items() if k != name})))


# --- an argument that is a list --------------------------------------------------------------------------------------


def _list_of_tensors(sample: Sample) -> list[torch.Tensor] | None:
    first = sample.args[0] if sample.args else None
    if isinstance(first, (list, tuple)) and len(first) > 1 and all(isinstance(v, torch.Tensor) for v in first):
        return list(first)
    return None


def _with_list(fn: Function, change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Function:
    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(type(first)(change(list(first))), *args, **kwargs)

    return on_device(fn, call)


@fault("list out of order", rare=True)
def _list_order(sample: Sample, chance: random.Random) -> Planted | None:
    """The first and the last tensor of the list are taken for each other."""
    tensors = _list_of_tensors(sample)
    if tensors is None or tensors[0].shape != tensors[-1].shape:
        return None
    return Planted(_with_list(sample.fn, lambda v: [v[-1], *v[1:-1], v[0]]))


@fault("list's last unread", rare=True)
def _list_last(sample: Sample, chance: random.Random) -> Planted | None:
    """The last tensor of the list is taken to be the first one where their shapes agree, else to be zero."""
    tensors = _list_of_tensors(sample)
    if tensors is None:
        return None

    def change(v: list[torch.Tensor]) -> list[torch.Tensor]:
        return [*v[:-1], v[0] if v[0].shape == v[-1].shape else torch.zeros_like(v[-1])]

    return Planted(_with_list(sample.fn, change))


@fault("list element's tail", rare=True)
def _list_tail(sample: Sample, chance: random.Random) -> Planted | None:
    """One tensor of the list, chosen at random, loses its last sixteenth."""
    tensors = _list_of_tensors(sample)
    if tensors is None:
        return None
    i = chance.randrange(len(tensors))

    def change(v: list[torch.Tensor]) -> list[torch.Tensor]:
        cut = v[i].detach().clone(memory_format=torch.contiguous_format)
        cut.view(-1)[-max(1, cut.numel() // 16) :] = 0
        return [*v[:i], cut, *v[i + 1 :]]

    return Planted(_with_list(sample.fn, change))


# --- memory that isn't the result's ----------------------------------------------------------------------------------


@fault("neighbour written", common=True)
def _neighbour_written(sample: Sample, chance: random.Random) -> Planted | None:
    """An argument is a view into a larger tensor, and the element behind it is overwritten."""
    found = _pick(sample, chance, lambda v: v.numel() > 0)
    if found is None:
        return None
    place, x = found
    size = x.numel()
    base = torch.cat([x.reshape(-1)[:1], x.reshape(-1), x.reshape(-1)[:1]])
    given = sample.with_tensors(_without_gradients(sample) | {place: base[1:-1].view(x.shape)})
    fn = sample.fn

    def call(*args: Any, **kwargs: Any) -> Any:
        tensor = tree_flatten((args, kwargs))[0][place]
        result = fn(*args, **kwargs)
        with torch.no_grad():
            tensor.as_strided((1,), (1,), tensor.storage_offset() + size).add_(1)
        return result

    return Planted(on_device(fn, call), given)


@fault("argument overwritten", common=True)
def _argument_overwritten(sample: Sample, chance: random.Random) -> Planted | None:
    """The last element of an argument is used as scratch memory and not put back."""
    found = _pick(sample, chance, lambda v: v.is_contiguous())
    if found is None:
        return None
    place, fn = found[0], sample.fn

    def call(*args: Any, **kwargs: Any) -> Any:
        tensor = tree_flatten((args, kwargs))[0][place]
        result = fn(*args, **kwargs)
        with torch.no_grad():
            tensor.detach().view(-1)[-1].add_(1)
        return result

    return Planted(on_device(fn, call), sample.with_tensors(_without_gradients(sample)))


# --- special values --------------------------------------------------------------------------------------------------

_ZERO_SIGNED = {
    *("abs", "neg", "copysign", "clone", "contiguous", "view", "reshape", "permute", "transpose", "t", "T", "flip"),
    *("roll", "cat", "stack", "hstack", "vstack", "dstack", "index_select", "gather", "narrow", "expand", "select"),
    *("squeeze", "unsqueeze", "unbind", "split", "chunk", "diagonal", "tril", "triu", "repeat", "tile", "take"),
    *("movedim", "ravel", "flatten", "fliplr", "flipud", "rot90", "unfold", "atleast_2d", "broadcast_to"),
}


@fault("sign of zero", rare=True)
def _sign_of_zero(sample: Sample, chance: random.Random) -> Planted | None:
    """Zeros lose their sign where it is defined: abs, neg, copysign and whatever only moves data."""
    found = _pick(sample, chance, lambda v: v.numel() > 1) if sample.op in _ZERO_SIGNED else None
    if found is None or "." in sample.name:
        return None
    place, x = found
    x = x.clone(memory_format=torch.contiguous_format)
    x.view(-1)[::2] = -0.0
    given = sample.with_tensors(_without_gradients(sample) | {place: x})

    def spoil(y: torch.Tensor) -> None:
        y.copy_(torch.where(y == 0, -y, y))

    return Planted(in_store(sample.fn, spoil), given)


@fault("saturation hidden", common=True)
def _saturation(sample: Sample, chance: random.Random) -> Planted | None:
    """An overflow gives the largest finite number in place of Inf."""
    found = _pick(sample, chance, lambda v: v.numel() > 1)
    if found is None:
        return None
    place, x = found
    largest = torch.finfo(x.dtype).max
    x = x.clone(memory_format=torch.contiguous_format)
    x.view(-1)[: x.numel() // 2] *= largest / 4 / max(1.0, float(x.abs().nan_to_num(1.0, 1.0, 1.0).max()))
    given = sample.with_tensors(_without_gradients(sample) | {place: x})

    def spoil(y: torch.Tensor) -> None:
        y.copy_(torch.where(y.isinf(), torch.copysign(torch.full_like(y, torch.finfo(y.dtype).max), y), y))

    return Planted(in_store(sample.fn, spoil), given)
