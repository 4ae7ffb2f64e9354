"""The autograd engine knows the emulated devices, whatever ran before they came to be."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = "x = torch.randn(3, requires_grad=True); (x * x).sum().backward()"
ON = "x = torch.randn(3, device='{}', requires_grad=True); (x * x).sum().backward(); assert x.grad.device == x.device"


def run(*lines: str) -> None:
    source = "\n".join(("import torch", "import pytest_ascend as pa", *lines, "print('fine')"))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("before", ["", BEFORE], ids=["first", "after_one_on_the_cpu"])
def test_a_backward_pass(before):
    run(before, "pa.emulator.install()", ON.format("npu:1"), BEFORE)


def test_a_check_after_somebody_elses_backward_pass():
    options = "options=pa.CheckOptions(target='emulated', backward=True)"
    run(BEFORE, f"result = pa.check(torch.exp, x, {options})", "assert result.verdict is pa.Verdict.PASS, result")


def test_devices_that_are_added_later():
    run(BEFORE, "pa.emulator.install(devices=1)", "pa.emulator.install(devices=4)", ON.format("npu:3"))
