"""Cases that need no test file: recorded dumps and the catalogue's APIs become pytest items.

A dump is a file that pytest finds, by itself or in a folder; the catalogue is a collector beside the files, put there
by ``--ascend-api``. Both list :class:`Pending` cases, and a :class:`CaseItem` runs one.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.cases.pending import Absent, CaseUnavailable, Pending
from pytest_ascend.session import KEY, AscendSession, ComparisonFailed, seed_of
from pytest_ascend.settings import COMPARE, numbers, patterns

if TYPE_CHECKING:
    from pytest_ascend.compared_dumps import ComparedDump
    from pytest_ascend.comparison import Comparison
    from pytest_ascend.judge.verdict import CheckResult, Verdict

__all__ = ["ApiCollector", "CaseItem", "DumpFile", "collect_file", "only_the_catalogue"]

DUMP = "dump.json"
_CATALOGUE = "pytest_ascend.cases.catalogue"


class CaseItem(pytest.Item):
    """One listed case as a pytest item: built, run, compared and recorded as ``ascend_compare`` does it."""

    def __init__(self, *, pending: Pending, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pending = pending
        self.extra_keyword_matches.update(word for word in (pending.api, pending.dtype, *pending.keywords) if word)

    @property
    def ascend(self) -> AscendSession:
        """The plugin's state of this run."""
        return self.config.stash[KEY]

    @property
    def arguments(self) -> list[str] | None:
        """pytest's arguments that select this item alone, or None where its node id does."""
        return self.parent.select(self) if isinstance(self.parent, ApiCollector) else None

    @property
    def detail(self) -> dict[str, Any]:
        """What the results file says about the case beside its result."""
        return {"source": self.pending.origin, "count": self.pending.count, **self.pending.detail}

    def runtest(self) -> None:
        """Build and check. Raises ``ComparisonFailed`` for a failing verdict, skips for UNSUPPORTED."""
        __tracebackhide__ = True
        if not self.ascend.on:
            pytest.skip(f"needs {COMPARE}")
        from pytest_ascend.comparison import Comparison

        options = {"seed": seed_of(self.pending.id), **self.ascend.settings.check_options()}
        comparison = Comparison(self.ascend, self, options)
        comparison.conclude(self._judged(comparison))

    def _judged(self, comparison: Comparison) -> CheckResult:
        """The result, also of a case that can't be built or that the CPU refuses."""
        from pytest_ascend.judge.verdict import Verdict
        from pytest_ascend.observe.errors import one_line

        if self.pending.not_runnable:
            return self._result(Verdict.UNSUPPORTED, self.pending.not_runnable)
        try:
            case, options = self.pending.build()
        except CaseUnavailable as error:
            return self._result(Verdict.UNSUPPORTED if error.unsupported else Verdict.INFRA, str(error))
        try:
            chosen = comparison.using(**options)
            result = chosen.judge(case)
            if self.pending.detail.get("mode") != "compile":
                return result
            from pytest_ascend.compiled import beside_eager

            return beside_eager(case, chosen.options, result)
        except Exception as error:
            reason = f"the CPU, which would be the reference, raised {one_line(error)}"
            if self.pending.detail.get("inputs") == "generated":  # a positive definite matrix isn't in its statistics
                return self._result(Verdict.UNSUPPORTED, f"inputs made from statistics may not do: {reason}")
            return self._result(Verdict.UNSUPPORTED if _lacks_kernel(error) else Verdict.INFRA, reason)

    def _result(self, verdict: Verdict, reason: str) -> CheckResult:
        from pytest_ascend.judge.verdict import CheckResult

        return CheckResult(
            verdict,
            reason=reason,
            api=self.pending.api,
            dtype=self.pending.dtype,
            target=self.ascend.target().title(),
            reproducer=self.ascend.reproduce(self),
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The rendered result of a failed comparison: there is no line of a test to show."""
        if isinstance(excinfo.value, ComparisonFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where pytest says the item stands."""
        return self.path, None, self.pending.id


def _lacks_kernel(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, NotImplementedError) or ("not implemented for '" in text) or "Could not run '" in text


def _items(parent: DumpFile | ApiCollector, listed: Iterable[Pending | Absent]) -> Iterator[CaseItem]:
    """Items with distinct names; what has no case goes to the coverage table."""
    seen: Counter[str] = Counter()
    ascend = parent.config.stash[KEY]
    for pending in listed:
        if isinstance(pending, Absent):
            ascend.absent[pending.api] = pending.reason
            continue
        seen[pending.id] += 1
        name = pending.id if seen[pending.id] == 1 else f"{pending.id}#{seen[pending.id]}"
        nodeid = f"{parent.nodeid}::{name}"  # from pytest 9.1 on a default one differs from what --lf reads back
        yield CaseItem.from_parent(parent, name=name, nodeid=nodeid, pending=pending)


class _Sentence(pytest.Collector):
    """A collector whose own errors are one sentence and not a traceback."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        if isinstance(excinfo.value, CaseUnavailable):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)


# ------------------------------------------------------------------------------------------------ dumps


class DumpFile(_Sentence, pytest.File):
    """A recorded dump; its items are the API calls in it."""

    def collect(self) -> Iterator[CaseItem]:
        """One item for each call, forward and backward. A file that can't be read is one collection error."""
        from pytest_ascend.cases.from_dump import pendings

        fold = not self.config.stash[KEY].settings.no_fold
        yield from _items(self, pendings(self.path, fold=fold, nodeid=self.nodeid))


def collect_file(path: Path, parent: pytest.Collector) -> DumpFile | ComparedDump | None:
    """The collector of a dump: a ``dump.json`` given by name, or in a folder while comparisons are on."""
    if path.name != DUMP and not (path.suffix == ".json" and parent.session.isinitpath(path)):
        return None
    settings = parent.config.stash[KEY].settings
    if settings.compare is None and settings.golden is None and not parent.session.isinitpath(path):
        return None
    if settings.step is not None or settings.rank is not None:
        from pytest_ascend.dumps.msprobe import place_of

        for wanted, is_in in zip((settings.step, settings.rank), place_of(str(path)), strict=True):
            if wanted is not None and is_in is not None and is_in not in numbers(wanted):
                return None
    if settings.golden is not None:
        from pytest_ascend.compared_dumps import ComparedDump

        return ComparedDump.from_parent(parent, path=path)
    return DumpFile.from_parent(parent, path=path)


# ------------------------------------------------------------------------------------------------ the catalogue


class ApiCollector(_Sentence):
    """The APIs that ``--ascend-api`` names, beside whatever files pytest collects."""

    NAME = "ascend-api"

    @classmethod
    def of(cls, session: pytest.Session, given: str) -> ApiCollector:
        """The collector for the option's value."""
        collector: ApiCollector = cls.from_parent(session, name=cls.NAME, nodeid=cls.NAME)
        collector.given = given
        return collector

    given: str = ""

    def collect(self) -> Iterator[CaseItem]:
        """One item for each case that a pattern matches. Raises ``CaseUnavailable`` for a pattern without a match."""
        if importlib.util.find_spec(_CATALOGUE) is None:
            raise CaseUnavailable("--ascend-api: this installation of pytest-ascend has no catalogue of APIs")
        catalogue = importlib.import_module(_CATALOGUE)
        wanted = patterns(self.given)
        whole = {pattern for pattern in wanted if "[" in pattern}  # ids of single cases
        apis = tuple(dict.fromkeys(pattern.partition("[")[0] for pattern in wanted))
        try:
            listed = catalogue.pendings(apis, self.config.stash[KEY].settings)
            yield from _items(self, (one for one in listed if not whole or _chosen(one, wanted)))
        except ValueError as error:
            raise CaseUnavailable(f"--ascend-api={self.given}: {error}") from None

    def select(self, item: CaseItem) -> list[str]:
        """pytest's arguments that select one item of this collector."""
        return [f"--ascend-api={item.pending.id}"]


def _chosen(one: Pending | Absent, wanted: tuple[str, ...]) -> bool:
    """Whether one of the patterns, a whole id or a glob of API names, means this case."""
    ids = {one.id} if isinstance(one, Pending) else set()
    return any(w in ids if "[" in w else fnmatch.fnmatchcase(one.api, w) for w in wanted)


def only_the_catalogue(config: pytest.Config) -> None:
    """``pytest --ascend-api=...`` without a path means those APIs, not the test suite of the folder as well."""
    on_command_line = config.getoption("ascend_api") is not None
    if on_command_line and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
