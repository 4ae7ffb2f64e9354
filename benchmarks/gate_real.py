"""How often ``--ascend-ab`` raises a false alarm and what it finds, on this machine and in real processes.

A repository is made with twelve workloads, each a loop of small operations. Unchanged trees are compared with their own
commit; then the loops get 5 % and 3 % more rounds, which is a real slowdown by as much. Another process loads a core
meanwhile, unless ``--idle``. With the default numbers it takes hours; ``--unchanged 1 --planted 1`` takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 200
WORK = """
import torch

ROUNDS = {rounds}


def rounds(step):
    def work(x):
        for _ in range(ROUNDS):
            y = step(x)
        return y
    return work


STEPS = {{
    "relu": torch.relu, "tanh": torch.tanh, "exp": torch.exp, "softmax": lambda x: torch.softmax(x, -1),
    "cumsum": lambda x: torch.cumsum(x, -1), "sort": lambda x: torch.sort(x).values, "sum": torch.sum,
    "matmul": lambda x: x @ x.T, "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "gelu": torch.nn.functional.gelu, "sin": torch.sin, "element": lambda x: x[0, 0] + 1,
}}
WORKLOADS = {{name: rounds(step) for name, step in STEPS.items()}}
"""
TESTS = """
import pytest
import torch
from work import WORKLOADS

@pytest.mark.ascend_perf(target="cpu", max_time=0.05, warmup_time=0.05)
@pytest.mark.parametrize("name", list(WORKLOADS)[:{count}])
def test_it(name, ascend_perf):
    ascend_perf(WORKLOADS[name], torch.linspace(-1, 1, 1024).reshape(16, 64))
"""


def main() -> int:
    """Print a line for each kind of change, and the false alarms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unchanged", type=int, default=30, metavar="N", help="comparisons without a change")
    parser.add_argument("--planted", type=int, default=10, metavar="N", help="comparisons with each slowdown")
    parser.add_argument("--workloads", type=int, default=12, metavar="N", help="how many, at most 12")
    parser.add_argument("--perf-time", type=float, default=3600.0, metavar="SECONDS", help="for each comparison")
    parser.add_argument("--idle", action="store_true", help="load no other core")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="gate-real-") as folder, load(not options.idle):
        project = Path(folder)
        make(project, options.workloads)
        columns = ("slowdown", "runs", "workloads", "regressed", "inconclusive", "ok", "improved", "pairs", "s/run")
        print(" ".join(f"{column:>12}" for column in columns), flush=True)
        for percent, runs in ((0, options.unchanged), (5, options.planted), (3, options.planted)):
            if not runs:
                continue
            counts, pairs, begin = Counter[str](), [], time.monotonic()
            for run in range(runs):
                for result in compare(project, percent, options.perf_time):
                    counts["error" if result["perf"]["error"] else result["verdict"]] += 1
                    pairs.append(result["perf"]["pairs"])
                    if percent == 0 and result["verdict"] == "regressed":
                        print(f"false alarm in run {run + 1}: {result['nodeid']}: {result['reason']}", flush=True)
                print(f"{percent} %, {run + 1} of {runs}: {dict(counts)}", file=sys.stderr, flush=True)
            total = sum(counts.values())
            row = [f"{percent} %", runs, total]
            row += [counts[verdict] for verdict in ("regressed", "inconclusive", "ok", "improved")]
            row += [f"{sum(pairs) / max(1, len(pairs)):.1f}", f"{(time.monotonic() - begin) / runs:.0f}"]
            print(" ".join(f"{cell:>12}" for cell in row), flush=True)
            failed |= bool(counts["error"]) or total != runs * options.workloads
            if percent == 0:
                failed |= counts["regressed"] > max(1, total // 300)
            if percent == 5:
                failed |= counts["regressed"] < 0.9 * total
            if percent == 3:
                failed |= counts["regressed"] + counts["inconclusive"] < total
    wanted = "at most 1 false alarm in 300, 9 of 10 slowdowns of 5 % found, those of 3 % found or inconclusive"
    print(f"{'not ' * failed}as it must be: {wanted}")
    return int(failed)


@contextlib.contextmanager
def load(wanted: bool) -> Iterator[None]:
    """A process that is busy all the while, on a core of its own where the system lets us choose."""
    if not wanted:
        yield
        return
    busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**5))"])
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(busy.pid, cores[-1:])
        os.sched_setaffinity(0, cores[:-1])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
        if cores:
            os.sched_setaffinity(0, cores)


def make(project: Path, count: int) -> None:
    """The repository, with one commit."""
    (project / "work.py").write_text(WORK.format(rounds=ROUNDS))
    (project / "test_work.py").write_text(TESTS.format(count=count))
    (project / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (project / ".gitignore").write_text("*.json\n__pycache__\n")
    who = ["-c", "user.name=gate", "-c", "user.email=gate@example.com", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=project, check=True)


def compare(project: Path, percent: int, seconds: float) -> list[dict]:
    """The results of one comparison of the tree, slower by so much, with its commit."""
    (project / "work.py").write_text(WORK.format(rounds=ROUNDS * (100 + percent) // 100))
    (project / "results.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ascend-ab=HEAD",
               "--ascend-json=results.json", f"--ascend-perf-time={seconds}"]  # fmt: skip
    ran = subprocess.run(
        command, cwd=project, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if not (project / "results.json").exists():
        raise SystemExit(ran.stdout[-2000:] + ran.stderr[-2000:])
    return json.loads((project / "results.json").read_text())["results"]


if __name__ == "__main__":
    sys.exit(main())
