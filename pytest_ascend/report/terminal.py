"""The ``ascend`` section at the end of a run, and the header line; both are lines to print, built from records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_ascend.judge.culprit import Culprit
from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.report import coverage
from pytest_ascend.report.lines import Line

__all__ = ["Layer", "Line", "describe_modes", "header", "summary", "worst_layer"]

Record = Mapping[str, Any]


class Layer(NamedTuple):
    """The checkpoint of a model that is furthest from its golden."""

    name: str
    cosine: float
    max_abs: float
    status: str


def header(title: str, description: Mapping[str, Any]) -> str:
    """The header line: target, versions and numeric modes out of a ``Target.describe()``."""
    parts = [f"ascend: {title}"]
    versions = description.get("versions") or {}
    parts += [f"{name} {version}" for name, version in versions.items() if name != "python"]  # pytest says python's
    if modes := describe_modes(description.get("modes") or {}):
        parts.append(modes)
    return ", ".join(parts)


def describe_modes(modes: Mapping[str, Any]) -> str:
    """Numeric modes in words: ``hf32 conv on / matmul off, overflow inf_nan``."""
    hf32 = [
        f"{name} {'on' if modes[key] else 'off'}"
        for name, key in (("conv", "hf32_conv"), ("matmul", "hf32_matmul"))
        if modes.get(key) is not None
    ]
    words = [f"hf32 {' / '.join(hf32)}"] if hf32 else []
    words += [f"{k.removesuffix('_mode')} {v}" for k, v in modes.items() if k not in ("hf32_conv", "hf32_matmul")]
    return ", ".join(words)


def summary(
    records: Sequence[Record], verbosity: int = 0, absent: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Line]:
    """The section: failures worst first, notes, the compared models with their worst layer, and a closing count.

    ``verbosity`` as pytest counts it: below 0 only the closing line, below -1 nothing. ``absent``: APIs without
    a case, and why.
    """
    if verbosity < -1:
        return
    if verbosity >= 0:
        for record in sorted((r for r in records if r["outcome"] in ("failed", "error")), key=_severity):
            yield from _finding(record)
        for record in records:
            if record["outcome"] == "skipped" and "source" in record:
                continue  # the coverage table has it, with others that were skipped for the same reason
            if record["verdict"] == "PASS" and _drift(record) == "inconclusive":
                continue  # one line for all of them follows
            if record["outcome"] in ("noted", "expected", "skipped"):
                yield from _finding(record)
        yield from _models(records)
        yield from coverage.table(records, absent, verbosity)
    yield _count(records)


def worst_layer(record: Record) -> Layer | None:
    """The layer to name for a model: one that fails before one that doesn't, then by cosine, then by error."""
    layers = [
        Layer(name, _number(c["cosine_similarity"]), _number(c["max_abs_error"]), c["status"])
        for name, c in (record.get("checkpoints") or {}).items()
    ]
    return max(layers, key=_distance, default=None)


def _distance(layer: Layer) -> tuple[int, float, float]:
    cosine = math.inf if math.isnan(layer.cosine) else -layer.cosine
    error = math.inf if math.isnan(layer.max_abs) else layer.max_abs
    return ("pass", "warning", "fail").index(layer.status), cosine, error


def _finding(record: Record) -> Iterator[Line]:
    failed = record["outcome"] in ("failed", "error")
    expected = "expected " if record["outcome"] == "expected" else ""
    drifted = _drift(record) == "regressed"
    reason = record["error_drift"]["reason"] if drifted else record["reason"] or "no reason was recorded"
    yield Line(
        f"{expected}{_verdict(record)}{', error drift' * drifted}  {record['nodeid']}", "red" if failed else "yellow"
    )
    yield Line(f"    {what}: {reason}" if (what := _what(record)) else f"    {reason}")
    if where := _where(record):
        yield Line(f"    where: {where}")
    if record.get("first_divergence"):
        yield Line(f"    first divergence: {record['first_divergence']}")
    if record.get("culprit"):
        yield Line(f"    culprit: {Culprit.of(record['culprit'])}")
    if failed:
        yield Line(f"    reproduce: {record['reproducer']}")
        if record.get("script"):
            yield Line(f"    alone: python {record['script']}")


def _drift(record: Record) -> str:
    """Whether an error that is within its tolerance grew: ``regressed``, ``inconclusive``, ``ok``, or ``""``."""
    return str((record.get("error_drift") or {}).get("verdict", ""))


def _where(record: Record) -> str:
    """Which elements of the first output that fails are wrong, where that was found out."""
    failed = (o for o in record.get("outputs") or () if o.get("status") == "fail")
    return next((f"{o['path']}: {o['pattern']}" for o in failed if o.get("pattern")), "")


def _models(records: Sequence[Record]) -> Iterator[Line]:
    rows = [(record, layer) for record in records if (layer := worst_layer(record)) is not None]
    if not rows:
        return
    table = [("", "dtype", "layers", "worst layer", "cosine", "max abs", "test")]
    for record, layer in rows:
        table.append(
            (
                _answer(record),
                record["dtype"],
                str(len(record["checkpoints"])),
                layer.name,
                _cosine(layer.cosine),
                f"{layer.max_abs:.2e}",
                record["nodeid"],
            )
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    yield Line("models, each with its worst layer:")
    for i, row in enumerate(table):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield Line(f"  {cells}".rstrip(), _colour(rows[i - 1][0]) if i else "bold")


def _count(records: Sequence[Record]) -> Line:
    targets = ", ".join(dict.fromkeys(record["target"] for record in records if record["target"]))
    counts: Counter[str] = Counter()
    for record in sorted(records, key=lambda r: Verdict(r["verdict"]).severity):
        counts[_answer(record)] += 1
    worst = "red" if any(r["outcome"] in ("failed", "error") for r in records) else "green"
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return Line(f"ascend: {len(records)} {f'compared on {targets}' if targets else 'judged'}: {listed}", worst)


def _answer(record: Record) -> str:
    return str(record["verdict"]) + (" (expected)" if record["outcome"] == "expected" else "")


def _verdict(record: Record) -> str:
    return f"{record['verdict']} ({record['kind']})" if record.get("kind") else str(record["verdict"])


def _what(record: Record) -> str:
    return " ".join(part for part in (record["api"], record["dtype"]) if part)


def _colour(record: Record) -> str:
    return {"passed": "green", "failed": "red", "error": "red"}.get(record["outcome"], "yellow")


def _severity(record: Record) -> tuple[int, float]:
    cosine = _number((record.get("metrics") or {}).get("cosine_similarity", 1.0))
    return -Verdict(record["verdict"]).severity, -math.inf if math.isnan(cosine) else cosine


def _number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)  # "nan", "inf" and "-inf" are the file's own words


def _cosine(value: float) -> str:
    """Where rounding would show a flat 1, the distance from it."""
    return f"1 - {1.0 - value:.1e}" if 0.0 < 1.0 - value < 1e-6 else f"{value:.6f}"
