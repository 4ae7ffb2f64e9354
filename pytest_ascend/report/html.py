"""The page of a run (``--ascend-html``): one file that loads nothing, for people who look at results.

Everything out of the results is escaped, by jinja2 and by ``Markup``; the page's own script and style are the only ones
that its policy lets run, so that nothing else would even if it got through. The list of all results is data that the
script shows in pages of a hundred; what matters is in the page without the script too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ascend.judge.culprit import Culprit
from pytest_ascend.judge.verdict import WHY, Kind
from pytest_ascend.report.lines import duration
from pytest_ascend.report.worst import (
    STATES,
    Record,
    emulated,
    headline,
    how_much,
    near_one,
    number,
    reason,
    state,
    told,
    word,
    worst_first,
)

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["MISSING", "available", "page"]

MISSING = "it needs jinja2: pip install 'pytest-ascend[html]'"
_FILES = Path(__file__).parent / "page"
#: Bytes of the whole page, as far as the list allows; of findings in full, and how many at most: the others are in the
#: list.
_PAGE, _BYTES, _CARDS = 5_000_000, 2_500_000, 300
_LEAST = 250_000
#: APIs of the matrix that are there without the script.
_APIS = 60
_LAYERS = 400
_LONGEST = 400
_OPEN = 3
_POLICY = "default-src 'none'; img-src data:; style-src {}; script-src {}; base-uri 'none'; form-action 'none'"


def available() -> bool:
    """Whether jinja2 is there."""
    from importlib import util

    return util.find_spec("jinja2") is not None


def page(content: Mapping[str, Any]) -> str:
    """The page of a results file's content.

    Raises ``ValueError`` with one sentence where jinja2 is missing.
    """
    if not available():
        raise ValueError(MISSING)
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    jinja = Environment(
        loader=FileSystemLoader(_FILES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    records = worst_first(content["results"])
    style, script = ((_FILES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    matrix = _matrix(records)
    room = _PAGE - len(_data(records, {}, matrix).encode()) - _LEAST
    cards, left_out = _cards(records, jinja.get_template("finding.html.j2").render, min(_BYTES, max(room, _LEAST)))
    number_of = {id(record): number for number, (record, _) in enumerate(cards)}
    view = {
        "style": Markup(style),
        "script": Markup(script),
        "policy": Markup(
            "default-src 'none'; img-src data:; style-src {}; script-src {}; base-uri 'none'; form-action 'none'"
        ).format(*map(_hash, (style, script))),
        "headline": headline(records),
        "mood": _mood(records),
        "where": told(content),
        "emulated": emulated(records),
        "counts": _counts(records),
        "cards": [card for _, card in cards],
        "left_out": left_out,
        "failed": sum(state(record) in ("failed", "error") for record in records),
        "models": _models(records, number_of),
        "timings": [_timing(record, number_of.get(id(record))) for record in records if record.get("perf")],
        "overflows": _overflowed(records),
        "matrix": matrix,
        "matrix_rows": matrix["rows"][:_APIS],
        "environment": list(_environment(content["environment"])),
        "data": _data(records, number_of, matrix),
        "total": len(records),
    }
    return jinja.get_template("page.html.j2").render(view)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _clean(value: Any) -> Any:
    """A text without what moves a cursor, hides or turns around what follows; lines are kept."""
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in value)


def _mood(records: Sequence[Record]) -> str:
    """One of the page's colours: bad, doubtful, good; ``none`` where nothing was compared."""
    states = set(map(state, records))
    if not states:
        return "none"
    return "bad" if states & {"failed", "error"} else "doubtful" if states & {"noted"} else "good"


def _counts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Verdicts and how many there are of each, the worst first."""
    counts = Counter((str(record["verdict"]), state(record)) for record in records)
    return [
        {"word": verdict + (" (expected)" if how == "expected" else ""), "state": how, "count": count}
        for (verdict, how), count in sorted(counts.items(), key=lambda one: (STATES.index(one[0][1]), -one[1]))
    ]


# ---------------------------------------------------------------------------------------------------------- findings


def _cards(records: Sequence[Record], render: Any, room: int) -> tuple[list[tuple[Record, Markup]], int]:
    """The findings in full, the worst first, as many as there is room for; and how many failures there was none for."""
    from markupsafe import Markup

    found: list[tuple[Record, Markup]] = []
    left, left_out = room, 0
    for record in records:
        how = state(record)
        if how in ("passed", "skipped") and not (how == "skipped" and record.get("crash")):
            continue
        failed = how in ("failed", "error")
        card = None
        if len(found) < _CARDS and left > 0:
            text = render(_card(record, len(found)))
            left -= len(text.encode())
            card = Markup(text) if left >= 0 else None  # it was escaped when it was rendered
        if card is None:
            left_out += failed
        else:
            found.append((record, card))
    return found, left_out


def _card(record: Record, place: int) -> dict[str, Any]:
    failed = state(record) in ("failed", "error")
    culprit = Culprit.of(record["culprit"]) if record.get("culprit") else None
    kind = record.get("kind")
    return {
        "id": f"finding-{place}",
        "open": failed and place < _OPEN,
        "state": state(record),
        "word": word(record),
        "what": " ".join(str(part) for part in (record.get("api"), record.get("dtype")) if part),
        "record": record,
        "reason": reason(record),
        "how_much": how_much(record),
        "why": WHY[Kind(kind)] if kind in {one.value for one in Kind} else "",
        "culprit": culprit,
        "outputs": [o for o in record.get("outputs") or () if o.get("status") != "pass"][:_CARDS],
        "metrics": list(_metrics(record.get("metrics") or {})),
        "pictures": list(_pictures(record)),
        "model": _model(record) if record.get("checkpoints") and failed else None,
        "timing": _timing(record) if record.get("perf") else None,
        "overflows": list(record.get("overflows") or ())[:20],
        "memory": [line for fault in (record.get("memory_faults") or ())[:20] for line in fault["lines"]],
        "crash": record.get("crash") or {},
        "faults": list(record.get("memory_faults") or ())[:20],
        "notes": [*(record.get("notes") or ()), *((record.get("perf") or {}).get("notes") or ())],
    }


_NAMES = {
    "cosine_similarity": "cosine",
    "max_abs_error": "max abs",
    "rmse": "rmse",
    "max_rel_error": "max rel",
    "mean_signed_error": "mean signed",
    "max_ulp": "max ulp",
    "within_tolerance_ratio": "within tolerance",
    "scale": "scale",
}


def _metrics(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, shown in _NAMES.items():
        if metrics.get(name) is not None:
            yield shown, near_one(number(metrics[name])) if name == "cosine_similarity" else _short(metrics[name])
    if metrics.get("mismatches"):
        yield "outside tolerance", f"{metrics['mismatches']} of {metrics.get('count')}"


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)[:60]
    return f"{value:.6g}"


def _pictures(record: Record) -> Iterator[dict[str, Any]]:
    """Histogram, map and values of what is drawn: the first wrong layer's, then outputs'."""
    from pytest_ascend.report import charts

    layers = [(f"layer {name}", one) for name, one in (record.get("checkpoints") or {}).items()]
    for name, one in [*layers, *((str(o.get("path")), o) for o in record.get("outputs") or ())]:
        if not (drawn := one.get("picture")):
            continue
        pattern = str(one.get("pattern") or "")
        yield {
            "name": name,
            "pattern": pattern,
            "unit": drawn["unit"],
            "histogram": charts.histogram(drawn["histogram"]),
            "cpu": bool(drawn["histogram"].get("cpu")),
            "map": charts.heat_map(drawn["map"], pattern),
            "cell": (drawn["map"]["down"], drawn["map"]["across"]),
            "around": _around(drawn["around"]),
        }


def _around(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values about the worst element as rows of cells: golden, the CPU's own, actual, and the error in units."""
    first, index = list(found["first"]), list(found["index"])
    top, left = (first[-2], first[-1]) if len(first) > 1 else (None, first[-1])
    rows = []
    for i, units in enumerate(found["units"]):
        cells = [
            {
                "golden": _value(found["golden"][i][j]),
                "cpu": _value(found["cpu"][i][j]) if "cpu" in found else None,
                "actual": _value(found["actual"][i][j]),
                "units": _units(number(unit)),
                "over": number(unit) > 1 or unit in ("inf", "nan"),
                "worst": left + j == index[-1] and (top is None or top + i == index[-2]),
            }
            for j, unit in enumerate(units)
        ]
        rows.append({"at": "" if top is None else top + i, "cells": cells})
    return {
        "index": ", ".join(map(str, index)),
        "columns": [left + j for j in range(len(found["units"][0]))],
        "rows": rows,
        "cpu": "cpu" in found,
    }


def _units(value: float) -> str:
    return f"{value:.0f}" if 1000 <= value < 100_000 else f"{value:.3g}"


def _value(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------------ models


def _models(records: Sequence[Record], number_of: Mapping[int, int]) -> list[dict[str, Any]]:
    """Each compared model with its layers, those that failed first; a failed one has its chart among the findings."""
    found = []
    for record in records:
        layers = record.get("checkpoints") or {}
        if not layers:
            continue
        worst = max(layers.items(), key=lambda one: _badness(one[1]))
        found.append(
            {
                "state": state(record),
                "word": word(record),
                "name": " ".join(str(part) for part in (record.get("api"), record.get("dtype")) if part),
                "nodeid": record["nodeid"],
                "layers": len(layers),
                "wrong": sum(layer.get("status") == "fail" for layer in layers.values()),
                "worst": worst[0],
                "cosine": near_one(number(worst[1].get("cosine_similarity"))),
                "max_abs": _short(worst[1].get("max_abs_error")),
                "first": record.get("first_divergence") or "",
                "card": number_of.get(id(record)),
            }
        )
    return found[:_LAYERS]


def _badness(layer: Mapping[str, Any]) -> tuple[int, float]:
    cosine = number(layer.get("cosine_similarity"))
    status = layer.get("status")
    return ("pass", "warning", "fail").index(status if status in ("warning", "fail") else "pass"), (
        math.inf if math.isnan(cosine) else -cosine
    )


def _model(record: Record) -> dict[str, Any]:
    """The error along depth, and the layers about the first divergence."""
    from pytest_ascend.report import charts

    layers = record["checkpoints"]
    names, first = list(layers), record.get("first_divergence")
    known = [name for name in names if not math.isnan(number(layers[name].get("cosine_similarity")))]
    curve = record.get("depth") or ()
    drawn = []
    points = [str(point.get("layer")) for point in curve]
    if any(point.get("error") is not None for point in curve):
        lines = [
            ("the target", "actual", [number(point.get("error")) for point in curve]),
            ("the CPU in the same dtype", "cpu", [number(point.get("cpu")) for point in curve]),
        ]
        title = "Accumulated: root mean square error in units, carried along with all that came before"
        drawn.append((title, charts.depth(points, lines, label="Accumulated error", first=first), True))
    if any(point.get("alone") is not None for point in curve):
        alone = [("alone", "alone", [number(point.get("alone")) for point in curve])]
        title = "Isolated: each layer with equal inputs, times its own limit; above 1 the layer itself is wrong"
        chart = charts.depth(points, alone, label="Isolated error", first=first, limit=1.0)
        drawn.append((title, chart, False))
    if not drawn and known:
        off = [max(0.0, 1 - number(layers[name].get("cosine_similarity"))) for name in names]
        title = "Accumulated: 1 - cosine of each layer"
        drawn.append((title, charts.depth(names, [("1 - cosine", "actual", off)], label=title, first=first), False))
    at = names.index(first) if first in layers else 0
    start = max(0, at - 5)
    rows = [
        {
            "name": name,
            "status": layers[name].get("status"),
            "cosine": near_one(number(layers[name].get("cosine_similarity"))),
            "max_abs": _short(layers[name].get("max_abs_error")),
            "first": name == first,
        }
        for name in names[start : start + 20]
    ]
    after = max(0, len(names) - start - 20)
    return {"charts": [one for one in drawn if one[1]], "rows": rows, "before": start, "after": after}


# ------------------------------------------------------------------------------------------------- timings, overflows


def _timing(record: Record, card: int | None = None) -> dict[str, Any]:
    from pytest_ascend.report import charts

    perf = record["perf"]
    operators = []
    for row in list(perf.get("operators") or ())[:20]:
        before, after = number(row.get("before_us")), number(row.get("after_us"))
        operators.append({**row, "before": _time(before), "after": _time(after)})
    found = number(perf.get("detectable"))
    return {
        "card": card,
        "state": state(record),
        "word": word(record),
        "nodeid": str(record["nodeid"]) + (f" (call {perf['index'] + 1})" if perf.get("index") else ""),
        "api": record.get("api") or "",
        "target": record.get("target") or "",
        "reason": reason(record),
        "how_much": how_much(record),
        "metric": perf.get("metric") or "",
        "against": perf.get("against") or "",
        "threshold": f"{100 * number(perf.get('threshold')):.3g} %",
        "detectable": f"{100 * found:.3g} %" if found < 10 else "",
        "strips": charts.strips(perf),
        "history": charts.sparkline(perf.get("history") or (), number(perf.get("new_s"))),
        "operators": operators,
        "accept": perf.get("accept") if record["verdict"] == "regressed" else None,
    }


def _time(microseconds: float) -> str:
    return duration(microseconds / 1e6, digits=3) if microseconds > 0 and math.isfinite(microseconds) else "-"


def _overflowed(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Operators whose results left their range, of results that have no card."""
    found = []
    for record in records:
        if state(record) == "passed":
            found += [{"nodeid": record["nodeid"], **one} for one in record.get("overflows") or ()]
    return found[:_CARDS]


# ------------------------------------------------------------------------------------- matrix, list, and what it ran on


def _matrix(records: Sequence[Record]) -> dict[str, Any]:
    """APIs × dtypes: of each the worst state and its count, APIs with the worst first."""
    cells: dict[str, dict[str, Counter[str]]] = {}
    for record in records:
        if record.get("api") and record.get("dtype"):
            row = cells.setdefault(str(record["api"])[:_LONGEST], {})
            row.setdefault(str(record["dtype"])[:60], Counter())[state(record)] += 1
    dtypes = sorted({dtype for row in cells.values() for dtype in row})
    rows = []
    for api, row in cells.items():
        shown = []
        for dtype in dtypes:
            states = row.get(dtype)
            worst = min(states, key=STATES.index) if states else ""
            shown.append([worst, sum(states.values()) if states else 0, states[worst] if states else 0])
        rows.append({"api": api, "cells": shown})
    rows.sort(key=lambda one: (min(STATES.index(cell[0]) for cell in one["cells"] if cell[0]), one["api"]))
    return {"dtypes": dtypes, "rows": rows}


def _environment(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if isinstance(value, Mapping):
            yield from _environment(value, f"{prefix}{name} ")
        elif value not in (None, "", []):
            yield f"{prefix}{name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _data(records: Sequence[Record], number_of: Mapping[int, int], matrix: Mapping[str, Any]) -> Markup:
    """All results for the script, as rows that share their words; nothing in them can end the element they stand in."""
    from markupsafe import Markup

    words: dict[str, int] = {}

    def at(value: Any) -> int:
        return words.setdefault(str(_clean(str(value)))[:_LONGEST], len(words))

    rows = []
    for record in records:
        path, _, name = str(record["nodeid"]).partition("::")
        rows.append(
            [
                STATES.index(state(record)),
                at(word(record)),
                at(record.get("api") or ""),
                at(record.get("dtype") or ""),
                at(path),
                str(_clean(name))[:_LONGEST],
                at(reason(record)),
                str(_clean(how_much(record)))[:_LONGEST],
                number_of.get(id(record), -1),
            ]
        )
    plain = {
        "states": STATES,
        "words": list(words),
        "rows": rows,
        "dtypes": matrix["dtypes"],
        "apis": [
            [row["api"], *([STATES.index(c[0]) if c[0] else -1, c[1]] for c in row["cells"])] for row in matrix["rows"]
        ],
    }
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
