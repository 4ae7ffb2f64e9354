"""Who holds the device's memory: what each test of this process left behind, for when one runs out of it."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ascend.targets.base import Target

__all__ = ["Ledger", "is_out_of_memory"]

_WORTH_NAMING = 1 << 20  # bytes
_MOST = 5  # tests that are named
_LITTLE = 0.05  # of the device's memory


def is_out_of_memory(error: BaseException | str) -> bool:
    """Whether an error, or what is said of it, is about want of device memory."""
    return "out of memory" in str(error).lower() or "OutOfMemory" in type(error).__name__


class Ledger:
    """The books of one process's device.

    Args:
        target: the device; it is asked nothing before a test has started it.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = 0
        self.left: dict[str, int] = {}
        """What tests left behind, in bytes."""

    def begin(self) -> None:
        """A test begins."""
        self._before = self._held()

    def end(self, test: str, ran_out: bool) -> None:
        """A test has ended.

        Args:
            test: its node id.
            ran_out: whether it ran out of memory: what it left is freed, as far as nobody holds it, so that the next
                one doesn't pay.
        """
        if ran_out:
            for name in ("last_exc", "last_value", "last_traceback", "last_type"):  # pytest keeps them for debuggers
                vars(sys).pop(name, None)
            gc.collect()
            if self._target.started():
                self._target.release_memory()
        more = self._held() - self._before
        if more >= _WORTH_NAMING:
            self.left[test] = more

    def of_the_test(self) -> bool:
        """Whether the memory was free when the test began: it runs out of it by itself."""
        memory = self._target.memory()
        total = memory.get("total", 0)
        others = total - memory.get("free", 0) - memory.get("reserved", 0)
        return total > 0 and self._before < _LITTLE * total and others < _LITTLE * total

    def explain(self) -> str:
        """One sentence: how much was held when the test began, and by whom."""
        memory = self._target.memory()
        total = memory.get("total", 0)
        text = f"when this test began, {_size(self._before)} of {_size(total)} were held by this process"
        leaks = sorted(self.left.items(), key=lambda one: -one[1])
        if leaks:
            named = ", ".join(f"{test} {_size(size)}" for test, size in leaks[:_MOST])
            more = f" and {len(leaks) - _MOST} tests more" if len(leaks) > _MOST else ""
            text += f", left by {named}{more}"
        others = total - memory.get("free", 0) - memory.get("reserved", 0)
        if others >= _LITTLE * total > 0:
            text += f"; other processes, or a limit for this one, take {_size(others)}"
        return text

    def _held(self) -> int:
        return self._target.allocated() if self._target.started() else 0


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.0f} MiB"
