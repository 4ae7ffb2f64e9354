"""One thing that was looked at, and what to do where it isn't well."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Finding", "Level"]

Level = Literal["ok", "absent", "note", "wrong"]
"""``absent``: not here and not needed, or missing because of something else that is wrong. ``wrong``: comparisons
fail, or mean something else, until somebody does something about it."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        name: what was looked at.
        found: what was found, in a few words.
        level: whether that is well.
        todo: one sentence, for what isn't: what it means, and what to do.
    """

    name: str
    found: str
    level: Level = "ok"
    todo: str = ""
