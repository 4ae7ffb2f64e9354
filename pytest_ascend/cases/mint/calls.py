"""Cases of mint's functions and modules out of torch's arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.catalogue.entries import Sample
from pytest_ascend.cases.catalogue.laid import replaced, tensors_of
from pytest_ascend.cases.catalogue.specs import Builder
from pytest_ascend.cases.mint import pairs
from pytest_ascend.cases.mint.bridge import Counterpart, MintFunction, module_maker
from pytest_ascend.cases.mint.pairs import Pair
from pytest_ascend.targets import parse

__all__ = ["of_function", "of_module"]


def of_function(
    pair: Pair, counterpart: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], target: str
) -> tuple[Case, dict[str, Any]]:
    """The case of a function, with torch's arguments, and its options."""
    kwargs = dict(kwargs)
    if pair.in_place:  # a leaf of a graph can't be changed
        bare = {id(t): t.detach() for t in tensors_of((args, kwargs)) if t.requires_grad}
        args, kwargs = replaced(args, bare), replaced(kwargs, bare)
    reference = Counterpart(counterpart)
    fn = _function(pair, target, reference.differentiable(args, dict(kwargs)))
    return Case(fn, args, kwargs, pair.name), {"target": target, "reference": reference}


def of_module(
    pair: Pair,
    counterpart: type[torch.nn.Module],
    module: Any,
    sample: Sample,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    target: str,
    seed: int,
) -> tuple[Case, dict[str, Any]]:
    """The case of a module; its parameters and buffers become the first argument."""
    assert sample.made is not None
    dtype = next((t.dtype for t in (*module.parameters(), *tensors_of(args)) if t.is_floating_point()), torch.float32)
    builder = Builder(dtype, seed)
    made_args = tuple(builder.build(spec) for spec in sample.made["a"])
    made_kwargs = {name: builder.build(spec) for name, spec in sample.made["k"].items()}
    training = bool(sample.made["t"])
    state = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
    state |= {name: b.detach().clone() for name, b in module.named_buffers()}
    reference = Counterpart(module_maker(counterpart, made_args, made_kwargs, training), made=True)
    given = (state, *args)
    made = {"args": made_args, "kwargs": pairs.keywords(pair, made_kwargs) or {}, "training": training}
    fn = _function(pair, target, reference.differentiable(given, dict(kwargs)), made)
    return Case(fn, given, dict(kwargs), pair.name), {"target": target, "reference": reference}


def _function(
    pair: Pair, target: str, differentiable: tuple[bool, ...] | None, made: Mapping[str, Any] | None = None
) -> MintFunction:
    where = parse(target)
    convert = functools.partial(_converted, pair) if made is None else _by_position
    return MintFunction(f"mindspore.{pair.name}", where.soc or "", where.index, made, differentiable, convert)


def _converted(pair: Pair, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, named = pairs.positions(pair, args)
    return args, {**named, **(pairs.keywords(pair, kwargs) or {})}


def _by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A module's ``forward(input)`` isn't called the same everywhere."""
    return (*args, *kwargs.values()), {}
