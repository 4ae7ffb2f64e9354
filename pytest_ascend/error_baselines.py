"""Errors of comparisons that are stored, and whether they grew since: still within tolerance, but further off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.session import AscendSession, Record

if TYPE_CHECKING:
    from pytest_ascend.judge.verdict import CheckResult

__all__ = ["ErrorBaselines"]


class ErrorBaselines:
    """Looks stored errors up where a test runs; stores them where the run's results come together.

    The inputs of a test that Hypothesis draws are others in each run, and so are its errors: it has no baseline.
    """

    def __init__(self, session: AscendSession) -> None:
        self.session = session
        self._environments: dict[str, Mapping[str, Any]] = {}
        self._kept: dict[tuple[str, str], tuple[Mapping[str, Any], dict[str, Mapping[str, float]]]] = {}
        self._said: list[str] = []

    def look(self, item: pytest.Item, result: CheckResult, target: str, number: int) -> Record:
        """What to add to a result's record: ``error_drift``, and what to store.

        Args:
            number: how many results of the same API the test has had before.
        """
        from pytest_ascend.perf.baseline import BaselineError
        from pytest_ascend.perf.drift import FIGURE, error_drift
        from pytest_ascend.perf.store import Store

        if result.verdict.outcome not in ("passed", "noted") or _is_drawn(item):
            return {}
        figures = {name: _worst(result, name) for name in (FIGURE, "max_abs_error")}
        known = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        if FIGURE not in known:
            return {}
        name = f"{result.api}/{result.dtype}" + (f"#{number + 1}" if number else "")
        environment = self._environment(target)
        found: Record = {"stored_figures": {"environment": environment, "name": name, "figures": known}}
        factor = self.session.settings.limits.error
        if factor is not None:
            try:
                baseline = Store(self.session.baselines()).load(environment, item.nodeid)
            except BaselineError as error:
                found["error_drift"] = {"verdict": "inconclusive", "ratio": None, "reason": str(error)}
                return found
            stored = [] if baseline is None else baseline.figures(name, FIGURE)
            drift = error_drift(stored, known[FIGURE], dtype=result.dtype, factor=factor)
            ratio = drift.ratio if math.isfinite(drift.ratio) else None
            found["error_drift"] = {"verdict": str(drift.verdict), "ratio": ratio, "reason": drift.reason}
        return found

    def keep(self, record: Record, figures: Mapping[str, Any]) -> None:
        """Remember a result's errors until the run ends, if they are to be stored."""
        settings = self.session.settings
        drifted = (record.get("error_drift") or {}).get("verdict") == "regressed"
        if not (settings.save or settings.update) or (record["outcome"] in ("failed", "error") and not drifted):
            return
        if drifted and not settings.update:
            return
        environment = figures["environment"]
        key = (record["nodeid"], repr(sorted(environment.items(), key=str)))
        _, known = self._kept.setdefault(key, (environment, {}))
        known[figures["name"]] = figures["figures"]

    def store(self) -> None:
        """Store what was kept. What goes wrong becomes the run's ``write_error``."""
        from pytest_ascend.perf.baseline import Session

        count = 0
        identity = self.session.identity() if self._kept else {}
        for (test, _), (environment, errors) in self._kept.items():
            session = Session(identity["id"], identity["date"], identity["commit"], errors=errors)
            count += self.session.store(environment, test, session)
        if count:
            self._said.append(f"stored the errors of {count} test{'s' * (count != 1)}")

    def said(self, records: Sequence[Record]) -> Iterator[str]:
        """Lines for the end of the run."""
        yield from self._said
        reasons: dict[str, list[str]] = {}
        for record in records:
            drift = record.get("error_drift") or {}
            if drift.get("verdict") == "inconclusive":
                reasons.setdefault(drift["reason"], []).append(record["nodeid"])
        for reason, names in reasons.items():
            which = names[0] if len(names) == 1 else f"{len(names)} results"
            yield f"inconclusive for {which}: {reason}; --ascend-save stores them"

    def _environment(self, target: str) -> Mapping[str, Any]:
        if target not in self._environments:
            import torch

            from pytest_ascend.perf.fingerprint import environment
            from pytest_ascend.targets import resolve

            described = resolve(target).describe(initialised=True)
            self._environments[target] = environment(described, threads=torch.get_num_threads())
        return self._environments[target]


def _worst(result: CheckResult, name: str) -> float | None:
    """The largest of a figure over the outputs; None where none has it."""
    values = [getattr(output.metrics, name) for output in result.outputs if output.metrics is not None]
    return max((float(value) for value in values), default=None)


def _is_drawn(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
