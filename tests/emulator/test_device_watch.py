"""Guard bands and fill patterns of the emulated device's memory: code can't see them, faults can't miss them."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from pytest_ascend.targets import emulator


@pytest.fixture
def watch():
    with emulator.watching() as watch:
        yield watch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.bool])
def test_guarded_memory_looks_like_any_other(watch, dtype):
    x = torch.arange(12).view(3, 4).to(dtype).to("npu")
    assert (x.storage_offset(), x.stride(), x.untyped_storage().nbytes()) == (0, (4, 1), 12 * x.element_size())
    assert torch.equal(x.cpu(), torch.arange(12).view(3, 4).to(dtype))
    assert x.data_ptr() % 64 == 0
    assert x.t().contiguous().cpu().shape == (4, 3)
    assert torch.empty(2, 3, 4, 4, device="npu", memory_format=torch.channels_last).stride() == (48, 1, 12, 3)
    gaps = torch.empty_strided((3, 4), (8, 1), device="npu")
    assert (gaps.stride(), gaps.untyped_storage().nbytes()) == ((8, 1), 80)
    assert torch.empty(0, 3, device="npu").shape == (0, 3)
    assert x.clone().resize_(40).shape == (40,)
    assert watch.found() == []


def test_what_is_written_beside_a_block_is_found_once(watch):
    x = torch.zeros(5, device="cpu").to("npu")
    ctypes.memset(x.data_ptr() - 8, 1, 4)
    ctypes.memset(x.data_ptr() + x.nbytes, 1, 2)
    before, after = watch.found()
    assert (before.address, before.first, before.last) == (x.data_ptr(), -8, -5)
    assert (after.size, after.first, after.last) == (20, 20, 21)
    assert watch.found() == []


def test_what_was_written_beside_a_block_that_is_gone_is_found_too(watch):
    gc.collect()  # what other tests left behind
    alive = emulator.live_allocations()
    x = torch.empty(5, device="npu")
    assert emulator.live_allocations() == alive + 1
    ctypes.memset(x.data_ptr() - 1, 1, 1)
    del x
    gc.collect()
    assert emulator.live_allocations() == alive
    assert [found.first for found in watch.found()] == [-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_fresh_memory_holds_the_pattern(watch, dtype):
    watch.fill = 0xFF
    assert torch.empty(4, dtype=dtype, device="npu").isnan().all()
    assert (torch.empty(4, dtype=torch.int64, device="npu").cpu() == -1).all()
    assert torch.empty(4, dtype=torch.bool, device="npu").all()
    watch.fill = 0x5A
    assert torch.empty(4, dtype=dtype, device="npu").isfinite().all()


def test_without_a_watch_memory_is_as_it_was():
    with emulator.watching() as outer, emulator.watching() as inner:
        x = torch.empty(3, device="npu")
        ctypes.memset(x.data_ptr() - 1, 1, 1)
        assert outer.found() == []
        assert len(inner.found()) == 1
    y = torch.empty(3, device="npu")
    assert y.untyped_storage().nbytes() == 12
