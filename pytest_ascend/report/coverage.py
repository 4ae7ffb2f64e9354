"""Which APIs of a dump or a catalogue were run, and which were not and why: nothing is silently skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.report.lines import Line

Record = Mapping[str, Any]

#: Classes of an API, the one that wins first: one wrong case makes a wrong API, one that ran makes it run.
CLASSES = ("failed", "run", "not exercised", "unsupported")
_COLOURS = {"failed": "red", "not exercised": "yellow", "unsupported": "yellow"}
_LISTED = 12


def class_of(record: Record) -> str:
    """Which class one result puts its API in."""
    if record["verdict"] == "UNSUPPORTED":
        return "unsupported"
    if record["verdict"] == "NOT_EXERCISED":
        return "not exercised"
    return "failed" if record["outcome"] in ("failed", "error") else "run"


def classes(records: Sequence[Record], absent: Mapping[str, str]) -> dict[str, dict[str, list[Record]]]:
    """Class, to the APIs in it, to their results; of results that a dump or the catalogue gave, by ``source``."""
    by_api: dict[str, list[Record]] = {}
    for record in records:
        if "source" in record:
            by_api.setdefault(record["api"], []).append(record)
    found: dict[str, dict[str, list[Record]]] = {name: {} for name in CLASSES}
    for api, results in by_api.items():
        kinds = {class_of(record) for record in results}
        found[next(name for name in CLASSES if name in kinds)][api] = results
    for api in absent:
        if api not in by_api:
            found["not exercised"][api] = []
    return found


def table(records: Sequence[Record], absent: Mapping[str, str], verbosity: int = 0) -> Iterator[Line]:
    """A row for each class with its APIs by name, and why those that weren't run weren't; with ``-v`` a row per API."""
    found = classes(records, absent)
    total = sum(map(len, found.values()))
    if not total:
        return
    cases = sum(len(results) for apis in found.values() for results in apis.values())
    calls = sum(record.get("count", 1) for apis in found.values() for results in apis.values() for record in results)
    folded = f" for {_many(calls, 'call')}" if calls != cases else ""
    yield Line(f"coverage of {_many(total, 'API')}, {_many(cases, 'case')}{folded}:", "bold")
    for name, apis in found.items():
        text = f"  {name:<13}  {len(apis):>4}"
        if name != "run" and apis:
            text += "  " + _names(list(apis), verbosity)
        yield Line(text, _COLOURS.get(name, "") if apis else "")
        if name in ("not exercised", "unsupported"):
            yield from _reasons(apis, absent, verbosity)
    if verbosity > 0:
        yield from _rows(found)


def _reasons(apis: Mapping[str, Sequence[Record]], absent: Mapping[str, str], verbosity: int) -> Iterator[Line]:
    """Each reason once, with the APIs it holds for."""
    by_reason: dict[str, list[str]] = {}
    for api, results in apis.items():
        reason = results[0]["reason"] if results else absent[api]
        by_reason.setdefault(reason, []).append(api)
    shown = list(by_reason.items()) if verbosity > 0 else list(by_reason.items())[:_LISTED]
    for reason, names in shown:
        yield Line(f"    {_names(names, verbosity)}: {reason}")
    if len(shown) < len(by_reason):
        yield Line(f"    and {len(by_reason) - len(shown)} more reasons: -v lists them")


def _rows(found: Mapping[str, Mapping[str, Sequence[Record]]]) -> Iterator[Line]:
    rows = [
        (api, name, str(len(results)), str(sum(record.get("count", 1) for record in results)), _verdicts(results))
        for name, apis in found.items()
        for api, results in apis.items()
    ]
    rows = [("API", "", "cases", "calls", "verdicts"), *sorted(rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield Line("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _verdicts(results: Sequence[Record]) -> str:
    counts: dict[str, int] = {}
    for record in results:
        counts[record["verdict"]] = counts.get(record["verdict"], 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _names(names: Sequence[str], verbosity: int) -> str:
    shown = names if verbosity > 0 else names[:_LISTED]
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
