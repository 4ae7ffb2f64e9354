"""Every call of torch's API while a block runs, forward and backward, written down as it happens.

Calls are seen by torch's function overrides (a ``TorchFunctionMode``), which ask before anything runs, whatever name
the caller imported. A function that calls others is one call; what it calls is part of it.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_ascend.cases.recorded_names import display, name_of
from pytest_ascend.dumps.writing import Frame, Taken, Writer
from pytest_ascend.observe import gradients
from pytest_ascend.observe.gradients import quietly, tensors

__all__ = ["ApiRecorder", "frames", "wanted"]

#: Methods of Tensor that give no tensor; looking at their arguments would cost more than they do.
_ASKED = {
    *("size", "stride", "dim", "ndimension", "numel", "nelement", "item", "element_size", "storage_offset", "__len__"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_same_size", "get_device", "__contains__"),
    *("__bool__", "__int__", "__float__", "__index__", "__hash__", "__repr__", "__format__", "__dir__"),
    *("type", "is_inference"),
}
_OWN = {
    os.path.abspath(__file__),
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "layers_recorded.py"),
    os.path.abspath(torch.overrides.__file__),
    os.path.abspath(torch.nn.modules.module.__file__),
}


class ApiRecorder(TorchFunctionMode):
    """Records calls while it is entered.

    Args:
        writer: asked at each call where it goes; None for a call that isn't recorded.
        apis: globs of what is recorded, by the name in the dump (``Functional.linear``) or in Python
            (``torch.nn.functional.linear``).
        place: the module's call that a call is made in; None outside of all. None: nobody knows of modules.
        inside: record only what a module's call makes.
    """

    def __init__(
        self,
        writer: Callable[[], Writer | None],
        apis: Sequence[str] = ("*",),
        place: Callable[[], str | None] | None = None,
        inside: bool = False,
    ) -> None:
        super().__init__()
        self._writer = writer
        self._apis = tuple(apis)
        self._place = place or (lambda: None)
        self._inside = inside
        self._seen: Counter[tuple[str, str]] = Counter()
        self._names: dict[Any, tuple[str, str] | None] = {}
        self.calls = 0
        """How many calls were recorded."""
        self.backward = 0
        """How many backward passes were."""

    def restart(self) -> None:
        """Count calls from 0 again: a new step begins."""
        self._seen.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make the call; write it down when it gives a tensor or changes one."""
        if torch.compiler.is_compiling():  # what is compiled has no calls; it is told of when the recording ends
            return func(*args, **(kwargs or {}))
        kwargs = {} if kwargs is None else dict(kwargs)
        writer, known = self._writer(), self._name(func)
        if writer is None or known is None or writer.failed:
            return func(*args, **kwargs)
        parent = self._place()
        if parent is None and self._inside:
            return func(*args, **kwargs)
        name = f"{known[0]}.{known[1]}.{self._seen[known]}"
        forward = f"{name}.forward"
        taken: Taken = []
        differentiable = torch.is_grad_enabled()
        with quietly():
            sources = gradients.edges(args, kwargs) if differentiable else {}
            call: dict[str, Any] = {
                "input_args": [writer.value(one, forward, f"input.{i}", taken) for i, one in enumerate(args)],
                "input_kwargs": {
                    key: writer.value(one, forward, f"kwargs.{key}", taken) for key, one in kwargs.items()
                },
            }
        mark = torch._C._autograd._get_sequence_nr()
        output = func(*args, **kwargs)
        given = args[0] if known[1] == "__setitem__" else output
        results = given if isinstance(given, (tuple, list)) else (given,)
        if next(tensors(results), None) is None:
            return output
        with quietly():
            self._seen[known] += 1
            self.calls += 1
            call["output"] = [writer.value(one, forward, f"output.{i}", taken) for i, one in enumerate(results)]
            writer.keep(taken)
            writer.add(forward, call, frames(), parent)
            if differentiable:
                above = None if parent is None else parent.replace(".forward.", ".backward.")
                gradients.watch(writer, f"{name}.backward", above, results, sources, mark, self._went_back)
        return output

    def _went_back(self) -> None:
        self.backward += 1

    def _name(self, func: Any) -> tuple[str, str] | None:
        try:
            return self._names[func]
        except KeyError:
            pass
        if getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):  # a new object at each read
            return None
        found = name_of(func)
        if found is not None and found[0] in ("Tensor", "Torch") and found[1] in _ASKED:
            found = None
        if found is not None and not wanted(self._apis, f"{found[0]}.{found[1]}", display(*found)):
            found = None
        self._names[func] = found
        return found


def wanted(patterns: Sequence[str], *names: str) -> bool:
    """Whether one of the names is among names and globs."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def frames() -> list[Frame]:
    """Where a call was made, the innermost first, without the ways through here and through torch's own."""
    found: list[Frame] = []
    at: Any = sys._getframe(1)
    while at is not None:
        code = at.f_code
        if code.co_filename not in _OWN:
            found.append((code.co_filename, at.f_lineno, code.co_name))
        at = at.f_back
    return found
