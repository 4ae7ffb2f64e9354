"""Non-maximum suppression: keep the best box, drop those that overlap it too much, go on with the next."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import op

__all__: list[str] = []


def _overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of every pair of `(N, 4)` corner boxes, whichever corner comes first."""
    low, high = torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])
    area = (high - low).prod(1)
    inter = (torch.minimum(high, high.unsqueeze(1)) - torch.maximum(low, low.unsqueeze(1))).clamp_min(0).prod(2)
    union = area + area.unsqueeze(1) - inter
    return torch.where(union > 0, inter / union, 0.0)


def suppress(overlaps: Tensor, order: list[int], threshold: float, limit: int = -1) -> list[int]:
    """Indices that survive, best first: `order` is by falling score, at most `limit` of them (−1: no limit)."""
    table = overlaps.tolist()
    kept: list[int] = []
    for index in order:
        if 0 <= limit <= len(kept):
            break
        if all(table[index][k] <= threshold for k in kept):
            kept.append(index)
    return kept


def _by_score(scores: Tensor, threshold: float | None) -> list[int]:
    values = scores.tolist()
    order: list[int] = torch.argsort(scores, descending=True, stable=True).tolist()
    return order if threshold is None else [i for i in order if values[i] > threshold]


@op(
    "npu_nms_v4(Tensor self, Tensor scores, Scalar max_output_size, Tensor iou_threshold, Tensor scores_threshold, "
    "bool pad_to_max_output_size=False) -> (Tensor, Tensor)"
)
def npu_nms_v4(
    boxes: Tensor,
    scores: Tensor,
    max_output_size: float,
    iou_threshold: Tensor,
    scores_threshold: Tensor,
    pad_to_max_output_size: bool = False,
) -> tuple[Tensor, Tensor]:
    """Indices of the boxes that survive, best first, and how many there are.

    Args:
        boxes: `(N, 4)` opposite corners.
        scores: `(N,)`.
        max_output_size: keep at most so many.
        iou_threshold, scores_threshold: tensors without dimensions.
        pad_to_max_output_size: fill the indices with zeros up to `max_output_size`.
    """
    boxes, scores = boxes.detach().float(), scores.detach().float()
    order = _by_score(scores, float(scores_threshold))
    kept = suppress(_overlaps(boxes), order, float(iou_threshold), int(max_output_size))
    padded = kept + [0] * (int(max_output_size) - len(kept)) if pad_to_max_output_size else kept
    return (
        torch.tensor(padded, dtype=torch.int32, device=boxes.device),
        torch.tensor(len(kept), dtype=torch.int32, device=boxes.device),
    )


@op("npu_nms_with_mask(Tensor input, Scalar iou_threshold) -> (Tensor, Tensor, Tensor)")
def npu_nms_with_mask(x: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes sorted by falling score, their int32 places in the input, and a uint8 mask of the survivors.

    Args:
        x: `(N, 5)`: corners and score.
        iou_threshold: what overlaps a better box by more is dropped.
    """
    wide = x.detach().float()
    order = _by_score(wide[:, 4], None)
    kept = set(suppress(_overlaps(wide[:, :4]), order, iou_threshold))
    places = torch.tensor(order, dtype=torch.int64, device=x.device)
    mask = torch.tensor([int(i in kept) for i in order], dtype=torch.uint8, device=x.device)
    return x[places], places.to(torch.int32), mask


@op(
    "npu_batch_nms(Tensor self, Tensor scores, float score_threshold, float iou_threshold, int max_size_per_class, "
    "int max_total_size, bool change_coordinate_frame=False, bool transpose_box=False) -> (Tensor, Tensor, Tensor, "
    "Tensor)"
)
def npu_batch_nms(
    boxes: Tensor,
    scores: Tensor,
    score_threshold: float,
    iou_threshold: float,
    max_size_per_class: int,
    max_total_size: int,
    change_coordinate_frame: bool = False,
    transpose_box: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Suppression class by class in every image of a batch, then the best of all classes.

    Args:
        boxes: `(batch, anchors, q, 4)`, q = 1 or the number of classes (`transpose_box`: `(batch, 4, anchors, q)`).
        scores: `(batch, anchors, classes)` (`transpose_box`: `(batch, classes, anchors)`).
        score_threshold, iou_threshold: what scores less, or overlaps a better box by more, is dropped.
        max_size_per_class, max_total_size: how many boxes are kept.
        change_coordinate_frame: accepted, without effect.
        transpose_box: see above.

    Returns:
        Boxes `(batch, max_total_size, 4)`, scores and classes `(batch, max_total_size)`, padded with zeros, and the
        int32 number of valid ones `(batch,)`.
    """
    if transpose_box:
        boxes, scores = boxes.permute(0, 2, 3, 1), scores.transpose(1, 2)
    batch, _, q, _ = boxes.shape
    out_boxes = boxes.new_zeros(batch, max_total_size, 4)
    out_scores = scores.new_zeros(batch, max_total_size)
    out_classes = scores.new_zeros(batch, max_total_size)
    counts: list[int] = []
    wide_boxes, wide_scores = boxes.detach().float(), scores.detach().float()
    for image in range(batch):
        found: list[tuple[float, int, int]] = []
        for c in range(scores.shape[2]):
            order = _by_score(wide_scores[image, :, c], score_threshold)
            overlaps = _overlaps(wide_boxes[image, :, c if q > 1 else 0])
            values = wide_scores[image, :, c].tolist()
            found += [(-values[i], c, i) for i in suppress(overlaps, order, iou_threshold, max_size_per_class)]
        found = sorted(found)[:max_total_size]
        counts.append(len(found))
        for place, (_, c, i) in enumerate(found):
            out_boxes[image, place] = boxes[image, i, c if q > 1 else 0]
            out_scores[image, place] = scores[image, i, c]
            out_classes[image, place] = c
    return out_boxes, out_scores, out_classes, torch.tensor(counts, dtype=torch.int32, device=boxes.device)


@op("npu_random_choice_with_mask(Tensor x, int count=256, int seed=0, int seed2=0) -> (Tensor, Tensor)")
def npu_random_choice_with_mask(x: Tensor, count: int = 256, seed: int = 0, seed2: int = 0) -> tuple[Tensor, Tensor]:
    """Coordinates of at most `count` true elements, chosen at random, and which rows are filled.

    Args:
        x: bool, 1 to 5 dimensions.
        count: rows of the result; 0 for as many as there are true elements.
        seed, seed2: a choice that both seeds fix; zero for both draws from the device's own stream.

    Returns:
        int32 `(count, dimensions)` in the order of the input, zeros where nothing was left, and bool `(count,)`.
    """
    places = x.nonzero()
    wanted = count or len(places)
    if len(places) > wanted:
        generator = None
        if seed or seed2:
            generator = torch.Generator(device=x.device)
            generator.manual_seed(seed * 2**31 + seed2)
        order = torch.rand(len(places), device=x.device, generator=generator).argsort()[:wanted]
        places = places[order.sort()[0]]
    filled = torch.arange(wanted, device=x.device) < len(places)
    result = torch.zeros(wanted, x.dim(), dtype=torch.int32, device=x.device)
    result[: len(places)] = places.to(torch.int32)
    return result, filled
