"""What is stored of a test: sessions of timings and of error figures, and the file's format.

Nothing here reads or writes a file; :mod:`pytest_ascend.perf.store` does. Everything is frozen and compares by value.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from pytest_ascend.dumps.text import is_number
from pytest_ascend.perf.fingerprint import fingerprint
from pytest_ascend.perf.samples import Samples

__all__ = ["KEEP", "METRICS", "SCHEMA", "Baseline", "BaselineError", "Session", "Timings", "merged", "new_id"]

SCHEMA = 1
"""Version of the file's format."""
METRICS = ("device", "wall")
"""Time on the device and time on the clock; one is never compared with the other."""
KEEP = 50
"""Sessions that are kept of a test: five times what the history rule needs."""
_TEXT = 300  # characters of an id, a name or a commit; longer ones are refused
_COUNT = 10_000  # entries of one list or object; more are refused


class BaselineError(ValueError):
    """A baseline can't be read or used. The message is one sentence that names the file and what to do."""


@dataclass(frozen=True)
class Timings:
    """One metric of a session.

    Attributes:
        medians: seconds, of each process the median of its timings.
        minima: seconds, of each process the minimum, in the same order.
        sentinels: seconds that the sentinel kernels took in this session, by name.
    """

    medians: tuple[float, ...]
    minima: tuple[float, ...]
    sentinels: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.medians or len(self.medians) != len(self.minima):
            raise ValueError(f"{len(self.medians)} medians and {len(self.minima)} minima: give both of each process")
        for value in (*self.medians, *self.minima, *self.sentinels.values()):
            if not (is_number(value) and value > 0):
                raise ValueError(f"a timing of {value!r} s: a time is finite and above 0")
        for low, middle in zip(self.minima, self.medians, strict=True):
            if low > middle:
                raise ValueError(f"a minimum of {low!r} s above the median of {middle!r} s of the same process")


@dataclass(frozen=True)
class Session:
    """What one run of the tests stored of one test.

    Attributes:
        id: names the run; the same in all tests it stored. See :func:`new_id`.
        date: when, ISO 8601 with a time zone.
        commit: of the code under test, or empty.
        timings: by metric, one of :data:`METRICS`.
        errors: error figures by API and dtype (``"torch.softmax/float16"``), then by name of the figure
            (``relative_euclidean_distance``, ``max_abs_error``, ...), each finite and at least 0.
    """

    id: str
    date: str
    commit: str = ""
    timings: Mapping[str, Timings] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a session without an id")
        if _when(self.date) is None:
            raise ValueError(f"date {self.date!r}: give ISO 8601 with a time zone, such as 2026-01-31T12:00:00+00:00")
        for metric in self.timings:
            if metric not in METRICS:
                raise ValueError(f"metric {metric!r}: it is one of {', '.join(METRICS)}")
        for api, figures in self.errors.items():
            for name, value in figures.items():
                if not (is_number(value) and value >= 0):
                    raise ValueError(f"{name} of {api} is {value!r}: an error is finite and at least 0")

    @property
    def order(self) -> tuple[datetime, str]:
        """Sessions are ordered by date, then by id."""
        when = _when(self.date)
        assert when is not None  # __post_init__ refuses such dates
        return when, self.id

    def union(self, other: Session) -> Session:
        """Both sides' figures of one session, which two processes or branches stored; the same whichever is first.

        Where both have the same figure and differ, the later date's counts, and of equal dates the larger text.
        """
        low, high = sorted((self, other), key=lambda session: (session.order, _text(_plain(session))))
        errors = {api: {**low.errors.get(api, {}), **high.errors.get(api, {})} for api in {*low.errors, *high.errors}}
        return dataclasses.replace(high, timings={**low.timings, **high.timings}, errors=errors)


@dataclass(frozen=True)
class Baseline:
    """All that is stored of one test under one fingerprint.

    Attributes:
        test: the test's id.
        environment: what the fingerprint is made from, whole.
        sessions: oldest first, with different ids.
    """

    test: str
    environment: Mapping[str, Any]
    sessions: tuple[Session, ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.sessions, key=lambda session: session.order))
        if len({session.id for session in ordered}) < len(ordered):
            raise ValueError("two sessions have the same id")
        object.__setattr__(self, "sessions", ordered)

    @property
    def fingerprint(self) -> str:
        """Name of the conditions, and of the folder this is kept in."""
        return fingerprint(self.environment)

    def with_session(self, session: Session, keep: int = KEEP) -> Baseline:
        """With one session more, joined with the one of the same id, and only the last ``keep`` of them all."""
        known = {one.id: one for one in self.sessions}
        known[session.id] = known[session.id].union(session) if session.id in known else session
        return dataclasses.replace(self, sessions=tuple(known.values())).last(keep)

    def last(self, keep: int) -> Baseline:
        """Only the latest sessions."""
        return dataclasses.replace(self, sessions=self.sessions[-keep:] if keep > 0 else ())

    def timed(self, metric: str) -> tuple[Session, ...]:
        """The sessions that have this metric, oldest first."""
        return tuple(session for session in self.sessions if metric in session.timings)

    def samples(self, metric: str) -> list[Samples]:
        """Per session of :meth:`timed` its processes, as ``decide_history`` takes them.

        Three timings stand for a process, those of which the median and the minimum are the stored ones.
        """
        timings = [session.timings[metric] for session in self.timed(metric)]
        return [[[low, mid, mid] for low, mid in zip(one.minima, one.medians, strict=True)] for one in timings]

    def figures(self, api: str, name: str) -> list[float]:
        """A figure of an API and dtype in every session that has it, oldest first, as ``error_drift`` takes them."""
        return [s.errors[api][name] for s in self.sessions if name in s.errors.get(api, {})]

    def to_text(self) -> str:
        """The file's content: sorted JSON, a list of numbers on one line, so that a session is few lines of a diff."""
        plain = {
            "schema": SCHEMA,
            "test": self.test,
            "environment": dict(self.environment),
            "sessions": [_plain(session) for session in self.sessions],
        }
        spread = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False)
        # A line break inside a text is escaped, so nothing but lists of numbers matches.
        return re.sub(r"\[\n\s+(-?\d[-+.eE\d,\s]*?)\n\s+\]", lambda m: f"[{' '.join(m[1].split())}]", spread) + "\n"

    @classmethod
    def from_plain(cls, plain: Any, path: str) -> Baseline:
        """From a file's value. Raises ``BaselineError``; ``path`` names the file in it."""
        schema = plain.get("schema") if isinstance(plain, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise BaselineError(
                f"{path}: its schema {str(schema)[:20]} is newer than {SCHEMA}, which this version reads: "
                "upgrade pytest-ascend"
            )
        try:
            return _baseline(plain)
        except (ValueError, TypeError) as error:
            raise BaselineError(
                f"{path}: it is no baseline: {error}; restore it from version control, or delete it and save a new one"
            ) from None


def merged(base: Baseline | None, ours: Baseline, theirs: Baseline) -> Baseline:
    """Both branches' sessions, less those that one of them removed since ``base``; the same whichever is ours.

    Raises ``ValueError`` unless both are of the same test and environment.
    """
    if ours.test != theirs.test or dict(ours.environment) != dict(theirs.environment):
        raise ValueError(f"they are of different tests or environments: {ours.test} and {theirs.test}")
    before = {session.id: session for session in base.sessions} if base else {}
    left, right = ({session.id: session for session in side.sessions} for side in (ours, theirs))
    kept: list[Session] = []
    for name in sorted({*left, *right}):
        if name in left and name in right:
            old, one, two = before.get(name), left[name], right[name]
            kept.append(two if one == old else one if two == old else one.union(two))
        else:
            one = left[name] if name in left else right[name]
            if one != before.get(name):  # removed on one side; kept when the other has changed it since
                kept.append(one)
    return dataclasses.replace(ours, sessions=tuple(kept))


def new_id(now: datetime | None = None) -> str:
    """A name for a session that no other run has: the UTC time and eight random digits."""
    return f"{now or datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def _plain(session: Session) -> dict[str, Any]:
    timings = {
        metric: {
            "medians": list(one.medians),
            "minima": list(one.minima),
            **({"sentinels": dict(one.sentinels)} if one.sentinels else {}),
        }
        for metric, one in session.timings.items()
    }
    plain: dict[str, Any] = {"id": session.id, "date": session.date, "commit": session.commit}
    if timings:
        plain["timings"] = timings
    if session.errors:
        plain["errors"] = {api: dict(figures) for api, figures in session.errors.items()}
    return plain


def _text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)


def _baseline(plain: Any) -> Baseline:
    entries = _object(plain, "the file")
    schema = entries.get("schema")
    if schema != SCHEMA or not isinstance(schema, int) or isinstance(schema, bool):
        raise ValueError(f"schema is {str(schema)[:80]!r} and not {SCHEMA}")
    _only(entries, ("schema", "test", "environment", "sessions"), "the file")
    environment = _object(entries.get("environment"), "environment")
    fingerprint(environment)
    sessions = _list(entries.get("sessions"), "sessions")
    read = tuple(_session(one, f"session {number}") for number, one in enumerate(sessions))
    return Baseline(_string(entries.get("test"), "test", 4 * _TEXT), environment, read)


def _session(plain: Any, where: str) -> Session:
    entries = _object(plain, where)
    _only(entries, ("id", "date", "commit", "timings", "errors"), where)
    timings = {}
    for metric, value in _object(entries.get("timings", {}), f"{where}: timings").items():
        here = f"{where}: {metric}"
        one = _object(value, here)
        _only(one, ("medians", "minima", "sentinels"), here)
        medians, minima = (_list(one.get(name), f"{here}: {name}") for name in ("medians", "minima"))
        timings[metric] = Timings(
            tuple(medians), tuple(minima), _object(one.get("sentinels", {}), f"{here}: sentinels")
        )
    errors = {
        api: _object(figures, f"{where}: errors of {api}")
        for api, figures in _object(entries.get("errors", {}), f"{where}: errors").items()
    }
    texts = [_string(entries.get(name), f"{where}: {name}", _TEXT) for name in ("id", "date", "commit")]
    return Session(texts[0], texts[1], texts[2], timings, errors)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    if len(value) > _COUNT:
        raise ValueError(f"{where} has {len(value)} entries, more than {_COUNT}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")
    if len(value) > _COUNT:
        raise ValueError(f"{where} has {len(value)} entries, more than {_COUNT}")
    return value


def _string(value: Any, where: str, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError(f"{where} is no text of at most {limit} characters")
    return value


def _only(entries: Iterable[str], known: tuple[str, ...], where: str) -> None:
    for name in entries:
        if name not in known:
            raise ValueError(f"{where} has {name[:80]!r}, which is none of {', '.join(known)}")


def _when(date: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(date.replace("Z", "+00:00"))  # Python 3.10 doesn't know Z
        return None if when.tzinfo is None else when.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
