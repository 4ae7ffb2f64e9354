"""Where an operator is called: the layer, the caller's line, and for a backward pass the call that it belongs to.

Asked from inside a dispatch mode, :class:`Places` looks at Python's stack. Nothing is hooked into the model: layers
that look for hooks, compiled ones and other observers see none.

A backward pass runs in C++, on a thread of the device's own, so that its stack says nothing. There autograd tells which
node of its graph is at work, and a node's sequence number is the one that its forward operator was given: the operator
that takes number n finds n + 1 to be the next. Numbers count per thread, so both are kept by thread.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import nn

__all__ = ["Place", "Places"]

#: How many forward operators are remembered for a backward pass to come; the oldest half goes first.
REMEMBERED = 1 << 18

_INNER, _CALLER, _LAYER, _AGAIN, _ENGINE, _TOP = range(6)  # what a frame is to us
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGES = tuple(folder + os.sep for folder in (os.path.dirname(os.path.abspath(torch.__file__)), _OWN))
_STDLIB = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_RUNNERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pluggy"))
_BESIDE_TORCH = re.compile(rf"{re.escape(os.sep)}(torch_npu|functorch|torchgen){re.escape(os.sep)}")
_LEAF = 2**64 - 1  # sequence number of the nodes that add up the gradients of leaves


@dataclass(frozen=True)
class Place:
    """Where an operator was called.

    Attributes:
        module: the innermost layer of the model at work, as ``named_modules()`` calls it; ``""`` outside of all layers
            and in the model's own ``forward``. Without a model, the outermost layer's class comes first
            (``BertModel.encoder.layer.0``).
        file, line, function: the caller's code: the first frame outside of torch and of this package; ``""``, 0 and
            ``""`` where there is none. In a backward pass this is the forward call's, unless Python code ran there (the
            ``backward`` of an autograd function, a hook).
        backward: whether a backward pass is running.
        recomputed: a forward operator that a backward pass runs again (activation checkpoints).
        forward: for an operator of a backward pass, the place of the forward operator that it belongs to, where known.
        node: its node of autograd's graph, such as ``MulBackward0``; ``""`` in a forward pass.
        parameter: the parameter whose gradient is being added up, or ``""``.
    """

    module: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    backward: bool = False
    recomputed: bool = False
    forward: Place | None = None
    node: str = ""
    parameter: str = ""

    @property
    def is_backward(self) -> bool:
        """Whether the operator is one of a backward pass's own, and none of the forward pass run again."""
        return self.backward and not self.recomputed

    @property
    def source(self) -> str:
        """``file:line``, the file relative to the current folder, or to where packages are installed."""
        return f"{_short(self.file)}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        """``encoder.layer.0.attention, modeling_bert.py:231 in forward``; a backward pass says so first."""
        code = f"{self.source} in {self.function}" if self.file else ""
        where = ", ".join(part for part in (self.module, code) if part) or "outside of the caller's code"
        if self.parameter:
            where = f"the gradient of {self.parameter}"
        if self.recomputed:
            return f"recomputed in the backward pass: {where}"
        return f"backward of {where}" if self.backward and not self.parameter else where


class Places:
    """Answers where the operator at hand was called, while it is entered.

    :meth:`here` must be asked at every operator of the forward pass, because that is how a backward pass finds its way
    back. One object for all threads.

    Args:
        model: what the names of layers are taken from; None: the outermost layer that is called, whichever that is.
        root: what the model itself is called.
    """

    def __init__(self, model: nn.Module | None = None, root: str = "") -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"places are named by a torch.nn.Module, or None, and not by a {type(model).__name__}")
        self._model, self._itself = model, root
        self._kinds: dict[int, tuple[int, CodeType]] = {}  # by identity: the hash of a code object is slow
        self._layers: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._roots: dict[str, int] = {}
        self._known: dict[Any, Place] = {}
        self._forward: dict[int, dict[int, tuple[Place, Any]]] = {}  # thread → sequence number → place, operator

    def __enter__(self) -> Places:
        if self._model is not None:
            self._name(self._model, "")
            self._layers[id(self._model)] = weakref.ref(self._model), self._itself
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for kept in (self._layers, self._parameters, self._roots, self._known, self._forward, self._kinds):
            kept.clear()

    def here(self, op: Any = None) -> Place:
        """The place of the operator that is being called.

        Args:
            op: the operator (``torch.ops.aten.mul.Tensor``), by which a node of the graph is told from another thread's
                of the same number.
        """
        backward = torch._C._current_graph_task_id() != -1
        caller: FrameType | None = None
        path: str | None = None
        nested = again = False
        kinds = self._kinds
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            known = kinds.get(id(code))
            if known is None:
                known = kinds[id(code)] = _kind(code), code
            kind = known[0]
            if kind == _INNER:
                pass
            elif kind == _CALLER:
                if caller is None:
                    caller = frame
                    if path is not None:
                        break
            elif kind == _LAYER:
                if path is None and (path := self._path(frame)) is not None and caller is not None:
                    break
            elif kind == _AGAIN:
                again = True
            elif kind == _ENGINE and backward:
                nested = True
                break
            elif kind == _TOP:
                break
            frame = frame.f_back
        if not backward:
            place = self._place(path or "", caller)
            self._remember(place, op)
            return place
        if again or path is not None:  # what the forward pass didn't keep is made once more
            place = self._place(path or "", caller, True, True)
            self._remember(place, op)
            return place
        return self._in_backward(caller, nested, op)

    # -- the forward pass -----------------------------------------------------------------------------------------

    def _place(self, path: str, caller: FrameType | None, *more: Any) -> Place:
        key = (path, 0 if caller is None else id(caller.f_code), 0 if caller is None else caller.f_lineno, *more)
        found = self._known.get(key)
        if found is None:
            if caller is None:
                found = Place(path, "", 0, "", *more)
            else:
                code = caller.f_code
                name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
                found = Place(path, code.co_filename, caller.f_lineno, name, *more)
            self._known[key] = found
        return found

    def _remember(self, place: Place, op: Any) -> None:
        number = torch._C._autograd._get_sequence_nr() - 1
        mine = self._forward.setdefault(threading.get_ident(), {})
        if number < 0 or number in mine:
            return  # this operator has no node; the last one that has was there before
        mine[number] = place, op
        if len(mine) > REMEMBERED:
            for old in list(mine)[: REMEMBERED // 2]:
                del mine[old]

    def _path(self, frame: FrameType) -> str | None:
        """The name of the layer whose call a frame is; None for one that isn't the model's."""
        layer = frame.f_locals.get("self")
        found = self._layers.get(id(layer))
        if found is not None and found[0]() is layer:
            return found[1]
        if self._model is not None or not isinstance(layer, nn.Module):
            return None
        root, above = layer, frame.f_back
        while above is not None:
            if _kind(above.f_code) == _LAYER:
                outer = above.f_locals.get("self")
                root = outer if isinstance(outer, nn.Module) else root
            above = above.f_back
        if (known := self._layers.get(id(root))) is None or known[0]() is not root:
            self._name(root, self._root(root))
            found = self._layers.get(id(layer))
        return None if found is None or found[0]() is not layer else found[1]

    def _root(self, root: nn.Module) -> str:
        name = type(root).__name__
        count = self._roots[name] = self._roots.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _name(self, root: nn.Module, prefix: str) -> None:
        def under(name: str) -> str:
            return f"{prefix}.{name}" if prefix and name else prefix or name

        for name, layer in root.named_modules():
            self._layers[id(layer)] = weakref.ref(layer), under(name)
        for name, parameter in root.named_parameters():
            self._parameters[id(parameter)] = weakref.ref(parameter), under(name)

    # -- the backward pass ----------------------------------------------------------------------------------------

    def _in_backward(self, caller: FrameType | None, nested: bool, op: Any) -> Place:
        node: Any = torch._C._current_autograd_node()
        name, number = ("", -1) if node is None else (node.name(), node._sequence_nr())
        parameter = ""
        if number == _LEAF:
            name = name.rpartition("::")[2]
            known = self._parameters.get(id(node.variable))
            parameter = known[1] if known is not None and known[0]() is node.variable else ""
        if parameter:
            place = self._place(parameter.rpartition(".")[0], caller, True, False, None, name, parameter)
        else:
            forward = next(self._makers(name, number, nested), None)
            place = self._of_forward(forward, caller, name)
        if torch.is_grad_enabled():  # create_graph=True: this operator has a node too
            self._remember(place, op)
        return place

    def _of_forward(self, forward: Place | None, caller: FrameType | None, node: str) -> Place:
        if forward is None:
            return self._place("", caller, True, False, None, node)
        if caller is not None:
            return self._place(forward.module, caller, True, False, forward, node)
        key = (id(forward), node)
        found = self._known.get(key)
        if found is None:
            found = Place(forward.module, forward.file, forward.line, forward.function, True, False, forward, node)
            self._known[key] = found
        return found

    def _makers(self, name: str, number: int, nested: bool) -> Iterator[Place]:
        """Places of forward operators that took a number, the likeliest first.

        A backward pass that Python started on this very thread goes over what this thread made; one on a device's
        thread over what another made, unless only a node of its own fits (the second of two backward passes).
        """
        own = threading.get_ident()
        threads = [one for one in self._forward if one != own]
        threads = [own, *threads] if nested else [*threads, own]
        found = [made for one in threads if (made := self._forward.get(one, {}).get(number)) is not None]
        yield from (place for place, op in found if _fits(op, name))
        yield from (place for place, _ in found)


def _kind(code: CodeType) -> int:
    file = code.co_filename
    if file == _MODULES and code.co_name == "_call_impl":
        return _LAYER
    if code.co_name in ("__torch_dispatch__", "__torch_function__"):
        return _INNER  # whoever looks on
    if file == _CHECKPOINTS:
        return _AGAIN
    if code.co_name == "_engine_run_backward" and file.startswith(_PACKAGES[0]):
        return _ENGINE
    if any(runner in file for runner in _RUNNERS):
        return _TOP
    if file.startswith((*_PACKAGES, "<frozen ", "<eval_with_key>")) or _BESIDE_TORCH.search(file):
        return _INNER
    if file.startswith(_STDLIB) and not any(place in file for place in _INSTALLED):
        return _INNER
    return _CALLER


_MODULES = nn.Module._call_impl.__code__.co_filename
_CHECKPOINTS = os.path.join(os.path.dirname(torch.utils.__file__), "checkpoint.py")


def _fits(op: Any, node: str) -> bool:
    """Whether a node's name is the operator's: ``aten::native_layer_norm``, ``NativeLayerNormBackward0``."""
    plain = "" if op is None else str(op.name()).rpartition("::")[2].partition(".")[0].replace("_", "").lower()
    return bool(plain) and node.rpartition("::")[2].lower().startswith(f"{plain}backward")


def _short(file: str) -> str:
    for place in _INSTALLED:
        if place in file:
            return file.rpartition(place)[2]
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file
