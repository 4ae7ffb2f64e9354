"""Attention: the fused kernels for inference and training, and their relatives. Softmax is float32."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .dropout import _apply, _draw
from .registry import narrow, op, wide

__all__: list[str] = []

_FAR = 2147483647
_LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")


def _split(x: Tensor, layout: str, heads: int) -> Tensor:
    """Any layout as `(batch, heads, sequence, head size)`."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(1, 2)
    if layout == "BSH":
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)
    if layout == "SBH":
        return x.view(x.shape[0], x.shape[1], heads, -1).permute(1, 2, 0, 3)
    raise RuntimeError(f"input_layout {layout!r} is not one of {', '.join(_LAYOUTS)}")


def _join(x: Tensor, layout: str) -> Tensor:
    """The way back."""
    if layout == "BNSD":
        return x.contiguous()
    if layout == "BSND":
        return x.transpose(1, 2).contiguous()
    if layout == "BSH":
        return x.transpose(1, 2).flatten(2)
    return x.permute(2, 0, 1, 3).flatten(2)


def _hidden(
    mask: Tensor | None, sparse_mode: int, before: int, after: int, queries: int, keys: int, device: torch.device
) -> Tensor | None:
    """Which scores are masked away, or None if none are.

    `sparse_mode`: 0 the given mask and the band of `before` and `after` tokens around the diagonal; 1 the given mask
    alone; 2 causal from the top left; 3 causal from the bottom right; 4 a band from the bottom right.
    """
    if sparse_mode == 1:
        return None if mask is None else mask.bool()
    if sparse_mode not in (0, 2, 3, 4):
        raise RuntimeError(f"sparse_mode {sparse_mode} is not supported")
    distance = torch.arange(keys, device=device) - torch.arange(queries, device=device).unsqueeze(1)
    if sparse_mode == 2:
        return distance > 0
    shifted = distance - (keys - queries)
    if sparse_mode == 3:
        return shifted > 0
    if sparse_mode == 4:
        return (shifted > after) | (shifted < -before)
    hidden = None if mask is None else mask.bool()
    # Without a mask the band isn't applied: the kernel then attends to everything.
    if hidden is not None and (before < queries or after < keys):
        hidden = hidden | (distance > after) | (distance < -before)
    return hidden


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products in float32; the cube unit hands them over in the type of its inputs."""
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return torch.matmul(query, key.transpose(-2, -1)).float().mul(scale)


def _values(weights: Tensor, value: Tensor) -> Tensor:
    if value.shape[1] != weights.shape[1]:
        value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
    return torch.matmul(weights.to(value.dtype), value)


def _lengths(scores: Tensor, queries: list[int] | None, keys: list[int] | None) -> Tensor:
    """Scores where what lies beyond each sequence's own length is masked away."""
    for lengths, dim in ((queries, -2), (keys, -1)):
        if lengths is None:
            continue
        size = scores.shape[dim]
        given = torch.tensor(lengths, device=scores.device)
        beyond = torch.arange(size, device=scores.device) >= given.unsqueeze(-1)  # (batch, size)
        beyond = beyond.view(len(lengths), 1, size, 1) if dim == -2 else beyond.view(len(lengths), 1, 1, size)
        scores = scores.masked_fill(beyond, -math.inf)
    return scores


def _inference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    kv_heads: int,
    layout: str,
    scale: float,
    hidden: Tensor | None,
    shift: Tensor | None,
    query_lengths: list[int] | None,
    key_lengths: list[int] | None,
) -> Tensor:
    q, k, v = (
        _split(query, layout, heads),
        _split(key, layout, kv_heads or heads),
        _split(value, layout, kv_heads or heads),
    )
    scores = _scores(q, k, scale)
    if shift is not None:
        scores = scores + shift.float()
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    scores = _lengths(scores, query_lengths, key_lengths)
    weights = torch.nan_to_num(F.softmax(scores, -1))  # a row with nothing to attend to gives zeros
    return _join(_values(weights, v), layout)


def _no_quantisation(name: str, *scales: Tensor | None) -> None:
    if any(s is not None for s in scales):
        raise RuntimeError(f"{name}: quantised attention is not emulated")


@op(
    "npu_prompt_flash_attention(Tensor query, Tensor key, Tensor value, *, Tensor? padding_mask=None, Tensor? "
    "atten_mask=None, "
    "Tensor? pse_shift=None, int[]? actual_seq_lengths=None, Tensor? deq_scale1=None, Tensor? quant_scale1=None, "
    "Tensor? deq_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, int num_heads=1, float "
    "scale_value=1.0, "
    "int pre_tokens=2147483647, int next_tokens=0, str input_layout='BSH', int num_key_value_heads=0, "
    "int[]? actual_seq_lengths_kv=None, int sparse_mode=0) -> Tensor"
)
def npu_prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    pse_shift: Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    deq_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = _FAR,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    actual_seq_lengths_kv: list[int] | None = None,
    sparse_mode: int = 0,
) -> Tensor:
    """`softmax(scale · q kᵀ + shift, masked) v` over a whole prompt, in the layout of the query.

    Args:
        query, key, value: 16-bit, in `input_layout`.
        padding_mask: accepted, without effect.
        atten_mask: true where a score is masked away; broadcast to `(batch, heads, queries, keys)`.
        pse_shift: added to the scaled scores.
        actual_seq_lengths, actual_seq_lengths_kv: valid tokens of each sequence.
        deq_scale1, quant_scale1, deq_scale2, quant_scale2, quant_offset2: quantised attention, which isn't emulated.
        num_heads, num_key_value_heads: heads of query and of key and value (0: the same number).
        scale_value: factor of the scores.
        pre_tokens, next_tokens: band around the diagonal in sparse modes 0 (with a mask) and 4.
        input_layout: BSH, SBH, BSND or BNSD.
        sparse_mode: 0 mask and band, 1 mask alone, 2 and 3 causal from the top left and the bottom right, 4 band.
    """
    _no_quantisation("npu_prompt_flash_attention", deq_scale1, quant_scale1, deq_scale2, quant_scale2, quant_offset2)
    queries = _split(query, input_layout, num_heads).shape[2]
    keys = _split(key, input_layout, num_key_value_heads or num_heads).shape[2]
    hidden = _hidden(atten_mask, sparse_mode, pre_tokens, next_tokens, queries, keys, query.device)
    return _inference(
        query,
        key,
        value,
        num_heads,
        num_key_value_heads,
        input_layout,
        scale_value,
        hidden,
        pse_shift,
        actual_seq_lengths,
        actual_seq_lengths_kv,
    )


@op(
    "npu_incre_flash_attention(Tensor query, Tensor key, Tensor value, *, Tensor? padding_mask=None, Tensor? "
    "atten_mask=None, "
    "Tensor? pse_shift=None, SymInt[]? actual_seq_lengths=None, Tensor? antiquant_scale=None, Tensor? "
    "antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, "
    "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? kv_padding_size=None, int num_heads=1, "
    "float scale_value=1.0, str input_layout='BSH', int num_key_value_heads=0, int block_size=0, int "
    "inner_precise=1) -> Tensor"
)
def npu_incre_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    pse_shift: Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    kv_padding_size: Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
) -> Tensor:
    """Attention of one new token to all keys so far; arguments as for `npu_prompt_flash_attention`.

    `actual_seq_lengths` counts the valid keys of each sequence. Paged and quantised caches aren't emulated.
    """
    scales = (
        antiquant_scale,
        antiquant_offset,
        dequant_scale1,
        quant_scale1,
        dequant_scale2,
        quant_scale2,
        quant_offset2,
    )
    _no_quantisation("npu_incre_flash_attention", *scales)
    if block_table is not None:
        raise RuntimeError("npu_incre_flash_attention: a paged cache (block_table) is not emulated")
    lengths = list(actual_seq_lengths) if actual_seq_lengths is not None else None
    batch = query.shape[0]
    if lengths is not None and len(lengths) == 1:
        lengths *= batch
    hidden = None if atten_mask is None else atten_mask.bool()
    if hidden is not None and hidden.dim() == 2:
        hidden = hidden.view(hidden.shape[0], 1, 1, hidden.shape[1])
    return _inference(
        query, key, value, num_heads, num_key_value_heads, input_layout, scale_value, hidden, pse_shift, None, lengths
    )


@op(
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., int "
    "pre_tockens=2147483647, "
    "int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, int[]? actual_seq_qlen=None, "
    "int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, str "
    "softmax_layout='', "
    "Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)
def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _FAR,
    next_tockens: int = _FAR,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention for training: `dropout(softmax(scale · (q kᵀ + pse), masked)) v`.

    Args:
        query, key, value: in `input_layout`; with TND all sequences stand one after the other, `(tokens, heads, size)`.
        head_num: heads of the query; key and value may have fewer.
        input_layout: BSH, SBH, BSND, BNSD or TND.
        pse: added to the scores before scaling.
        padding_mask, inner_precise, gen_mask_parallel, sync, softmax_layout: accepted, without effect.
        atten_mask, sparse_mode, pre_tockens, next_tockens: as for `npu_prompt_flash_attention`.
        scale: factor of the scores.
        keep_prob: 1 − dropout probability.
        prefix, sink, dropout_mask: not emulated.
        seed, offset: accepted, without effect: the mask comes from the device's own stream.
        actual_seq_qlen, actual_seq_kvlen: cumulative lengths of the sequences of a TND call.

    Returns:
        The result in the layout of the query; row maxima and sums of the softmax, float32 `(batch, heads, queries,
        8)` (TND: `(tokens, heads, 8)`); an empty tensor; seed, offset and length of the dropout mask.
    """
    if prefix is not None or sink is not None or dropout_mask is not None:
        raise RuntimeError("npu_fusion_attention: prefix, sink and dropout_mask are not emulated")
    if input_layout == "TND":
        if actual_seq_qlen is None or actual_seq_kvlen is None:
            raise RuntimeError("npu_fusion_attention: the TND layout needs actual_seq_qlen and actual_seq_kvlen")
        starts = zip([0, *actual_seq_qlen], actual_seq_qlen, [0, *actual_seq_kvlen], actual_seq_kvlen, strict=False)
        parts = [
            _train(
                query[q0:q1].transpose(0, 1).unsqueeze(0),
                key[k0:k1].transpose(0, 1).unsqueeze(0),
                value[k0:k1].transpose(0, 1).unsqueeze(0),
                None,
                atten_mask,
                scale,
                keep_prob,
                pre_tockens,
                next_tockens,
                sparse_mode,
            )
            for q0, q1, k0, k1 in starts
        ]
        out = torch.cat([p[0][0].transpose(0, 1) for p in parts])
        maxima, sums = (torch.cat([p[i][0].transpose(0, 1) for p in parts]) for i in (1, 2))
    else:
        q = _split(query, input_layout, head_num)
        kv_heads = key.shape[-1] // q.shape[-1] if input_layout in ("BSH", "SBH") else head_num
        k, v = _split(key, input_layout, kv_heads), _split(value, input_layout, kv_heads)
        out, maxima, sums = _train(q, k, v, pse, atten_mask, scale, keep_prob, pre_tockens, next_tockens, sparse_mode)
        out = _join(out, input_layout)
    return out, maxima, sums, torch.empty(0, dtype=query.dtype, device=query.device), 0, 0, 0


def _train(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pse: Tensor | None,
    mask: Tensor | None,
    scale: float,
    keep_prob: float,
    before: int,
    after: int,
    sparse_mode: int,
) -> tuple[Tensor, Tensor, Tensor]:
    wq, wk, wv = wide(q, k, v)
    scores = _scores(wq, wk, 1.0)
    if pse is not None:
        scores = scores + pse.float()
    scores = scores * scale
    hidden = _hidden(mask, sparse_mode, before, after, q.shape[2], k.shape[2], q.device)
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(torch.float32).min)
    maxima = scores.detach().amax(-1, keepdim=True)
    sums = (scores.detach() - maxima).exp().sum(-1, keepdim=True)
    weights = F.softmax(scores, -1)
    if keep_prob < 1:
        weights = _apply(weights, _draw(weights.numel(), 1 - keep_prob, q.device), 1 - keep_prob)
    out = narrow(_values(weights, wv), q)
    return out, maxima.expand(*maxima.shape[:-1], 8).contiguous(), sums.expand(*sums.shape[:-1], 8).contiguous()


@op("npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor")
def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    """Softmax over the last dimension of `scale · x`, −10000 where `mask` is true.

    Args:
        x: `(…, height, width)`.
        mask: bool, broadcast to `x`.
        scale: factor of `x`.
        fixed_triu_mask: mask what lies above the diagonal instead.
    """
    (wx,) = wide(x)
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return narrow(F.softmax((wx * scale).masked_fill(mask, -10000.0), -1), x)


@op(
    "npu_multi_head_attention(Tensor query, Tensor key, Tensor value, Tensor query_weight, Tensor key_weight, "
    "Tensor value_weight, Tensor attn_mask, Tensor out_proj_weight, Tensor? query_bias, Tensor? key_bias, Tensor? "
    "value_bias, "
    "Tensor? out_proj_bias, Tensor? dropout_mask, int attn_head_num, int attn_dim_per_head, int src_len, int tgt_len, "
    "float dropout_prob, bool softmax_use_float) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def npu_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    attn_mask: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    dropout_mask: Tensor | None,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A whole attention layer: projections, scaled scores plus mask, softmax, dropout and the output projection.

    Args:
        query, key, value: `(batch · length, embedding)`.
        query_weight, key_weight, value_weight, out_proj_weight: `(embedding, embedding)`.
        attn_mask: added to the scores, `(batch, heads, tgt_len, src_len)`.
        query_bias, key_bias, value_bias, out_proj_bias: `(embedding,)` or None.
        dropout_mask: packed mask; drawn if None.
        attn_head_num, attn_dim_per_head: heads and their size.
        src_len, tgt_len: lengths of key and query.
        dropout_prob: of the attention weights.
        softmax_use_float: compute the softmax in float32.

    Returns:
        The result, the dropout mask, the three projections by heads, the softmax, the weights after dropout, and the
        context.
    """
    batch = query.shape[0] // tgt_len

    def project(x: Tensor, w: Tensor, b: Tensor | None, length: int) -> Tensor:
        return F.linear(x, w, b).view(batch, length, attn_head_num, attn_dim_per_head).transpose(1, 2)

    q = project(query, query_weight, query_bias, tgt_len) * attn_dim_per_head**-0.5
    k = project(key, key_weight, key_bias, src_len)
    v = project(value, value_weight, value_bias, src_len)
    scores = torch.matmul(q, k.transpose(-2, -1)) + attn_mask
    soft = F.softmax(scores.float() if softmax_use_float else scores, -1)
    weights = soft.to(query.dtype)
    mask = _draw(weights.numel(), dropout_prob, query.device) if dropout_mask is None else dropout_mask
    dropped = _apply(weights, mask, dropout_prob)
    context = torch.matmul(dropped, v).transpose(1, 2).reshape(batch * tgt_len, -1)
    result = F.linear(context, out_proj_weight, out_proj_bias)
    kept = (t.detach() for t in (q, k, v, soft, dropped, context))
    return result, mask.clone(), *kept  # type: ignore[return-value]
