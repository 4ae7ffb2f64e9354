"""What a result adds to its test case in a JUnit file: properties that a CI server can show and filter by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_ascend.judge.culprit import Culprit

__all__ = ["properties"]

_PRECISION = ("verdict", "kind", "api", "dtype", "target", "criterion", "first_divergence")
_METRICS = ("cosine_similarity", "max_abs_error")
_TIME = ("metric", "old_s", "new_s", "ratio", "interval", "detectable", "against", "error")
_LONGEST = 2000
_FAILED = ("reason", "reproducer", "script")


def properties(record: Mapping[str, Any], prefix: str, *, failed: bool) -> Iterator[tuple[str, Any]]:
    """Names and values.

    Args:
        record: the result's entry in the results file.
        prefix: what the names start with, ``ascend`` or ``ascend.2``.
        failed: whether it fails its test; then it says why, and how to see it again.
    """
    perf = record.get("perf")
    if perf is not None:
        prefix = f"{prefix}.perf"
        yield prefix, record["verdict"]
        for name in _TIME:
            if perf.get(name) not in (None, ""):
                yield f"{prefix}.{name}", _value(str(perf[name]))
    else:
        gist = {**record["metrics"], **record}
        for name in (*_PRECISION, *_METRICS):
            if gist.get(name) not in (None, ""):
                yield f"{prefix}.{name}", _value(gist[name])
        if record.get("culprit"):
            yield f"{prefix}.culprit", _value(str(Culprit.of(record["culprit"])))
    if failed:
        for name in _FAILED:
            if record.get(name):
                yield f"{prefix}.{name}", _value(record[name])


def _value(value: Any) -> Any:
    """A text on one line, without what XML can't hold, and not endless; a number as it is."""
    if not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value[:_LONGEST])
