"""The words of a judgement: verdicts, kinds of failure, metrics, and the results that carry them.

Standard library only: a report reads results without loading torch or numpy. Everything here is frozen, compares by
value and pickles, so that a worker process can hand a result to the controller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from pytest_ascend.judge.culprit import Culprit


class Word(str, Enum):
    """A text out of a fixed few; shown as the text on every version of Python."""

    def __str__(self) -> str:
        return str(self.value)


class Verdict(Word):
    """The answer to "is it still right?"."""

    PASS = "PASS"
    FAIL = "FAIL"
    MODE_DIFF = "MODE_DIFF"
    AMPLIFIED = "AMPLIFIED"
    REFERENCE_SUSPECT = "REFERENCE_SUSPECT"
    UNDEFINED = "UNDEFINED"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    MARGINAL = "MARGINAL"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    VACUOUS = "VACUOUS"
    NOT_EXERCISED = "NOT_EXERCISED"
    UNSUPPORTED = "UNSUPPORTED"
    MEMORY_FAULT = "MEMORY_FAULT"
    CRASH = "CRASH"
    INFRA = "INFRA"

    @property
    def outcome(self) -> str:
        """What a test does with it: "passed", "noted" (passes with a visible note), "skipped", "error" or "failed"."""
        return _OUTCOME.get(self, "failed")

    @property
    def severity(self) -> int:
        """Rank for worst-first ordering: 0 is PASS, a larger number is worse.

        A sick machine (INFRA) ranks above everything, because then no other finding can be believed.
        """
        return _SEVERITY[self]


_OUTCOME = {
    Verdict.PASS: "passed",
    Verdict.MODE_DIFF: "noted",
    Verdict.AMPLIFIED: "noted",
    Verdict.REFERENCE_SUSPECT: "noted",
    Verdict.UNDEFINED: "noted",
    Verdict.NOT_COMPARABLE: "noted",
    Verdict.MARGINAL: "noted",
    Verdict.UNSUPPORTED: "skipped",
    Verdict.INFRA: "error",
}
_MILD_TO_BAD = (
    Verdict.PASS,
    Verdict.MODE_DIFF,
    Verdict.NOT_COMPARABLE,
    Verdict.UNDEFINED,
    Verdict.AMPLIFIED,
    Verdict.MARGINAL,
    Verdict.REFERENCE_SUSPECT,
    Verdict.UNSUPPORTED,
    Verdict.VACUOUS,
    Verdict.NOT_EXERCISED,
    Verdict.NONDETERMINISTIC,
    Verdict.FAIL,
    Verdict.MEMORY_FAULT,
    Verdict.CRASH,
    Verdict.INFRA,
)
_SEVERITY = {verdict: rank for rank, verdict in enumerate(_MILD_TO_BAD)}


class Kind(Word):
    """What sort of failure a FAIL is."""

    structure = "structure"
    shape = "shape"
    dtype = "dtype"
    non_finite = "non_finite"
    exact = "exact"
    local = "local"
    spread = "spread"
    bias = "bias"
    overflow = "overflow"
    layout = "layout"
    unwritten = "unwritten"
    mutation = "mutation"
    gradient = "gradient"
    index = "index"  # type: ignore[assignment]  # shadows str.index, which nobody calls on a Kind


WHY = {
    Kind.structure: "the outputs are nested differently, so their values were not compared",
    Kind.shape: "values are only compared between equal shapes",
    Kind.dtype: "the target returned another dtype than the reference",
    Kind.non_finite: "NaN, +Inf and -Inf must stand at the same elements on both sides",
    Kind.exact: "integers, booleans and moved data must be equal bit for bit",
    Kind.local: "few elements are wrong: an index, a tail or a boundary rather than rounding",
    Kind.spread: "errors are everywhere: a lower precision, another formula or a wrong input rather than one index",
    Kind.bias: "errors lean one way: a constant, a scale, an epsilon or a truncating store",
    Kind.overflow: "the value leaves the range of the dtype",
    Kind.layout: "the same values in another memory layout give another answer",
    Kind.unwritten: "part of the output was never written",
    Kind.mutation: "an input was changed on one side only",
    Kind.gradient: "the forward result is right and a gradient is not",
    Kind.index: "an index or key is wrong, not a value",
}


def jsonable(value: object) -> Any:
    """``value`` as strict JSON: non-finite numbers become "nan", "inf", "-inf"; complex numbers become text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return str(value)


@dataclass(frozen=True)
class Element:
    """One element of an output.

    ``index`` is its position in the output's shape, ``error`` the absolute difference (``inf`` where one side is NaN or
    infinite and the other is not the same), ``ulp`` how many values of the actual's dtype lie between the two (None
    where that can't be counted).
    """

    index: tuple[int, ...]
    golden: complex | float | int | bool
    actual: complex | float | int | bool
    error: float
    ulp: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON form."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}

    def __str__(self) -> str:
        where = f"[{', '.join(map(str, self.index))}]" if self.index else "(scalar)"
        apart = "" if self.ulp is None else f" ({_count(self.ulp)} ulp)"
        sides = f"golden {_number(self.golden)}, actual {_number(self.actual)}"
        return f"{where}  {sides}, error {_short(self.error)}{apart}"


@dataclass(frozen=True)
class Metrics:
    """How far ``actual`` is from ``golden``; computed by :func:`pytest_ascend.judge.metrics.measure`.

    Sums and means run over the elements that are finite on both sides. Elements that are equally NaN or equally
    infinite agree and count as errors of zero; the others are counted by ``non_finite_mismatches``, are among the
    ``mismatches``, and make both ``max_abs_error`` and ``max_rel_error`` infinite. Relative errors are taken over the
    elements whose golden value isn't zero.
    """

    count: int
    cosine_similarity: float
    max_abs_error: float
    mean_abs_error: float
    rmse: float
    max_rel_error: float
    mean_rel_error: float
    relative_euclidean_distance: float
    within_tolerance_ratio: float
    mean_signed_error: float
    max_ulp: int | None = None
    mismatches: int = 0
    non_finite_mismatches: int = 0
    #: least-squares factor between the sides: actual is about ``scale`` x golden (1.0 where it isn't defined)
    scale: float = 1.0
    worst: tuple[Element, ...] = ()

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(f"no metric named {name!r}; known: {', '.join(self.__dataclass_fields__)}")
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """The names that ``metrics[name]`` knows."""
        return tuple(self.__dataclass_fields__)

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON form."""
        plain = {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if f.name != "worst"}
        return {**plain, "worst": [element.to_dict() for element in self.worst]}

    def __str__(self) -> str:
        cosine, largest, rmse = self.cosine_similarity, self.max_abs_error, self.rmse
        text = f"cosine {_cosine(cosine)}, max abs {_short(largest)}, rmse {_short(rmse)}"
        if self.max_ulp:
            text += f", max ulp {_count(self.max_ulp)}"
        if self.mismatches:
            text += f", {self.mismatches} of {self.count} outside tolerance"
        return text


@dataclass(frozen=True)
class OutputResult:
    """The judgement of one tensor (or scalar): an output, a gradient, a mutated argument or a checkpoint's output.

    ``path`` names it ("output", "output[0]", "output.logits", "output['k']", "grad(args[0])", "grad(weight)",
    "mutated(args[0])"). ``status`` is "pass", "warning" or "fail"; a warning doesn't fail. ``dtype`` and ``shape`` are
    the actual's. ``pattern`` says in a few words which elements are wrong; see :mod:`pytest_ascend.judge.places`.
    ``picture`` shows them, where it failed; see :mod:`pytest_ascend.judge.pictures`.
    """

    path: str
    verdict: Verdict
    kind: Kind | None = None
    reason: str = ""
    status: str = "pass"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    metrics: Metrics | None = None
    pattern: str = ""
    picture: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON form."""
        return {
            "path": self.path,
            "verdict": self.verdict.value,
            "kind": self.kind.value if self.kind else None,
            "reason": self.reason,
            "status": self.status,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "pattern": self.pattern,
            "metrics": self.metrics.to_dict() if self.metrics else None,
            **({} if self.picture is None else {"picture": dict(self.picture)}),
        }


def worst_output(outputs: Iterable[OutputResult]) -> OutputResult | None:
    """The output to show first: by severity, status, non-finite mismatches, lowest cosine, largest error.

    A failure that left nothing to measure (another structure or shape) comes before a failing number. None when there
    is no output.
    """
    return max(outputs, key=_badness, default=None)


def _badness(output: OutputResult) -> tuple[int, int, float, float, float]:
    rank = output.verdict.severity, ("pass", "warning", "fail").index(output.status)
    m = output.metrics
    if m is None:
        return *rank, (math.inf if output.status == "fail" else 0.0), 0.0, 0.0
    distance = 3.0 if math.isnan(m.cosine_similarity) else 1.0 - m.cosine_similarity
    return *rank, m.non_finite_mismatches, distance, m.max_abs_error


@dataclass(frozen=True)
class CheckpointResult:
    """The judgement of one named layer's outputs.

    ``result["cosine_similarity"]``, ``["max_abs_error"]`` and every other metric are those of its worst output.
    """

    name: str
    verdict: Verdict
    kind: Kind | None = None
    reason: str = ""
    status: str = "pass"
    outputs: tuple[OutputResult, ...] = ()

    @classmethod
    def of(cls, name: str, outputs: Iterable[OutputResult]) -> CheckpointResult:
        """The checkpoint ``name`` judged by its worst output."""
        outputs = tuple(outputs)
        worst = worst_output(outputs)
        if worst is None:
            return cls(name, Verdict.PASS)
        status = max((o.status for o in outputs), key=("pass", "warning", "fail").index)
        return cls(name, worst.verdict, worst.kind, worst.reason, status, outputs)

    @property
    def diverges(self) -> bool:
        """Whether the layer is wrong: a warning isn't."""
        return self.status == "fail" or self.verdict is Verdict.FAIL

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of the worst output that has any."""
        worst = worst_output(o for o in self.outputs if o.metrics is not None)
        return worst.metrics if worst else None

    @property
    def cosine_similarity(self) -> float:
        """Cosine of the worst output; NaN when nothing could be measured."""
        return self.metrics.cosine_similarity if self.metrics else math.nan

    @property
    def max_abs_error(self) -> float:
        """Largest absolute error of the worst output; NaN when nothing could be measured."""
        return self.metrics.max_abs_error if self.metrics else math.nan

    def __getitem__(self, name: str) -> Any:
        if name == "status":
            return self.status
        if self.metrics is None:
            raise KeyError(f"checkpoint {self.name!r} has no metrics: {self.reason or 'nothing was measured'}")
        return self.metrics[name]

    def to_dict(self) -> dict[str, Any]:
        """The three keys of the results file; of the first layer that is wrong also where, and its picture."""
        drawn = next((output for output in self.outputs if output.picture is not None), None)
        return {
            "cosine_similarity": jsonable(self.cosine_similarity),
            "max_abs_error": jsonable(self.max_abs_error),
            "status": self.status,
            **({} if drawn is None else {"pattern": drawn.pattern, "picture": dict(drawn.picture or {})}),
        }


def fold(outputs: Iterable[OutputResult], checkpoints: Iterable[CheckpointResult] = ()) -> Verdict:
    """The overall verdict: the worst of all outputs (gradients and mutations are outputs too) and checkpoints."""
    verdicts = [o.verdict for o in outputs] + [c.verdict for c in checkpoints]
    return max(verdicts, key=lambda v: v.severity, default=Verdict.PASS)


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    ``checkpoints`` are in execution order; ``first_divergence`` names the first of them that is wrong; where gradients
    alone are wrong, the layer whose backward pass is the first that is wrong; or is None. ``culprit`` is the operator
    that is wrong by itself, where a model or a function of several operators failed and it was found.
    ``reproducer`` is a command that runs the test again, ``script`` the path of a file that fails alone. ``overflows``
    are operators whose results left the range of their dtype, as plain JSON; None where nobody watched. ``depth`` is
    how far off a failed model's layers are, in execution order, as plain JSON: ``layer``; ``error``, carried along with
    what came before, and ``cpu``, the CPU's own in its dtype, both root mean squares in units; and ``alone``, how many
    times over its limit the layer is with equal inputs. None where it wasn't measured.
    """

    verdict: Verdict
    kind: Kind | None = None
    reason: str = ""
    api: str = ""
    dtype: str = ""
    criterion: str = "auto"
    target: str = ""
    outputs: tuple[OutputResult, ...] = ()
    checkpoints: Mapping[str, CheckpointResult] = field(default_factory=dict)
    first_divergence: str | None = None
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    reproducer: str | None = None
    script: str | None = None
    culprit: Culprit | None = None
    overflows: tuple[Mapping[str, Any], ...] | None = None
    depth: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        outputs: Iterable[OutputResult],
        checkpoints: Iterable[CheckpointResult] = (),
        *,
        api: str = "",
        dtype: str = "",
        criterion: str = "auto",
        target: str = "",
        notes: Iterable[str] = (),
        environment: Mapping[str, Any] | None = None,
        reproducer: str | None = None,
    ) -> CheckResult:
        """A result folded from its parts: the worst verdict with its kind and reason, and the first divergence."""
        outputs, layers = tuple(outputs), tuple(checkpoints)
        verdict = fold(outputs, layers)
        worst = worst_output(o for o in outputs if o.verdict is verdict)
        first = next((c for c in layers if c.diverges), None)
        kind, reason = (worst.kind, worst.reason) if worst else (None, "")
        if worst is None:
            layer = first or next((c for c in layers if c.verdict is verdict), None)
            if layer is not None:
                kind, reason = layer.kind, f"{layer.name}: {layer.reason}"
        return cls(
            verdict,
            kind,
            reason,
            api,
            dtype,
            criterion,
            target,
            outputs,
            {c.name: c for c in layers},
            first.name if first else None,
            notes=tuple(notes),
            environment=dict(environment or {}),
            reproducer=reproducer,
        )

    @property
    def passed(self) -> bool:
        """True for PASS and for verdicts that pass with a note; a skipped check did not pass."""
        return self.verdict.outcome in ("passed", "noted")

    @property
    def worst(self) -> OutputResult | None:
        """The output to look at first."""
        return worst_output(self.outputs)

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of the worst output that has any."""
        worst = worst_output(o for o in self.outputs if o.metrics is not None)
        return worst.metrics if worst else None

    def to_dict(self) -> dict[str, Any]:
        """This result's entry in the results file (schema 1), strict JSON."""
        return {
            "api": self.api,
            "dtype": self.dtype,
            "verdict": self.verdict.value,
            "kind": self.kind.value if self.kind else None,
            "reason": self.reason,
            "criterion": self.criterion,
            "target": self.target,
            "metrics": self.metrics.to_dict() if self.metrics else {},
            "checkpoints": {name: c.to_dict() for name, c in self.checkpoints.items()},
            "first_divergence": self.first_divergence,
            "culprit": self.culprit.to_dict() if self.culprit else None,
            "outputs": [o.to_dict() for o in self.outputs],
            "notes": list(self.notes),
            "reproducer": self.reproducer,
            "script": self.script,
            **({} if self.overflows is None else {"overflows": [dict(one) for one in self.overflows]}),
            **({"depth": [jsonable(dict(one)) for one in self.depth]} if self.depth else {}),
        }

    def render(self) -> Iterator[str]:
        """Lines for a person: the verdict first, then what, where, how much, why, and the worst elements."""
        head = f"{self.verdict} ({self.kind})" if self.kind else str(self.verdict)
        about = ", ".join(part for part in (self.api, self.dtype, self.target) if part)
        yield f"{head}: {about}" if about else head
        worst = self._decides()
        if self.reason:
            yield f"  what:      {self.reason}"
        if worst is not None and self.verdict is not Verdict.PASS:
            shape = f", shape {worst.shape}, {worst.dtype}" if worst.dtype else ""
            yield f"  where:     {worst.path}{shape}{f': {worst.pattern}' if worst.pattern else ''}"
        # Of the output that decides: another one's small numbers beside a wrong structure would only mislead.
        measured = self.metrics if self.verdict is Verdict.PASS or worst is None else worst.metrics
        if measured is not None:
            yield f"  how much:  {measured}"
        if self.verdict is not Verdict.PASS:
            yield from self._why()
            yield from self._who()
            elements = worst.metrics.worst if worst is not None and worst.metrics is not None else ()
            for i, element in enumerate(elements):
                yield f"  {'worst:' if i == 0 else '':<10} {element}"
            yield from self._others(worst)
        yield from self._table()
        if reference := self.environment.get("reference"):
            yield f"  judged by: {reference}"
        for note in self.notes:
            yield f"  note:      {note}"
        if self.reproducer and self.verdict is not Verdict.PASS:
            yield f"  reproduce: {self.reproducer}"
        if self.script:
            yield f"  alone:     python {self.script}"

    def __str__(self) -> str:
        return "\n".join(self.render())

    def _decides(self) -> OutputResult | None:
        """What the verdict rests on: an output, or where none has it, one of the first layer that has."""
        worst = self.worst
        if worst is None or worst.verdict is not self.verdict:
            layer = next((c for c in self.checkpoints.values() if c.verdict is self.verdict and c.outputs), None)
            worst = worst_output(layer.outputs) if layer is not None else worst
        return worst

    def _why(self) -> Iterator[str]:
        because = f"{WHY[self.kind]} " if self.kind else ""
        yield f"  why:       {because}(criterion {self.criterion})"

    def _who(self) -> Iterator[str]:
        if self.culprit is not None:
            one = self.culprit
            yield f"  culprit:   {one.op}({', '.join(one.inputs)})"
            yield f"             {one.where}"
            yield f"             {one.reason}{'' if one.confirmed else '; run alone it is right'}"

    def _others(self, worst: OutputResult | None) -> Iterator[str]:
        others = [o for o in self.outputs if o is not worst and o.verdict is not Verdict.PASS]
        for output in others[:_MOST_OTHERS]:
            kind = f" ({output.kind})" if output.kind else ""
            yield f"  also:      {output.path} {output.verdict}{kind}: {output.reason}"
        if len(others) > _MOST_OTHERS:
            yield f"  also:      {len(others) - _MOST_OTHERS} more outputs"

    def _table(self) -> Iterator[str]:
        layers = list(self.checkpoints.values())
        if not layers or (self.verdict is Verdict.PASS and all(c.status == "pass" for c in layers)):
            if layers:
                yield f"  checkpoints: all {len(layers)} pass"
            return
        if self.first_divergence is not None:
            known = self.checkpoints.get(self.first_divergence)
            layer = worst_output(known.outputs) if known is not None else None
            pattern = f": {layer.pattern}" if layer is not None and layer.pattern else ""
            in_backward = ", in the backward pass" if self.culprit and self.culprit.phase == "backward" else ""
            yield f"  first divergence: {self.first_divergence}{pattern}{in_backward}"
        suspect = next((i for i, c in enumerate(layers) if c.diverges or c.status != "pass"), 0)
        # The layers just before a fault prove it starts there; those far behind it only repeat it.
        start = max(0, suspect - _ROWS_BEFORE)
        stop = min(len(layers), start + _MOST_ROWS)
        width = max(len(c.name) for c in layers[start:stop])
        yield f"  checkpoints in execution order ({len(layers)}):"
        if start:
            yield f"    ... {start} before, all pass"
        for c in layers[start:stop]:
            mark = "  <- first divergence" if c.name == self.first_divergence else ""
            yield (
                f"    {c.name:<{width}}  {c.status:<7}  cosine {_cosine(c.cosine_similarity):<12} "
                f"max abs {_short(c.max_abs_error)}{mark}"
            )
        if stop < len(layers):
            bad = sum(c.diverges for c in layers[stop:])
            yield f"    ... {len(layers) - stop} after, {bad} of them diverge"


_MOST_OTHERS = 5
_MOST_ROWS = 12
_ROWS_BEFORE = 3


def _number(value: complex | float | int | bool) -> str:
    # Nine digits tell any two neighbouring float32 values apart.
    return f"{value:.9g}" if isinstance(value, (float, complex)) else str(value)


def _count(value: int) -> str:
    return str(value) if value < 1_000_000 else f"{value:.3g}"


def _short(value: float) -> str:
    return f"{value:.3g}"


def _cosine(value: float) -> str:
    # Print the distance from one where rounding would show a flat 1.0.
    if 0.0 < 1.0 - value < 1e-6:
        return f"1 - {1.0 - value:.1e}"
    return f"{value:.6f}"
