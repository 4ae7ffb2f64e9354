"""Tell data movement from computing, by what a case's own reference does.

An operator that only moves values (``gather``, ``transpose``, ``cat``, ``where``, ``max``, ``relu``) must be exact on
any device, and no tolerance may excuse it. There is no table of such operators here: when the float64 reference and
the one in the case's own dtype agree bit for bit, and every value that comes out went in (zero and signs apart: ``abs``
and ``copysign`` move as well), values were moved. Where there are too few values to tell by, the kernels of the call
are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pytest_ascend.cases.transfer import same_bits
from pytest_ascend.judge.standards import Exactness
from pytest_ascend.observe.modes import DispatchMode

__all__ = ["MOVES", "Kernels", "computes", "moved"]

DISTINCT = 3
"""Fewer different values than this, zeros and ones apart, may come out of arithmetic by coincidence."""

SAMPLE = 1 << 16
"""Output elements looked at."""

MOST = 1 << 22
"""Input elements searched; a case with more is judged as computing."""

_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# All bits but the sign.
_SIZE = {size: (1 << (8 * size - 1)) - 1 for size in _WORD}


def moved(
    golden: torch.Tensor,
    benchmark: torch.Tensor | None,
    actual: torch.Tensor,
    *,
    inputs: Iterable[torch.Tensor],
    only_moves: Callable[[], bool] = lambda: False,
) -> Exactness:
    """How much of an output must be equal bit for bit, because it holds nothing but values of the inputs, and zeros.

    All of it where they are many different ones or no kernel computes, and the signs of its zeros where there are any;
    signs of other values don't matter.

    Args:
        golden: the output computed in float64.
        benchmark: the same output computed in the case's own floating dtype.
        actual: what is to be judged; nothing is asked of the very bits of the benchmark.
        inputs: the tensors that went in; those of another dtype are passed over, unless the callable casts to one of
            fewer bits, which is a move as well.
        only_moves: whether no kernel of the call computes; asked where the values don't tell.
    """
    if benchmark is None:
        return Exactness.NOTHING
    dtype = benchmark.dtype
    if not dtype.is_floating_point or golden.shape != benchmark.shape:
        return Exactness.NOTHING
    if dtype.itemsize not in _WORD or golden.layout is not torch.strided:
        return Exactness.NOTHING
    if same_bits(benchmark, actual):
        return Exactness.NOTHING
    if not torch.equal(torch.nan_to_num(golden, nan=0.5), torch.nan_to_num(benchmark.to(golden.dtype), nan=0.5)):
        return Exactness.NOTHING
    found = _by_values(golden, benchmark, inputs)
    return Exactness.VALUES if found is not Exactness.VALUES and only_moves() else found


def _by_values(golden: torch.Tensor, benchmark: torch.Tensor, inputs: Iterable[torch.Tensor]) -> Exactness:
    dtype = benchmark.dtype
    given = [t.detach() for t in inputs if t.is_floating_point() and t.device.type == "cpu"]
    if golden.dtype == dtype:  # the callable casts: every value that went in has one nearest number
        given = [t.to(dtype) for t in given if t.dtype.itemsize > dtype.itemsize]
    given = [t for t in given if t.dtype == dtype and t.layout is torch.strided]
    if not given or sum(tensor.numel() for tensor in given) > MOST:
        return Exactness.NOTHING
    flat = benchmark.detach().reshape(-1)
    bits = flat[:: max(1, flat.numel() // SAMPLE)].contiguous().view(_WORD[dtype.itemsize])
    bits = torch.unique(bits & _SIZE[dtype.itemsize])
    plain = torch.tensor([0.0, 1.0], dtype=dtype).view(_WORD[dtype.itemsize])
    different = int(torch.isin(bits, plain, invert=True).sum())
    if not different:
        return Exactness.NOTHING
    words = [tensor.contiguous().view(_WORD[dtype.itemsize]).reshape(-1) & _SIZE[dtype.itemsize] for tensor in given]
    if not bool(torch.isin(bits, torch.cat([*words, plain[:1]])).all()):
        return Exactness.NOTHING
    return Exactness.VALUES if different >= DISTINCT else Exactness.ZEROS


#: Operators that move values, or make them of none, without a namespace.
MOVES = frozenset(
    {
        *("_to_copy", "clone", "copy_", "detach", "lift_fresh", "resize_", "cat", "stack", "constant_pad_nd", "gather"),
        *("index", "index_select", "where", "arange", "scalar_tensor", "_local_scalar_dense", "fill_", "zero_"),
        *(f"{name}{suffix}" for name in ("empty", "full", "ones", "zeros") for suffix in ("", "_like")),
        *(f"new_{name}" for name in ("empty", "empty_strided", "full", "ones", "zeros")),
        "empty_strided",
    }
)


def computes(func: Any) -> bool:
    """Whether an overload of torch computes: it is no view, copy, conversion or filling."""
    space, _, name = func._schema.name.partition("::")
    return not func.is_view and not (space == "aten" and name in MOVES)


class Kernels(DispatchMode):
    """Counts the kernels that compute, while it lasts; ``made`` tells whether numbers came from nowhere."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.made = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += computes(func)
        self.made |= func._schema.name == "aten::arange"
        return func(*args, **(kwargs or {}))
