"""MindSpore as a target: its Ascend device where this machine has one, else its CPU kernels.

MindSpore runs in a process of its own (mindspore_server.py), so that a kernel that ends its process, as some do, costs
one verdict and not the run, and so that it and torch_npu need not share a device. To the pipeline the target looks like
the CPU: arguments and results are torch's tensors on the CPU, and what goes to MindSpore goes through
:meth:`Server.call`. Nothing here starts before the first call.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, ClassVar

from pytest_ascend.targets.base import TargetUnavailable
from pytest_ascend.targets.cpu import HostTarget

__all__ = [
    "MISSING",
    "MindsporeDied",
    "MindsporeError",
    "MindsporeTarget",
    "NoKernel",
    "Server",
    "brief",
    "installed",
    "lacks_kernel",
    "server",
]

MISSING = (
    "MindSpore is not installed: pip install 'pytest-ascend[mindspore]' in an environment of its own "
    "(it needs numpy < 2)"
)
TIMEOUT = 120.0
"""Seconds that one call may take, from sending the request to the answer's last byte, before its process is ended; the
first also waits for MindSpore to load."""
_TO_DIE = 10.0  # seconds for a process to end that was told to
_SERVER = Path(__file__).with_name("mindspore_server.py")

#: how MindSpore says that a device has no kernel for an operator, or none for a dtype
_NO_KERNEL = re.compile(
    r"unregistered|unsupported op \[|not found op|create kernelmod for op|no kernel|not implement|py_method\."
    r"|unsupported data type|the supported data types|select \w+ operator|not support|only supports? |doesn't support"
    r"|must be a type of",
    re.IGNORECASE,
)
_RULE = re.compile(r"^-{10,}\s*$", re.MULTILINE)
_HEADINGS = ("Kernel select failed", "Ascend Error Message", "The Function Call Stack", "The Traceback of")


class MindsporeError(RuntimeError):
    """MindSpore raised. ``kinds``: the names of the error's class and its bases, the nearest first."""

    def __init__(self, text: str, kinds: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.kinds = tuple(kinds)


class NoKernel(MindsporeError, NotImplementedError):
    """MindSpore has no kernel for this function, or none for the dtype, on this device."""


class MindsporeDied(MindsporeError):
    """MindSpore's process ended, or was ended because it didn't answer."""


class Server:
    """The other process, started by the first call and again after it died.

    Args:
        device: ``Ascend``, ``GPU``, ``CPU``, or "" for Ascend where there is one and else the CPU.
        index: which device of that kind.
    """

    def __init__(self, device: str = "", index: int = 0) -> None:
        self.device = device
        self.index = index
        self.calls = 0
        """How many calls MindSpore has answered so far."""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._connection: Connection[Any, Any] | None = None
        self._log: IO[bytes] | None = None
        self._owner = 0
        self._lock = threading.RLock()

    def call(self, **request: Any) -> dict[str, Any]:
        """Call a function there; see mindspore_server.py for what a request holds.

        Raises:
            NoKernel: this device has none for the function or the dtype.
            MindsporeError: it raised something else.
            MindsporeDied: its process ended.
        """
        answer = self.ask({"do": "call", **request})
        self.calls += 1
        return answer

    @functools.cached_property
    def hello(self) -> Mapping[str, Any]:
        """Version and device; starts the process."""
        return self.ask({"do": "hello"})

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the answer, :data:`TIMEOUT` seconds in all; errors as in :meth:`call`.

        Whatever interrupts it ends the process, so that an answer never belongs to an earlier request.
        """
        what = str(request.get("fn", "MindSpore"))
        with self._lock:
            connection = self._running()
            late = threading.Event()
            watch = threading.Timer(TIMEOUT, self._too_late, [late])
            watch.daemon = True
            watch.start()
            try:
                connection.send(request)
                answer: dict[str, Any] = connection.recv()
            except (EOFError, OSError) as error:
                if late.is_set():
                    raise self._late(what) from None
                raise self._died(what) from error
            except BaseException:
                self.stop()
                raise
            finally:
                watch.cancel()
            if late.is_set():  # the answer came as its process was being ended
                raise self._late(what)
        if "raised" in answer:
            raise _error(answer)
        return answer

    def stop(self) -> None:
        """End the process and what it started, if it runs."""
        process, connection, here, log = self._process, self._connection, self._socket, self._log
        self._process = self._connection = self._socket = self._log = None
        if connection is not None:
            connection.close()
        if here is not None:
            here.close()
        if process is not None and self._owner == os.getpid():
            _kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in its driver: it ends when that lets it go
                process.wait(_TO_DIE)
        if log is not None:
            log.close()

    def _running(self) -> Connection[Any, Any]:
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        if not installed():
            raise TargetUnavailable(MISSING)
        here, there = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        environment = {"GLOG_v": "3", **os.environ}
        command = [sys.executable, str(_SERVER), str(there.fileno()), self.device, str(self.index)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[there.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        there.close()
        self._connection, self._socket, self._log = Connection(os.dup(here.fileno())), here, log
        self._owner = os.getpid()
        atexit.register(self.stop)
        return self._connection

    def _too_late(self, late: threading.Event) -> None:
        """Let whoever waits for the answer go on; in a thread of its own.

        The socket is shut down as well: a process that MindSpore started may hold the other end of it, and then a wait
        wouldn't end with MindSpore's.
        """
        late.set()
        process, here = self._process, self._socket
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGUSR1)  # it writes down where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            _kill(process)
        if here is not None:
            with contextlib.suppress(OSError):
                here.shutdown(socket.SHUT_RDWR)

    def _late(self, what: str) -> MindsporeDied:
        """What a process that was ended had been doing: the innermost line of its Python code."""
        lines = [line.strip() for line in self._written().splitlines()]
        start = max((i for i, line in enumerate(lines) if "most recent call first" in line), default=-1)
        frames = [line for line in lines[start + 1 :] if line.startswith("File ")] if start >= 0 else []
        self.stop()
        where = f"; it was in {frames[0]}" if frames else ""
        return MindsporeDied(f"{what} didn't answer within {TIMEOUT:.0f} s, so MindSpore's process was ended{where}")

    def _written(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace").strip()

    def _died(self, what: str) -> MindsporeDied:
        """What the process left behind: its signal and the last line it wrote."""
        how = "ended"
        if self._process is not None:
            try:
                code = self._process.wait(_TO_DIE)
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            except subprocess.TimeoutExpired:
                how = "closed its connection"
        lines = self._written().splitlines()
        last = f": {lines[-1][:200]}" if lines else ""
        self.stop()
        return MindsporeDied(f"MindSpore's process {how} in {what}{last}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    if process.returncode is not None:  # its number may be another's by now
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _error(answer: Mapping[str, Any]) -> MindsporeError:
    """The other side's exception as one of this side's."""
    kinds = answer["raised"]
    text = brief(answer["text"])
    if kinds[0] in ("ModuleNotFoundError", "ImportError"):
        raise TargetUnavailable(f"MindSpore is installed but can't be loaded: {text}")
    if lacks_kernel(text):
        return NoKernel(text, kinds)
    return MindsporeError(f"{kinds[0]}: {text}", kinds)


def brief(text: str) -> str:
    """What an error of MindSpore's says, without the rules, headings and C++ frames around it."""
    said = []
    for part in _RULE.split(text):
        part = part.strip()
        if part.startswith("- C++ Call Stack"):
            break
        if part and not part.removeprefix("- ").startswith(_HEADINGS):
            said.append(part)
    return "\n".join(said) or next((line for line in text.splitlines() if line.strip(" -")), "no message")


def lacks_kernel(text: str) -> bool:
    """Whether an error of MindSpore's says that the device has no kernel for the function or for the dtype."""
    return _NO_KERNEL.search(text) is not None


def installed() -> bool:
    """Whether MindSpore lies on the path; it isn't imported."""
    return importlib.util.find_spec("mindspore") is not None


@functools.lru_cache(maxsize=8)
def server(device: str = "", index: int = 0) -> Server:
    """This process's server for a device; it starts with the first call."""
    return Server(device, index)


class MindsporeTarget(HostTarget):
    """MindSpore on one device; the seed of torch's CPU generator goes with every call.

    Args:
        device: ``Ascend``, ``GPU``, ``CPU``, or "" for Ascend where there is one and else the CPU.
        index: which device of that kind.
    """

    name: ClassVar[str] = "mindspore"

    def __init__(self, device: str = "", index: int = 0) -> None:
        parts = ["mindspore", *([device] if device else []), *([str(index)] if index else [])]
        super().__init__(index, ":".join(parts))
        self.server = server(device, index)

    def kernel_count(self) -> int | None:
        """How many calls MindSpore has answered: a callable that made none was not exercised."""
        return self.server.calls

    def soc(self, initialised: bool = False) -> str | None:
        """The device's kind, once it may be asked for."""
        return str(self.server.hello["device"]) if initialised or self.server.calls else self.server.device or None

    def versions(self) -> dict[str, str]:
        """Versions of torch, which is the reference, and of MindSpore."""
        found = super().versions()
        try:
            found["mindspore"] = metadata.version("mindspore")
        except metadata.PackageNotFoundError:
            return found
        return found

    def title(self, initialised: bool = False) -> str:
        """``mindspore:CPU``, or ``mindspore`` before its device was chosen."""
        kind = self.soc(initialised)
        index = f":{self.index}" if kind not in (None, "CPU") else ""
        return f"mindspore:{kind}{index}" if kind else "mindspore"
