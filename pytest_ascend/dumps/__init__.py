"""Recorded dumps: finding and reading them. A dump is untrusted input; nothing in it is believed or executed.

This module imports no torch and no numpy; a tensor's file does when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ascend.dumps.msprobe import Dump
from pytest_ascend.dumps.text import DumpError, numeric
from pytest_ascend.dumps.values import ITEMSIZES, TensorSpec

if TYPE_CHECKING:
    import torch

    from pytest_ascend.dumps.comparing import DumpComparison as DumpComparison
    from pytest_ascend.dumps.comparing import compare as compare

__all__ = ["Dump", "DumpComparison", "DumpError", "Recorded", "compare", "find", "like", "open"]

_NAMES = ("dump.json", "debug.json")


def __getattr__(name: str) -> Any:
    if name in ("compare", "DumpComparison"):  # needs numpy, which reading a dump's text doesn't
        from pytest_ascend.dumps import comparing

        return getattr(comparing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
        folders[:] = sorted((f for f in folders if f != "dump_tensor_data"), key=numeric)
        yield from (os.path.join(folder, name) for name in _NAMES if name in files)


class Recorded:
    """The tensors of one dump by the names of their files: ``recorded("x.pt", "float32", (4, 16))``.

    Args:
        folder: where the ``dump.json`` lies. It is looked into when a tensor is asked for.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)

    def __call__(self, data_name: str, dtype: str, shape: Sequence[int]) -> torch.Tensor:
        """A recorded tensor, on the CPU. Raises ``DumpError`` when the file doesn't hold what is declared."""
        from pytest_ascend.dumps.tensors import load

        return load(self.folder, _spec(dtype, shape, data_name=data_name), self.folder)


def like(
    dtype: str,
    shape: Sequence[int],
    *,
    min: float | None = None,
    max: float | None = None,
    mean: float | None = None,
    norm: float | None = None,
    name: str = "",
) -> torch.Tensor:
    """A tensor with the given statistics; ``norm`` is the 2-norm of all values.

    Contiguous, on the CPU. The same ``name`` gives the same values. Integers are spread over ``min`` to ``max``.
    Raises ``ValueError`` for a dtype or shape that there isn't.
    """
    from pytest_ascend.dumps.statistics import generate

    return generate(_spec(dtype, shape, max=max, min=min, mean=mean, norm=norm), name)


def _spec(dtype: str, shape: Sequence[int], **known: Any) -> TensorSpec:
    if dtype not in ITEMSIZES:
        raise ValueError(f"no dtype is called {dtype!r}: give one such as 'float32'")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"{shape!r} is no shape: give whole numbers, 0 or more")
    return TensorSpec(dtype, tuple(shape), **known)
