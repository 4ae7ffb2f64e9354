"""Drawings of the page, as SVG that scales, prints and follows the page's colours; each says in words what it shows.

They are made of numbers out of a results file. Text is escaped by ``Markup.format``; anything that isn't a number where
one belongs makes no drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from pytest_ascend.report.lines import duration
from pytest_ascend.report.worst import number

__all__ = ["depth", "heat_map", "histogram", "sparkline", "strips"]

_WIDTH = 420
_NOTHING = Markup("")
_HIGHEST = 9  # powers of ten: where the golden is zero, errors in units have no end


def _svg(width: float, height: float, label: str, inside: Sequence[Markup], kind: str) -> Markup:
    return Markup('<svg class="chart {}" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">{}</svg>').format(
        kind, _n(width), _n(height), _n(width), label, Markup("").join(inside)
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(_n(x), _n(y), anchor, kind, text)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(_n(x1), _n(y1), _n(x2), _n(y2), kind)


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    inside = Markup("<title>{}</title>").format(title) if title else _NOTHING
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>').format(
        _n(x), _n(y), _n(width), _n(height), kind, inside
    )


def _dot(x: float, y: float, kind: str, title: str, radius: float = 3) -> Markup:
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}"><title>{}</title></circle>').format(
        _n(x), _n(y), _n(radius), kind, title
    )


def _power(value: float) -> str:
    """``100``, ``1e4``, ``0.01``."""
    return f"{value:g}" if 0.001 <= value < 10_000 else f"1e{round(math.log10(value))}"


# -------------------------------------------------------------------------------------------------------- one output


def histogram(found: Mapping[str, Any]) -> Markup:
    """How many elements have an error of so many units; heights are logarithmic, so that one element shows."""
    counts, edges = [int(c) for c in found["counts"]], [float(e) for e in found["edges"]]
    cpu = [int(c) for c in found["cpu"]] if found.get("cpu") else []
    if len(counts) != len(edges) + 1 or not edges:
        return _NOTHING
    left, right, top, bottom = 34.0, _WIDTH - 8.0, 22.0, 142.0
    wide = (right - left) / len(counts)
    most = max([*counts, *cpu, 1])

    def height(count: int) -> float:
        return (bottom - top) * math.log1p(count) / math.log1p(most)

    def x(bin_: int) -> float:
        return left + bin_ * wide

    unit = next((i for i, edge in enumerate(edges) if edge >= 1), len(edges)) + 1
    inside = [_rect(x(0), top, x(unit) - x(0), bottom - top, "fine")]
    for i, count in enumerate(counts):
        if count:
            low, high = (f"{edges[i - 1]:g}" if i else "0"), (f"{edges[i]:g}" if i < len(edges) else "more")
            title = f"{count} elements with {low} to {high} units"
            tall = height(count)
            inside.append(_rect(x(i) + 0.5, bottom - tall, wide - 1, tall, "over" if i >= unit else "within", title))
    if cpu:
        points = " ".join(
            f"{_n(x(i))},{_n(bottom - height(c))} {_n(x(i + 1))},{_n(bottom - height(c))}" for i, c in enumerate(cpu)
        )
        inside.append(Markup('<polyline points="{}" class="cpu"/>').format(points))
    inside.append(_line(left, bottom, right, bottom, "axis"))
    inside.append(_line(x(unit), top - 4, x(unit), bottom, "limit"))
    inside.append(_text(x(unit), top - 8, "1 unit"))
    for i, edge in enumerate(edges):
        if abs(math.log10(edge) % 2) < 1e-6 or abs(math.log10(edge) % 2 - 2) < 1e-6:
            inside.append(_text(x(i + 1), bottom + 14, _power(edge)))
    inside += [_text(left - 4, top + 8, _many(most), "end"), _text(left - 4, bottom, "0", "end")]
    over, total = sum(counts[unit:]), sum(counts) + int(found["equal"]) + int(found["strange"])
    words = f"Histogram of errors: {over} of {total} elements are off by more than 1 unit, {found['equal']} are equal"
    if found["strange"]:
        words += f", {found['strange']} are NaN or infinite on one side only"
    if cpu:
        words += f"; of the CPU's own in the same dtype {sum(cpu[unit:])} are off by more"
    return _svg(_WIDTH, 162, words, inside, "histogram")


def _many(count: int) -> str:
    return str(count) if count < 10_000 else f"{count:.0e}".replace("e+0", "e")


_CELLS = {"=": "equal", ".": "h0", **{str(level): f"h{level}" for level in range(1, 7)}, "x": "strange"}


def heat_map(found: Mapping[str, Any], pattern: str = "") -> Markup:
    """Where the errors are: the last dimension across, all others down."""
    cells = [str(row) for row in found["cells"]]
    if not cells or not cells[0]:
        return _NOTHING
    rows, columns = len(cells), max(map(len, cells))
    left, top = 46.0, 16.0
    wide = min(14.0, (_WIDTH - left - 8) / columns)
    tall = min(14.0, max(4.0, 200 / rows))
    paths: dict[str, list[str]] = {}
    for i, row in enumerate(cells):
        start = 0
        while start < len(row):  # a run of equal cells is one rectangle
            stop = start
            while stop < len(row) and row[stop] == row[start]:
                stop += 1
            if row[start] in _CELLS:
                x, y, width = left + start * wide, top + i * tall, (stop - start) * wide
                paths.setdefault(row[start], []).append(f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(tall)}h-{_n(width)}z")
            start = stop
    inside = [
        Markup('<path d="{}" class="{}"/>').format("".join(paths[level]), kind)
        for level, kind in _CELLS.items()
        if level in paths
    ]
    right, bottom = left + columns * wide, top + rows * tall
    inside.append(_rect(left, top, right - left, bottom - top, "frame"))
    inside += [
        _text(left, top - 4, "0", "start"),
        _text(right, top - 4, str(int(found["columns"]) - 1), "end"),
        _text(left - 4, top + 9, "0", "end"),
        _text(left - 4, bottom, str(int(found["rows"]) - 1), "end"),
    ]
    where = f": {pattern}" if pattern else ""
    return _svg(_WIDTH, bottom + 6, f"Map of the errors{where}", inside, "map")


# ------------------------------------------------------------------------------------------------------------- model


class _Scale:
    """A logarithmic axis of whole powers of ten."""

    def __init__(self, values: Sequence[float], low: float, high: float) -> None:
        some = [math.log10(v) for v in values if math.isfinite(v) and v > 0] or [0.0]
        self.first, self.last = math.floor(min(some)), math.ceil(max(some))
        self.last = max(min(self.last, _HIGHEST), self.first + 1)
        self._low, self._high = low, high

    def __call__(self, value: float) -> float:
        at = float(self.last)
        if math.isfinite(value):
            at = math.log10(value) if value > 0 else float(self.first)
        share: float = (min(max(at, self.first), self.last) - self.first) / (self.last - self.first)
        return self._low + share * (self._high - self._low)

    def ticks(self) -> list[float]:
        step = max(1, math.ceil((self.last - self.first) / 5))
        return [10.0**k for k in range(self.first, self.last + 1, step)]


def depth(
    names: Sequence[str],
    series: Sequence[tuple[str, str, Sequence[float]]],
    *,
    label: str,
    first: str | None = None,
    limit: float | None = None,
) -> Markup:
    """A value along a model's layers on a logarithmic axis.

    Args:
        names: of the layers, in execution order.
        series: what each line is called, its class, and its values; NaN leaves a gap.
        label: what the chart shows.
        first: the layer where the result first diverges.
        limit: a value up to which all is well.
    """
    known = [value for _, _, values in series for value in values if math.isfinite(value) and value > 0]
    if not names or not known:
        return _NOTHING
    width, left, right, top, bottom = 2 * _WIDTH, 50.0, 2 * _WIDTH - 12.0, 20.0, 170.0
    y = _Scale([*known, *([limit] if limit else [])], bottom, top)
    step = (right - left) / max(1, len(names) - 1)

    def x(at: int) -> float:
        return left + at * step if len(names) > 1 else (left + right) / 2

    inside = []
    for tick in y.ticks():
        more = " +" if tick == 10.0**_HIGHEST else ""
        inside += [
            _line(left, y(tick), right, y(tick), "grid"),
            _text(left - 5, y(tick) + 4, _power(tick) + more, "end"),
        ]
    if limit is not None:
        inside.append(_line(left, y(limit), right, y(limit), "limit"))
    if first is not None and first in names:
        at = x(list(names).index(first))
        inside.append(_line(at, top - 6, at, bottom, "first"))
        anchor, beside = ("end", at - 5) if at > (left + right) / 2 else ("start", at + 5)
        inside.append(_text(beside, top - 6, f"first divergence: {first}", anchor, "mark"))
    for name, kind, values in series:
        run: list[str] = []
        for i, value in enumerate([*values, math.nan]):
            if math.isnan(value):
                if len(run) > 1:
                    inside.append(Markup('<polyline points="{}" class="line {}"/>').format(" ".join(run), kind))
                run = []
            else:
                run.append(f"{_n(x(i))},{_n(y(value))}")
        if len(names) <= 150:
            inside += [
                _dot(x(i), y(value), f"dot {kind}", f"{names[i]}: {name} {value:.4g}", 2.5)
                for i, value in enumerate(values)
                if not math.isnan(value)
            ]
    inside.append(_line(left, bottom, right, bottom, "axis"))
    inside += [_text(left, bottom + 15, names[0], "start"), _text(right, bottom + 15, names[-1], "end")]
    worst = max(known)
    words = f"{label} along {len(names)} layers; the largest value is {worst:.4g}"
    if first in names:
        words += f"; the first divergence is at {first}"
    return _svg(width, bottom + 20, words, inside, "depth")


# -------------------------------------------------------------------------------------------------------------- time


def strips(perf: Mapping[str, Any]) -> Markup:
    """Each process's time before and now on one axis, with the medians and the interval that the change lies in."""
    old, new = ([number(v) for v in perf.get(name) or ()] for name in ("old_each", "new_each"))
    old_s, new_s = number(perf.get("old_s")), number(perf.get("new_s"))
    low, high = (number(bound) for bound in perf.get("interval") or (math.nan, math.nan))
    between = (low * old_s, high * old_s) if old and math.isfinite(high) and low > 0 else None
    known = [v for v in [*old, *new, *(between or ())] if math.isfinite(v) and v > 0]
    if not known or math.isnan(new_s):
        return _NOTHING
    least, most = min(known), max(known)
    room = (most - least) * 0.06 or most * 0.05
    least, most = least - room, most + room
    left, right = 56.0, _WIDTH - 10.0

    def x(seconds: float) -> float:
        return float(left + (right - left) * (seconds - least) / (most - least))

    inside: list[Markup] = []
    for row, (name, values, middle) in enumerate((("old", old, old_s), ("new", new, new_s))):
        at = 16 + 30 * row
        inside.append(_text(left - 8, at + 4, name, "end"))
        inside.append(_line(left, at, right, at, "grid"))
        for i, value in enumerate(values):
            jitter = (i * 7 % 5 - 2) * 2  # dots on one another would count as one
            inside.append(_dot(x(value), at + jitter, f"dot {name}", duration(value, digits=4)))
        if values and math.isfinite(middle):
            inside.append(_line(x(middle), at - 9, x(middle), at + 9, f"median {name}"))
    if between is not None:
        inside.append(_line(x(between[0]), 66, x(between[1]), 66, "interval"))
        inside += [_line(x(bound), 62, x(bound), 70, "interval") for bound in between]
        inside.append(_text(left - 8, 70, "change", "end"))
    inside += [
        _line(left, 80, right, 80, "axis"),
        _text(left, 93, duration(max(least, 1e-12), digits=3), "start"),
        _text(right, 93, duration(most, digits=3), "end"),
    ]
    words = f"Times of {len(old)} processes or sessions before and {len(new)} now"
    if math.isfinite(old_s):
        words += f": median {duration(old_s)} before, {duration(new_s)} now"
    return _svg(_WIDTH, 98, words, inside, "strips")


def sparkline(history: Sequence[Mapping[str, Any]], now: float) -> Markup:
    """The stored sessions' times, the oldest first, and this run's."""
    values = [number(session.get("seconds")) for session in history]
    if len(values) < 2 or not all(math.isfinite(v) for v in [*values, now]):
        return _NOTHING
    every = [*values, now]
    least, most = min(every), max(every)
    width, height = 200.0, 36.0
    step = (width - 16) / (len(every) - 1)

    def y(value: float) -> float:
        return height / 2 if most == least else height - 6 - (height - 12) * (value - least) / (most - least)

    points = " ".join(f"{_n(8 + i * step)},{_n(y(v))}" for i, v in enumerate(every))
    inside = [Markup('<polyline points="{}" class="line history"/>').format(points)]
    for i, session in enumerate(history):
        title = f"{session.get('date', '')} {str(session.get('commit', ''))[:12]} {duration(values[i])}"
        inside.append(_dot(8 + i * step, y(values[i]), "dot old", title, 2))
    inside.append(_dot(width - 8, y(now), "dot new", f"now {duration(now)}", 3.5))
    words = f"{len(values)} stored sessions, from {duration(values[0])} to {duration(values[-1])}, now {duration(now)}"
    return _svg(width, height, words, inside, "sparkline")
