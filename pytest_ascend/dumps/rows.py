"""What comparing two dumps found, as values: of one tensor, of a unit, of all units.

A unit that is done is put on disk once there are many rows, so that comparing a hundred steps takes the memory of one.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, overload

from pytest_ascend.dumps.divergence import Found, State
from pytest_ascend.dumps.matching import Matching
from pytest_ascend.dumps.pairs import status_of
from pytest_ascend.dumps.summaries import AGREED
from pytest_ascend.judge.verdict import Kind, Verdict, jsonable

__all__ = ["DumpComparison", "Row", "Tally", "UnitComparison", "Units", "json_pieces"]

_IN_MEMORY = 20_000  # rows, of some 400 bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor, or one plain argument, of both dumps.

    Attributes:
        name: the golden's: ``Functional.linear.0.forward.output.0``.
        target: the target's where it is another, else empty.
        evidence: ``values``, ``statistics``, ``checksum``, ``argument`` or ``none``: what the verdict rests on.
        dtype, shape: the golden's and, where they differ, after an arrow the target's.
        cosine, max_abs, max_rel, rmse: of the target against the golden; None where values weren't compared.
        role: ``input``, ``parameter`` or ``output`` of its call.
    """

    name: str
    target: str
    role: str
    verdict: Verdict
    evidence: str
    kind: Kind | None = None
    reason: str = ""
    dtype: str = ""
    shape: str = ""
    cosine: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    rmse: float | None = None

    @property
    def status(self) -> str:
        """As :func:`~pytest_ascend.dumps.pairs.status_of` tells it."""
        return status_of(self.verdict, self.reason)

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON form."""
        found = {name: jsonable(getattr(self, name)) for name in self.__slots__}
        return {**found, "status": self.status}


@dataclass
class UnitComparison:
    """One step of one rank, or one round, of both dumps.

    Attributes:
        name: of the place: ``step0/rank0``.
        rows: in the golden's order.
        calls: what was found of each pair of calls; the same order.
        matching: who found whom, and who found nobody.
        divergence: where it began.
    """

    name: str
    golden: str
    target: str
    rows: list[Row] = field(default_factory=list)
    calls: list[State] = field(default_factory=list)
    matching: Matching = field(default_factory=Matching)
    divergence: Found = field(default_factory=Found)
    stacks: dict[str, list[str]] = field(default_factory=dict)


class Units(Sequence[UnitComparison]):
    """Finished units in their order: the first ones in memory, the others in a file without a name, read as needed."""

    def __init__(self) -> None:
        self._held: list[UnitComparison] = []
        self._places: list[int] = []
        self._file: IO[bytes] | None = None
        self._rows = 0

    def append(self, unit: UnitComparison) -> None:
        """One more; it mustn't be changed from now on. Raises ``OSError`` when it has to go on a disk that is full."""
        self._rows += len(unit.rows)
        if self._file is None and (not self._held or self._rows <= _IN_MEMORY):
            self._held.append(unit)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="ascend-rows-")  # noqa: SIM115  it is as long as this object
        self._places.append(self._file.seek(0, os.SEEK_END))
        pickle.dump(unit, self._file, pickle.HIGHEST_PROTOCOL)

    @property
    def in_memory(self) -> bool:
        """Whether all of them are."""
        return self._file is None

    def __len__(self) -> int:
        return len(self._held) + len(self._places)

    @overload
    def __getitem__(self, at: int) -> UnitComparison: ...
    @overload
    def __getitem__(self, at: slice) -> list[UnitComparison]: ...
    def __getitem__(self, at: int | slice) -> UnitComparison | list[UnitComparison]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        if at < len(self._held):
            return self._held[at]
        assert self._file is not None
        self._file.seek(self._places[at - len(self._held)])
        found = pickle.load(self._file)  # this object's own file, which nobody else can open
        assert isinstance(found, UnitComparison)
        return found


@dataclass
class Tally:
    """The rows, counted.

    Attributes:
        verdicts, statuses, evidence: how many rows have each.
        unproven: the evidence of those that don't fail.
        dtypes: pairs of dtypes that were judged at the lower precision: ``float32->bfloat16``.
        compared: the verdicts of what was compared, or couldn't be read.
        first_divergence: the first call whose inputs agree and whose outputs don't, of the first unit that has one.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    unproven: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    compared: Counter[Verdict] = field(default_factory=Counter)
    first_divergence: str | None = None

    def add(self, unit: UnitComparison) -> None:
        """Count a unit's rows."""
        for row in unit.rows:
            status = row.status
            self.verdicts[row.verdict] += 1
            self.statuses[status] += 1
            self.evidence[row.evidence] += 1
            if status != "fail":
                self.unproven[row.evidence] += 1
            if row.evidence != "none" or row.verdict is Verdict.INFRA:
                self.compared[row.verdict] += 1
            if "->" in row.dtype and row.kind is not Kind.dtype:
                self.dtypes[row.dtype] += 1
        if self.first_divergence is None:
            self.first_divergence = unit.divergence.first

    @property
    def verdict(self) -> Verdict:
        """The worst of all rows; NOT_EXERCISED where nothing was compared."""
        if not self.compared:
            return Verdict.NOT_EXERCISED
        return max(self.verdicts, key=lambda v: v.severity)

    def notes(self) -> Iterator[str]:
        """What a reader should know of how little some rows prove."""
        if self.unproven["statistics"]:
            yield f"{self.unproven['statistics']} tensors: {AGREED}"
        if self.unproven["checksum"]:
            yield (
                f"{self.unproven['checksum']} tensors were compared by a CRC-32 of their bytes: equal or not, "
                "nothing between"
            )
        for pair, count in self.dtypes.items():
            sides = pair.replace("->", " in the golden and ")
            yield f"{count} tensors are {sides} in the target: judged at the lower precision"


@dataclass(frozen=True)
class DumpComparison:
    """What comparing two dumps found. ``to_dict`` is the JSON form; ``first_divergence`` a call's name or None."""

    golden: str
    target: str
    units: Sequence[UnitComparison]
    golden_only_units: tuple[str, ...] = ()
    target_only_units: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)

    @property
    def rows(self) -> Iterator[Row]:
        """Of all units."""
        return (row for unit in self.units for row in unit.rows)

    @property
    def verdict(self) -> Verdict:
        """The worst of all rows; NOT_EXERCISED where nothing was compared."""
        return self.tally.verdict

    @property
    def passed(self) -> bool:
        """Whether no row fails, and something was compared."""
        return self.verdict.outcome in ("passed", "noted")

    @property
    def first_divergence(self) -> str | None:
        """The first call whose inputs agree and whose outputs don't, of the first unit that has one."""
        return self.tally.first_divergence

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each verdict."""
        return {str(verdict): count for verdict, count in self.tally.verdicts.items()}

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON form."""
        return {**self._head(), "units": [_unit_dict(unit) for unit in self.units]}

    def view(self) -> dict[str, Any]:
        """As :meth:`to_dict`; where units lie on disk, each is there only while somebody looks at it."""
        if isinstance(self.units, Units) and not self.units.in_memory:
            return {**self._head(), "units": _Dicts(self.units)}
        return self.to_dict()

    def _head(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "golden": self.golden,
            "target": self.target,
            "verdict": str(self.verdict),
            "passed": self.passed,
            "summary": self.counts,
            "statuses": dict(self.tally.statuses),
            "evidence": dict(self.tally.evidence),
            "first_divergence": self.first_divergence,
            "notes": list(self.notes),
            "golden_only_units": list(self.golden_only_units),
            "target_only_units": list(self.target_only_units),
        }


class _Dicts(Sequence[dict[str, Any]]):
    """Units in their JSON form, made when asked for."""

    def __init__(self, units: Units) -> None:
        self._units = units

    def __len__(self) -> int:
        return len(self._units)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(at, slice):
            return [_unit_dict(unit) for unit in self._units[at]]
        return _unit_dict(self._units[at])


def json_pieces(view: dict[str, Any]) -> Iterator[str]:
    """The JSON text of what :meth:`DumpComparison.view` gave, a unit at a time."""
    head = json.dumps({key: value for key, value in view.items() if key != "units"}, allow_nan=False)
    yield f'{head[:-1]}, "units": ['
    for i, unit in enumerate(view["units"]):
        yield (", " if i else "") + json.dumps(unit, allow_nan=False)
    yield "]}"


def _unit_dict(unit: UnitComparison) -> dict[str, Any]:
    how = {m.golden: m for m in unit.matching.matches}
    return {
        "name": unit.name,
        "golden": unit.golden,
        "target": unit.target,
        "first_divergence": unit.divergence.first,
        "source": unit.divergence.source,
        "culprits": list(unit.divergence.culprits),
        "victims": unit.divergence.victims,
        "stacks": unit.stacks,
        "golden_only": unit.matching.golden_only,
        "target_only": unit.matching.target_only,
        "calls": [
            {
                "name": state.name,
                "target": how[state.name].target if state.name in how else state.name,
                "how": how[state.name].how if state.name in how else "",
                "inputs": state.inputs,
                "outputs": state.outputs,
                "mark": state.mark,
            }
            for state in unit.calls
        ],
        "rows": [row.to_dict() for row in unit.rows],
    }
