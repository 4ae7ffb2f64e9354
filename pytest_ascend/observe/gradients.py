"""The backward pass of a recorded call, of an API or of a layer: what gradients it begins with and which it sends on.

Gradients are seen by hooks on the nodes that the call added to autograd's graph: nothing is put into the graph, so
gradients are still added up in the order in which they would have been.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_ascend.dumps.writing import Taken, Writer

__all__ = ["Edges", "edges", "quietly", "tensors", "watch"]

LEAF = 2**64 - 1
"""Sequence number of the nodes that add up the gradients of leaves."""
Edges = dict[Any, int]
"""Where the gradients of a call's arguments go, and each one's number: a leaf by its ``id``, any other tensor by
autograd's node and which of the node's results it is."""


class quietly:
    """No gradients and no overrides while the context lasts: for what a recorder computes itself."""

    __slots__ = ("_grad", "_overrides")

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._overrides = torch._C.DisableTorchFunction()
        self._overrides.__enter__()

    def __exit__(self, *error: object) -> None:
        self._overrides.__exit__(None, None, None)
        torch._C._set_grad_enabled(self._grad)


def tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a value, in the order they stand."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        if depth < 64:
            for one in value.values():
                yield from tensors(one, depth + 1)
    elif isinstance(value, (tuple, list)) and depth < 64:
        for one in value:
            yield from tensors(one, depth + 1)


def edges(*arguments: Any) -> Edges:
    """Where the gradients of arguments go. Overrides must be off; asked before the call, which may change that."""
    found: Edges = {}
    for tensor in tensors(arguments):
        if tensor.requires_grad:
            node = tensor.grad_fn
            found.setdefault(id(tensor) if node is None else (node, tensor.output_nr), len(found))
    return found


def watch(
    writer: Writer, name: str, parent: str | None, results: Any, sources: Edges, mark: int, done: Callable[[], object]
) -> None:
    """Record the backward pass of a call when it comes.

    Args:
        writer: where it goes.
        name: of the backward pass.
        parent: the module's backward pass that it belongs to.
        results: what the call returned.
        sources: of its arguments.
        mark: the sequence number that the call's first node has.
        done: called when it has been recorded, at its first gradient.
    """
    own = []
    for tensor in tensors(results):
        if tensor.requires_grad and (node := tensor.grad_fn) is not None and mark <= node._sequence_nr() < LEAF:
            own.append((tensor, node))
    if not own:
        return  # it returned what it was given, or nothing that has a gradient
    backward = _Backward(writer, name, parent, done)
    first = own[0][1]
    if all(node is first for _, node in own) and _is_alone(first, mark):
        backward.watch_node(first, [tensor.output_nr for tensor, _ in own], sources)
    else:
        backward.watch_nodes(own, sources, mark)


def _is_alone(node: Any, mark: int) -> bool:
    """Whether a call made this one node and no other."""
    return all(following is None or not mark <= following._sequence_nr() < LEAF for following, _ in node.next_functions)


def _number(edge: tuple[Any, int], sources: Edges) -> int | None:
    """Which argument's gradient goes along an edge of the graph."""
    node = edge[0]
    if node is None:
        return None
    if (number := sources.get(edge)) is not None:
        return number
    leaf = getattr(node, "variable", None)
    return None if leaf is None else sources.get(id(leaf))


class _Backward:
    def __init__(self, writer: Writer, name: str, parent: str | None, done: Callable[[], object]) -> None:
        self.writer = writer
        self.name = name
        self.parent = parent
        self.done = done
        self.entry: dict[str, Any] | None = None
        self.begun: dict[int, Any] = {}
        self.sums: dict[int, torch.Tensor] = {}
        self.due: dict[int, int] = {}
        self.places: dict[int, int] = {}

    def watch_node(self, node: Any, results: Sequence[int], sources: Edges) -> None:
        """The usual case: one hook on the one node that the call made."""
        sends: dict[int, list[int]] = {}
        for at, edge in enumerate(node.next_functions):
            if (number := _number(edge, sources)) is not None:
                sends.setdefault(number, []).append(at)
        order = [sends[number] for number in sorted(sends)]

        def ran(gave: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]) -> None:
            if self.entry is not None or not self._on():
                return
            with quietly():
                taken: Taken = []
                inputs = [given[at] for at in results if at < len(given)]
                self._entry()["input"] = [
                    self.writer.value(grad, self.name, f"input.{i}", taken) for i, grad in enumerate(inputs)
                ]
                self._entry()["output"] = [
                    self.writer.value(_sum([gave[at] for at in places]), self.name, f"output.{i}", taken)
                    for i, places in enumerate(order)
                ]
                self.writer.keep(taken)

        node.register_hook(ran)

    def watch_nodes(self, own: Sequence[tuple[torch.Tensor, Any]], sources: Edges, mark: int) -> None:
        """Hooks on each result and on each node of the call's that sends a gradient to an argument."""
        for i, (tensor, _) in enumerate(own):
            tensor.register_hook(lambda grad, i=i: self.begins(i, grad))  # type: ignore[no-untyped-call]
        for node in _nodes([node for _, node in own], mark):
            sends = {
                at: number
                for at, edge in enumerate(node.next_functions)
                if (number := _number(edge, sources)) is not None
            }
            if not sends:
                continue
            for number in sends.values():
                self.due[number] = self.due.get(number, 0) + 1
            node.register_hook(lambda grads, _, sends=sends: self.sends(sends, grads))
        self.places = {number: place for place, number in enumerate(sorted(self.due))}

    def begins(self, i: int, grad: torch.Tensor) -> None:
        """Autograd comes to the call's result number ``i``."""
        if i in self.begun or not self._on():
            return
        with quietly():
            taken: Taken = []
            self.begun[i] = self.writer.value(grad, self.name, f"input.{i}", taken)
            self.writer.keep(taken)
        self._entry()["input"] = [self.begun[number] for number in sorted(self.begun)]

    def sends(self, sends: Mapping[int, int], grads: Sequence[torch.Tensor | None]) -> None:
        """A node of the call's has made gradients; those at the keys of ``sends`` belong to arguments."""
        if not self._on():
            return
        with quietly():
            for at, number in sends.items():
                self.due[number] -= 1
                if (grad := grads[at]) is not None and self.due[number] >= 0:
                    self.sums[number] = self.sums[number] + grad if number in self.sums else grad
                if self.due[number] == 0 and number in self.sums:
                    place, taken = self.places[number], []  # type: int, Taken
                    held = self.writer.value(self.sums.pop(number), self.name, f"output.{place}", taken)
                    self.writer.keep(taken)
                    self._entry()["output"][place] = held

    def _entry(self) -> dict[str, Any]:
        if self.entry is None:
            self.entry = {"input": [], "output": [None] * len(self.places)}
            self.writer.add(self.name, self.entry, parent=self.parent)
            self.done()
        return self.entry

    def _on(self) -> bool:
        if self.writer.closed:
            sentence = "a backward pass ran after its recording had ended, so its gradients aren't in the dump"
            warnings.warn(f"pytest_ascend.record: {sentence}: call backward() inside the block", stacklevel=2)
        return not self.writer.closed and not self.writer.failed


def _sum(grads: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """One argument's gradient, where the call was given it several times."""
    total = None
    for grad in grads:
        if grad is not None:
            total = grad if total is None else total + grad
    return total


def _nodes(start: Sequence[Any], mark: int) -> Iterator[Any]:
    """The nodes of autograd's graph from these on that are no older than ``mark``."""
    seen: set[Any] = set()
    ahead = list(start)
    while ahead:
        node = ahead.pop()
        if node is None or node in seen or not mark <= node._sequence_nr() < LEAF:
            continue
        seen.add(node)
        yield node
        ahead += [edge[0] for edge in node.next_functions]
