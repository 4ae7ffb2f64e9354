"""Indices of equal values: which of them is right, torch's documentation says or leaves open.

What each function's page in the documentation of torch 2.13 says of equal values:

``argmax``, ``argmin``, ``max(dim)``, ``min(dim)``: "If there are multiple maximal values [in a reduced row] then the
indices of the first maximal value are returned": one index is right.
``sort``, ``argsort``: "If stable is True then the sorting routine becomes stable, preserving the order of equivalent
elements": open otherwise.
``topk``: "the indices of tied elements are not guaranteed to be stable": open.
``median``, ``nanmedian``: "indices does not necessarily contain the first occurrence of each median value": open.
``kthvalue``: "may nondeterministically return indices for any of them": open.
``mode``, ``cummax``, ``cummin``, max pooling: "the index location of each ... value found", and nothing of ties: open.
``unique``: ``sorted`` orders the values; without it their order is open.

Where the order is open, an index is right when it names an equal value, and those of a sort or a ``topk`` when none
stands twice as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_ascend.judge.definitions import canonical

__all__ = ["DEFINED", "Selection", "find", "gathered", "repeats", "unique_again"]

Tensor = torch.Tensor

#: What torch says where one index is right.
DEFINED = {
    **dict.fromkeys(("argmax", "argmin", "max", "min"), "the first of equal values"),
    **dict.fromkeys(("sort", "argsort"), "equal values in their order, as stable=True asks"),
}


@dataclass(frozen=True)
class Selection:
    """A function whose results are values of its input and where they stood.

    Attributes:
        name: torch's name.
        dim: the dimension along which indices count; None for the flattened input.
        indices: which result holds the indices.
        defined: what torch says of equal values, or nothing where it leaves them open.
        distinct: whether no index may stand twice along ``dim``.
        keepdim: whether the results keep a reduced dimension; None where nothing is reduced.
        spatial: for pooling, how many dimensions the windows have; indices count along these, flattened.
        ordered: whether torch defines the order of the values (``topk`` with ``sorted=True``).
    """

    name: str
    dim: int | None
    indices: int
    defined: str = ""
    distinct: bool = False
    keepdim: bool | None = None
    spatial: int = 0
    ordered: bool = True


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[place] if len(args) > place else default


def find(api: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Selection | None:
    """How a call of a torch function selects, or None when it doesn't."""
    name = canonical(api)
    if name in ("argmax", "argmin"):
        dim, keep = _argument(args, kwargs, 1, "dim", None), bool(_argument(args, kwargs, 2, "keepdim", False))
        return Selection(name, dim, 0, DEFINED[name], keepdim=keep)
    if name in ("max", "min", "median", "nanmedian", "mode"):
        dim = _argument(args, kwargs, 1, "dim", -1 if name == "mode" else None)
        if not isinstance(dim, int) or isinstance(dim, bool):
            return None
        keep = bool(_argument(args, kwargs, 2, "keepdim", False))
        return Selection(name, dim, 1, DEFINED.get(name, ""), keepdim=keep)
    if name in ("sort", "argsort"):
        values = [value for value in args[1:] if not isinstance(value, bool)]
        dim = kwargs.get("dim", values[0] if values else -1)
        stable = bool(kwargs.get("stable", False)) or (".stable" in api and len(args) > 1 and args[1] is True)
        return Selection(name, dim, int(name == "sort"), DEFINED[name] if stable else "", distinct=True)
    if name in ("topk", "kthvalue"):
        dim = _argument(args, kwargs, 2, "dim", -1)
        if name == "topk":
            ordered = bool(_argument(args, kwargs, 4, "sorted", True))
            return Selection(name, dim, 1, distinct=True, ordered=ordered)
        return Selection(name, dim, 1, keepdim=bool(_argument(args, kwargs, 3, "keepdim", False)))
    if name in ("cummax", "cummin"):
        return Selection(name, _argument(args, kwargs, 1, "dim", -1), 1)
    if "max_pool" in name and ("indices" in name or name.startswith("adaptive") or kwargs.get("return_indices")):
        spatial = next((int(digit) for digit in name if digit in "123"), 0)
        return Selection(name, None, 1, spatial=spatial) if spatial and "fractional" not in name else None
    return None


def gathered(how: Selection, source: Tensor, index: Tensor) -> Tensor | None:
    """The values of ``source`` that the indices name, of the indices' shape; NaN (or the smallest integer) where an
    index is out of range. None where the shapes don't fit."""
    if index.dtype not in (torch.int64, torch.int32):
        return None
    index = index.long()
    source = source.detach()
    if how.spatial:
        head = source.shape[: source.dim() - how.spatial]
        flat, rows = source.reshape(*head, -1), index.reshape(*index.shape[: index.dim() - how.spatial], -1)
        if flat.shape[:-1] != rows.shape[:-1]:
            return None
        return _pick(flat, -1, rows).reshape(index.shape)
    if how.dim is None:
        return _pick(source.reshape(-1), 0, index.reshape(-1)).reshape(index.shape)
    if source.dim() == 0:
        return _pick(source.reshape(1), 0, index.reshape(-1)).reshape(index.shape)
    lost = how.keepdim is False
    rows = index.unsqueeze(how.dim) if lost else index
    try:
        picked = _pick(source, how.dim, rows)
    except RuntimeError:
        return None
    return picked.squeeze(how.dim) if lost else picked


def _pick(source: Tensor, dim: int, index: Tensor) -> Tensor:
    size = source.shape[dim]
    legal = (index >= 0) & (index < size)
    if not size:
        return torch.full(index.shape, math.nan, dtype=torch.float64)
    wide = source.double() if source.is_floating_point() else source
    picked = wide.gather(dim, index.clamp(0, size - 1))
    bad = math.nan if picked.is_floating_point() else torch.iinfo(picked.dtype).min if picked.dtype != torch.bool else 0
    return torch.where(legal, picked, torch.full_like(picked, bad))


def repeats(how: Selection, index: Tensor) -> bool:
    """Whether an index stands twice where none may, or out of range."""
    if not how.distinct or index.dim() == 0 or not index.numel():
        return False
    ordered = index.long().sort(how.dim if how.dim is not None else -1).values
    dim = how.dim if how.dim is not None else -1
    return bool((ordered.diff(dim=dim) == 0).any())


def unique_again(args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Tensor | None]) -> str:
    """Whether what ``torch.unique(sorted=False)`` gave is right but for its order; what is wrong, or nothing."""
    source = args[0].detach().to("cpu").reshape(-1)
    values = results[0]
    if values is None or kwargs.get("dim") is not None:
        return "not known"
    truth, counts = torch.unique(source, return_counts=True)
    if values.shape != truth.shape or not torch.equal(values.to("cpu").sort().values.to(truth.dtype), truth):
        return "the values are others"
    rest = [r for r in results[1:] if r is not None]
    wanted_inverse = bool(kwargs.get("return_inverse", args[2] if len(args) > 2 else False))
    wanted_counts = bool(kwargs.get("return_counts", args[3] if len(args) > 3 else False))
    values = values.to("cpu")
    if wanted_inverse:
        given = rest.pop(0).to("cpu").reshape(-1)
        if not bool(((given >= 0) & (given < values.numel())).all()) or not torch.equal(
            values[given].to(source.dtype), source
        ):
            return "the inverse indices don't give back the input"
    if wanted_counts:
        given = rest.pop(0).to("cpu")
        order = values.argsort()
        if not torch.equal(given[order], counts):
            return "the counts are others"
    return ""
