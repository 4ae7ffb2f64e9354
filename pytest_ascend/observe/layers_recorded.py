"""Every call of a model's layers while a block runs, forward and backward, written down as it happens.

Calls are seen where ``nn.Module`` is called, as ``torch.fx`` sees them: hooks would change what runs (a
``TransformerEncoderLayer`` leaves its fused path when it finds one, a full backward hook puts nodes into the graph),
and a changed ``forward`` would be copied with the model.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_ascend.dumps.writing import Taken, Writer
from pytest_ascend.observe import gradients
from pytest_ascend.observe.apis import frames
from pytest_ascend.observe.gradients import quietly
from pytest_ascend.observe.modules import choose

__all__ = ["LayerRecorder", "named_layers"]

_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_WRAPPER = "_orig_mod"  # what torch.compile calls the model that it wraps


@dataclass(frozen=True)
class Layer:
    """A layer that is recorded: ``Module.encoder.layer.0.Linear``."""

    name: str
    path: str
    module: nn.Module  # also keeps it alive, so that no other takes its id


def is_compiled(module: nn.Module) -> bool:
    """Whether ``torch.compile`` wraps the module."""
    loaded = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = loaded is not None and isinstance(module, loaded.OptimizedModule)
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None


def named_layers(
    model: nn.Module, selection: Sequence[str] | str | None = None, prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Paths of the layers of a model that are recorded, without those that torch.compile adds, and the layers.

    The model itself is one only when it has no layers, as msprobe has it.

    Args:
        model: the model.
        selection: ``None`` = all; ``"sample"`` = a few, evenly over the depth; else names and globs as ``choose`` takes
            them.
        prefix: what paths begin with.
    """
    inner = dict(model.named_modules()).get(_WRAPPER, model) if is_compiled(model) else model
    found = {path.replace(f"{_WRAPPER}.", ""): layer for path, layer in inner.named_modules() if path}
    if not found and inner is model:
        yield prefix.rstrip("."), model
        return
    if selection is not None:
        names = choose(
            inner, None if selection == "sample" else [selection] if isinstance(selection, str) else selection
        )
        found = {path: layer for path, layer in found.items() if path in set(names)}
    for path, layer in found.items():
        if type(layer).__name__ != "FullyShardedDataParallel":
            yield prefix + path, layer


class LayerRecorder:
    """Records calls of layers while it is entered.

    Args:
        writer: asked at each call where it goes; None for a call that isn't recorded.
        models: the models; empty: whatever module the block calls that is part of no other one.
        selection: as :func:`named_layers` takes it.
        silent: layers aren't written down; what a call is inside of is known nevertheless.
        around: called with a model and its arguments whenever one of the models is called, before that.
    """

    def __init__(
        self,
        writer: Callable[[], Writer | None],
        models: Sequence[nn.Module],
        selection: Sequence[str] | str | None = None,
        silent: bool = False,
        around: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], object] | None = None,
    ) -> None:
        self._writer = writer
        self._selection = selection
        self._silent = silent
        self._around = around
        self._discovers = not models
        self._layers: dict[int, Layer] = {}
        self._models: dict[int, nn.Module] = {}
        self._counts: Counter[str] = Counter()
        self._grads: dict[tuple[int, str], Any] = {}
        self._ran: set[int] = set()
        self._called_models: set[int] = set()
        self._stack = threading.local()
        self._call: Any = None
        self.calls = self.backward = self.again = 0
        """How many calls were recorded, how many backward passes, and how many calls ran again inside one."""
        for i, model in enumerate(models):
            self._adopt(model, f"{i}." if len(models) > 1 else "")

    # -- what others ask --------------------------------------------------------------------------------------------

    def place(self) -> str | None:
        """The innermost recorded call of a layer that runs now, in full, or None."""
        stack = getattr(self._stack, "names", None)
        return stack[-1] if stack else None

    def restart(self) -> None:
        """Count calls from 0 again: a new step begins."""
        self._counts.clear()

    def silent_layers(self) -> list[str]:
        """Paths of the layers that never ran as modules."""
        return [
            layer.path
            for number, layer in self._layers.items()
            if number not in self._ran and not isinstance(layer.module, _NEVER_CALLED)
        ]

    def is_hollow(self) -> bool:
        """Whether a model was never called, or a layer was whose own layers, several of them, all weren't."""
        if any(number not in self._called_models for number in self._models):
            return True
        silent = {id(layer.module) for number, layer in self._layers.items() if number not in self._ran}
        for number in self._ran:
            inner = [id(child) for child in self._layers[number].module.children() if id(child) in self._layers]
            if inner and all(child in silent for child in inner):
                return True
        return False

    def compiled(self) -> list[str]:
        """Which of the models, or of their layers, torch.compile wraps; ``""`` is a model itself."""
        found = {""} if any(is_compiled(model) for model in self._models.values()) else set()
        found.update(layer.path for layer in self._layers.values() if is_compiled(layer.module))
        return sorted(found)

    # -- calls ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> LayerRecorder:
        original = self._call = nn.Module.__call__
        recorder = self

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # what is compiled has no calls; it is told of when the recording ends
                return original(self, *args, **kwargs)
            return recorder._called(original, self, args, kwargs)

        nn.Module.__call__ = __call__  # type: ignore[method-assign]
        self._own = __call__
        return self

    def __exit__(self, *error: object) -> None:
        if nn.Module.__call__ is self._own:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
        for handle in self._grads.values():
            handle.remove()
        self._grads.clear()

    def _called(self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = id(module)
        layer = self._layers.get(number)
        is_model = number in self._models
        if layer is None and not is_model:
            if not self._discovers or self._depth() or self._writer() is None:
                return original(module, *args, **kwargs)
            self._adopt(module, f"{len(self._models)}." if self._models else "")
            layer, is_model = self._layers.get(number), True
        if is_model:
            self._called_models.add(number)
        if torch._C._current_autograd_node() is not None:
            self.again += 1
            return original(module, *args, **kwargs)
        if is_model and self._around is not None and not self._depth():
            self._around(module, args, kwargs)
        writer = self._writer()
        if layer is None or writer is None or writer.failed:
            return self._within(None, original, module, args, kwargs)
        self._ran.add(number)
        if self._silent or torch._C._functorch.peek_interpreter_stack() is not None:  # a vmap's tensors can't leave it
            return self._within(layer.name if self._silent else None, original, module, args, kwargs)
        return self._recorded(writer, layer, original, module, args, kwargs)

    def _recorded(
        self, writer: Writer, layer: Layer, original: Any, module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        count = self._counts[layer.name]
        self._counts[layer.name] += 1
        name = f"{layer.name}.forward.{count}"
        parent = self.place()
        differentiable = torch.is_grad_enabled()
        taken: Taken = []
        with quietly():
            sources = gradients.edges(args, kwargs) if differentiable else {}
            call: dict[str, Any] = {
                "input_args": [writer.value(one, name, f"input.{i}", taken) for i, one in enumerate(args)],
                "input_kwargs": {key: writer.value(one, name, f"kwargs.{key}", taken) for key, one in kwargs.items()},
            }
            own = {key: one for key, one in module._parameters.items() if one is not None}
            held = {key: writer.value(one, name, f"parameters.{key}", taken) for key, one in own.items()}
        mark = torch._C._autograd._get_sequence_nr()
        output = self._within(name, original, module, args, kwargs)
        with quietly():
            results = output if isinstance(output, (tuple, list)) else (output,)
            call["output"] = [writer.value(one, name, f"output.{i}", taken) for i, one in enumerate(results)]
            if held:
                call["parameters"] = held
            writer.keep(taken)
            writer.add(name, call, frames(), parent)
            self.calls += 1
            if differentiable:
                above = None if parent is None else parent.replace(".forward.", ".backward.")
                backward = f"{layer.name}.backward.{count}"
                gradients.watch(writer, backward, above, results, sources, mark, self._went_back)
                self._watch_parameters(layer, own)
        return output

    def _within(self, name: str | None, original: Any, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make the call; until it ends, calls are made inside of it."""
        if (names := getattr(self._stack, "names", None)) is None:
            names = self._stack.names = []
        self._stack.depth = self._depth() + 1
        if name is not None:
            names.append(name)
        try:
            return original(module, *args, **kwargs)
        finally:
            self._stack.depth -= 1
            if name is not None:
                names.pop()

    def _depth(self) -> int:
        return getattr(self._stack, "depth", 0)

    def _went_back(self) -> None:
        self.backward += 1

    def _adopt(self, model: nn.Module, prefix: str) -> None:
        self._models[id(model)] = model
        for path, layer in named_layers(model, self._selection, prefix):
            kind = type(layer).__name__
            name = f"Module.{path}.{kind}" if path else f"Module.{kind}"
            self._layers.setdefault(id(layer), Layer(name, path or kind, layer))

    # -- gradients of parameters ------------------------------------------------------------------------------------

    def _watch_parameters(self, layer: Layer, parameters: Mapping[str, nn.Parameter]) -> None:
        for key, parameter in parameters.items():
            if not parameter.requires_grad or (id(layer.module), key) in self._grads:
                continue
            name = f"{layer.name}.parameters_grad"

            def came(parameter: torch.Tensor, key: str = key, name: str = name) -> None:
                writer = self._writer()
                if writer is None or writer.failed or parameter.grad is None:
                    return
                with quietly():
                    taken: Taken = []
                    full = f"{name}.{self._passes(name, key)}"
                    entry = writer.data.get(full)
                    if entry is None:
                        entry = {}
                        writer.add(full, entry)
                        writer.construct.pop(full, None)  # msprobe has these in no module
                    entry[key] = [writer.value(parameter.grad, full, key, taken)]
                    writer.keep(taken)

            handle = parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]
            self._grads[id(layer.module), key] = handle

    def _passes(self, name: str, key: str) -> int:
        """How many backward passes this gradient was added up in before."""
        count = self._counts[f"{name}.{key}"]
        self._counts[f"{name}.{key}"] += 1
        return count
