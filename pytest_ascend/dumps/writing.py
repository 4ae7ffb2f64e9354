"""Writing what msprobe would write: ``dump.json``, ``stack.json``, ``construct.json`` and a file for each tensor.

The layout and the names are those of :mod:`pytest_ascend.dumps.msprobe`; what a value looks like is what
:mod:`pytest_ascend.dumps.values` reads back. Tensors' files are written while the recording runs; ``dump.json``, which
names them, is written last and whole, so that a recording that was killed is no dump rather than half of one.

What msprobe hasn't stands under keys of our own, which it passes over: ``not_saved`` (why a tensor has no file),
``sampled`` (the shape that it had, and of how many elements each one that is in the file is the first), and the file
``recording.json``: what was asked for and what came of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import linecache
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_ascend.dumps.figures import SMALL, Figures, Seen, figures, figures_on_device, named
from pytest_ascend.dumps.saving import MEMORY, NOT_SAVED, Job, Rooms, Saver
from pytest_ascend.dumps.tensor_files import SUFFIXES, crc32
from pytest_ascend.dumps.tensors import FOLDER

__all__ = ["FORMATS", "TASKS", "Frame", "Limits", "Taken", "Writer"]

TASKS = ("tensor", "statistics", "md5")
FORMATS = tuple(SUFFIXES)
Frame = tuple[str, int, str]
"""Where a call was made: file, line, function."""
Taken = list[Job]
"""Files that are to be written if the call that they belong to is recorded."""
_PLAIN = (bool, int, float, str)
_DEEPEST = 64  # lists in lists; a structure that holds itself has no end
_WHOLE = 1024  # elements; tensors up to here are never sampled
_PENDING = 512  # tensors whose figures wait on their device for one copy


@dataclasses.dataclass(frozen=True)
class Limits:
    """What of a recording's values goes into files. None: no limit.

    Attributes:
        every: of the elements of a tensor (of more than 1024) each such one is kept, in the order of memory; 1: all.
        largest: bytes of a tensor; of a larger one the figures alone are kept.
        total: bytes of all tensors of a step; after that figures alone are kept.
        memory: bytes of tensors that may wait to be written.
    """

    every: int = 1
    largest: int | None = None
    total: int | None = None
    memory: int = MEMORY


class Writer:
    """One dump in the making. Its methods may be called by several threads.

    Args:
        folder: where it will lie; made here.
        task: ``tensor``: with the values of every tensor; ``statistics``: with their smallest, largest, mean and norm;
            ``md5``: with these and a CRC-32 of the values, which msprobe calls md5.
        level: what ``dump.json`` says was recorded.
        form: what tensors' files are: ``pt`` or ``safetensors``.
        limits: what goes into files.
        say: told how far writing is when that takes long.
        rooms: memory for files that other dumps used before.

    Raises:
        ValueError: no such task or format.
        FileExistsError: the folder exists: nothing recorded is ever overwritten.
        OSError: it can't be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        task: str,
        level: str,
        form: str = "pt",
        limits: Limits | None = None,
        say: Callable[[str], object] | None = None,
        rooms: Rooms | None = None,
    ) -> None:
        if task not in TASKS:
            raise ValueError(f"task={task!r} can't be recorded: give {' or '.join(map(repr, TASKS))}")
        if form not in FORMATS:
            raise ValueError(f"format={form!r} can't be written: give {' or '.join(map(repr, FORMATS))}")
        self.folder = os.fspath(folder)
        self.task = task
        self.level = level
        self.form = form
        self.limits = limits or Limits()
        self.data: dict[str, dict[str, Any]] = {}
        """The calls by name, in the order they ended; may be added to until :meth:`close`."""
        self.construct: dict[str, str | None] = {}
        """The module that each one belongs to, by name."""
        self.closed = False
        self.sampled = self.too_large = self.too_many = 0
        """Tensors that were sampled, and those of which figures alone are kept, by reason."""
        self.types: Counter[str] = Counter()
        """What is in the dump by its type alone, and how often."""
        self._taken = 0
        self._stacks: dict[tuple[Frame, ...], list[str]] = {}
        self._lock = threading.RLock()
        self._seen = Seen()
        self._pending: list[tuple[dict[str, Any], torch.Tensor]] = []
        os.makedirs(os.path.dirname(os.path.abspath(self.folder)), exist_ok=True)
        os.mkdir(self.folder)
        self._saver: Saver | None = None
        if task == "tensor":
            tensors = os.path.join(self.folder, FOLDER)
            os.mkdir(tensors)
            self._saver = Saver(tensors, form, self.limits.memory, say, rooms)

    @property
    def path(self) -> str:
        """Of ``dump.json``, which is there after :meth:`close`."""
        return os.path.join(self.folder, "dump.json")

    @property
    def failed(self) -> bool:
        """Whether a file could not be written: what is recorded from now on has no values."""
        return self._saver is not None and self._saver.error is not None

    # -- values ---------------------------------------------------------------------------------------------------

    def value(self, value: Any, name: str, part: str, taken: Taken, depth: int = 0) -> Any:
        """What a value is now, as ``dump.json`` holds it; nothing that happens to it afterwards changes that.

        Autograd and torch's overrides must be off. Nothing is written yet.

        Args:
            value: a tensor, a plain value, or lists, tuples and dicts of them. Anything else is recorded by its type.
            name: the call's: ``Torch.relu.0.forward``.
            part: the place in the call: ``input.0``; further levels are numbered.
            taken: gets the files that belong to it; :meth:`keep` writes them.
        """
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value, name, part, taken)
        if value is None:
            return None
        if type(value) in _PLAIN:
            return {"type": type(value).__name__, "value": value}
        if isinstance(value, torch.Size):
            return {"type": "torch.Size", "value": list(value)}
        if depth < _DEEPEST:
            if isinstance(value, (list, tuple)):
                return [self.value(one, name, f"{part}.{i}", taken, depth + 1) for i, one in enumerate(value)]
            if dataclasses.is_dataclass(value) and not isinstance(value, (type, Mapping)):
                value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            if isinstance(value, Mapping):
                return {str(k): self.value(one, name, f"{part}.{k}", taken, depth + 1) for k, one in value.items()}
        described = _other(value)
        if "value" not in described and "format" not in described:
            self.types[described["type"]] += 1
        return described

    def keep(self, taken: Taken) -> None:
        """Write files. They are written later, by a thread: an error is raised by :meth:`close`."""
        assert self._saver is not None or not taken
        for job in taken:
            self._saver.submit(job)  # type: ignore[union-attr]

    def add(self, name: str, call: dict[str, Any], frames: Sequence[Frame] = (), parent: str | None = None) -> None:
        """A call, or a backward pass, under its name.

        Args:
            name: in full.
            call: as ``dump.json`` holds it.
            frames: where it was made, the innermost first.
            parent: the module's call that made it.
        """
        with self._lock:
            self.data[name] = call
            if self.level != "L1":
                self.construct.setdefault(name, parent)
            if frames:
                self._stacks.setdefault(tuple(frames), []).append(name)

    def _tensor(self, tensor: torch.Tensor, name: str, part: str, taken: Taken) -> dict[str, Any]:
        if (kind := _not_plain(tensor)) is not None:
            self.types[kind] += 1
            return {"type": kind}
        described: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": _named(tensor.dtype),
            "shape": list(tensor.shape),
            "Max": None,
            "Min": None,
            "Mean": None,
            "Norm": None,
            "requires_grad": tensor.requires_grad,
        }
        if tensor.numel():
            if self.task == "tensor":
                self._values(tensor, described, name, part, taken)
            else:
                self._figures(tensor, described)
        return described

    def _known(self, tensor: torch.Tensor) -> Figures:
        """The figures of a tensor on the CPU; not taken again where it is the same as before."""
        if tensor.numel() <= SMALL:
            return figures(tensor)
        key = tensor.data_ptr(), tensor.numel(), 0 in tensor.stride()
        slot, total, known = self._seen.find(tensor, key)
        if known is None:
            known = figures(tensor, total)
            self._seen.remember(slot, total, known)
        return known  # type: ignore[no-any-return]

    def _checksum(self, tensor: torch.Tensor) -> str:
        """Of a tensor on the CPU, likewise. Permuting changes no figure, but it does change the order of the bytes."""
        key = tensor.data_ptr(), tensor.stride(), tensor.shape
        slot, total, known = self._seen.find(tensor, key)
        if known is None:
            known = crc32(_packed(tensor))
            self._seen.remember(slot, total, known)
        return known  # type: ignore[no-any-return]

    def _figures(self, tensor: torch.Tensor, described: dict[str, Any]) -> None:
        """The figures alone; with a checksum where that is the task."""
        if not tensor.is_cpu:
            waiting = figures_on_device(tensor)
            if waiting is not None and self.task != "md5":
                with self._lock:
                    self._pending.append((described, waiting))
                    if len(self._pending) >= _PENDING:
                        self._fetch()
                return
            tensor = tensor.cpu()
        described["Max"], described["Min"], described["Mean"], described["Norm"] = self._known(tensor)
        if self.task == "md5":
            described["md5"] = self._checksum(tensor)

    def _values(self, tensor: torch.Tensor, described: dict[str, Any], name: str, part: str, taken: Taken) -> None:
        """The values, in a file; the figures are taken by the thread that writes it."""
        limits, nbytes = self.limits, tensor.numel() * tensor.element_size()
        slot, total, known = None, None, None
        key = (tensor.data_ptr(), tensor.stride(), tensor.shape) if tensor.is_cpu else ()
        if tensor.is_cpu:
            slot, total, known = self._seen.find(tensor, key)
        file = re.sub(r"[^\w.\-]", "_", f"{name}.{part}{SUFFIXES[self.form]}")
        if known is not None:
            described["data_name"] = file
            if "sampled" in known.described:
                self.sampled += 1
                described["shape"], described["sampled"] = known.described["shape"], known.described["sampled"]
            taken.append(Job(file, described, None, nbytes, same=known))
            return
        sampled = limits.every > 1 and tensor.numel() > _WHOLE
        size = nbytes // limits.every if sampled else nbytes
        if limits.largest is not None and size > limits.largest:
            self.too_large += 1
            self._figures_alone(tensor, described, f"larger than {limits.largest} bytes")
            return
        if limits.total is not None and self._taken + size > limits.total:
            self.too_many += 1
            self._figures_alone(tensor, described, f"beyond the {limits.total} bytes of a step")
            return
        self._taken += size
        assert self._saver is not None
        room = None
        if sampled:
            self.sampled += 1
            self._figures(tensor, described)
            described["sampled"] = {"shape": described["shape"], "every": limits.every}
            held = tensor.detach().reshape(-1)[:: limits.every].to("cpu", copy=True)
            described["shape"] = list(held.shape)
        elif (room := self._saver.room(tensor, nbytes)) is not None:
            held = room.tensor(tensor.dtype, tensor.shape)
            held.copy_(tensor)
        else:
            held = _packed(tensor, copy=True)
        described["data_name"] = file
        job = Job(file, described, held, held.nbytes, measure=not sampled, total=total, room=room)
        if slot is not None:
            job.remember = functools.partial(self._seen.remember, slot, total)
        taken.append(job)

    def _figures_alone(self, tensor: torch.Tensor, described: dict[str, Any], why: str) -> None:
        self._figures(tensor, described)
        described[NOT_SAVED] = why

    def _fetch(self) -> None:
        """Copy the figures that wait on devices, all at once where they lie together."""
        import torch

        pending, self._pending = self._pending, []
        groups: dict[Any, list[tuple[dict[str, Any], torch.Tensor]]] = {}
        for described, waiting in pending:
            groups.setdefault((waiting.device, waiting.dtype), []).append((described, waiting))
        for group in groups.values():
            for (described, _), row in zip(group, torch.stack([one for _, one in group]).tolist(), strict=True):
                described.update(named(tuple(row)))

    # -- the end --------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget it, in a process that was forked from the one that records."""
        self.closed = True
        self._saver = None

    def close(self, about: Mapping[str, Any] | None = None) -> None:
        """Write ``stack.json``, ``construct.json``, ``recording.json`` and, last, ``dump.json``.

        Args:
            about: what ``recording.json`` shall say beside what was left out.

        Raises:
            OSError: a file could not be written; ``dump.json`` is there nevertheless, and what it names, wherever there
                was room for it.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        if self._pending:
            self._fetch()
        if self._saver is not None:
            self._saver.close()
        self._seen.clear()
        try:
            self._write_all(about or {})
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._write_what_fits(about or {})
            if self._saver is None or self._saver.error is None:
                raise OSError(error.errno, f"the dump isn't whole: {os.strerror(error.errno)}", self.path) from None
        if self._saver is not None and self._saver.error is not None:
            raise self._saver.error

    def left_out(self) -> dict[str, Any]:
        """What is in the dump by less than its values, for ``recording.json`` and for people."""
        found: dict[str, Any] = {}
        for name in ("sampled", "too_large", "too_many"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        if self.types:
            found["by_type_alone"] = dict(self.types)
        if self._saver is not None and self._saver.error is not None:
            found["error"] = str(self._saver.error)
        return found

    def _write_all(self, about: Mapping[str, Any]) -> None:
        stacks = (f'"{i}": [{json.dumps(names)}, {_lines(at)}]' for i, (at, names) in enumerate(self._stacks.items()))
        _write(os.path.join(self.folder, "stack.json"), "{" + ",\n".join(stacks) + "}")
        _write(os.path.join(self.folder, "construct.json"), json.dumps(self.construct))
        self._write_dump(len(self.data), about)

    def _write_dump(self, entries: int, about: Mapping[str, Any]) -> None:
        folder = os.path.abspath(os.path.join(self.folder, FOLDER)) if self.task == "tensor" else None
        task = "statistics" if self.task == "md5" else self.task  # as msprobe has it
        head = {"task": task, "level": self.level, "framework": "pytorch", "dump_data_dir": folder}
        whole = {**about, "entries": entries, **self.left_out()}
        if entries < len(self.data):
            whole["cut_off"] = f"the disk was full: {len(self.data) - entries} of {len(self.data)} entries are lost"
        _write(os.path.join(self.folder, "recording.json"), json.dumps(whole, indent=1, default=str))
        data = self.data if entries == len(self.data) else dict(list(self.data.items())[:entries])
        _write(self.path, f'{json.dumps(head)[:-1]}, "data": {json.dumps(data)}}}\n')

    def _write_what_fits(self, about: Mapping[str, Any]) -> None:
        """On a full disk: make room among the newest tensors, or write the first entries alone."""
        text = sum(len(json.dumps(entry)) for entry in self.data.values())
        if self._saver is not None and self._saver.make_room(4 * text + (1 << 20)):
            try:
                self._write_all(about)
                return
            except OSError:
                pass
        for entries in _fewer(len(self.data)):
            try:
                self._write_dump(entries, about)
                return
            except OSError as error:
                if entries == 0 or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    why = f"the dump can't be written: {error.strerror or error}"
                    raise OSError(error.errno or 0, why, self.path) from None


def _write(path: str, text: str) -> None:
    """A whole file or none. It isn't forced onto the disk, nor are the tensors: that takes longer than a step."""
    half = f"{path}.half"
    try:
        with open(half, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(half, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(half)
        raise


def _fewer(count: int) -> Iterator[int]:
    while count:
        count = count * 2 // 3
        yield count


def _packed(tensor: torch.Tensor, copy: bool = False) -> torch.Tensor:
    """The values as they are packed in a file, on the CPU: a conjugate as the numbers that it stands for."""
    held = tensor.detach().resolve_conj().resolve_neg()
    return held.to("cpu", copy=copy, memory_format=torch.contiguous_format).contiguous()


def _other(value: Any) -> dict[str, Any]:
    """A value of a type that only torch or Python has; of any other the type alone."""
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
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "functorch.wrapped tensor"
    if tensor.layout is not torch.strided:
        return f"{tensor.layout} tensor"
    if tensor.is_nested or tensor.is_quantized:
        return "torch.nested tensor" if tensor.is_nested else f"{tensor.dtype} tensor"
    if tensor.is_meta:
        return "torch.meta tensor"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"{type(tensor).__module__}.{type(tensor).__qualname__} (a subclass)"
    return None


_named = functools.lru_cache(maxsize=64)(str)  # of dtypes, as torch calls them


@functools.lru_cache(maxsize=4096)
def _lines(frames: tuple[Frame, ...]) -> str:
    """A stack as JSON; each step has the same ones."""
    return json.dumps([_line(frame) for frame in frames])


def _line(frame: Frame) -> str:
    file, number, function = frame
    return f"File {file}, line {number}, in {function}, \n {linecache.getline(file, number).strip()}"
