"""``pytest_ascend.record``: write what a model does into a dump, in msprobe's layout."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from pytest_ascend.dumps.writing import TASKS, Writer
from pytest_ascend.observe.apis import ApiRecorder

__all__ = ["LEVELS", "Recording", "record"]

LEVELS = ("L1",)


def record(
    model: torch.nn.Module | None,
    directory: str | os.PathLike[str],
    level: str = "L1",
    task: str = "tensor",
    *,
    apis: Sequence[str] = ("*",),
) -> Recording:
    """Record every call of torch's API in a block, forward and backward, in msprobe's layout::

        with pa.record(model, "dumps"):
            model(batch).loss.backward()

    ``pytest dumps --ascend-compare`` then runs each of these calls on the device and on the CPU.

    Everything that the block calls is recorded, in the model and around it (the loss too). Values are copied at the
    moment they exist, so that what changes them in place later doesn't change the dump. Nothing is put into autograd's
    graph: gradients are the same, to the bit, as without recording. A call that torch makes inside another one is part
    of that. What gives no tensor (``x.size()``), reads an attribute (``x.T``) or only moves a tensor to another device
    (``x.npu()``) is no call. A backward pass that runs a second time is recorded once.

    Args:
        model: the model; levels that record layers look into it. None where there is none.
        directory: where the dump goes: ``directory/step{N}/rank{R}/``. R is the process's rank in
            ``torch.distributed``, else the environment's ``RANK``, else 0. N is the first step that isn't there yet, so
            that a second recording never overwrites the first.
        level: ``L1``: API calls.
        task: ``tensor``: values; ``statistics``: each tensor's largest, smallest, mean and norm, and no files.
        apis: globs of what is recorded, by the name in the dump (``Functional.linear``) or in Python
            (``torch.nn.functional.linear``); everything without it.

    Returns:
        A context manager; :attr:`Recording.path` says where ``dump.json`` lies, :meth:`Recording.step` begins the next
        step.

    Raises:
        ValueError: no such level or task; the text says which there are.
        TypeError: the model is none.
        OSError: the folder can't be made or, while the block runs, written to; what was recorded until then is a dump
            nevertheless.
    """
    return Recording(model, directory, level, task, apis)


class Recording:
    """What :func:`record` returns, with the same arguments."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        directory: str | os.PathLike[str],
        level: str,
        task: str,
        apis: Sequence[str],
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"record() needs a torch.nn.Module, or None, and was given a {type(model).__name__}")
        _one_of("level", level, LEVELS)
        _one_of("task", task, TASKS)
        self.model = model
        self.directory = os.fspath(directory)
        self.level = level
        self.task = task
        self.apis = (apis,) if isinstance(apis, str) else tuple(apis)
        self.paths: list[str] = []
        """The ``dump.json`` of each step so far; the last one is written when the step or the block ends."""
        self._writer: Writer | None = None
        self._apis: ApiRecorder | None = None

    @property
    def path(self) -> str:
        """The ``dump.json`` of the current step, or of the last one. Raises ``RuntimeError`` before the block."""
        if not self.paths:
            raise RuntimeError("nothing is recorded yet: use it as `with pytest_ascend.record(...) as recording:`")
        return self.paths[-1]

    def step(self) -> None:
        """End this step and begin the next: what follows goes into a dump of its own."""
        if self._writer is None or self._apis is None:
            raise RuntimeError("step() belongs inside the block that records")
        self._writer.close()
        self._apis.restart()
        self._begin()

    def __enter__(self) -> Recording:
        if self._writer is not None:
            raise RuntimeError("this recording runs already: call pytest_ascend.record again for another one")
        self._begin()
        self._apis = ApiRecorder(lambda: self._writer, self.apis)
        self._apis.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._apis is not None
        assert self._writer is not None
        self._apis.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        writer, self._writer = self._writer, None
        try:
            writer.close()
        except OSError:
            if error is None:
                raise
        if error is None and not self._apis.calls:
            what = "nothing of torch's API" if self.apis == ("*",) else f"nothing that {', '.join(self.apis)} means"
            warnings.warn(f"pytest_ascend.record: the block called {what}", stacklevel=2)

    def _begin(self) -> None:
        rank = f"rank{_rank()}"
        number = len(self.paths)
        while True:
            folder = os.path.join(self.directory, f"step{number}", rank)
            try:
                self._writer = Writer(folder, task=self.task, level=self.level)
            except FileExistsError:
                number += 1
                continue
            self.paths.append(self._writer.path)
            return


def _rank() -> int:
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() else 0


def _one_of(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{name}={given!r} can't be recorded: give {' or '.join(map(repr, known))}")
