"""Cases run on the emulated NPU, and leave its modes as they found them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _as_before(_emulated):
    import torch

    from pytest_ascend.targets import emulator

    torch.manual_seed(0)
    soc, convolution, product = emulator.profile().name, torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32
    yield
    if emulator.profile().name != soc:
        emulator.install(soc)
    torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32 = convolution, product
