"""Quantisation: to int8 with given or computed scales, products of int8 matrices, and the search for scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .registry import dtype_of, narrow, op, wide

__all__: list[str] = []

_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int32: (-(2**31), 2**31 - 1), torch.quint4x2: (-8, 7)}
_PLAIN = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def _pack(values: Tensor) -> Tensor:
    """Integers of four bits, eight of the last dimension to an int32, the lowest bits first."""
    if values.shape[-1] % 8:
        raise RuntimeError(f"int4 values are packed by eight, which doesn't divide {values.shape[-1]}")
    nibbles = (values.to(torch.int64) & 15).reshape(*values.shape[:-1], -1, 8)
    words = (nibbles << torch.arange(0, 32, 4, device=values.device)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _unpack(words: Tensor) -> Tensor:
    """The reverse of `_pack`, as int8."""
    nibbles = (words.unsqueeze(-1) >> torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)) & 15
    return torch.where(nibbles > 7, nibbles - 16, nibbles).to(torch.int8).flatten(-2)


def _as_float(scale: Tensor) -> Tensor:
    """A scale in float32, also where `npu_trans_quant_param` has packed it into an int64."""
    if scale.dtype is not torch.int64:
        return scale.float()
    return scale.view(torch.int32)[..., ::2].contiguous().view(torch.float32)


@op("npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor")
def npu_trans_quant_param(scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0) -> Tensor:
    """A float32 scale (and a 9-bit offset) in the int64 form that fused products of int8 matrices take.

    Bits 13 to 31 are the upper 19 bits of the scale, bit 46 is set, bits 37 to 45 are the offset, rounded and clamped
    to `[−256, 255]`. `round_mode` 1 rounds the scale to those 19 bits, 0 cuts it off.
    """
    bits = scale.float().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if round_mode == 1:
        bits = bits + 0xFFF + (bits >> 13 & 1)
    packed = (bits & 0xFFFFE000) | 1 << 46
    if offset is not None:
        packed = packed | (offset.float().round().clamp(-256, 255).to(torch.int64) & 0x1FF) << 37
    return packed


@op(
    "npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1, bool div_mode=True) -> Tensor"
)
def npu_quantize(
    x: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: int, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """`round(x / scales + zero_points)` (`div_mode=False`: times the scales), clamped to the integer type.

    Args:
        x: floating.
        scales, zero_points: one element, or one for each place of `axis`.
        dtype: qint8, quint8 or qint32, or their plain types; the result has the plain type. quint4x2 packs eight values
            of four bits into an int32.
        axis: which dimension the scales belong to.
        div_mode: see above.
    """
    target = _PLAIN.get(dtype_of(dtype), dtype_of(dtype))
    if target not in _RANGES:
        raise RuntimeError(f"npu_quantize: {dtype_of(dtype)} is not supported, choose qint8, quint8, int32 or quint4x2")

    def fit(t: Tensor) -> Tensor:
        if t.numel() == 1 or t.dim() == x.dim():
            return t.float()
        shape = [1] * x.dim()
        shape[axis] = t.numel()
        return t.float().view(shape)

    scaled = x.float() / fit(scales) if div_mode else x.float() * fit(scales)
    if zero_points is not None:
        scaled = scaled + fit(zero_points)
    low, high = _RANGES[target]
    integers = scaled.round().double().clamp(low, high)
    return _pack(integers) if target is torch.quint4x2 else integers.to(target)


@op(
    "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, int? dst_type=None, "
    'str quant_mode="pertoken", float dst_type_max=0.0) -> (Tensor, Tensor)'
)
def npu_dynamic_quant(
    x: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Symmetric quantisation with a scale of its own for each row: `scale = max|x| / 127`, `y = round(x / scale)`.

    Args:
        x: `(…, hidden)`.
        smooth_scales: factors of the columns, `(hidden,)`; with `group_index` `(groups, hidden)`.
        group_index: rising row numbers at which the groups end.
        dst_type: int8 unless given; quint4x2 (a range of 7) packs eight values into an int32.
        quant_mode: 'pertoken' or 'pertensor'.
        dst_type_max: accepted, without effect.

    Returns:
        int8 of the shape of `x` (or packed), and the scales, float32 `(…)`.
    """
    target = torch.int8 if dst_type is None else dtype_of(dst_type)
    if target not in (torch.int8, torch.qint8, torch.quint4x2):
        raise RuntimeError(f"npu_dynamic_quant: dst_type {target} is not emulated, only int8 and quint4x2 are")
    limit = 7 if target is torch.quint4x2 else 127
    wx = x.detach().float()
    if smooth_scales is not None:
        factors = smooth_scales.float()
        if group_index is not None:
            rows = torch.arange(wx[..., 0].numel(), device=x.device)
            group = (rows.unsqueeze(1) >= group_index.long()).sum(1).clamp_max(factors.shape[0] - 1)
            factors = factors[group].view(wx.shape)
        wx = wx * factors
    peak = wx.abs().amax() if quant_mode == "pertensor" else wx.abs().amax(-1, keepdim=True)
    scale = peak / limit
    y = torch.where(scale > 0, wx / scale, 0.0).round().clamp(-limit - 1, limit)
    y = _pack(y) if target is torch.quint4x2 else y.to(torch.int8)
    return y, scale.reshape(1) if quant_mode == "pertensor" else scale.squeeze(-1)


@op(
    "npu_dequant_bias(Tensor x, Tensor weight_scale, Tensor? activation_scale, Tensor? bias, *, ScalarType? "
    "output_dtype=None) -> Tensor"
)
def npu_dequant_bias(
    x: Tensor,
    weight_scale: Tensor,
    activation_scale: Tensor | None,
    bias: Tensor | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """`x · weight_scale · activation_scale + bias` of an int32 product `(M, N)`.

    Args:
        x: int32 `(M, N)`.
        weight_scale: `(N,)`.
        activation_scale: `(M,)` or None.
        bias: `(N,)` or None; an int32 bias is added before scaling.
        output_dtype: float16 unless given.
    """
    values = x.double()
    if bias is not None and bias.dtype is torch.int32:
        values = values + bias.double()
    result = values.float() * weight_scale.float()
    if activation_scale is not None:
        result = result * activation_scale.float().unsqueeze(-1)
    if bias is not None and bias.dtype is not torch.int32:
        result = result + bias.float()
    return result.to(output_dtype or torch.float16)


@op(
    "npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, Tensor? pertoken_scale=None, "
    "Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None, int? x2_dtype=None, int? "
    "pertoken_scale_dtype=None, "
    "int? scale_dtype=None, int[]? group_sizes=None, Tensor? y_scale=None) -> Tensor"
)
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: list[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """Product of int8 or packed int4 matrices, accumulated exactly, then scaled.

    Args:
        x1: int8 `(…, M, K)`, or int32 with eight values of four bits each along K.
        x2: int8 `(…, K, N)`, or int32 packed along N (a transposed view: along K).
        scale: float32, bfloat16 or int64 (from `npu_trans_quant_param`), `(1,)` or `(N,)`.
        offset: added to an int8 result.
        pertoken_scale: float32 `(M,)`.
        bias: `(N,)`; an int32 bias is added before scaling.
        output_dtype: int8 unless given; float16, bfloat16 and int32 as well.
        x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype, group_sizes, y_scale: other formats, not emulated.
    """
    if any(o is not None for o in (x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype, group_sizes, y_scale)):
        raise RuntimeError("npu_quant_matmul: scales by groups and floating formats of few bits are not emulated")
    if x1.dtype is torch.int32:
        x1 = _unpack(x1)
    if x2.dtype is torch.int32:  # a transposed matrix was packed before it was transposed
        x2 = _unpack(x2) if x2.stride(-1) == 1 else _unpack(x2.transpose(-2, -1)).transpose(-2, -1)
    target = torch.int8 if output_dtype is None else dtype_of(output_dtype)
    product = torch.matmul(x1.to(torch.int32), x2.to(torch.int32))
    if bias is not None and bias.dtype is torch.int32:
        product = product + bias
    if target is torch.int32:
        return product
    result = product.double().float() * _as_float(scale)
    if pertoken_scale is not None:
        result = result * pertoken_scale.unsqueeze(-1)
    if bias is not None and bias.dtype is not torch.int32:
        result = result + bias.float()
    if target is torch.int8:
        if offset is not None:
            result = result + offset.float()
        return result.round().clamp(-128, 127).to(torch.int8)
    return result.to(target)


@op("npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)")
def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest softmax weights of each row, the experts they belong to, and the rows' places in expert order.

    Args:
        x: `(…, experts)` of two or three dimensions.
        finished: bool `(…)`; rows that take no part get expert number `experts`.
        k: how many experts.

    Returns:
        Weights in the type of `x` and int32 experts, `(…, k)` each, and int32 `j · rows + i` for choice j of row i.
    """
    (wx,) = wide(x)
    weights, experts = torch.softmax(wx, -1).topk(k, -1)
    experts = experts.to(torch.int32)
    if finished is not None:
        experts = torch.where(finished.unsqueeze(-1), x.shape[-1], experts).to(torch.int32)
    rows = experts[..., 0].numel()
    places = torch.arange(rows * k, device=x.device, dtype=torch.int32).view(k, rows).t().reshape(experts.shape)
    return narrow(weights, x), experts, places.contiguous()


@op(
    "npu_ifmr(Tensor data, Tensor data_min, Tensor data_max, Tensor cumsum, float min_percentile, float "
    "max_percentile, "
    "float search_start, float search_end, float search_step, bool with_offset) -> (Tensor, Tensor)"
)
def npu_ifmr(
    data: Tensor,
    data_min: Tensor,
    data_max: Tensor,
    cumsum: Tensor,
    min_percentile: float,
    max_percentile: float,
    search_start: float,
    search_end: float,
    search_step: float,
    with_offset: bool,
) -> tuple[Tensor, Tensor]:
    """Search the int8 scale and offset with the least squared error of quantisation.

    Args:
        data: what is to be quantised.
        data_min, data_max: its range, one element each.
        cumsum: int32 cumulative histogram of `data` over that range.
        min_percentile, max_percentile: how much of the distribution the first guess of the range covers.
        search_start, search_end, search_step: multiples of the guess that are tried.
        with_offset: an asymmetric range, else one symmetric to zero.

    Returns:
        Scale and offset, float32 `(1,)` each.
    """
    values = data.detach().float()
    low, high = data_min.float().reshape(()), data_max.float().reshape(())
    bins = cumsum.numel()
    share = cumsum.float() / values.numel()
    width = (high - low) / bins
    upper = (share < max_percentile).sum() * width + low
    lower = (share < 1 - min_percentile).sum() * width + low
    count = math.ceil((search_end - search_start) / search_step)
    factors = search_start + torch.arange(count, device=data.device, dtype=torch.float32) * search_step
    if with_offset:
        upper, lower = upper.clamp_min(0), lower.clamp_max(0)
        scales = (upper * factors - lower) / 255
        scales = torch.where(scales < torch.finfo(torch.float32).eps, 1.0, scales)
        offsets = -(torch.round(lower / scales) + 128)
    else:
        scales = torch.maximum(upper.abs(), lower.abs()) * factors / 127
        offsets = torch.zeros_like(scales)
    flat = values.reshape(1, -1)
    s, o = scales.unsqueeze(1), offsets.unsqueeze(1)
    again = ((torch.round(flat / s) + o).clamp(-128, 127) - o) * s
    best = ((again - flat) ** 2).sum(1).argmin().reshape(1)
    return scales[best], offsets[best]
