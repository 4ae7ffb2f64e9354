"""What the case list holds: an :class:`Entry` for each API, with its :class:`Sample` s. Torch-free at import."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "Sample", "module_of"]


@dataclass(frozen=True, eq=True)
class Sample:
    """One call.

    Attributes:
        args, kwargs: as :mod:`~pytest_ascend.cases.catalogue.specs` writes arguments.
        group: the dtypes it is for: ``float``, ``int``, ``complex`` or ``bool``.
        family: what it was made for: "" (torch's own), ``size``, ``scalar``, ``empty``, ``special``, ``mean``, ...
        layouts: the layouts, beside its own, in which it runs on the CPU.
        made: for a module, what it is made with: ``{"a": args, "k": kwargs, "t": 1 when in training}``.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    group: str
    family: str = ""
    layouts: tuple[str, ...] = ()
    made: dict[str, Any] | None = None

    def build(
        self, api: str, dtype: torch.dtype, seed: int
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The callable, its arguments and keyword arguments in a dtype, with the values of a seed.

        Raises:
            AttributeError: this torch has no such API.
        """
        import torch

        from pytest_ascend.cases.catalogue.names import resolve
        from pytest_ascend.cases.catalogue.specs import Builder

        builder = Builder(dtype, seed)
        args = tuple(builder.build(spec) for spec in self.args)
        kwargs = {name: builder.build(spec) for name, spec in self.kwargs.items()}
        fn = resolve(api)
        if self.made is not None:
            made = tuple(builder.build(spec) for spec in self.made["a"])
            named = {name: builder.build(spec) for name, spec in self.made["k"].items()}
            training = bool(self.made["t"])
            fn = module_of(
                fn, made, named, dtype, seed, training, lambda: Builder(torch.float32, seed).build(self.args)
            )
        return fn, args, kwargs

    def tensors(self) -> Iterator[dict[str, Any]]:
        """The tensors' specs, in the order of the arguments."""
        yield from _tensors([self.args, self.kwargs])

    @property
    def is_trivial(self) -> bool:
        """Whether it holds tensors, and none of them more than one element."""
        sizes = [_numel(spec["s"]) for spec in self.tensors()]
        return bool(sizes) and max(sizes) <= 1

    @property
    def has_rows(self) -> bool:
        """Whether a tensor has more than one row and more than one column."""
        return any(len(spec["s"]) > 1 and min(spec["s"][-2:]) > 1 for spec in self.tensors())

    @property
    def shape_class(self) -> str:
        """``scalar``: its floating tensors have no dimension; ``empty``: one has no element; else ``plain``."""
        shapes = [spec["s"] for spec in self.tensors()]
        if any(0 in shape for shape in shapes):
            return "empty"
        return "scalar" if shapes and not any(shapes) else "plain"

    def signature(self) -> str:
        """What sort of call it is: ranks, dtypes and the keywords, without sizes."""
        tensors = [(len(spec["s"]), spec["d"], "st" in spec) for spec in self.tensors()]
        return json.dumps([tensors, _skeleton(self.args), _skeleton(self.kwargs), self.made], sort_keys=True)

    def shape_signature(self) -> str:
        """The sort of call with its shapes."""
        return self.signature() + json.dumps([spec["s"] for spec in self.tensors()])

    def without_grad(self, position: int) -> Sample:
        """The same with an argument that requires no grad: it is changed in place."""
        args = json.loads(json.dumps(self.args))
        if isinstance(args[position], dict) and "T" in args[position]:
            args[position]["T"].pop("g", None)
        return replace(self, args=args)

    def to_json(self) -> dict[str, Any]:
        """As the file holds it; what is usual is left out."""
        row: dict[str, Any] = {"a": self.args, "c": self.group}
        row |= {"k": self.kwargs} if self.kwargs else {}
        row |= {"f": self.family} if self.family else {}
        row |= {"l": list(self.layouts)} if self.layouts else {}
        return row | ({"m": self.made} if self.made is not None else {})

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Sample:
        """What :meth:`to_json` wrote."""
        layouts = tuple(row.get("l", ()))
        return cls(row["a"], row.get("k", {}), row["c"], row.get("f", ""), layouts, row.get("m"))


@dataclass(frozen=True)
class Entry:
    """One API, or one variant of it (``torch.div`` with a rounding mode).

    Attributes:
        api: its public name, ``torch.nn.functional.softmax``.
        variant: OpInfo's name of the variant, or "".
        kind: ``unary``, ``binary``, ``reduction``, ``module``, ``inplace``, ``twin`` (another name of an operator that
            has its own entry) or ``other``.
        dtypes: the dtypes it is defined for.
        samples: the calls.
        of: for another name of an operator, the name of its entry.
    """

    api: str
    variant: str
    kind: str
    dtypes: tuple[str, ...]
    samples: list[Sample] = field(default_factory=list)
    of: str = ""

    def seed(self, number: int) -> int:
        """The seed of the values of a sample, the same for every dtype and layout."""
        return zlib.crc32(f"{self.api}:{self.variant}:{number}".encode())

    def to_json(self) -> dict[str, Any]:
        """As the file holds it."""
        row: dict[str, Any] = {"api": self.api, "kind": self.kind, "dtypes": list(self.dtypes)}
        row |= {"variant": self.variant} if self.variant else {}
        row |= {"of": self.of} if self.of else {}
        return row | {"samples": [sample.to_json() for sample in self.samples]}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Entry:
        """What :meth:`to_json` wrote."""
        samples = [Sample.from_json(one) for one in row["samples"]]
        return cls(row["api"], row.get("variant", ""), row["kind"], tuple(row["dtypes"]), samples, row.get("of", ""))


def module_of(
    kind: Callable[..., torch.nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dtype: torch.dtype,
    seed: int,
    training: bool,
    first: Callable[[], Sequence[Any]],
) -> torch.nn.Module:
    """A module with weights of a seed, in a dtype; ``first`` makes what a lazy one is first called with, in float32."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = kind(*args, **kwargs).to(dtype).train(training)
        if any(torch.nn.parameter.is_lazy(one) for one in (*module.parameters(), *module.buffers())):
            with torch.no_grad():
                module.float()(*first())
            module.to(dtype)
    return module


def _tensors(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "T" in tree and len(tree) == 1:
            yield tree["T"]
            return
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _tensors(value)


def _skeleton(tree: Any) -> Any:
    """A tree without its numbers' sizes: what is named, which flags are set, which kinds of values there are."""
    if isinstance(tree, dict):
        if "T" in tree:
            return "T"
        return {key: _skeleton(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_skeleton(value) for value in tree]
    if isinstance(tree, float) or (isinstance(tree, int) and not isinstance(tree, bool)):
        return (tree > 0) - (tree < 0)
    return tree


def _numel(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
