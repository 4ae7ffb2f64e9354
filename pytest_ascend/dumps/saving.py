"""Files written by a thread of their own, so that what is recorded waits for the disk only when memory runs out."""

from __future__ import annotations

import errno
import mmap
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_ascend.dumps.figures import figures, named
from pytest_ascend.dumps.tensor_files import Room, parts
from pytest_ascend.progress import pace

__all__ = ["MEMORY", "NOT_SAVED", "Job", "Rooms", "Saver"]

MEMORY = 256 << 20
"""Bytes of tensors that may wait to be written, unless told otherwise."""
NOT_SAVED = "not_saved"
"""Key of a tensor in ``dump.json`` whose values are in no file, though others' are: why."""
_FIGURES = ("Max", "Min", "Mean", "Norm")
_DIRECT = 1 << 20  # bytes; below that the system's cache is as fast
_THREADS = 2  # one computes what lies in a file while the other waits for the disk
_PATIENCE = 2.0  # seconds before something is said, and between two times


@dataclass
class Job:
    """One file to write.

    Attributes:
        name: of the file, without a folder.
        described: the tensor as ``dump.json`` will hold it. Changed when it is saved: its figures are added, or why it
            has no file.
        tensor: a copy on the CPU, contiguous, that nobody changes; None: the same values as ``same``.
        nbytes: of the tensor.
        measure: whether its figures are to be taken from the copy.
        total: the sum of its elements, where that is known.
        room: the memory that the copy lies in, where that is the saver's own.
        same: the file with the same values, written before.
    """

    name: str
    described: dict[str, Any]
    tensor: torch.Tensor | None
    nbytes: int
    measure: bool = True
    total: float | None = None
    room: Room | None = None
    same: Job | None = None
    remember: Callable[[Job], None] | None = None
    """Called when the job is handed over, so that a later one may have the same values."""


class Rooms:
    """Memory for tensors' files that is used again, also by the next step's.

    Args:
        most: bytes that are kept.
    """

    def __init__(self, most: int = MEMORY) -> None:
        self._most = most
        self._free: dict[int, list[Room]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Room:
        """Memory for a tensor of a size."""
        with self._lock:
            if kept := self._free.get(nbytes):
                self._kept -= nbytes
                return kept.pop()
        return Room(nbytes)

    def give(self, room: Room) -> None:
        """Give it back: nobody reads it any more."""
        with self._lock:
            if self._kept + room.nbytes <= self._most:
                self._kept += room.nbytes
                self._free.setdefault(room.nbytes, []).append(room)


class Saver:
    """Writes tensors into a folder, in the order in which they come.

    Args:
        folder: where the files go; it is there.
        form: ``pt`` or ``safetensors``.
        memory: bytes of tensors that may wait; :meth:`submit` waits when there are more.
        say: told how far it is when that takes long; None: nobody is.
        rooms: memory that other savers used before.
    """

    def __init__(
        self,
        folder: str,
        form: str = "pt",
        memory: int = MEMORY,
        say: Callable[[str], object] | None = None,
        rooms: Rooms | None = None,
    ) -> None:
        self.folder = folder
        self.form = form
        self.error: OSError | None = None
        """What went wrong; nothing is written after it."""
        self.written: list[Job] = []
        """What is in files, in order."""
        self.nbytes = 0
        """Bytes of the tensors that are, each written once."""
        self._memory = memory
        self._say = say
        self._waiting = 0
        self._total = 0
        self._room = threading.Condition()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._links: list[Job] = []
        self._rooms = Rooms(memory) if rooms is None else rooms
        self._direct = hasattr(os, "O_DIRECT")
        self._began = self._said = time.monotonic()

    def submit(self, job: Job) -> None:
        """Hand a file over. Waits while too much is waiting already."""
        if not self._threads:
            for number in range(_THREADS):
                thread = threading.Thread(target=self._run, name=f"pytest-ascend-saver-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        if job.tensor is None:
            self._links.append(job)  # when all is written, what it is the same as is written too
        else:
            with self._room:
                while self._waiting and self._waiting + job.nbytes > self._memory:
                    self._room.wait(0.5)
                    self._report()
                self._waiting += job.nbytes
                self._total += job.nbytes
            self._report()
            self._jobs.put(job)
        if job.remember is not None:
            job.remember(job)
            job.remember = None

    def room(self, tensor: torch.Tensor, nbytes: int) -> Room | None:
        """Memory for a copy of a tensor, to be given back with its job; None where it doesn't need such."""
        if self.form != "pt" or not Room.suits(tensor, nbytes):
            return None
        return self._rooms.take(nbytes)

    def close(self) -> None:
        """Wait until all is written, or given up on after an error."""
        for _ in self._threads:
            self._jobs.put(None)
        while any(thread.is_alive() for thread in self._threads):
            next(thread for thread in self._threads if thread.is_alive()).join(0.5)
            self._report()
        self._threads.clear()
        for job in self._links:
            self._attempt(job)
        self._links.clear()

    def make_room(self, wanted: int) -> int:
        """Delete the newest files until about so many bytes are free; how many that were. After :meth:`close`."""
        freed = 0
        while self.written and freed < wanted:
            job = self.written.pop()
            _forget(os.path.join(self.folder, job.name))
            self._give_up(job, "the disk was full, and dump.json needed the room")
            freed += job.nbytes if job.tensor is None and job.same is None else 0
        return freed

    def _report(self) -> None:
        now = time.monotonic()
        if self._say is None or now - self._said < _PATIENCE or self._waiting == 0:
            return
        self._said = now
        done = self._total - self._waiting
        how_far = pace(done >> 20, self._total >> 20, now - self._began)
        self._say(f"ascend: recording, MB of tensors written so far: {how_far}")

    def _run(self) -> None:
        import torch

        torch.set_grad_enabled(False)
        while (job := self._jobs.get()) is not None:
            self._attempt(job)
            job.tensor = None
            with self._room:
                self._waiting -= job.nbytes
                self._room.notify()
            if job.room is not None:
                self._rooms.give(job.room)
                job.room = None

    def _attempt(self, job: Job) -> None:
        try:
            self._save(job)
        except OSError as error:
            self._fail(job, error)
        except Exception as error:  # a tensor that can't be read or has no such format is its own fault alone
            self._give_up(job, f"{type(error).__name__}: {error}")

    def _save(self, job: Job) -> None:
        if job.measure and job.tensor is not None:
            job.described.update(named(figures(job.tensor, job.total)))
        elif job.same is not None:
            job.described.update({key: job.same.described.get(key) for key in _FIGURES})
        if self.error is not None:
            self._give_up(job, "an earlier file could not be written")
            return
        path = os.path.join(self.folder, job.name)
        if job.same is not None:
            if NOT_SAVED in job.same.described:
                self._give_up(job, str(job.same.described[NOT_SAVED]))
                return
            _again(os.path.join(self.folder, job.same.name), path)
        elif job.tensor is not None:
            if job.room is not None:
                self._write_room(path, job.room, job.tensor)
            else:
                _write(path, list(parts(job.tensor, self.form)))
            with self._room:
                self.nbytes += job.nbytes
        self.written.append(job)

    def _write_room(self, path: str, room: Room, tensor: torch.Tensor) -> None:
        """A file in one piece, past the system's cache where it is large and the disk can do that."""
        length = room.finished(tensor)
        with memoryview(room.memory) as memory:
            if self._direct and length >= _DIRECT:
                if _write_direct(path, memory, length):
                    return
                self._direct = False
            _write(path, [memory[:length]])

    def _fail(self, job: Job, error: OSError) -> None:
        path = os.path.join(self.folder, job.name)
        why = os.strerror(error.errno) if error.errno else str(error)
        self.error = OSError(error.errno or 0, f"a recorded tensor can't be written: {why}", path)
        self._give_up(job, why)

    @staticmethod
    def _give_up(job: Job, why: str) -> None:
        job.described.pop("data_name", None)
        job.described[NOT_SAVED] = why


def _write_direct(path: str, memory: memoryview, length: int) -> bool:
    """Whether a new file could be written past the cache: whole pages, of which the last is then cut off.

    Raises ``OSError`` for what isn't about that. Where it couldn't be there is no file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT
    pages = memory[: -(-length // mmap.PAGESIZE) * mmap.PAGESIZE]
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _forget(path)  # some systems make it before they refuse it
        return False
    try:
        try:
            written = os.write(handle, pages)
            if written == len(pages):
                os.ftruncate(handle, length)
                return True
        finally:
            os.close(handle)
    except OSError as error:
        _forget(path)
        if error.errno != errno.EINVAL:
            raise
        return False
    _forget(path)
    return False


def _write(path: str, pieces: list[bytes | bytearray | memoryview]) -> None:
    """A new file. Raises ``OSError``, and then there is none; one that was there is left alone."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        try:
            wanted = sum(len(piece) for piece in pieces)
            done = os.writev(handle, pieces) if hasattr(os, "writev") else 0
            if done < wanted:  # a large file, or a disk that is nearly full
                rest = memoryview(b"".join(pieces))[done:]
                while rest:
                    rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)
    except BaseException:
        _forget(path)
        raise


def _again(source: str, path: str) -> None:
    """The same values under another name: a link where the disk has links, else a copy."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:
        try:
            with open(source, "rb") as old, open(path, "xb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
        except FileExistsError:
            raise
        except OSError:
            _forget(path)
            raise


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
