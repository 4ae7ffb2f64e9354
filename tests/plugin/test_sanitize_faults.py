"""Memory faults planted into emulated kernels are found with operator and direction, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

from .planted_memory import FAULTS

PLANTED = Path(__file__).with_name("planted_memory.py")


def test_planted_faults(pytester) -> None:
    pytester.makepyfile(test_planted_memory=PLANTED.read_text())
    args = ("--ascend-sanitize=memcheck,initcheck", "--ascend-json=r.json", "-p", "no:hypothesispytest", "-q")
    done = pytester.runpytest_inprocess("--ascend-compare=emulated", "-p", "no:cacheprovider", *args)
    done.assert_outcomes(failed=len(FAULTS) - 1, passed=8)
    found = {}
    for result in json.loads((pytester.path / "r.json").read_text())["results"]:
        name = result["nodeid"].partition("[")[2][:-1]
        found[name] = [(one["kind"], one["direction"], one["op"]) for one in result["memory_faults"]]
    missed = {name: found[name] for name, (*wanted, _, _) in FAULTS.items() if tuple(wanted) not in found[name]}
    assert set(missed) == {"unwritten_sum"}  # a NaN like any other
    assert not [name for name in found if name not in FAULTS and found[name]]
    assert len(FAULTS) >= 30
