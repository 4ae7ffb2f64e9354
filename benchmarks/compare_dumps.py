"""Comparing dumps: time and memory of ``pytest-ascend compare`` beside msprobe's, on the same dumps in the same run.

    python benchmarks/compare_dumps.py [--times N] [--failing] [--peer PYTHON]

A training step of a model of 24 blocks is recorded with every tensor of its layers and APIs, and once more with each
value off by a rounding. With ``--times 10`` the dump is ten times as large, ten steps beside each
other. ``--failing`` makes one layer of the second dump wrong by 1 %, so that what follows it fails. PYTHON is an
interpreter that has mindstudio-probe (msprobe). Both tools run in processes of their own, in turns; times are medians,
of the whole process including its start, without a first run that compiles modules and fills the file system's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCKS, WIDTH, HEADS, BATCH, LENGTH, WORDS = 24, 64, 4, 4, 32, 400
RATIO, MEMORY = 10.0, 1 << 30


def write(folder: Path, *, failing: bool) -> tuple[Path, Path]:
    """Record the step, and write it again with other roundings; the folders of both dumps."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import pytest_ascend as pa

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shape = (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
            q, k, v = self.qkv(self.ln1(x)).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
            scores = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / 4.0, dim=-1)
            x = x + self.o(torch.matmul(scores, v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
            return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.emb(words)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    torch.manual_seed(0)
    model = Model()
    with pa.record(model, folder / "golden", level="mix", progress=False) as recording:
        logits = model(torch.randint(0, WORDS, (BATCH, LENGTH)))
        F.cross_entropy(logits.flatten(0, 1), torch.randint(0, WORDS, (BATCH * LENGTH,))).backward()
    golden = Path(recording.path).parent
    target = folder / "target"
    shutil.copytree(golden, target)
    generator = torch.Generator().manual_seed(1)
    wrong = False
    for name in json.loads((golden / "dump.json").read_text())["data"]:
        wrong = wrong or name.startswith("Module.blocks.12.")
        for path in (target / "dump_tensor_data").glob(f"{name}.*.pt"):
            tensor = torch.load(path)
            if tensor.is_floating_point():
                noise = 1.0 + 1e-7 * torch.randn(tensor.shape, generator=generator)
                torch.save(tensor * noise * (1.01 if wrong and failing else 1.0), path)
    return golden, target


def written(folder: Path, *, failing: bool) -> tuple[Path, Path]:
    """:func:`write` in a process of its own: what this one has in memory counts for the processes it starts."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from pathlib import Path; "
    program += f"import compare_dumps; print(*compare_dumps.write(Path({str(folder)!r}), failing={failing}), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    golden, target = done.stdout.splitlines()[-2:]
    return Path(golden), Path(target)


def times(dump: Path, folder: Path, count: int) -> Path:
    """So many steps of one dump, beside each other; the files are links to one another."""
    for step in range(count):
        place = folder / f"step{step}" / "rank0"
        shutil.copytree(dump, place, copy_function=os.link)
    return folder


def measured(command: list[str], **environment: str) -> tuple[float, int, int, str, float]:
    """Seconds, the largest resident memory in bytes, the exit status, what it said, and seconds of processors."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        everything = {**os.environ, **environment}
        everything.pop("PYTHONDONTWRITEBYTECODE", None)
        child = subprocess.Popen(command, stdout=said, stderr=said, env=everything)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        said.seek(0)
        return seconds, _bytes(usage), child.returncode, said.read(), usage.ru_utime + usage.ru_stime


def _bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    """Print the figures; 1 when one of the limits isn't kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how many steps (default: 1)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="how often each runs (default: 3)")
    parser.add_argument("--failing", action="store_true", help="make half of the target wrong")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has mindstudio-probe")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        golden, target = written(folder, failing=given.failing)
        files = list((golden / "dump_tensor_data").iterdir())
        size = sum(path.stat().st_size for path in files)
        print(f"each dump: {len(files)} tensors, {size / 1e6:.0f} MB; {given.times} times that")
        one = golden, target
        if given.times > 1:
            golden, target = (times(d, folder / f"many_{d.name}", given.times) for d in one)
        ours = [sys.executable, "-m", "pytest_ascend.cli", "compare", str(golden), str(target)]
        ours += ["--json", str(folder / "ours.json")]
        peer = str(Path(given.peer).parent / "msprobe") if given.peer else ""
        command = [peer, "compare", "-tp", str(one[1] / "dump.json"), "-gp", str(one[0] / "dump.json")]
        mine, theirs = [], []
        cache = {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}  # as both have it where they are installed
        for turn in range(given.turns + 1):  # in turns: what disturbs one disturbs the other
            mine.append(measured(ours, **cache))
            if peer:
                theirs.append(measured([*command, "-o", str(folder / f"theirs{turn}")], **cache))
        del mine[:1], theirs[:1]
        seconds, memory = statistics.median(m[0] for m in mine), max(m[1] for m in mine)
        status, said = mine[-1][2:4]
        rows = sum(len(unit["rows"]) for unit in json.loads((folder / "ours.json").read_text())["units"])
        print(said.splitlines()[0])
        busy = statistics.median(m[4] for m in mine)
        print(
            f"pytest-ascend: {rows} rows, {seconds:.2f} s ({busy:.2f} s of a processor), {memory / 2**20:.0f} MiB, "
            f"exit status {status}"
        )
        good = memory <= MEMORY and status == int(given.failing)
        if peer:
            if any(t[2] for t in theirs):
                print(theirs[-1][3][-2000:], file=sys.stderr)
                return 2
            their_seconds = statistics.median(t[0] for t in theirs) * given.times
            their_busy = statistics.median(t[4] for t in theirs) * given.times
            print(
                f"msprobe: {their_seconds:.2f} s{' (of one, times as many)' if given.times > 1 else ''}, "
                f"{max(t[1] for t in theirs) / 2**20:.0f} MiB; {their_seconds / seconds:.1f} times as long, "
                f"{their_busy / busy:.1f} times as long on a processor ({their_busy:.2f} s)"
            )
            good = good and their_seconds / seconds >= RATIO
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
