"""Runs that are right, though not always bit by bit what the CPU computes.

``emulator``: the device itself. ``decomposition``: PyTorch's own decompositions on the device. ``rounded once``: a
16-bit call computed in float32 and stored. ``permuted``: sums over the same terms in another order. ``hf32``: matrix
products and convolutions of float32 with 11 mantissa bits, the chip's documented mode: MODE_DIFF, or PASS where the
criterion has room for it. ``other numbers``: a dropout that drew from another generator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from samples import Bench, Function, on_device

__all__ = ["Right", "rights"]

aten = torch.ops.aten


class Right(NamedTuple):
    """A right run: its kind, what the device calls, and under which mode."""

    kind: str
    fn: Function
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def rights(bench: Bench) -> Iterator[Right]:
    """The right runs of a sample. A run raises LookupError where it would be the emulator's own."""
    fn, dtype = bench.sample.fn, bench.sample.dtype
    yield Right("emulator", fn)
    if bench.sample.random:
        yield Right("other numbers", on_device(fn, _reseeded(fn)))
        return
    if bench.reference.own.changes:
        return  # the others don't change arguments in place
    yield Right("decomposition", on_device(fn, _under(_Decomposed, fn)))
    yield Right("permuted", on_device(fn, _under(_Permuted, fn)))
    if dtype == torch.float32:
        yield Right("hf32", fn, hf32)
    else:
        yield Right("rounded once", on_device(fn, _rounded_once(fn, dtype)))


@contextlib.contextmanager
def hf32() -> Iterator[None]:
    """HF32 in matmul and convolution."""
    conv, matmul = torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32
    torch.npu.conv.allow_hf32 = torch.npu.matmul.allow_hf32 = True
    try:
        yield
    finally:
        torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32 = conv, matmul


def _under(mode: Callable[[], Any], fn: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with mode() as active:
            result = fn(*args, **kwargs)
        if not active.used:
            raise LookupError("nothing to replace")
        return result

    return call


def _reseeded(fn: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(12345)
        return fn(*args, **kwargs)

    return call


def _rounded_once(fn: Function, dtype: torch.dtype) -> Function:
    def widen(v: Any) -> Any:
        return v.float() if isinstance(v, torch.Tensor) and v.dtype == dtype else v

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():  # which of its results have the dtype; a dtype asked for stays
            asked = tree_flatten(fn(*args, **kwargs))[0]
        wide, form = tree_flatten(fn(*tree_map(widen, args), **tree_map(widen, kwargs)))
        return tree_unflatten(
            [v.to(a.dtype) if isinstance(a, torch.Tensor) else v for v, a in zip(wide, asked, strict=True)], form
        )

    return call


class _Decomposed(TorchDispatchMode):
    """PyTorch's own decompositions in place of its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        decomposition = decomposition_table.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **(kwargs or {}))
            if result is not NotImplemented:
                self.used += 1
                return result
        return func(*args, **(kwargs or {}))


class _Permuted(TorchDispatchMode):
    """The terms of sums, means, variances, norms, products of matrices, convolutions and softmax in another order.

    A permutation of the reduced dimension, applied to every operand that has it, leaves the mathematical result as it
    is and changes what the additions round away.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _PERMUTED.get(func.overloadpacket)
        if rule is not None and not any(isinstance(v, torch.Tensor) and v.is_complex() for v in args):
            result = rule(func, list(args), kwargs)
            if result is not None:
                self.used += 1
                return result
        return func(*args, **kwargs)


def _order(size: int) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(size))


def _mixed(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.index_select(dim, _order(x.shape[dim]).to(x.device))


def _reduction(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``sum(x, dims, ...)``: every reduced dimension in another order."""
    x = args[0]
    named = {a.name: i for i, a in enumerate(func._schema.arguments)}
    place = named.get("dim")
    dims = kwargs.get("dim") if place is None or place >= len(args) else args[place]
    dims = list(range(x.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
    if not x.dim() or all(x.shape[d] < 3 for d in dims):
        return None
    for d in dims:
        x = _mixed(x, d)
    return func(x, *args[1:], **kwargs)


def _product(left: int, right: int) -> Callable[..., Any]:
    """A product of two matrices: the last dimension of the left, the last but one (or only one) of the right."""

    def rule(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        a, b = args[left], args[right]
        if a.shape[-1] < 3:
            return None
        args[left], args[right] = _mixed(a, a.dim() - 1), _mixed(b, max(0, b.dim() - 2))
        return func(*args, **kwargs)

    return rule


def _softmax(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x, dim = args[0], args[1]
    if not x.dim() or x.shape[dim] < 3:
        return None
    back = torch.argsort(_order(x.shape[dim])).to(x.device)
    return func(_mixed(x, dim), *args[1:], **kwargs).index_select(dim, back)


def _convolution(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x, weight = args[0], args[1]
    transposed, groups = args[6], args[8]
    if groups != 1 or x.shape[1] < 2:
        return None
    args[0], args[1] = _mixed(x, 1), _mixed(weight, 0 if transposed else 1)
    return func(*args, **kwargs)


_PERMUTED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (aten.sum, aten.mean, aten.nansum, aten.var, aten.std, aten.var_mean, aten.std_mean, aten.logsumexp),
        _reduction,
    ),
    aten.linalg_vector_norm: _reduction,
    aten.mm: _product(0, 1),
    aten.bmm: _product(0, 1),
    aten.mv: _product(0, 1),
    aten.dot: _product(0, 1),
    aten.addmm: _product(1, 2),
    aten.baddbmm: _product(1, 2),
    aten.addbmm: _product(1, 2),
    aten.addmv: _product(1, 2),
    aten._softmax: _softmax,
    aten._log_softmax: _softmax,
    aten.convolution: _convolution,
}
