"""Results that aren't unique, judged by what defines them: vectors up to sign, eigenvalues in any order, ties.

A failing case runs again on the CPU while the torch functions it calls are recorded. Where one of the failing outputs
is the very tensor that such a function returned, its definition (judge/definitions.py, judge/ties.py) judges instead of
its values: whatever the case computes before, and whatever it is called, is no matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_ascend.cases.case import api_name
from pytest_ascend.cases.tree import Rebuilder
from pytest_ascend.judge import definitions, ties
from pytest_ascend.judge.equations import Call
from pytest_ascend.judge.structure import flatten
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture, RunFailed, run
from pytest_ascend.observe.reference import Judged, leaves
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["judge_by_definition"]

Tensor = torch.Tensor

_UNIQUE = ("unique", "_unique2", "_unique")
_FORM = (Kind.structure, Kind.shape, Kind.dtype)


@dataclass
class _Recorded:
    """One call: what it was given (copied to the CPU before it ran), what it returned, and where that came out."""

    api: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    live: tuple[Any, ...]
    results: tuple[Any, ...]
    paths: tuple[str, ...] = ()


class _Recorder(TorchFunctionMode):
    """Notes the calls of functions whose results have a definition."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Recorded] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, noted if its results have a definition."""
        api = api_name(func)
        if not _has_definition(api):
            return func(*args, **kwargs)
        copied = _on_cpu(args), {k: _on_cpu(v) for k, v in kwargs.items() if k != "out"}
        result = func(*args, **kwargs)
        live = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        self.calls.append(_Recorded(api, func, *copied, live, tuple(map(_on_cpu, live))))
        return result

    def finish(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        """Note where the results came out of the case."""
        out = kwargs.get("out")
        found = [*flatten(output, "output"), *([] if out is None else flatten(out, "out"))]
        at = {id(leaf.value): leaf.path for leaf in reversed(found) if isinstance(leaf.value, Tensor)}
        for call in self.calls:
            paths = [at.get(id(result), "") for result in call.live]
            call.paths = tuple(f"mutated({path})" if path.startswith("out") and path[:6] != "output" else path
                               for path in paths)  # fmt: skip


def _has_definition(api: str) -> bool:
    if not api.startswith("torch."):
        return False
    name = definitions.canonical(api)
    selects = name in _SELECT or "max_pool" in name
    return selects or name in _UNIQUE or definitions.find(api) is not None


_SELECT = frozenset(
    "argmax argmin max min median nanmedian mode sort argsort topk kthvalue cummax cummin".split()  # noqa: SIM905
)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, (tuple, list)):
        return tuple(map(_on_cpu, value))
    return value


def _record(look: SecondLook, target: Target, floating: torch.dtype | None = None) -> list[_Recorded]:
    """The calls that a run on a target makes."""
    book = _Recorder()
    fn = look.case.fn if look.fn is None or target is look.target else look.fn
    outermost = getattr(definitions.find(api_name(fn)), "random", False)  # they are made of others that are known too

    def recorded(*args: Any, **kwargs: Any) -> Any:
        if outermost:
            output = book.call(fn, args, kwargs)
        else:
            with book:
                output = fn(*args, **kwargs)
        book.finish(output, kwargs)
        return output

    setting = dataclasses.replace(look.setting, backward=False)
    relaid = look.relaid if target is look.target else None
    run(look.case, target, setting, floating=floating, relaid=relaid, fn=recorded)
    return book.calls


def judge_by_definition(look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
    """Failures of results that have a definition, judged by it; thresholds that somebody gave are kept."""
    if look.reference.criterion.name != "auto":
        return judged, []
    failing = {o.path for o in judged.failing if o.kind not in (*_FORM, Kind.mutation)} | look.doubtful(judged)
    if not failing or look.case.modules:
        return judged, []
    if look.calls is None:
        look.calls = _record(look, CpuTarget())
    own = look.calls
    if not own:
        return judged, []
    step = _Step(look, actual, judged, failing, own)
    return step.result(), step.notes


class _Step:
    """One judgement by definitions."""

    def __init__(
        self, look: SecondLook, actual: Capture, judged: Judged, failing: set[str], own: list[_Recorded]
    ) -> None:
        self.look, self.actual, self.judged, self.failing = look, actual, judged, failing
        self.notes: list[str] = []
        # Under the reference's paths: a tuple may stand for a named one.
        theirs, ours = flatten(look.reference.own.output, "output"), flatten(actual.output, "output")
        self.paths = {a.path: b.path for a, b in zip(theirs, ours, strict=False)} if len(theirs) == len(ours) else {}
        here = leaves(actual)
        self.here = here | {a: here[b] for a, b in self.paths.items() if b in here}
        self.own = own
        self.golden = self._others(CpuTarget(), torch.float64) or own
        self.target = self._others(look.target)

    def _others(self, target: Target, floating: torch.dtype | None = None) -> list[_Recorded]:
        """The same calls in another run; none where it made others."""
        try:
            calls = _record(self.look, target, floating)
        except (RunFailed, ValueError):
            return []
        same = len(calls) == len(self.own) and all(
            definitions.canonical(a.api) == definitions.canonical(b.api) for a, b in zip(calls, self.own, strict=True)
        )
        return calls if same else []

    def result(self) -> Judged:
        """The judgement with everything replaced that a definition decides."""
        for i, call in enumerate(self.own):
            definition = definitions.find(call.api)
            if definition is not None:
                self._equations(i, definition)
            elif definitions.canonical(call.api) in _UNIQUE:
                self._unique(call)
            else:
                self._ties(i)
        return self.judged

    # -- what replaces what ---------------------------------------------------------------------------------------

    def _passes(self, paths: Iterable[str], note: str) -> None:
        self._replace(
            paths, lambda o: dataclasses.replace(o, verdict=Verdict.PASS, kind=None, reason="", status="pass")
        )
        self.look.sure |= set(paths)
        self.notes.append(note)

    def _fails(self, paths: Iterable[str], reason: str, kind: Kind | None = None, *, final: bool = True) -> None:
        """Another reason in front of the old one; a final one is excused by nothing that comes after."""

        def one(output: OutputResult) -> OutputResult:
            why, what = f"{reason}; {output.reason}", kind or output.kind or Kind.spread
            new = dataclasses.replace(output, verdict=Verdict.FAIL, reason=why, kind=what, status="fail")
            if final:
                self.look.settled[new.path] = new
            return new

        self._replace(paths, one)

    def _incomparable(self, paths: Iterable[str], reason: str) -> None:
        self._replace(
            paths,
            lambda o: dataclasses.replace(
                o, verdict=Verdict.NOT_COMPARABLE, kind=None, reason=f"{reason}; {o.reason}", status="warning"
            ),
        )

    def _replace(self, paths: Iterable[str], change: Callable[[OutputResult], OutputResult]) -> None:
        """Change what is still open at some paths."""
        paths = self.failing & set(paths)
        outputs = tuple(change(o) if o.path in paths else o for o in self.judged.outputs)
        self.failing -= paths
        self.judged = Judged(outputs, self.judged.checkpoints)

    def _gradients(self) -> set[str]:
        return {path for path in self.failing if path.startswith("grad(")}

    # -- equations ------------------------------------------------------------------------------------------------

    def _equations(self, i: int, definition: definitions.Definition) -> None:
        call = self.own[i]
        paths = {name: path for name, path in zip(definition.results, call.paths, strict=False) if path}
        affected = {name: path for name, path in paths.items() if path in self.failing and name in definition.free}
        if not affected or (self.look.reference.own.drew and not definition.random):
            return
        theirs = dict(zip(definition.results, call.results, strict=False))
        ours = dict(zip(definition.results, self.target[i].results, strict=False)) if self.target else {}
        ours |= {name: self.here[path] for name, path in paths.items() if path in self.here}
        if any(ours[name] is not None and ours[name].shape != theirs[name].shape for name in ours if name in theirs):
            return
        if not self.here.keys() >= set(affected.values()):
            return
        dtype = self.here[next(iter(affected.values()))].dtype
        if not (dtype.is_floating_point or dtype.is_complex):  # pivots
            dtype = next(r.dtype for r in call.results if isinstance(r, Tensor) and r.is_floating_point())
        about = self.golden[i]
        found = definition.call(about.args, about.kwargs, ours, dtype)
        wrong, asked = definitions.judge(definition, found, definition.call(about.args, about.kwargs, theirs, dtype))
        if not asked:
            return
        names, why = " and ".join(affected), next(definition.free[name] for name in affected)
        if wrong:
            self._fails(affected.values(), wrong)
            return
        self._passes(affected.values(), f"{names} of {call.api} {_be(affected)} {why}: judged by {asked}")
        if definition.gauge:
            self._align(i, definition, paths, found)

    def _align(self, i: int, definition: definitions.Definition, paths: Mapping[str, str], found: Call) -> None:
        """Gradients depend on signs, phases and order: give the target's results those of the golden and run again."""
        gradients = self._gradients()
        if not gradients:
            return
        about = self.golden[i]
        golden = definition.call((), {}, dict(zip(definition.results, about.results, strict=False)), torch.float64)
        changes = definitions.align(definition, golden.found, found.found)
        by_path = {self.paths.get(paths[name], paths[name]): how for name, how in changes.items() if name in paths}
        fn = self.look.case.fn

        # What a default holds isn't copied to the target with the case's own tensors.
        def aligned(*args: Any, _changes: Any = by_path, **kwargs: Any) -> Any:
            output = fn(*args, **kwargs)
            found = {id(leaf.value): _changes[leaf.path] for leaf in flatten(output) if leaf.path in _changes}
            return _Changed(found).build(output, "")

        again = self.look.run(fn=aligned)
        judged = {o.path: o for o in self.look.judge(again).outputs}
        same = all(judged[path].verdict is Verdict.PASS for name, path in paths.items() if name in changes)
        if not same:
            reason = f"gradients depend on what {definitions.canonical(self.own[i].api)} leaves open"
            self._incomparable(gradients, reason)
            return
        self.notes.append("gradients: compared after giving the vectors the reference's signs")
        self._replace(gradients, lambda o: judged.get(o.path, o))

    # -- ties -----------------------------------------------------------------------------------------------------

    def _unique(self, call: _Recorded) -> None:
        affected = [path for path in call.paths if path in self.failing]
        if not affected or call.kwargs.get("sorted", call.args[1] if len(call.args) > 1 else True) is not False:
            return
        results = [self.here.get(path) if path else None for path in call.paths]
        if not ties.unique_again(call.args, call.kwargs, results):
            self._passes(affected, f"{call.api} with sorted=False leaves the order open: judged as a set")

    def _ties(self, i: int) -> None:
        call, golden = self.own[i], self.golden[i]
        how = ties.find(call.api, call.args, call.kwargs)
        if how is None or how.indices >= len(call.results) or not isinstance(call.results[how.indices], Tensor):
            return
        path = call.paths[how.indices]
        if not how.ordered and call.paths[0] in self.failing:
            self._unordered(how, call, self.target[i] if self.target else call)
        if path not in self.failing:
            if not how.defined:
                self._gradients_of_ties(i, how)
            return
        index = self.here[path]
        if ties.repeats(how, index):
            self._fails([path], "an index stands twice or is out of range, so this is no selection", Kind.index)
        elif how.defined:
            self._defined_order(i, how, path)
        else:
            equal = [_equal_at(how, side.args[0], index, side.results[how.indices]) for side in (golden, call)]
            known = [one for one in equal if one is not None]
            right = torch.stack(known).any(0) if known else None
            if right is None:
                return
            if bool(right.all()):
                self._passes(
                    [path], f"{call.api} leaves open which of equal values an index names: the values are equal"
                )
                self._gradients_of_ties(i, how)
            else:
                bad = int((~right).sum())
                self._fails([path], f"{bad} of {right.numel()} indices name another value", final=False)

    def _defined_order(self, i: int, how: ties.Selection, path: str) -> None:
        """Whether the function itself took another of equal values, given the very input it had on the target."""
        if not self.target:
            return
        there = self.target[i]
        expected = there.func(*there.args, **there.kwargs)
        expected = tuple(expected)[how.indices] if isinstance(expected, (tuple, list)) else expected
        index = self.here[path]
        if expected.shape != index.shape:
            return
        equal = _equal_at(how, there.args[0], index, expected)
        if equal is None:
            return
        broken = equal & (index != expected)
        if bool(broken.any()):
            place = [int(n) for n in broken.nonzero()[0]]
            where = f" (first at {place})" if place else ""
            reason = (
                f"{int(broken.sum())} of {broken.numel()} indices name another of equal values{where}, and torch "
                f"defines which: {how.defined}"
            )
            self._fails([path], reason, Kind.exact)

    def _unordered(self, how: ties.Selection, call: _Recorded, there: _Recorded) -> None:
        """``topk(sorted=False)``: the same values in any order, and indices that name them."""
        dim = how.dim if how.dim is not None else -1
        place, at = call.paths[0], call.paths[how.indices]
        ours, index = self.here[place], self.here.get(at)
        if not torch.equal(ours.sort(dim).values, call.results[0].sort(dim).values):
            return
        wrong = False
        if index is not None:
            named = ties.gathered(how, there.args[0], index)
            wrong = ties.repeats(how, index) or (named is not None and not torch.equal(named.to(ours.dtype), ours))
        if wrong:
            self._fails([place, at], "the indices name other values than those beside them", Kind.index)
        else:
            self._passes([place, at], f"{call.api} with sorted=False leaves the order open: judged as a set")

    def _gradients_of_ties(self, i: int, how: ties.Selection) -> None:
        """A gradient goes to the element that was taken, and of equal values any may be."""
        gradients = self._gradients()
        if not gradients or not self.target:
            return
        call, there = self.own[i], self.target[i]
        index, other = there.results[how.indices], call.results[how.indices]
        if index.shape != other.shape or torch.equal(index, other) or ties.repeats(how, index):
            return
        equal = _equal_at(how, call.args[0], index, other)
        if equal is not None and bool(equal.all()):
            reason = f"{call.api} took another of equal values, which torch leaves open, so the gradient goes there"
            self._incomparable(gradients, reason)


def _be(names: Mapping[str, str]) -> str:
    return "is" if len(names) == 1 else "are"


def _equal_at(how: ties.Selection, source: Any, index: Tensor, other: Tensor) -> Tensor | None:
    """Where two indices name equal values."""
    if not isinstance(source, Tensor) or index.shape != other.shape:
        return None
    left, right = ties.gathered(how, source, index), ties.gathered(how, source, other)
    if left is None or right is None:
        return None
    legal = ties.gathered(how, torch.zeros(source.shape), index)
    both_nan = left.isnan() & right.isnan() if left.is_floating_point() else torch.zeros_like(left, dtype=torch.bool)
    equal = (left == right) | both_nan
    return equal if legal is None else equal & ~legal.isnan()


def _change(value: Tensor, axis: int, order: Tensor | None, phase: Tensor | None) -> Tensor:
    """A result with its vectors in another order and times a phase each, differentiably."""
    other = -1 if axis == -2 else -2
    if order is not None:
        index = order.to(value.device)
        flat = phase is None  # the eigenvalues themselves: one dimension less
        value = value.gather(-1, index) if flat else value.gather(axis, index.unsqueeze(other).expand(value.shape))
    if phase is not None:
        factor = phase if value.is_complex() else phase.real
        value = value * factor.unsqueeze(other).to(device=value.device, dtype=value.dtype)
    return value


class _Changed(Rebuilder):
    """The same output with the vectors of some results changed."""

    def __init__(self, by_id: Mapping[int, tuple[int, Tensor | None, Tensor | None]]) -> None:
        super().__init__()
        self._by_id = by_id

    def tensor(self, value: Tensor, path: str) -> Tensor:
        """The result, changed or not."""
        how = self._by_id.get(id(value))
        return value if how is None else _change(value, *how)
