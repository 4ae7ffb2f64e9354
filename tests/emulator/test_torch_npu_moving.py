"""Operators that move or mark values: exact, so compared exactly with plain indexing on the CPU."""

from __future__ import annotations

import pytest
import torch

import pytest_ascend as pa

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed

X = torch.arange(24.0).view(2, 3, 4)


def test_transposes_and_their_gradient_operator():
    assert torch.equal(torch_npu.npu_transpose(X.npu(), [2, 0, 1]).cpu(), X.permute(2, 0, 1))
    out = torch.empty(4, 2, 3, device="npu")
    assert torch_npu.npu_transpose(X.npu(), [2, 0, 1], out=out) is out
    assert torch.equal(out.cpu(), X.permute(2, 0, 1))
    for first in (True, False):
        x = X.npu() if first else X.reshape(6, 4).npu()
        shape = [3, 8] if first else [2, 3, 4]
        y = torch_npu.npu_confusion_transpose(x, [1, 0, 2], shape, first)
        back = torch_npu.npu_confusion_transpose_backward(y, [1, 0, 2], list(x.shape), first)
        assert torch.equal(back.cpu(), x.cpu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.int8, torch.bool])
def test_broadcast_reshape_and_slice(dtype: torch.dtype):
    x = torch.tensor([[1], [0], [2]]).to(dtype)
    assert torch.equal(torch_npu.npu_broadcast(x.npu(), [3, 2]).cpu(), x.expand(3, 2))
    assert torch_npu.npu_broadcast(x.npu(), [3, 2]).is_contiguous()
    out = torch.empty(3, 2, dtype=dtype, device="npu")
    torch_npu.npu_broadcast(x.npu(), [3, 2], out=out)
    assert torch.equal(out.cpu(), x.expand(3, 2))
    assert torch.equal(torch_npu.npu_reshape(x.npu(), [1, 3]).cpu(), x.view(1, 3))
    assert torch.equal(torch_npu.npu_slice(x.npu(), [1, 0], [2, 1]).cpu(), x[1:3])
    out = torch.empty(0, dtype=dtype, device="npu")
    assert torch.equal(torch_npu.npu_slice(x.npu(), [1, 0], [1, 1], out=out).cpu(), x[1:2])


@pytest.mark.parametrize(
    ("arguments", "index"),
    [
        (([0, 0, 0], [2, 2, 4], [1, 1, 2]), (slice(0, 2), slice(0, 2), slice(0, 4, 2))),
        (([1, 1, 0], [9, 9, 2], [1, 1, 1], 4, 3), (slice(1, None), slice(1, None), slice(None, 2))),
        (([0, 1], [0, 3], [1, 1], 0, 0, 1), (..., slice(1, 3))),
        (([0, 0, 1], [0, 2, 3], [1, 1, 1], 0, 0, 0, 1), (None, slice(0, 2), slice(1, 3))),
        (([1, 0, 0], [2, 3, 4], [1, 1, 1], 0, 0, 0, 0, 1), (1,)),
    ],
)
def test_indexing_by_masks(arguments: tuple[object, ...], index: tuple[object, ...]):
    assert torch.equal(torch_npu.npu_indexing(X.npu(), *arguments).cpu(), X[index])


@pytest.mark.parametrize(("begin", "end", "stride"), [(3, 0, -1), (3, 0, -2), (2, 1, -1), (3, 1, -3)])
def test_indexing_backwards(begin: int, end: int, stride: int):
    got = torch_npu.npu_indexing(X.npu(), [0, 0, begin], [2, 3, end], [1, 1, stride])
    assert torch.equal(got.cpu(), X[..., list(range(begin, end, stride))])


def test_indexing_backwards_beside_a_single_index_and_into_out():
    got = torch_npu.npu_indexing(X.npu(), [1, 0, 3], [2, 3, 0], [1, 1, -1], 0, 0, 0, 0, 1)
    assert torch.equal(got.cpu(), X[1][:, [3, 2, 1]])
    out = torch.empty(2, 3, 1, device="npu")
    torch_npu.npu_indexing(X.npu(), [0, 0, 1], [2, 3, 2], [1, 1, 1], out=out)
    assert torch.equal(out.cpu(), X[..., 1:2])


def test_padding():
    got = torch_npu.npu_pad(X[0].npu(), [1, 0, 0, 2])
    want = torch.zeros(4, 6)
    want[1:, :4] = X[0]
    assert torch.equal(got.cpu(), want)
    with pytest.raises(RuntimeError, match="4 paddings"):
        torch_npu.npu_pad(X[0].npu(), [1])


def test_stride_add_counts_blocks_of_sixteen_channels():
    x, y = torch.randn(2, 32, 2, 1, 1), torch.randn(2, 48, 2, 1, 1)
    got = torch_npu.npu_stride_add(x.npu(), y.npu(), 1, 2, 1)
    assert torch.equal(got.cpu(), x[:, 16:] + y[:, 32:])
    short = torch_npu.npu_stride_add(x[:, :1].npu(), x[:, :1].npu(), 0, 0, 1).cpu()
    assert short.shape[1] == 16
    assert torch.equal(short[:, :1], 2 * x[:, :1])
    assert not short[:, 1:].any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_one_hot(dtype: torch.dtype):
    x = torch.tensor([[0, 2], [5, -1]], dtype=dtype)
    got = torch_npu.npu_one_hot(x.npu(), -1, 3, 2, -1).cpu()
    want = torch.full((2, 2, 3), -1.0)
    want[0, 0, 0] = want[0, 1, 2] = 2
    assert torch.equal(got, want)
    torch_one_hot = torch.nn.functional.one_hot(torch.tensor([1, 0, 3], dtype=dtype, device="npu"))
    assert torch.equal(torch_one_hot.cpu(), torch.eye(4, dtype=torch.int64)[[1, 0, 3]])
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        torch.nn.functional.one_hot(torch.tensor([3], dtype=dtype, device="npu"), 3)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.nn.functional.one_hot(torch.tensor([-3], dtype=dtype, device="npu"))


def test_one_hot_of_nothing_and_of_floats():
    empty = torch.empty(0, 2, dtype=torch.int64, device="npu")
    assert torch.nn.functional.one_hot(empty, 3).shape == (0, 2, 3)
    with pytest.raises(RuntimeError, match="infer"):
        torch.nn.functional.one_hot(empty)
    with pytest.raises(RuntimeError, match="index tensor"):
        torch.nn.functional.one_hot(torch.ones(2, device="npu"))
    with pytest.raises(RuntimeError, match="positive"):
        torch.nn.functional.one_hot(torch.zeros(2, dtype=torch.int64, device="npu"), 0)


def test_sorting_and_extremes():
    x = torch.randn(5, 7)
    for dim, descending in ((0, True), (-1, False)):
        assert torch.equal(torch_npu.npu_sort_v2(x.npu(), dim, descending).cpu(), x.sort(dim, descending)[0])
    out = torch.empty(5, 7, device="npu")
    torch_npu.npu_sort_v2(x.npu(), out=out)
    assert torch.equal(out.cpu(), x.sort()[0])
    for mine, torchs in ((torch_npu.npu_max, x.max(1, True)), (torch_npu.npu_min, x.min(1, True))):
        values, indices = mine(x.npu(), 1, True)
        assert indices.dtype is torch.int32
        assert torch.equal(values.cpu(), torchs[0])
        assert torch.equal(indices.cpu().long(), torchs[1])


def test_masked_fill_range_on_every_axis():
    x = torch.randn(3, 4, 6)
    start, end = torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.tensor([[2, 3, 6]], dtype=torch.int32)
    value = torch.tensor([9.0])
    want = x.clone()
    for row in range(3):
        want[row, :, start[0, row] : end[0, row]] = 9
    got = torch_npu.npu_masked_fill_range(x.npu(), start.npu(), end.npu(), value.npu(), -1)
    assert torch.equal(got.cpu(), want)
    for axis in (0, 1):
        want = x.clone()
        want[(slice(None),) * axis + (slice(1, 3),)] = 9
        one, three = torch.tensor([[1]], dtype=torch.int32).npu(), torch.tensor([[3]], dtype=torch.int32).npu()
        assert torch.equal(torch_npu.npu_masked_fill_range(x.npu(), one, three, value.npu(), axis).cpu(), want)
    flat = torch_npu.npu_masked_fill_range(x[0, 0].npu(), start.npu(), end.npu(), value.npu(), 0).cpu()
    assert torch.equal(flat, torch.full((6,), 9.0))


@pytest.mark.parametrize("count", [1, 8, 17, 64])
def test_sign_bits_pack_and_unpack(count: int):
    x = torch.randn(count)
    packed = torch_npu.npu_sign_bits_pack(x.npu(), 1)
    assert packed.dtype is torch.uint8
    assert packed.shape == (1, (count + 7) // 8)
    for i, value in enumerate(x):
        assert (packed[0, i // 8].item() >> (i % 8)) & 1 == (value >= 0)
    signs = torch_npu.npu_sign_bits_unpack(packed.view(-1), 1, torch.float16)
    assert signs.dtype is torch.float16
    assert torch.equal(signs.cpu()[0, :count].float(), torch.where(x >= 0, 1.0, -1.0))
    assert (signs.cpu()[0, count:] == -1).all()


def test_sign_bits_refuse_what_does_not_fit():
    with pytest.raises(RuntimeError, match="rows"):
        torch_npu.npu_sign_bits_pack(torch.ones(8, device="npu"), 3)
    with pytest.raises(RuntimeError, match="one dimension"):
        torch_npu.npu_sign_bits_pack(torch.ones(8, 1, device="npu"), 1)


def test_casts_and_copies():
    x = torch.tensor([1.5, -2.5], device="npu", requires_grad=True)
    y = torch_npu.npu_dtype_cast(x, torch.float16)
    assert y.dtype is torch.float16
    y.sum().backward()
    assert x.grad.dtype is torch.float32
    with pytest.raises(RuntimeError, match="data type"):
        torch_npu.npu_dtype_cast(x, 99)
    z = torch.zeros(2, dtype=torch.int32, device="npu")
    torch_npu.npu_dtype_cast_(z, x.detach())
    assert z.tolist() == [1, -2]
    torch_npu.copy_memory_(z, torch.tensor([7, 8], dtype=torch.int32, device="npu"))
    assert z.tolist() == [7, 8]
    with pytest.raises(RuntimeError, match="same type"):
        torch_npu.copy_memory_(z, x.detach())
    assert torch_npu.one_(z).tolist() == [1, 1]


def test_scatters():
    x = torch.zeros(2, 3, device="npu")
    y = torch_npu.npu_scatter(x, torch.tensor([2, 0], dtype=torch.int32).npu(), torch.tensor([5.0, 6.0]).npu(), 1)
    assert y.tolist() == [[0, 0, 5], [6, 0, 0]]
    places = torch.tensor([[0, 1], [1, 2]]).npu()
    z = torch_npu.npu_scatter_nd_update(x, places, torch.tensor([5.0, 6.0]).npu())
    assert z.tolist() == [[0, 5, 0], [0, 0, 6]]
    assert not x.any()
    torch_npu.npu_scatter_nd_update_(x, places, torch.tensor([5.0, 6.0]).npu())
    assert torch.equal(x.cpu(), z.cpu())


# ------------------------------------------------------------------------------------------------ formats


def test_formats_are_labels_of_the_storage():
    x = torch.randn(2, 3, 4, 4, device="npu")
    assert torch_npu.get_npu_format(x) == torch_npu.Format.NCHW
    assert torch_npu.get_npu_format(x[0, 0]) == torch_npu.Format.ND
    y = torch_npu.npu_format_cast(x, torch_npu.Format.NC1HWC0)
    assert torch_npu.get_npu_format(y) == torch_npu.get_npu_format(y[0]) == 3
    assert torch_npu.get_npu_format(x) == 0
    assert torch.equal(y.cpu(), x.cpu())
    assert y.data_ptr() != x.data_ptr()
    assert torch_npu.npu_format_cast(y, 3) is y
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(y, torch_npu.Format.ND)) == torch_npu.Format.NCHW
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(x, y)) == 3
    torch_npu.npu_format_cast_(x, 29)
    assert torch_npu.get_npu_format(x) == 29
    torch_npu.npu_format_cast_(x, y)
    assert torch_npu.get_npu_format(x) == 3
    assert torch_npu.get_storage_size(x) == 96
    assert torch_npu.get_npu_format(torch_npu.empty_with_format([2, 3], acl_format=29)) == 29
