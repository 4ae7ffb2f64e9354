"""Stands for a process that times: writes the file of one out of ``scenario.json`` in its folder, and loads no torch.

``scenario.json``: {node id: {"seconds": per call, ...}}; see ``call`` for what else there can be.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

ENVIRONMENT = {"device": "cpu", "cpu": "a fast one", "torch": "2.13.0", "python": "3.11.7", "threads": 1}


def main(arguments: list[str]) -> int:
    path = Path(next(a.partition("=")[2] for a in arguments if a.startswith("--ascend-perf-child=")))
    scenario = json.loads(Path("scenario.json").read_text())
    tests = [a for a in arguments if a.startswith("test_") and ".py" in a]
    asked = [name for name in scenario if not tests or name in tests or name.partition("::")[0] in tests]
    if "--collect-only" in arguments:
        write(path, collected=asked)
        return 0
    mode = "profile" if "--ascend-perf-profile" in arguments else "time"
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(f"{mode} {os.getcwd()} {' '.join(asked)}\n")
    unknown = [name for name in tests if name not in scenario]
    if unknown:
        print(f"ERROR: not found: {unknown[0]}")
        return 4
    number = int(path.parent.name.removeprefix("process"))
    calls, ended = [], {}
    for name in asked:
        one = scenario[name]
        if one.get("crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if one.get("hang"):
            time.sleep(600)
        if one.get("skip"):
            ended[name] = "skipped: another day"
            continue
        ended[name] = one.get("ended", "passed")
        for index in range(one.get("calls", 1)):
            calls.append(call(name, index, one, number, profiles=mode == "profile"))
    if "raw" in scenario.get("file", {}):
        path.write_text(scenario["file"]["raw"])
        return 0
    sentinels = {"numpy": 1e-3 * scenario.get("machine", {}).get("seconds", 1.0)}
    write(path, calls=calls, tests=ended, sentinels=sentinels, sources=scenario.get("file", {}).get("sources", {}))
    return 0


def call(name: str, index: int, one: dict, number: int, *, profiles: bool) -> dict:
    seconds = one["seconds"] * (1 + 1e-3 * (number * 7 % 5))
    metric = one.get("metric", "wall")
    later = one.get("later", {}) if number > 1 else {}
    plain = {
        "nodeid": name,
        "index": index,
        "api": "torch.relu",
        "target": "cpu",
        "environment": {**ENVIRONMENT, **one.get("environment", {}), **later},
        "metrics": {metric: [seconds, seconds * 1.001, seconds * 1.002]},
        "metric": metric,
        "threads": 1,
        "unusable": one.get("unusable", ""),
        "outcome": one.get("outcome", ""),
        **{key: one[key] for key in ("threshold", "processes") if key in one},
    }
    if profiles:
        row = {
            "name": "aten::relu",
            "kind": "aten::relu",
            "calls": 10,
            "total_us": 1e7 * seconds,
            "host_us": 1e7 * seconds,
        }
        small = {
            **row,
            "name": "aten::small",
            "kind": "aten::small",
            "total_us": 1e5 * seconds,
            "host_us": 1e5 * seconds,
        }
        plain.update(metrics={}, operators={"source": "torch.profiler", "steps": 10, "rows": [row, small]})
    return plain


def write(path: Path, **parts: object) -> None:
    given = {"calls": [], "tests": {}, "sentinels": {}, "collected": [], "sources": {}, **parts}
    path.write_text(json.dumps({"schema": 1, **given}))


sys.exit(main(sys.argv[1:]))
