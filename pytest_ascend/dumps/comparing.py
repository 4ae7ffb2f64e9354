"""Two dumps, call by call: what agrees, what doesn't, what has no partner, and where it began.

Calls are read when they are compared and forgotten after it, so that neither dump need fit in memory; what is kept of a
tensor is one :class:`Row`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ascend.dumps.common import Call, Part, Stored, Unit
from pytest_ascend.dumps.divergence import State, judge_calls
from pytest_ascend.dumps.mapping import Mapped, read_mapping
from pytest_ascend.dumps.matching import Match, match
from pytest_ascend.dumps.msit import token_ranges
from pytest_ascend.dumps.msprobe import Name
from pytest_ascend.dumps.pairs import Judged, Rule, judge_pair
from pytest_ascend.dumps.rows import DumpComparison, Row, Tally, UnitComparison, Units
from pytest_ascend.dumps.sides import open_side, paired_units
from pytest_ascend.dumps.text import DumpError
from pytest_ascend.judge.verdict import Kind, Metrics, Verdict

__all__ = ["DumpComparison", "Row", "UnitComparison", "compare", "compare_call", "compare_units"]


def compare(
    golden_path: str | os.PathLike[str],
    target_path: str | os.PathLike[str],
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    criterion: str = "auto",
    cosine: float | None = None,
    max_abs: float | None = None,
    tokens: str | None = None,
    golden_tokens: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DumpComparison:
    """Compare a recorded dump with another.

    Args:
        golden_path, target_path: a ``dump.json`` or ``debug.json`` of msprobe or a folder of them (steps and ranks
            are paired), a folder that msit wrote (rounds are paired), or a folder of ``.npy``, ``.pt`` or
            ``.safetensors`` files.
        mapping: a file, or what would stand in one: see :mod:`pytest_ascend.dumps.mapping`.
        criterion, cosine, max_abs: how values are judged, as ``pytest_ascend.compare`` has them.
        tokens: the target's rounds to compare, as msit's ``-er`` names them: ``0,0`` or ``1,3,5,7`` (from 1 to 3 and
            from 5 to 7). ``golden_tokens``: the golden's, where they are others.
        progress: told how many calls are done, and how many there are.

    Returns:
        The comparison; mismatches, and tensors that can't be read, are in it and raise nothing.

    Raises:
        DumpError: a path holds no dump, or the mapping can't be used. One sentence.
        ValueError: there is no such criterion.
    """
    rule = Rule(criterion, cosine, max_abs)
    if not rule.is_default:
        rule.made()
    mapped = read_mapping(mapping)
    for ranges in (tokens, golden_tokens):
        if ranges is not None:
            token_ranges(ranges)
    golden = open_side(golden_path, golden_tokens if golden_tokens is not None else tokens)
    target = open_side(target_path, tokens)
    if (tokens or golden_tokens) and "msit" not in (golden.kind, target.kind):
        raise DumpError(f"tokens are rounds of a dump of msit, and neither {golden.path} nor {target.path} is one")
    pairs, golden_only, target_only, notes = paired_units(golden, target)
    units, tally = Units(), Tally()
    for name, a, b in pairs:
        unit = compare_units(a, b, name, mapped, rule, progress)
        a.rest()
        b.rest()
        tally.add(unit)
        units.append(unit)
    notes = [*golden.notes, *target.notes, *notes, *tally.notes()]
    alone = tuple(golden_only), tuple(target_only)
    return DumpComparison(os.fspath(golden_path), os.fspath(target_path), units, *alone, tuple(notes), tally)


def compare_units(
    golden: Unit,
    target: Unit,
    name: str,
    mapped: Mapped,
    rule: Rule,
    progress: Callable[[int, int], None] | None = None,
    metrics: dict[str, Metrics] | None = None,
    by_call: dict[str, list[Row]] | None = None,
) -> UnitComparison:
    """One unit of each side, all of it.

    ``metrics`` and ``by_call``, where given, get the metrics of each row by its name, and the rows of each pair, and of
    what can't be read, by the golden call's name.
    """
    matching = match(golden, target, mapped)
    result = UnitComparison(name, golden.path, target.path, matching=matching)
    for side in (golden, target):
        for broken in side.broken:
            result.rows.append(Row(broken.name, "", "output", Verdict.INFRA, "none", reason=broken.reason))
            if by_call is not None:
                by_call.setdefault(broken.name, []).append(result.rows[-1])
    gone = {broken.name for side in (golden, target) for broken in side.broken}
    matching.golden_only = [n for n in matching.golden_only if n not in gone]
    matching.target_only = [n for n in matching.target_only if n not in gone]
    drift = Drift()
    for number, one in enumerate(matching.matches):
        rows = compare_call(golden, target, one, mapped, rule, drift, metrics)
        result.rows += rows
        if by_call is not None:
            by_call.setdefault(one.golden, []).extend(rows)
        result.calls.append(State(one.golden, _agree(rows, ("input", "parameter")), _agree(rows, ("output",))))
        if progress is not None:
            progress(number + 1, len(matching.matches))
    if any(state.outputs == "differ" or state.inputs == "differ" for state in result.calls):
        result.divergence = judge_calls(result.calls, golden.parents())
        named = (result.divergence.first, result.divergence.source)
        stack = golden.stack()
        result.stacks = {n: stack[n][:6] for n in named if n is not None and n in stack}
    return result


def _agree(rows: list[Row], roles: tuple[str, ...]) -> str:
    told = [row for row in rows if row.role in roles and row.evidence != "none"]
    if any(row.status == "fail" for row in told):
        return "differ"
    return "agree" if told else "unknown"


# ------------------------------------------------------------------------------------------------ a call


@dataclass
class Drift:
    """How far apart what was accepted lies so far: in two runs of a model, rounding adds up from call to call.

    Attributes:
        distance: the largest relative Euclidean distance of a tensor that didn't fail.
    """

    distance: float = 0.0

    def accept(self, found: Judged) -> None:
        """Take a pair into account."""
        if found.status != "fail":
            self.distance = max(self.distance, found.apart)


def compare_call(
    golden: Unit,
    target: Unit,
    one: Match,
    mapped: Mapped,
    rule: Rule,
    drift: Drift,
    metrics: dict[str, Metrics] | None = None,
) -> list[Row]:
    """The rows of a pair of calls. Results may be as far apart as arguments explain, and those as the drift does."""
    try:
        a, b = golden.call(one.golden), target.call(one.target)
        first = golden.call(one.golden_from) if one.golden_from is not None else None
    except DumpError as error:
        return [Row(one.golden, _other(one.golden, one.target), "output", Verdict.INFRA, "none", reason=str(error))]
    same = golden.framework == target.framework and (one.how == "name" or _api(one.golden) == _api(one.target))
    if first is not None:
        a = Call(a.name, a.parsed, (*(p for p in first.parts if p.role != "output"), *_outputs(a)))
    rows: list[Row] = []
    squares, known = 0.0, False
    pairs = list(_paired(a, b, mapped, fused=one.how == "fused"))
    pairs.sort(key=lambda pair: (pair[0] or pair[1]).role == "output")  # type: ignore[union-attr]
    for left, right in pairs:
        role = (left or right).role  # type: ignore[union-attr]
        owner = first if first is not None and role != "output" else a
        if left is None or right is None:
            rows += _missing(a, b, left, right, role, same)
            continue
        distance = drift.distance
        if role == "output" and known:
            # A backward pass computes with what its forward pass saw, too.
            distance = max(math.sqrt(squares), drift.distance if a.backward else 0.0)
        found = judge_pair(left.value, right.value, rule, same_library=same, distance=distance)
        if found is None:
            continue
        if role != "output" and found.status != "fail" and found.evidence in ("values", "statistics"):
            squares += found.apart**2  # what is wrong already excuses nothing: results after it are victims
            known = True
        drift.accept(found)
        rows.append(_row(_named(owner.name, left.label), _named(b.name, right.label), role, left, right, found))
        if metrics is not None and found.metrics is not None:
            metrics[rows[-1].name] = found.metrics
    return rows


def _api(name: str) -> str:
    parsed = Name.parse(name)
    return name if parsed is None else f"{parsed.prefix}.{parsed.api}"


def _outputs(call: Call) -> tuple[Part, ...]:
    return tuple(p for p in call.parts if p.role == "output")


def _paired(golden: Call, target: Call, mapped: Mapped, *, fused: bool) -> Iterator[tuple[Part | None, Part | None]]:
    """Arguments and results of both calls: by label, then tensors of a role by order where their shapes agree."""
    there = {part.label: part for part in target.parts}
    api = _api(golden.name)
    left: list[Part] = []
    pairs: list[tuple[Part | None, Part | None]] = []
    shaped = fused or golden.name != target.name
    for part in golden.parts:
        label = mapped.label(golden.name, api, part.label)
        other = there.get(label)
        fits = other is not None and (not shaped or label != part.label or _alike(part, other))
        if other is not None and fits:
            del there[label]
            pairs.append((part, other))
        else:
            left.append(part)
    for part in left:
        other = next((o for o in there.values() if o.role == part.role and _alike(part, o)), None) if shaped else None
        if other is None and (not isinstance(part.value, Stored) or (fused and part.role != "output")):
            continue  # a plain value that one side alone has; an input of the golden's that lies within a fusion
        if other is not None:
            del there[other.label]
        pairs.append((part, other))
    pairs += [
        (None, other)
        for other in there.values()
        if isinstance(other.value, Stored) and not (fused and other.role != "output")
    ]
    yield from pairs


def _alike(a: Part, b: Part) -> bool:
    if isinstance(a.value, Stored) and isinstance(b.value, Stored):
        return a.value.spec.shape == b.value.spec.shape or (
            a.label == b.label and a.value.spec.numel == b.value.spec.numel
        )
    return not isinstance(a.value, Stored) and not isinstance(b.value, Stored) and a.label == b.label


def _missing(a: Call, b: Call, left: Part | None, right: Part | None, role: str, same: bool) -> list[Row]:
    """A tensor that one side alone has: wrong for the same call, something to say of two different ones."""
    part, call, side = (left, a, "golden") if left is not None else (right, b, "target")
    assert part is not None
    spec = part.value.spec
    reason = f"only the {side} has this tensor"
    verdict = Verdict.FAIL if same else Verdict.NOT_COMPARABLE
    row = Row(
        _named(call.name, part.label), "", role, verdict, "argument" if same else "none",
        Kind.structure if same else None, reason, spec.dtype, str(list(spec.shape)),
    )  # fmt: skip
    return [row]


def _row(name: str, target: str, role: str, left: Part, right: Part, found: Judged) -> Row:
    dtype = shape = ""
    if isinstance(left.value, Stored) and isinstance(right.value, Stored):
        a, b = left.value.spec, right.value.spec
        dtype = a.dtype if a.dtype == b.dtype else f"{a.dtype}->{b.dtype}"
        shape = str(list(a.shape)) if a.shape == b.shape else f"{list(a.shape)}->{list(b.shape)}"
    m: Metrics | None = found.metrics
    numbers = () if m is None else (m.cosine_similarity, m.max_abs_error, m.max_rel_error, m.rmse)
    return Row(
        name,
        _other(name, target),
        role,
        found.verdict,
        found.evidence,
        found.kind,
        found.reason,
        dtype,
        shape,
        *numbers,
    )


def _other(name: str, target: str) -> str:
    return "" if name == target else target


def _named(call: str, label: str) -> str:
    return f"{call}.{label}" if label else call
