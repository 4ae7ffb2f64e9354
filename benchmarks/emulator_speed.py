"""What emulation costs: the same work on the emulated npu and on plain CPU, in turns within one process.

Prints the ratio of medians for a small training step (convolution, batch norm, two transformer layers, AdamW; batch 4)
and for the forward pass of a 12-layer transformer (width 256, batch 8 of 128 tokens). Targets: at most x4 and x1.8.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from pytest_ascend.targets import emulator


class Small(nn.Module):
    """A convolution stem and two transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(16)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.project = nn.Linear(256, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, 32, 32) images to (N, 10) scores."""
        y = torch.relu(self.norm(self.conv(x))).flatten(2)
        return self.head(self.encoder(self.project(y)).mean(1))


def training(device: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = Small().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.randn(4, 3, 32, 32).to(device), torch.tensor([1, 2, 3, 4]).to(device)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def forward(device: str) -> Callable[[], object]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = copy.deepcopy(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)).eval().to(device)
    x = torch.randn(8, 128, 256).to(device)

    def step() -> object:
        with torch.no_grad():
            return model(x)

    return step


def compare(name: str, make: Callable[[str], Callable[[], object]], rounds: int, limit: float) -> None:
    cpu, npu = make("cpu"), make("npu")
    for _ in range(3):
        cpu(), npu()
    times: dict[str, list[float]] = {"cpu": [], "npu": []}
    for _ in range(rounds):
        for device, step in (("cpu", cpu), ("npu", npu)):
            start = time.perf_counter()
            step()
            times[device].append(time.perf_counter() - start)
    low, high = (statistics.median(times[d]) for d in ("cpu", "npu"))
    ratio = high / low
    print(f"{name:<28} cpu {low * 1e3:8.2f} ms   emulated npu {high * 1e3:8.2f} ms   x{ratio:.2f} (target <= x{limit})")


if __name__ == "__main__":
    emulator.install()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    compare("small training step", training, 60, 4.0)
    compare("12-layer forward", forward, 15, 1.8)
