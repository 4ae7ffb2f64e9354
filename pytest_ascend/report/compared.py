"""Two compared dumps for people: the verdict first, then where it began, then the worst; never a wall of numbers.

Reads what ``DumpComparison.view`` gives.
"""

from __future__ import annotations

import heapq
import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.report.lines import Line

__all__ = ["as_html", "lines"]

_WORST = 10
_ALONE = 5
_PLACES = 3
_Marked = tuple[str, Mapping[str, Any], str]


def lines(found: Mapping[str, Any], *, everything: bool = False, more: str = "") -> Iterator[Line]:
    """The comparison in lines.

    Args:
        found: the comparison.
        everything: all rows, also those that agree.
        more: the command that shows them.
    """
    units, passed = found["units"], found["passed"]
    count = sum(found["statuses"].values())
    yield Line(f"{found['verdict']}: {_headline(found, count)}", "green" if passed else "red")
    yield Line(f"golden {_text(found['golden'])}")
    yield Line(f"target {_text(found['target'])}")
    many = len(units) > 1
    worst: list[_Marked] = []
    alone: dict[str, list[str]] = {"golden": [], "target": []}
    for unit in units:  # once: units may have to be read
        yield from _began(unit, many=many)
        if not everything:
            noted = (one for one in _marked(unit, many=many) if one[1]["status"] != "pass")
            worst = heapq.nsmallest(_WORST, (*worst, *noted), key=lambda one: _badness(one[1]))
        for side, names in alone.items():
            names += unit[f"{side}_only"]
    if everything:
        yield from _all(units)
    else:
        yield from _worst(worst, count - found["statuses"].get("pass", 0))
    for side, names in alone.items():
        yield from _alone(side, [*names, *found[f"{side}_only_units"]], everything)
    yield from (Line(f"note: {_text(note)}") for note in found["notes"])
    if more and not everything and count:
        yield Line(f"all of it: {more}")


def _headline(found: Mapping[str, Any], count: int) -> str:
    if not count:
        return "nothing was compared: no call of one dump has a partner in the other"
    failing, noted = (found["statuses"].get(name, 0) for name in ("fail", "warning"))
    unread = found["summary"].get("INFRA", 0)
    parts = [f"{failing - unread} of {count} tensors and arguments differ" if failing - unread else ""]
    parts.append(f"{unread} can't be read" if unread else "")
    if not failing:
        values = found["evidence"].get("values", 0)
        parts.append(f"all {count} tensors agree" + ("" if values == count else f", {values} by their values"))
    parts.append(f"{noted} with a note" if noted else "")
    return ", ".join(part for part in parts if part)


def _began(unit: Mapping[str, Any], *, many: bool) -> Iterator[Line]:
    where = f"{unit['name'] or unit['target']}: " if many else ""
    if unit["source"] is not None:
        inputs = [r for r in unit["rows"] if r["status"] == "fail" and r["role"] != "output"]
        first = next((r for r in inputs if r["name"].startswith(unit["source"] + ".")), None)
        what = f" ({_text(first['name'])}: {_text(first['reason'])})" if first is not None else ""
        yield Line(
            f"{where}what was given to {_text(unit['source'])} differs, and no recorded call made it so{what}: "
            "other data or weights",
            "red",
        )
    if unit["first_divergence"] is not None:
        call = next(call for call in unit["calls"] if call["name"] == unit["first_divergence"])
        why = ": its inputs agree, its outputs don't" if call["inputs"] == "agree" else ""
        yield Line(f"{where}first divergence: {_text(unit['first_divergence'])}{why}", "red")
        rows = [r for r in unit["rows"] if r["name"].startswith(unit["first_divergence"]) and r["status"] == "fail"]
        for row in rows[:2]:
            yield Line(f"    {_row(row)}")
        for frame in unit["stacks"].get(unit["first_divergence"], [])[:_PLACES]:
            yield Line(f"    {_text(frame)}")
        others = unit["culprits"][1:]
        if others:
            some = ", ".join(map(_text, others[:3])) + (", ..." if len(others) > 3 else "")
            yield Line(f"    {len(others)} more diverge that were given nothing wrong: {some}")
    if unit["victims"]:
        yield Line(f"{where}{unit['victims']} calls are victims: their inputs differed already")


def _marked(unit: Mapping[str, Any], *, many: bool) -> Iterator[_Marked]:
    marks = {call["name"]: call["mark"] for call in unit["calls"]}
    where = f"{unit['name']}/" if many and unit["name"] else ""
    return ((where, row, _mark(row, marks)) for row in unit["rows"])


def _worst(worst: Sequence[_Marked], count: int) -> Iterator[Line]:
    if worst:
        yield Line("the worst:")
    yield from (_shown(one) for one in worst)
    if count > len(worst):
        yield Line(f"    and {count - len(worst)} more")


def _all(units: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    if any(unit["rows"] for unit in units):
        yield Line("every row:")
    for unit in units:
        yield from (_shown(one) for one in _marked(unit, many=len(units) > 1))


def _shown(one: _Marked) -> Line:
    where, row, mark = one
    colour = {"fail": "red", "warning": "yellow"}.get(row["status"], "")
    return Line(f"    {where}{_row(row)}" + (f" [{mark}]" if mark else ""), colour)


def _mark(row: Mapping[str, Any], marks: Mapping[str, str]) -> str:
    """What its call is, for a wrong output."""
    if row["status"] != "fail" or row["role"] != "output":
        return ""
    name = row["name"]
    while name:
        if name in marks:
            return marks[name]
        name = name.rpartition(".")[0]
    return ""


def _badness(row: Mapping[str, Any]) -> tuple[int, int, float]:
    cosine = row["cosine"]
    near = cosine if isinstance(cosine, float) else -2.0
    return ("fail", "warning", "pass").index(row["status"]), -Verdict(row["verdict"]).severity, near


def _row(row: Mapping[str, Any]) -> str:
    target = f" <-> {_text(row['target'])}" if row["target"] else ""
    numbers = "" if row["cosine"] is None else f"; cosine {_number(row['cosine'])}, max abs {_number(row['max_abs'])}"
    reason = f": {_text(row['reason'])}" if row["reason"] else ""
    shape = f" {row['dtype']}{row['shape']}" if row["dtype"] else ""
    return f"{row['verdict']} {_text(row['name'])}{target}{shape}{reason}{numbers}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)


def _alone(side: str, names: Sequence[str], everything: bool) -> Iterator[Line]:
    if not names:
        return
    yield Line(f"{len(names)} in the {side} alone:", "yellow")
    count = len(names) if everything else _ALONE
    for name in names[:count]:
        yield Line(f"    {_text(name)}")
    if len(names) > count:
        yield Line(f"    and {len(names) - count} more")


def _text(value: Any) -> str:
    """A text that can't move the terminal's cursor, whoever wrote it."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# ------------------------------------------------------------------------------------------------ HTML

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #1c1e21 }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem } pre { white-space: pre-wrap }
table { border-collapse: collapse; width: 100%; font-size: 13px } td, th { padding: .3rem .5rem; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top } td.n { font-variant-numeric: tabular-nums; white-space: nowrap }
.fail { color: #a40e26 } .warning { color: #8a5a00 } .pass { color: #1a6b32 } code { overflow-wrap: anywhere }
details > summary { cursor: pointer; margin: 1rem 0 } .k { color: #666 }
"""
_COLUMNS = ("verdict", "name", "dtype", "shape", "cosine", "max abs", "max rel", "evidence", "reason")


def as_html(found: Mapping[str, Any]) -> Iterator[str]:
    """The comparison as the lines of one page that loads nothing and runs nothing; what dumps hold is escaped."""
    status = "pass" if found["passed"] else "fail"
    title = f"{found['verdict']}: {found['golden']} and {found['target']}"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>{_escape(title)}</title><style>{_STYLE}</style></head><body>"
    told = list(lines(found))
    yield f'<h1 class="{status}">{_escape(told[0].text)}</h1><pre>'
    yield "\n".join(_escape(line.text) for line in told[1:])
    yield "</pre>"
    for unit in found["units"]:
        rows = unit["rows"]
        marks = {call["name"]: call["mark"] for call in unit["calls"]}
        counts = Counter(row["status"] for row in rows)
        yield f"<h2>{_escape(unit['name'] or 'all calls')}: {counts['fail']} differ, {counts['pass']} agree</h2>"
        wrong = sorted((row for row in rows if row["status"] != "pass"), key=_badness)
        yield from _table(wrong, marks)
        yield f"<details><summary>all {len(rows)} rows in the order of the golden</summary>"
        yield from _table(rows, marks)
        yield "</details>"
    yield "</body></html>"


def _table(rows: list[Mapping[str, Any]], marks: Mapping[str, str]) -> Iterator[str]:
    if not rows:
        return
    yield "<table><tr>" + "".join(f"<th>{name}</th>" for name in _COLUMNS) + "</tr>"
    for row in rows:
        mark = _mark(row, marks)
        name = f"<code>{_escape(row['name'])}</code>"
        name += f'<br><span class="k">with <code>{_escape(row["target"])}</code></span>' if row["target"] else ""
        numbers = "".join(
            f'<td class="n">{"" if row[key] is None else _escape(_number(row[key]))}</td>'
            for key in ("cosine", "max_abs", "max_rel")
        )
        word = f"{row['verdict']}" + (f" ({mark})" if mark else "")
        yield (
            f'<tr><td class="{row["status"]}">{_escape(word)}</td><td>{name}</td><td>{_escape(row["dtype"])}</td>'
            f"<td>{_escape(row['shape'])}</td>{numbers}<td>{_escape(row['evidence'])}</td>"
            f"<td>{_escape(row['reason'])}</td></tr>"
        )
    yield "</table>"


def _escape(value: Any) -> str:
    return html.escape(_text(value), quote=True)
