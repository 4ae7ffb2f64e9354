"""What ``--ascend-isolate`` makes of 20 disasters among 200 tests, and what it takes.

It runs the tests of suite.py three times: all of them right; with the disasters; and with the disasters once more, the
controller killed on the way and the run resumed. It fails unless exactly the planted tests are reported, each with its
verdict and its operator, and the time stays below three times the healthy run's and the time-outs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from suite import DISASTERS, TESTS

TIMEOUT = 10.0
PROBE = 10.0  # of the limits: as long as a test


def command(folder: Path, workers: int, *more: str) -> list[str]:
    given = ["--ascend-compare=emulated", "--ascend-isolate", "-n", str(workers), f"--ascend-timeout={TIMEOUT:g}"]
    given += ["--ascend-isolate-memory=2GB", f"--ascend-json={folder / 'results.json'}", "--ascend-reproducers=none"]
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *given, *more]


def environment(folder: Path, planted: bool) -> dict[str, str]:
    faults = folder / "faults"
    if faults.exists():
        for one in faults.iterdir():
            one.unlink()
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **given,
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "PLANTED": str(int(planted)),
        "ASCEND_EMULATED_FAULTS": str(faults),
        "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }


def results(folder: Path) -> dict[int, list[dict]]:
    found: dict[int, list[dict]] = {}
    for record in json.loads((folder / "results.json").read_text())["results"]:
        number = int(re.search(r"\[(\d+)\]", record["nodeid"])[1])
        found.setdefault(number, []).append(record)
    return found


def wrong(found: dict[int, list[dict]]) -> list[str]:
    """What isn't as planted."""
    bad = []
    for number in range(TESTS):
        records = found.get(number, [])
        verdicts = {record["verdict"] for record in records}
        if number not in DISASTERS:
            if verdicts != {"PASS"}:
                bad.append(f"test {number}: {verdicts or 'no result'}, and it is right")
            continue
        what, op = DISASTERS[number]
        last = records[-1] if records else {}
        wanted = "INFRA" if what == "wedge" else "CRASH"
        named = (last.get("culprit") or {}).get("op", "")
        if last.get("verdict") != wanted or (what != "wedge" and named != f"aten.{op}.default"):
            bad.append(f"test {number}, {what} in {op}: {last.get('verdict')} {named} {last.get('reason', '')[:150]}")
    return bad


def timed_out(found: dict[int, list[dict]]) -> float:
    """Seconds that were waited until time was over: a test's, its second run's, and a device's that didn't answer."""
    seconds = 0.0
    for records in found.values():
        crash = records[-1].get("crash") or {}
        seconds += sum(TIMEOUT for end in (crash.get("ending", ""), crash.get("again", "")) if "longer than" in end)
        seconds += 2 * PROBE if records[-1]["verdict"] == "INFRA" else 0.0
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--no-resume", action="store_true", help="leave the killed and resumed run out")
    arguments = parser.parse_args()
    source = (Path(__file__).parent / "suite.py").read_text()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="disasters-") as name:
        folder = Path(name)
        (folder / "test_suite.py").write_text(source)
        seconds = {}
        given = command(folder, 1, "--collect-only")
        subprocess.run(given, cwd=folder, env=environment(folder, False), capture_output=True, check=False)
        for what, planted in (("healthy", False), ("planted", True)):
            begun = time.monotonic()
            done = subprocess.run(
                command(folder, arguments.workers), cwd=folder, env=environment(folder, planted), capture_output=True,
                text=True, check=False,
            )  # fmt: skip
            seconds[what] = time.monotonic() - begun
            print(f"{what}: {seconds[what]:.1f} s: {done.stdout.strip().splitlines()[-1]}", flush=True)
            found = results(folder)
            if planted:
                problems += wrong(found)
            elif any(one["outcome"] not in ("passed", "noted") for records in found.values() for one in records):
                problems.append("the healthy run isn't")
        waited = timed_out(found)
        most = 3 * seconds["healthy"] + waited
        print(
            f"{len(DISASTERS)} disasters among {TESTS} tests: {seconds['planted']:.1f} s, {waited:.0f} s of them "
            f"time-outs; without those {(seconds['planted'] - waited) / seconds['healthy']:.2f} times the healthy run"
        )
        if seconds["planted"] > most:
            problems.append(f"it took {seconds['planted']:.1f} s, and may take {most:.1f} s")
        if not arguments.no_resume:
            problems += resumed(folder, arguments.workers)
    print("\n".join(problems) or "all as planted")
    return bool(problems)


def resumed(folder: Path, workers: int) -> list[str]:
    """What is wrong after the controller was killed on the way, and the run was resumed."""
    (folder / "results.json").unlink()
    variables = environment(folder, True)
    process = subprocess.Popen(command(folder, workers), cwd=folder, env=variables, stdout=subprocess.DEVNULL)
    journal = folder / ".ascend" / "run"
    while process.poll() is None and judged(journal) < TESTS // 2:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    before = judged(journal)
    again = command(folder, workers, "--ascend-resume")
    done = subprocess.run(again, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    line = next((one for one in done.stdout.splitlines() if "taken over" in one), "nothing taken over")
    print(f"killed after {before} results, then: {line}; {done.stdout.strip().splitlines()[-1]}")
    found = results(folder)
    bad = [f"resumed: {one}" for one in wrong(found)]
    if not line.startswith(f"ascend: {before} tests"):
        bad.append(f"resumed: {before} results were on disk, and it says: {line}")
    return bad


def judged(journal: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in journal.glob("*.jsonl")) if journal.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
