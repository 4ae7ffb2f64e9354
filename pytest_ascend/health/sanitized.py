"""A program under msSanitizer: its command, the environment it needs before it starts, and what came of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENVIRONMENT", "NotThere", "Ran", "environment", "find", "run"]

ENVIRONMENT = {
    "PYTORCH_NO_NPU_MEMORY_CACHING": "1",
    "MS_DEVICE_MEM_SANITIZER": "1",
    "USE_DEVICE_MEM_CHECK": "1",
    "USE_DEVICE_SYNC": "1",
    "ASCEND_LAUNCH_BLOCKING": "1",
}
"""What must be set before the process loads CANN: no pool that hides bounds, checks on, each kernel waited for."""

_LARGEST = 64 << 20  # bytes of a log that are read
_WRAPPER = str(Path(__file__).with_name("exit_recorded.py"))
_PLACES = ("tools/mssanitizer/bin/mssanitizer", "bin/mssanitizer")


class NotThere(Exception):
    """There is no mssanitizer; the message says what to do."""


@dataclass(frozen=True)
class Ran:
    """What came of a run.

    Attributes:
        log: what the tool wrote to its log file; ``""`` where there is none.
        console: what it and the program wrote to their output.
        exit_code: the program's own, negative for a signal; None where it was never seen to end.
        seconds: the limit, where it ran into that.
        cut: whether the log was too long to read whole.
    """

    log: str
    console: str
    exit_code: int | None
    seconds: float | None = None
    cut: bool = False


def find(variables: Mapping[str, str] | None = None) -> str:
    """Where mssanitizer lies: on PATH, or in CANN. Raises :class:`NotThere`."""
    known = os.environ if variables is None else variables
    if (found := shutil.which("mssanitizer", path=known.get("PATH", os.defpath))) is not None:
        return found
    home = known.get("ASCEND_HOME_PATH") or known.get("ASCEND_TOOLKIT_HOME")
    for place in _PLACES if home else ():
        if (path := Path(home or "", place)).is_file() and os.access(path, os.X_OK):
            return str(path)
    raise NotThere("mssanitizer isn't on PATH: source CANN's set_env.sh first (pytest-ascend doctor looks for it)")


def environment(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment for a program under the tool, and remarks on what the caller has set otherwise.

    What the caller has set stays.
    """
    remarks = [
        f"{name}={variables[name]} was set by the caller: the tool wants {value}"
        for name, value in ENVIRONMENT.items()
        if variables.get(name, value) != value
    ]
    return {**ENVIRONMENT, **variables}, remarks


def run(
    tool: str,
    tools: Sequence[str],
    program: Sequence[str],
    *,
    more: Sequence[str] = (),
    variables: Mapping[str, str],
    seconds: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Ran:
    """Run a program under msSanitizer and wait for it.

    Args:
        tool: the path of mssanitizer.
        tools: of it, such as ``memcheck``.
        program: with its arguments.
        more: options of mssanitizer.
        variables: the environment.
        seconds: after which all of its processes are killed.
        cwd: the folder to start in.

    Raises:
        OSError: the tool can't be started.
    """
    with tempfile.TemporaryDirectory(prefix="ascend-sanitizer-") as folder:
        log, status, console = (os.path.join(folder, name) for name in ("sanitizer.log", "status", "console"))
        command = [tool, *(word for one in tools for word in ("-t", one)), f"--log-file={log}", *more, "--"]
        command += [sys.executable, "-I", _WRAPPER, status, *program]
        with open(console, "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            late = None
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                late = seconds
            finally:
                _end(process)
        text, cut = _read(log)
        return Ran(text, _read(console)[0], _status(status), late, cut)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and its children; they are a group of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: str) -> tuple[str, bool]:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError:
        return "", False
    return data[:_LARGEST].decode("utf-8", "replace"), len(data) > _LARGEST


def _status(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text(encoding="ascii"))
    return None
