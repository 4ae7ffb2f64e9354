"""Memory faults in kernels of the emulated device, and kernels without; run by test_sanitize_faults.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pytest_ascend as pa

Kernel = Callable[..., None]
FAULTS: dict[str, tuple[str, str, str, torch.dtype, Kernel]] = {}
"""Name → kind, direction and operator of what must be found; the dtype; the kernel."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.float64, torch.int32, torch.uint8)


def right(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    out.tensor.copy_(a.tensor + b.tensor)


def planted(name: str, kind: str, direction: str, op: str = "aten::add", dtype: torch.dtype = torch.float32) -> Any:
    def decorate(kernel: Kernel) -> Kernel:
        FAULTS[name] = kind, direction, op, dtype, kernel
        return kernel

    return decorate


def beside(out: Any, a: Any, b: Any, alpha: int = 1, *, offset: int, count: int) -> None:
    right(out, a, b)
    out.write(offset if offset < 0 else out.nbytes, bytes(range(7, 7 + count)))


for i, count in enumerate((1, 2, 4, 8, 16, 32, 64)):
    for name, offset in ((f"before_{count}", -count), (f"behind_{count}", 0)):
        kernel = functools.partial(beside, offset=offset, count=count)
        FAULTS[name] = "illegal write", "write", "aten::add", DTYPES[i], kernel


@planted("into_an_input", "illegal write", "write")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    a[a.numel() + 2] = 1.0


@planted("before_an_input", "illegal write", "write", dtype=torch.int32)
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    b[-1] = 9


@planted("strided_overrun", "illegal write", "write")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    for i in range(out.numel() // 2 + 4):  # every other element, four too many
        out[2 * i] = 2.0


@planted("rows_too_long", "illegal write", "write", dtype=torch.float16)
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    rows, columns = out.shape
    for row in range(rows):  # rows padded to 16, in memory that isn't
        out.window(row * 16, row * 16 + columns)[:] = 2


@planted("in_place", "illegal write", "write", "aten::mul_")
def _(out: Any, a: Any, b: Any) -> None:
    out.tensor.mul_(2)
    out[out.numel()] = 0.0


@planted("unwritten_tail_of_the_result", "uninitialized read", "read")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    out.window(0, out.numel() - 3)[:] = 2.0


@planted("unwritten_tail_of_integers", "uninitialized read", "read", dtype=torch.int32)
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    out.window(0, out.numel() - 1)[:] = 2


@planted("unwritten_workspace", "uninitialized read", "read", dtype=torch.float16)
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    work = pa.emulator.malloc(out.numel(), out.dtype)
    work.window(0, out.numel() - 2)[:] = 1
    out.window(0, out.numel())[:] = work.window(0, out.numel()) + a.window(0, out.numel())
    pa.emulator.free(work)


# Not found: the conversion to bfloat16 makes one NaN of all, so that the poison is gone.
@planted("unwritten_sum", "uninitialized read", "read", dtype=torch.bfloat16)
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    work = pa.emulator.malloc(8, torch.float32)
    work.window(0, 7)[:] = 1
    out.tensor.copy_(work.window(0, 8).sum())
    pa.emulator.free(work)


@planted("read_behind", "illegal read", "read")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    out.window(0, out.numel())[:] = a.window(1, a.numel() + 1) + 1


@planted("read_before", "illegal read", "read", dtype=torch.float64)
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    out.window(0, out.numel())[:] = a.window(-1, a.numel() - 1) * 2


@planted("stale_write", "illegal write", "write")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    work = pa.emulator.malloc(16, torch.float32)
    work.window(0, 16)[:] = 0
    pa.emulator.free(work)
    work[3] = 1.0


@planted("stale_read", "illegal read", "read")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    work = pa.emulator.malloc(out.numel(), torch.float32)
    work.window(0, out.numel())[:] = 2
    pa.emulator.free(work)
    out.window(0, out.numel())[:] = work.window(0, out.numel())


_last: list[Any] = []


@planted("stale_tensor", "illegal write", "write")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    if _last:
        _last[-1].write(0, b"\x01" * 4)  # an argument of the call before, whose tensor is gone
    a.tensor = None
    _last[:] = [a]


@planted("double_free", "illegal free", "")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    work = pa.emulator.malloc(16)
    pa.emulator.free(work)
    pa.emulator.free(work)


@planted("free_of_an_argument", "illegal free", "")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    pa.emulator.free(a)


@planted("leak_per_call", "leak", "")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    pa.emulator.malloc(64)


_calls = [0]


@planted("leak_per_10th_call", "leak", "")
def _(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
    right(out, a, b)
    work = pa.emulator.malloc(64)
    _calls[0] += 1
    if _calls[0] % 10:
        pa.emulator.free(work)


def run(kernel: Kernel, dtype: torch.dtype, device: torch.device, op: str = "aten::add") -> None:
    with pa.emulator.override(op, kernel, raw=True):
        for _ in range(20 if kernel is FAULTS["leak_per_10th_call"][4] else 2):
            x = torch.ones(4, 5, dtype=dtype, device=device)
            x + x if op == "aten::add" else x.mul_(x)
            del x


@pytest.mark.parametrize("name", FAULTS)
def test_planted(name: str, ascend_device: torch.device) -> None:
    _, _, op, dtype, kernel = FAULTS[name]
    run(kernel, dtype, ascend_device, op)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_right(dtype: torch.dtype, ascend_device: torch.device) -> None:
    def careful(out: Any, a: Any, b: Any, alpha: int = 1) -> None:
        work = pa.emulator.malloc(out.numel(), dtype)
        work.window(0, out.numel())[:] = a.window(0, a.numel())
        out.window(0, out.numel())[:] = work.window(0, out.numel()) + b.window(0, b.numel())
        pa.emulator.free(work)

    run(careful, dtype, ascend_device)
