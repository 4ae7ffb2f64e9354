"""Writing what msprobe would write: ``dump.json``, ``stack.json``, ``construct.json`` and a file for each tensor.

The layout and the names are those of :mod:`pytest_ascend.dumps.msprobe`; what a value looks like is what
:mod:`pytest_ascend.dumps.values` reads back. Tensors' files are written while the recording runs; ``dump.json``, which
names them, is written last and whole, so that a recording that was killed is no dump rather than half of one.
"""

from __future__ import annotations

import json
import linecache
import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_ascend.dumps.tensors import FOLDER
from pytest_ascend.files import write_text

if TYPE_CHECKING:
    import torch

__all__ = ["TASKS", "Frame", "Snapshot", "Writer"]

TASKS = ("tensor", "statistics")
Frame = tuple[str, int, str]
"""Where a call was made: file, line, function."""
_PLAIN = (bool, int, float, str)


@dataclass
class Snapshot:
    """A value as it was at one moment, and what of it goes into files.

    Attributes:
        json: as ``dump.json`` holds it.
        tensors: file names, without a folder, and copies on the CPU.
    """

    json: Any
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)


class Writer:
    """One dump in the making. Its methods may be called by several threads.

    Args:
        folder: where it will lie; made here.
        task: ``tensor``: with the values of every tensor; ``statistics``: with their smallest, largest, mean and norm.
        level: what ``dump.json`` says was recorded.

    Raises:
        ValueError: no such task.
        FileExistsError: the folder exists: nothing recorded is ever overwritten.
        OSError: it can't be made.
    """

    def __init__(self, folder: str | os.PathLike[str], *, task: str, level: str) -> None:
        if task not in TASKS:
            raise ValueError(f"task={task!r} can't be recorded: give {' or '.join(map(repr, TASKS))}")
        self.folder = os.fspath(folder)
        self.task = task
        self.level = level
        self.data: dict[str, dict[str, Any]] = {}
        """The calls by name, in the order they began; may be added to until :meth:`close`."""
        self.closed = False
        self._stacks: dict[tuple[Frame, ...], list[str]] = {}
        self._lock = threading.RLock()
        os.makedirs(os.path.dirname(os.path.abspath(self.folder)), exist_ok=True)
        os.mkdir(self.folder)
        if task == "tensor":
            os.mkdir(os.path.join(self.folder, FOLDER))

    @property
    def path(self) -> str:
        """Of ``dump.json``, which is there after :meth:`close`."""
        return os.path.join(self.folder, "dump.json")

    # -- values ---------------------------------------------------------------------------------------------------

    def snapshot(self, value: Any, name: str) -> Snapshot:
        """What a value is now; nothing that happens to it afterwards changes that. Nothing is written yet.

        Args:
            value: a tensor, a plain value, or lists, tuples and dicts of them. Anything else is recorded by its type.
            name: of its place: ``Torch.relu.0.forward.input.0``; further levels are numbered.
        """
        taken = Snapshot(None)
        taken.json = self._json(value, name, taken)
        return taken

    def keep(self, *taken: Snapshot) -> None:
        """Write the tensors of snapshots. Raises ``OSError``, with the path, when the disk doesn't take them."""
        import torch

        for name, tensor in (pair for one in taken for pair in one.tensors):
            path = os.path.join(self.folder, FOLDER, name)
            try:
                with open(path, "xb") as file:
                    torch.save(tensor, file)
            except FileExistsError:
                raise  # that file is another value's
            except Exception as error:  # torch.save turns a full disk into a RuntimeError
                _forget(path)
                cause = error if isinstance(error, OSError) else error.__context__
                code = cause.errno if isinstance(cause, OSError) else None
                why = os.strerror(code) if code is not None else f"{type(error).__name__}: {error}"
                raise OSError(code or 0, f"a recorded tensor can't be written: {why}", path) from error

    def add(self, name: str, call: dict[str, Any], frames: Sequence[Frame] = ()) -> None:
        """A call, or a backward pass, under its name; ``frames``: where it was made, the innermost first."""
        with self._lock:
            self.data[name] = call
            if frames:
                self._stacks.setdefault(tuple(frames), []).append(name)

    def close(self) -> None:
        """Write ``stack.json``, ``construct.json`` and, last, ``dump.json``. Raises ``OSError``."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            stacks = {str(i): [names, list(map(_line, at))] for i, (at, names) in enumerate(self._stacks.items())}
            write_text(os.path.join(self.folder, "stack.json"), json.dumps(stacks, indent=1))
            write_text(os.path.join(self.folder, "construct.json"), "{}")
            folder = os.path.abspath(os.path.join(self.folder, FOLDER)) if self.task == "tensor" else None
            head = {"task": self.task, "level": self.level, "framework": "pytorch", "dump_data_dir": folder}
            write_text(self.path, json.dumps({**head, "data": self.data}, indent=1))

    # -- JSON -----------------------------------------------------------------------------------------------------

    def _json(self, value: Any, name: str, taken: Snapshot) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value, name, taken)
        if value is None:
            return None
        if type(value) in _PLAIN:
            return {"type": type(value).__name__, "value": value}
        if isinstance(value, torch.Size):
            return {"type": "torch.Size", "value": list(value)}
        if isinstance(value, (list, tuple)):
            return [self._json(one, f"{name}.{i}", taken) for i, one in enumerate(value)]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: self._json(one, f"{name}.{key}", taken) for key, one in value.items()}
        return _other(value)

    def _tensor(self, tensor: torch.Tensor, name: str, taken: Snapshot) -> dict[str, Any]:
        import torch

        if (kind := _not_plain(tensor)) is not None:
            return {"type": kind}
        with torch.no_grad():
            held = tensor.detach()
            if self.task == "tensor":
                held = held.to("cpu", copy=True, memory_format=torch.contiguous_format)
            described = {
                "type": "torch.Tensor",
                "dtype": str(tensor.dtype),
                "shape": list(tensor.shape),
                **_statistics(held),
                "requires_grad": tensor.requires_grad,
            }
        if self.task == "tensor" and held.numel():
            file = re.sub(r"[^\w.\-]", "_", f"{name}.pt")
            taken.tensors.append((file, held))
            described["data_name"] = file
        return described


def _other(value: Any) -> dict[str, Any]:
    """A value of a type that only torch or Python has; of any other the type alone."""
    import torch

    if isinstance(value, slice) and all(type(part) in (int, type(None)) for part in _parts(value)):
        return {"type": "slice", "value": _parts(value)}
    if value is ...:
        return {"type": "ellipsis", "value": "..."}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"type": f"torch.{type(value).__name__}", "value": str(value)}
    if isinstance(value, torch.memory_format):
        return {"type": "torch.memory_format", "format": str(value).removeprefix("torch.")}
    kind = next((plain for plain in _PLAIN if isinstance(value, plain)), None)
    if kind is not None:
        return {"type": kind.__name__, "value": kind(value)}  # an enumeration, a subclass
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}


def _parts(value: slice) -> list[Any]:
    return [value.start, value.stop, value.step]


def _not_plain(tensor: torch.Tensor) -> str | None:
    """What a tensor is that has no plain memory to copy, as a type that readers take for unknown; else None."""
    import torch

    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "functorch.wrapped tensor"
    if tensor.layout is not torch.strided:
        return f"{tensor.layout} tensor"
    if tensor.is_nested or tensor.is_quantized:
        return "torch.nested tensor" if tensor.is_nested else f"{tensor.dtype} tensor"
    if tensor.device.type == "meta":
        return "torch.meta tensor"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"{type(tensor).__module__}.{type(tensor).__qualname__} (a subclass)"
    return None


def _statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Largest, smallest, mean and 2-norm, as msprobe has them: of integers and truth values the first two alone."""
    import torch

    names = ("Max", "Min", "Mean", "Norm")
    if not tensor.numel():
        return dict.fromkeys(names)
    if tensor.is_complex():
        tensor = tensor.abs()
    if not tensor.is_floating_point():
        wide = tensor if tensor.dtype in (torch.bool, torch.int64) else tensor.to(torch.int64)
        if tensor.dtype is torch.bool:
            return dict(zip(names, (bool(wide.any()), bool(wide.all()), None, None), strict=True))
        largest, smallest = int(wide.max()), int(wide.min())
        if tensor.dtype is torch.uint64 and smallest < 0:  # beyond what int64 holds
            return dict.fromkeys(names)
        return dict(zip(names, (largest, smallest, None, None), strict=True))
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    found = [float(one) for one in (wide.max(), wide.min(), wide.mean(), wide.norm())]
    if math.isfinite(found[0]) and math.isfinite(found[1]) and not math.isfinite(found[2] + found[3]):
        wide = wide.double()  # the sum or the squares went beyond float32: a mask of its smallest number
        found[2:] = [float(wide.mean()), float(wide.norm())]
    return dict(zip(names, found, strict=True))


def _line(frame: Frame) -> str:
    file, number, function = frame
    return f"File {file}, line {number}, in {function}, \n {linecache.getline(file, number).strip()}"


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
