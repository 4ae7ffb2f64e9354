"""Attention and rotary position embeddings. The softmax is in float32 at least.

Letters of a layout: B batch, N heads, S tokens, D size of a head, H = N D, T tokens of all sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ascend.cases.npu_ops.rounding import rounded, single

_FAR = 2147483647


def _by_heads(x: Tensor, layout: str, heads: int) -> Tensor:
    """A tensor in any layout as BNSD."""
    if layout in ("BSH", "SBH"):
        x = torch.unflatten(x, -1, (heads, -1))
    order = {"BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}[layout]
    return x.permute(order)


def _in_layout(x: Tensor, layout: str) -> Tensor:
    """A BNSD tensor in another layout."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.permute(0, 2, 1, 3)
    return x.permute((0, 2, 1, 3) if layout == "BSH" else (2, 0, 1, 3)).flatten(2)


def _masked(mask: Tensor | None, mode: int, before: int, after: int, queries: int, keys: int) -> Tensor:
    """True where a query must not see a key: ``(S of the query, S of the key)``, or the mask's own shape.

    ``mode`` (``sparse_mode``): 0 the mask, and with it a band of ``before`` and ``after`` tokens around the diagonal; 1
    the mask alone; 2 and 3 what lies right of the diagonal, drawn from the first or from the last tokens; 4 a band,
    drawn from the last ones.
    """
    row = torch.arange(queries).reshape(-1, 1)
    column = torch.arange(keys).reshape(1, -1)
    if mode == 2:
        return column > row
    last = row + (keys - queries)
    if mode == 3:
        return column > last
    if mode == 4:
        return (column > last + after) | (column < last - before)
    if mask is None:
        return torch.zeros(queries, keys, dtype=torch.bool)
    if mode == 1 or (before >= queries and after >= keys):
        return mask != 0
    return (mask != 0) | (column > row + after) | (column < row - before)


def _products(q: Tensor, k: Tensor) -> Tensor:
    """``q k^T`` for each head; heads of the query share those of the key where there are fewer of them."""
    shared = torch.unflatten(q, 1, (k.shape[1], -1))
    return torch.einsum("bngsd,bntd->bngst", shared, k).flatten(1, 2)


def _weighted(weights: Tensor, v: Tensor) -> Tensor:
    shared = torch.unflatten(weights, 1, (v.shape[1], -1))
    return torch.einsum("bngst,bntd->bngsd", shared, v).flatten(1, 2)


def _training(
    q: Tensor, k: Tensor, v: Tensor, pse: Tensor | None, hidden: Tensor, scale: float, keep_prob: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of BNSD tensors, and the largest score and the sum of exponentials of each row, eight times."""
    scores = _products(single(q), single(k))
    if pse is not None:
        scores = scores + single(pse)
    scores = (scores * scale).masked_fill(hidden, torch.finfo(torch.float32).min)
    top = scores.detach().amax(-1, keepdim=True)
    raised = torch.exp(scores - top)
    total = raised.sum(-1, keepdim=True)
    weights = raised / total
    if keep_prob < 1:
        weights = torch.nn.functional.dropout(weights, 1 - keep_prob)
    result = rounded(_weighted(weights, single(v)), q)
    return result, top.repeat(1, 1, 1, 8), total.detach().repeat(1, 1, 1, 8)


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
    """``dropout(softmax(mask(scale (q k^T + pse))), keep_prob) v``, in ``input_layout``: BSH, SBH, BSND, BNSD or TND.

    ``atten_mask`` hides a score where it is 1. TND has the sequences one after another, ``(T, N, D)``, and their ends
    in ``actual_seq_qlen`` and ``actual_seq_kvlen``.

    Returns:
        The result in the dtype and layout of the query; the largest score and the sum of exponentials of each row,
        float32 ``(B, N, S, 8)`` or ``(T, N, 8)``, all eight alike; an empty tensor; three numbers of the dropout's
        generator, 0 here.

    Raises:
        NotImplementedError: ``prefix``, ``sink`` or ``dropout_mask`` is given.
    """
    if prefix is not None or sink is not None or dropout_mask is not None:
        raise NotImplementedError("npu_fusion_attention with prefix, sink or dropout_mask has no reference")
    nothing = query.new_empty(0)
    band = sparse_mode, pre_tockens, next_tockens
    if input_layout == "TND":
        results = []
        q0 = k0 = 0
        for q1, k1 in zip(actual_seq_qlen or (), actual_seq_kvlen or (), strict=True):
            q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
            hidden = _masked(atten_mask, *band, q1 - q0, k1 - k0)
            results.append(_training(q, k, v, None, hidden, scale, keep_prob))
            q0, k0 = q1, k1
        joined = [torch.cat([one[i].squeeze(0).transpose(0, 1) for one in results]) for i in range(3)]
        return joined[0], joined[1], joined[2], nothing, 0, 0, 0
    q = _by_heads(query, input_layout, head_num)
    fewer = key.shape[-1] // q.shape[-1] if input_layout in ("BSH", "SBH") else 0
    k, v = (_by_heads(x, input_layout, fewer) for x in (key, value))
    hidden = _masked(atten_mask, *band, q.shape[2], k.shape[2])
    result, top, total = _training(q, k, v, pse, hidden, scale, keep_prob)
    return _in_layout(result, input_layout).contiguous(), top, total, nothing, 0, 0, 0


def _inference(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, shift: Tensor | None, scale: float, lengths: list[list[int] | None]
) -> Tensor:
    """Attention of BNSD tensors; what lies beyond a sequence's own length isn't seen, and a row that sees nothing is 0.

    Both products hand over the dtype of their inputs, as the cube unit does: scores and weights are rounded to it.
    """
    scores = single(rounded(_products(single(q), single(k)), q)) * scale
    if shift is not None:
        scores = scores + single(shift)
    hidden = hidden | torch.zeros_like(scores, dtype=torch.bool)
    for batch in range(q.shape[0]):
        of_query, of_key = (None if one is None else one[batch] for one in lengths)
        if of_query is not None:
            hidden[batch, :, of_query:] = True
        if of_key is not None:
            hidden[batch, :, :, of_key:] = True
    blind = hidden.all(-1, keepdim=True)
    scores = torch.where(hidden, torch.finfo(torch.float32).min, scores)
    weights = torch.softmax(scores, -1).masked_fill(blind, 0.0)
    return rounded(_weighted(single(rounded(weights, v)), single(v)), q)


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
    """``softmax(mask(scale q k^T + pse_shift)) v`` of a whole prompt, in the layout and dtype of the query.

    ``num_key_value_heads``: 0 for as many as the query has. ``actual_seq_lengths``: valid tokens of each sequence.

    Raises:
        NotImplementedError: scales of quantised attention are given.
    """
    if any(x is not None for x in (deq_scale1, quant_scale1, deq_scale2, quant_scale2, quant_offset2)):
        raise NotImplementedError("quantised npu_prompt_flash_attention has no reference")
    q = _by_heads(query, input_layout, num_heads)
    k, v = (_by_heads(x, input_layout, num_key_value_heads or num_heads) for x in (key, value))
    hidden = _masked(atten_mask, sparse_mode, pre_tokens, next_tokens, q.shape[2], k.shape[2])
    lengths = [actual_seq_lengths, actual_seq_lengths_kv]
    return _in_layout(_inference(q, k, v, hidden, pse_shift, scale_value, lengths), input_layout).contiguous()


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
    """Attention of one new token to the keys so far; ``actual_seq_lengths`` counts the valid keys of each sequence.

    Raises:
        NotImplementedError: a paged or quantised cache.
    """
    given = (antiquant_scale, antiquant_offset, dequant_scale1, quant_scale1, dequant_scale2, quant_scale2)
    if block_table is not None or quant_offset2 is not None or any(x is not None for x in given):
        raise NotImplementedError("npu_incre_flash_attention with a paged or quantised cache has no reference")
    q = _by_heads(query, input_layout, num_heads)
    k, v = (_by_heads(x, input_layout, num_key_value_heads or num_heads) for x in (key, value))
    hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    if atten_mask is not None:
        hidden = atten_mask != 0
        hidden = hidden[:, None, None] if hidden.dim() == 2 else hidden
    lengths = None if actual_seq_lengths is None else list(actual_seq_lengths)
    if lengths is not None and len(lengths) == 1:
        lengths = lengths * q.shape[0]
    return _in_layout(_inference(q, k, v, hidden, pse_shift, scale_value, [None, lengths]), input_layout).contiguous()


def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    """Softmax over the last dimension of ``scale x``, with -10000 where ``mask`` is true.

    ``fixed_triu_mask``: hide what lies right of the diagonal instead.
    """
    scores = single(x) * scale
    if fixed_triu_mask:
        mask = torch.arange(x.shape[-1]) > torch.arange(x.shape[-2]).reshape(-1, 1)
    scores = torch.where(mask != 0, torch.full_like(scores, -10000.0), scores)
    raised = torch.exp(scores - scores.detach().amax(-1, keepdim=True))
    return rounded(raised / raised.sum(-1, keepdim=True), x)


def _quarter_turn(x: Tensor, mode: str) -> Tensor:
    """``(-b, a)`` of pairs ``(a, b)``: of the two halves (``half``), or of neighbours (``interleave``)."""
    pairs = torch.unflatten(x, -1, (2, -1)).movedim(-2, -1) if mode == "half" else torch.unflatten(x, -1, (-1, 2))
    turned = torch.stack([-pairs[..., 1], pairs[..., 0]], -1)
    return turned.movedim(-1, -2).flatten(-2) if mode == "half" else turned.flatten(-2)


def npu_rotary_mul(
    self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """``x r1 + turned(x) r2`` for cosines ``r1`` and sines ``r2``, which broadcast to ``x``; ``rotate``: ``x @ rotate``
    in place of the quarter turn.
    """
    x = single(self)
    turned = _quarter_turn(x, rotary_mode) if rotate is None else x @ rotate.to(x.dtype)
    return rounded(x * single(r1) + turned * single(r2), self)


def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """``npu_rotary_mul`` of query and key by the same angles."""
    return npu_rotary_mul(query, cos, sin, rotary_mode), npu_rotary_mul(key, cos, sin, rotary_mode)


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``npu_rotary_mul`` of ``(B, N, S, D)`` whose even places were gathered before its odd ones."""
    gathered = torch.unflatten(single(x), -1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return rounded(gathered * single(cos) + _quarter_turn(gathered, "half") * single(sin), x)
