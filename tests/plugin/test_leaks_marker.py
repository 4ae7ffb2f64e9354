"""@pytest.mark.ascend_leaks: real leaks on the emulated device and the host, by line and owner, and what is none."""

from __future__ import annotations

import json

TESTS = """
import pytest, torch

CACHE, TABLE, calls = [], {}, [0]
leaks = pytest.mark.ascend_leaks(steps=60)

class Model:
    def __init__(self): self.losses = []
    def __call__(self, x): self.losses.append(x.sum())

@pytest.fixture
def model(): return Model()

@leaks
def test_clean(ascend_device):
    (torch.ones(100, device=ascend_device) * 2 + 1).sum().item()

@leaks
def test_each_call(ascend_device):
    CACHE.append(torch.ones(100, device=ascend_device) * 2)

@pytest.mark.ascend_leaks
def test_each_10th_call(ascend_device):
    calls[0] += 1
    y = torch.ones(100, device=ascend_device) + 1
    if calls[0] % 10 == 0:
        CACHE.append(y)

@leaks
def test_held_by_a_fixture(ascend_device, model):
    model(torch.ones(1000, device=ascend_device))

@leaks
def test_cache(ascend_device):
    key, calls[0] = calls[0] % 12, calls[0] + 1
    if key not in TABLE:
        TABLE[key] = torch.ones(1000, device=ascend_device)

@leaks
def test_cycle(ascend_device):
    loop = [torch.ones(100, device=ascend_device)]
    loop.append(loop)

@leaks
def test_host():
    CACHE.append(torch.ones(10000))

@leaks
def test_objects():
    CACHE.append(str(len(CACHE)) * 50)

@leaks
def test_own_error(): assert 1 == 2

@pytest.mark.ascend_leaks(steps=5)
def test_few(): pass
"""


def test_leaks(pytester) -> None:
    pytester.makepyfile(TESTS)
    args = ("--ascend-compare=emulated", "--ascend-json=r.json", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    done = pytester.runpytest_inprocess(*args)
    done.assert_outcomes(passed=3, failed=7)
    results = json.loads((pytester.path / "r.json").read_text())["results"]
    found = {result["nodeid"].rpartition("::test_")[2]: result for result in results}
    lines = {name: "\n".join(line for f in r["memory_faults"] for line in f["lines"]) for name, r in found.items()}
    assert [name for name, r in found.items() if r["verdict"] == "PASS"] == ["clean", "cache", "cycle"]
    assert "device memory grows by 512 bytes per call" in lines["each_call"]
    assert "made by aten::mul, test_leaks.py:19 in test_each_call: 400 bytes per call" in lines["each_call"]
    assert "held by the global CACHE of test_leaks" in lines["each_call"]
    assert "aten::add, test_leaks.py:24" in lines["each_10th_call"]
    assert "aten::sum, test_leaks.py:8 in __call__" in lines["held_by_a_fixture"]
    assert "held by a test_leaks.Model.losses" in lines["held_by_a_fixture"]
    assert "freed when the test ended" in found["held_by_a_fixture"]["notes"][-1]
    assert "still held after the test has ended" in found["each_call"]["notes"][-1]
    assert "then stayed: a cache" in found["cache"]["notes"][0]
    assert "aten::ones, test_leaks.py:45 in test_host: 40,000 bytes per call" in lines["host"]
    assert "the number of Python's objects" in lines["objects"]
    assert "test_leaks.py:49" in lines["objects"]
    done.stdout.fnmatch_lines(["*assert 1 == 2*", "*steps=5: give a whole number, 30 or more*"])
