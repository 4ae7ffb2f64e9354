"""Pieces of Python code, written on one line where they fit and over several where they don't."""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ascend.cases.pending import CaseUnavailable
from pytest_ascend.dumps.text import short

__all__ = ["WIDTH", "CallOf", "Raw", "comment", "on_one_line", "string", "written"]

WIDTH = 110


@dataclass(frozen=True)
class Raw:
    """A piece of code."""

    text: str


@dataclass(frozen=True)
class CallOf:
    """A call in code; ``name`` is what is called, ``after`` follows its closing bracket."""

    name: str
    arguments: Sequence[tuple[str, Any]]  # keyword ("" for a positional one) and value
    after: str = ""


def written(call: CallOf, indent: int) -> Iterator[str]:
    """A call on one line where it fits, else with an argument on each line."""
    yield from _wrapped("", call, indent, "")


def _wrapped(before: str, value: Any, indent: int, after: str) -> Iterator[str]:
    pad = " " * indent
    line = f"{pad}{before}{on_one_line(value)}{after}"
    if len(line) <= WIDTH or not isinstance(value, (CallOf, list)) or value == []:
        yield line
        return
    if isinstance(value, list):
        yield f"{pad}{before}["
        for one in value:
            yield from _wrapped("", one, indent + 4, ",")
        yield f"{pad}]{after}"
        return
    yield f"{pad}{before}{value.name}("
    for name, one in value.arguments:
        yield from _wrapped(f"{name}=" if name else "", one, indent + 4, ",")
    yield f"{pad}){value.after}{after}"


def on_one_line(value: Any) -> str:
    """A value as one line of code."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, CallOf):
        inner = ", ".join((f"{name}=" if name else "") + on_one_line(one) for name, one in value.arguments)
        return f"{value.name}({inner}){value.after}"
    if isinstance(value, str):
        return string(value)
    if value is ...:
        return "..."
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, list):
        return "[" + ", ".join(on_one_line(one) for one in value) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(on_one_line(one) for one in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{string(key)}: {on_one_line(one)}" for key, one in value.items()) + "}"
    if isinstance(value, complex) and not cmath.isfinite(value):
        return f"complex({on_one_line(value.real)}, {on_one_line(value.imag)})"
    if value is None or isinstance(value, (bool, int, float, complex, slice)):
        return repr(value)
    raise CaseUnavailable(f"a {type(value).__name__} can't be written as code")


def string(text: str) -> str:
    """A text as a literal in double quotes where that needs no escapes."""
    return (
        f'"{text}"'
        if re.fullmatch(r"[^\"\\\x00-\x1f\x7f-\uffff]*", text)
        else repr(text).encode("ascii", "backslashreplace").decode()
    )


def comment(text: str) -> str:
    """A text as it may stand behind a ``#``."""
    return re.sub(r"[^\x20-\x7e]", "?", short(text, 160))
