"""What the emulated torch_npu offers: real names, checked arguments, no CPU tensors, faults that can be planted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pytest_ascend as pa

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed
from torch_npu.contrib.function import npu_functional  # noqa: E402
from torch_npu.contrib.module import (  # noqa: E402
    LabelSmoothingCrossEntropy,
    Mish,
    NpuDropPath,
    PSROIPool,
    ROIAlign,
    SiLU,
)
from torch_npu.contrib.module.npu_modules import DropoutWithByteMask  # noqa: E402

KNOWN = set((Path(__file__).parents[1] / "data" / "torch_npu_names.txt").read_text().splitlines())


@pytest.mark.parametrize("module", ["", ".contrib", ".contrib.module", ".contrib.function", ".npu.utils", ".npu.amp"])
def test_every_public_name_is_one_of_torch_npus(module: str):
    offered = eval(f"torch_npu{module}")
    names = {n for n in vars(offered) if n.isidentifier() and not n.startswith("_")} - {"annotations", "expose"}
    assert len(names) >= 4
    assert {f"torch_npu{module}.{n}" for n in names} - KNOWN == set()


def test_an_operator_is_the_dispatchers_own():
    assert torch_npu.npu_mish is torch.ops.npu.npu_mish
    assert "tanh" in torch_npu.npu_mish.__doc__


def test_cpu_tensors_are_refused_as_on_a_card():
    with pytest.raises(NotImplementedError, match=r"npu::npu_mish.*'CPU' backend"):
        torch_npu.npu_mish(torch.ones(2))


def test_arguments_are_checked_against_the_schema():
    with pytest.raises(RuntimeError, match="npu_swiglu"):
        torch_npu.npu_swiglu(torch.ones(2, device="npu"), dims=0)


def test_two_devices_in_one_call_are_refused():
    if torch.npu.device_count() < 2:
        pytest.skip("one emulated device only")
    with pytest.raises(RuntimeError, match="same device"):
        torch_npu.npu_linear(torch.ones(2, 3, device="npu:0"), torch.ones(4, 3, device="npu:1"))


def test_a_fault_can_be_planted_in_a_fused_operator():
    x = torch.ones(3, device="npu")
    with pa.emulator.override("npu::npu_fast_gelu", lambda t: t * 0 + 7) as planted:
        assert torch_npu.npu_fast_gelu(x).tolist() == [7, 7, 7]
    assert planted.calls == 1
    assert torch_npu.npu_fast_gelu(x)[0].item() == pytest.approx(0.8458, abs=1e-3)


def test_operators_run_without_autograd_too():
    with torch.inference_mode():
        assert torch_npu.npu_mish(torch.zeros(2, device="npu")).tolist() == [0, 0]


def test_shapes_and_types_are_known_without_computing():
    x, gamma = torch.empty(2, 6, dtype=torch.float16, device="meta"), torch.empty(6, device="meta").half()
    y, rstd = torch_npu.npu_rms_norm(x, gamma)
    assert (y.device.type, y.shape, y.dtype) == ("meta", (2, 6), torch.float16)
    assert (rstd.shape, rstd.dtype) == ((2, 1), torch.float32)
    assert torch_npu.npu_swiglu(x).shape == (2, 3)


# ------------------------------------------------------------------------------------------------ contrib


def test_layers_are_made_of_the_operators():
    x = torch.randn(4, 5)
    torch.testing.assert_close(Mish()(x.npu()).cpu(), torch.nn.Mish()(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(SiLU()(x.npu()).cpu(), torch.nn.SiLU()(x), rtol=1e-4, atol=1e-5)
    target = torch.tensor([0, 3, 1, 4])
    loss = LabelSmoothingCrossEntropy(5, 0.1)(x.npu(), target.npu())
    hot = torch.full((4, 5), 0.1 / 4).scatter(1, target[:, None], 0.9)
    torch.testing.assert_close(loss.cpu(), -(hot * x.log_softmax(1)).sum(1).mean(), rtol=1e-4, atol=1e-5)


def test_drop_path_drops_whole_samples():
    x = torch.ones(200, 3, device="npu")
    layer = NpuDropPath(0.5)
    y = layer(x).cpu()
    rows = y[:, 0]
    assert torch.equal(y, rows[:, None].expand(-1, 3))
    assert set(rows.tolist()) == {0.0, 2.0}
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(NpuDropPath()(x), x)


def test_dropout_with_byte_mask_as_layer_and_function():
    x = torch.ones(4000, device="npu")
    y = DropoutWithByteMask(0.25)(x)
    assert y.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert 0.7 < (y != 0).float().mean().item() < 0.8
    assert torch.equal(DropoutWithByteMask(0.25).eval()(x), x)
    npu_functional.dropout_with_byte_mask(x, 1.0, inplace=True)
    assert not x.any()
    with pytest.raises(ValueError, match="between 0 and 1"):
        npu_functional.dropout_with_byte_mask(x, 1.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        DropoutWithByteMask(-1)


def test_pooling_layers():
    x = torch.arange(36.0).view(1, 1, 6, 6).npu()
    roi = torch.tensor([[0, 0.0, 0.0, 24.0, 24.0]]).npu()
    assert ROIAlign((3, 3), 0.25, 2, aligned=False)(x, roi).shape == (1, 1, 3, 3)
    maps = torch.ones(1, 8, 4, 4).npu()
    regions = torch.tensor([[[0.0], [0.0], [0.0], [3.0], [3.0]]]).npu()
    assert torch.equal(PSROIPool(2, 2, 1.0, 2, 2)(maps, regions).cpu(), torch.ones(1, 2, 2, 2))


# ------------------------------------------------------------------------------------------------ torch.npu


def test_overflow_helpers():
    from torch_npu.npu import utils

    assert utils.is_support_inf_nan()
    assert utils.npu_check_overflow(torch.full((2,), float("inf"), device="npu"))
    assert not utils.npu_check_overflow(torch.ones(2, device="npu"))
    assert utils.npu_check_overflow(float("nan"))
    with pytest.raises(RuntimeError, match="isfinite"):
        utils.get_npu_overflow_flag()
    pa.emulator.install("Ascend910A")
    utils.clear_npu_overflow_flag()
    assert not utils.is_support_inf_nan()
    big = torch.full((2,), 60000.0, device="npu").half()
    big + big
    status = torch_npu.npu_get_float_status(torch_npu.npu_alloc_float_status(big))
    assert status.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert utils.npu_check_overflow(1.0)
    assert not utils.get_npu_overflow_flag()
    big * big
    assert not torch_npu.npu_clear_float_status(status).any()
    assert not utils.get_npu_overflow_flag()


def test_options_are_kept():
    torch.npu.set_option({"NPU_FUZZY_COMPILE_BLACKLIST": "X"})
    assert torch_npu._C._npu_getOption("NPU_FUZZY_COMPILE_BLACKLIST") == b"X"
    assert torch_npu._C._npu_getOption("NEVER_SET") is None
    torch_npu._C._npu_setOption({"A": "b"})
    assert torch_npu._C._npu_getOption("A") == b"b"
    torch.npu.config.allow_internal_format = False
    assert torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT") == b"disable"
    with pytest.raises(TypeError, match="dict"):
        torch.npu.set_option("x")


def test_amp_is_torchs_for_this_device():
    from torch_npu.npu import amp

    with amp.autocast():
        assert torch.mm(torch.ones(2, 2, device="npu"), torch.ones(2, 2, device="npu")).dtype is torch.float16
    weight = torch.ones(2, device="npu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(init_scale=8.0, dynamic=False, growth_interval=1)
    scaler.scale(weight.sum()).backward()
    assert weight.grad.tolist() == [8, 8]
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0]
    assert scaler.get_scale() == 8.0
