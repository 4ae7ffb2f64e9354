"""A comparison doesn't load torch's compiler, and compiled code is compared all the same."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.observe.modes import DispatchMode


def test_a_comparison_does_not_load_the_compiler() -> None:
    code = """
import sys
import torch
import pytest_ascend as pa
x = torch.randn(8, 32, requires_grad=True)
result = pa.check(torch.nn.functional.layer_norm, x, [32], options=pa.CheckOptions(target="emulated"))
assert result.passed, result
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class Doubled(DispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.relu.default else result


def test_the_compiler_leaves_a_mode_alone_once_it_is_loaded() -> None:
    x = torch.tensor([-1.0, 3.0])
    with Doubled():
        assert torch.relu(x).tolist() == [0.0, 6.0]
    importlib.import_module("torch._dynamo")
    with Doubled():
        assert torch.relu(x).tolist() == [0.0, 6.0]


@pytest.mark.filterwarnings("ignore")
def test_compiled_code_is_compared() -> None:
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="eager")
    result = pa.check(compiled, torch.randn(16), options=pa.CheckOptions(target="emulated"))
    assert result.passed, result
