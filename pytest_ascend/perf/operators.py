"""The one table that every profile becomes: what each operator cost, in microseconds; and which operators grew.

Numbers only: nothing here reads a file, knows a device or depends on torch. All times are microseconds (``_us``), as in
the profilers' own files. ``None`` says that the source doesn't tell; it never stands for zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .advice import Advice, ClassShare

#: What a row of a table stands for; tables of different levels hold different times and can't be compared.
#: kernel: a task on the device · operator: a call of torch's, host and device time · api: a call of the runtime's ·
#: step: the parts of a training step · instruction: a simulator's instructions or source lines.
Level = Literal["kernel", "operator", "api", "step", "instruction"]

# `MatMulV2` keeps its version and `Conv2D3` loses its counter.
_COUNTER = re.compile(r"(?:_{1,2}\d+)+$|(?<=[A-Za-z])(?<![A-Za-z]V)\d+$")


@dataclass(frozen=True)
class OperatorRow:
    """What all calls of one operator with the same shapes cost together.

    Attributes:
        name: as the profiler wrote it, for example `aclnnMatmul_MatMulV3Common_MatMulV3` or `aten::mm`.
        kind: the operator's type (`MatMulV3`, `TransData`); the name where the source has no types.
        calls: how often it ran.
        total_us: what the table is ordered by: device time plus host time, each the operator's own, without the
            operators it called; a source that has a total of its own keeps that one.
        device_us, host_us: its own time on the device and on the host.
        wait_us: for how long the device was idle before its tasks started.
        ratio: its part of the table's total, 0 to 1.
        core: what it ran on (`AI_CORE`, `AI_VECTOR_CORE`, `MIX_AIC`, `AI_CPU`, `COMMUNICATION`, ...).
        shapes, dtypes, formats: of the inputs, one text with `;` between inputs, as the profilers write it.
        device: the device's number where the source has one.
        busy: for how long each unit of a core (`cube`, `vector`, `scalar`, `mte1`, `mte2`, `mte3`, `fixpipe`) was
            busy, microseconds per call, as a mean over the calls whose counters were read.
    """

    name: str
    kind: str
    calls: int
    total_us: float
    device_us: float | None = None
    host_us: float | None = None
    wait_us: float | None = None
    ratio: float = 0.0
    core: str = ""
    shapes: str = ""
    dtypes: str = ""
    formats: str = ""
    device: str = ""
    busy: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def stem(self) -> str:
        """The name without the counters that change from run to run (`hcom_allReduce__865_0_1`, `trans_TransData_12`).

        Numbers that are part of a type's name (`Conv2D`, `MatMulV3`) stay where the name ends with its type.
        """
        return self.name if self.kind and self.name.endswith(self.kind) else stem_of(self.name)


def stem_of(name: str) -> str:
    """A kernel's name without the counters at its end, also where its type isn't known."""
    return _COUNTER.sub("", name) or name


@dataclass(frozen=True)
class Growth:
    """One operator in two tables: its time per step before and after, and why it differs."""

    name: str
    kind: str
    core: str
    shapes: str
    before_us: float
    after_us: float
    before_calls: float
    after_calls: float

    @property
    def grew_us(self) -> float:
        """How much more time it takes per step; negative where it takes less."""
        return self.after_us - self.before_us

    @property
    def why(self) -> str:
        """`new`, `gone`, `more calls`, `fewer calls`, `slower`, `faster` or `same`, as the larger of the two causes.

        A change of the time per call counts for ``before_calls`` calls; a change of their number counts for the time
        that a call takes now.
        """
        if not self.before_calls or not self.after_calls:
            return "new" if self.after_calls else "gone"
        before, after = self.before_us / self.before_calls, self.after_us / self.after_calls
        slower, more = (after - before) * self.before_calls, (self.after_calls - self.before_calls) * after
        if abs(more) > abs(slower):
            return "more calls" if more > 0 else "fewer calls"
        if slower == 0:
            return "same"
        return "slower" if slower > 0 else "faster"


@dataclass(frozen=True)
class OperatorDiff:
    """Two tables compared: all operators, those that grew most first.

    ``unusable`` says why either table can't serve as evidence (a chip below its rated frequency); empty is good.
    """

    rows: tuple[Growth, ...]
    unusable: tuple[str, ...] = ()

    def grown(self) -> tuple[Growth, ...]:
        """The operators that take more time than before, worst first."""
        return tuple(row for row in self.rows if row.grew_us > 0)

    @property
    def before_us(self) -> float:
        """The whole time per step of the first table."""
        return sum(row.before_us for row in self.rows)

    @property
    def after_us(self) -> float:
        """The whole time per step of the second table."""
        return sum(row.after_us for row in self.rows)


@dataclass(frozen=True)
class OperatorTable:
    """All operators of one profile, worst first.

    Attributes:
        rows: ordered by ``total_us``, the largest first.
        source: the file or folder it was read from, or what measured it.
        level: what a row stands for.
        steps: how many training steps the table covers, over all devices; 1 where the source has no steps.
        unusable: why these times are no evidence; empty is good.
        notes: what a reader should know: rows that were left out, a file that may be cut off.
    """

    rows: tuple[OperatorRow, ...]
    source: str
    level: Level
    steps: int = 1
    unusable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Iterable[OperatorRow],
        source: str,
        level: Level,
        *,
        steps: int = 1,
        unusable: Iterable[str] = (),
        notes: Iterable[str] = (),
    ) -> OperatorTable:
        """A table of these rows: ordered, and with each row's ratio."""
        ordered = sorted(rows, key=lambda row: (-row.total_us, row.kind, row.name, row.shapes, row.device))
        whole = sum(row.total_us for row in ordered)
        shared = tuple(replace(row, ratio=row.total_us / whole if whole else 0.0) for row in ordered)
        return cls(shared, source, level, max(steps, 1), tuple(dict.fromkeys(unusable)), tuple(dict.fromkeys(notes)))

    @property
    def total_us(self) -> float:
        """The time of all rows together."""
        return sum(row.total_us for row in self.rows)

    @property
    def device_us(self) -> float:
        """The device time of all rows that have one."""
        return sum(row.device_us or 0.0 for row in self.rows)

    @property
    def host_us(self) -> float:
        """The host time of all rows that have one."""
        return sum(row.host_us or 0.0 for row in self.rows)

    @property
    def wait_us(self) -> float:
        """The waiting time of all rows that have one."""
        return sum(row.wait_us or 0.0 for row in self.rows)

    @property
    def calls(self) -> int:
        """How many calls the table counts."""
        return sum(row.calls for row in self.rows)

    def by_kind(self) -> tuple[OperatorRow, ...]:
        """One row per operator type and core, worst first: what a glance needs where a model has hundreds of shapes."""
        groups: dict[tuple[str, str], list[OperatorRow]] = {}
        for row in self.rows:
            groups.setdefault((row.kind, row.core), []).append(row)
        merged = [_merged(rows) for rows in groups.values()]
        return tuple(sorted(merged, key=lambda row: (-row.total_us, row.kind)))

    def classes(self) -> tuple[ClassShare, ...]:
        """How the time is shared among kinds of work (compute, memory-bound, layout conversion, ...), largest first."""
        from .advice import classes

        return classes(self)

    def advice(self) -> tuple[Advice, ...]:
        """What to do about the profile, the largest part of the time first."""
        from .advice import advice

        return advice(self)

    def diff(self, other: OperatorTable) -> OperatorDiff:
        """Which operators grew from this table (before) to ``other`` (after), worst first, per step.

        Operators are the same when type, core, input shapes and dtypes agree and the names agree but for their
        counters; devices are taken together, each as steps of its own.

        Raises:
            ValueError: the tables are of different levels, so their times mean different things.
        """
        if self.level != other.level:
            raise ValueError(
                f"{self.source} holds times per {self.level} and {other.source} times per {other.level}: "
                "compare two profiles of the same kind"
            )
        before, after = _per_step(self), _per_step(other)
        rows = []
        for key in dict.fromkeys([*before, *after]):
            (old_us, old_calls), (new_us, new_calls) = before.get(key, (0.0, 0.0)), after.get(key, (0.0, 0.0))
            name, kind, core, shapes, _ = key
            rows.append(Growth(name, kind, core, shapes, old_us, new_us, old_calls, new_calls))
        rows.sort(key=lambda row: (-row.grew_us, row.kind, row.name, row.shapes))
        said = [f"{table.source}: {reason}" for table in (self, other) for reason in table.unusable]
        return OperatorDiff(tuple(rows), tuple(dict.fromkeys(said)))

    def to_dict(self) -> dict[str, Any]:
        """The table as plain JSON; times in microseconds."""
        rows = [{**asdict(replace(row, busy={})), "busy": dict(row.busy)} for row in self.rows]
        return {
            "source": self.source,
            "level": self.level,
            "unit": "us",
            "steps": self.steps,
            "total_us": self.total_us,
            "unusable": list(self.unusable),
            "notes": list(self.notes),
            "rows": rows,
        }


def _merged(rows: list[OperatorRow]) -> OperatorRow:
    first = rows[0]
    names = {row.stem() for row in rows}
    shapes = {row.shapes for row in rows}
    units = {unit for row in rows for unit in row.busy}
    counted = sum(row.calls for row in rows if row.busy)
    busy = {unit: sum(row.busy.get(unit, 0.0) * row.calls for row in rows) / counted for unit in sorted(units)}
    return OperatorRow(
        name=names.pop() if len(names) == 1 else first.kind,
        kind=first.kind,
        calls=sum(row.calls for row in rows),
        total_us=sum(row.total_us for row in rows),
        device_us=known_sum(row.device_us for row in rows),
        host_us=known_sum(row.host_us for row in rows),
        wait_us=known_sum(row.wait_us for row in rows),
        ratio=sum(row.ratio for row in rows),
        core=first.core,
        shapes=shapes.pop() if len(shapes) == 1 else "",
        busy=busy,
    )


def known_sum(times: Iterable[float | None]) -> float | None:
    """The sum of the times that are told; ``None`` where none is."""
    told = [time for time in times if time is not None]
    return sum(told) if told else None


def _per_step(table: OperatorTable) -> dict[tuple[str, str, str, str, str], tuple[float, float]]:
    """Time and calls per step of each operator, under what makes it the same operator in another run."""
    sums: dict[tuple[str, str, str, str, str], tuple[float, float]] = {}
    for row in table.rows:
        key = (row.stem(), row.kind, row.core, row.shapes, row.dtypes)
        time, calls = sums.get(key, (0.0, 0.0))
        sums[key] = time + row.total_us / table.steps, calls + row.calls / table.steps
    return sums
