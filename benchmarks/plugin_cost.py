"""What the installed but unused plugin adds to pytest's start: runs with it and with ``-p no:ascend``, in turn."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PAIRS = 21


class Cost(NamedTuple):
    """Of one pytest run, in seconds; CPU time is the steadier one on a busy machine."""

    wall: float
    cpu: float


def start(folder: str, *args: str) -> Cost:
    """Run pytest once over a single trivial test."""
    # A cache of bytecode as after `pip install`, wherever the checkout lies and whatever the shell says about it.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS")}
    environment["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "cache")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *args]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Print the medians and the median of the paired differences, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_trivial.py").write_text("def test_it(): pass\n")
        start(folder)
        start(folder, "-p", "no:ascend")
        pairs = [(start(folder), start(folder, "-p", "no:ascend")) for _ in range(PAIRS)]
    for kind in Cost._fields:
        with_it, without = ([getattr(cost, kind) * 1e3 for cost in side] for side in zip(*pairs, strict=True))
        added = statistics.median(a - b for a, b in zip(with_it, without, strict=True))
        print(
            f"plugin unused, {kind} time: {statistics.median(with_it):.0f} ms, with -p no:ascend "
            f"{statistics.median(without):.0f} ms, added {added:.1f} ms (wanted: <= 10 ms)"
        )


if __name__ == "__main__":
    main()
