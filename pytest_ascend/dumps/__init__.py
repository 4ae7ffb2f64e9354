"""Recorded dumps: finding and reading them. A dump is untrusted input; nothing in it is believed or executed.

This module imports no torch and no numpy; a tensor's file does when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pytest_ascend.dumps.msprobe import Dump
from pytest_ascend.dumps.text import DumpError

__all__ = ["Dump", "DumpError", "find", "open"]

_NAMES = ("dump.json", "debug.json")


def open(path: str | os.PathLike[str]) -> Dump:
    """The dump at a path: a ``dump.json`` or ``debug.json``, or a folder that holds exactly one.

    Its head is read now; its entries are read one at a time as they are asked for.

    Raises:
        DumpError: it can't be read, is none, or the folder holds none or several. One sentence names file and place.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        return Dump.read(path)
    found = list(find(path))
    if not found:
        raise DumpError(f"{path}: no dump.json or debug.json is in this folder or below it")
    if len(found) > 1:
        some = ", ".join(os.path.relpath(one, path) for one in found[:3])
        raise DumpError(f"{path}: {len(found)} dumps are below this folder ({some}, ...): name one of them")
    return Dump.read(found[0])


def find(path: str | os.PathLike[str]) -> Iterator[str]:
    """Paths of the dumps in a folder and below it, steps and ranks in numeric order; links aren't followed."""
    for folder, folders, files in os.walk(path):
        folders[:] = sorted((f for f in folders if f != "dump_tensor_data"), key=_numeric)
        yield from (os.path.join(folder, name) for name in _NAMES if name in files)


def _numeric(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits else -1
