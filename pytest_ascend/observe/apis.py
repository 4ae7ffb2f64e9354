"""Every call of torch's API while a block runs, forward and backward, written down as it happens.

Calls are seen by torch's function overrides (a ``TorchFunctionMode``), which ask before anything runs, whatever name
the caller imported. A function that calls others is one call; what it calls is part of it.

The gradients of a call are seen by hooks on the nodes that it added to autograd's graph: nothing is put into the graph,
so gradients are still added up in the order in which they would have been.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from pytest_ascend.cases.recorded_names import display, name_of
from pytest_ascend.dumps.writing import Frame, Snapshot, Writer

__all__ = ["ApiRecorder"]

#: Methods of Tensor that give no tensor; looking at their arguments would cost more than they do.
_ASKED = {
    *("size", "stride", "dim", "ndimension", "numel", "nelement", "item", "element_size", "storage_offset", "__len__"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_same_size", "get_device", "__contains__"),
    *("__bool__", "__int__", "__float__", "__index__", "__hash__", "__repr__", "__format__", "__dir__"),
    *("type", "is_inference"),
}
_OWN = os.path.abspath(__file__)
_OVERRIDES = os.path.abspath(torch.overrides.__file__)
_LEAF = 2**64 - 1  # sequence number of the nodes that add up the gradients of leaves


class ApiRecorder(TorchFunctionMode):
    """Records calls while it is entered.

    Args:
        writer: asked at each call where it goes; None for a call that isn't recorded.
        apis: globs of what is recorded, by the name in the dump (``Functional.linear``) or in Python
            (``torch.nn.functional.linear``).
    """

    def __init__(self, writer: Callable[[], Writer | None], apis: Sequence[str] = ("*",)) -> None:
        super().__init__()
        self._writer = writer
        self._apis = tuple(apis)
        self._seen: Counter[str] = Counter()
        self._names: dict[Any, tuple[str, str] | None] = {}
        self.calls = 0
        """How many calls were recorded."""

    def restart(self) -> None:
        """Count calls from 0 again: a new step begins."""
        self._seen.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make the call; write it down when it gives a tensor or changes one."""
        kwargs = {} if kwargs is None else dict(kwargs)
        writer, known = self._writer(), self._name(func)
        if writer is None or known is None:
            return func(*args, **kwargs)
        prefix, api = known
        name = f"{prefix}.{api}.{self._seen[f'{prefix}.{api}']}"
        with torch._C.DisableTorchFunction():
            inputs = [writer.snapshot(one, f"{name}.forward.input.{i}") for i, one in enumerate(args)]
            named = {key: writer.snapshot(one, f"{name}.forward.kwargs.{key}") for key, one in kwargs.items()}
            edges, mark = _edges((args, kwargs)), torch._C._autograd._get_sequence_nr()
        output = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            given = args[0] if api == "__setitem__" else output
            results = given if isinstance(given, (tuple, list)) else (given,)
            if not any(True for _ in _tensors(results)):
                return output
            self._seen[f"{prefix}.{api}"] += 1
            self.calls += 1
            outputs = [writer.snapshot(one, f"{name}.forward.output.{i}") for i, one in enumerate(results)]
            writer.keep(*inputs, *named.values(), *outputs)
            call = {
                "input_args": [one.json for one in inputs],
                "input_kwargs": {key: one.json for key, one in named.items()},
                "output": [one.json for one in outputs],
            }
            writer.add(f"{name}.forward", call, _frames())
            _Backward(writer, f"{name}.backward").watch(results, edges, mark)
        return output

    def _name(self, func: Any) -> tuple[str, str] | None:
        if getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):  # a new object at each read
            return None
        try:
            return self._names[func]
        except KeyError:
            found = name_of(func)
        if found is not None and found[0] in ("Tensor", "Torch") and found[1] in _ASKED:
            found = None
        if found is not None and not self._wanted(*found):
            found = None
        self._names[func] = found
        return found

    def _wanted(self, prefix: str, api: str) -> bool:
        names = f"{prefix}.{api}", display(prefix, api)
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._apis)


class _Backward:
    """The backward pass of one call: the gradients that it begins with, and those that it sends on."""

    def __init__(self, writer: Writer, name: str) -> None:
        self.writer = writer
        self.name = name
        self.entry: dict[str, Any] | None = None
        self.begun: dict[int, Snapshot] = {}
        self.sums: dict[int, torch.Tensor] = {}
        self.due: dict[int, int] = {}
        self.places: dict[int, int] = {}

    def watch(self, results: Sequence[Any], edges: Mapping[tuple[Any, int], int], mark: int) -> None:
        """Hook into the nodes that the call added to the graph.

        Args:
            results: what the call returned.
            edges: where the gradients of its arguments go, and each one's number.
            mark: the sequence number that its first node has.
        """
        own = [t for t in _tensors(results) if t.requires_grad and t.grad_fn is not None]
        own = [t for t in own if mark <= t.grad_fn._sequence_nr() < _LEAF]  # type: ignore[union-attr]
        if not own:
            return  # it returned what it was given, or nothing that has a gradient
        for i, tensor in enumerate(own):
            tensor.register_hook(lambda grad, i=i: self.begins(i, grad))  # type: ignore[no-untyped-call]
        for node in _nodes([t.grad_fn for t in own], mark):
            sends = {
                at: edges[edge] for at, edge in enumerate(node.next_functions) if edge[0] is not None and edge in edges
            }
            if not sends:
                continue
            for number in sends.values():
                self.due[number] = self.due.get(number, 0) + 1
            node.register_hook(lambda grads, _, sends=sends: self.sends(sends, grads))
        self.places = {number: place for place, number in enumerate(sorted(self.due))}

    def begins(self, i: int, grad: torch.Tensor) -> None:
        """Autograd comes to the call's result number ``i``."""
        if not self._on() or i in self.begun:
            return
        with torch._C.DisableTorchFunction():
            taken = self.writer.snapshot(grad, f"{self.name}.input.{i}")
            self.writer.keep(taken)
        self.begun[i] = taken
        self._entry()["input"] = [self.begun[number].json for number in sorted(self.begun)]

    def sends(self, sends: Mapping[int, int], grads: Sequence[torch.Tensor | None]) -> None:
        """A node of the call's has made gradients; those at the keys of ``sends`` belong to arguments."""
        if not self._on():
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for at, number in sends.items():
                self.due[number] -= 1
                grad = grads[at]
                if grad is not None:
                    self.sums[number] = self.sums[number] + grad if number in self.sums else grad
                if self.due[number] == 0 and number in self.sums:
                    place = self.places[number]
                    taken = self.writer.snapshot(self.sums.pop(number), f"{self.name}.output.{place}")
                    self.writer.keep(taken)
                    self._entry()["output"][place] = taken.json

    def _entry(self) -> dict[str, Any]:
        if self.entry is None:
            self.entry = {"input": [], "output": [None] * len(self.places)}
            self.writer.add(self.name, self.entry)
        return self.entry

    def _on(self) -> bool:
        if self.writer.closed:
            sentence = "a backward pass ran after its recording had ended, so its gradients aren't in the dump"
            warnings.warn(f"pytest_ascend.record: {sentence}: call backward() inside the block", stacklevel=2)
        return not self.writer.closed


def _edges(arguments: Any) -> dict[tuple[Any, int], int]:
    """Where the gradients of the arguments go: autograd's node and which of its results, and the argument's number."""
    found: dict[tuple[Any, int], int] = {}
    if torch.is_grad_enabled():
        for tensor in _tensors(arguments):
            if tensor.requires_grad:
                edge = get_gradient_edge(tensor)
                found.setdefault((edge.node, edge.output_nr), len(found))
    return found


def _nodes(start: Sequence[Any], mark: int) -> Iterator[Any]:
    """The nodes of autograd's graph from these on that are no older than ``mark``."""
    seen: set[Any] = set()
    ahead = list(start)
    while ahead:
        node = ahead.pop()
        if node is None or node in seen or not mark <= node._sequence_nr() < _LEAF:
            continue
        seen.add(node)
        yield node
        ahead += [edge[0] for edge in node.next_functions]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _frames() -> list[Frame]:
    """Where the call was made, the innermost first, without the ways through here and through torch's overrides."""
    found: list[Frame] = []
    frame = sys._getframe(1)
    at: Any = frame
    while at is not None:
        file = at.f_code.co_filename
        if file not in (_OWN, _OVERRIDES):
            found.append((file, at.f_lineno, at.f_code.co_name))
        at = at.f_back
    return found
