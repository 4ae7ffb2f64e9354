"""Running a profiler as a process of its own: argument list, never a shell; a time limit; its last words kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

#: bytes of output that are kept; the end, where the verdict stands
KEPT = 1 << 20
#: seconds that a process may take to end after it was asked to
GRACE = 5.0


class ProfilerFailed(RuntimeError):
    """A profiler could not measure; the message is one sentence: what, why and what to do."""


class NoProgram(ProfilerFailed):
    """The program isn't there."""


@dataclass(frozen=True)
class Finished:
    """How a process ended: its exit status (negative: the signal) and what it printed, both streams in one."""

    status: int
    output: str

    def last_lines(self, count: int = 3) -> str:
        """The end of the output in one line, for an error message."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return " | ".join(lines[-count:])[-400:] or "it printed nothing"


def run(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None, where: str | None = None
) -> Finished:
    """Run a command and wait for it; on timeout its whole process group ends.

    Args:
        command: program and arguments.
        timeout_s: seconds it may take.
        environment: the whole environment; ``None`` takes this process's own.
        where: the folder to run it in.

    Raises:
        NoProgram: the program isn't there.
        ProfilerFailed: it can't be started, or it took too long.
    """
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=where,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise NoProgram(f"{command[0]} isn't there: install it, or source CANN's set_env.sh") from None
        except OSError as error:
            raise ProfilerFailed(f"{command[0]} can't be started: {error.strerror}") from None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            said = Finished(process.returncode, _tail(output)).last_lines()
            raise ProfilerFailed(
                f"{command[0]} was stopped after {timeout_s:g} s, its last output: {said}; "
                "raise the time limit, or measure less"
            ) from None
        except BaseException:
            _end(process)
            raise
        return Finished(status, _tail(output))


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(size - KEPT, 0))
    return output.read().decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started: asked first, so that a profiler can let go of the device."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    # A child that outlived its parent is in the same group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
