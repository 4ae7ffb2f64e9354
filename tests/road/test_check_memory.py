"""Memory is a result too: what was never written, and what was written where nothing belonged to the callable."""

from __future__ import annotations

import contextlib
import ctypes

import pytest
import torch

from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    return x.device.type == "npu"


def write(x, offset, nbytes, byte=1):
    """As a kernel that computes a wrong address does."""
    ctypes.memset(x.data_ptr() + offset, byte, nbytes)


# ------------------------------------------------------------------------------------------------------ unwritten


def all_but_three(x):
    y = torch.empty_like(x)
    y[:-3] = x[:-3]
    return y if here(x) else y.copy_(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_tail_that_is_never_written_is_named(check, dtype):
    x = (torch.arange(20) % 2).to(dtype)
    for _ in range(2):  # whatever the memory held before
        result = check(all_but_three, x)
        assert (result.verdict, result.kind) == (Verdict.FAIL, Kind.unwritten)
        assert "3 of 20 elements were never written (the last 3)" in result.reason


def test_an_output_that_is_never_written_at_all(check):
    result = check(lambda x: torch.empty_like(x) if here(x) else x * 2, torch.randn(4, 4))
    assert result.kind is Kind.unwritten
    assert "16 of 16" in result.reason


def test_what_comes_from_unwritten_memory(check):
    result = check(lambda x: all_but_three(x).sum(0), torch.randn(20, 4))
    assert result.kind is Kind.unwritten
    assert "4 of 4 elements depend on memory that was never written" in result.reason


def test_a_gradient_that_is_never_written(check):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            result = torch.empty_like(grad)
            result[:4] = grad[:4] * 2
            return result if here(grad) else grad * 2

    result = check(Doubled.apply, torch.randn(9, requires_grad=True))
    assert result.kind is Kind.unwritten
    assert result.worst.path == "grad(args[0])"


def test_what_nobody_writes_can_t_be_compared(check):
    assert check(torch.empty_like, torch.randn(5)).verdict is Verdict.NOT_COMPARABLE
    assert check(torch.empty, 4, device="npu").verdict is Verdict.NOT_COMPARABLE

    def partly(x):
        y = torch.empty_like(x)
        y[:-3] = x[:-3]
        return y

    assert check(partly, torch.randn(20)).verdict is Verdict.NOT_COMPARABLE


def test_memory_that_is_written_before_it_is_read_is_no_matter(check):
    def right(x):
        y = torch.empty_like(x)
        return y.copy_(x).mul_(2)

    assert check(right, torch.randn(20)).verdict is Verdict.PASS
    wrong = check(lambda x: right(x) * (1.1 if here(x) else 1.0), torch.rand(20) + 1)
    assert wrong.verdict is Verdict.FAIL
    assert wrong.kind is not Kind.unwritten


def test_on_a_card_what_torch_empty_returns_is_filled(check, monkeypatch):
    """A card can't fill its memory; what Python code takes is filled all the same."""
    monkeypatch.setattr("pytest_ascend.targets.npu.NpuTarget.watch", lambda self: contextlib.nullcontext(None))
    result = check(lambda x: torch.empty_like(x) * 1 if here(x) else x * 2, torch.rand(4, 4) + 1)
    assert result.kind is Kind.unwritten
    assert "16 of 16 elements" in result.reason
    wrong = check(lambda x: x * (2.1 if here(x) else 2.0), torch.rand(4, 4) + 1)
    assert wrong.verdict is Verdict.FAIL
    assert wrong.kind is not Kind.unwritten


def test_on_a_card_arguments_lie_between_guard_bands(check, monkeypatch):
    monkeypatch.setattr("pytest_ascend.targets.npu.NpuTarget.watch", lambda self: contextlib.nullcontext(None))

    def fn(x):
        if here(x) and x.storage_offset():
            write(x, -8, 8)
        return x * 2

    result = check(fn, torch.randn(6))
    assert result.verdict is Verdict.MEMORY_FAULT
    assert "2 elements before args[0]" in result.reason


# ------------------------------------------------------------------------------------------------- beside the memory


@pytest.mark.parametrize(
    ("offset", "nbytes", "words"),
    [
        (-8, 8, "2 elements before args[0] (elements 1 to 2 before it)"),
        (-4, 4, "1 element before args[0]"),
        (24, 4, "1 element after args[0]"),
        (32, 8, "2 elements after args[0] (elements 3 to 4 after it)"),
    ],
)
def test_a_write_beside_an_argument_is_found_though_the_values_are_right(check, offset, nbytes, words):
    def fn(x):
        if here(x):
            write(x, offset, nbytes)
        return x * 2

    result = check(fn, torch.randn(6))
    assert (result.verdict, result.kind) == (Verdict.MEMORY_FAULT, Kind.mutation)
    assert words in result.reason
    assert result.outputs[0].verdict is Verdict.PASS


def test_a_write_beside_an_output_an_out_and_what_the_callable_made(check):
    def output(x):
        y = torch.empty_like(x).copy_(x)
        if here(x):
            write(y, y.nbytes, 4)
        return y

    def given(x, *, out):
        if here(x):
            write(out, -4, 4)
        return torch.mul(x, 2, out=out)

    def scratch(x):
        buffer = torch.empty(10, device=x.device)
        if here(x):
            write(buffer, -4, 4)
        return x * 2

    x = torch.randn(6)
    for fn, kwargs, place in ((output, {}, "output"), (given, {"out": torch.zeros(6)}, "out"), (scratch, {}, "made")):
        result = check(fn, x, **kwargs)
        assert result.verdict is Verdict.MEMORY_FAULT
        assert place in result.reason


def test_a_kernel_of_torch_s_own_is_watched_too(check):
    import pytest_ascend as pa

    def kernel(x):
        write(x, x.nbytes, 5)
        return torch.exp(x)

    with pa.emulator.override("aten::exp", kernel):
        assert check(torch.exp, torch.randn(7)).verdict is Verdict.MEMORY_FAULT
    assert check(torch.exp, torch.randn(7)).verdict is Verdict.PASS


def test_a_backward_pass_is_watched_too(check):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            if here(x):
                write(x, -4, 4)
            return grad * 2

    assert check(Doubled.apply, torch.randn(9, requires_grad=True)).verdict is Verdict.MEMORY_FAULT


# Where a device can't watch its memory, arguments lie between guard bands in a run of its own.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.complex64, torch.float8_e4m3fn])
def test_arguments_between_guard_bands(check, dtype):
    def fn(x, y):
        if y.storage_offset():  # or it would write where nothing is watched
            write(y, y.nbytes, 2)
        return x * 2

    y = torch.zeros(6).to(dtype)
    result = check(fn, torch.randn(6), y, options={"target": "cpu"})
    assert result.verdict is Verdict.MEMORY_FAULT
    assert "after args[1]" in result.reason


def test_views_survive_between_guard_bands(check):
    from pytest_ascend.cases.case import Case

    base = torch.arange(24.0).view(4, 6)
    a, b = base.t()[1:], base[1, 2:5].expand(2, 3)
    built = Case(lambda a, b: None, (a, b)).build(torch.device("cpu"), guard=True)
    new_a, new_b = built.args
    assert torch.equal(new_a, a)
    assert torch.equal(new_b, b)
    assert (new_a.stride(), new_b.stride()) == (a.stride(), b.stride())
    assert new_a.untyped_storage().data_ptr() == new_b.untyped_storage().data_ptr()
    assert new_a.data_ptr() - new_b.data_ptr() == a.data_ptr() - b.data_ptr()
    assert len(built.rooms) == 1
    assert built.rooms[0].path == "args[0]"


def test_guard_bands_are_for_callables_that_are_not_torch_s_own(check, monkeypatch):
    from pytest_ascend.observe import reruns

    guarded = []
    run = reruns.run
    monkeypatch.setattr(reruns, "run", lambda *a, **k: (guarded.append(k.get("guard")), run(*a, **k))[1])
    check(torch.exp, torch.randn(6), options={"target": "cpu"})
    assert True not in guarded
    assert check(lambda x: x.exp(), torch.randn(6), options={"target": "cpu"}).verdict is Verdict.PASS
    assert guarded.count(True) == 1
    guarded.clear()
    check(lambda x: x.exp(), torch.randn(6))  # the emulated device watches its own memory
    assert True not in guarded
