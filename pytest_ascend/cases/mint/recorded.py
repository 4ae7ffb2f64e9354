"""Recorded calls of mint: the function that replays one, and the torch function that judges it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pytest_ascend.cases.mint import pairs
from pytest_ascend.cases.mint.pairs import Pair
from pytest_ascend.cases.pending import CaseUnavailable

__all__ = ["replay"]


def replay(
    api: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: str = "mindspore"
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What to call in place of a recorded function, and the options of its case.

    Args:
        api: ``mindspore.mint.matmul``, out of a dump and therefore untrusted: only listed names are called.
        args, kwargs: the call's arguments, as mint takes them.
        target: where it runs.

    Raises:
        CaseUnavailable: mint has no such function, or torch has none to judge it by.
    """
    from pytest_ascend.cases.catalogue.names import resolve
    from pytest_ascend.cases.mint.bridge import Counterpart, MintFunction
    from pytest_ascend.targets import parse

    pair = pairs.known(pairs.public(api))
    if pair is None:
        raise CaseUnavailable(f"{api} is no function of mint that can be replayed")
    if not isinstance(pair, Pair) or pair.is_module:
        reason = "a module's own calls are cases" if isinstance(pair, Pair) else pair.reason
        raise CaseUnavailable(f"{api} has no reference: {reason}", True)
    reference = Counterpart(functools.partial(_as_torch, pair, resolve(pair.torch)))
    where = parse(target)
    able = reference.differentiable(args, dict(kwargs))
    return MintFunction(f"mindspore.{pair.name}", where.soc or "", where.index, None, able), {
        "target": target,
        "reference": reference,
    }


def _as_torch(pair: Pair, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    names = {mint: torch for torch, mint in pairs.RENAMED.get(pair.name, {}).items()}
    if pair.name == "mint.einsum":
        return fn(*args)
    return fn(*args, **{names.get(name, name): value for name, value in kwargs.items()})
