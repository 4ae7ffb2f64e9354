"""Checkpoints: the outputs of named layers, taken while a model runs.

A checkpoint is taken around the layer's ``forward``, on a copy of the model, and cloned to the CPU the moment it
exists, so that a layer working in place afterwards can't change it. Registered hooks would be simpler, but some layers
look for them: ``nn.TransformerEncoderLayer`` leaves its fused path when it finds one, and a check must run what users
run.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import nn

from pytest_ascend.cases.tree import snapshot
from pytest_ascend.observe.hearing import unheard
from pytest_ascend.observe.spool import Spool

__all__ = ["SAMPLE", "Feed", "Taps", "choose"]

SAMPLE = 12
"""How many layers are compared when the caller names none."""

CALLS = 32
"""How many calls of one layer are kept; a generation loop calls each layer once per token."""

_IDLE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Flatten)
# Containers that are never called, and scripted modules, which let nobody look in.
_CLOSED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, torch.jit.ScriptModule)


def choose(module: nn.Module, selection: bool | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the layers whose outputs are compared, in the order they are registered.

    Args:
        module: the model.
        selection: ``None`` = at most 12 layers, evenly over the depth; ``True`` = every named layer that can be called;
            ``()`` or ``False`` = none; else names and globs, in which ``*`` stands for one part of a name
            (``encoder.layer.*``) and ``**`` for any number of parts.

    Raises:
        ValueError: a name or glob matches no layer, or only a container that is never called.
    """
    if selection is None:
        return _sample(module)
    if selection is False:
        return ()
    names = {name: inner for name, inner in module.named_modules() if name}
    called = {name: inner for name, inner in names.items() if not isinstance(inner, _CLOSED)}
    if selection is True:
        return tuple(called)
    wanted: set[str] = set()
    for pattern in selection:
        found = _matching(pattern, called)
        if not found:
            raise ValueError(_nothing_matches(pattern, names, called))
        wanted.update(found)
    return tuple(name for name in called if name in wanted)


def _matching(pattern: str, names: dict[str, nn.Module]) -> list[str]:
    if pattern in names:
        return [pattern]
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    words = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    expression = re.compile("".join(words.get(part, re.escape(part)) for part in parts))
    return [name for name in names if expression.fullmatch(name)]


def _nothing_matches(pattern: str, names: dict[str, nn.Module], called: dict[str, nn.Module]) -> str:
    if pattern in names:
        kind = type(names[pattern]).__name__
        return f"checkpoint {pattern!r} is a {kind}, whose calls can't be captured: give '{pattern}.*'"
    close = difflib.get_close_matches(pattern, list(called), n=3, cutoff=0.4)
    some, more = ", ".join(map(repr, list(called)[:5])), len(called) - 5
    hint = f"the closest are {', '.join(map(repr, close))}" if close else f"the layers are {some}"
    if not close and more > 0:
        hint += f" and {more} more"
    return f"checkpoint {pattern!r} matches no layer: {hint}"


def _sample(module: nn.Module) -> tuple[str, ...]:
    """Layers evenly over the depth: the model is opened from the top, biggest part first, until there are enough."""
    frontier = _opened("", module)
    done: set[str] = set()
    while len(frontier) < SAMPLE:
        parts = {i: _parts(*part) for i, part in enumerate(frontier) if part[0] not in done}
        by_size = sorted((i for i in parts if parts[i]), key=lambda i: -sum(1 for _ in frontier[i][1].modules()))
        room = SAMPLE - len(frontier) + 1
        # A stack of layers may overflow the sample while there are few others, and is thinned out below.
        chosen = next((i for i in by_size if len(parts[i]) <= room or len(frontier) < SAMPLE // 2), None)
        if chosen is None:
            break
        done.add(frontier[chosen][0])
        frontier[chosen : chosen + 1] = parts[chosen]
    count = len(frontier)
    if count > SAMPLE:
        frontier = [frontier[round(i * (count - 1) / (SAMPLE - 1))] for i in range(SAMPLE)]
    return tuple(name for name, _ in frontier)


def _parts(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """What a layer is opened into: its children, and itself where its output is more than its last child's."""
    if not _is_composed(module):
        return []
    children = _opened(name, module)
    is_stack = isinstance(module, nn.Sequential) or any(isinstance(child, _CLOSED) for child in module.children())
    return children if is_stack or len(children) < 2 else [*children, (name, module)]


def _is_composed(module: nn.Module) -> bool:
    """Whether the children do the module's work; attention, say, uses its projection's weights without calling it."""
    return len(list(module.children())) > 1 or not list(module.parameters(recurse=False))


def _opened(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """A module's children worth a checkpoint; containers that are never called give theirs instead."""
    found: list[tuple[str, nn.Module]] = []
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if isinstance(child, _CLOSED):
            found.extend(_opened(path, child))
        elif not isinstance(child, _IDLE):
            found.append((path, child))
    return found


class Feed(Protocol):
    """Sees, and may replace, what layers are called with and what they return (``isolation``)."""

    def before(
        self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for this call of a layer."""

    def after(self, call: str, output: Any) -> Any:
        """What the layer's caller gets; what the layer returned was captured before."""


class Taps:
    """Takes the outputs of named layers while a context lasts.

    ``captured`` maps a checkpoint's name to its output, in the order in which outputs came to exist; a layer called
    several times gives ``name``, ``name#2``, ...

    Args:
        module: the model's copy; its layers are changed for as long as the context lasts.
        names: names of layers, as :func:`choose` gives them.
        feed: sees what they are called with, under the names of ``captured``.
    """

    def __init__(self, module: nn.Module | None, names: Sequence[str], feed: Feed | None = None) -> None:
        self._feed = feed
        self._spool = Spool()
        self.captured: dict[str, Any] = {}
        self.dropped = 0
        self._calls: dict[str, int] = {}
        self._layers = [(name, module.get_submodule(name)) for name in names] if module is not None else []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Taps:
        for name, layer in self._layers:
            self._wrap(name, layer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def _wrap(self, name: str, layer: nn.Module) -> None:
        forward = layer.forward
        own = "forward" in vars(layer)

        @functools.wraps(forward)  # libraries look at the signature
        def tapped(*args: Any, **kwargs: Any) -> Any:
            if torch._C._functorch.peek_interpreter_stack() is not None:  # tensors of a vmap can't leave it
                return forward(*args, **kwargs)
            call = self._call(name)
            if call is None:
                return forward(*args, **kwargs)
            if self._feed is not None:
                args, kwargs = self._feed.before(call, args, kwargs)
            output = forward(*args, **kwargs)
            with unheard():  # the copy is no call of the model's
                self.captured[call] = snapshot(output, self._spool.keep)
            if self._feed is not None:
                output = self._feed.after(call, output)
            return output

        def undo() -> None:
            if own:
                layer.forward = forward
            else:
                del layer.forward

        layer.forward = tapped
        self._undo.append(undo)

    def _call(self, name: str) -> str | None:
        """What this call of a layer goes by; None when enough of them were kept."""
        calls = self._calls[name] = self._calls.get(name, 0) + 1
        if calls > CALLS:
            self.dropped += 1
            return None
        return name if calls == 1 else f"{name}#{calls}"
