"""One tensor of the golden dump against one of the target: by values, by statistics, by checksum, whatever there is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ascend.dumps import summaries
from pytest_ascend.dumps.common import Stored
from pytest_ascend.dumps.text import DumpError, short
from pytest_ascend.dumps.values import Opaque, TensorSpec, Token
from pytest_ascend.judge.verdict import Kind, Metrics, Verdict

if TYPE_CHECKING:
    from pytest_ascend.dumps.arrays import Held
    from pytest_ascend.judge.standards import Criterion

__all__ = ["Judged", "Rule", "judge_pair", "status_of"]

_FLOATS = ("float", "bfloat", "complex")
_PLACED = (Kind.local, Kind.non_finite, Kind.exact)
"""Failures of which it helps to know where they are."""


@dataclass(frozen=True)
class Rule:
    """How values are judged: ``pytest_ascend.compare``'s criterion and thresholds."""

    criterion: str = "auto"
    cosine: float | None = None
    max_abs: float | None = None
    rtol: float | None = None
    atol: float | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is ``auto`` without thresholds."""
        return self.criterion == "auto" and self.cosine is self.max_abs is self.rtol is self.atol is None

    def made(self) -> Criterion:
        """As ``judge`` takes it. Raises ``ValueError`` for one that there isn't."""
        from pytest_ascend.judge.standards import Criterion

        thresholds = {n: getattr(self, n) for n in ("cosine", "max_abs", "rtol", "atol")}
        return Criterion.of(self.criterion, **thresholds)


def status_of(verdict: Verdict, reason: str) -> str:
    """ "fail", "warning" (passes with something to say) or "pass"."""
    if verdict.outcome in ("failed", "error"):
        return "fail"
    return "warning" if reason else "pass"


@dataclass(frozen=True)
class Judged:
    """What was found of one pair.

    Attributes:
        evidence: ``values``, ``statistics``, ``checksum``, ``argument`` (a plain value) or ``none``.
        distance: as far as statistics tell it.
    """

    verdict: Verdict
    evidence: str
    reason: str = ""
    kind: Kind | None = None
    metrics: Metrics | None = None
    distance: float = 0.0

    @property
    def apart(self) -> float:
        """Relative Euclidean distance of the two sides, 0 where it isn't known."""
        far = self.distance if self.metrics is None else self.metrics.relative_euclidean_distance
        return far if math.isfinite(far) else 0.0

    @property
    def status(self) -> str:
        """As :func:`status_of` tells it."""
        return status_of(self.verdict, self.reason)


def judge_pair(golden: Any, actual: Any, rule: Rule, *, same_library: bool, distance: float = 0.0) -> Judged | None:
    """Two values of the same place in two calls; None for a pair of plain values that says nothing.

    Args:
        golden, actual: :class:`Stored` or plain values.
        rule: how values are judged.
        same_library: whether both calls are of one library, so that plain arguments must be equal.
        distance: relative Euclidean distance of what the tensor was computed from.
    """
    if isinstance(golden, Stored) and isinstance(actual, Stored):
        try:
            return _tensors(golden, actual, rule, distance)
        except DumpError as error:
            return Judged(Verdict.INFRA, "none", str(error))
    if isinstance(golden, Stored) or isinstance(actual, Stored):
        if not same_library and (golden is None or actual is None):
            return None
        sides = f"golden is {_shown(golden)}, target is {_shown(actual)}"
        return Judged(Verdict.FAIL, "argument", sides, Kind.structure)
    return _plain(golden, actual) if same_library else None


def _plain(golden: Any, actual: Any) -> Judged | None:
    if golden is None and actual is None:
        return None
    devices = isinstance(golden, Token) and isinstance(actual, Token) and golden.kind == actual.kind == "torch.device"
    if devices or (isinstance(golden, Opaque) and isinstance(actual, Opaque)):
        return None
    equal = golden == actual or (golden != golden and actual != actual)
    if isinstance(golden, float) and isinstance(actual, float) and not equal:
        equal = math.isclose(golden, actual, rel_tol=1e-6)
    if equal and type(golden) is type(actual):
        return None
    return Judged(Verdict.FAIL, "argument", f"golden is {_shown(golden)}, target is {_shown(actual)}", Kind.exact)


def _shown(value: Any) -> str:
    if isinstance(value, Stored):
        return f"a tensor {value.spec.dtype} {list(value.spec.shape)}"
    return short(repr(value), 60)


# ------------------------------------------------------------------------------------------------ tensors


def _tensors(golden: Stored, actual: Stored, rule: Rule, distance: float) -> Judged:
    a, b = golden.spec, actual.spec
    if a.shape != b.shape:
        moved = _layout(golden, actual, rule, distance)
        if moved is not None:
            return moved
        reason = f"golden has shape {list(a.shape)}, target has {list(b.shape)}"
        return Judged(Verdict.FAIL, "values", reason, Kind.shape)
    if not _comparable(a.dtype, b.dtype):
        return Judged(Verdict.FAIL, "values", f"golden is {a.dtype}, target is {b.dtype}", Kind.dtype)
    if not a.numel:
        return Judged(Verdict.PASS, "values")
    if golden.read is not None and actual.read is not None:
        return judge_values(golden.read(), actual.read(), rule, distance)
    return _summaries(golden, actual, distance)


def _comparable(golden: str, actual: str) -> bool:
    """Whether values of these dtypes may be compared: floats of any two precisions, complex ones too; else equal."""
    return golden == actual or any(
        golden.startswith(kinds) and actual.startswith(kinds) for kinds in (("float", "bfloat"), ("complex",))
    )


def judge_values(golden: Held, actual: Held, rule: Rule, distance: float = 0.0) -> Judged:
    """Two tensors of one shape, of dtypes that may be compared."""
    import numpy as np

    from pytest_ascend.judge.quick import within_table

    if rule.is_default:
        if golden.dtype == actual.dtype and not golden.dtype.startswith(_FLOATS):
            if np.array_equal(golden.values, actual.values):
                return Judged(Verdict.PASS, "values", metrics=_equal(golden.values.size))
        else:
            x, y = golden.values.reshape(-1), actual.values.reshape(-1)
            quick = within_table(x, y, (golden.dtype, actual.dtype), _forget(golden, actual))
            if quick is not None:
                return Judged(Verdict.PASS, "values", metrics=quick)
    return _by_judge(golden, actual, rule, distance)


def _equal(count: int) -> Metrics:
    return Metrics(count, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def _forget(golden: Held, actual: Held) -> Callable[[int], None] | None:
    """Gives mapped pages back while a large pair is read, so that it never is in memory whole."""
    sides = [(h.mapped, h.values.dtype.itemsize) for h in (golden, actual) if h.mapped is not None]
    if not sides or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    page, piece = mmap.PAGESIZE, 8 << 20
    given = [0] * len(sides)

    def done(elements: int) -> None:
        for i, (mapped, itemsize) in enumerate(sides):
            end = elements * itemsize // page * page
            if end - given[i] >= piece:
                mapped.madvise(mmap.MADV_DONTNEED, given[i], end - given[i])
                given[i] = end

    return done


def _by_judge(golden: Held, actual: Held, rule: Rule, distance: float) -> Judged:
    from pytest_ascend.dumps.through_torch import tensor_of
    from pytest_ascend.judge.places import with_pattern
    from pytest_ascend.judge.standards import judge
    from pytest_ascend.judge.verdict import OutputResult

    a, b = tensor_of(golden), tensor_of(actual)
    criterion = rule.made()
    found = judge(a, b, None, criterion)
    reason, metrics = found.reason, found.metrics
    worst = dataclasses.replace(metrics, worst=metrics.worst[:1])
    if found.verdict is Verdict.FAIL and rule.criterion == "auto" and actual.dtype.startswith(_FLOATS):
        from pytest_ascend.judge.carried import is_carried

        if is_carried(a, b, metrics, distance):
            why = f"no more than what it was computed from explains, which is {distance:.2g} apart by its norm"
            return Judged(Verdict.AMPLIFIED, "values", f"{reason}; {why}", None, worst)
    if found.verdict is Verdict.FAIL and found.kind in _PLACED and a.numel() <= 1 << 22:
        output = OutputResult("", found.verdict, found.kind, reason, "fail", golden.dtype, tuple(b.shape), metrics)
        pattern = with_pattern(output, a, b, None, criterion).pattern
        reason += f"; {pattern}" if pattern else ""
    return Judged(found.verdict, "values", reason, found.kind, worst)


# ------------------------------------------------------------------------------------------------ layouts


def _layout(golden: Stored, actual: Stored, rule: Rule, distance: float) -> Judged | None:
    """The same values with the axes in another order, or cut into other axes; None where they aren't the same."""
    from pytest_ascend.dumps.arrays import Held

    a, b = golden.spec, actual.spec
    if a.numel != b.numel or not a.numel or not _comparable(a.dtype, b.dtype):
        return None
    if golden.read is None or actual.read is None:
        return None
    x, y = golden.read(), actual.read()
    for order in _orders(a.shape, b.shape):
        turned = x.values.reshape(b.shape) if order is None else x.values.transpose(order)
        found = judge_values(Held(x.dtype, turned), y, rule, distance)
        if found.status == "fail":
            continue
        how = f"cut into {list(b.shape)}" if order is None else _named(order)
        reason = f"golden has shape {list(a.shape)}, target has {list(b.shape)}: the same values, {how}"
        return dataclasses.replace(found, reason=f"{reason}; {found.reason}" if found.reason else reason)
    return None


def _orders(golden: tuple[int, ...], actual: tuple[int, ...]) -> Iterator[tuple[int, ...] | None]:
    """Permutations of axes that turn one shape into the other, the usual ones first; None for a plain reshape."""
    if [n for n in golden if n != 1] == [n for n in actual if n != 1]:
        yield None
        return
    if len(golden) == len(actual) and 2 <= len(golden) <= 5:
        n = len(golden)
        usual = [
            (0, *range(2, n), 1),
            (0, n - 1, *range(1, n - 1)),
            (*range(n - 2), n - 1, n - 2),
            (1, 0, *range(2, n)),
        ]
        rest = list(itertools.permutations(range(n))) if n <= 4 else []
        for order in dict.fromkeys([*usual, *rest]):
            if tuple(golden[i] for i in order) == actual:
                yield order
    yield None


def _named(order: tuple[int, ...]) -> str:
    names = {(0, 2, 3, 1): "NCHW and NHWC", (0, 3, 1, 2): "NHWC and NCHW", (1, 0): "transposed"}
    known = names.get(order)
    return f"its axes in the order {list(order)}" + (f" ({known})" if known else "")


# ------------------------------------------------------------------------------------------------ without values


def _summaries(golden: Stored, actual: Stored, distance: float) -> Judged:
    a, b = golden.spec, actual.spec
    if a.md5 is not None and b.md5 is not None and a.dtype == b.dtype:
        if a.md5 == b.md5:
            return Judged(Verdict.PASS, "checksum")
        found = summaries.compared(a, b, distance)
        if found.differs:
            return Judged(Verdict.FAIL, "checksum", f"the checksums differ, and {found.differs}", _kind(found, a))
        if not a.dtype.startswith(_FLOATS):
            return Judged(Verdict.FAIL, "checksum", "the checksums differ, and integers are exact", Kind.exact)
        reason = "the checksums differ: at least one bit does, and how much of it can't be told without the values"
        return Judged(Verdict.NOT_COMPARABLE, "checksum", reason)
    if golden.read is not None:
        a = _with_statistics(a, golden.read())
    if actual.read is not None:
        b = _with_statistics(b, actual.read())
    found = summaries.compared(a, b, distance)
    if not found.known:
        return Judged(Verdict.NOT_COMPARABLE, "none", "neither values nor statistics were recorded")
    if found.differs:
        return Judged(Verdict.FAIL, "statistics", found.differs, _kind(found, a))
    return Judged(Verdict.PASS, "statistics", distance=found.distance)


def _kind(found: summaries.Summary, spec: TensorSpec) -> Kind:
    if found.non_finite:
        return Kind.non_finite
    return Kind.spread if spec.dtype.startswith(_FLOATS) else Kind.exact


def _with_statistics(spec: TensorSpec, held: Held) -> TensorSpec:
    """What a recording of statistics would have said of values that were recorded."""
    import numpy as np

    from pytest_ascend.judge.quick import TABLE, wide

    values = held.values.reshape(-1)
    if held.dtype in TABLE:
        x = wide(values, held.dtype)
        norm = float(np.sqrt(np.dot(x, x)))
        return dataclasses.replace(spec, max=float(x.max()), min=float(x.min()), mean=float(x.mean()), norm=norm)
    if held.dtype.startswith("complex"):
        size = np.abs(values)
        return dataclasses.replace(spec, max=float(size.max()), min=float(size.min()), mean=float(size.mean()))
    if held.dtype.startswith("float8"):
        return spec
    return dataclasses.replace(spec, max=values.max().item(), min=values.min().item(), mean=None, norm=None)
