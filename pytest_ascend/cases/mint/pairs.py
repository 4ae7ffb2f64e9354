"""Which torch function each function of mint is paired with, and how torch's arguments become mint's.

``mint_names.json`` lists mint's public names with their parameters (``scripts/export_mint_names.py`` writes it). A name
is paired with torch's of the same name; what differs stands here, each with its reason. Imports neither torch nor
MindSpore.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LEAST", "PREFIX", "VARIANTS", "Pair", "Unpaired", "keywords", "known", "names", "positions", "public"]

PREFIX = "mint."
_LIST = Path(__file__).parent.parent / "data" / "mint_names.json"
_HOMES = ("mint.nn.functional.", "mint.linalg.", "mint.special.", "mint.nn.", "mint.")

#: paired with a torch function of another name or another module
OTHERWISE: Mapping[str, str] = {
    "mint.addr_": "torch.Tensor.addr_",  # torch has it as a method only
    "mint.npu_gelu": "torch.nn.functional.gelu",  # the chip's kernel of the same function, without a switch for it
    "mint.nn.functional.flatten": "torch.flatten",
    "mint.nn.functional.sigmoid_": "torch.sigmoid_",
}

#: samples of another torch function, called with the same arguments
SAMPLES_OF: Mapping[str, str] = {
    "mint.concat": "torch.cat",
    "mint.nn.functional.elu_": "torch.nn.functional.elu",
    "mint.nn.functional.hardtanh_": "torch.nn.functional.hardtanh",
    "mint.nn.functional.relu_": "torch.nn.functional.relu",
    "mint.nn.functional.sigmoid_": "torch.sigmoid",
    "mint.nn.functional.threshold_": "torch.nn.functional.threshold",
    "mint.nn.functional.upsample": "torch.nn.functional.interpolate",
}

#: public names without a case, and why
WITHOUT: Mapping[str, str] = {
    "mint.empty": "writes no values",
    "mint.empty_like": "writes no values",
    "mint.nn.SyncBatchNorm": "it needs the other processes of a run",
    **dict.fromkeys(
        ("mint.batch_norm_stats", "mint.batch_norm_elemt", "mint.batch_norm_gather_stats_with_counts"),
        "torch has it for CUDA only, and it is a building block of SyncBatchNorm",
    ),
}
_WITHOUT_HOME: Mapping[str, str] = {
    "mint.distributed.": "a collective call needs the other processes of the run",
    "mint.optim.": "an optimizer changes parameters over many steps: compare it within a training step of a model",
}

#: keyword arguments under another name: mint's name by torch's
RENAMED: Mapping[str, Mapping[str, str]] = {
    "mint.isnan": {"input": "tensor"},
    "mint.arcsin": {"input": "x"},
}

#: torch's arguments that mint hasn't: dropped where they ask for nothing
_NOTHING = (None, False)

#: arguments that torch takes by position and mint by name, or in another order, by torch's order
POSITIONS: Mapping[str, tuple[str, ...]] = {
    "mint.sort": ("input", "dim", "descending"),
}

#: variants of torch's functions that mint hasn't, by the case list's name of the variant
VARIANTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("mint.std", "mint.std_mean", "mint.var", "mint.var_mean"), ("unbiased",)),  # correction= only
    **dict.fromkeys(("mint.nn.functional.interpolate", "mint.nn.functional.upsample"), ("area", "nearest-exact")),
}

#: fewest positional arguments that mint takes, where torch takes fewer
LEAST: Mapping[str, int] = {"mint.squeeze": 2}


@dataclass(frozen=True)
class Pair:
    """A function of mint and the torch function that judges it.

    Attributes:
        name: mint's, without the library: ``mint.nn.functional.softmax``.
        torch: the other's public name.
        samples: the torch function whose samples it is called with.
        parameters: names of mint's parameters in order, or None where only a call can tell (overloads).
        is_module: a class of ``mint.nn``.
    """

    name: str
    torch: str
    samples: str
    parameters: tuple[str, ...] | None
    is_module: bool

    @property
    def in_place(self) -> bool:
        """Whether it changes its first argument."""
        return self.name.endswith("_")


@dataclass(frozen=True)
class Unpaired:
    """A public name without a torch function that could judge it, and why."""

    name: str
    reason: str


def public(name: str) -> str:
    """A name with or without its library, as it is written here: ``mint.softmax``."""
    return name.removeprefix("mindspore.")


@functools.lru_cache(maxsize=1)
def _listed() -> tuple[str, dict[str, dict[str, Any]]]:
    document = json.loads(_LIST.read_text(encoding="utf-8"))
    return document["mindspore"], document["names"]


def version() -> str:
    """The MindSpore whose names are listed."""
    return _listed()[0]


def names() -> tuple[str, ...]:
    """Public names of mint; those that ``__all__`` leaves out belong to them where torch has the name too."""
    return tuple(name for name in _listed()[1] if known(name) is not None)


@functools.cache
def known(name: str) -> Pair | Unpaired | None:
    """What a public name of mint is paired with; None for one that mint hasn't or that is no part of its interface."""
    row = _listed()[1].get(name)
    if row is None:
        return None
    for home, reason in _WITHOUT_HOME.items():
        if name.startswith(home):
            return Unpaired(name, reason)
    if name in WITHOUT:
        return Unpaired(name, WITHOUT[name])
    if row.get("unlisted") and name in _INSIDE:
        return None
    other = OTHERWISE.get(name, "torch" + name.removeprefix("mint"))
    parameters = None if row["parameters"] is None else tuple(row["parameters"])
    home = next(home for home in _HOMES if name.startswith(home))
    return Pair(name, other, SAMPLES_OF.get(name, other), parameters, home == "mint.nn.")


#: names that stand in mint's modules and are no part of its interface: what it is built of
_INSIDE = frozenset(
    {
        *("mint.cdist_", "mint.constexpr", "mint.equal_ext_op", "mint.flatten_ext", "mint.jit_forbidden_register"),
        *("mint.jit_view_unsupported", "mint.softmax_ext", "mint.squeeze_impl", "mint.special.round_op"),
        *("mint.nn.functional." + name for name in ("adaptive_avg_pool3d_ext", "broadcast_to", "clamp", "elu_ext")),
        *("mint.nn.functional." + name for name in ("hardtanh_op", "inplace_elu", "inplace_silu", "norm_ext")),
        *("mint.nn.functional." + name for name in ("silu_func", "threshold_op")),
        "mint.item",
    }
)


def keywords(pair: Pair, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """torch's keyword arguments as mint's; None where one of them can't be said to mint."""
    renamed = RENAMED.get(pair.name, {})
    found: dict[str, Any] = {}
    for name, value in given.items():
        name = renamed.get(name, name)
        if pair.parameters is None or name in pair.parameters:
            found[name] = value
        elif not any(value is nothing for nothing in _NOTHING):
            return None
    return found


def positions(pair: Pair, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """torch's positional arguments as mint's positional ones and keywords."""
    if pair.name == "mint.einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)):
        return (args[0], *args[1]), {}
    order = POSITIONS.get(pair.name)
    if order is None:
        return args, {}
    return args[:1], dict(zip(order[1:], args[1:], strict=False))
