"""Rotated boxes: encoding, overlaps of polygons, suppression.

A rotated box is `(x, y, w, h, angle)` or `(x1, y1, x2, y2, angle)`, the angle in degrees.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .nms import suppress
from .registry import narrow, op, wide

__all__: list[str] = []

_Point = tuple[float, float]


def _polygon(box: list[float]) -> list[_Point]:
    """The four corners of `(x, y, w, h, degrees)`, in order."""
    x, y, w, h, degrees = box
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [
        (x + c * dx * w - s * dy * h, y + s * dx * w + c * dy * h)
        for dx, dy in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))
    ]


def _area(polygon: list[_Point]) -> float:
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return 0.5 * sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)


def _intersection(first: list[_Point], second: list[_Point]) -> float:
    """Area that two convex polygons share: the first is clipped by each edge of the second."""
    if _area(second) < 0:
        second = second[::-1]
    clipped = first
    for (x1, y1), (x2, y2) in zip(second, second[1:] + second[:1], strict=True):
        remaining: list[_Point] = []
        sides = [(x2 - x1) * (y - y1) - (y2 - y1) * (x - x1) for x, y in clipped]
        for i, (x, y) in enumerate(clipped):
            j = (i + 1) % len(clipped)
            if sides[i] >= 0:
                remaining.append((x, y))
            if sides[i] * sides[j] < 0:
                t = sides[i] / (sides[i] - sides[j])
                remaining.append((x + t * (clipped[j][0] - x), y + t * (clipped[j][1] - y)))
        clipped = remaining
        if not clipped:
            return 0.0
    return abs(_area(clipped))


def _centred(boxes: Tensor, corners: bool) -> list[list[float]]:
    """Boxes as lists of `(x, y, w, h, degrees)`; `corners`: they come as `(x1, y1, x2, y2, degrees)`."""
    rows: list[list[float]] = boxes.detach().double().cpu().tolist()
    if corners:
        rows = [[(a + c) / 2, (b + d) / 2, c - a, d - b, t] for a, b, c, d, t in rows]
    return rows


def _intersections(first: list[list[float]], second: list[list[float]]) -> list[list[float]]:
    polygons = [_polygon(b) for b in second]
    return [[_intersection(_polygon(a), p) for p in polygons] for a in first]


@op("npu_rotated_overlaps(Tensor self, Tensor query_boxes, bool trans=False) -> Tensor")
def npu_rotated_overlaps(boxes: Tensor, query: Tensor, trans: bool = False) -> Tensor:
    """Shared areas `(B, N, M)` of rotated boxes `(B, N, 5)` and `(B, M, 5)`.

    With `trans` the boxes are given by corners, else by centre, width and height.
    """
    areas = [_intersections(_centred(a, trans), _centred(b, trans)) for a, b in zip(boxes, query, strict=True)]
    return torch.tensor(areas, dtype=boxes.dtype, device=boxes.device)


@op(
    "npu_rotated_iou(Tensor self, Tensor query_boxes, bool trans=False, int mode=0, bool is_cross=True, "
    "float v_threshold=0.0, float e_threshold=0.0) -> Tensor"
)
def npu_rotated_iou(
    boxes: Tensor,
    query: Tensor,
    trans: bool = False,
    mode: int = 0,
    is_cross: bool = True,
    v_threshold: float = 0.0,
    e_threshold: float = 0.0,
) -> Tensor:
    """Shared area over the union of rotated boxes.

    Args:
        boxes, query: `(B, N, 5)` and `(B, M, 5)`.
        trans: the boxes are given by corners, else by centre, width and height.
        mode: 0 for the union, 1 for the area of the first box.
        is_cross: all pairs, `(B, N, M)`; else box i with query i, `(B, N)`.
        v_threshold, e_threshold: tolerances of the chip's algorithm, without effect here.
    """
    result: list[list[list[float]]] = []
    for a, b in zip(boxes, query, strict=True):
        first, second = _centred(a, trans), _centred(b, trans)
        shared = _intersections(first, second)
        ratios = []
        for row, one in zip(shared, first, strict=True):
            area = one[2] * one[3]
            wholes = [
                area + other[2] * other[3] - s if mode == 0 else area for s, other in zip(row, second, strict=True)
            ]
            ratios.append([s / whole if whole > 0 else 0.0 for s, whole in zip(row, wholes, strict=True)])
        result.append(ratios)
    all_pairs = torch.tensor(result, dtype=boxes.dtype, device=boxes.device)
    return all_pairs if is_cross else all_pairs.diagonal(dim1=1, dim2=2).contiguous()


@op(
    "npu_nms_rotated(Tensor self, Tensor scores, float iou_threshold, float scores_threshold=0, int "
    "max_output_size=-1, "
    "int mode=0) -> (Tensor, Tensor)"
)
def npu_nms_rotated(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    scores_threshold: float = 0,
    max_output_size: int = -1,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """Suppression of rotated boxes: int32 indices of the survivors, best first, and their number `(1,)`.

    Args:
        boxes: `(N, 5)`.
        scores: `(N,)`.
        iou_threshold: what overlaps a better box by more is dropped.
        scores_threshold: what scores less is dropped.
        max_output_size: keep at most so many (−1: all).
        mode: 0 for `(x, y, w, h, angle)` with clockwise angles, 1 for `(x1, y1, x2, y2, angle)` with
            counter-clockwise ones.
    """
    rows = _centred(boxes, corners=mode == 1)
    if mode == 1:
        rows = [[x, y, w, h, -degrees] for x, y, w, h, degrees in rows]
    shared = _intersections(rows, rows)
    areas = [r[2] * r[3] for r in rows]
    ratios = [
        [s / (areas[i] + areas[j] - s) if min(areas[i], areas[j]) >= 1e-14 else 0.0 for j, s in enumerate(row)]
        for i, row in enumerate(shared)
    ]
    values = scores.detach().float().tolist()
    order = [i for i in sorted(range(len(values)), key=lambda i: -values[i]) if values[i] >= scores_threshold]
    kept = suppress(torch.tensor(ratios, dtype=torch.float64), order, iou_threshold, max_output_size)
    return (
        torch.tensor(kept, dtype=torch.int32, device=boxes.device),
        torch.tensor([len(kept)], dtype=torch.int32, device=boxes.device),
    )


def _split(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Centre, width, height and tangent of the angle of `(B, 5, N)` boxes given by corners."""
    x1, y1, x2, y2, degrees = boxes.unbind(1)
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, torch.tan(degrees * (math.pi / 180))


@op("npu_rotated_box_encode(Tensor self, Tensor gt_bboxes, Tensor weight) -> Tensor")
def npu_rotated_box_encode(anchors: Tensor, truth: Tensor, weight: Tensor) -> Tensor:
    """Offsets of rotated ground truths from anchors, `(B, 5, N)` each, times five weights.

    Relative shifts of the centre, logarithms of the size ratios and the difference of the angles' tangents.
    """
    wa, wt, ww = wide(anchors, truth, weight)
    ax, ay, aw, ah, at = _split(wa)
    tx, ty, tw, th, tt = _split(wt)
    deltas = torch.stack([(tx - ax) / aw, (ty - ay) / ah, (tw / aw).log(), (th / ah).log(), tt - at], 1)
    return narrow(deltas * ww.view(1, 5, 1), anchors)


@op("npu_rotated_box_decode(Tensor self, Tensor deltas, Tensor weight) -> Tensor")
def npu_rotated_box_decode(anchors: Tensor, deltas: Tensor, weight: Tensor) -> Tensor:
    """Rotated boxes `(B, 5, N)` from anchors and weighted offsets: the inverse of `npu_rotated_box_encode`."""
    wa, wd, ww = wide(anchors, deltas, weight)
    ax, ay, aw, ah, at = _split(wa)
    dx, dy, dw, dh, dt = (wd / ww.view(1, 5, 1)).unbind(1)
    x, y, w, h = ax + dx * aw, ay + dy * ah, aw * dw.exp(), ah * dh.exp()
    angle = torch.atan(at + dt) * (180 / math.pi)
    return narrow(torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, angle], 1), anchors)
