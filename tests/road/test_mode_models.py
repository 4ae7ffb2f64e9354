"""Modes without a switch: what a chip documents is MODE_DIFF, and nothing else is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.observe.variants import Products, rounded


@pytest.fixture(autouse=True)
def _as_before(_emulated):
    from pytest_ascend.targets import emulator

    soc = emulator.profile().name
    yield
    if emulator.profile().name != soc:
        emulator.install(soc)


def here(x):
    return x.device.type == "npu"


def on(soc):
    return {"target": f"emulated:{soc}"}


# ------------------------------------------------------------------------------------------ factors of few bits


def test_rounding_to_few_bits():
    from pytest_ascend.targets.emulator.numerics import hf32

    x = torch.cat([torch.randn(5000) * 10.0 ** torch.randint(-30, 30, (5000,)), torch.tensor([0.0, -0.0, 1 + 2**-12])])
    assert torch.equal(rounded(x, 11), hf32(x))
    assert torch.equal(rounded(x, 23), x)
    odd = torch.tensor([float("inf"), float("-inf"), float("nan")])
    assert torch.equal(rounded(odd, 10).nan_to_num(nan=7.0), odd.nan_to_num(nan=7.0))
    assert rounded(x.double(), 11).dtype is torch.float64


def few_bits(bits):
    def mm(a, b):
        return torch.mm(rounded(a, bits), rounded(b, bits))

    return mm


A, B = torch.randn(9, 300), torch.randn(300, 8)


def test_a_kernel_that_ignores_the_switch(check):
    """HF32 is on, and switching it off changes nothing here: the model of the mode explains it."""
    torch.npu.matmul.allow_hf32 = True
    try:
        with pa.emulator.override("aten::mm", few_bits(11)):
            result = check(torch.mm, A, B)
        with pa.emulator.override("aten::mm", few_bits(10)):
            coarser = check(torch.mm, A, B)
        with pa.emulator.override("aten::mm", lambda a, b: few_bits(11)(a, b) * 1.002):
            wrong = check(torch.mm, A, B)
    finally:
        torch.npu.matmul.allow_hf32 = False
    assert result.verdict is Verdict.MODE_DIFF
    assert "HF32 (factors of 11 mantissa bits) in matmul" in result.reason
    assert coarser.verdict is Verdict.FAIL
    assert wrong.verdict is Verdict.FAIL


def conv(x, w, bias, *rest):
    return torch.convolution(rounded(x, 11), rounded(w, 11), bias, *rest)


PRODUCTS = {
    "aten::bmm": (torch.bmm, (torch.randn(2, 5, 90), torch.randn(2, 90, 6))),
    "aten::addmm": (F.linear, (torch.randn(7, 90), torch.randn(5, 90), torch.randn(5))),
    "aten::mv": (torch.mv, (torch.randn(30, 90), torch.randn(90))),
    "aten::convolution": (F.conv2d, (torch.randn(1, 16, 7, 7), torch.randn(4, 16, 3, 3), torch.randn(4))),
}
KERNELS = {
    "aten::bmm": lambda a, b: torch.bmm(rounded(a, 11), rounded(b, 11)),
    "aten::addmm": lambda c, a, b, **k: torch.addmm(c, rounded(a, 11), rounded(b, 11), **k),
    "aten::mv": lambda a, b: torch.mv(rounded(a, 11), rounded(b, 11)),
    "aten::convolution": conv,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_other_products_that_ignore_the_switch(check, name):
    fn, args = PRODUCTS[name]
    torch.npu.matmul.allow_hf32 = True
    try:
        with pa.emulator.override(name, KERNELS[name]) as planted:
            result = check(fn, *args)
        with pa.emulator.override(name, lambda *a, **k: torch.roll(KERNELS[name](*a, **k), 1, -1)):
            wrong = check(fn, *args)
    finally:
        torch.npu.matmul.allow_hf32 = False
    assert planted.calls
    assert result.verdict is Verdict.MODE_DIFF, result.reason
    assert "HF32" in result.reason
    assert wrong.verdict is Verdict.FAIL


@pytest.mark.parametrize(("bits", "what"), [(11, "HF32"), (10, "TF32")])
def test_a_mode_that_is_off_is_no_excuse_and_a_note(check, bits, what):
    with pa.emulator.override("aten::mm", few_bits(bits)):
        result = check(torch.mm, A, B)
    assert result.verdict is Verdict.FAIL
    assert any(what in note and "is off" in note for note in result.notes)


def test_factors_of_few_bits_backward_too(check):
    def fn(a, b):
        return torch.mm(a, b)

    torch.npu.matmul.allow_hf32 = True
    try:
        with pa.emulator.override("aten::mm", few_bits(11)):
            result = check(fn, A.clone().requires_grad_(), B.clone().requires_grad_())
    finally:
        torch.npu.matmul.allow_hf32 = False
    assert result.verdict is Verdict.MODE_DIFF


def test_a_mode_needs_its_operator(check):
    result = check(lambda x: x * (1 + 2**-12 if here(x) else 1), torch.rand(64) + 1)
    assert result.verdict is Verdict.FAIL
    assert not any("HF32" in note for note in result.notes)


# ------------------------------------------------------------------------------------------ saturation


@pytest.mark.parametrize("soc", ["Ascend910A", "Ascend310P"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_chip_that_saturates(check, soc, dtype):
    x = torch.tensor([1.0, 3.0, 200.0, -2.0, 0.5] * 4).to(dtype)
    result = check(torch.exp, x, options=on(soc))
    assert result.verdict is Verdict.MODE_DIFF
    assert "saturation" in result.reason
    assert check(torch.exp, x, options=on("Ascend910B")).verdict is Verdict.PASS  # it has infinities


def test_saturation_excuses_nothing_else(check):
    x = torch.tensor([1.0, 3.0, 200.0, -2.0, 0.5] * 4).half()
    with pa.emulator.override("aten::exp", lambda x: torch.exp(x).clamp(max=65504) * 1.01):
        assert check(torch.exp, x, options=on("Ascend910A")).verdict is Verdict.FAIL
    with pa.emulator.override("aten::exp", lambda x: torch.exp(x).clamp(max=60000)):
        assert check(torch.exp, x, options=on("Ascend910A")).verdict is Verdict.FAIL
    with pa.emulator.override("aten::exp", lambda x: torch.exp(x).clamp(max=65504)):
        result = check(torch.exp, x, options=on("Ascend910B"))
    assert result.verdict is Verdict.FAIL  # it doesn't saturate
    assert any("saturation" in note for note in result.notes)


# ------------------------------------------------------------------------------------------ subnormal numbers


FAINT = torch.tensor([1e-39, -1e-39, 3e-39, 2.0, -1.0]).repeat(8)


@pytest.mark.parametrize(
    "fn", [lambda x: x * 1.5, lambda x: x / 2, lambda x: x * x.abs()], ids=["mul", "div", "square"]
)
def test_a_chip_that_flushes(check, fn):
    result = check(fn, FAINT, options=on("Ascend950"))
    zeros_anyway = torch.equal(fn(FAINT) == 0, fn(FAINT).abs() < 1.2e-38)
    assert result.verdict is (Verdict.PASS if zeros_anyway else Verdict.MODE_DIFF)
    assert check(fn, FAINT, options=on("Ascend910B")).verdict is Verdict.PASS


FLUSHES = {
    "wrong_sign": lambda y: torch.where(y.abs() < 1.2e-38, -y * 0.0, y),
    "no_sign": lambda y: torch.where(y.abs() < 1.2e-38, 0.0, y),
    "normal_too": lambda y: torch.where(y.abs() < 2e-38, y * 0.0, y),
    "else": lambda y: torch.where(y.abs() < 1.2e-38, y * 0.0, y * 1.001),
}


@pytest.mark.parametrize("name", FLUSHES)
def test_flushing_excuses_nothing_else(check, name):
    x = torch.cat([FAINT, torch.tensor([1.2e-38, -1.25e-38, 1.3e-38] * 8)])
    with pa.emulator.override("aten::mul.Tensor", lambda x, y: FLUSHES[name](x * y)) as planted:
        result = check(lambda x: x * 1.25, x, options=on("Ascend950"))
    assert planted.calls
    assert result.verdict is Verdict.FAIL


# ------------------------------------------------------------------------------------------ gelu


def test_gelu_where_there_is_no_switch(check):
    x = torch.linspace(-4, 4, 200)
    with pa.emulator.override("aten::gelu", lambda x, **k: F.gelu(x, approximate="tanh")):
        assert check(F.gelu, x).verdict is Verdict.MODE_DIFF
        result = check(F.gelu, x, options=on("Ascend950"))
        assert result.verdict is Verdict.FAIL
        assert any("tanh form of gelu" in note for note in result.notes)
    with pa.emulator.override("aten::gelu", lambda x, **k: F.gelu(x, approximate="tanh") * 1.001):
        assert check(F.gelu, x).verdict is Verdict.FAIL


def test_gelu_of_an_older_torch_npu(check, monkeypatch):
    monkeypatch.delattr(torch.npu, "are_compatible_impl_enabled")
    result = check(F.gelu, torch.linspace(-4, 4, 200), options=on("Ascend910B"))
    assert result.verdict is Verdict.MODE_DIFF
    assert "the tanh form of gelu: within the criterion beside a CPU that computes so" in result.reason


def test_a_variant_tells_whether_it_met_anything():
    mode = Products(11)
    with mode:
        torch.exp(A)
    assert mode.met == 0
    with mode:
        torch.mm(A, B)
    assert mode.met == 2
