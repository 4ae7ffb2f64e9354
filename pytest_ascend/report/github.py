"""What GitHub Actions shows of a run: a summary in Markdown, and annotations beside the code.

Both are built from the results file's content. Names, reasons and paths may hold anything; none of it is markup here,
nor a workflow command.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.report.worst import (
    Record,
    emulated,
    headline,
    how_much,
    reason,
    state,
    told,
    where,
    word,
    worst_first,
)

__all__ = ["LIMIT", "MOST", "add_summary", "error_commands", "summary"]

LIMIT = 1 << 20
"""Bytes that the summary of one step may have; GitHub drops a longer one as a whole."""
MOST = 10
"""Error annotations that GitHub shows of one step."""
_TEXT = 2000
_ROWS = 200
_DETAILED = 20
_SPARE = 4096


# ------------------------------------------------------------------------------------------------------- annotations


def error_commands(records: Sequence[Record], root: str = "") -> Iterator[str]:
    """Workflow commands that mark the worst failures, :data:`MOST` at most.

    Args:
        records: the results.
        root: the folder of the tests within the repository, in front of their paths.
    """
    failed = [record for record in worst_first(records) if state(record) in ("failed", "error")]
    for record in failed[:MOST]:
        path = str(record["nodeid"]).partition("::")[0]
        given = {"file": f"{root}/{path}" if root else path, "line": record.get("line"), "title": _title(record)}
        inside = ",".join(f"{name}={_property(value)}" for name, value in given.items() if value)
        yield f"::error {inside}::{_message(record)}"


def _title(record: Record) -> str:
    return " ".join(part for part in (word(record), record.get("api"), record.get("dtype")) if part)


def _message(record: Record) -> str:
    lines = [reason(record) or "no reason was recorded", how_much(record)]
    lines += [f"where: {place}" if (place := where(record)) else "", str(record["nodeid"])]
    lines.append(f"reproduce: {record['reproducer']}" if record.get("reproducer") else "")
    return _data("\n".join(_short(line) for line in lines if line))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: Any) -> str:
    return _data(_short(str(value))).replace(":", "%3A").replace(",", "%2C")


def _short(text: str) -> str:
    """A text of one line that can't move a terminal's cursor."""
    cut = text if len(text) <= _TEXT else f"{text[:_TEXT]} ..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


# ----------------------------------------------------------------------------------------------------------- summary


def add_summary(content: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Add the run to the step's summary, if there is one (``GITHUB_STEP_SUMMARY``), within what is left of its limit.

    Raises ``OSError`` where that can't be written.
    """
    if not (path := environment.get("GITHUB_STEP_SUMMARY")):
        return
    there = os.path.getsize(path) if os.path.exists(path) else 0
    text = summary(content, LIMIT - there)
    if there + len(text.encode()) + 1 <= LIMIT:  # one byte more and GitHub shows nothing
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def summary(content: Mapping[str, Any], limit: int = LIMIT) -> str:
    """The run in Markdown: the verdict first, the failures worst first, then notes, timings and the environment.

    Args:
        content: of a results file.
        limit: bytes of UTF-8 that it may have; what doesn't fit is counted and left out, the mildest first.
    """
    records = worst_first(content["results"])
    blocks = list(_blocks(content, records))
    text, left = "", limit - _SPARE
    for number, (must, block) in enumerate(blocks):
        size = len(block.encode())
        if size > left and not must:
            said = f"\n{len(blocks) - number} more parts don't fit into GitHub's limit of {limit} bytes.\n"
            return text + (said if len(said) < _SPARE else "")
        text, left = text + block, left - size
    return text


def _blocks(content: Mapping[str, Any], records: Sequence[Record]) -> Iterator[tuple[bool, str]]:
    """Parts from the most to the least important, and whether they must be there."""
    bad = [record for record in records if state(record) in ("failed", "error")]
    mark = "❌" if bad else "⚠️" if any(state(r) == "noted" for r in records) else "✅" if records else "⚪"
    yield True, f"## {mark} pytest-ascend: {_escape(headline(records))}\n\n"
    where_to = told(content)
    if where_to:
        loud = f" **{said}**" if (said := emulated(records)) else ""
        yield True, f"On {_escape(where_to)}.{loud}\n\n"
    yield True, _counts(records)
    if bad:
        yield (
            True,
            "\n### Failures, the worst first\n\n| verdict | what | why | how much | test |\n|---|---|---|---|---|\n",
        )
        yield from _rows(bad)
        for record in bad[:_DETAILED]:
            yield False, _details(record)
    timed = [r for r in records if r.get("perf") and r not in bad and not (r["perf"].get("error"))]
    noted = [record for record in records if state(record) in ("noted", "expected") and not record.get("perf")]
    if noted:
        yield False, "\n### Passed with a note\n\n| verdict | what | why | how much | test |\n|---|---|---|---|---|\n"
        yield from _rows(noted)
    if timed:
        yield False, "\n### Timings\n\n| verdict | what | why | how much | test |\n|---|---|---|---|---|\n"
        yield from _rows(timed)
    yield False, _environment(content["environment"])


def _counts(records: Sequence[Record]) -> str:
    counts = Counter(word(record).partition(" (")[0] for record in records)
    order = list(dict.fromkeys(word(record).partition(" (")[0] for record in records))
    return ", ".join(f"**{counts[name]}** {_escape(name)}" for name in order) + "\n" if order else ""


def _rows(records: Sequence[Record]) -> Iterator[tuple[bool, str]]:
    for record in records[:_ROWS]:
        what = " ".join(str(part) for part in (record.get("api"), record.get("dtype")) if part)
        cells = [word(record), what, reason(record), how_much(record), str(record["nodeid"])]
        yield False, "| " + " | ".join(_escape(cell) or " " for cell in cells) + " |\n"
    if len(records) > _ROWS:
        yield False, f"\n{len(records) - _ROWS} more are in the results file.\n"


def _details(record: Record) -> str:
    lines = [f"where: {place}" if (place := where(record)) else ""]
    crash = record.get("crash") or {}
    lines += [f"ended by: {crash['ending']}" if crash.get("ending") else ""]
    lines += [f"note: {note}" for note in record.get("notes") or ()]
    for element in ((record.get("metrics") or {}).get("worst") or ())[:3]:
        at = ", ".join(map(str, element.get("index") or ()))
        lines.append(f"[{at}] golden {element.get('golden')}, actual {element.get('actual')}")
    for row in ((record.get("perf") or {}).get("operators") or ())[:5]:
        lines.append(f"grew: {row.get('name')}, {row.get('before_us')} -> {row.get('after_us')} µs a call")
    lines.append(f"reproduce: {record['reproducer']}" if record.get("reproducer") else "")
    lines.append(f"alone: python {record['script']}" if record.get("script") else "")
    inside = "<br>\n".join(_escape(line) for line in lines if line)
    name = _escape(f"{word(record)} {record['nodeid']}")
    return f"\n<details><summary>{name}</summary>\n\n{inside}\n\n</details>\n" if inside else ""


def _environment(environment: Mapping[str, Any]) -> str:
    rows = []
    for name, value in environment.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else value
        if shown not in (None, "", [], {}):
            rows.append(f"| {_escape(name)} | {_escape(shown)} |\n")
    inside = "".join(rows)
    return f"\n<details><summary>Environment</summary>\n\n| | |\n|---|---|\n{inside}\n</details>\n" if rows else ""


def _escape(value: Any) -> str:
    """A text that Markdown and HTML show as it is: all that could be markup, a link or a mention is an entity."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", _short(str(value)))


_MARKUP = re.compile(r"""[\\`*_{}\[\]<>#|~&:@$!"']|(?<=[wW])\.""")  # "www." alone makes a link
