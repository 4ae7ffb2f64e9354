"""The kinds of faults, part three: kernels that compute something else, in place of the device's own."""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from faults import Planted, fault, in_result
from pytest_ascend.targets.emulator import override
from samples import Function, Sample, on_device

__all__: list[str] = []


def _replacing(**kernels: Function) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A context in which kernels of the device are replaced: ``aten::NAME`` by the callable."""

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not every case calls every kernel
            for name, kernel in kernels.items():
                stack.enter_context(override(f"aten::{name}", kernel))
            yield

    return around


def _first(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor], *, backward: Any = False) -> Sample | None:
    """The sample with its first floating argument changed."""
    floating = sample.floating()
    if not floating:
        return None
    place, x = floating[0]
    new = {i: v.detach() for i, v in sample.tensors()} if backward is False else {}
    return sample.with_tensors(new | {place: change(x.detach())}, backward)


# --- normalisation and variance --------------------------------------------------------------------------------------

_NORMS = ("layer_norm", "group_norm", "batch_norm", "instance_norm", "native_layer_norm", "native_batch_norm")
_NORMALISES = {*_NORMS, "rms_norm", "_native_batch_norm_legit", "native_group_norm"}


@fault("eps missing", rare=True)
def _eps_missing(sample: Sample, chance: random.Random) -> Planted | None:
    """A normalisation leaves out eps; the inputs are small enough for it to count."""
    if sample.op not in _NORMALISES:
        return None

    def small(x: torch.Tensor) -> torch.Tensor:
        return x * (2e-3 / max(1e-6, float(x.double().std()))) if x.numel() > 1 else x

    given, fn = _first(sample, small), sample.fn
    if given is None:
        return None
    if sample.op == "rms_norm":  # torch takes it apart before it reaches a device

        def no_eps(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
            return fn(x, shape, weight, 0.0)

        return Planted(on_device(fn, no_eps), given)

    def without(kernel: Function, place: int) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            if len(given) > place:
                given[place] = 0.0
            elif "eps" in kwargs:
                kwargs["eps"] = 0.0
            return kernel(*given, **kwargs)

        return call

    aten = torch.ops.aten
    around = _replacing(
        native_layer_norm=without(aten.native_layer_norm, 4),
        native_group_norm=without(aten.native_group_norm, 7),
        native_batch_norm=without(aten.native_batch_norm, 7),
        _native_batch_norm_legit=without(aten._native_batch_norm_legit, 7),
    )
    return Planted(fn, given, around)


def _poor_moments(x: torch.Tensor, dims: Any, keep: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean, and variance as E[x²] − E[x]², squares rounded to the input's dtype."""
    squares = (x * x).float().mean(dims, keepdim=keep)
    mean = x.float().mean(dims, keepdim=keep)
    return mean, (squares - mean * mean).clamp_min(0)


def _poor_variance(root: bool, both: bool) -> Function:
    def kernel(x: torch.Tensor, dim: Any = None, **kwargs: Any) -> Any:
        dims = list(range(x.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
        n = math.prod(x.shape[d] for d in dims)
        mean, variance = _poor_moments(x, dims, bool(kwargs.get("keepdim", False)))
        correction = kwargs.get("correction")
        variance = variance * (n / max(1e-9, n - (1 if correction is None else correction)))
        result = (variance.sqrt() if root else variance).to(x.dtype)
        return (result, mean.to(x.dtype)) if both else result

    return kernel


def _poor_layer_norm(x: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean, variance = _poor_moments(x, dims, True)
    rstd = (variance + eps).rsqrt()
    y = (x.float() - mean) * rstd
    y = y * weight.float() if weight is not None else y
    return (y + bias.float() if bias is not None else y).to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


@fault("E[x^2] - E[x]^2", rare=True)
def _cancelling_variance(sample: Sample, chance: random.Random) -> Planted | None:
    """A variance is taken as E[x²] − E[x]²; the mean is far from zero."""
    if sample.op not in ("var", "std", "var_mean", "std_mean", "layer_norm", "native_layer_norm"):
        return None
    if "complex" in sample.name or any(v.is_complex() for _, v in sample.tensors()):
        return None
    far = {torch.float32: 256.0, torch.float16: 16.0, torch.bfloat16: 8.0}[sample.dtype]
    given = _first(sample, lambda x: x / max(1e-6, float(x.double().abs().max())) + far)
    around = _replacing(
        var=_poor_variance(False, False),
        std=_poor_variance(True, False),
        var_mean=_poor_variance(False, True),
        std_mean=_poor_variance(True, True),
        native_layer_norm=_poor_layer_norm,
    )
    return Planted(sample.fn, given, around) if given is not None else None


# --- NaN, ties, order ------------------------------------------------------------------------------------------------

_LARGEST = {
    *("max", "amax", "maximum", "cummax", "relu", "relu6", "clamp", "clamp_min", "hardtanh", "aminmax", "topk"),
    *("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "argmax"),
}
_SMALLEST = {"min", "amin", "minimum", "cummin", "argmin", "clamp_max"}
_IGNORING = {"fmax": torch.maximum, "fmin": torch.minimum, "nanmean": torch.mean, "nansum": torch.sum}


@fault("NaN rule", rare=True)
def _nan_rule(sample: Sample, chance: random.Random) -> Planted | None:
    """A maximum or minimum ignores a NaN among its inputs; fmax, fmin and nansum don't."""
    if sample.op not in (_LARGEST | _SMALLEST | _IGNORING.keys()):
        return None
    number = chance.random()

    def spoil(x: torch.Tensor) -> torch.Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        x.view(-1)[int(number * x.numel())] = float("nan")
        return x

    given, fn = _first(sample, spoil), sample.fn
    if given is None:
        return None
    other = _IGNORING.get(sample.op)
    if other is not None:
        return Planted(on_device(fn, other), given)
    worst = math.inf if sample.op in _SMALLEST else -math.inf

    def ignore(v: Any) -> Any:
        if not isinstance(v, torch.Tensor) or not v.is_floating_point():
            return v
        return torch.where(v.isnan(), torch.full_like(v, worst), v)

    kernels = {"maximum": torch.fmax, "minimum": torch.fmin}
    if sample.op in kernels:
        return Planted(fn, given, _replacing(**{sample.op: kernels[sample.op]}))

    def wrong(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(ignore, (args, kwargs))
        return fn(*args, **kwargs)

    return Planted(on_device(fn, wrong), given)


@fault("tie broken wrongly", rare=True)
def _tie(sample: Sample, chance: random.Random) -> Planted | None:
    """Of equal elements the last is taken where the first is defined: argmax, argmin, max and min over a dimension,
    and the stable sorts."""
    stable = sample.op in ("sort", "argsort") and (sample.kwargs.get("stable") or sample.name.endswith("stable"))
    if sample.op not in ("argmax", "argmin", "max", "min") and not stable:
        return None
    given, fn = _first(sample, lambda x: (x * 3).round() % 3), sample.fn
    if given is None:
        return None

    def wrong(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dim = kwargs.get("dim", args[0] if args else (-1 if stable else None))
        if isinstance(dim, torch.Tensor):
            return fn(x, *args, **kwargs)  # max(a, b)
        if dim is None or not x.dim():
            flipped, last = x.reshape(-1).flip(0).reshape(x.shape), x.numel() - 1
        else:
            flipped, last = x.flip(dim), x.shape[dim] - 1

        def back(v: Any) -> Any:
            return last - v if isinstance(v, torch.Tensor) and v.dtype == torch.int64 else v

        return tree_map(back, fn(flipped, *args, **kwargs))

    return Planted(on_device(fn, wrong), given)


# --- casts -----------------------------------------------------------------------------------------------------------


@fault("rounding rule", rare=True)
def _rounding_rule(sample: Sample, chance: random.Random) -> Planted | None:
    """Casts to integers round, casts to 16 bits cut off, ``round`` takes halves away from zero, a division that should
    be floored is truncated."""
    fn, op = sample.fn, sample.op
    narrow = {"half": torch.float16, "bfloat16": torch.bfloat16}
    if op in ("int", "long", "short"):
        given = _first(sample, lambda x: x % 7 + 0.75)
        return Planted(on_device(fn, lambda x, *a, **k: fn(x.round(), *a, **k)), given) if given else None
    if op in narrow and sample.dtype == torch.float32:
        bits = 13 if op == "half" else 16

        def cut(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            plain = x.detach().cpu().contiguous()
            return fn((plain.view(torch.int32) >> bits << bits).view(torch.float32).to(x.device), *args, **kwargs)

        return Planted(on_device(fn, cut), sample.forward())
    if sample.name == "round":
        given = _first(sample, lambda x: x.round() % 8 + 0.5)
        away = on_device(fn, lambda x: torch.where(x < 0, torch.ceil(x - 0.5), torch.floor(x + 0.5)))
        return Planted(away, given) if given else None
    if op in ("floor_divide", "remainder") or sample.name == "div.floor_rounding":
        other = {
            "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
            "div": lambda a, b, **_: torch.div(a, b, rounding_mode="trunc"),
            "remainder": torch.fmod,
        }[op]
        return Planted(on_device(fn, other), sample.forward())
    return None


# --- accumulation ----------------------------------------------------------------------------------------------------

_ACCUMULATES = {
    *("index_add", "scatter_add", "index_put", "put", "embedding", "index_select", "gather", "take", "scatter_reduce"),
    *("take_along_dim", "__getitem__", "embedding_bag"),
}


@fault("accumulation lost", rare=True, gradients=True)
def _accumulation_lost(sample: Sample, chance: random.Random) -> Planted | None:
    """Of several values for one index the last one counts, in place of their sum; gradients of lookups too."""
    if sample.op not in _ACCUMULATES:
        return None
    indices = [
        (i, v)
        for i, v in sample.tensors()
        if v.dtype in (torch.int64, torch.int32) and v.numel() > 1 and sample.op != "embedding_bag"
    ]
    new: dict[int, torch.Tensor] = {}
    for i, v in indices:  # the second index is the first once more
        twice = v.detach().clone(memory_format=torch.contiguous_format)
        dim = next((d for d in range(twice.dim()) if twice.shape[d] > 1), 0)
        twice.narrow(dim, 1, 1).copy_(twice.narrow(dim, 0, 1))
        new[i] = twice
    given = sample.with_tensors(new, sample.backward)

    def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
        if not x.dim():
            return torch.ops.aten.index_add(x, dim, index, source, alpha=alpha)
        return x.index_copy(dim, index.long(), x.index_select(dim, index) + source * alpha)

    def scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
        if not x.dim() or not index.numel():
            return torch.ops.aten.scatter_add(x, dim, index, source)
        source = source[tuple(slice(0, size) for size in index.shape)] if index.dim() else source
        return x.scatter(dim, index, x.gather(dim, index) + source)

    def index_put(x: Any, at: Any, values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
        if accumulate:
            values = torch.ops.aten.index(x, at) + values
        return torch.ops.aten.index_put(x, at, values, False)

    def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
        return torch.ops.aten.put(x, index, torch.take(x, index) + source if accumulate else source, False)

    def embedding(grad: Any, index: Any, rows: int, padding: int, scaled: bool) -> Any:
        flat, at = grad.reshape(-1, grad.shape[-1]), index.reshape(-1)
        result = grad.new_zeros(rows, grad.shape[-1])
        result[at] = flat
        if 0 <= padding < rows:
            result[padding] = 0
        return result

    kernels: dict[str, Function] = {
        "index_add": index_add,
        "scatter_add": scatter_add,
        "_index_put_impl_": index_put,
        "index_put": index_put,
        "put": put,
        "embedding_dense_backward": embedding,
    }
    return Planted(sample.fn, given, _replacing(**kernels))


# --- chance ----------------------------------------------------------------------------------------------------------


@fault("dropout rate inverted")
def _rate_inverted(sample: Sample, chance: random.Random) -> Planted | None:
    """Dropout keeps what it should drop: p in place of 1 − p, scaled to match."""
    if not sample.random:
        return None
    fn = sample.fn

    def wrong(x: torch.Tensor, *args: Any, p: float, **kwargs: Any) -> Any:
        return fn(x, *args, p=1 - p, **kwargs)

    return Planted(on_device(fn, wrong))


@fault("dropout unscaled")
def _unscaled(sample: Sample, chance: random.Random) -> Planted | None:
    """What dropout keeps isn't scaled by 1 / (1 − p)."""
    if not sample.random:
        return None
    p = sample.kwargs["p"]
    return Planted(in_result(sample.fn, lambda y: (y.double() * (1 - p)).to(y.dtype)))


@fault("dropout left out")
def _no_dropout(sample: Sample, chance: random.Random) -> Planted | None:
    """Nothing is dropped."""
    return Planted(on_device(sample.fn, lambda x, **_: x.clone())) if sample.random else None
