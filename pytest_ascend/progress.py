"""How far long work is, for people who wait for it: one line on a terminal, with the rate and the time that is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

__all__ = ["Progress", "pace", "watched"]

FIRST_S, NEXT_S = 2.0, 0.5
"""The line appears after so many seconds, and changes after so many more."""


def watched(terminal: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody watches: there is a terminal, and it is not one that a CI system pretends to have."""
    return terminal and environment.get("CI", "").lower() in ("", "0", "false") and environment.get("TERM") != "dumb"


def pace(done: int, whole: int, seconds: float) -> str:
    """``120 of 1000, 24/s, 0:37 left``; without rate and time while nothing is done.

    Args:
        done, whole: how many are done, of how many.
        seconds: what these took. The rest is expected to take as long each.
    """
    counted = f"{done} of {whole}"
    if not 0 < done <= whole or seconds <= 0:
        return counted
    rate = done / seconds
    shown = f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{seconds / done:.1f} s each"
    minutes, rest = divmod(round((whole - done) / rate), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
    return f"{counted}, {shown}, {left} left"


class Progress:
    """A line that is written over itself, and wiped when the work is done.

    Args:
        what: what is counted: ``calls compared``.
        out: where to; nothing is written where nobody watches.
        now: the clock, in seconds.
    """

    def __init__(self, what: str, out: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._out = out if watched(out.isatty()) else None
        self._now = now
        self._began = now()
        self._next = self._began + FIRST_S
        self._width = 0

    def __call__(self, done: int, whole: int) -> None:
        """So many are done, of so many."""
        if self._out is None or (now := self._now()) < self._next:
            return
        self._next = now + NEXT_S
        line = f"{self._what}: {pace(done, whole, now - self._began)}"
        print(f"\r{line:<{self._width}}", end="", file=self._out, flush=True)
        self._width = len(line)

    def done(self) -> None:
        """Wipe the line."""
        if self._out is not None and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=self._out, flush=True)
            self._width = 0
