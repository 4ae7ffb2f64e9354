"""Whether compiled code runs while a block lasts: a dispatch mode sees nothing inside of a compiled kernel.

Since torch 2.10 or so a compiled function runs eagerly while a dispatch mode is active, so that its operators are seen
and its kernels aren't; a backward pass that was compiled before still runs compiled. Both are noticed at the doors of
torch's compiler, if it is loaded at all; it is not loaded for this.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["CompiledCalls"]

# Module → function of it, or class and method, that every call of compiled code passes.
_ASKED = ("torch._dynamo.eval_frame", "", "_callback_from_stance")
_RUN = ("torch._inductor.output_code", "CompiledFxGraph", "__call__")


class CompiledCalls:
    """Counts while it is entered.

    Attributes:
        asked: calls of functions that torch.compile wrapped.
        ran: compiled graphs that ran.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.ran = 0
        self._undo: list[Callable[[], None]] = []
        self._absent = False

    def __enter__(self) -> CompiledCalls:
        self._absent = _ASKED[0] not in sys.modules
        self._stand_at(_ASKED, self._count_asked)
        self._stand_at(_RUN, self._count_run)
        return self

    def __exit__(self, *error: object) -> None:
        while self._undo:
            self._undo.pop()()
        if self._absent and "torch._inductor.output_code" in sys.modules:
            self.asked += 1  # loaded within the block, and called there most likely

    def _count_asked(self, *args: Any) -> None:
        self.asked += callable(args[0])  # not the compiler's own "leave this alone"

    def _count_run(self, *args: Any) -> None:
        self.ran += 1

    def _stand_at(self, door: tuple[str, str, str], note: Callable[..., None]) -> None:
        module: Any = sys.modules.get(door[0])
        owner = getattr(module, door[1], None) if door[1] else module
        inner = getattr(owner, door[2], None)
        if owner is None or inner is None:
            return

        @functools.wraps(inner)
        def noting(*args: Any, **kwargs: Any) -> Any:
            note(*args)
            return inner(*args, **kwargs)

        setattr(owner, door[2], noting)
        self._undo.append(lambda: setattr(owner, door[2], inner))
