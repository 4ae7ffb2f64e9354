"""Broken and hostile dumps by the thousand: no crash, no hang, no file outside the dump opened, no pickle executed.

A few hundred mutations run with the tests; ``ASCEND_FUZZ=5000`` (``make fuzz``) runs as many as it says. They run in a
process of their own, with bounded memory, under an audit hook that sees every file opened and every name a pickle asks
for.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

COUNT = int(os.environ.get("ASCEND_FUZZ", "200"))
SECONDS_EACH = 1.0
WORKER = Path(__file__).with_name("fuzz_worker.py")


def model(record) -> None:
    """Calls with arguments of every kind."""
    x = torch.randn(3, 4, requires_grad=True)
    y = record("Functional.linear", F.linear, x, torch.randn(5, 4, requires_grad=True), None)
    record("Torch.softmax", torch.softmax, y, dim=-1)
    record("Tensor.__getitem__", torch.Tensor.__getitem__, y, (0, slice(None, 2), None, ...))
    record("Torch.cat", torch.cat, [y, y], dim=0)
    record("Tensor.add_", torch.Tensor.add_, torch.ones(3), 1)
    record("Torch.zeros", torch.zeros, torch.Size([2, 3]), dtype=torch.float16)
    record("Torch.einsum", torch.einsum, "ij,kj->ik", x, x)
    record("Functional.dropout", F.dropout, y, 0.5, True)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_no_mutation_crashes_hangs_or_escapes(recorder, tmp_path, task) -> None:
    record = recorder(task=task)
    model(record)
    path = record.write()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.pt").write_bytes(b"not to be read")
    count = max(COUNT // 2, 1)
    command = [sys.executable, str(WORKER), str(path), str(tmp_path / "outside"), str(count), str(hash_of(task))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + count * SECONDS_EACH)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["mutations"] == count
    assert report["escapes"] == []
    assert report["slow"] == []
    assert report["refused"] > count / 20  # the mutations do something
    assert report["built"] > count  # and much is left to run
    assert not (tmp_path / "outside" / "written").exists()


def hash_of(text: str) -> int:
    """A seed that is the same in every process."""
    return random.Random(text).randrange(1 << 30)
