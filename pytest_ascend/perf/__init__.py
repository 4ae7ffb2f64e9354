"""How long it takes: what is timed, what it is compared with, and when a difference counts."""

from __future__ import annotations

from pytest_ascend.perf.decide import decide
from pytest_ascend.perf.history import decide_history
from pytest_ascend.perf.result import PerfResult, PerfVerdict
from pytest_ascend.perf.samples import Samples

__all__ = ["PerfResult", "PerfVerdict", "Samples", "decide", "decide_history"]
