"""msprobe's dumps as units: the names first, each call when it is asked for, so that a dump needn't fit in memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ascend.dumps.common import Broken, Call, Part, Stored
from pytest_ascend.dumps.msprobe import Dump, Name
from pytest_ascend.dumps.tensors import FOLDER, LARGEST
from pytest_ascend.dumps.text import Cursor, DumpError, is_plain, short
from pytest_ascend.dumps.values import NotADump, TensorSpec, read_value

if TYPE_CHECKING:
    from pytest_ascend.dumps.arrays import Held

__all__ = ["MsprobeUnit"]

_OVERHEAD = 1 << 16
_PLAIN = json.JSONDecoder()
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_SECTIONS = {
    "forward": (
        ("input_args", "input"),
        ("input_kwargs", "kwargs"),
        ("parameters", "parameters"),
        ("output", "output"),
    ),
    "backward": (("input", "input"), ("output", "output")),
}
_ROLES = {"input": "input", "kwargs": "input", "parameters": "parameter", "output": "output"}


class MsprobeUnit:
    """One ``dump.json`` or ``debug.json``.

    Entries that are broken are listed in ``broken`` and the others are read: one bad call doesn't cost the rest.

    Raises:
        DumpError: the file isn't msprobe's.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.broken: Sequence[Broken] = []
        self._folder: int | None = None
        self._wake()
        self.framework, self.step, self.rank = self.dump.framework, self.dump.step, self.dump.rank

    def _wake(self) -> None:
        self.dump = Dump.read(self.path)
        self._at = self._listed()
        self._rests = False

    def rest(self) -> None:
        """Forget the text of the file, which is read again when somebody asks for a call; close its folder."""
        self.dump, self._at, self._rests = replace(self.dump, _text=""), {}, True
        self._close()

    def names(self) -> list[str]:
        """Of its calls, in the order they were recorded. Raises ``DumpError`` when the file is gone since."""
        if self._rests:
            self._wake()
        return list(self._at)

    def call(self, name: str) -> Call:
        """One call. Raises ``DumpError`` when its entry isn't what msprobe writes."""
        if self._rests:
            self._wake()
        cursor = Cursor(self.path, self.dump._text, self._at[name])
        value = cursor.value(short(name))
        parsed = Name.parse(name) if self.dump.level != "debug" else None
        try:
            return Call(name, parsed, tuple(self._parts(name, parsed, value)))
        except NotADump as error:
            raise DumpError(f"{self.path}: {error}") from None

    def parents(self) -> Mapping[str, str | None]:
        """The layer that each call was made in; empty where ``construct.json`` is missing or broken."""
        try:
            return self.dump.parents()
        except DumpError:
            return {}

    def stack(self) -> Mapping[str, list[str]]:
        """Where each call was made; empty where ``stack.json`` is missing or broken."""
        try:
            return self.dump.stack()
        except DumpError:
            return {}

    # -- the list -------------------------------------------------------------------------------------------------

    def _listed(self) -> dict[str, int]:
        """Where each entry begins in the text. What is cut off, or there twice, is broken; what is before it isn't."""
        text, path = self.dump._text, self.path
        cursor = Cursor(path, text, self.dump._data)
        broken: list[Broken] = []
        found: dict[str, int] = {}
        twice: set[str] = set()
        try:
            cursor._expect("{", "data")
            first = True
            while not cursor._takes("}"):
                if not first:
                    cursor._expect(",", "data")
                first = False
                cursor._skip()
                if text[cursor.at : cursor.at + 1] != '"':
                    raise cursor._wrong("data", "Expecting a key in double quotes", cursor.at)
                name = cursor.value("a key of data")
                cursor._expect(":", "data")
                cursor._skip()
                if name in found:
                    twice.add(name)
                else:
                    found[name] = cursor.at
                cursor.at = self._after(cursor, name)
        except DumpError as error:
            broken.append(Broken(next(reversed(found), "data"), f"{error}; what stands after it is lost"))
            if found and text[found[last := next(reversed(found))] : cursor.at] == "":
                del found[last]
        for name in twice:
            del found[name]
            broken.append(Broken(name, f"{path}: data: the key {short(name)!r} occurs twice"))
        self.broken = broken
        return found

    @staticmethod
    def _after(cursor: Cursor, name: str) -> int:
        """Where the value that begins here ends, also where it is nested too deeply to be read."""
        try:
            return _PLAIN.raw_decode(cursor.text, cursor.at)[1]
        except (RecursionError, ValueError) as error:
            if isinstance(error, json.JSONDecodeError) and cursor.text[cursor.at : cursor.at + 1] not in ("{", "["):
                raise cursor._wrong(short(name), error.msg, error.pos) from None
        depth = 0
        for token in _TOKEN.finditer(cursor.text, cursor.at):
            if (mark := token[0]) in "[{":
                depth += 1
            elif mark in "]}":
                depth -= 1
                if depth == 0:
                    return token.end()
        raise cursor._wrong(short(name), "it isn't closed", len(cursor.text))

    # -- a call ---------------------------------------------------------------------------------------------------

    def _parts(self, name: str, parsed: Name | None, value: Any) -> Iterator[Part]:
        if parsed is None or not isinstance(value, dict) or not set(value) & {"input_args", "input", "output"}:
            if parsed is not None and not parsed.is_layer:
                raise NotADump(f"{short(name)}: a call has input_args or input, and output, not {short(repr(value))}")
            yield from self._leaves(read_value(value, short(name)), "", "output", name)
            return
        for section, label in _SECTIONS[parsed.direction]:
            held = value.get(section)
            if held is None:
                continue
            if section in ("input_kwargs", "parameters"):
                if not isinstance(held, dict):
                    raise NotADump(f"{short(name)}.{section}: {short(repr(held))} isn't an object")
            elif not isinstance(held, list):
                held = [held]
            yield from self._leaves(read_value(held, f"{short(name)}.{section}"), label, _ROLES[label], name)

    def _leaves(self, value: Any, label: str, role: str, name: str) -> Iterator[Part]:
        if isinstance(value, TensorSpec):
            yield Part(label, role, self._stored(value, f"{name}.{label}" if label else name))
        elif isinstance(value, (list, tuple)):
            for i, one in enumerate(value):
                yield from self._leaves(one, f"{label}.{i}" if label else str(i), role, name)
        elif isinstance(value, dict):
            for key, one in value.items():
                yield from self._leaves(one, f"{label}.{key}" if label else key, role, name)
        else:
            yield Part(label, role, value)

    def _stored(self, spec: TensorSpec, place: str) -> Stored:
        return Stored(spec, partial(self._held, spec, place) if spec.data_name is not None and spec.numel else None)

    # -- values ---------------------------------------------------------------------------------------------------

    def _directory(self) -> int:
        """The folder of the tensors, opened once; it can't be a link that leads elsewhere."""
        if self._folder is not None:
            return self._folder
        path = os.path.join(os.path.dirname(os.path.abspath(self.path)), FOLDER)
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._folder = os.open(path, flags)
        except OSError as error:
            raise DumpError(f"{path}: can't be opened: {error.strerror or error}") from None
        return self._folder

    def _close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(folder)

    def __del__(self) -> None:
        if getattr(self, "_folder", None) is not None:
            self._close()

    def _held(self, spec: TensorSpec, place: str) -> Held:
        from pytest_ascend.dumps import arrays

        name = spec.data_name or ""
        where = short(place) if name.startswith(place) else f"{short(place)}: {short(name)}"
        if not is_plain(name):
            raise DumpError(f"{where} is no file name: a dump's tensors lie in its own folder {FOLDER}")
        if spec.nbytes > LARGEST:
            raise DumpError(f"{where}: {spec.nbytes >> 30} GiB are declared, more than the {LARGEST >> 30} GiB read")
        data = arrays.read_file(name, where, folder=self._directory(), most=2 * spec.nbytes + _OVERHEAD)
        if name.endswith(".npy"):
            held = arrays.npy(data, where)
            if spec.dtype == "bfloat16" and held.dtype == "float32":
                try:
                    held = arrays.bfloat16_of(held)
                except DumpError as error:
                    raise DumpError(f"{where}: {error}") from None
        elif name.endswith(".safetensors"):
            found = arrays.safetensors(data, where)
            if len(found) != 1:
                raise DumpError(f"{where}: holds {len(found)} tensors and not one")
            (held,) = found.values()
        else:
            held = arrays.pt(data, where) or self._by_torch(spec, place)
        if held.shape != spec.shape:
            raise DumpError(f"{where}: holds the shape {held.shape}, and {spec.shape} is declared")
        if held.dtype != spec.dtype:
            raise DumpError(f"{where}: holds {held.dtype}, and {spec.dtype} is declared")
        return held

    def _by_torch(self, spec: TensorSpec, place: str) -> Held:
        """A file of a form that only torch reads: a conjugate view, another byte order, a newer pickle."""
        from pytest_ascend.dumps.through_torch import held_of

        return held_of(self.dump.tensor(spec, place))
