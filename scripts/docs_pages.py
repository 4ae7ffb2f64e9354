"""A hook of mkdocs: what a page says about the code is made from the code while the page is built.

``{{ options }}`` and its like in a page are replaced by what the functions of that name return.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from pytest_ascend import cli
from pytest_ascend.options import CheckOptions
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.settings import OPTIONS, Option

os.environ.update(COLUMNS="100", NO_COLOR="1")  # of argparse's help
GROUPS = (
    ("What is compared, and where", ("compare", "criterion", "cosine", "max-abs", "checkpoints", "strict")),
    ("Without a test file", ("api", "dtypes", "layouts", "samples", "modes", "live")),
    ("Recorded calls", ("no-fold", "golden", "mapping", "step", "rank")),
    ("Time", ("perf", "baseline", "save", "update", "fail", "ab", "ab-python", "perf-time")),
    ("Overflow", ("overflow",)),
    ("Memory", ("sanitize",)),
    ("Recording", ("record",)),
    ("Processes and machines", ("isolate", "timeout", "resume", "shard")),
    ("Reports", ("json", "html", "github", "reproducers")),
)
"""Titles, and the options below each; one whose name begins with an option of a group and a dash belongs there too."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in a page."""
    return re.sub(r"^\{\{ (\w+) \}\}$", lambda found: _MADE[found[1]](), markdown, flags=re.MULTILINE)


def options() -> str:
    """Every option of pytest, in groups."""
    left = {option.name: option for option in OPTIONS}
    lines: list[str] = []
    for title, names in GROUPS:
        chosen = [
            left.pop(name) for name in list(left) if any(name == one or name.startswith(one + "-") for one in names)
        ]
        if chosen:
            lines += [f"### {title}", "", *_rows(chosen), ""]
    if left:
        lines += ["### Others", "", *_rows(list(left.values())), ""]
    return "\n".join(lines)


def _rows(chosen: list[Option]) -> Iterator[str]:
    yield "| option | ini key | meaning |"
    yield "|---|---|---|"
    for option in chosen:
        value = "" if option.metavar is None else f"[={option.metavar}]" if option.const else f"={option.metavar}"
        yield f"| `{option.flag}{value}` | `{option.ini}` | {_cell(option.help.replace('%%', '%'))} |"


def check_options() -> str:
    """The options of the marker ``ascend`` and of ``CheckOptions``."""
    return _fields(CheckOptions)


def perf_options() -> str:
    """The options of the marker ``ascend_perf``."""
    return _fields(PerfOptions)


def _fields(options_class: type[CheckOptions] | type[PerfOptions]) -> str:
    """A table of a class's fields, their defaults, and what its docstring says of each."""
    text = inspect.cleandoc(options_class.__doc__ or "").partition("Attributes:")[2].partition("\n\n")[0]
    said = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE))
    defaults = options_class()
    lines = ["| option | meaning |", "|---|---|"]
    for name in options_class.names():
        lines.append(f"| `{name}={getattr(defaults, name)!r}` | {_cell(said[name])} |")
    return "\n".join(lines)


def commands() -> str:
    """What ``pytest-ascend`` prints for ``--help``, of each of its commands."""
    return "\n\n".join(_helps([]))


def _helps(words: list[str]) -> Iterator[str]:
    """The help of a command, or of those below it."""
    text = _help(words)
    below = re.findall(r"^    ([a-z][a-z-]*)(?= |$)", text, re.MULTILINE)
    if not below:
        yield f"### pytest-ascend {' '.join(words)}\n\n```text\n{text.rstrip()}\n```"
    for word in below:
        yield from _helps([*words, word])


def _help(words: list[str]) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    return shown.getvalue()


def _cell(text: str) -> str:
    """Text of the code as a cell of a table: one line, with code as Markdown's, and nothing that Markdown reads."""
    text = re.sub(r":(?:data|class|func|mod):`~?([^`]*)`", r"`\1`", " ".join(text.split())).replace("``", "`")
    parts = text.split("`")
    parts[::2] = [re.sub(r"([|<*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


_MADE: dict[str, Callable[[], str]] = {made.__name__: made for made in (options, check_options, perf_options, commands)}
