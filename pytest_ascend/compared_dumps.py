"""``pytest TARGET/dump.json --ascend-golden=GOLDEN/dump.json``: two dumps, each pair of calls a pytest item.

The dumps are compared whole when the first item runs, because a call's tensors are judged by how far apart those before
them were; the other items only look their rows up.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.session import KEY, AscendSession, ComparisonFailed

if TYPE_CHECKING:
    from pytest_ascend.dumps.common import Unit
    from pytest_ascend.dumps.matching import Matching
    from pytest_ascend.dumps.rows import Row, UnitComparison
    from pytest_ascend.judge.verdict import CheckResult

__all__ = ["ComparedDump", "PairItem"]

GOLDEN = "--ascend-golden"


class PairItem(pytest.Item):
    """A call of the golden dump and its partner in the target, or a call without one."""

    def __init__(self, *, call: str, alone: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.call, self.alone = call, alone
        self.detail = {"source": str(self.path)}

    @property
    def ascend(self) -> AscendSession:
        """The plugin's state of this run."""
        return self.config.stash[KEY]

    def runtest(self) -> None:
        """Look the pair's rows up. Raises ``ComparisonFailed`` for one that fails."""
        __tracebackhide__ = True
        result = self._result()
        record = self.ascend.record(self, result, None)
        if self.ascend.outcome(record) in ("failed", "error"):
            raise ComparisonFailed(result, record)

    def _result(self) -> CheckResult:
        from pytest_ascend.judge.verdict import CheckResult, OutputResult, Verdict

        assert isinstance(self.parent, ComparedDump)
        again = ["pytest", self.ascend.argument(self), f"{GOLDEN}={self.parent.golden}"]
        rest: dict[str, Any] = {
            "api": self.call,
            "target": f"dump {self.path}",
            "reproducer": shlex.join(again),
        }
        if self.alone:
            reason = f"only the {self.alone} has this call"
            return CheckResult(Verdict.NOT_COMPARABLE, reason=reason, **rest)
        found = self.parent.compared()
        outputs = [
            OutputResult(
                row.name.removeprefix(self.call + "."), row.verdict, row.kind, row.reason, row.status, row.dtype,
                metrics=self.parent.metrics.get(row.name),
            )
            for row in self.parent.by_call.get(self.call, ())
        ]  # fmt: skip
        if not outputs:
            return CheckResult(Verdict.PASS, **rest)
        notes = []
        mark = self.parent.marks.get(self.call, "")
        if mark == "victim":
            notes.append(
                f"a victim: its inputs differed already, since {found.divergence.first or found.divergence.source}"
            )
        elif mark == "culprit":
            notes.append("its inputs agree, its outputs don't")
        dtype = next((o.dtype for o in outputs if o.dtype), "")
        return CheckResult.of(outputs, dtype=dtype, notes=notes, **rest)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The rendered result of a failed comparison: there is no line of a test to show."""
        if isinstance(excinfo.value, ComparisonFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where pytest says the item stands."""
        return self.path, None, self.name


class ComparedDump(pytest.File):
    """The target's dump; its items are the calls of both."""

    golden: str = ""
    _sides: tuple[Unit, Unit] | None = None
    _matching: Matching | None = None
    _found: UnitComparison | None = None

    def collect(self) -> Iterator[PairItem]:
        """One item for each pair of calls, and for each call without a partner. Raises ``CollectError``."""
        from pytest_ascend.dumps.mapping import read_mapping
        from pytest_ascend.dumps.matching import match
        from pytest_ascend.dumps.text import DumpError

        settings = self.config.stash[KEY].settings
        self.golden = str(self.config.invocation_params.dir / str(settings.golden))
        self.metrics: dict[str, Any] = {}
        self.by_call: dict[str, list[Row]] = {}
        self.marks: dict[str, str] = {}
        try:
            self.mapping = read_mapping(settings.mapping)
            self._sides = self._opened()
            self._matching = match(*self._sides, self.mapping)
        except DumpError as error:
            raise pytest.Collector.CollectError(str(error)) from None
        names = [(one.golden, "") for one in self._matching.matches]
        names += [(broken.name, "") for side in self._sides for broken in side.broken]
        known = {name for name, _ in names}
        names += [(name, "golden") for name in self._matching.golden_only if name not in known]
        names += [(name, "target") for name in self._matching.target_only if name not in known]
        for call, alone in dict.fromkeys(names):
            nodeid = f"{self.nodeid}::{call}"
            yield PairItem.from_parent(self, name=call, nodeid=nodeid, call=call, alone=alone)

    def _opened(self) -> tuple[Unit, Unit]:
        """Both sides' units: of a golden folder, the one of this dump's step and rank."""
        from pytest_ascend.dumps.sides import open_side
        from pytest_ascend.dumps.text import DumpError

        (target,) = open_side(self.path).units
        golden = open_side(self.golden)
        fitting = [unit for unit in golden.units if (unit.step, unit.rank) == (target.step, target.rank)]
        units = golden.units if len(golden.units) == 1 else fitting
        if len(units) != 1:
            raise DumpError(
                f"{GOLDEN}={self.golden}: {len(units)} of its {len(golden.units)} dumps have the step and rank of "
                f"{self.path}: name one dump.json"
            )
        return units[0], target

    def compared(self) -> UnitComparison:
        """Both dumps compared, once."""
        from pytest_ascend.dumps.comparing import compare_units
        from pytest_ascend.dumps.pairs import Rule

        if self._found is None:
            assert self._sides is not None
            settings = self.config.stash[KEY].settings
            rule = Rule(settings.criterion or "auto", settings.cosine, settings.max_abs)
            self._found = compare_units(
                *self._sides, "", self.mapping, rule, metrics=self.metrics, by_call=self.by_call
            )
            self.marks = {state.name: state.mark for state in self._found.calls}
        return self._found
