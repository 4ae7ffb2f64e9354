"""Matrix products and convolutions: 16-bit inputs, accumulated in float32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ascend.cases.npu_ops.rounding import rounded, single


def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weight^T + bias``: ``(..., in)``, ``(out, in)`` and ``(out,)`` give ``(..., out)``."""
    result = single(input) @ single(weight).transpose(0, 1)
    return rounded(result if bias is None else result + single(bias), input)


def npu_bmmV2(self: Tensor, mat2: Tensor, output_sizes: list[int]) -> Tensor:
    """``(..., n, k) @ (..., k, m)``; with ``output_sizes`` the batch's matrices side by side, in that shape."""
    result = rounded(single(self) @ single(mat2), self)
    if not output_sizes or list(result.shape) == list(output_sizes):
        return result
    return result.movedim(-2, 0).reshape(output_sizes)


def npu_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Convolution over two or three dimensions; four numbers of padding are top, bottom, left and right."""
    spatial = weight.dim() - 2
    x = single(input)
    if len(padding) == 2 * spatial and spatial > 1:
        pairs = [padding[2 * i : 2 * i + 2] for i in range(spatial)]
        x = torch.nn.functional.pad(x, [one for pair in reversed(pairs) for one in pair])
        padding = [0] * spatial
    convolve = torch.nn.functional.conv2d if spatial == 2 else torch.nn.functional.conv3d
    wide_bias = None if bias is None else single(bias)
    return rounded(convolve(x, single(weight), wide_bias, stride, padding, dilation, groups), input)


# How many dimensions there are shows in the weight.
npu_conv2d = npu_conv3d = npu_convolution


def npu_grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    bias: list[Tensor] | None = None,
    group_list: list[int] | Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    **others: object,
) -> list[Tensor]:
    """``x[i] @ weight[i] + bias[i]`` for each group.

    Args:
        x: one ``(m, k)`` for each group, or a single one whose rows ``group_list`` divides.
        weight: ``(k, n)`` for each group, or a single ``(groups, k, n)``.
        bias: ``(n,)`` for each group, or a single ``(groups, n)``.
        group_list: ends of the groups among the rows (``group_list_type`` 0), or their sizes (1).
        split_item: 0 and 1 give one result for each group, 2 and 3 one result with the rows of all groups.
        group_type: 0 or -1; the groups of another dimension have no reference.
        others: of quantised products; they must be None.

    Raises:
        NotImplementedError: an argument of quantised products is given, or groups of another dimension.
    """
    given = [name for name, value in others.items() if value is not None and value != 0]
    if given or group_type not in (None, -1, 0) or group_list_type not in (None, 0, 1):
        raise NotImplementedError(f"npu_grouped_matmul with {', '.join(given) or 'these groups'} has no reference")
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    if len(x) > 1 or group_list is None:
        rows = list(x)
    else:
        sizes = [int(one) for one in group_list]
        if group_list_type != 1:
            sizes = [end - start for start, end in zip([0, *sizes], sizes, strict=False)]
        rows = list(torch.split(x[0][: sum(sizes)], sizes))
    shifts: list[Tensor | None] = [None] * len(weights)
    if bias:
        shifts = list(bias[0]) if len(bias) == 1 and bias[0].dim() == 2 else list(bias)
    results = []
    for a, b, c in zip(rows, weights, shifts, strict=True):
        product = single(a) @ single(b)
        results.append(rounded(product if c is None else product + single(c), a))
    return [torch.cat(results)] if split_item in (2, 3) else results
