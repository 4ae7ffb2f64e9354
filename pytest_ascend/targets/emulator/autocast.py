"""Autocast on `npu`: which operators run in the lower precision, which in float32, which in the widest type given.

The lists are those of torch's own autocast for accelerators (ATen/autocast_mode.h), which torch_npu follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["register"]

_LOWER = [
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "scaled_dot_product_attention",
]
_FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "cross_entropy_loss",
]
_FLOAT32_UNLESS_TOLD = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
    "sum.dim_IntList",
]
_WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
Library: Any = torch.library.Library
_libraries: list[Any] = []


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        eligible = value.is_floating_point() and value.dtype is not torch.float64 and not value.is_cpu
        return value.to(dtype) if eligible and value.dtype is not dtype else value
    if isinstance(value, (list, tuple)):
        return [_cast(v, dtype) for v in value]
    return value


def _widest(values: Any) -> torch.dtype:
    for value in values:
        if isinstance(value, Tensor) and value.dtype is torch.float32 and not value.is_cpu:
            return torch.float32
        if isinstance(value, (list, tuple)) and _widest(value) is torch.float32:
            return torch.float32
    return torch.get_autocast_dtype("npu")


def _wrapper(op: torch._ops.OpOverload, choose: Callable[[Any, Any], torch.dtype | None]) -> Callable[..., Any]:
    excluded = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = choose(args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            if dtype is None:
                return op(*args, **kwargs)
            return op(*[_cast(a, dtype) for a in args], **{name: _cast(a, dtype) for name, a in kwargs.items()})

    return run


def register() -> None:
    """Register the casts with torch's dispatcher; called once. Operators that this torch lacks are passed over."""
    catch_all: Any = Library("_", "IMPL")
    catch_all.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library: Any = Library("aten", "IMPL")
    policies: list[tuple[list[str], Callable[[Any, Any], torch.dtype | None]]] = [
        (_LOWER, lambda args, kwargs: torch.get_autocast_dtype("npu")),
        (_FLOAT32, lambda args, kwargs: torch.float32),
        (_FLOAT32_UNLESS_TOLD, lambda args, kwargs: None if kwargs.get("dtype") is not None else torch.float32),
        (_WIDEST, lambda args, kwargs: _widest(args)),
    ]
    for names, choose in policies:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:
                library.impl(name, _wrapper(op, choose), "AutocastPrivateUse1")
    _libraries.extend((catch_all, library))
