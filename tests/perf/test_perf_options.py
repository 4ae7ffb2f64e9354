"""The options of a timing: every bad one is one sentence that names it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pytest_ascend.perf.options import PerfOptions

BAD = [
    ({"treshold": 0.1}, TypeError, "unknown option 'treshold'; did you mean 'threshold'?"),
    ({"threshold": 3}, ValueError, r"threshold=3 is out of range: give a number in \(0, 1\]"),
    ({"threshold": 0.0}, ValueError, "threshold=0.0 is out of range"),
    ({"threshold": math.nan}, ValueError, "threshold=nan is out of range"),
    ({"threshold": "3%"}, TypeError, "threshold='3%' is not a number"),
    ({"processes": 0}, ValueError, "processes=0 is out of range: give a whole number >= 1"),
    ({"processes": 2.0}, TypeError, "processes=2.0 is not a whole number"),
    ({"metric": "devise"}, ValueError, "it is one of auto, device, wall; did you mean 'device'?"),
    ({"rotate": "yes"}, ValueError, "rotate='yes' is not known: it is 'auto', False or a number of copies"),
    ({"rotate": 0}, ValueError, r"rotate=0 is out of range: give a whole number in \[1, 256\]"),
    ({"clear_cache": 1}, TypeError, "clear_cache=1 is not known: it is True or False"),
    ({"min_time": -1.0}, ValueError, "min_time=-1.0 is out of range"),
    ({"max_time": math.inf}, ValueError, "max_time=inf is out of range"),
    ({"min_rounds": 1}, ValueError, "min_rounds=1 is out of range: give a whole number >= 2"),
    ({"threads": True}, TypeError, "threads=True is not a whole number"),
    ({"seed": -1}, ValueError, "seed=-1 is out of range"),
    ({"target": " "}, TypeError, "target=' ' is not a target"),
]


@pytest.mark.parametrize(("options", "kind", "sentence"), BAD, ids=lambda value: str(value)[:30])
def test_a_bad_option_is_named(options, kind, sentence) -> None:
    with pytest.raises(kind, match=sentence):
        PerfOptions(**options)
    with pytest.raises(kind, match=sentence):
        PerfOptions().replace(**options)


def test_they_are_frozen_and_replaced() -> None:
    options = PerfOptions(threshold=0.05, rotate=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.threshold = 0.1
    assert options.replace(threads=4) == PerfOptions(threshold=0.05, rotate=3, threads=4)
