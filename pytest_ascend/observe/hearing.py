"""Whether recordings hear what runs: a check runs a case many times, and only its run on the target is the user's.

This module imports no torch, so that a run without recordings pays nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

__all__ = ["Heard", "Pausable", "unheard"]


class Pausable(Protocol):
    """A recording."""

    def pause(self) -> Callable[[], None]:
        """Record nothing until what this returns is called."""


_PAUSED: list[Callable[[], None]] = []
LIVE: list[Pausable] = []
"""The recordings whose blocks run."""


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Nothing is recorded while the context lasts, except within :class:`Heard`."""
    before = _PAUSED[:]
    _PAUSED[:] = [recording.pause() for recording in LIVE]
    try:
        yield
    finally:
        for resume in _PAUSED:
            resume()
        _PAUSED[:] = before


class Heard:
    """What runs in this context is recorded although it lies in :func:`unheard`. May be entered several times."""

    def __enter__(self) -> None:
        self._resumed, _PAUSED[:] = _PAUSED[:], []
        for resume in self._resumed:
            resume()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._resumed:
            _PAUSED[:] = [recording.pause() for recording in LIVE]
