"""Arguments in another layout, as the catalogue wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_ascend.cases.catalogue.choose import AS_MADE
from pytest_ascend.cases.layouts import relay_all
from pytest_ascend.cases.pending import CaseUnavailable

__all__ = ["Maker", "laid_out", "relaid", "replaced", "tensors_of"]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested tuples, lists, named tuples and dicts."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    return [tensor for item in tree for tensor in tensors_of(item)] if isinstance(tree, (tuple, list)) else []


def replaced(tree: Any, new: Mapping[int, torch.Tensor]) -> Any:
    """Nested tuples, lists and dicts with other tensors: ``id(tensor)`` to what stands in its place."""
    if isinstance(tree, torch.Tensor):
        return new.get(id(tree), tree)
    if isinstance(tree, dict):
        return {key: replaced(value, new) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(replaced(item, new) for item in tree)
    return tree


def laid_out(
    args: tuple[Any, ...], kwargs: dict[str, Any], layout: str, whose: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in another layout, or as they are where the name stands for no layout of tensors.

    Raises ``CaseUnavailable``, naming whose arguments they are, where none of them can take it.
    """
    if layout in AS_MADE:
        return args, kwargs
    laid = relaid(args, kwargs, layout)
    if laid is None:
        raise CaseUnavailable(f"no argument of {whose} can be {layout}")
    return laid


def relaid(args: tuple[Any, ...], kwargs: dict[str, Any], layout: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments in another layout; None where none of them can take it.

    ``expanded`` changes values: each tensor repeats its first row (its first element, where it has one dimension),
    for otherwise nothing could have a stride of 0.
    """
    tensors = tensors_of((args, kwargs))
    if layout == "expanded":
        new = {id(t): _repeated(t) for t in tensors if t.dim() and t.shape[0] > 1 and t.dtype.is_floating_point}
    else:
        new = {
            key: tensor
            for key, tensor in relay_all(tensors, layout).items()
            if layout == "sliced" or tensor.numel() > 1
        }
    grads = {id(t): t.requires_grad for t in tensors}
    if not new:
        return None
    laid = {key: tensor.requires_grad_() if grads[key] else tensor for key, tensor in new.items()}
    return replaced(args, laid), replaced(kwargs, laid)


def _repeated(value: torch.Tensor) -> torch.Tensor:
    first = value.detach()[:1].clone()
    return first.expand(value.shape)


class Maker:
    """A function that makes tensors (``torch.linspace``), told where by a tensor that lies there."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))

    def __call__(self, where: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs, device=where.device)
