"""The one form that every kind of dump is read as: units (a step of a rank, a round), their calls, their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_ascend.dumps.msprobe import Name
from pytest_ascend.dumps.values import TensorSpec

if TYPE_CHECKING:
    from pytest_ascend.dumps.arrays import Held

__all__ = ["Call", "Part", "Stored", "Unit"]


class Stored(NamedTuple):
    """A tensor of a dump.

    Attributes:
        spec: what is declared of it, or what its file's head says.
        read: its values; None where a dump holds none of them. Raises ``DumpError``.
    """

    spec: TensorSpec
    read: Callable[[], Held] | None = None


class Part(NamedTuple):
    """An argument or a result of a call.

    Attributes:
        label: what it is called within the call: ``input.0``, ``kwargs.other``, ``parameters.weight``, ``output.0``;
            empty where the call is the tensor.
        role: ``input``, ``parameter`` or ``output``.
        value: a :class:`Stored`, or a plain value.
    """

    label: str
    role: str
    value: Any


@dataclass(frozen=True)
class Call:
    """A recorded call: an API's, a layer's, an operation's, or a tensor that was saved alone.

    Attributes:
        name: as the dump has it.
        parsed: the name's parts, or None for one of another kind.
        parts: in the order the dump has them; inputs of a backward pass are the gradients it began with.
    """

    name: str
    parsed: Name | None
    parts: tuple[Part, ...]

    @property
    def backward(self) -> bool:
        """Whether it is a backward pass."""
        return self.parsed is not None and self.parsed.direction == "backward"

    def tensors(self, role: str) -> list[tuple[str, TensorSpec]]:
        """Labels and tensors of one role."""
        return [(p.label, p.value.spec) for p in self.parts if p.role == role and isinstance(p.value, Stored)]


@dataclass(frozen=True)
class Broken:
    """A call that can't be read, and the sentence that says why."""

    name: str
    reason: str


class Unit(Protocol):
    """What was recorded in one step by one rank, or in one round of an inference."""

    @property
    def path(self) -> str:
        """Of its file or folder."""
        ...

    @property
    def step(self) -> int | None:
        """Of the folder it lies in; an inference's round."""
        ...

    @property
    def rank(self) -> int | None:
        """Of the folder it lies in; an inference's device."""
        ...

    @property
    def framework(self) -> str:
        """What recorded it: calls of two are never equal for their names alone."""
        ...

    @property
    def broken(self) -> Sequence[Broken]:
        """What couldn't even be listed."""
        ...

    def names(self) -> Sequence[str]:
        """Of its calls, in the order they were made."""
        ...

    def call(self, name: str) -> Call:
        """One of them. Raises ``DumpError``."""
        ...

    def parents(self) -> Mapping[str, str | None]:
        """The layer that each call was made in, where the dump says it."""
        ...

    def stack(self) -> Mapping[str, list[str]]:
        """Where each call was made, where the dump says it."""
        ...

    def rest(self) -> None:
        """Give back what memory can be had again; whoever asks next waits for it."""
        ...


@dataclass
class Side:
    """A dump: its units in the order of steps and ranks.

    Attributes:
        path: as it was given.
        kind: ``msprobe``, ``msit`` or ``files``.
        units: at least one.
        notes: what a reader should know of how it was read, such as rounds taken for a warm-up.
    """

    path: str
    kind: str
    units: list[Unit]
    notes: list[str] = field(default_factory=list)
