"""Boxes of detectors: encoding against anchors, and the overlaps between two sets of boxes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...device import machine
from .registry import narrow, op, wide

__all__: list[str] = []

_STATISTICS = (
    "float means0, float means1, float means2, float means3, float stds0, float stds1, float stds2, float stds3"
)
_ASCEND_950 = 260


def _centre(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centre, width and height of `(…, 4)` corner boxes whose corners are pixels, so that a width is `x2 − x1 + 1`."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return (x1 + x2) * 0.5, (y1 + y2) * 0.5, x2 - x1 + 1, y2 - y1 + 1


@op(f"npu_bounding_box_encode(Tensor anchor_box, Tensor ground_truth_box, {_STATISTICS}) -> Tensor")
def npu_bounding_box_encode(anchors: Tensor, truth: Tensor, *statistics: float) -> Tensor:
    """Offsets `(dx, dy, dw, dh)` of ground-truth boxes from anchors, less the means, over the deviations.

    Args:
        anchors, truth: `(N, 4)` corners `(x1, y1, x2, y2)` in pixels. The chip computes this operator in float16.
        statistics: four means, then four standard deviations.
    """
    px, py, pw, ph = _centre(anchors.half())
    gx, gy, gw, gh = _centre(truth.half())
    deltas = torch.stack([(gx - px) / pw, (gy - py) / ph, torch.log(gw / pw), torch.log(gh / ph)], -1)
    means = torch.tensor(statistics[:4], dtype=torch.float16, device=anchors.device)
    factors = torch.tensor([1 / s for s in statistics[4:]], dtype=torch.float16, device=anchors.device)
    return ((deltas - means) * factors).to(anchors.dtype)


@op(
    f"npu_bounding_box_decode(Tensor rois, Tensor deltas, {_STATISTICS}, int[1] max_shape, float wh_ratio_clip) -> "
    f"Tensor"
)
def npu_bounding_box_decode(
    rois: Tensor,
    deltas: Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
    max_shape: list[int],
    wh_ratio_clip: float,
) -> Tensor:
    """Boxes from regions and their offsets: the inverse of `npu_bounding_box_encode`, clamped to the image.

    Args:
        rois: `(N, 4)` corners in pixels.
        deltas: `(N, 4)` offsets `(dx, dy, dw, dh)`.
        means0, means1, means2, means3, stds0, stds1, stds2, stds3: statistics of the offsets.
        max_shape: height and width of the image.
        wh_ratio_clip: the logarithms of the size ratios are clamped to `±|log(wh_ratio_clip)|`.
    """
    w_rois, w_deltas = wide(rois, deltas)
    px, py, pw, ph = _centre(w_rois)
    dx, dy, dw, dh = (
        d * s + m
        for d, m, s in zip(
            w_deltas.unbind(-1), (means0, means1, means2, means3), (stds0, stds1, stds2, stds3), strict=True
        )
    )
    limit = abs(math.log(wh_ratio_clip))
    gw, gh = pw * dw.clamp(-limit, limit).exp(), ph * dh.clamp(-limit, limit).exp()
    gx, gy = px + pw * dx, py + ph * dy
    height, width = max_shape[0], max_shape[-1]
    corners = [
        (gx - gw * 0.5 + 0.5).clamp(0, width - 1),
        (gy - gh * 0.5 + 0.5).clamp(0, height - 1),
        (gx + gw * 0.5 - 0.5).clamp(0, width - 1),
        (gy + gh * 0.5 - 0.5).clamp(0, height - 1),
    ]
    return narrow(torch.stack(corners, -1), rois)


@op("npu_yolo_boxes_encode(Tensor self, Tensor gt_bboxes, Tensor stride, bool performance_mode=False) -> Tensor")
def npu_yolo_boxes_encode(anchors: Tensor, truth: Tensor, stride: Tensor, performance_mode: bool = False) -> Tensor:
    """YOLO's targets: centres within their grid cell, in `[1e-6, 1 − 1e-6]`, and log ratios of the sizes.

    Args:
        anchors, truth: `(N, 4)` corners.
        stride: `(N,)` pixels of a grid cell.
        performance_mode: accepted, without effect.
    """
    eps = 1e-6
    wa, wt = wide(anchors, truth)
    ax, ay, aw, ah = (
        (wa[..., 0] + wa[..., 2]) * 0.5,
        (wa[..., 1] + wa[..., 3]) * 0.5,
        wa[..., 2] - wa[..., 0],
        wa[..., 3] - wa[..., 1],
    )
    tx, ty, tw, th = (
        (wt[..., 0] + wt[..., 2]) * 0.5,
        (wt[..., 1] + wt[..., 3]) * 0.5,
        wt[..., 2] - wt[..., 0],
        wt[..., 3] - wt[..., 1],
    )
    cell = stride.to(wa.dtype)
    target = [
        ((tx - ax) / cell + 0.5).clamp(eps, 1 - eps),
        ((ty - ay) / cell + 0.5).clamp(eps, 1 - eps),
        (tw / aw).clamp_min(eps).log(),
        (th / ah).clamp_min(eps).log(),
    ]
    return narrow(torch.stack(target, -1), anchors)


@op("npu_anchor_response_flags(Tensor self, int[2] featmap_size, int[2] stride, int num_base_anchors) -> Tensor")
def npu_anchor_response_flags(
    boxes: Tensor, featmap_size: list[int], stride: list[int], num_base_anchors: int
) -> Tensor:
    """1 for every anchor of a grid cell that holds the centre of a ground-truth box: uint8 `(height · width ·
    anchors,)`.

    Args:
        boxes: `(N, 4)` corners.
        featmap_size: height and width of the grid.
        stride: pixels of a cell, horizontally and vertically.
        num_base_anchors: anchors of each cell.
    """
    (w,) = wide(boxes)
    height, width = featmap_size
    column = torch.floor((w[:, 0] + w[:, 2]) * 0.5 / stride[0]).long()
    row = torch.floor((w[:, 1] + w[:, 3]) * 0.5 / stride[1]).long()
    flags = torch.zeros(height * width, dtype=torch.uint8, device=boxes.device)
    flags[row * width + column] = 1
    return flags.repeat_interleave(num_base_anchors)


@op(
    "npu_grid_assign_positive(Tensor self, Tensor overlaps, Tensor box_responsible_flags, Tensor max_overlaps, "
    "Tensor argmax_overlaps, Tensor gt_max_overlaps, Tensor gt_argmax_overlaps, int num_gts, float pos_iou_thr, "
    "float min_pos_iou, bool gt_max_assign_all) -> Tensor"
)
def npu_grid_assign_positive(
    assigned: Tensor,
    overlaps: Tensor,
    responsible: Tensor,
    max_overlaps: Tensor,
    argmax_overlaps: Tensor,
    gt_max_overlaps: Tensor,
    gt_argmax_overlaps: Tensor,
    num_gts: int,
    pos_iou_thr: float,
    min_pos_iou: float,
    gt_max_assign_all: bool,
) -> Tensor:
    """Give boxes the number (from 1) of the ground truth they answer for.

    Args:
        assigned: `(boxes,)` numbers so far.
        overlaps: `(ground truths, boxes)`.
        responsible: uint8 `(boxes,)`; only these are assigned.
        max_overlaps, argmax_overlaps: `(boxes,)` best overlap of each box, and with which ground truth.
        gt_max_overlaps, gt_argmax_overlaps: `(ground truths,)` the same the other way round.
        num_gts: number of ground truths (at most those that `overlaps` has are looked at).
        pos_iou_thr: boxes above it are assigned to their best ground truth.
        min_pos_iou: ground truths above it take their best box (`gt_max_assign_all`: all boxes with that overlap).
    """
    flags = responsible.bool()
    result = torch.where((max_overlaps > pos_iou_thr) & flags, (argmax_overlaps + 1).to(assigned.dtype), assigned)
    for i in range(min(num_gts, overlaps.shape[0])):
        if gt_max_assign_all:
            chosen = (overlaps[i] == gt_max_overlaps[i]) & flags
        else:
            chosen = (torch.arange(flags.numel(), device=flags.device) == gt_argmax_overlaps[i]) & flags
        result = torch.where(chosen & (gt_max_overlaps[i] > min_pos_iou), float(i + 1), result)
    return result


# ------------------------------------------------------------------------------------------------ overlaps


def _overlap(boxes: Tensor, truth: Tensor, mode: int, eps: float) -> Tensor:
    """`(truths, boxes)` intersection over union (mode 0) or over the area of the truth (mode 1)."""
    wb, wt = wide(boxes, truth)
    wt = wt.unsqueeze(1)
    low, high = torch.maximum(wb[..., :2], wt[..., :2]), torch.minimum(wb[..., 2:], wt[..., 2:])
    inter = (high - low).clamp_min(0).prod(-1)
    area_b, area_t = ((w[..., 2:] - w[..., :2] + eps).prod(-1) for w in (wb, wt))
    return narrow(inter / (area_b + area_t - inter if mode == 0 else area_t.expand_as(inter)), boxes)


@op("npu_iou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor")
def npu_iou(boxes: Tensor, truth: Tensor, mode: int = 0) -> Tensor:
    """Overlaps `(M, N)` of N boxes with M ground truths, corners `(x1, y1, x2, y2)`.

    Mode 0 is intersection over union, mode 1 intersection over the ground truth's area. Chips before Ascend 950 add
    0.01 to the sides that areas are computed from.
    """
    return _overlap(boxes, truth, mode, 0.0 if machine.soc.version >= _ASCEND_950 else 0.01)


@op("npu_ptiou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor")
def npu_ptiou(boxes: Tensor, truth: Tensor, mode: int = 0) -> Tensor:
    """The same operator under another name; see `npu_iou`."""
    return npu_iou(boxes, truth, mode)


def _corners(boxes: Tensor, trans: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Corners of `(4, N)` boxes; with `trans` they come as centre, width and height."""
    a, b, c, d = boxes.unbind(0)
    return (a - c / 2, b - d / 2, a + c / 2, b + d / 2) if trans else (a, b, c, d)


class _Pairs:
    """What the generalised overlaps are computed from, pair by pair or for all pairs."""

    def __init__(self, boxes: Tensor, truth: Tensor, trans: bool, is_cross: bool, eps: float) -> None:
        first, second = _corners(boxes, trans), _corners(truth, trans)
        if is_cross:  # rows: boxes, columns: ground truths
            first = (first[0].unsqueeze(1), first[1].unsqueeze(1), first[2].unsqueeze(1), first[3].unsqueeze(1))
        self.first, self.second = first, second
        (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = first, second
        self.inter = (torch.minimum(ax2, bx2) - torch.maximum(ax1, bx1)).clamp_min(0) * (
            torch.minimum(ay2, by2) - torch.maximum(ay1, by1)
        ).clamp_min(0)
        self.width1, self.height1 = ax2 - ax1, ay2 - ay1 + eps
        self.width2, self.height2 = bx2 - bx1, by2 - by1 + eps
        self.hull_width = torch.maximum(ax2, bx2) - torch.minimum(ax1, bx1)
        self.hull_height = torch.maximum(ay2, by2) - torch.minimum(ay1, by1)
        self.area1, self.area2 = self.width1 * self.height1, self.width2 * self.height2

    def ratio(self, mode: int, eps: float) -> Tensor:
        """Intersection over union (mode 0) or over the first area (mode 1)."""
        whole = self.area1 + self.area2 - self.inter if mode == 0 else self.area1
        return self.inter / (whole + eps)

    def distance(self, eps: float) -> Tensor:
        """Squared distance of the centres over the squared diagonal of the hull."""
        (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = self.first, self.second
        squared = ((bx1 + bx2 - ax1 - ax2) ** 2 + (by1 + by2 - ay1 - ay2) ** 2) / 4
        return squared / (self.hull_width**2 + self.hull_height**2 + eps)


@op("npu_giou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=False, int mode=0) -> Tensor")
def npu_giou(boxes: Tensor, truth: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """Generalised overlap: IoU less the part of the hull that neither box covers.

    Args:
        boxes, truth: `(4, N)` and `(4, M)`; corners, or with `trans` centre, width and height.
        trans: see above.
        is_cross: all pairs, `(N, M)`; else N = M and pair i is box i with truth i, `(N, 1)`.
        mode: 0 for IoU, 1 for intersection over the first box.
    """
    wb, wt = wide(boxes, truth)
    pairs = _Pairs(wb, wt, trans, is_cross, 0.0)
    hull = pairs.hull_width.abs() * pairs.hull_height.abs()
    union = pairs.area1 + pairs.area2 - pairs.inter + 1e-16
    result = narrow(pairs.ratio(mode, 1e-16) - (hull - union) / hull, boxes)
    return result if is_cross else result.unsqueeze(1)


@op("npu_diou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=False, int mode=0) -> Tensor")
def npu_diou(boxes: Tensor, truth: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """Distance overlap: IoU less the squared distance of the centres over the squared diagonal of the hull.

    Arguments as for `npu_giou`; without `is_cross` the result is `(1, N)`.
    """
    eps = 1e-9
    wb, wt = wide(boxes, truth)
    pairs = _Pairs(wb, wt, trans, is_cross, eps)
    result = narrow(pairs.ratio(mode, eps) - pairs.distance(eps), boxes)
    return result if is_cross else result.unsqueeze(0)


@op(
    "npu_ciou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=True, int mode=0, bool "
    "atan_sub_flag=False) -> Tensor"
)
def npu_ciou(
    boxes: Tensor, truth: Tensor, trans: bool = False, is_cross: bool = True, mode: int = 0, atan_sub_flag: bool = False
) -> Tensor:
    """Complete overlap: `npu_diou` less `α v`, `v` the squared difference of the aspect angles times `4 / π²`.

    `α = v / (1 − IoU + v)` takes no part in the gradient. Other arguments as for `npu_giou`; without `is_cross` the
    result is `(1, N)`. `atan_sub_flag` is accepted, without effect.
    """
    eps = 1e-9
    wb, wt = wide(boxes, truth)
    pairs = _Pairs(wb, wt, trans, is_cross, eps)
    iou = pairs.ratio(mode, eps)
    angle = torch.atan(pairs.width2 / pairs.height2) - torch.atan(pairs.width1 / pairs.height1)
    v = 4 / math.pi**2 * angle**2
    alpha = (v / (1 + eps - iou + v)).detach()
    result = narrow(iou - pairs.distance(eps) - v * alpha, boxes)
    return result if is_cross else result.unsqueeze(0)
