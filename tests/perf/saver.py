"""A process that stores sessions one after the other and says so after each: ``saver.py ROOT NAME COUNT [STEP]``.

With STEP (``fsync`` or ``replace``) it kills itself there in the middle of its last save, ``replaced`` right behind.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pytest_ascend.perf.baseline import Session, Timings
from pytest_ascend.perf.store import Store

ENVIRONMENT = {"device": "cpu", "python": "3"}
TEST = "tests/test_it.py::test_it"


def main(root: str, name: str, count: int, step: str = "") -> None:
    """Store so many sessions."""
    store = Store(root)
    for number in range(count):
        date = f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}+00:00"
        if step and number == count - 1:
            _die_in(step)
        timings = {"wall": Timings((1.0,) * 40, (0.9,) * 40)}
        store.save(ENVIRONMENT, TEST, Session(f"{name}-{number}", date, "", timings), keep=100_000)
        print(f"{name}-{number}", flush=True)


def _die_in(step: str) -> None:
    name, after = ("replace", True) if step == "replaced" else (step, False)
    real = getattr(os, name)

    def deadly(*arguments: Any) -> None:
        if after:
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, deadly)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
