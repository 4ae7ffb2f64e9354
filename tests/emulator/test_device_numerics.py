"""The chip's numerics: different from the CPU's on purpose, and in the documented way."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ascend.targets import emulator
from pytest_ascend.targets.emulator.device import machine
from pytest_ascend.targets.emulator.numerics import hf32
from pytest_ascend.targets.emulator.soc import PROFILES, profile


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.cpu().double() - want.double()).norm() / want.double().norm()).item()


def test_four_chips_and_their_differences():
    assert set(PROFILES) == {"Ascend910A", "Ascend310P", "Ascend910B", "Ascend950"}
    a, p, b, n = (PROFILES[x] for x in ("Ascend910A", "Ascend310P", "Ascend910B", "Ascend950"))
    assert not a.bf16
    assert not a.hf32
    assert a.overflow_modes == ("saturation",)
    assert not p.bf16
    assert p.overflow_modes == ("saturation",)
    assert b.bf16
    assert b.hf32
    assert b.overflow_modes[0] == "inf_nan"
    assert not b.flush_subnormals
    assert n.flush_subnormals
    assert n.overflow_modes == ("inf_nan",)
    assert profile("ascend910b") is b
    with pytest.raises(ValueError, match="Ascend910B"):
        profile("Ascend999")


@given(st.floats(width=32, allow_nan=True, allow_infinity=True))
@settings(max_examples=300, deadline=None)
def test_hf32_keeps_eleven_bits_and_rounds_to_nearest(value):
    x = torch.tensor([value], dtype=torch.float32)
    y = hf32(x)
    if not torch.isfinite(x).all():
        assert torch.equal(torch.isnan(x), torch.isnan(y))
        assert torch.isnan(x).item() or x.item() == y.item()
        return
    assert y.view(torch.int32).item() & 0xFFF == 0
    if torch.isfinite(y).all() and abs(value) > 2e-38:
        assert abs(y.item() - x.item()) <= abs(x.item()) * 2**-12


def test_hf32_is_on_for_convolution_and_off_for_matmul():
    assert torch.npu.conv.allow_hf32 is True
    assert torch.npu.matmul.allow_hf32 is False
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    exact = a.double() @ b.double()
    assert relative_error(a.npu() @ b.npu(), exact) < 1e-6
    torch.npu.matmul.allow_hf32 = True
    assert 1e-5 < relative_error(a.npu() @ b.npu(), exact) < 1e-3
    x, w = torch.randn(1, 8, 9, 9), torch.randn(4, 8, 3, 3)
    exact = F.conv2d(x.double(), w.double())
    assert 1e-5 < relative_error(F.conv2d(x.npu(), w.npu()), exact) < 1e-3
    torch.npu.conv.allow_hf32 = False
    assert relative_error(F.conv2d(x.npu(), w.npu()), exact) < 1e-6


def test_hf32_leaves_the_bias_alone():
    torch.npu.matmul.allow_hf32 = True
    bias = torch.tensor([1 + 2**-20])
    got = torch.addmm(bias.npu(), torch.zeros(1, 4, device="npu"), torch.zeros(4, 1, device="npu"))
    assert got.item() == bias.item()


def test_switches_accept_only_a_bool():
    with pytest.raises(TypeError, match="allow_hf32 must be a bool"):
        torch.npu.matmul.allow_hf32 = 1


def test_chips_without_hf32_ignore_the_switch():
    emulator.install("Ascend910A")
    torch.npu.matmul.allow_hf32 = True
    assert torch.npu.matmul.allow_hf32 is False


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", ["mm", "bmm", "addmm", "linear", "conv2d"])
def test_sixteen_bit_cube_accumulates_in_float32_and_rounds_once(dtype, op):
    k = 512
    a, b = torch.randn(8, k).to(dtype), torch.randn(k, 8).to(dtype)
    bias = torch.randn(8).to(dtype)
    calls = {
        "mm": (lambda d, t: torch.mm(t(a).to(d), t(b).to(d))),
        "bmm": (lambda d, t: torch.bmm(t(a)[None].to(d), t(b)[None].to(d))),
        "addmm": (lambda d, t: torch.addmm(t(bias).to(d), t(a).to(d), t(b).to(d))),
        "linear": (lambda d, t: F.linear(t(a).to(d), t(b).to(d).t(), t(bias).to(d))),
        "conv2d": (lambda d, t: F.conv2d(t(a).to(d).view(8, 32, 4, 4), t(b).to(d).t().reshape(8, 32, 4, 4))),
    }
    want = calls[op](torch.float64, lambda x: x)
    got = calls[op](dtype, lambda x: x.npu()).cpu()
    assert got.dtype == dtype
    # Rounded once: within half a unit in the last place of the exact result, plus what float32 accumulation adds.
    unit = torch.finfo(dtype).eps / 2
    assert ((got.double() - want).abs() <= want.abs() * unit * 1.01 + 1e-3 * unit * k**0.5).all()


def test_float32_matmul_differs_from_the_cpu_in_the_last_bits_only():
    a, b = torch.randn(64, 512), torch.randn(512, 64)
    cpu, npu = a @ b, (a.npu() @ b.npu()).cpu()
    assert not torch.equal(cpu, npu)
    assert relative_error(npu, a.double() @ b.double()) < 5e-7


@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: x.sum(),
        lambda x: x.sum(-1),
        lambda x: x.sum((0, 1)),
        lambda x: x.mean(),
        lambda x: x.mean(-1, keepdim=True),
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: F.layer_norm(x, x.shape[-1:]),
    ],
)
def test_reductions_take_another_order(reduce):
    differs = False
    for _ in range(8):  # a single number may agree by chance
        x = torch.randn(32, 8, 1000) + 0.5
        cpu, npu, exact = reduce(x), reduce(x.npu()).cpu(), reduce(x.double())
        assert npu.shape == cpu.shape
        assert npu.dtype == cpu.dtype
        torch.testing.assert_close(npu.double(), exact, rtol=1e-5, atol=1e-4)
        differs |= not torch.equal(cpu, npu)
    assert differs, "the emulated reduction has the CPU's order: it exercises no tolerance"


@pytest.mark.parametrize(
    ("shape", "dims", "keepdim"),
    [((3, 130), [1], True), ((130, 3), [0], False), ((5, 7, 65), [0, 2], True), ((200,), [], False)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sum_and_mean_shapes_and_types(shape, dims, keepdim, dtype, name):
    x = torch.randn(shape).to(dtype)
    want = getattr(torch, name)(x.double(), dims or None, keepdim=keepdim)
    got = getattr(torch, name)(x.npu(), dims or None, keepdim=keepdim).cpu()
    assert got.shape == want.shape
    assert got.dtype == dtype
    torch.testing.assert_close(
        got.double(), want, rtol=torch.finfo(dtype).eps * 2, atol=1e-2 if dtype != torch.float32 else 1e-4
    )


def test_sums_with_another_result_type_and_of_integers():
    x = torch.randn(1000).half()
    assert x.npu().sum(dtype=torch.float32).dtype == torch.float32
    assert torch.arange(1000).npu().sum().item() == 499_500
    assert (torch.ones(300, dtype=torch.uint8).npu()).sum().item() == 300


def test_gelu_is_the_tanh_form_unless_asked_otherwise():
    x = torch.linspace(-4, 4, 1001)
    tanh, exact = F.gelu(x, approximate="tanh"), F.gelu(x)
    assert torch.equal(F.gelu(x.npu()).cpu(), tanh)
    torch.npu.use_compatible_impl(True)
    assert torch.equal(F.gelu(x.npu()).cpu(), exact)
    emulator.install("Ascend950")
    assert torch.equal(F.gelu(x.npu()).cpu(), exact)


def test_gelu_backward_matches_its_forward():
    x = torch.randn(100)
    for device, form in (("cpu", "tanh"), ("npu", "none")):
        y = x.clone().to(device).requires_grad_()
        F.gelu(y, approximate=form).sum().backward()
        grad = y.grad.cpu()
        if device == "cpu":
            want = grad
    torch.testing.assert_close(grad, want)


def test_saturation_clamps_overflow_and_clears_nan():
    emulator.install("Ascend910A")
    big = torch.full((4,), 60000.0, dtype=torch.float16, device="npu")
    torch.npu.clear_npu_overflow_flag()
    assert (big * 2).tolist() == [65504.0] * 4
    assert torch.npu.get_npu_overflow_flag() is True
    assert (torch.zeros(1, dtype=torch.float16).npu() / 0).tolist() == [0.0]
    assert torch.exp(torch.tensor([12.0], dtype=torch.float16).npu()).item() == 65504.0
    square = torch.full((2, 2), 300.0, dtype=torch.float16).npu()
    assert (square @ square).tolist() == [[65504.0] * 2] * 2
    assert (-big * 2).tolist() == [-65504.0] * 4


def test_inf_nan_mode_gives_infinities_and_has_no_flag():
    big = torch.full((2,), 60000.0, dtype=torch.float16, device="npu")
    assert (big * 2).tolist() == [float("inf")] * 2
    with pytest.raises(RuntimeError, match="isfinite"):
        torch.npu.get_npu_overflow_flag()


def test_saturation_does_not_touch_data_movement():
    emulator.install("Ascend910A")
    x = torch.tensor([float("inf"), float("nan"), 1.0]).npu()
    assert torch.isinf(x.clone()).any().item()
    assert torch.isnan(x[[0, 1, 2]]).any().item()


def test_subnormals_are_flushed_on_950_with_their_sign():
    x = torch.tensor([1e-39, -1e-39, 1.0])
    kept = (x.npu() * 1).cpu()
    assert torch.equal(kept, x)
    emulator.install("Ascend950")
    flushed = (x.npu() * 1).cpu()
    assert flushed.tolist() == [0.0, -0.0, 1.0]
    assert torch.signbit(flushed).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x @ x,
        lambda x: torch.bmm(x[None], x[None]),
        lambda x: F.linear(x, x, x[0]),
        lambda x: F.conv2d(x[None, None], x[None, None]),
    ],
)
def test_float64_is_no_cube_type(call):
    with pytest.raises(RuntimeError, match=r"aten::\w+.*float64.*not supported.*Ascend910B"):
        call(torch.ones(3, 3, dtype=torch.float64).npu())


@pytest.mark.parametrize("soc", ["Ascend910A", "Ascend310P"])
def test_bfloat16_is_refused_where_the_chip_lacks_it(soc):
    emulator.install(soc)
    x = torch.ones(2, 2, dtype=torch.bfloat16).npu()
    assert not torch.npu.is_bf16_supported()
    with pytest.raises(RuntimeError, match=r"aten::add.*bfloat16.*not supported"):
        x + x
    with pytest.raises(RuntimeError, match=r"aten::mm.*bfloat16.*not supported"):
        x @ x


def test_numerics_can_be_switched_off_to_debug():
    a, b = torch.randn(64, 512), torch.randn(512, 64)
    machine.modes.numerics = False
    assert torch.equal((a.npu() @ b.npu()).cpu(), a @ b)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.nll_loss(
            torch.zeros(2, 3, device=d).log_softmax(-1), torch.tensor([0, 1], dtype=torch.int32, device=d)
        ),
        lambda d: F.one_hot(torch.tensor([0, 2], dtype=torch.int32, device=d)),
        lambda d: torch.cdist(torch.ones(2, 3, device=d).half(), torch.zeros(2, 3, device=d).half()),
        lambda d: F.interpolate(torch.ones(1, 1, 4, 4, device=d).half(), scale_factor=2, mode="bilinear"),
        lambda d: torch.softmax(torch.ones(3, device=d).half(), -1, dtype=torch.float32),
        lambda d: torch.gather(torch.arange(3.0, device=d), 0, torch.tensor([2, 0], dtype=torch.int32, device=d)),
    ],
)
def test_what_a_card_accepts_and_cpu_kernels_refuse(call):
    assert call("npu").device.type == "npu"


def test_widened_results_return_to_the_narrow_type():
    x = torch.rand(2, 3)
    got = torch.cdist(x.npu().half(), x.npu().half())
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.cpu().float(), torch.cdist(x.half().float(), x.half().float()), rtol=1e-2, atol=1e-2)


def test_a_wrong_call_still_raises_torchs_own_error():
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|must match|mat1 and mat2"):
        torch.ones(2, 3).npu() @ torch.ones(2, 3).npu()
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.ones(2).npu().sum(3)


def test_what_a_widened_kernel_writes_beside_its_result_arrives() -> None:
    """The noise of rrelu, which no result aliases: its backward pass would read what was in memory before."""
    x = torch.linspace(-2, 2, 33, dtype=torch.float16, device="npu").requires_grad_()
    torch.nn.functional.rrelu(x, training=True).sum().backward()
    assert x.grad is not None
    slope = x.grad.cpu()
    assert ((slope[:16] >= 0.12) & (slope[:16] <= 0.34)).all()
    assert (slope[17:] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_tanh_form_of_gelu_has_a_gradient_at_the_ends_of_the_range(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([-largest, -1.0, 0.0, 1.0, largest], dtype=dtype, device="npu").requires_grad_()
    F.gelu(x).sum().backward()
    assert x.grad is not None
    assert x.grad[0].item() == 0
    assert x.grad[4].item() == 1
    assert x.grad.isfinite().all()
