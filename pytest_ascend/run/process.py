"""One supervised process: started afresh and never forked, watched and ended from outside, with all it started.

It is the leader of a session and process group of its own, so that one signal reaches whatever it started. Linux tells
how much memory it holds; elsewhere that isn't watched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_ascend.run import channel

__all__ = ["ASK", "FOLDER", "Supervised", "available_memory", "describe_end", "memory_of"]

FOLDER = "PYTEST_ASCEND_WORKER"
"""The environment variable in which a process finds the folder of its files."""
ASK = signal.SIGUSR1
"""What a process is asked with to write down where it is."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TO_WRITE = 1.0  # seconds for the stack to be written

# The plugin that makes it a worker is loaded by pytest, which rewrites the assertions of what it loads itself.
_PROGRAM = (
    "import json, sys\n"
    "with open(sys.argv[1]) as file: hello = json.load(file)\n"
    "sys.path[:] = hello['path']\n"
    "import pytest\n"
    "sys.exit(pytest.main(hello['args']))\n"
)


class Supervised:
    """A process and the socket to it.

    Args:
        hello: what it is told at first: pytest's ``args``, and what :mod:`pytest_ascend.run.worker` wants to know.
        environment: what its environment has.
        folder: where its files go: ``output`` (what it writes past pytest), ``stack`` and ``trail``.
        program: what it runs, given the path of what it is told; by default pytest.

    Raises:
        OSError: it can't be started.
    """

    def __init__(
        self, hello: Mapping[str, Any], environment: Mapping[str, str], folder: Path, program: str = _PROGRAM
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.inbox = channel.Inbox()
        ours, theirs = socket.socketpair()
        with theirs, open(folder / "output", "wb") as output:
            said = {**hello, "socket": theirs.fileno(), "parent": os.getpid(), "path": _path()}
            (folder / "hello.json").write_text(json.dumps(said), encoding="utf-8")
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program, os.fspath(folder / "hello.json")],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**environment, FOLDER: os.fspath(folder)},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self.socket = ours
        self.pid = self._process.pid
        self.started = time.monotonic()
        ours.setblocking(False)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; to a process that is gone nothing happens, for its end is noticed anyway."""
        with contextlib.suppress(OSError):
            self.socket.setblocking(True)
            channel.send(self.socket, message)
        with contextlib.suppress(OSError):
            self.socket.setblocking(False)

    def received(self) -> tuple[list[dict[str, Any]], bool]:
        """Messages that came, and whether the process is gone or sends what is none."""
        gone = False
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                gone = True
                break
            self.inbox.feed(data)
        found: list[dict[str, Any]] = []
        try:
            found.extend(self.inbox.messages())
        except channel.Broken:
            gone = True
        return found, gone

    def wait(self, seconds: float) -> int | None:
        """Its exit status as :mod:`subprocess` gives it; None while it runs on."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def ask_where(self) -> None:
        """Let it write down where it is, also when it hangs in native code; a signal's handler does it."""
        before = _size(self.folder / "stack")
        with contextlib.suppress(OSError):
            os.kill(self.pid, ASK)
        deadline = time.monotonic() + _TO_WRITE
        seen = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            size = _size(self.folder / "stack")
            if size > before and size == seen:  # it has stopped growing
                return
            seen = size

    def kill(self) -> int:
        """End it and everything it started; its exit status."""
        family = set(_family(self.pid))
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in family - {self.pid}:  # those that left the group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        status = self._process.wait()
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # those that were started meanwhile
        self.close()
        return status

    def close(self) -> None:
        """Give back the socket."""
        self.socket.close()

    def text(self, name: str, most: int = 20_000) -> str:
        """The end of one of its files."""
        try:
            with open(self.folder / name, "rb") as file:
                file.seek(max(0, _size(self.folder / name) - most))
                return file.read(most).decode(errors="replace")
        except OSError:
            return ""


def _path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def describe_end(status: int | None) -> str:
    """How a process ended, for people: ``SIGSEGV (segmentation fault)``, ``exit status 3``."""
    if status is None:
        return "closed its connection"
    if status >= 0:
        return f"ended its process with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"was killed by signal {-status}"
    what = {
        "SIGSEGV": "segmentation fault",
        "SIGABRT": "abort",
        "SIGBUS": "bus error",
        "SIGFPE": "arithmetic error in native code",
        "SIGILL": "illegal instruction",
        "SIGKILL": "killed from outside, by the system when memory is short",
        "SIGTERM": "told to end from outside",
    }.get(name)
    return f"died of {name} ({what})" if what else f"died of {name}"


def memory_of(pid: int, family: bool = False) -> int:
    """Bytes of host memory that a process holds, or with ``family`` it and all that it started; 0 where unknown."""
    if not family:
        return _resident(pid)
    return _resident(pid) + sum(_resident(one, False) for one in _family(pid) if one != pid)


def _resident(pid: int, with_shared: bool = True) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) if with_shared else max(0, int(resident) - int(shared))) * _PAGE


def _family(pid: int) -> Iterator[int]:
    """A process, those of its session, and all that any of them started."""
    parents: dict[int, list[int]] = {}
    found: list[int] = [pid]
    try:
        entries = os.listdir("/proc")
    except OSError:
        entries = []
    for entry in entries:
        if not entry.isdigit() or int(entry) == pid:
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid:
            found.append(int(entry))
        parents.setdefault(int(fields[1]), []).append(int(entry))
    seen = set(found)
    yield from found
    while found:
        for child in parents.get(found.pop(), ()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                yield child


def available_memory() -> int:
    """Bytes of host memory that may still be taken, by the machine's count and the container's; 0 where unknown."""
    counts = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        counts.append(int(line.split()[1]) << 10)
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            counts.append(max(0, int(Path(most).read_text()) - int(Path(used).read_text())))
    return min(counts, default=0)
