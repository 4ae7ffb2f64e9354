"""A line of the terminal section."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A line to print, with the colour of pytest's terminal writer (``""``: none)."""

    text: str
    colour: str = ""
