"""msprobe opens our dumps: its ``compare`` on two of them, and its figures beside ours.

    python benchmarks/peer_opens.py PYTHON

PYTHON is an interpreter that has mindstudio-probe. Two training steps of one model with weights that differ a little
are recorded at level mix; ``msprobe compare`` runs on the two dumps; cosine similarity and largest absolute error of
each of its rows are held against ours for the same two files, and ours against ``pytest_ascend.dumps.compare``. They
agree when they differ by less than 1e-6, absolutely or relatively: msprobe writes what it finds in the tensors' own
precision.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record as benchmark
import torch

import pytest_ascend as pa
from pytest_ascend.judge.metrics import measure

TOLERANCE = 1e-6


def recorded(folder: Path, level: str) -> tuple[Path, Path]:
    """Two dumps of the same step."""
    model, step = benchmark.workload()
    paths = []
    for name in ("golden", "target"):
        with pa.record(model, folder / name, level=level, progress=False) as recording:
            step()
        paths.append(Path(recording.path))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=1e-3)
    return paths[0], paths[1]


def files(dump: Path) -> dict[str, Path]:
    """The tensors' files by the names that msprobe's rows have for them."""
    found = {}

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "data_name" in value:
                yield value["data_name"]
            for one in value.values():
                yield from walk(one)
        elif isinstance(value, list):
            for one in value:
                yield from walk(one)

    for name in walk(json.loads(dump.read_text())["data"]):
        found[name.removesuffix(".pt")] = dump.parent / "dump_tensor_data" / name
    return found


def main() -> int:
    """Print what was compared; 1 when a row differs or wasn't compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", metavar="PYTHON", help="an interpreter that has mindstudio-probe")
    parser.add_argument("--level", default="mix", help="level of the recordings (default: mix)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        golden, target = recorded(Path(place), given.level)
        peer = Path(given.python).parent / "msprobe"
        command = [peer, "compare", "-tp", target, "-gp", golden, "-o", Path(place, "compared")]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        tables = list(Path(place, "compared").glob("compare_result_*.csv"))
        if done.returncode or not tables:
            print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
            return 2
        with open(tables[0], encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        ours, theirs = files(golden), files(target)
        compared = {row.name: row for row in pa.dumps.compare(golden, target).rows}
        checked, apart, without = 0, [], set(ours)
        for row in rows:
            name = row["NPU Name"]
            if name not in theirs or name not in ours:
                continue
            without.discard(name)
            first, second = (torch.load(found[name], weights_only=True) for found in (ours, theirs))
            if not first.dtype.is_floating_point:
                continue
            mine, row_of_ours = measure(first, second), compared.get(name) or compared.get(f"{name}.0")
            checked += 1
            if row_of_ours is None:
                apart.append(f"{name}: pytest_ascend.dumps.compare has no such row")
            elif row_of_ours.max_abs is not None and abs(row_of_ours.max_abs - mine.max_abs_error) > TOLERANCE:
                apart.append(f"{name}: pytest_ascend.dumps.compare says max-abs {row_of_ours.max_abs!r}")
            pairs = [
                ("cosine", row["Cosine"], mine.cosine_similarity),
                ("max-abs", row["MaxAbsErr"], mine.max_abs_error),
            ]
            for what, text, number in pairs:
                try:
                    value = float(text)
                except ValueError:
                    if not (what == "cosine" and first.numel() == 1):  # it has none for one number
                        apart.append(f"{name}: {what} is {text!r} and {number}")
                    continue
                if abs(value - number) > TOLERANCE * max(1.0, abs(number)):
                    apart.append(f"{name}: {what} is {value!r} and {number!r}")
    print(f"msprobe compared {len(rows)} rows; {checked} tensors held against ours, {len(apart)} figures apart")
    print(*apart[:20], sep="\n")
    if without:
        print(f"{len(without)} recorded tensors are in none of its rows: {', '.join(sorted(without)[:5])}")
    return 1 if apart or without or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
