"""What recording costs: a training step with and without it, ours and msprobe's on the same model in the same run.

    python benchmarks/record.py [--steps N] [--written-out] [--peer PYTHON]

The model has 12 layers and 0.9M parameters, the batch is 8 × 128 tokens. Attention is torch's
scaled_dot_product_attention, as libraries of models have it; written out (--written-out), each layer makes six more
tensors as large as the rest of it together. Each figure is the median time of a recorded step, written to the disk
before the next one begins, divided by that of a plain step; three of each take turns N times. PYTHON is an interpreter
that has mindstudio-probe (msprobe).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

LIMITS = {("L1", "statistics"): 1.6, ("L1", "tensor"): 3.0, ("L0", "statistics"): 1.2, ("L0", "tensor"): None}
WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 72, 4, 12, 1000, 8, 128


class Block(nn.Module):
    """A layer of a transformer."""

    written_out = False

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.ln1(x)).reshape(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        )
        if self.written_out:
            scores = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / (width // HEADS) ** 0.5, dim=-1)
            attended = torch.matmul(scores, v)
        else:
            attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.ln2(x)))))


class Model(nn.Module):
    """Words in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.emb(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def workload() -> tuple[Model, Callable[[], None]]:
    """The model, and one training step of it."""
    torch.manual_seed(0)
    model = Model()
    words = torch.randint(0, WORDS, (BATCH, LENGTH))

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(words).reshape(-1, WORDS), words.reshape(-1)).backward()

    return model, step


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ours(level: str, task: str, folder: Path, steps: int) -> tuple[float, float]:
    """Median seconds of a plain step and of a recorded one."""
    import pytest_ascend as pa

    model, step = workload()

    def recorded(times: int) -> list[float]:
        found = []
        with pa.record(model, folder, level=level, task=task, progress=False) as recording:
            for _ in range(times):
                begin = time.perf_counter()
                step()
                recording.step()  # all is written now
                found.append(time.perf_counter() - begin)
        shutil.rmtree(folder)
        return found

    step()
    recorded(1)
    plain, found = [], []
    for _ in range(steps):
        plain += [timed(step) for _ in range(3)]
        found += recorded(3)
    return statistics.median(plain), statistics.median(found)


def theirs(level: str, task: str, folder: Path, steps: int) -> tuple[float, float]:
    """As :func:`ours`, with msprobe, in an interpreter that has it."""
    import json

    from msprobe.pytorch import PrecisionDebugger

    folder.mkdir(parents=True, exist_ok=True)
    config = folder.parent / f"config_{level}_{task}.json"
    settings = {"task": task, "dump_path": str(folder), "rank": [], "step": [], "level": level, task: {}}
    settings[task] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config.write_text(json.dumps(settings))
    os.chmod(config, 0o640)
    model, step = workload()
    debugger = PrecisionDebugger(config_path=str(config))

    def recorded() -> None:
        debugger.start(model=model)
        step()
        debugger.stop()
        debugger.step()

    # Its hooks stay, so a plain step is timed before the first recorded one alone.
    plain = [timed(step) for _ in range(steps + 1)][1:]
    found = [timed(recorded) for _ in range(steps + 1)][1:]
    return statistics.median(plain), statistics.median(found)


def main() -> int:
    """Print the table; 1 when a ratio of ours lies above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=5, help="turns of three plain and three recorded steps (default: 5)"
    )
    parser.add_argument("--written-out", action="store_true", help="attention as matmul and softmax")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has mindstudio-probe")
    parser.add_argument("--as-peer", nargs=3, metavar=("LEVEL", "TASK", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    Block.written_out = given.written_out
    if given.as_peer is not None:
        level, task, folder = given.as_peer
        print("seconds", *theirs(level, task, Path(folder), given.steps), flush=True)
        return 0
    print(f"{sum(p.numel() for p in Model().parameters()):,} parameters, {LAYERS} layers, batch {BATCH} x {LENGTH}")
    missed = 0
    with tempfile.TemporaryDirectory() as place:
        for (level, task), limit in LIMITS.items():
            plain, found = ours(level, task, Path(place, "ours"), given.steps)
            bound = "" if limit is None else f"  (at most {limit})"
            times = f"plain {plain * 1e3:6.0f} ms  recorded {found * 1e3:6.0f} ms  x{found / plain:.2f}"
            line = f"{level} {task:<10}  {times}{bound}"
            missed += limit is not None and found / plain > limit
            if given.peer is not None:
                command = [
                    given.peer,
                    __file__,
                    "--steps",
                    str(min(given.steps, 3)),
                    "--as-peer",
                    level,
                    task,
                    f"{place}/theirs",
                ]
                command += ["--written-out"] * given.written_out
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                at = done.stdout.rfind("seconds ")
                if at < 0:
                    print(done.stderr[-2000:], file=sys.stderr)
                    return 2
                peer_plain, peer_found = map(float, done.stdout[at:].split()[1:3])
                line += f"   msprobe: recorded {peer_found * 1e3:6.0f} ms  x{peer_found / peer_plain:.2f}"
                shutil.rmtree(Path(place, "theirs"), ignore_errors=True)
            print(line, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
