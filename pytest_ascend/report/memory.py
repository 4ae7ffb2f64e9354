"""What the terminal says about memory: faults that were found, and leaks; lines to print, built from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.report.lines import Line

__all__ = ["summary"]

Record = Mapping[str, Any]

_MOST = 5  # faults of one test
_COLOURS = {"failed": "red", "error": "red", "passed": "green"}


def summary(records: Sequence[Record], left: Mapping[str, int], verbosity: int = 0) -> Iterator[Line]:
    """The section: each test with a fault or without a check, worst first, who left memory behind, a closing count.

    Args:
        records: results of tests whose memory was looked at.
        left: bytes on the device that tests left behind, by node id.
        verbosity: as pytest counts it: below 0 only the closing line, below -1 nothing.
    """
    if not records or verbosity < -1:
        return
    if verbosity >= 0:
        for record in sorted(records, key=lambda one: -Verdict(one["verdict"]).severity):
            if record["outcome"] != "passed" or record["notes"]:
                yield from _about(record)
        for nodeid, size in sorted(left.items(), key=lambda one: -one[1])[:_MOST]:
            yield Line(f"left {size / 2**20:,.0f} MiB on the device behind: {nodeid}", "yellow")
        if len(left) > _MOST:
            yield Line(f"and {len(left) - _MOST} tests more", "yellow")
    yield _count(records)


def _about(record: Record) -> Iterator[Line]:
    expected = "expected " if record["outcome"] == "expected" else ""
    yield Line(f"{expected}{record['verdict']}  {record['nodeid']}", _COLOURS.get(record["outcome"], "yellow"))
    faults = record.get("memory_faults") or ()
    if record["verdict"] != Verdict.MEMORY_FAULT or not faults:
        yield Line(f"    {record['reason']}")
    for fault in faults[:_MOST]:
        yield from (Line(f"    {line}") for line in fault["lines"])
    if len(faults) > _MOST:
        yield Line(f"    and {len(faults) - _MOST} more")
    yield from (Line(f"    note: {note}") for note in record["notes"])
    if record["outcome"] in ("failed", "error"):
        yield Line(f"    reproduce: {record['reproducer']}")


def _count(records: Sequence[Record]) -> Line:
    where = ", ".join(dict.fromkeys(record["target"] for record in records))
    counts: Counter[str] = Counter()
    for record in sorted(records, key=lambda one: Verdict(one["verdict"]).severity):
        counts[record["verdict"] + " (expected)" * (record["outcome"] == "expected")] += 1
    worst = next(
        (c for c in ("red", "yellow") if any(_COLOURS.get(r["outcome"], "yellow") == c for r in records)), "green"
    )
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    tests = f"{len(records)} test{'s' * (len(records) != 1)}"
    return Line(f"memory: {tests} looked at on {where}: {listed}", worst)
