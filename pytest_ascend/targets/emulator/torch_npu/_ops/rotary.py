"""Rotary position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import narrow, op, wide

__all__: list[str] = []


def _rotate(x: Tensor, mode: str) -> Tensor:
    """A quarter turn of the pairs: `(−x₂, x₁)`; pairs are the halves ('half') or neighbours ('interleave')."""
    if mode == "half":
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    raise RuntimeError(f"The rotary_mode of npu_rotary_mul should be half or interleave, but got {mode}")


@op("npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor")
def npu_rotary_mul(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """`x · r1 + rotated(x) · r2`.

    Args:
        x: four dimensions, the last one of even size.
        r1, r2: cosines and sines, broadcast to `x`.
        rotary_mode: 'half' pairs element i with i + D/2, 'interleave' neighbours.
        rotate: a matrix to rotate with instead, `x @ rotate`.
    """
    wx, w1, w2 = wide(x, r1, r2)
    turned = _rotate(wx, rotary_mode) if rotate is None else wx @ rotate.to(wx.dtype)
    return narrow(wx * w1 + turned * w2, x)


@op(
    "npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, str layout='BSND', str "
    "rotary_mode='half') "
    "-> (Tensor, Tensor)"
)
def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """Both query and key rotated: `x · cos + rotated(x) · sin`, `cos` and `sin` broadcast over the heads."""
    if layout not in ("BSND", "BSH", "TND", "1"):
        raise RuntimeError(f"npu_apply_rotary_pos_emb: layout {layout!r} is not supported")
    return npu_rotary_mul(query, cos, sin, rotary_mode), npu_rotary_mul(key, cos, sin, rotary_mode)


@op("npu_interleave_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor")
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours sorted into halves (even places first), then `q · cos + rotated(q) · sin`; `x` is `(B, N, S, D)`."""
    wx, wc, ws = wide(x, cos, sin)
    q = torch.cat((wx[..., ::2], wx[..., 1::2]), -1)
    return narrow(q * wc + _rotate(q, "half") * ws, x)
