"""``pytest-ascend doctor``: one screen about this machine. 1: something is wrong; 0: nothing is."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TextIO

from pytest_ascend.health.environment import examine
from pytest_ascend.health.machine import Machine

__all__ = ["run"]

_MARKS = {"ok": "ok", "absent": "--", "note": "note", "wrong": "WRONG"}
_COLOURS = {"ok": "32", "absent": "2", "note": "33", "wrong": "31"}


def run(machine: Machine | None = None, out: TextIO | None = None) -> int:
    """Look, print, and answer with the exit status."""
    out = out or sys.stdout
    sections = examine(machine)
    colour = out.isatty() and "NO_COLOR" not in os.environ
    width = max(60, shutil.get_terminal_size().columns) if out.isatty() else 0  # a file's lines stay whole for grep
    names = max(len(finding.name) for _, findings in sections for finding in findings if len(finding.name) < 22)
    wrong: list[str] = []
    notes: list[str] = []
    for title, findings in sections:
        print(title, file=out)
        for finding in findings:
            mark = f"{_MARKS[finding.level]:<5}"
            mark = f"\033[{_COLOURS[finding.level]}m{mark}\033[0m" if colour else mark
            print(f"  {mark}  {_laid(f'{finding.name:<{names}}  {finding.found}', width, names + 11)}", file=out)
            if finding.todo:
                (wrong if finding.level == "wrong" else notes).append(finding.todo)
    for kind, sentences in (("note", notes), ("wrong", wrong)):
        for sentence in sentences:
            print(_laid(f"{kind}: {sentence}", width, 7), file=out)
    if not wrong:
        print("nothing is wrong", file=out)
    return 1 if wrong else 0


def _laid(text: str, width: int, indent: int) -> str:
    """The text on lines of the terminal, the later ones indented."""
    if not width or len(text) + 9 <= width:
        return text
    lines = textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)
