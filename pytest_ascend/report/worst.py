"""What to show first of a run's results, and what to say of each in a few words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_ascend.judge.culprit import Culprit
from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.report import timings
from pytest_ascend.report.lines import duration

__all__ = [
    *("STATES", "emulated", "headline", "how_much", "near_one", "number", "reason", "state", "told", "where", "word"),
    "worst_first",
]

Record = Mapping[str, Any]

STATES = ("failed", "error", "noted", "expected", "skipped", "passed")
"""What a result did to its test, the worst first."""


def number(value: Any) -> float:
    """A number of the results file, which has words for those that aren't finite; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def state(record: Record) -> str:
    """One of :data:`STATES`."""
    found = record.get("outcome")
    return found if found in STATES else "failed"


def worst_first(records: Iterable[Record]) -> list[Record]:
    """By what they did to their tests, then severity, then how far off they are."""
    return sorted(records, key=_badness)


def _badness(record: Record) -> tuple[int, float, float, str]:
    rank, off = STATES.index(state(record)), 0.0
    severity = -float(timings.VERDICTS[::-1].index(record["verdict"])) if _is_time(record) else 0.0
    if _is_time(record):
        ratio = number((record.get("perf") or {}).get("ratio"))
        off = 0.0 if math.isnan(ratio) else -ratio
    else:
        severity = -float(Verdict(record["verdict"]).severity) - len(timings.VERDICTS)
        cosine = number((record.get("metrics") or {}).get("cosine_similarity"))
        off = -2.0 if math.isnan(cosine) else cosine
    return rank, severity, off, str(record.get("nodeid", ""))


def _is_time(record: Record) -> bool:
    return record["verdict"] in timings.VERDICTS


def word(record: Record) -> str:
    """The verdict with its kind: ``FAIL (bias)``, ``regressed``, ``PASS, error drift``."""
    if (record.get("perf") or {}).get("error"):
        return "not timed"
    kind = f" ({record['kind']})" if record.get("kind") else ""
    drift = ", error drift" if (record.get("error_drift") or {}).get("verdict") == "regressed" else ""
    return f"{record['verdict']}{kind}{drift}"


def reason(record: Record) -> str:
    """Why, in a sentence."""
    drift = record.get("error_drift") or {}
    found = drift.get("reason") if drift.get("verdict") == "regressed" else record.get("reason")
    return str(found or (record.get("perf") or {}).get("error") or "")


def where(record: Record) -> str:
    """The layer, the elements or the operator that is to blame, as far as it is known."""
    parts = []
    if record.get("first_divergence"):
        parts.append(f"first divergence {record['first_divergence']}")
    failed = (o for o in record.get("outputs") or () if o.get("status") == "fail")
    parts += next(([f"{o['path']}: {o['pattern']}"] for o in failed if o.get("pattern")), [])
    if record.get("culprit"):
        parts.append(f"culprit {Culprit.of(record['culprit'])}")
    return "; ".join(parts)


def how_much(record: Record) -> str:
    """The error, or the times."""
    perf = record.get("perf")
    if perf:
        if perf.get("new_s") is None:
            return ""
        new, old = duration(number(perf["new_s"]), digits=3), perf.get("old_s")
        if old is None:
            return new
        # The ratio may be one of minima, and the medians of a noisy machine another.
        by = " by the minima" if perf.get("statistic") == "minimum" else ""
        return f"{number(perf.get('ratio')):.3f} times{by}, medians {duration(number(old), digits=3)} -> {new}"
    metrics = record.get("metrics") or {}
    if "cosine_similarity" not in metrics:
        return ""
    cosine, largest = number(metrics["cosine_similarity"]), number(metrics.get("max_abs_error"))
    return f"cosine {near_one(cosine)}, max abs {largest:.3g}"


def near_one(cosine: float) -> str:
    """A cosine; where rounding would show a flat 1, the distance from it."""
    return f"1 - {1 - cosine:.1e}" if 0 < 1 - cosine < 1e-6 else f"{cosine:.6f}"


def told(content: Mapping[str, Any]) -> str:
    """Where it ran: targets, and whether that was an emulated device."""
    return ", ".join(dict.fromkeys(str(r["target"]) for r in content["results"] if r.get("target")))


def emulated(records: Iterable[Record]) -> str:
    """A sentence for a run that no card, or not a card alone, has judged; else ``""``."""
    targets = {str(record["target"]) for record in records if record.get("target")}
    if not any("emulated" in target for target in targets):
        return ""
    if any(target.startswith("npu") and "emulated" not in target for target in targets):
        return "Some of it ran on an emulated device, not on a card."
    return "No card was used: the device is emulated."


def headline(records: Sequence[Record]) -> str:
    """The verdict of a run: ``2 of 120 failed``, ``all 120 passed``."""
    counts = Counter(map(state, records))
    count = len(records)
    if not count:
        return "nothing was compared"
    bad = [f"{counts[name]} {'failed' if name == 'failed' else 'could not be judged'}" for name in STATES[:2]]
    bad = [text for text, name in zip(bad, STATES[:2], strict=True) if counts[name]]
    if bad:
        return f"{' and '.join(bad)} of {count}"
    rest = [f"{counts[name]} {text}" for name, text in _REST if counts[name]]
    return f"{'all' if counts['passed'] == count else counts['passed']} {f'{count} ' * (not rest)}passed" + (
        f", {', '.join(rest)}" if rest else ""
    )


_REST = (("noted", "with a note"), ("expected", "failed as expected"), ("skipped", "skipped"))
