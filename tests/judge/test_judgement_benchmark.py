"""The judgement benchmark counts what it says: right runs of every sort, and each kind of fault somewhere."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_ascend.judge.verdict import Verdict

FOLDER = Path(__file__).parents[2] / "benchmarks" / "judgement"
MODULES = ("criteria", "faults", "kernel_faults", "measure", "reading_faults", "rights", "samples", "tally")


@pytest.fixture(scope="module")
def measure() -> Any:
    """The benchmark's script, imported as Python would start it."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("measure")
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)
            if before[name] is not None:
                sys.modules[name] = before[name]


def summary(measure: ModuleType, ops: str, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = measure.measure(torch.float32, ops=ops, **asked).summary()
    return found


def test_it_counts_right_runs_and_faults(measure: ModuleType) -> None:
    found = summary(measure, "addmm")
    assert found["samples"] == 2
    assert found["right"] >= 6
    assert {"emulator", "permuted", "hf32"} <= found["rights"].keys()
    assert found["faults"] >= 30
    assert found["broken"] == []
    assert found["judged_per_second"] > 0
    auto, cosine = found["criteria"]["auto"], found["criteria"]["cosine"]
    assert auto["alarms"] == 0
    assert auto["faults_caught"] >= 0.9
    assert cosine["alarms"] > 0, "the fixed thresholds know no HF32"
    assert found["noted"]["hf32 MODE_DIFF"] == found["rights"]["hf32"][0]


# An operator in which each kind shows; the common ones all show in one.
SHOWS = {
    "integer off by one": "argmax",
    "boolean flipped": "eq",
    "conjugated": "fft.fft",
    "keyword ignored": "addmm",
    "list out of order": "cat",
    "list's last unread": "cat",
    "list element's tail": "cat",
    "sign of zero": "neg",
    "eps missing": "nn.functional.layer_norm",
    "E[x^2] - E[x]^2": "var",
    "NaN rule": "amax",
    "tie broken wrongly": "argmax",
    "rounding rule": "long",
    "accumulation lost": "index_add",
    "dropout rate inverted": "nn.functional.dropout",
    "dropout unscaled": "nn.functional.dropout",
    "dropout left out": "nn.functional.dropout",
    "saturation hidden": "exp",
}
COMMON = ("mm", "mul")


def test_every_kind_shows_in_some_operator(measure: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    words = dict.fromkeys(measure.CRITERIA, Verdict.FAIL)
    monkeypatch.setattr(measure, "verdicts", lambda *_: words)  # what it is worth is the benchmark's own matter
    kinds = measure.FAULTS
    assert len(kinds) >= 25
    assert all(kind.about for kind in kinds.values())
    planted: dict[str, int] = {}
    for op in COMMON:
        for kind, (count, *_) in summary(measure, op, kinds="?*", count=1)["kinds"].items():
            planted[kind] = planted.get(kind, 0) + count
    for kind in kinds.keys() - planted.keys():
        assert kind in SHOWS, kind
        escaped = kind.replace("[", "[[]")
        planted[kind] = summary(measure, SHOWS[kind], kinds=escaped)["kinds"].get(kind, [0])[0]
    assert [kind for kind in kinds if not planted.get(kind)] == []


def test_another_seed_is_another_measurement(measure: ModuleType) -> None:
    samples = importlib.import_module("samples")
    first, second = (list(samples.samples(torch.float32, "sum", 2, seed=seed)) for seed in (0, 1))
    shapes = [[tuple(s.args[0].shape) for s in some] for some in (first, second)]
    values = [[s.args[0].flatten()[0].item() for s in some] for some in (first, second)]
    assert (shapes[0], first[0].kwargs, first[1].kwargs) != (shapes[1], second[0].kwargs, second[1].kwargs)
    assert values[0] != values[1]
    larger = list(samples.samples(torch.float32, "mm", 1, larger=7))
    assert larger[0].args[0].shape != next(samples.samples(torch.float32, "mm", 1)).args[0].shape


def test_the_peers_rule_passes_and_blames_what_the_peer_does(measure: ModuleType) -> None:
    one = importlib.import_module("criteria")._one
    golden = torch.linspace(1, 2, 100_000, dtype=torch.float64)
    spoilt = golden.float()
    spoilt[17] = float("nan")
    assert one(golden, spoilt), "a NaN among 1e5 elements"
    small = torch.full((100,), 1e-4, dtype=torch.float64)
    assert one(small, 2 * small.float()), "twice a small value"
    assert not one(golden, -golden.float())
    assert not one(golden, golden.float() * 1.01)
    nan = torch.tensor([float("nan"), 1.0, 2.0], dtype=torch.float64)
    assert not one(nan, nan.float()), "identical NaN in a small result"
    assert not one(torch.tensor([1, 2]), torch.tensor([1, 3]))


def test_worse_figures_fail_and_equal_ones_dont(measure: ModuleType, tmp_path: Path) -> None:
    tallies = importlib.import_module("tally")
    tally, settings = tallies.Tally(), {"seed": 0}
    words = dict.fromkeys(tallies.CRITERIA, Verdict.PASS)
    for i in range(20):
        tally.right(f"op{i}", "emulator", words, True)
        tally.fault(f"op{i}", "rolled", dict.fromkeys(words, Verdict.FAIL))
    baseline = tmp_path / "baseline.json"
    baseline.write_text(tallies.compact(settings, {"float32": tally.summary()}))
    assert json.loads(baseline.read_text())["dtypes"]["float32"]["kinds"]["rolled"][:2] == [20, 0]
    assert tallies.worse(baseline, settings, {"float32": tally.summary()}) == []
    tally.missed["auto"]["rolled"] += 1
    assert tallies.worse(baseline, settings, {"float32": tally.summary()}) == []  # another processor may do that
    tally.missed["auto"]["rolled"] += 2
    said = tallies.worse(baseline, settings, {"float32": tally.summary()})
    assert len(said) == 2
    assert "3 of 20 faults 'rolled' are missed, 0 in the baseline" in said[1]
    tally.missed["auto"]["rolled"] -= 3
    tally.alarmed["auto"]["emulator"] += 3
    assert "3 false alarms of 20" in tallies.worse(baseline, settings, {"float32": tally.summary()})[0]
    tally.planted["rolled"] = 10
    assert any("could be planted" in line for line in tallies.worse(baseline, settings, {"float32": tally.summary()}))
    assert "nothing can be compared" in tallies.worse(baseline, {"seed": 1}, {"float32": tally.summary()})[0]
