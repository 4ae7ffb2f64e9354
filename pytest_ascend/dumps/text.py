"""Read the JSON of a dump, which may be huge, broken or hostile: bounded in size and depth, one entry at a time."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

__all__ = ["DEPTH", "LARGEST", "Cursor", "DumpError", "is_number", "is_plain", "numeric", "parse", "read", "short"]

LARGEST = 1 << 30
"""Bytes of the largest JSON file that is read: 1 GiB, about a million recorded calls."""
DEPTH = 64
"""How deeply values may nest; calls nest their arguments four or five deep."""
_SPACE = re.compile(r"[ \t\n\r]*")


class DumpError(ValueError):
    """A dump can't be read. The message is one sentence that names the file and the place in it."""


def read(path: str, largest: int = LARGEST) -> str:
    """A file's text. Raises ``DumpError`` when it is no regular file, too large, or not UTF-8."""
    try:
        # A pipe would block for ever: it is opened without waiting, and refused.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise DumpError(f"{path}: can't be read: {error.strerror or error}") from None
    except ValueError:
        raise DumpError(f"{path!r}: is no path") from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DumpError(f"{path}: is no regular file")
        if status.st_size > largest:
            raise DumpError(f"{path}: {status.st_size >> 20} MiB is more than the {largest >> 20} MiB that are read")
        data = file.read(largest + 1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DumpError(f"{path}: byte {error.start} is no UTF-8 text") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Twice(twice)
    return found


class _Twice(ValueError):
    """An object has a key twice: which one counts is anybody's guess."""


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates)  # takes NaN, Infinity and -Infinity as they are


class Cursor:
    """A place in a JSON text, moved on value by value; every error names the file and the place.

    Attributes:
        path: the file, for error texts.
        text: its text.
        at: offset of what is read next.
    """

    def __init__(self, path: str, text: str, at: int = 0) -> None:
        self.path = path
        self.text = text
        self.at = at

    def value(self, what: str) -> Any:
        """The value here, in Python's types; ``what`` names it in errors. Raises ``DumpError``."""
        self._skip()
        start = self.at
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            raise self._wrong(what, error.msg, error.pos) from None
        except _Twice as error:
            raise DumpError(f"{self.path}: {what}: the key {short(str(error))!r} occurs twice") from None
        except RecursionError:
            raise DumpError(f"{self.path}: {what}: nested more than {DEPTH} deep") from None
        except ValueError as error:  # a number of thousands of digits
            raise DumpError(f"{self.path}: {what}: {short(str(error))}") from None
        opened = self.text.count("{", start, self.at) + self.text.count("[", start, self.at)
        if opened > DEPTH and _depth(value) > DEPTH:
            raise DumpError(f"{self.path}: {what}: nested more than {DEPTH} deep")
        return value

    def members(self, what: str) -> Iterator[str]:
        """The keys of the object here; the caller reads each value before it asks for the next key."""
        self._expect("{", what)
        seen: set[str] = set()
        while not self._takes("}"):
            if seen:
                self._expect(",", what)
            self._skip()
            if self.text[self.at : self.at + 1] != '"':
                raise self._wrong(what, "Expecting a key in double quotes", self.at)
            name = self.value(f"a key of {what}")
            if name in seen:
                raise DumpError(f"{self.path}: {what}: the key {short(name)!r} occurs twice")
            seen.add(name)
            self._expect(":", what)
            self._skip()
            yield name

    def ends(self) -> None:
        """Raise ``DumpError`` unless the text ends here."""
        self._skip()
        if self.at < len(self.text):
            raise self._wrong("the file", "there is more after its end", self.at)

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _takes(self, character: str) -> bool:
        self._skip()
        found = self.text[self.at : self.at + 1] == character
        self.at += found
        return found

    def _expect(self, character: str, what: str) -> None:
        if not self._takes(character):
            raise self._wrong(what, f"Expecting {character!r}", self.at)

    def _wrong(self, what: str, message: str, at: int) -> DumpError:
        if not self.text.strip():
            return DumpError(f"{self.path}: the file is empty")
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        # An open string or object that runs into the end is what is left of a dump that was killed.
        cut = "Unterminated" in message or at >= len(self.text.rstrip())
        why = "the file ends there, so it was cut off" if cut else f"{message[:1].lower()}{message[1:]}"
        return DumpError(f"{self.path}: line {line}, column {column}: {what}: {why}")


def _depth(value: Any) -> int:
    """How deeply a value nests, found without recursion."""
    deepest, level = 0, [value]
    while level:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list):
                inner.extend(one)
        deepest += 1
        if deepest > DEPTH:
            return deepest
        level = inner
    return deepest


def short(text: str, limit: int = 80) -> str:
    """A text for an error message, shortened; what is printed can't move the terminal's cursor."""
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def numeric(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key that sorts ``10_x`` after ``9_x``."""
    parts: list[tuple[int, int | str]] = []
    digits = ""
    for character in name + "\0":
        if character.isascii() and character.isdigit() and len(digits) < 18:
            digits += character
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, character))
    return tuple(parts)


def is_plain(name: str) -> bool:
    """Whether a name leads nowhere else: no path, no drive, on any system."""
    return bool(name) and name not in (".", "..") and not any(c in name for c in "/\\:\0")


def is_number(value: object) -> bool:
    """Whether a value that was read is a finite number; ``true`` is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def parse(path: str, largest: int = LARGEST) -> Any:
    """A whole file's value, where it needn't be read entry by entry. Raises ``DumpError``."""
    cursor = Cursor(path, read(path, largest))
    value = cursor.value("the file")
    cursor.ends()
    return value
