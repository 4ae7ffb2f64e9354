"""Files written by a thread of their own, so that what is recorded waits for the disk only when memory runs out."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ascend.dumps.figures import figures, named
from pytest_ascend.dumps.tensor_files import parts

if TYPE_CHECKING:
    import torch

__all__ = ["MEMORY", "NOT_SAVED", "Job", "Saver"]

MEMORY = 256 << 20
"""Bytes of tensors that may wait to be written, unless told otherwise."""
NOT_SAVED = "not_saved"
"""Key of a tensor in ``dump.json`` whose values are in no file, though others' are: why."""
_FIGURES = ("Max", "Min", "Mean", "Norm")
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
        same: the file with the same values, written before.
    """

    name: str
    described: dict[str, Any]
    tensor: torch.Tensor | None
    nbytes: int
    measure: bool = True
    same: Job | None = None
    remember: Callable[[Job], None] | None = None
    """Called when the job is handed over, so that a later one may have the same values."""


class Saver:
    """Writes tensors into a folder, in the order in which they come.

    Args:
        folder: where the files go; it is there.
        form: ``pt`` or ``safetensors``.
        memory: bytes of tensors that may wait; :meth:`submit` waits when there are more.
        say: told how far it is when that takes long; None: nobody is.
    """

    def __init__(
        self, folder: str, form: str = "pt", memory: int = MEMORY, say: Callable[[str], object] | None = None
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
        self._thread: threading.Thread | None = None
        self._said = time.monotonic()

    def submit(self, job: Job) -> None:
        """Hand a file over. Waits while too much is waiting already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pytest-ascend-saver", daemon=True)
            self._thread.start()
        if job.tensor is not None:
            with self._room:
                while self._waiting and self._waiting + job.nbytes > self._memory:
                    self._room.wait(0.5)
                self._waiting += job.nbytes
            self._total += job.nbytes
            self._report()
        self._jobs.put(job)
        if job.remember is not None:
            job.remember(job)

    def close(self) -> None:
        """Wait until all is written, or given up on after an error."""
        if self._thread is None:
            return
        self._jobs.put(None)
        while self._thread.is_alive():
            self._thread.join(0.5)
            self._report()
        self._thread = None

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
        self._say(f"ascend: recording, {done >> 20} of {self._total >> 20} MB of tensors written so far")

    def _run(self) -> None:
        import torch

        torch.set_grad_enabled(False)
        while (job := self._jobs.get()) is not None:
            held = job.tensor is not None
            try:
                self._save(job)
            except OSError as error:
                self._fail(job, error)
            except Exception as error:  # a tensor that can't be read or has no such format is its own fault alone
                self._give_up(job, f"{type(error).__name__}: {error}")
            job.tensor = None
            if held:
                with self._room:
                    self._waiting -= job.nbytes
                    self._room.notify()

    def _save(self, job: Job) -> None:
        if job.measure and job.tensor is not None:
            job.described.update(named(figures(job.tensor)))
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
            _write(path, parts(job.tensor, self.form))
            self.nbytes += job.nbytes
        self.written.append(job)

    def _fail(self, job: Job, error: OSError) -> None:
        path = os.path.join(self.folder, job.name)
        why = os.strerror(error.errno) if error.errno else str(error)
        self.error = OSError(error.errno or 0, f"a recorded tensor can't be written: {why}", path)
        self._give_up(job, why)

    @staticmethod
    def _give_up(job: Job, why: str) -> None:
        job.described.pop("data_name", None)
        job.described[NOT_SAVED] = why


def _write(path: str, pieces: list[bytes | memoryview]) -> None:
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
