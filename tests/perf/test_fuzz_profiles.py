"""Broken profiles by the thousand: rows with the right sums, or one clear error; no crash, no hang.

A few hundred mutations run with the tests; ``ASCEND_FUZZ=2000`` (``make fuzz``) runs as many as it says. They run in a
process of their own with bounded memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT = int(os.environ.get("ASCEND_FUZZ", "300"))
WORKER = Path(__file__).with_name("fuzz_worker.py")


def test_no_mutation_crashes_hangs_or_gives_wrong_sums(profiles) -> None:
    command = [sys.executable, str(WORKER), str(profiles), str(COUNT), "20260301"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + COUNT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["mutations"] == COUNT
    assert report["wrong"] == []
    assert report["slowest"] < 5
    assert report["refused"] > COUNT / 5  # the mutations do something
    assert report["read"] > COUNT / 10  # and not all of them are refused
    assert report["summed"] > report["read"] / 2  # and most sums are known
    assert report["others"] == 3  # databases and JSON were among them
