"""Dropout with packed masks: one bit an element, lowest bit first, padded to whole blocks of 128 bits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import narrow, op, python_api, wide

__all__: list[str] = []

_BLOCK = 128


def _check(p: float) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")


def _draw(count: int, p: float, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A fresh packed mask: a bit is 1 with probability 1 − p."""
    padded = (count + _BLOCK - 1) // _BLOCK * _BLOCK
    if p == 0:
        return torch.full((padded // 8,), 255, dtype=torch.uint8, device=device)
    kept = (torch.rand(padded, device=device, generator=generator) >= p).to(torch.int32).view(-1, 8)
    return (kept * 2 ** torch.arange(8, device=device, dtype=torch.int32)).sum(1).to(torch.uint8)


def _bits(mask: Tensor, shape: torch.Size) -> Tensor:
    """The boolean mask of `shape` in a packed one."""
    shifts = torch.arange(8, device=mask.device, dtype=torch.uint8)
    return ((mask.reshape(-1, 1) >> shifts) & 1).view(-1)[: shape.numel()].view(shape).to(torch.bool)


def _apply(x: Tensor, mask: Tensor, p: float) -> Tensor:
    if p == 0:
        return x.clone()
    if p == 1:
        return x * 0
    (wx,) = wide(x)
    return narrow(torch.where(_bits(mask, x.shape), wx / (1 - p), 0.0), x)


@op("_npu_dropout(Tensor self, float p) -> (Tensor, Tensor)")
def _npu_dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout and its packed uint8 mask; what is kept is scaled by `1 / (1 − p)`."""
    _check(p)
    mask = _draw(x.numel(), p, x.device)
    return _apply(x, mask, p), mask


@op("npu_dropout_do_mask(Tensor self, Tensor mask, float p) -> (Tensor, Tensor)")
def npu_dropout_do_mask(x: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout by a given packed mask, and that mask."""
    _check(p)
    return _apply(x, mask, p), mask.clone()


@op("npu_dropout_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def npu_dropout_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """Gradient of dropout by a packed mask."""
    return _apply(grad, mask, p)


@op(
    "_npu_dropout_gen_mask.Tensor(Tensor self, int[] size, float p, int seed, int offset, *, bool? parallel=True, "
    "bool? sync=None) -> Tensor"
)
def _npu_dropout_gen_mask(
    x: Tensor,
    size: list[int],
    p: float,
    seed: int,
    offset: int,
    *,
    parallel: bool | None = True,
    sync: bool | None = None,
) -> Tensor:
    """A packed mask for a tensor of `size`, the same for the same `seed` and `offset`; `x` only names the device."""
    _check(p)
    generator = torch.Generator(device=x.device)
    generator.manual_seed((seed * 1_000_003 + offset) % 2**63)
    return _draw(torch.Size(size).numel(), p, x.device, generator)


@python_api("npu_dropout_gen_mask")
def npu_dropout_gen_mask(
    size: list[int],
    p: float,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = "npu",
    pin_memory: bool | None = None,
) -> Tensor:
    """A packed mask for a tensor of `size`, from the device's own stream; only `device` of the options has an
    effect.
    """
    _check(p)
    return _draw(torch.Size(size).numel(), p, torch.device(device or "npu"))


@op("_dropout_with_byte_mask(Tensor self, float p) -> (Tensor, Tensor)")
def _dropout_with_byte_mask(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout and its mask of one byte an element."""
    _check(p)
    if p == 1:
        return x * 0, torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    kept = torch.rand(x.shape, device=x.device) >= p
    (wx,) = wide(x)
    return narrow(torch.where(kept, wx / (1 - p), 0.0), x), kept.to(torch.uint8)


@op("_dropout_with_byte_mask_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def _dropout_with_byte_mask_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """Gradient of dropout by a byte mask."""
    return torch.where(mask.bool(), grad / (1 - p), 0.0).to(grad.dtype) if p < 1 else torch.zeros_like(grad)


@op("dropout_with_byte_mask(Tensor self, float p, bool train) -> Tensor")
def dropout_with_byte_mask(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout whose mask takes a byte an element; the input itself unless `train`."""
    return _dropout_with_byte_mask(x, p)[0] if train and p > 0 else x.clone()


@op(
    "npu_dropout_with_add_softmax(Tensor self, Tensor x1, Scalar alpha, float prob, int dim) -> (Tensor, Tensor, "
    "Tensor)"
)
def npu_dropout_with_add_softmax(
    x: Tensor, x1: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`dropout(softmax(x1 + alpha · x))`.

    Returns:
        The packed dropout mask, the softmax, and the softmax after dropout.
    """
    _check(prob)
    wx, wx1 = wide(x, x1)
    soft = narrow(F.softmax(torch.add(wx1, wx, alpha=alpha), dim), x)
    mask = _draw(x.numel(), prob, x.device)
    return mask, soft.detach(), _apply(soft, mask, prob)
