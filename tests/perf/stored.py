"""Sessions and baselines to store."""

from __future__ import annotations

from typing import Any

from pytest_ascend.perf.baseline import Session, Timings

ENVIRONMENT = {
    "device": "npu",
    "soc": "Ascend910B",
    "cann": "8.0.0",
    "torch": "2.5.1",
    "python": "3.11.7",
    "threads": 1,
}


def make_session(number: int, seconds: float = 1e-3, **changed: Any) -> Session:
    """A session of five processes on a day of January."""
    medians = tuple(seconds * (1 + i / 1000) for i in range(5))
    timings = {"device": Timings(medians, tuple(0.99 * median for median in medians), {"matmul": 1e-4})}
    values = {
        "id": f"s{number}",
        "date": f"2026-01-{1 + number % 28:02d}T12:00:00+00:00",
        "commit": f"{number:040x}",
        "timings": timings,
        "errors": {"torch.softmax/float16": {"relative_euclidean_distance": 2e-4, "max_abs_error": 1e-3}},
    }
    return Session(**{**values, **changed})
