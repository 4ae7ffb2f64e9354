"""Lists of devices in environment variables, such as ``ASCEND_RT_VISIBLE_DEVICES``. Torch-free."""

from __future__ import annotations

import re

__all__ = ["VISIBLE", "emulated_cards", "listed"]

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
"""Which cards a process sees; its ``npu:0`` is the first of them."""
_EMULATED = ("0", "1")  # where nobody says
_MOST_EMULATED = 16  # as many threads of torch's autograd engine wait for them


def listed(given: str) -> tuple[str, ...]:
    """``0,3-5`` → 0, 3, 4, 5. Like the runtimes, what follows a device that can't be is not looked at."""
    found: list[str] = []
    for part in (one.strip() for one in given.split(",")):
        span = re.fullmatch(r"(\d{1,5})-(\d{1,5})", part)
        if span and int(span[1]) <= int(span[2]):
            found += map(str, range(int(span[1]), int(span[2]) + 1))
        elif not part or part.startswith("-"):
            break
        else:
            found.append(part)
    return tuple(dict.fromkeys(found))


def emulated_cards(given: str | None) -> tuple[str, ...]:
    """The cards of the emulated machine that a process sees: those of the list, or two."""
    return (listed(given or "") or _EMULATED)[:_MOST_EMULATED]
