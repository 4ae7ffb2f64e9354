"""The terminal lines of a process that timed calls."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.report.lines import Line, duration

__all__ = ["summary"]


def summary(calls: Sequence[Mapping[str, Any]], path: str) -> Iterator[Line]:
    """A line for each call with its median, or why there is none, and one that says where the timings are.

    Args:
        calls: as they stand in the file.
        path: of the file.
    """
    unusable = 0
    for call in calls:
        name = call["nodeid"] + (f" (call {call['index'] + 1})" if call["index"] else "")
        why = call["outcome"] or call["unusable"]
        if why:
            unusable += 1
            yield Line(f"{'-':>10}  {call['api']}  {name}: {why}", "red" if call["outcome"] else "yellow")
            continue
        seconds = call["metrics"][call["metric"]]
        about = [f"{call['metric']} time", f"first call {duration(call['first_call_s'])}"]
        if call["kernels_per_call"] is not None:
            about.append(f"kernels {call['kernels_per_call']}")
        if call["peak_bytes"] is not None:
            about.append(f"peak {call['peak_bytes']} bytes")
        yield Line(f"{duration(statistics.median(seconds)):>10}  {call['api']}  {name}  [{', '.join(about)}]")
        for note in call["notes"]:
            yield Line(f"{'':>10}  note: {note}")
    said = f", {unusable} of them without a usable timing" if unusable else ""
    yield Line(f"ascend: {len(calls)} calls timed{said}: {path}", "yellow" if unusable or not calls else "")
