"""What a second worker brings: generated cases of APIs on two emulated cards, by one worker and by two.

Fails unless two workers are at least 1.7 times as fast as one, both used their own card, and the verdicts are the same.
``--isolate`` measures supervised processes in place of pytest-xdist's workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

APIS = "torch.linalg.*,torch.nn.functional.*pool*,torch.nn.functional.conv*,torch.nn.functional.*loss*"
LEAST = 1.7


def run(workers: int, folder: Path, arguments: argparse.Namespace) -> tuple[float, dict[str, str], Counter[str]]:
    """Seconds, verdicts by test, and how many results each card gave."""
    path = folder / f"{workers}.json"
    given = [f"--ascend-api={arguments.apis}", "--ascend-dtypes=float32", f"--ascend-json={path}"]
    given += ["--ascend-compare=emulated", "-n", str(workers), "--ascend-reproducers=none"]
    given += ["--ascend-isolate"] if arguments.isolate else []
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    variables = {**os.environ, "ASCEND_RT_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # a machine that compiles every module anew measures that
    variables["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *given], cwd=folder, env=variables, capture_output=True, check=False
    )
    seconds = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{workers} worker(s): {seconds:.1f} s, of all their cores {cpu:.1f} s", flush=True)
    records = json.loads(path.read_text())["results"]
    return seconds, {one["nodeid"]: one["verdict"] for one in records}, Counter(one["device"] for one in records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolate", action="store_true")
    parser.add_argument("--apis", default=APIS)
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many")
    arguments = parser.parse_args()
    best: dict[int, float] = {}
    verdicts: dict[int, dict[str, str]] = {}
    cards: dict[int, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="workers-") as name:
        run(1, Path(name), arguments)  # compiles what is imported
        for _ in range(arguments.rounds):
            for workers in (1, 2):
                seconds, verdicts[workers], cards[workers] = run(workers, Path(name), arguments)
                best[workers] = min(seconds, best.get(workers, seconds))
                print(f"  results by card: {dict(cards[workers])}", flush=True)
    gain = best[1] / best[2]
    differing = [nodeid for nodeid, verdict in verdicts[1].items() if verdicts[2].get(nodeid) != verdict]
    print(f"{len(verdicts[1])} items: {gain:.2f} times as fast; {len(differing)} verdicts differ")
    for nodeid in differing[:10]:
        print(f"  {nodeid}: {verdicts[1][nodeid]}, {verdicts[2].get(nodeid)}")
    return int(gain < LEAST or bool(differing) or len(verdicts[1]) != len(verdicts[2]) or len(cards[2]) != 2)


if __name__ == "__main__":
    sys.exit(main())
