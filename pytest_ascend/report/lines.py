"""Lines of the terminal section, and how they show a duration."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A line to print, with the colour of pytest's terminal writer (``""``: none)."""

    text: str
    colour: str = ""


def duration(seconds: float, digits: int = 4) -> str:
    """Seconds for people, so many digits at most: ``1.234 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.{digits}g} {unit}"
    return f"{seconds / 1e-9:.{digits}g} ns"
