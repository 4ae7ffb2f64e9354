"""The choice of experts, and quantisation to integers.

Quantisation is in float32 for a golden as well: another precision rounds other values up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ascend.cases.npu_ops.rounding import dtype_by_number, rounded, single


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The ``k`` largest weights ``softmax(x)`` of each row, their experts, and places of the rows in expert order.

    Args:
        x: ``(..., experts)`` of two or three dimensions.
        finished: bool ``(...)``: such a row's experts are all the number ``experts``, which is none.
        k: how many.

    Returns:
        Weights in the dtype of ``x`` and int32 experts, ``(..., k)``; int32 ``j rows + i`` for choice j of row i.
    """
    weights = torch.softmax(single(x), -1)
    ordered, order = torch.sort(weights, dim=-1, descending=True, stable=True)
    best, experts = ordered[..., :k], order[..., :k].int()
    if finished is not None:
        experts = experts.masked_fill(finished.unsqueeze(-1), x.shape[-1])
    rows = best.numel() // k
    row = torch.arange(rows, dtype=torch.int32).reshape(-1, 1)
    places = row + torch.arange(k, dtype=torch.int32) * rows
    return rounded(best, x), experts, places.reshape(experts.shape)


def npu_quantize(
    self: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: int, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """``round(x / scales) + zero_points`` within the range of an integer dtype (``div_mode=False``: times the scales).

    ``scales`` and ``zero_points`` hold one element, or one for each place of ``axis``. Halves round to even, after the
    zero point was added.
    """
    target = dtype_by_number(dtype)
    x = self.float()

    def along(value: Tensor) -> Tensor:
        if value.numel() == 1 or value.dim() == x.dim():
            return value.float()
        return value.float().reshape([-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())])

    scaled = x / along(scales) if div_mode else x * along(scales)
    if zero_points is not None:
        scaled = scaled + along(zero_points)
    limits = torch.iinfo(target)
    return scaled.round().double().clip(limits.min, limits.max).to(target)


def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """int8 ``round(x / scale)`` with ``scale = max |x| / 127`` of each row, and the scales, float32.

    Args:
        input: ``(..., hidden)``.
        smooth_scales: factors of the columns, ``(hidden,)``; with ``group_index`` ``(groups, hidden)``.
        group_index: ends of the groups of rows.
        dst_type: int8 only.
        quant_mode: ``pertoken``, or ``pertensor`` for a single scale.

    Raises:
        NotImplementedError: another ``dst_type``.
    """
    if dst_type is not None and dtype_by_number(dst_type) is not torch.int8:
        raise NotImplementedError("npu_dynamic_quant to anything but int8 has no reference")
    rows = input.detach().float().reshape(-1, input.shape[-1])
    if smooth_scales is not None:
        factors = smooth_scales.float()
        if group_index is not None:
            ends = [int(end) for end in group_index]
            which = [sum(end <= row for end in ends) for row in range(rows.shape[0])]
            factors = torch.stack([factors[min(i, factors.shape[0] - 1)] for i in which])
        rows = rows * factors
    peaks = rows.abs().amax(1) if quant_mode == "pertoken" else rows.abs().amax().reshape(1)
    scales = peaks / 127
    divided = rows / scales.reshape(-1, 1)
    result = torch.where(scales.reshape(-1, 1) > 0, divided, torch.zeros_like(divided)).round().clip(-128, 127)
    shape = input.shape[:-1] if quant_mode == "pertoken" else (1,)
    return result.to(torch.int8).reshape(input.shape), scales.reshape(shape)
