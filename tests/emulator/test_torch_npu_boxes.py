"""Boxes, suppression and pooling against loops that follow the definitions one element at a time."""

from __future__ import annotations

import math

import pytest
import torch

import pytest_ascend as pa

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed

STATISTICS = (0.1, -0.1, 0.2, 0.0, 0.5, 0.4, 0.3, 0.2)


def random_boxes(n: int, size: float = 50.0) -> torch.Tensor:
    near = torch.rand(n, 2) * size
    return torch.cat([near, near + torch.rand(n, 2) * size / 2 + 1], 1)


def overlap(a: torch.Tensor, b: torch.Tensor, eps: float = 0.0) -> tuple[float, float, float]:
    """Intersection and the two areas of two corner boxes."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.tolist(), b.tolist()
    w, h = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    return (
        max(w, 0) * max(h, 0),
        (ax2 - ax1 + eps) * (ay2 - ay1 + eps),
        (bx2 - bx1 + eps) * (by2 - by1 + eps),
    )


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(("soc", "eps"), [("Ascend910B", 0.01), ("Ascend950", 0.0)])
def test_iou_of_all_pairs(soc: str, eps: float, mode: int):
    pa.emulator.install(soc)
    boxes, truth = random_boxes(5), random_boxes(3)
    got = torch_npu.npu_iou(boxes.npu(), truth.npu(), mode)
    assert got.shape == (3, 5)
    for i in range(3):
        for j in range(5):
            inter, area, area_t = overlap(boxes[j], truth[i], eps)
            want = inter / (area + area_t - inter if mode == 0 else area_t)
            assert got[i, j].item() == pytest.approx(want, abs=1e-5)
    assert torch.equal(torch_npu.npu_ptiou(boxes.npu(), truth.npu(), mode).cpu(), got.cpu())


@pytest.mark.parametrize("mode", [0, 1])
def test_all_pairs_of_the_generalised_overlaps(mode: int):
    boxes, truth = random_boxes(4).t().contiguous().npu(), random_boxes(3).t().contiguous().npu()
    for operator, pair_dim in ((torch_npu.npu_giou, 1), (torch_npu.npu_diou, 0), (torch_npu.npu_ciou, 0)):
        table = operator(boxes, truth, is_cross=True, mode=mode)
        assert table.shape == (4, 3)
        diagonal = operator(boxes[:, :3], truth, is_cross=False, mode=mode)
        assert diagonal.shape[1 - pair_dim] == 3
        torch.testing.assert_close(table.diagonal(), diagonal.flatten(), rtol=1e-5, atol=1e-6)


def test_generalised_overlaps_of_centre_boxes():
    corner = random_boxes(5).t().contiguous()
    centre = torch.stack(
        [(corner[0] + corner[2]) / 2, (corner[1] + corner[3]) / 2, corner[2] - corner[0], corner[3] - corner[1]]
    )
    other = random_boxes(5).t().contiguous()
    other_centre = torch.stack(
        [(other[0] + other[2]) / 2, (other[1] + other[3]) / 2, other[2] - other[0], other[3] - other[1]]
    )
    for operator in (torch_npu.npu_giou, torch_npu.npu_diou):
        a = operator(corner.npu(), other.npu(), False)
        b = operator(centre.npu(), other_centre.npu(), True)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_decode_is_the_inverse_of_encode():
    anchors, truth = random_boxes(6).round(), random_boxes(6).round()
    deltas = torch_npu.npu_bounding_box_encode(anchors.npu(), truth.npu(), *STATISTICS)
    again = torch_npu.npu_bounding_box_decode(anchors.npu(), deltas, *STATISTICS, [1000, 1000], 1e-3)
    assert (again.cpu() - truth).abs().max() < 0.5  # the chip encodes in float16


def test_decode_clips_sizes_and_places():
    roi = torch.tensor([[0.0, 0.0, 9.0, 9.0]]).npu()
    out = torch_npu.npu_bounding_box_decode(
        roi, torch.tensor([[0.0, 0.0, 9.0, -9.0]]).npu(), 0, 0, 0, 0, 1, 1, 1, 1, [30, 12], 0.5
    )
    # twice as wide (20, cut at the image's edges), half as high (5, around the centre 4.5)
    torch.testing.assert_close(out.cpu(), torch.tensor([[0.0, 2.5, 11.0, 6.5]]))


def test_yolo_targets():
    anchors, truth, stride = random_boxes(6), random_boxes(6), torch.tensor([8, 8, 16, 16, 32, 32], dtype=torch.int32)
    got = torch_npu.npu_yolo_boxes_encode(anchors.npu(), truth.npu(), stride.npu()).cpu()
    for a, t, s, row in zip(anchors.tolist(), truth.tolist(), stride.tolist(), got.tolist(), strict=True):
        shift = [((t[i] + t[i + 2]) / 2 - (a[i] + a[i + 2]) / 2) / s + 0.5 for i in (0, 1)]
        want = [min(max(x, 1e-6), 1 - 1e-6) for x in shift]
        want += [math.log(max((t[i + 2] - t[i]) / (a[i + 2] - a[i]), 1e-6)) for i in (0, 1)]
        assert row == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_anchors_that_answer():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 8.0, 30.0, 14.0]])
    flags = torch_npu.npu_anchor_response_flags(boxes.npu(), [4, 5], [8, 8], 2)
    want = torch.zeros(4, 5, 2, dtype=torch.uint8)
    want[0, 0] = want[1, 3] = 1
    assert torch.equal(flags.cpu(), want.view(-1))


@pytest.mark.parametrize("everything", [True, False])
def test_positive_anchors(everything: bool):
    overlaps = torch.tensor([[0.9, 0.3, 0.3], [0.2, 0.4, 0.1]])
    best, which = overlaps.max(0)
    gt_best, gt_which = overlaps.max(1)
    flags = torch.tensor([1, 1, 0], dtype=torch.uint8)
    tensors = (torch.zeros(3), overlaps, flags, best, which.int(), gt_best, gt_which.int())
    out = torch_npu.npu_grid_assign_positive(*(t.npu() for t in tensors), 2, 0.5, 0.0, everything)
    assert out.tolist() == [1, 2, 0]


# ------------------------------------------------------------------------------------------------ suppression


def brute_force(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        pairs = [overlap(boxes[i], boxes[j]) for j in kept]
        if all(inter / (a + b - inter) <= threshold for inter, a, b in pairs):
            kept.append(i)
    return kept


def test_nms_v4():
    boxes, scores = random_boxes(60), torch.rand(60)
    want = [i for i in brute_force(boxes, scores, 0.3) if scores[i] > 0.2]
    arguments = (torch.tensor(0.3).npu(), torch.tensor(0.2).npu())
    indices, count = torch_npu.npu_nms_v4(boxes.npu(), scores.npu(), 50, *arguments)
    assert indices.dtype is torch.int32
    assert indices.tolist() == want[:50]
    assert count.item() == len(want[:50])
    flipped = boxes[:, [2, 3, 0, 1]]  # opposite corners, the far one first
    assert torch_npu.npu_nms_v4(flipped.npu(), scores.npu(), 5, *arguments)[0].tolist() == want[:5]
    padded, count = torch_npu.npu_nms_v4(boxes.npu(), scores.npu(), 70, *arguments, True)
    assert padded.tolist() == want + [0] * (70 - len(want))
    assert count.item() == len(want)


def test_nms_with_mask():
    boxes, scores = random_boxes(30), torch.rand(30)
    x = torch.cat([boxes, scores[:, None]], 1)
    out, places, mask = torch_npu.npu_nms_with_mask(x.npu(), 0.3)
    assert torch.equal(out.cpu(), x[scores.argsort(descending=True)])
    kept = [p for p, m in zip(places.tolist(), mask.tolist(), strict=True) if m]
    assert kept == brute_force(boxes, scores, 0.3)


@pytest.mark.parametrize("transposed", [False, True])
def test_batch_nms(transposed: bool):
    boxes, scores = torch.stack([random_boxes(20), random_boxes(20)]), torch.rand(2, 20, 3)
    b, s = boxes.unsqueeze(2), scores
    if transposed:
        b, s = b.permute(0, 3, 1, 2), s.transpose(1, 2)
    out, out_scores, classes, count = torch_npu.npu_batch_nms(b.npu(), s.npu(), 0.5, 0.3, 4, 10, False, transposed)
    assert out.shape == (2, 10, 4)
    for image in range(2):
        want = []
        for c in range(3):
            kept = [i for i in brute_force(boxes[image], scores[image, :, c], 0.3) if scores[image, i, c] > 0.5]
            want += [(scores[image, i, c].item(), c, i) for i in kept[:4]]
        want = sorted(want, key=lambda w: -w[0])[:10]
        assert count[image].item() == len(want)
        for place, (score, c, i) in enumerate(want):
            assert out_scores[image, place].item() == score
            assert classes[image, place].item() == c
            assert torch.equal(out[image, place].cpu(), boxes[image, i])
        assert not out[image, len(want) :].any()


def test_random_choice_with_mask():
    x = torch.rand(20, 10) > 0.5
    places, filled = torch_npu.npu_random_choice_with_mask(x.npu(), 30)
    assert places.dtype is torch.int32
    assert filled.all()
    assert x[tuple(places.cpu().long().t())].all()
    assert len({tuple(p) for p in places.tolist()}) == 30
    every, filled = torch_npu.npu_random_choice_with_mask(x.npu(), 0)
    assert torch.equal(every.cpu().long(), x.nonzero())
    few, filled = torch_npu.npu_random_choice_with_mask(x[:1].npu(), 256)
    assert filled.sum().item() == x[0].sum().item()
    assert not few[filled.sum().item() :].any()
    same = [torch_npu.npu_random_choice_with_mask(x.npu(), 5, 1, 2)[0].tolist() for _ in range(2)]
    assert same[0] == same[1]


# ------------------------------------------------------------------------------------------------ rotated


def inside(points: torch.Tensor, box: list[float]) -> torch.Tensor:
    x, y, w, h, degrees = box
    t = math.radians(degrees)
    dx, dy = points[:, 0] - x, points[:, 1] - y
    return ((dx * math.cos(t) + dy * math.sin(t)).abs() <= w / 2) & (
        (dy * math.cos(t) - dx * math.sin(t)).abs() <= h / 2
    )


def rotated_boxes(n: int) -> torch.Tensor:
    return torch.cat([torch.rand(n, 2) * 6 + 7, torch.rand(n, 2) * 6 + 2, torch.rand(n, 1) * 360 - 180], 1)


def test_rotated_areas_agree_with_counting_points():
    a, b = rotated_boxes(4), rotated_boxes(5)
    side = torch.arange(0, 20, 0.02) + 0.01
    points = torch.cartesian_prod(side, side)
    shared = torch_npu.npu_rotated_overlaps(a[None].npu(), b[None].npu()).cpu()[0]
    ratio = torch_npu.npu_rotated_iou(a[None].npu(), b[None].npu()).cpu()[0]
    first = torch_npu.npu_rotated_iou(a[None].npu(), b[None].npu(), mode=1).cpu()[0]
    assert shared.shape == (4, 5)
    for i in range(4):
        in_a = inside(points, a[i].tolist())
        for j in range(5):
            in_b = inside(points, b[j].tolist())
            area = (in_a & in_b).sum().item() * 0.02**2
            assert shared[i, j].item() == pytest.approx(area, abs=0.1)
            assert ratio[i, j].item() == pytest.approx(
                (in_a & in_b).sum().item() / (in_a | in_b).sum().item(), abs=0.01
            )
            assert first[i, j].item() == pytest.approx((in_a & in_b).sum().item() / in_a.sum().item(), abs=0.01)
    pairs = torch_npu.npu_rotated_iou(a[None].npu(), b[None, :4].npu(), is_cross=False)
    torch.testing.assert_close(pairs.cpu()[0], ratio.diagonal())


def test_rotated_corner_boxes_and_identical_ones():
    a = rotated_boxes(3)
    corner = torch.cat([a[:, :2] - a[:, 2:4] / 2, a[:, :2] + a[:, 2:4] / 2, a[:, 4:]], 1)
    b = torch_npu.npu_rotated_overlaps(corner[None].npu(), corner[None].npu(), True).cpu()[0]
    torch.testing.assert_close(
        b, torch_npu.npu_rotated_overlaps(a[None].npu(), a[None].npu()).cpu()[0], rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(b.diagonal(), a[:, 2] * a[:, 3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [0, 1])
def test_rotated_suppression(mode: int):
    boxes, scores = rotated_boxes(12), torch.rand(12)
    given = boxes
    if mode == 1:
        given = torch.cat([boxes[:, :2] - boxes[:, 2:4] / 2, boxes[:, :2] + boxes[:, 2:4] / 2, -boxes[:, 4:]], 1)
    kept, count = torch_npu.npu_nms_rotated(given.npu(), scores.npu(), 0.2, mode=mode)
    ratio = torch_npu.npu_rotated_iou(boxes[None].npu(), boxes[None].npu()).cpu()[0]
    want: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        if all(ratio[i, j] <= 0.2 for j in want):
            want.append(i)
    assert kept.tolist() == want
    assert count.tolist() == [len(want)]
    assert len(torch_npu.npu_nms_rotated(given.npu(), scores.npu(), 0.2, 0.0, 2, mode)[0]) == min(2, len(want))


def test_rotated_codes_are_inverse():
    anchors = random_boxes(5).t()
    truth = random_boxes(5).t()
    a = torch.cat([anchors, torch.rand(1, 5) * 100 - 50])[None]
    t = torch.cat([truth, torch.rand(1, 5) * 100 - 50])[None]
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
    deltas = torch_npu.npu_rotated_box_encode(a.npu(), t.npu(), weight.npu())
    width = a[0, 2] - a[0, 0]
    shift = ((t[0, 0] + t[0, 2]) - (a[0, 0] + a[0, 2])) / 2 / width
    torch.testing.assert_close(deltas[0, 0].cpu(), shift, rtol=1e-4, atol=1e-5)
    again = torch_npu.npu_rotated_box_decode(a.npu(), deltas, weight.npu())
    torch.testing.assert_close(again.cpu(), t, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------------------------ pooling


def sample(image: torch.Tensor, y: float, x: float) -> torch.Tensor:
    h, w = image.shape[-2:]
    if y < -1 or y > h or x < -1 or x > w:
        return image.new_zeros(image.shape[0])
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
    fy, fx = y - top, x - left
    above = image[:, top, left] * (1 - fx) + image[:, top, right] * fx
    below = image[:, bottom, left] * (1 - fx) + image[:, bottom, right] * fx
    return above * (1 - fy) + below * fy


@pytest.mark.parametrize("end_mode", [0, 1, 2])
@pytest.mark.parametrize("samples", [0, 2])
def test_roi_align_sample_by_sample(samples: int, end_mode: int):
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    rois = torch.tensor([[0, -2.0, 1.0, 10.0, 12.0], [1, 3.0, 3.0, 9.0, 20.0]])
    scale, height, width = 0.5, 2, 3
    want = torch.zeros(2, 3, height, width, dtype=torch.float64)
    for r, (index, x1, y1, x2, y2) in enumerate(rois.tolist()):
        extra, half, least = (end_mode == 1), 0.5 * (end_mode == 2), 0 if end_mode == 2 else 1
        left, top = x1 * scale - half, y1 * scale - half
        w = max((x2 + extra) * scale - x1 * scale, least)
        h = max((y2 + extra) * scale - y1 * scale, least)
        nx, ny = samples or math.ceil(w / width), samples or math.ceil(h / height)
        for i in range(height):
            for j in range(width):
                cells = [
                    sample(
                        x[int(index)], top + h / height * (i + (a + 0.5) / ny), left + w / width * (j + (b + 0.5) / nx)
                    )
                    for a in range(ny)
                    for b in range(nx)
                ]
                want[r, :, i, j] = torch.stack(cells).mean(0)
    device = x.float().npu().requires_grad_()
    got = torch_npu.npu_roi_align(device, rois.npu(), scale, height, width, samples, end_mode)
    torch.testing.assert_close(got.detach().cpu().double(), want, rtol=1e-4, atol=1e-5)
    grad = torch.randn(got.shape, device="npu")
    got.backward(grad)
    again = torch_npu.npu_roi_alignbk(grad, rois.npu(), list(x.shape), width, height, scale, samples, end_mode)
    torch.testing.assert_close(again, device.grad, rtol=1e-4, atol=1e-5)


def test_roi_align_of_no_regions_and_of_two_devices():
    x = torch.ones(1, 2, 4, 4, device="npu")
    assert torch_npu.npu_roi_align(x, torch.ones(0, 5, device="npu"), 1.0, 2, 2, 2, 0).shape == (0, 2, 2, 2)
    if torch.npu.device_count() > 1:
        with pytest.raises(RuntimeError, match="same device"):
            torch_npu.npu_roi_align(x, torch.ones(1, 5, device="npu:1"), 1.0, 2, 2, 2, 0)


def test_position_sensitive_pooling():
    x = torch.randn(1, 8, 6, 6)
    rois = torch.tensor([[[0.0, 9.0], [1.0, 0.0], [0.0, 0.0], [4.0, 3.0], [5.0, 3.0]]])
    got = torch_npu.npu_ps_roi_pooling(x.npu(), rois.npu(), 1.0, 2, 2).cpu()
    assert got.shape == (2, 2, 2, 2)
    maps = x.view(2, 2, 2, 6, 6)
    for i, rows in enumerate((slice(0, 3), slice(3, 6))):
        for j, columns in enumerate((slice(1, 3), slice(3, 5))):
            torch.testing.assert_close(got[0, :, i, j], maps[:, i, j, rows, columns].mean((1, 2)), rtol=1e-5, atol=1e-6)
    assert not got[1].any()  # there is no image 9
    with pytest.raises(RuntimeError, match="channels"):
        torch_npu.npu_ps_roi_pooling(x.npu(), rois.npu(), 1.0, 2, 3)
