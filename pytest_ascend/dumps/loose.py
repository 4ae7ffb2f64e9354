"""Tensors that lie in files without a description: ``.npy``, ``.pt``, ``.pth``, ``.safetensors`` and ATB's ``.bin``.

A file is a call with one output, named after its path without the ending; a file of several tensors has an output for
each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_ascend.dumps.common import Broken, Call, Part, Side, Stored, Unit
from pytest_ascend.dumps.text import DumpError, numeric, short
from pytest_ascend.dumps.values import TensorSpec

if TYPE_CHECKING:
    from pytest_ascend.dumps.arrays import Held

__all__ = ["ENDINGS", "FilesUnit", "open_files", "tensors_in", "walked"]

ENDINGS = (".npy", ".pt", ".pth", ".safetensors", ".bin")
_MOST_FILES = 1_000_000


class FilesUnit:
    """The files in a folder and below it, or one file."""

    step: int | None = None
    rank: int | None = None
    framework = "files"
    broken: Sequence[Broken] = ()

    def __init__(self, path: str, files: Sequence[str]) -> None:
        self.path = path
        self._files: dict[str, str] = {}
        for file in files:
            name = os.path.splitext(file)[0] if len(files) > 1 or os.path.isdir(path) else "tensor"
            self._files[file if name in self._files else name] = file

    def names(self) -> list[str]:
        """Of the files, without their endings, numbers in numeric order."""
        return list(self._files)

    def call(self, name: str) -> Call:
        """A file's tensors. Raises ``DumpError``."""
        file = self._files[name]
        path = os.path.join(self.path, file) if os.path.isdir(self.path) else self.path
        return Call(name, None, tuple(Part(label, "output", one) for label, one in tensors_in(path, file).items()))

    def parents(self) -> Mapping[str, str | None]:
        """Nothing is known of it."""
        return {}

    def stack(self) -> Mapping[str, list[str]]:
        """Nothing is known of it."""
        return {}

    def rest(self) -> None:
        """It holds names alone."""


def open_files(path: str) -> Side:
    """The tensors' files at a path. Raises ``DumpError`` when there are none."""
    if not os.path.isdir(path):
        if not path.endswith(ENDINGS):
            raise DumpError(f"{path}: is no dump: give a dump.json, a folder, or a file {', '.join(ENDINGS)}")
        units: list[Unit] = [FilesUnit(path, [os.path.basename(path)])]
        return Side(path, "files", units)
    files = walked(path)
    if not files:
        raise DumpError(f"{path}: holds no dump: no dump.json, no msit_dump_*, no file {', '.join(ENDINGS)}")
    return Side(path, "files", [FilesUnit(path, files)])


def walked(path: str) -> list[str]:
    """Tensors' files below a folder, relative to it, in numeric order. Links to folders aren't followed."""
    found: list[str] = []
    for folder, folders, files in os.walk(path):
        folders.sort(key=numeric)
        inside = os.path.relpath(folder, path)
        at = "" if inside == "." else inside + "/"
        found += [at + name for name in sorted(files, key=numeric) if name.endswith(ENDINGS)]
        if len(found) > _MOST_FILES:
            raise DumpError(f"{path}: more than {_MOST_FILES} files are below it")
    return found


def tensors_in(path: str, where: str) -> dict[str, Stored]:
    """The tensors of a file by label, which is empty for a file of one. Raises ``DumpError``."""
    heads = _read(path, where)
    return {label: Stored(TensorSpec(h.dtype, h.shape), lambda h=h: h) for label, h in heads.items()}  # type: ignore[misc]


@lru_cache(maxsize=1)
def _read(path: str, where: str) -> dict[str, Held]:
    from pytest_ascend.dumps import arrays, atb

    data = arrays.read_file(path, where, most=arrays.LARGEST)
    if path.endswith(".npy"):
        return {"": arrays.npy(data, where)}
    if path.endswith(".bin"):
        return {"": atb.read_bin(data, where)}
    if path.endswith(".safetensors"):
        return arrays.safetensors(data, where)
    held = arrays.pt(data, where)
    return {"": held} if held is not None else _by_torch(path, where)


def _by_torch(path: str, where: str) -> dict[str, Held]:
    """A file of several tensors: a list, or a dictionary such as a model's weights."""
    import torch

    from pytest_ascend.dumps.through_torch import held_of

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever a broken file leads it to
        raise DumpError(f"{where}: can't be loaded: {short(' '.join(str(error).split()), 160)}") from None
    found: dict[str, Held] = {}

    def walk(value: object, label: str, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            found[label] = held_of(value)
        elif isinstance(value, (list, tuple, dict)) and depth < 16:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, one in items:
                walk(one, f"{label}.{key}" if label else str(key), depth + 1)

    walk(loaded, "", 0)
    if not found:
        raise DumpError(f"{where}: holds no tensor")
    return found
