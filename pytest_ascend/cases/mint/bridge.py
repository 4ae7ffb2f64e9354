"""A function of mint as a callable of torch's: tensors go to MindSpore's process and come back, gradients as well.

The callable takes and returns torch tensors on the CPU. Where one of them requires a gradient, the call is a node of
torch's graph whose backward pass is MindSpore's own (``GradOperation``, from the same starts), so that the same road
compares forward and backward passes here as everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pytest_ascend.targets.mindspore import MindsporeError, NoKernel, Server, server

__all__ = ["Counterpart", "MintFunction"]

#: torch's dtypes that MindSpore has under the same name
_DTYPES = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class MintFunction:
    """A function or module of mint, to be called with torch tensors.

    Attributes:
        name: ``mindspore.mint.nn.functional.softmax``.
        device, index: where it runs, as ``server`` takes them.
        made: for a module, the arguments it is made with and whether it is in training. Its parameters and buffers are
            the call's first argument, a dict by name.
        differentiable: for each tensor that is returned, whether it has a gradient; by torch's own where None.
        convert: torch's arguments to mint's.
    """

    name: str
    device: str = ""
    index: int = 0
    made: Mapping[str, Any] | None = None
    differentiable: tuple[bool, ...] | None = None
    convert: Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None = field(
        default=None, compare=False
    )

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it. Raises what :meth:`Server.call` raises."""
        tensors: list[torch.Tensor] = []
        request: dict[str, Any] = {"fn": self.name, "made": None, "starts": None}
        if self.made is not None:
            state, args = args[0], args[1:]
            numbers = {}
            for name, tensor in state.items():
                numbers[name] = len(tensors)
                tensors.append(tensor)
            made = {
                "args": _pack(tuple(self.made["args"]), tensors),
                "kwargs": _pack(dict(self.made["kwargs"]), tensors),
            }
            request["made"] = {**made, "state": numbers, "training": self.made["training"]}
        if self.convert is not None:
            args, kwargs = self.convert(args, kwargs)
        request |= {"args": _pack(tuple(args), tensors), "kwargs": _pack(kwargs, tensors)}
        request["seed"] = torch.initial_seed() % 2**31
        call = _Call(self, request, server(self.device, self.index))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            made_tensors = _Node.apply(call, *tensors)  # type: ignore[no-untyped-call]
            outputs = list(made_tensors) if isinstance(made_tensors, tuple) else [made_tensors]
        else:
            outputs = call.forward(tensors)
        for i, changed in call.changed.items():
            with torch.no_grad():
                tensors[i].copy_(changed)
        return _unpack(call.output, outputs)


class _Call:
    """One call on its way."""

    def __init__(self, fn: MintFunction, request: dict[str, Any], to: Server) -> None:
        self.fn = fn
        self.request = request
        self.server = to
        self.output: Any = None
        self.changed: dict[int, torch.Tensor] = {}
        self.sent: list[dict[str, Any]] = []

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.sent = [_array(tensor) for tensor in tensors]
        answer = self.server.call(**self.request, tensors=self.sent)
        self.output = answer["output"]
        self.changed = {i: _tensor(array) for i, array in answer["changed"].items()}
        return [_tensor(array) for array in answer["tensors"]]

    def backward(self, wanted: Sequence[int], starts: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        request = {**self.request, "wanted": list(wanted), "starts": {i: _array(start) for i, start in starts.items()}}
        return [_tensor(array) for array in self.server.call(**request, tensors=self.sent)["tensors"]]

    def has_gradient(self, number: int, output: torch.Tensor) -> bool:
        if not (output.is_floating_point() or output.is_complex()):
            return False
        mask = self.fn.differentiable
        return mask is None or (number < len(mask) and mask[number])


class _Node(torch.autograd.Function):
    """The call as a node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        outputs = call.forward(tensors)
        ctx.call = call
        ctx.inputs = [(tensor.shape, tensor.dtype) for tensor in tensors]
        ctx.with_gradient = [call.has_gradient(i, output) for i, output in enumerate(outputs)]
        ctx.mark_non_differentiable(*[o for o, able in zip(outputs, ctx.with_gradient, strict=True) if not able])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *starts: Any) -> Any:
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        given = {i: start for i, start in enumerate(starts) if ctx.with_gradient[i]}
        found: list[torch.Tensor | None] = [None] * (len(ctx.needs_input_grad) - 1)
        for i, gradient in zip(wanted, ctx.call.backward(wanted, given), strict=True):
            shape, dtype = ctx.inputs[i]
            if gradient.shape != shape or gradient.is_complex() != dtype.is_complex:
                got, wants = f"{_shown(gradient.shape, gradient.dtype)}", _shown(shape, dtype)
                raise MindsporeError(f"the gradient of input {i}, {wants}, is {got}")
            found[i] = gradient
        return (None, *found)


def _shown(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


# ------------------------------------------------------------------------------------------------ values


def _pack(value: Any, tensors: list[torch.Tensor]) -> tuple[str, Any]:
    """An argument as mindspore_server.py reads it; its tensors are appended."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return "tensor", len(tensors) - 1
    if isinstance(value, torch.dtype):
        return "dtype", _name(value)
    if isinstance(value, dict):
        return "dict", {key: _pack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return "list", [_pack(item, tensors) for item in value]
    if isinstance(value, tuple):
        return "tuple", [_pack(item, tensors) for item in value]
    if isinstance(value, slice):
        return "slice", [value.start, value.stop, value.step]
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str)):
        return "plain", value
    raise MindsporeError(f"mint takes no {type(value).__name__}")


def _unpack(packed: tuple[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    """A result that mindspore_server.py wrote."""
    tag, body = packed
    if tag == "tensor":
        return tensors[body]
    if tag in ("list", "tuple"):
        items = [_unpack(item, tensors) for item in body]
        return items if tag == "list" else tuple(items)
    if tag == "dict":
        return {key: _unpack(item, tensors) for key, item in body.items()}
    if tag == "dtype":
        return getattr(torch, body, body)
    return body


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise NoKernel(f"MindSpore has no dtype {name}")
    return name


def _array(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor's values, and its layout where that isn't the plain one."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    name, view = _name(plain.dtype), None
    if not plain.is_contiguous() and plain.numel():
        span = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
        offset = plain.storage_offset()
        view = tuple(plain.shape), tuple(plain.stride()), offset
        plain = plain.as_strided((span + offset,), (1,), 0)
    if plain.dtype is torch.bfloat16:
        plain = plain.to(torch.float32)
    return {"dtype": name, "data": plain.contiguous().numpy(), "view": view}


def _tensor(array: Mapping[str, Any]) -> torch.Tensor:
    data = np.asarray(array["data"])
    made = torch.from_numpy(data.copy() if data.ndim else data.reshape(1).copy()).reshape(data.shape)
    return made.to(torch.bfloat16) if array["dtype"] == "bfloat16" else made


# ------------------------------------------------------------------------------------------------ the reference


@dataclass(frozen=True)
class Counterpart:
    """The torch function that judges, its results as plain tuples.

    Attributes:
        fn: the function; for a module, what makes it afresh (its parameters are the call's first argument).
        made: whether it is a module.
    """

    fn: Callable[..., Any]
    made: bool = False

    @property
    def __name__(self) -> str:
        return str(getattr(self.fn, "__name__", "?"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        if not self.made:
            return _plain(self.fn(*args, **kwargs))
        state, *rest = args
        return _plain(torch.func.functional_call(self.fn(), state, tuple(rest), kwargs))

    def differentiable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...] | None:
        """For each tensor that it returns whether it has a gradient; None where the call raises."""
        from pytest_ascend.cases.tree import reach

        try:
            with torch.random.fork_rng(devices=[]):
                returned = self(*args, **kwargs)
        except Exception:  # the check itself will say so
            return None
        return tuple(found.requires_grad for found in reach(returned) if isinstance(found, torch.Tensor))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


def module_maker(kind: type[torch.nn.Module], args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> Any:
    """What makes a module of torch's anew."""
    return functools.partial(_make, kind, tuple(args), dict(kwargs), training)


def _make(kind: type[torch.nn.Module], args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> Any:
    with torch.random.fork_rng(devices=[]):
        return kind(*args, **kwargs).train(training)
