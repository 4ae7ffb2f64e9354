"""Cases run on the emulated NPU, and leave its modes as they found them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def _emulated():
    from pytest_ascend.targets import resolve

    return resolve("emulated")


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


@pytest.fixture
def check(_emulated):
    """``check(fn, *args, options=dict(...))`` on the emulated device."""
    from pytest_ascend.check import check
    from pytest_ascend.options import CheckOptions

    def run(fn, *args, options=None, **kwargs):
        return check(fn, *args, options=CheckOptions(**{"target": "emulated", **(options or {})}), **kwargs)

    return run
