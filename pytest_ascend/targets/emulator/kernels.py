"""Kernels that the generic path can't serve: making, copying and resizing tensors, and a few fused operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .device import machine
from .dispatch import Kernel, fallback, is_view, kernel_of
from .memory import OutOfMemoryError, adopt, allocate, out_of_memory, restride, to_cpu, to_npu

__all__ = ["register"]

aten = torch.ops.aten
Library: Any = torch.library.Library
_libraries: list[Any] = []


def _index(device: torch.device | None) -> int:
    if device is None or device.index is None or device.index < 0:
        return machine.current
    if device.index >= len(machine.devices):
        raise RuntimeError(
            f"npu:{device.index} does not exist: this machine has {len(machine.devices)} (emulated) devices, "
            f"npu:0 to npu:{len(machine.devices) - 1}"
        )
    return device.index


def _host_memory(index: int, make: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Call a CPU factory; a size that the host can't serve is the device's out-of-memory error too."""
    try:
        return make(*args, **kwargs, device="cpu")
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        _out_of_memory(index, args[0], kwargs.get("dtype"))


def _out_of_memory(index: int, size: Any, dtype: torch.dtype | None) -> NoReturn:
    nbytes = math.prod(int(s) for s in size) * (dtype or torch.get_default_dtype()).itemsize
    out_of_memory(machine.devices[index], nbytes)


def _watched(size: Any, stride: Any, dtype: torch.dtype | None, index: int) -> Tensor:
    """Fresh memory between guard bands; see `watch`."""
    watch = machine.watch
    assert watch is not None
    try:
        return allocate(list(size), list(stride), dtype or torch.get_default_dtype(), index, watch)
    except RuntimeError as error:
        if "alloc" not in str(error) or isinstance(error, OutOfMemoryError):
            raise
        _out_of_memory(index, size, dtype)


def _is_dense(size: Any, stride: Any) -> bool:
    """Whether strides leave no gaps and overlap nowhere."""
    expected = 1
    for step, length in sorted((step, length) for step, length in zip(stride, size, strict=True) if length != 1):
        if step != expected:
            return False
        expected *= length
    return True


def _empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    index = _index(device)
    if layout is not None and layout is not torch.strided:
        raise RuntimeError(f"aten::empty: layout {layout} is not supported on npu: use a strided tensor")
    if machine.watch is not None and all(n > 0 for n in size):
        strides = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format).stride()
        return _watched(size, strides, dtype, index)
    if memory_format is None:
        return to_npu(_host_memory(index, torch.empty, size, dtype=dtype), index)
    return to_npu(_host_memory(index, torch.empty, size, dtype=dtype, memory_format=memory_format), index)


def _empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    index = _index(device)
    if machine.watch is not None and all(n > 0 for n in size) and _is_dense(size, stride):
        return _watched(size, stride, dtype, index)
    cpu = _host_memory(index, torch.empty_strided, size, stride, dtype=dtype)
    if machine.watch is not None and cpu.numel():
        length = cpu.untyped_storage().nbytes() // cpu.element_size()
        return _watched((length,), (1,), cpu.dtype, index).as_strided(size, stride)
    storage = cpu.untyped_storage().nbytes()
    if storage == cpu.nbytes:
        return to_npu(cpu, index)
    # Strides with gaps or overlap: make the storage, then the view over it.
    flat = to_npu(torch.empty(storage // cpu.element_size(), dtype=cpu.dtype, device="cpu"), index)
    return flat.as_strided(size, stride)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    from_npu, into_npu = not source.is_cpu, not target.is_cpu
    if machine.ill is not None:
        machine.ill.ask((source if from_npu else target).get_device(), waits=not into_npu)
    if from_npu and not into_npu and machine.sanitizer is not None:
        machine.sanitizer.downloads(to_cpu(source))
    machine.copied["d2d" if from_npu and into_npu else "d2h" if from_npu else "h2d"] += source.nbytes
    (to_cpu(target) if into_npu else target).copy_(to_cpu(source) if from_npu else source)
    return target


def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    cpu = source if source.is_cpu else to_cpu(source)
    if target.is_cpu:
        return target.resize_(cpu.shape).copy_(cpu)
    if target.shape == cpu.shape:
        to_cpu(target).copy_(cpu)
        return target
    return adopt(target, cpu.to(target.dtype))


def _resize(self: Tensor, size: Any, *, memory_format: torch.memory_format | None = None) -> Tensor:
    if memory_format is None and list(size) == list(self.shape):
        return self
    need = math.prod(int(s) for s in size)
    have = self.untyped_storage().nbytes() // self.element_size() - self.storage_offset()
    if need > have:
        grown = torch.empty(size, dtype=self.dtype, device="cpu")
        flat = grown.view(-1)
        old = to_cpu(self).reshape(-1)
        flat[: old.numel()].copy_(old)
        return adopt(self, grown)
    shape = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    return restride(self, self.untyped_storage(), self.storage_offset(), list(size), shape.stride())


def _record_stream(self: Tensor, stream: Any) -> None:
    return None


def _is_pinned(self: Tensor, device: Any = None) -> bool:
    return False


def _convolution(
    x: Tensor, w: Tensor, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, out_pad: Any, groups: int
) -> Tensor:
    return kernel_of(aten.convolution.default)(x, w, b, stride, padding, dilation, transposed, out_pad, groups)  # type: ignore[no-any-return]


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    out_pad: Any,
    groups: int,
    mask: Any,
) -> Any:
    bias = [w.size(1) * groups if transposed else w.size(0)] if mask[2] else None
    return kernel_of(aten.convolution_backward.default)(
        grad, x, w, bias, stride, padding, dilation, transposed, out_pad, groups, mask
    )


def _lstm_cell(
    gates_x: Tensor, gates_h: Tensor, c: Tensor, bias_x: Tensor | None = None, bias_h: Tensor | None = None
) -> Any:
    """`_thnn_fused_lstm_cell` in elementary operators, so that autograd needs no workspace of the fused kernel."""
    gates = gates_x + gates_h
    if bias_x is not None and bias_h is not None:
        gates = gates + bias_x + bias_h
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(
    gates_x: Tensor, gates_h: Tensor, h: Tensor, bias_x: Tensor | None = None, bias_h: Tensor | None = None
) -> Any:
    """`_thnn_fused_gru_cell` in elementary operators."""
    if bias_x is not None and bias_h is not None:
        gates_x, gates_h = gates_x + bias_x, gates_h + bias_h
    (rx, zx, nx), (rh, zh, nh) = gates_x.chunk(3, 1), gates_h.chunk(3, 1)
    r, z = (rx + rh).sigmoid(), (zx + zh).sigmoid()
    n = (nx + r * nh).tanh()
    return (h - n) * z + n, gates_x


def _zeros(size: Any, **options: Any) -> Tensor:
    """`_efficientzerotensor` with memory: torch's own has none, and no key that would say so survives relabelling."""
    return _empty(size, dtype=options.get("dtype"), device=options.get("device")).zero_()


def _nnpack(x: Tensor, w: Tensor, b: Tensor | None, padding: Any, stride: Any = 1) -> Tensor:
    padding, stride = (
        [v] * 2 if isinstance(v, int) else list(v) * (2 if len(v) == 1 else 1) for v in (padding, stride)
    )
    return _convolution(x, w, b, stride, padding, [1, 1], False, [0, 0], 1)


_DENSE = frozenset({"cpu", "cuda", "mps", "hip", "xpu", "hpu", "mtia", "npu"})


def _same_kind(self: Tensor, source: Tensor) -> bool:
    """Whether `self.data = source` may be done; on a card also from CPU to NPU, so `Module.to` keeps its parameters."""
    if self.layout is torch.strided and source.layout is torch.strided:
        if self.device.type in _DENSE and source.device.type in _DENSE:
            return True
    elif self.layout is source.layout and self.device.type in _DENSE and source.device.type in _DENSE:
        return True
    keys: Any = torch._C._dispatch_keys
    return bool(keys(self).raw_repr() == keys(source).raw_repr())


_BY_HAND = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "resize_": _resize,
    "record_stream": _record_stream,
    "is_pinned": _is_pinned,
    "_efficientzerotensor": _zeros,
    "_nnpack_spatial_convolution": _nnpack,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}
# Fused kernels that torch would otherwise decompose differently, or not at all, on an unknown device.
_DIRECT = (
    "addr",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_dropout",
    "native_dropout_backward",
)


def _overload(name: str) -> torch._ops.OpOverload | None:
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(aten, packet), overload or "default")  # type: ignore[no-any-return]
    except AttributeError:
        return None


def register() -> None:
    """Register the device's kernels with torch's dispatcher; called once.

    Operators with a structured kernel are registered one by one: through the fallback they would arrive as an `empty`
    and an `.out` call, twice the work. Everything else comes through the fallback.
    """
    catch_all: Any = Library("_", "IMPL")
    catch_all.fallback(fallback, "PrivateUse1")
    library: Any = Library("aten", "IMPL")
    for name, function in _BY_HAND.items():
        library.impl(name, function, "PrivateUse1")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if name == full or name in _BY_HAND or name == "as_strided_":
            continue
        if has(full, "CompositeExplicitAutogradNonFunctional") or name in _DIRECT:
            op = _overload(name)
            if op is not None and not is_view(op.overloadpacket):
                library.impl(name, Kernel.__call__.__get__(kernel_of(op)), "PrivateUse1")
    for key in ("CPU", "PrivateUse1"):
        library.impl("_has_compatible_shallow_copy_type", _same_kind, key)
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library.impl("_thnn_fused_lstm_cell", _lstm_cell, key)
        library.impl("_thnn_fused_gru_cell", _gru_cell, key)
    for key in ("Conjugate", "Negative"):  # or a copy of a lazily conjugated tensor recurses without end
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    _libraries.extend((catch_all, library))
