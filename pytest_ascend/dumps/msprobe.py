"""Read what msprobe wrote: ``dump.json`` and ``debug.json`` with ``construct.json`` and ``stack.json`` beside them.

Layout: ``dump_path/step{N}/{rank{R}|proc{PID}}/{dump.json, construct.json, stack.json, dump_tensor_data/}``. The format
is described in msprobe's own documents; what is read here was seen in dumps of its release 26.2.0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_ascend.dumps.text import Cursor, DumpError, parse, read, short
from pytest_ascend.dumps.values import NotADump, TensorSpec, read_value

if TYPE_CHECKING:
    import torch

__all__ = ["Dump", "Entry", "Name", "place_of"]

TENSORS = "dump_tensor_data"
_API = re.compile(r"(?P<prefix>[A-Za-z_]\w*)\.(?P<api>.+)\.(?P<number>\d{1,9})\.(?P<direction>forward|backward)")
_LAYER = re.compile(r"(?P<prefix>Module|Cell)\.(?P<api>.+)\.(?P<direction>forward|backward)\.(?P<number>\d{1,9})")
_STEP = re.compile(r"step(\d{1,9})")
_RANK = re.compile(r"rank[_-]?(\d{1,9})")
_SECTIONS = {"forward": ("input_args", "input_kwargs", "output"), "backward": ("input", "output")}


@dataclass(frozen=True)
class Name:
    """A recorded call's name, in its parts: ``Functional.softmax.3.forward``.

    Attributes:
        prefix: ``Functional``, ``Tensor``, ``Torch``, ``Mint``, ...; ``Module`` or ``Cell`` for a layer.
        api: what was called, with dots where it has some: ``softmax``, ``encoder.layer.0.Linear``.
        number: how many calls of it came before.
        direction: ``forward`` or ``backward``.
    """

    prefix: str
    api: str
    number: int
    direction: str

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer of a model and not an API."""
        return self.prefix in ("Module", "Cell")

    @property
    def forward(self) -> str:
        """The name of the forward pass that this one belongs to; a layer's number stands last."""
        if self.is_layer:
            return f"{self.prefix}.{self.api}.forward.{self.number}"
        return f"{self.prefix}.{self.api}.{self.number}.forward"

    @property
    def path(self) -> str:
        """A layer's path, without its class."""
        return self.api.rpartition(".")[0]

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The parts, or None for a text that isn't a call's name."""
        match = _LAYER.fullmatch(text) or _API.fullmatch(text)
        return cls(match["prefix"], match["api"], int(match["number"]), match["direction"]) if match else None


@dataclass(frozen=True)
class Entry:
    """One recorded call.

    Attributes:
        name: as it stands in the file.
        call: its parts, or None for a single save of ``debug.json`` and for names of another kind.
        args, kwargs: what the forward pass was called with; a backward pass has none.
        output: what a forward pass returned, or the gradients that a backward pass sent on.
        grads: the gradients that a backward pass began with.
        value: what a single save holds.
    """

    name: str
    call: Name | None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    output: tuple[Any, ...] = ()
    grads: tuple[Any, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class Dump:
    """One ``dump.json`` or ``debug.json``: its head; entries are read as they are asked for.

    Attributes:
        path: the file.
        task: ``tensor``, ``statistics``, ...
        level: ``L0`` (layers), ``L1`` (APIs), ``mix`` (both) or ``debug`` (single saves).
        framework: ``pytorch`` or ``mindspore``.
        step, rank: of the folders it lies in, or None where they don't say.
    """

    path: str
    task: str
    level: str
    framework: str
    step: int | None
    rank: int | None
    _text: str = field(repr=False, default="")
    _data: int = field(repr=False, default=0)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Dump:
        """The dump at a path. Raises ``DumpError`` when it isn't one."""
        path = os.fspath(path)
        cursor = Cursor(path, read(path))
        cursor._skip()
        if cursor.at < len(cursor.text) and not cursor.text.startswith("{", cursor.at):
            raise DumpError(f"{path}: isn't a dump of msprobe: it isn't a JSON object")
        head: dict[str, Any] = {}
        for name in cursor.members("the file"):
            if name == "data" and cursor.text.startswith("{", cursor.at):
                break
            head[name] = cursor.value(short(name))
        else:
            raise DumpError(f"{path}: isn't a dump of msprobe: it has no object called 'data'")
        words = {}
        for name in ("task", "level", "framework"):
            word = head.get(name)
            if word is None and name == "framework":
                word = "pytorch"  # older releases only had one
            if not isinstance(word, str):
                raise DumpError(f"{path}: isn't a dump of msprobe: it has no text called {name!r} before 'data'")
            words[name] = word
        if words["framework"] not in ("pytorch", "mindspore"):
            raise DumpError(f"{path}: framework {short(repr(words['framework']))} is neither pytorch nor mindspore")
        step, rank = place_of(path)
        return cls(path, **words, step=step, rank=rank, _text=cursor.text, _data=cursor.at)

    def entries(self) -> Iterator[Entry]:
        """The recorded calls in the order they were made, one at a time.

        Raises:
            DumpError: the file is cut off, or an entry isn't what msprobe writes; the entries before it were given.
        """
        cursor = Cursor(self.path, self._text, self._data)
        for name in cursor.members("data"):
            value = cursor.value(short(name))
            try:
                yield self._entry(name, value)
            except NotADump as error:
                raise DumpError(f"{self.path}: {error}") from None
        while cursor._takes(","):  # what follows `data`
            name = cursor.value("a key of the file")
            cursor._expect(":", "the file")
            cursor.value(short(str(name)))
        cursor._expect("}", "the file")
        cursor.ends()

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def _entry(self, name: str, value: Any) -> Entry:
        place = short(name)
        call = Name.parse(name)
        if call is None or not isinstance(value, dict) or not set(value) & {"input_args", "input", "output"}:
            if call is not None and not call.is_layer and self.level != "debug":
                raise NotADump(f"{place}: a call has input_args or input, and output, not {short(repr(value))}")
            return Entry(name, call if self.level != "debug" else None, value=read_value(value, place))
        held: dict[str, Any] = {}
        for section in _SECTIONS[call.direction]:
            found = value.get(section)
            if section == "input_kwargs":
                found = {} if found is None else found
                if not isinstance(found, dict):
                    raise NotADump(f"{place}.{section}: {short(repr(found))} isn't an object")
                held[section] = {key: read_value(one, f"{place}.{section}.{short(key)}") for key, one in found.items()}
                continue
            found = [] if found is None else found if isinstance(found, list) else [found]
            held[section] = tuple(read_value(one, f"{place}.{section}[{i}]") for i, one in enumerate(found))
        if call.direction == "backward":
            return Entry(name, call, output=held["output"], grads=held["input"])
        return Entry(name, call, held["input_args"], held["input_kwargs"], held["output"])

    # -- tensors --------------------------------------------------------------------------------------------------

    def tensor(self, spec: TensorSpec, place: str = "") -> torch.Tensor:
        """The recorded values of a tensor, on the CPU, contiguous, without gradient.

        Raises:
            DumpError: no values were recorded, or their file is missing, lies elsewhere, or doesn't hold a tensor of
                the declared dtype and shape.
        """
        from pytest_ascend.dumps.tensors import load

        return load(os.path.dirname(os.path.abspath(self.path)), spec, place or os.path.basename(self.path))

    def relative(self, start: str) -> str:
        """The folder of the dump, relative to another one."""
        return os.path.relpath(os.path.dirname(os.path.abspath(self.path)), start)

    # -- beside it ------------------------------------------------------------------------------------------------

    def stack(self) -> dict[str, list[str]]:
        """Where each call was made: name to frames, the innermost first; ``{}`` without a ``stack.json``."""
        found = self._beside("stack.json")
        frames: dict[str, list[str]] = {}
        for entry in found.values():
            if isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, list) for part in entry):
                for name in entry[0]:
                    if isinstance(name, str):
                        frames[name] = [str(frame) for frame in entry[1]]
        return frames

    def parents(self) -> dict[str, str | None]:
        """The layer that each call was made in: name to name, or None at the top; ``{}`` without one."""
        found = self._beside("construct.json")
        return {name: parent for name, parent in found.items() if parent is None or isinstance(parent, str)}

    def _beside(self, name: str) -> dict[str, Any]:
        path = os.path.join(os.path.dirname(self.path), name)
        if not os.path.lexists(path):
            return {}
        if not os.path.realpath(path).startswith(os.path.join(os.path.realpath(os.path.dirname(self.path) or "."), "")):
            raise DumpError(f"{path}: leads out of the dump's folder")
        found = parse(path)
        if not isinstance(found, dict):
            raise DumpError(f"{path}: isn't a JSON object")
        return found


def place_of(path: str) -> tuple[int | None, int | None]:
    """Step and rank out of the names of the folders a dump lies in; None where they don't say."""
    step = rank = None
    for part in os.path.abspath(path).split(os.sep)[:-1]:
        if match := _STEP.fullmatch(part):
            step = int(match[1])
        elif match := _RANK.fullmatch(part):
            rank = int(match[1])
    return step, rank
