"""What collectives are given and what they give, on one rank, seen at the dispatcher: also those that DDP makes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ascend.judge.collectives import Call

__all__ = ["MOST", "Collectives"]

MOST = 256 << 20
"""Bytes of tensors that are kept of one rank."""
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# Operators of c10d by kind: those that write to what they are given, and those that have outputs of their own.
_INPLACE = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
}
_APART = {
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
}
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
# Of these nothing is kept: they have no result of their own, or only two ranks know of them.
_QUIET = ("wait_tensor", "_wrap_tensor_autograd", "send", "recv_", "recv_any_source_", "monitored_barrier_")


class Collectives(TorchDispatchMode):
    """Collects the collectives that are made while it is entered; each is waited for at once.

    Args:
        say: told ``(number, what, entered)`` before and after each.
    """

    def __init__(self, say: Callable[[int, str, bool], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._say = say
        self._left = MOST

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace not in ("c10d", "_c10d_functional") or func._opname in _QUIET:
            return func(*args, **kwargs)
        named = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        number = len(self.calls)
        kind, reduction, group, root = _about(func, named)
        place = _place()
        before = _inputs(func, named, len(group))
        self._say(number, f"{kind} at {place}" if place else kind, True)
        size = sum(t.nbytes for t in before)
        kept = size <= self._left
        inputs = [_kept(t) for t in before] if kept else []
        result = func(*args, **kwargs)
        if func.namespace == "c10d":
            work = result[-1] if isinstance(result, (tuple, list)) else result
            if hasattr(work, "wait"):
                work.wait()
        else:
            result = torch.ops._c10d_functional.wait_tensor(result) if isinstance(result, torch.Tensor) else result
        after = _outputs(func, named, result, len(group))
        size += sum(t.nbytes for t in after)
        kept = kept and size <= self._left
        self._left -= size if kept else 0
        outputs = [_kept(t) for t in after] if kept else []
        self.calls.append(Call(kind, group, reduction, root, inputs if kept else [], outputs, place, kept))
        self._say(number, kind, False)
        return result


def _about(func: Any, named: dict[str, Any]) -> tuple[str, str, tuple[int, ...], int | None]:
    """Kind, reduction, ranks and root of a collective."""
    name = func._opname
    if func.namespace == "_c10d_functional":
        ranks = tuple(dist.get_process_group_ranks(_resolved(named["group_name"])))
        reduction = str(named.get("reduce_op", "")).lower()
        src = named.get("src")
        return _FUNCTIONAL.get(name, name), reduction, ranks, None if src is None else ranks[int(src)]
    held = named.get("process_group")
    group = dist.ProcessGroup.unbox(held) if held is not None else dist.group.WORLD
    ranks = tuple(dist.get_process_group_ranks(group))
    op = named.get("reduce_op")
    reduction = "" if op is None else _reduction(op)
    at = named.get("root_rank")
    kind = _INPLACE.get(name) or _APART.get(name) or name.strip("_")
    return kind, reduction, ranks, None if at is None else ranks[int(at)]


def _reduction(op: Any) -> str:
    """Its name, out of torch's number for it; empty where this torch doesn't tell."""
    try:
        return str(dist.ReduceOp.RedOpType(op.op()).name).lower()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return ""


def _resolved(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    return torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for one in value for t in _flat(one)] if isinstance(value, (list, tuple)) else []


def _parts(tensor: torch.Tensor, count: int, sizes: Any = None) -> list[torch.Tensor]:
    """A tensor's share of each rank, cut along its first dimension."""
    if sizes:
        return list(torch.split(tensor, list(map(int, sizes))))
    if tensor.dim() == 0 or tensor.shape[0] % count:
        return [tensor]
    return list(tensor.chunk(count)) if tensor.shape[0] else [tensor] * count


def _inputs(func: Any, named: dict[str, Any], count: int) -> list[torch.Tensor]:
    name = func._opname
    if func.namespace == "c10d" and name in _INPLACE:
        return _flat(named.get("tensors", []))
    if name not in _APART and name not in _FUNCTIONAL:
        return []
    tensors = _flat(
        next((named[key] for key in ("input_tensors", "input_list", "input_tensor", "input") if key in named), [])
    )
    if name in ("_reduce_scatter_base_", "reduce_scatter_tensor"):
        return _parts(tensors[0], count)
    if name in ("alltoall_base_", "all_to_all_single"):
        return _parts(tensors[0], count, named.get("input_split_sizes"))
    return tensors


def _outputs(func: Any, named: dict[str, Any], result: Any, count: int) -> list[torch.Tensor]:
    name = func._opname
    if func.namespace == "c10d" and name in _INPLACE:
        return _flat(named.get("tensors", []))
    if func.namespace != "c10d":
        tensors = _flat(result) if name in _FUNCTIONAL else []
    elif name in _APART:
        keys = ("output_tensors", "output_lists", "output_tensor", "output")
        tensors = _flat(next((named[key] for key in keys if key in named), []))
    else:
        return []
    if name in ("_allgather_base_", "all_gather_into_tensor") and tensors:
        return _parts(tensors[0].reshape(count, -1), count)
    if name in ("alltoall_base_", "all_to_all_single") and tensors:
        return _parts(tensors[0], count, named.get("output_split_sizes"))
    return tensors


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _place() -> str:
    """The line of the caller's code."""
    at: Any = sys._getframe(2)
    while at is not None:
        file = at.f_code.co_filename
        if not file.startswith((_OWN, _TORCH, "<")) and f"{os.sep}torch{os.sep}" not in file:
            return f"{os.path.relpath(file)}:{at.f_lineno}" if os.path.isabs(file) else f"{file}:{at.f_lineno}"
        at = at.f_back
    return ""
