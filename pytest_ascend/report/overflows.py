"""What the terminal says about overflows; lines to print, built from records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.report.lines import Line

__all__ = ["summary"]

Record = Mapping[str, Any]

_LINKS = 5
_COLOURS = {"failed": "red", "error": "red", "passed": "green"}


def summary(records: Sequence[Record], verbosity: int = 0) -> Iterator[Line]:
    """The section: each test that overflowed with the culprits and where it went, then a closing count.

    Args:
        records: results of what was watched; each has ``overflows``.
        verbosity: as pytest counts it: below 0 only the closing line, below -1 nothing.
    """
    if not records or verbosity < -1:
        return
    if verbosity >= 0:
        for record in records:
            if record["overflows"]:
                yield Line(f"overflow  {record['nodeid']}", _COLOURS.get(record["outcome"], "yellow"))
                for found in record["overflows"]:
                    yield from (Line(f"    {text}") for text in _lines(found))
            elif record["outcome"] != "passed" and record["criterion"] == "overflow":
                yield Line(f"{record['verdict']}  {record['nodeid']}", _COLOURS.get(record["outcome"], "yellow"))
                yield Line(f"    {record['reason']}")
    yield _count(records)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    back = "backward of " if found["pass"] == "backward" else ""
    often = f", {found['count']} times" if found["count"] > 1 else ""
    yield (
        f"{found['overflow_type']}: {found['op_name']} ({found['op']}), {found['input_dtype']} inputs up to "
        f"{found['input_max']}, result {found['result']}{often}"
    )
    where = ", ".join(part for part in (found["module"], found["source"]) if part)
    if where:
        yield f"  where: {back}{where}"
    yield f"  hint: {found['issue_hint']}"
    links = [
        f"{link['op_type']} ({'backward of ' if link['pass'] == 'backward' else ''}{link['module'] or link['source']})"
        for link in found["chain"][:_LINKS]
    ]
    if links:
        more = f" and {found['victims'] - len(links)} more" if found["victims"] > len(links) else ""
        yield f"  went on to: {', '.join(links)}{more}"
    if found["handled"]:
        yield "  a loss scaler saw it and skipped the step"
    if found.get("also_on_cpu"):
        yield "  the CPU overflows there too"


def _count(records: Sequence[Record]) -> Line:
    where = ", ".join(dict.fromkeys(record["target"] for record in records))
    failed = sum(record["outcome"] in ("failed", "error") and bool(record["overflows"]) for record in records)
    others = sum(bool(record["overflows"]) for record in records) - failed
    unseen = sum(
        not record["overflows"] and record["outcome"] != "passed"
        for record in records
        if record["criterion"] == "overflow"
    )
    parts = [f"{failed} failed by an overflow"] if failed else []
    parts += [f"{others} with a note"] if others else []
    parts += [f"{unseen} not seen through"] if unseen else []
    colour = "red" if failed else "yellow" if parts else "green"
    return Line(f"overflow: {len(records)} watched on {where}: {', '.join(parts) or 'none overflowed'}", colour)
