"""One kernel for every operator: alias the arguments to CPU, compute as the chip would, relabel the results.

A call flows: `Kernel.__call__` → arguments aliased to CPU (mixed devices refused) → an override, else the chip's
numerics for this operator, else torch's CPU kernel → results relabelled, in-place and `out=` arguments returned as
they came.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import accepts, numerics
from .device import machine
from .memory import adopt, to_cpu, to_npu

__all__ = ["CPU_KEYS", "Kernel", "fallback", "is_view", "kernel_of", "replacements"]

aten = torch.ops.aten
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

# These only make or change a view: torch's CPU kernel edits metadata and never looks at memory.
_VIEWS = frozenset(
    {
        aten.as_strided,
        aten.view,
        aten._reshape_alias,
        aten.unfold,
        aten.view_as_real,
        aten.view_as_complex,
        aten.set_,
        aten.is_set_to,
    }
)
# CPU tensors of one or more dimensions are accepted beside npu ones here, on a card as well (indices).
_MIXED = frozenset(
    {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index, aten.tensor_split}
)
_SCALARS = (int, float, complex)

# Operator name ("aten::cumsum") → what to call instead of its kernel: `replacement(kernel, args, kwargs)`, CPU tensors
# in and out. Read on every call, so it is a bare dict; filled by `overrides`.
replacements: dict[str, Callable[[Kernel, list[Any], dict[str, Any]], Any]] = {}


def is_view(packet: Any) -> bool:
    """Whether an operator (an overload packet) is one of the view primitives."""
    return packet in _VIEWS


class Kernel:
    """The device's kernel for one operator overload, everything about its schema looked up beforehand."""

    __slots__ = (
        "alias",
        "call",
        "generator",
        "mixed",
        "name",
        "op",
        "outs",
        "packet",
        "rule",
        "seeded",
        "takes_device",
        "tensor_slots",
        "written",
    )

    def __init__(self, op: torch._ops.OpOverload) -> None:
        schema = op._schema
        self.op, self.packet, self.name = op, op.overloadpacket, schema.name
        arguments = list(schema.arguments)
        self.outs = tuple(a.name for a in arguments if a.is_out)
        self.generator = any(a.name == "generator" for a in arguments)
        # Random, with no generator to hand over: it will draw from the CPU's default one.
        self.seeded = torch.Tag.nondeterministic_seeded in op.tags and not self.generator
        self.takes_device = any(a.name == "device" for a in arguments)
        self.tensor_slots = frozenset(i for i, a in enumerate(arguments) if str(a.type) == "Tensor")
        self.mixed = self.packet in _MIXED
        self.call: Callable[..., Any] = op
        self.rule = numerics.rule_for(self.packet)
        # Which positional argument each result is, for in-place operators.
        writes = {
            next(iter(a.alias_info.before_set)): i
            for i, a in enumerate(arguments)
            if a.alias_info is not None and a.alias_info.is_write and not a.is_out and a.alias_info.before_set
        }
        self.written = frozenset(writes.values())
        self.alias: tuple[int | None, ...] = tuple(
            writes.get(next(iter(r.alias_info.before_set), ""))
            if r.alias_info is not None and r.alias_info.is_write
            else None
            for r in schema.returns
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        index = -1
        inputs: list[Tensor] = []
        call = self.call
        cpu_args: list[Any] = []
        for position, a in enumerate(args):
            if isinstance(a, Tensor):
                if not a.is_cpu:
                    where = a.get_device()
                    if where != index:
                        if index >= 0:
                            self._mixed_devices(f"npu:{index}", f"npu:{where}")
                        index = where
                    a = to_cpu(a)
                    inputs.append(a)
                elif a.dim() and not self.mixed:
                    self._mixed_devices(f"npu:{max(index, machine.current)}", "cpu")
                cpu_args.append(a)
            elif isinstance(a, (list, tuple)) and a:
                a, index = self._list(a, inputs, index)
                cpu_args.append(a)
            elif isinstance(a, torch.device):
                index = a.index if a.index is not None else machine.current
                cpu_args.append("cpu")
            else:
                if isinstance(a, _SCALARS) and position in self.tensor_slots:
                    call = self.packet  # a wrapped number in a Tensor's place: let torch pick the overload
                cpu_args.append(a)
        outs: dict[str, Tensor] | None = None
        if kwargs:
            outs, index = self._keywords(kwargs, inputs, index)
        if self.takes_device:
            device = kwargs.get("device")
            if isinstance(device, torch.device) and device.type != "cpu":
                index = device.index if device.index is not None else machine.current
            elif device is not None and not inputs:
                return self.op(*args, **kwargs)
            kwargs["device"] = "cpu"
        if index < 0:
            index = machine.current
        if self.generator and not isinstance(kwargs.get("generator"), torch.Generator):
            kwargs["generator"] = machine.devices[index].generator
        if machine.ill is not None:
            machine.ill.ask(index)
        machine.kernels += 1
        if machine.sanitizer is not None:
            result = machine.sanitizer.around(
                self,
                lambda: self._run(call, cpu_args, kwargs, inputs, index),
                inputs,
                replacements.get(self.name) if replacements else None,
            )
        elif self.seeded:
            with machine.devices[index].lend_stream():
                result = self._compute(call, cpu_args, kwargs, inputs)
        else:
            result = self._compute(call, cpu_args, kwargs, inputs)
        return self._results(result, args, outs, kwargs, inputs, index)

    def _run(
        self, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], inputs: list[Tensor], index: int
    ) -> Any:
        with machine.devices[index].lend_stream() if self.seeded else contextlib.nullcontext():
            return self._compute(call, args, kwargs, inputs)

    def _compute(self, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], inputs: list[Tensor]) -> Any:
        if replacements and (replacement := replacements.get(self.name)) is not None:
            return replacement(self, args, kwargs)
        modes = machine.modes
        rule = self.rule if modes.numerics else None
        try:
            result = rule(call, args, kwargs) if rule is not None else call(*args, **kwargs)
        except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError) as error:
            ruled = call if rule is None else _ruled(rule, call)
            if "not resizable" in str(error) and self.outs:
                # An `out` that must grow: compute into memory of its own, which the caller's tensor then adopts.
                kwargs.update({name: torch.empty(0, dtype=kwargs[name].dtype) for name in self.outs if name in kwargs})
                result = ruled(*args, **kwargs)
            else:
                result = accepts.retry(self, error, ruled, args, kwargs)
        if (modes.saturation or machine.soc.flush_subnormals or not machine.soc.bf16) and modes.numerics:
            numerics.chip_limits(self, inputs, result)
        return result

    def _mixed_devices(self, first: str, second: str) -> None:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! "
            f"(when calling {self.name})"
        )

    def _list(self, values: Any, inputs: list[Tensor], index: int) -> tuple[Any, int]:
        converted: list[Any] = []
        for a in values:
            if isinstance(a, Tensor) and not a.is_cpu:
                where = a.get_device()
                if index >= 0 and where != index:
                    self._mixed_devices(f"npu:{index}", f"npu:{where}")
                index = where
                a = to_cpu(a)
                inputs.append(a)
            elif isinstance(a, Tensor) and a.dim() and not self.mixed and index >= 0:
                self._mixed_devices(f"npu:{index}", "cpu")
            converted.append(a)
        return converted, index

    def _keywords(
        self, kwargs: dict[str, Any], inputs: list[Tensor], index: int
    ) -> tuple[dict[str, Tensor] | None, int]:
        outs: dict[str, Tensor] | None = None
        for name, a in kwargs.items():
            if isinstance(a, Tensor):
                if a.is_cpu and (name not in self.outs or not inputs):
                    continue
                if a.is_cpu:
                    self._mixed_devices(f"npu:{index}", "cpu")
                if index >= 0 and a.get_device() != index:
                    self._mixed_devices(f"npu:{index}", f"npu:{a.get_device()}")
                index = a.get_device()
                if name in self.outs:
                    outs = outs or {}
                    outs[name] = a
                    # An empty `out` is there to be resized: compute into fresh memory, which is then adopted.
                    kwargs[name] = to_cpu(a) if a.numel() else torch.empty(a.shape, dtype=a.dtype)
                else:
                    kwargs[name] = to_cpu(a)
                    inputs.append(kwargs[name])
            elif isinstance(a, (list, tuple)) and a and any(isinstance(x, Tensor) for x in a):
                if name in self.outs:
                    outs = outs or {}
                    outs[name] = a  # type: ignore[assignment]
                kwargs[name], index = self._list(a, inputs, index)
        return outs, index

    def _results(
        self,
        result: Any,
        args: tuple[Any, ...],
        outs: dict[str, Tensor] | None,
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        index: int,
    ) -> Any:
        if outs is not None:
            returned = [self._write_out(outs[name], kwargs[name]) for name in self.outs if name in outs]
            return tuple(returned) if isinstance(result, (tuple, list)) else returned[0] if result is not None else None
        if isinstance(result, Tensor):
            position = self.alias[0] if self.alias else None
            if position is not None:
                return self._mutated(args[position], result)
            return self._fresh(result, inputs, index)
        if isinstance(result, (tuple, list)):
            converted = [
                args[self.alias[i]]  # type: ignore[index]
                if i < len(self.alias) and self.alias[i] is not None
                else self._any(r, inputs, index)
                for i, r in enumerate(result)
            ]
            return converted if isinstance(result, list) else tuple(converted)
        return result

    def _any(self, value: Any, inputs: list[Tensor], index: int) -> Any:
        if isinstance(value, Tensor):
            return self._fresh(value, inputs, index)
        if isinstance(value, (tuple, list)):
            return [self._any(v, inputs, index) for v in value]
        return value

    @staticmethod
    def _mutated(npu: Tensor, cpu: Tensor) -> Tensor:
        if npu.shape != cpu.shape:
            adopt(npu, cpu)
        return npu

    @staticmethod
    def _write_out(npu: Any, cpu: Any) -> Any:
        if isinstance(npu, (list, tuple)):
            return npu
        if npu.shape != cpu.shape:
            return adopt(npu, cpu.to(npu.dtype))
        if npu.data_ptr() != cpu.data_ptr():
            to_cpu(npu).copy_(cpu)
        return npu

    @staticmethod
    def _fresh(cpu: Tensor, inputs: list[Tensor], index: int) -> Tensor:
        if cpu.layout is not torch.strided or cpu.is_quantized:
            return cpu
        pointer = cpu.data_ptr()
        for i in inputs:
            if i.data_ptr() == pointer and pointer:
                cpu = cpu.clone()
                break
        return to_npu(cpu, index)


def _ruled(rule: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: rule(call, list(args), kwargs)


_kernels: dict[Any, Kernel] = {}


def kernel_of(op: torch._ops.OpOverload) -> Kernel:
    """The device's kernel for an overload, made once."""
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = Kernel(op)
    return kernel


def fallback(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What torch calls for every operator that has no kernel of its own on this device."""
    if op.overloadpacket in _VIEWS:
        return op.redispatch(CPU_KEYS, *args, **kwargs)
    return kernel_of(op)(*args, **kwargs)
