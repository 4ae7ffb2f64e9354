"""The tests that disasters.py runs: 200 comparisons, 20 of which may end their process, their device or the machine.

``PLANTED=1`` plants the disasters; without it the same tests are right.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

import pytest
import torch

import pytest_ascend as pa

TESTS = 200
#: place in the suite → what happens there, in the kernel of which operator
DISASTERS = {
    5: ("abort", "cumsum"),
    13: ("segfault", "exp"),
    24: ("sticky", "tanh"),
    37: ("loop", "sin"),
    41: ("exit", "cos"),
    58: ("hog", "erf"),
    66: ("abort", "sigmoid"),
    67: ("abort", "log1p"),
    80: ("segfault", "gelu"),
    92: ("sticky", "silu"),
    104: ("loop", "floor"),
    111: ("exit", "atan"),
    119: ("segfault", "sinh"),
    128: ("sticky", "cosh"),
    139: ("hog", "expm1"),
    147: ("wedge", "asinh"),
    158: ("abort", "ceil"),
    170: ("segfault", "trunc"),
    183: ("sticky", "rsqrt"),
    199: ("loop", "neg"),
}
OP = {"gelu": "aten.gelu.default", "silu": "aten.silu.default"}
CALLS = {"cumsum": lambda x: torch.cumsum(x, 0), "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}


def strike(what: str, op: str):
    """A kernel that does what its name says."""

    def kernel(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if what == "abort":
            os.abort()
        elif what == "segfault":
            ctypes.string_at(0)
        elif what == "exit":
            os._exit(0)
        elif what == "hog":
            kept = []
            while True:
                kept.append(torch.ones(1 << 24, device="cpu"))
        elif what == "loop":
            pause = ctypes.PyDLL(None).pause  # native code that holds the interpreter's lock and never returns
            while True:
                pause()
        elif what == "wedge":
            pa.emulator.wedge()
            return torch.ones(3, device="npu")
        else:
            pa.emulator.sicken()
        return CALLS.get(op, getattr(torch, op, None))(x)

    return kernel


@pytest.fixture(scope="module")
def model():
    """What each test runs beside its own operator."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("number", range(TESTS))
def test_item(number, model, ascend_compare):
    what, op = DISASTERS.get(number, ("", ""))
    ascend_compare(model, torch.randn(4, 16, 64))
    planted = contextlib.nullcontext()
    if what and os.environ.get("PLANTED") == "1":
        planted = pa.emulator.override(f"aten::{op}", strike(what, op))
    if what:
        with planted:
            ascend_compare(CALLS.get(op, getattr(torch, op, None)), torch.rand(4, 8) + 0.25)
