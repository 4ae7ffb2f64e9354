"""What the terminal says about timings; lines to print, built from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.report.lines import Line, duration

__all__ = ["VERDICTS", "render", "summary"]

Record = Mapping[str, Any]

VERDICTS = ("regressed", "inconclusive", "improved", "ok")
"""The answers, worst first."""
_COLOURS = {"regressed": "red", "inconclusive": "yellow", "improved": "green", "ok": "green"}


def summary(records: Sequence[Record], said: Sequence[str], verbosity: int = 0) -> Iterator[Line]:
    """The section: each answer worst first, what holds for the whole run, and a closing count.

    An ``ok`` takes one line. ``verbosity`` as pytest counts it: below 0 only the closing line, below -1 nothing.
    """
    if verbosity < -1:
        return
    if verbosity >= 0:
        for record in sorted(records, key=_severity):
            first, *more = render(record)
            yield Line(first, _colour(record))
            if record["verdict"] != "ok" or record["outcome"] == "error" or verbosity > 0:
                yield from (Line(f"    {line}") for line in more)
        yield from (Line(f"timings: {text}", "yellow") for text in said)
    if records:
        yield _count(records)


def render(record: Record) -> Iterator[str]:
    """A result's lines: the verdict with old and new time, why, which operators grew, and how to accept it."""
    perf = record["perf"]
    verdict = "error" if perf.get("error") else record["verdict"]
    number = f" (call {perf['index'] + 1})" if perf.get("index") else ""
    times = ""
    if perf.get("new_s") is not None:
        old = _time(perf["old_s"]) if perf.get("old_s") is not None else "no baseline"
        times = f"  {old} -> {_time(perf['new_s'])} {perf['metric']}"
        if perf.get("old_s") is not None:
            times += f", {_ratio(perf)}"
    yield f"{verdict}  {record['nodeid']}{number}{times}"
    what = " on ".join(part for part in (record["api"], record["target"]) if part)
    yield f"{what}: {record['reason']}" if what else str(record["reason"])
    if perf.get("old_s") is not None:
        found = _number(perf["detectable"])
        least = f"; a slowdown of {_percent(found)} would be found" if found < 10 else ""
        yield f"compared with {perf['against']}, to catch {_percent(perf['threshold'])}{least}"
    for note in perf.get("notes") or ():
        yield f"note: {note}"
    for row in perf.get("operators") or ():
        shapes = f" [{row['shapes']}]" if row["shapes"] else ""
        yield (
            f"grew: {row['name']}{shapes}  {_time(row['before_us'] / 1e6)} -> {_time(row['after_us'] / 1e6)} a call"
            f" ({row['why']}, {row['before_calls']:g} -> {row['after_calls']:g} calls)"
        )
    if verdict == "inconclusive" and perf.get("accept") and perf.get("new_s") is not None and perf["old_s"] is None:
        yield f"store one: {perf['accept'].removesuffix('--ascend-update')}--ascend-save"
    elif verdict == "regressed" and perf.get("accept"):
        yield f"accept it: {perf['accept']}"
    if verdict in ("regressed", "error") or (verdict == "inconclusive" and not perf.get("accept")):
        yield f"time it again: {record['reproducer']}"


def _time(seconds: float) -> str:
    return duration(seconds, digits=3)


def _ratio(perf: Mapping[str, Any]) -> str:
    low, high = (_number(bound) for bound in perf["interval"])
    between = f" (interval {low:.3f} to {high:.3f})" if high < 1e6 else ""
    return f"{_number(perf['ratio']):.3f} times{between}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _number(value: float | str) -> float:
    return float(value)  # "nan" and "inf" are the file's own words


def _count(records: Sequence[Record]) -> Line:
    counts: Counter[str] = Counter()
    for record in sorted(records, key=_severity):
        expected = " (accepted)" if record["outcome"] == "expected" else ""
        counts["error" if record["outcome"] == "error" else record["verdict"] + expected] += 1
    targets = ", ".join(dict.fromkeys(record["target"] for record in records if record["target"]))
    bad = any(record["outcome"] in ("failed", "error") for record in records)
    noted = any(record["outcome"] == "noted" for record in records)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    where = f" on {targets}" if targets else ""
    return Line(f"ascend: {len(records)} timed{where}: {listed}", "red" if bad else "yellow" if noted else "green")


def _severity(record: Record) -> int:
    return -1 if record["outcome"] == "error" else VERDICTS.index(record["verdict"])


def _colour(record: Record) -> str:
    return "red" if record["outcome"] in ("failed", "error") else _COLOURS[record["verdict"]]
