"""How the chip computes: what makes its results differ from the CPU's, on purpose.

`rule_for(packet)` names the rule of an operator, or None where chip and CPU agree bit for bit (data movement,
elementwise arithmetic rounded once). A rule is called as `rule(call, args, kwargs)` on CPU tensors and returns CPU
tensors.

Sources: torch_npu's documentation of HF32 (float32's range with an 11-bit mantissa, matmul and convolution only), of
the cube unit (16-bit inputs, float32 accumulation), of `gelu` and of the saturation mode. The reduction order isn't
documented; sums over blocks of 64 (one 256-byte vector register of float32), then over the blocks, stand for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .device import machine

__all__ = ["chip_limits", "hf32", "rule_for"]

aten = torch.ops.aten
Rule = Callable[[Callable[..., Any], list[Any], dict[str, Any]], Any]

_HALF = (torch.float16, torch.bfloat16)
_BLOCK = 64
_SPLIT_K = 32  # from here on the cube's accumulation over K goes in two blocks


def hf32(t: Tensor) -> Tensor:
    """Round float32 to HF32 (11 explicit mantissa bits), half to even; infinities and NaN stay what they are."""
    bits = t.contiguous().view(torch.int32)
    rounded = bits >> 12
    rounded.bitwise_and_(1).add_(0x7FF).add_(bits).bitwise_and_(~0xFFF)
    return rounded.view(torch.float32)


# ------------------------------------------------------------------------------------------------ the cube unit


def _unsupported(name: str, dtype: torch.dtype) -> RuntimeError:
    supported = ["torch.float16", "torch.float32"] + (["torch.bfloat16"] if machine.soc.bf16 else [])
    return RuntimeError(
        f"{name}: {dtype} is not supported by {machine.soc.name} (DT_{_acl_name(dtype)} not implemented); "
        f"dtype should be one of {', '.join(supported)}"
    )


def _acl_name(dtype: torch.dtype) -> str:
    names = {
        torch.float64: "DOUBLE",
        torch.bfloat16: "BFLOAT16",
        torch.complex64: "COMPLEX64",
        torch.complex128: "COMPLEX128",
    }
    return names.get(dtype, str(dtype).removeprefix("torch.").upper())


def _first_dtype(args: list[Any]) -> torch.dtype | None:
    for a in args:
        if isinstance(a, Tensor):
            return a.dtype
    return None


def _in_float32(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """16-bit inputs: compute in float32 with float32 accumulation, round the result once."""
    wide = [a.float() if isinstance(a, Tensor) and a.dtype == dtype else a for a in args]
    outs = {name: v for name, v in kwargs.items() if isinstance(v, Tensor) and v.dtype == dtype}
    if not outs:
        result = call(*wide, **kwargs)
        if isinstance(result, tuple):
            return tuple(r.to(dtype) if isinstance(r, Tensor) else r for r in result)
        first = args[0]
        if result is wide[0] and isinstance(first, Tensor):  # in-place: the caller's tensor takes the rounded value
            return first.copy_(result)
        return result.to(dtype)
    other = {name: v for name, v in kwargs.items() if name not in outs}
    result = call(*wide, **other, **{name: torch.empty(0, dtype=torch.float32) for name in outs})
    results = result if isinstance(result, tuple) else (result,)
    for (name, out), value in zip(outs.items(), results, strict=False):
        kwargs[name] = out.copy_(value) if out.shape == value.shape else value.to(dtype)
    return result


def _cube(first_factor: int, split: Callable[..., Any] | None) -> Rule:
    """A matmul-like operator whose factors start at argument `first_factor`; a bias before them stays float32."""

    def rule(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        factor = args[first_factor]
        dtype = factor.dtype
        if dtype is torch.float32:
            if machine.modes.hf32_matmul:
                args[first_factor], args[first_factor + 1] = hf32(factor), hf32(args[first_factor + 1])
            if split is not None and factor.shape[-1] >= _SPLIT_K and kwargs.get("out").__class__ is not Tensor:
                return split(call, args, kwargs)
            return call(*args, **kwargs)
        if dtype in _HALF:
            return _in_float32(call, args, kwargs, dtype)
        if dtype is torch.float64 or (dtype.is_complex and dtype is not torch.complex64):
            raise _unsupported(_name(call), dtype)
        return call(*args, **kwargs)

    return rule


def _name(call: Any) -> str:
    packet = getattr(call, "overloadpacket", call)
    return str(getattr(packet, "_qualified_op_name", packet))


def _half_k(k: int) -> int:
    return (k // 2 + 15) // 16 * 16


def _split_mm(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    a, b = args[0], args[1]
    k = _half_k(a.shape[1])
    return torch.mm(a[:, :k], b[:k]).addmm_(a[:, k:], b[k:])


def _split_bmm(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    a, b = args[0], args[1]
    k = _half_k(a.shape[2])
    return torch.bmm(a[:, :, :k], b[:, :k]).baddbmm_(a[:, :, k:], b[:, k:])


def _split_addmm(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    bias, a, b = args[:3]
    if bias.dtype is not torch.float32:
        return call(*args, **kwargs)
    k = _half_k(a.shape[1])
    first = call(bias, a[:, :k], b[:k], *args[3:], **kwargs)
    return first.addmm_(a[:, k:], b[k:], alpha=kwargs.get("alpha", 1))


def _split_baddbmm(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    bias, a, b = args[:3]
    if bias.dtype is not torch.float32:
        return call(*args, **kwargs)
    k = _half_k(a.shape[2])
    first = call(bias, a[:, :, :k], b[:, :k], *args[3:], **kwargs)
    return first.baddbmm_(a[:, :, k:], b[:, k:], alpha=kwargs.get("alpha", 1))


def _split_mv(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    a, x = args[0], args[1]
    k = _half_k(a.shape[-1])
    if a.dim() == 1:
        return torch.dot(a[:k], x[:k]).add_(torch.dot(a[k:], x[k:]))
    return torch.mv(a[:, :k], x[:k]).addmv_(a[:, k:], x[k:])


def _split_convolution(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Accumulate over the input channels in two blocks, where it is a plain forward convolution."""
    if _name(call) != "aten::convolution" or len(args) < 9 or args[6] or args[8] != 1 or args[1].shape[1] < 2:
        return call(*args, **kwargs)
    x, w, bias, *rest = args
    half, axis = w.shape[1] // 2, x.dim() - w.dim() + 1
    first = call(x.narrow(axis, 0, half), w[:, :half], bias, *rest, **kwargs)
    return first.add_(call(x.narrow(axis, half, w.shape[1] - half), w[:, half:], None, *rest, **kwargs))


def _convolution(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    dtype = _first_dtype(args)
    types = {a.dtype for a in args if isinstance(a, Tensor)}
    if dtype is not None and len(types) > 1 and types <= {torch.float32, *_HALF}:
        # A card takes mixed types: it computes in float32 and answers in the type of the first argument.
        result = call(*[a.float() if isinstance(a, Tensor) else a for a in args], **kwargs)
        return tuple(r if r is None else r.to(dtype) for r in result) if isinstance(result, tuple) else result.to(dtype)
    if dtype is torch.float32:
        if not machine.modes.hf32_conv:
            return _split_convolution(call, args, kwargs)
        args = [hf32(a) if isinstance(a, Tensor) and a.dim() > 1 and a.dtype is torch.float32 else a for a in args]
    elif dtype in _HALF and dtype is not None:
        return _in_float32(call, args, kwargs, dtype)
    elif dtype is torch.float64 or (dtype is not None and dtype.is_complex):
        raise _unsupported(_name(call), dtype)
    return call(*args, **kwargs)


# ------------------------------------------------------------------------------------------------ reductions


def _blocked_sum(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    """Sum over one dimension in blocks of 64, then the blocks' sums; float32 accumulation for 16-bit inputs."""
    accumulate = torch.float32 if x.dtype in _HALF else x.dtype
    n = x.shape[dim]
    whole = n // _BLOCK * _BLOCK
    if n <= _BLOCK:
        return x.sum(dim, keepdim=keepdim, dtype=accumulate)
    shape = (*x.shape[:dim], whole // _BLOCK, _BLOCK, *x.shape[dim + 1 :])
    blocks = x.narrow(dim, 0, whole).reshape(shape).sum(dim + 1, dtype=accumulate)
    total: Tensor = blocks.sum(dim, keepdim=keepdim)
    if whole < n:
        total.add_(x.narrow(dim, whole, n - whole).sum(dim, keepdim=keepdim, dtype=accumulate))
    return total


def _reduced(x: Tensor, dims: Any) -> tuple[list[int], int]:
    every = [d % x.dim() for d in dims] if dims else list(range(x.dim()))
    return every, math.prod(x.shape[d] for d in every)


def _sum(mean: bool) -> Rule:
    def rule(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        x = args[0]
        out, dtype = kwargs.get("out"), kwargs.get("dtype")
        result_type = dtype or x.dtype
        narrow = x.dtype in (torch.float32, *_HALF) and result_type.is_floating_point
        if not narrow or result_type is torch.float64 or not x.dim() or out is not None:
            return call(*args, **kwargs)
        dims = args[1] if len(args) > 1 else None
        dims = [dims] if isinstance(dims, int) else dims
        keepdim = bool(args[2]) if len(args) > 2 else False
        every, count = _reduced(x, dims)
        if count <= _BLOCK:
            return call(*args, **kwargs)
        if len(every) == x.dim() and not keepdim and x.is_contiguous():
            total = _blocked_sum(x.view(-1), 0, False)
        else:
            # The longest dimension goes in blocks; the others follow.
            longest = max(every, key=lambda d: x.shape[d])
            total = _blocked_sum(x, longest, True)
            rest = [d for d in every if d != longest]
            if rest:
                total = total.sum(rest, keepdim=True)
            if not keepdim:
                for d in sorted(every, reverse=True):
                    total = total.squeeze(d)
        if mean:
            total = total / count if total.dtype is torch.float32 else total.float() / count
        return total.to(result_type)

    return rule


def _softmax(log: bool) -> Rule:
    def rule(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        x, dim = args[0], args[1]
        if len(args) > 2 and args[2] and x.dtype in _HALF:  # half in, float32 out: a card has it, CPU kernels don't
            x = x.float()
            args = [x, dim, False]
        if (
            "out" in kwargs
            or x.dtype not in (torch.float32, *_HALF)
            or not x.dim()
            or x.shape[dim] <= _BLOCK
            or not x.numel()
        ):
            return call(*args, **kwargs)
        wide = call(x.float() if x.dtype in _HALF else x, dim, False)
        if log:
            wide -= _blocked_sum(wide.exp(), dim % x.dim(), True).log_()
        else:
            wide /= _blocked_sum(wide, dim % x.dim(), True)
        return wide if x.dtype is torch.float32 else wide.to(x.dtype)

    return rule


def _softmax_backward(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The backward of the half-to-float form: a float32 gradient in, the input's 16-bit type out."""
    input_type = args[3]
    if args[0].dtype is torch.float32 and input_type in _HALF and "out" not in kwargs:
        return call(args[0], args[1], args[2], torch.float32).to(input_type)
    return call(*args, **kwargs)


def _layer_norm(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    x, shape, weight, bias, eps = args
    n = math.prod(shape)
    if n <= _BLOCK or x.dtype not in (torch.float32, *_HALF) or not x.numel() or kwargs:
        return call(*args, **kwargs)
    wide = x.float() if x.dtype in _HALF else x
    rows = wide.reshape(-1, n)
    mean = _blocked_sum(rows, 1, True).div_(n)
    centred = rows - mean
    rstd = _blocked_sum(centred * centred, 1, True).div_(n).add_(eps).rsqrt_()
    centred *= rstd
    if weight is not None:
        w = weight.reshape(-1)
        w = w if w.dtype is torch.float32 else w.float()
        if bias is not None:
            b = bias.reshape(-1)
            centred = torch.addcmul(b if b.dtype is torch.float32 else b.float(), centred, w)
        else:
            centred *= w
    elif bias is not None:
        centred += bias.reshape(-1)
    kept = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    y = centred.view(x.shape)
    return (y if x.dtype is torch.float32 else y.to(x.dtype)), mean.view(kept), rstd.view(kept)


# ------------------------------------------------------------------------------------------------ activations


def _gelu(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The chip computes the tanh form whatever `approximate` says, unless the compatible implementation is chosen."""
    if machine.soc.tanh_gelu and not machine.modes.compatible_impl:
        kwargs["approximate"] = "tanh"
    return call(*args, **kwargs)


def _gelu_backward(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """torch's tanh form multiplies 0 by infinity where x³ overflows; the derivative there is 1, or 0 for negative x."""
    result = _gelu(call, args, kwargs)
    grad, x = args[0], args[1]
    if "grad_input" in kwargs or not result.numel() or not bool(result.isnan().any()):
        return result
    beyond = result.isnan() & x.isfinite() & grad.isfinite()
    return torch.where(beyond, torch.where(x > 0, grad, torch.zeros_like(grad)), result)


def _fused(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Several steps in one kernel (x + alpha * y and its kin).

    bfloat16 isn't the vector unit's own type: the steps run in float32 and round once at the end. float16 is, and
    rounds at every step as on the CPU.
    """
    dtype = args[0].dtype if isinstance(args[0], Tensor) else None
    if dtype is not torch.bfloat16 or any(isinstance(a, Tensor) and a.dtype is not dtype for a in args):
        return call(*args, **kwargs)
    return _in_float32(call, args, kwargs, dtype)


def _half_in_float32(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Kernels that interpolate or accumulate: 16-bit inputs, float32 inside, rounded once."""
    dtype, wanted = _first_dtype(args), kwargs.get("dtype")
    if dtype not in _HALF or dtype is None or wanted not in (None, *_HALF):
        return call(*args, **kwargs)
    if wanted is None:
        return _in_float32(call, args, kwargs, dtype)
    wide = {**kwargs, "dtype": torch.float32}
    if "out" in kwargs:
        wide["out"] = torch.empty(0)
    result = call(*args, **wide).to(wanted)
    if "out" in kwargs:
        kwargs["out"] = result
    return result


def _scaled(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _fused(call, args, kwargs) if kwargs.get("alpha", 1) != 1 else call(*args, **kwargs)


_WIDE = {
    full.removeprefix("aten::").partition(".")[0]
    for full in torch._C._dispatch_get_all_op_names()
    if full.startswith(tuple("aten::" + p for p in ("upsample_", "_upsample_", "grid_sampler_", "slow_conv_transpose")))
}

_RULES: dict[Any, Rule] = {
    **dict.fromkeys((getattr(aten, name) for name in _WIDE), _half_in_float32),
    **dict.fromkeys((aten.prod, aten.native_layer_norm_backward), _half_in_float32),
    **dict.fromkeys((aten.add, aten.add_, aten.sub, aten.sub_, aten.rsub), _scaled),
    **dict.fromkeys((aten.addcmul, aten.addcmul_, aten.addcdiv, aten.addcdiv_, aten.lerp, aten.lerp_), _fused),
    aten.mm: _cube(0, _split_mm),
    aten.bmm: _cube(0, _split_bmm),
    aten.addmm: _cube(1, _split_addmm),
    aten.baddbmm: _cube(1, _split_baddbmm),
    aten.addbmm: _cube(1, None),
    aten.mv: _cube(0, _split_mv),
    aten.dot: _cube(0, _split_mv),
    aten.addmv: _cube(1, None),
    aten.addr: _cube(1, None),
    aten._addmm_activation: _cube(1, None),
    aten.addmm_: _cube(1, None),
    aten.baddbmm_: _cube(1, None),
    aten.addmv_: _cube(1, None),
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution,
    aten._slow_conv2d_forward: _convolution,
    aten.slow_conv3d_forward: _convolution,
    aten.sum: _sum(False),
    aten.mean: _sum(True),
    aten._softmax: _softmax(False),
    aten._log_softmax: _softmax(True),
    aten._softmax_backward_data: _softmax_backward,
    aten._log_softmax_backward_data: _softmax_backward,
    aten.native_layer_norm: _layer_norm,
    aten.gelu: _gelu,
    aten.gelu_: _gelu,
    aten.gelu_backward: _gelu_backward,
}


def rule_for(packet: Any) -> Rule | None:
    """The chip's rule for an operator, or None where it computes as the CPU does."""
    return _RULES.get(packet)


# ------------------------------------------------------------------------------------------------ range and overflow

_MAX = {d: torch.finfo(d).max for d in (torch.float16, torch.bfloat16, torch.float32)}
_TINY = {d: torch.finfo(d).tiny for d in (torch.float16, torch.bfloat16, torch.float32)}
# Operators that move or make values rather than compute them: no overflow, no flush, any dtype.
_MOVES = frozenset(
    getattr(aten, name)
    for name in [
        "abs",
        "neg",
        "abs_",
        "neg_",
        "sgn",
        "sign",
        "_local_scalar_dense",
        "fill_",
        "zero_",
        "random_",
        "full",
        "masked_fill_",
        "masked_fill",
        "copy_",
        "clone",
        "index",
        "select_scatter",
        "slice_scatter",
        "scalar_tensor",
        "eq",
        "ne",
        "isnan",
        "isinf",
        "isfinite",
        "lt",
        "gt",
        "le",
        "ge",
        "equal",
        "cat",
        "flip",
        "roll",
        "gather",
        "index_select",
        "scatter",
        "masked_select",
        "masked_scatter",
        "where",
        "constant_pad_nd",
        "repeat_interleave",
        "tril",
        "triu",
        "nan_to_num",
        "nan_to_num_",
        "uniform_",
        "normal_",
        "arange",
    ]
    if hasattr(aten, name)
)


def chip_limits(kernel: Any, inputs: list[Tensor], result: Any) -> None:
    """Apply what this SoC can't represent, in place: refuse bfloat16, saturate overflow, flush subnormals.

    Raises:
        RuntimeError: bfloat16 on a SoC without it, naming the operator and the type.
    """
    if kernel.packet in _MOVES:
        return
    soc = machine.soc
    if not soc.bf16 and any(i.dtype is torch.bfloat16 for i in inputs):
        raise _unsupported(kernel.name, torch.bfloat16)
    for r in result if isinstance(result, (tuple, list)) else (result,):
        if not isinstance(r, Tensor) or r.dtype not in _MAX or not r.numel():
            continue
        if machine.modes.saturation and not torch.isfinite(r.sum(dtype=torch.float64)) and not torch.isfinite(r).all():
            if all(bool(torch.isfinite(i).all()) for i in inputs if i.is_floating_point()):
                machine.overflow = True
            torch.nan_to_num_(r, nan=0.0, posinf=_MAX[r.dtype], neginf=-_MAX[r.dtype])
        if soc.flush_subnormals:
            subnormal = r.abs() < _TINY[r.dtype]
            if subnormal.any():
                r.mul_(subnormal.logical_not_())
