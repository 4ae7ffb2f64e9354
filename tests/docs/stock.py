"""What the examples of the documentation take for granted: models, inputs, operators of one's own."""

from __future__ import annotations

import types
from typing import Any

import numpy as np  # noqa: F401
import pytest
import torch
import torch._dynamo

import pytest_ascend as pa
import pytest_ascend.check
import pytest_ascend.perf_run
import pytest_ascend.strategies
from pytest_ascend.targets import resolve

resolve("emulated")  # pytester drops what an inner run imports, and neither torch nor the emulator can be loaded twice

__all__ = ["names", "pa", "pytest", "torch", "torch_rms_norm"]

FIXTURES = """
import pytest
import torch

@pytest.fixture
def encoder():
    return torch.nn.Linear(8, 8)

@pytest.fixture
def batch():
    return {"input": torch.randn(4, 8)}

@pytest.fixture
def model():
    layers = [("encoder", torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())), ("head", torch.nn.Linear(8, 2))]
    model = torch.nn.Sequential()
    for name, layer in layers:
        model.add_module(name, layer)
    return model

@pytest.fixture
def x():
    return torch.randn(4, 8)
"""
HEADER = """
import types
import pytest
import torch
import pytest_ascend as pa

def torch_rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

my_ops = types.SimpleNamespace(rms_norm=torch_rms_norm)
x, weight = torch.randn(4, 8), torch.ones(8)
"""


def torch_rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


class WithLoss(torch.nn.Module):
    """A model whose result carries its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return types.SimpleNamespace(loss=self.layer(x).sum())


class Generator:
    """An inference engine: ``generate`` calls its model once for the prompt, then for each token."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8))

    def generate(self, prompt: torch.Tensor) -> None:
        for rows in (1, len(prompt), 1, 1, 1, 1):  # a warm-up first
            self.model(torch.randn(rows, 8))


def names(page: str) -> dict[str, Any]:
    """The names that a block of a page may use without making them."""
    batch = torch.randn(4, 8)
    return {
        "torch": torch,
        "pytest": pytest,
        "pa": pa,
        "model": WithLoss() if page == "recording.md" else torch.nn.Sequential(torch.nn.Linear(8, 2)),
        "batch": batch,
        "batches": [batch, batch],
        "x": batch,
        "loss": torch.Tensor.sum,
        "scaler": types.SimpleNamespace(scale=lambda loss: loss * 1024),
        "llm": Generator(),
        "prompt": batch,
        "golden": {"y": [batch.double()]},
        "actual": {"y": [batch]},
    }
