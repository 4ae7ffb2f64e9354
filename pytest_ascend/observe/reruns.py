"""A second look at a failure: run the case again with one thing changed, and say what the failure depends on.

In this order: the random numbers (the reference itself changes with the seed), the run (the target disagrees with
itself), the memory layout of an argument, memory that was never written, a documented mode of the chip, and how far the
function itself carries the last bits of its inputs. The first that explains the failure names it; a failure that
nothing here explains stays as it was judged. Only the criterion ``auto`` lets a mode or the conditioning excuse a
failure: thresholds that somebody gave are kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.layouts import is_plain_layout, relay_all
from pytest_ascend.cases.transfer import Entry, same_bits
from pytest_ascend.judge import budget
from pytest_ascend.judge.standards import factor
from pytest_ascend.judge.structure import widened
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict
from pytest_ascend.observe import chance, curve
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, run
from pytest_ascend.observe.conditioning import Yardsticks
from pytest_ascend.observe.defined import judge_by_definition
from pytest_ascend.observe.memory import find_unwritten
from pytest_ascend.observe.mode_models import modelled
from pytest_ascend.observe.overflow_failures import overflow
from pytest_ascend.observe.reference import Judged, Reference, apart, leaves
from pytest_ascend.observe.sizes import find_size
from pytest_ascend.observe.stepwise import judge_steps
from pytest_ascend.observe.undefined import duplicates, open_casts
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["FORM", "RAISED", "SecondLook", "spread"]

Step = Callable[[Capture, Judged], tuple[Judged, list[str]]]

#: How a note begins that says a step failed.
RAISED = "explaining the failure raised"
#: Kinds that neither chance nor a mode explains.
FORM = (Kind.structure, Kind.shape, Kind.dtype)
_AMPLIFIED = "as far off as the last bits of the inputs become on their way through the function itself"
# What the error budget knows: dtypes that a float64 golden is wider than.
_BUDGETED = (torch.float16, torch.bfloat16, torch.float32, torch.complex64)
# What a mode can do to a result at most (HF32 keeps 11 mantissa bits of 24; gelu's tanh form is off by 5e-4), with room
# for a deep model: beside the result's norm, and beside float32's error, which is all there is where the result is 0.
_MODE_ERROR = 2.0**-7
_MODE_RATIO = 2.0**15
# Golden and benchmark that are so far apart, beside the golden's size, differ by more than rounding.
_FAR = 2.0**-5
# With so many other seeds something random is seen to differ.
_SEEDS = 4
# So many times over its limit, an error isn't put down to a spread that was measured too small by chance.
_CLOSE = 32.0
# A spread is too small by chance where others are so many times as large; of a layer, whose kernels round one after
# another, where they are larger at all.
_UNLUCKY = 4.0


@dataclass
class SecondLook:
    """Explains one failure.

    Attributes:
        case, target, setting, reference: as in the run that failed.
        fn: the reference callable, or None when the case is its own.
        relaid: the arguments that were re-laid in that run.
        only_arguments: as in :meth:`Reference.judge`.
        repeated: whether the case was repeated already.
        settled: failures that nothing which is tried later excuses, by path.
        sure: outputs that are right by what defines them, by path.
        calls: what the reference calls that has a definition (see observe/defined.py), once it was asked for.
    """

    case: Case
    target: Target
    setting: Setting
    reference: Reference
    fn: Callable[..., Any] | None = None
    relaid: Mapping[int, torch.Tensor] | None = None
    only_arguments: bool = False
    repeated: bool = False
    settled: dict[str, OutputResult] = dataclasses.field(default_factory=dict)
    sure: set[str] = dataclasses.field(default_factory=set)
    calls: list[Any] | None = None

    def doubtful(self, judged: Judged) -> set[str]:
        """Outputs that were excused: by the function's own conditioning, or as the CPU's own two sides are far apart.

        Signs of vectors differ so between float32 and float64; what judges by definitions can tell more.
        """
        if self.case.is_model or self.reference.benchmark is None:
            return set()
        excuses = (Verdict.REFERENCE_SUSPECT, Verdict.AMPLIFIED, Verdict.MARGINAL)
        paths = {o.path for o in judged.outputs if o.verdict in excuses}
        passed = [o for o in judged.outputs if o.verdict is Verdict.PASS and "int" not in o.dtype and o.dtype != "bool"]
        excused = [o.path for o in passed if o.metrics is not None and o.metrics.mismatches]
        if excused:
            golden, own = leaves(self.reference.golden), leaves(self.reference.benchmark)
            for path in excused:
                left, right = golden.get(path), own.get(path)
                if left is None or right is None or left.shape != right.shape:
                    continue
                error, size = apart(left, right)
                if error > _FAR * size:
                    paths.add(path)
        return paths - self.sure

    def explain(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """The judgement with its failures explained, and notes."""
        notes: list[str] = []
        for i, step in enumerate(self._steps()):
            if i >= len(self._by_what_defines()) and not judged.failed:
                break
            try:
                judged, said = step(actual, judged)
            except Exception as error:  # whatever a step trips over, the failure itself stands
                said = [f"{RAISED} {type(error).__name__}: {error}"]
            notes += said
        return self._as_settled(judged), notes

    def _as_settled(self, judged: Judged) -> Judged:
        """What was settled stays a failure; a later step may only say more of it, or name a mode."""

        def one(output: OutputResult) -> OutputResult:
            settled, verdict = self.settled.get(output.path), output.verdict
            if settled is None or verdict is Verdict.MODE_DIFF:
                return output
            # Memory that was never written makes runs differ.
            cause = settled.kind is Kind.unwritten and verdict is Verdict.NONDETERMINISTIC
            return output if verdict.outcome == "failed" and not cause else settled

        return judged.mapped(one)

    def _steps(self) -> tuple[Step, ...]:
        """What is tried, in this order; a step of another module is given this look first."""
        fresh = functools.partial(find_unwritten, self)
        by_cause = (fresh, self._random, self._repeated, self._layout, self._unwritten, self._mode)
        models = functools.partial(modelled, self), functools.partial(curve.prepare, self)
        named = functools.partial(overflow, self), functools.partial(find_size, self)
        # What excuses a failure by how far the function carries rounding measures the layers along with it.
        return (*self._by_what_defines(), *by_cause, *models, self.amplified, *named)

    def _by_what_defines(self) -> tuple[Step, ...]:
        """What judges otherwise than by values."""
        steps = duplicates, open_casts, judge_by_definition, judge_steps
        return tuple(functools.partial(step, self) for step in steps)

    def run(self, relaid: Mapping[int, torch.Tensor] | None = None, **options: Any) -> Capture:
        """Run the case on the target once more, with the arguments laid out as in the run that failed."""
        return run(self.case, self.target, self.setting, relaid=self.relaid if relaid is None else relaid, **options)

    def judge(self, actual: Capture) -> Judged:
        """The reference's judgement, and in its place the error budget's where that decides.

        A table's tolerance knows nothing of the case: it is four roundoffs wide in bfloat16, so that a result 1 % too
        large passes, and too narrow for a long sum.
        """
        judged = self.reference.judge(actual, only_arguments=self.only_arguments)
        try:
            found = self._findings(actual, [o.path for o in judged.outputs if _is_numeric(o)])
        except RunFailed:
            return judged
        outputs = [self._weighed(o, found.get(o.path)) for o in judged.outputs]
        right = all(o.verdict is not Verdict.FAIL for o in outputs if o.path.startswith("output"))
        for i, output in enumerate(outputs):
            if right and output.verdict is Verdict.FAIL and output.path.startswith("grad(") and output.path in found:
                outputs[i] = dataclasses.replace(output, kind=Kind.gradient)
        return Judged(tuple(outputs), judged.checkpoints)

    def _weighed(self, output: OutputResult, said: budget.Finding | None) -> OutputResult:
        if said is None or (said.verdict is output.verdict is Verdict.PASS):
            return output
        verdict, reason = said.verdict, said.reason
        if verdict is Verdict.PASS and output.verdict is not Verdict.PASS and not _is_rounding(output):
            verdict = Verdict.AMPLIFIED
            reason = f"{_AMPLIFIED}; {output.reason}"
        if verdict is Verdict.FAIL and output.metrics is not None:
            reason += factor(output.metrics)
        status = {"passed": "pass", "failed": "fail"}.get(verdict.outcome, "warning")
        return dataclasses.replace(output, verdict=verdict, kind=said.kind, reason=reason, status=status)

    def rejudge(self, again: Capture) -> Judged:
        """The judgement of a rerun, by values and, where those fail, by definitions."""
        judged = self.judge(again)
        settled, sure = dict(self.settled), set(self.sure)
        self.settled, self.sure = {}, set()
        if judged.failed or self.doubtful(judged):
            for step in self._by_what_defines():
                judged, _ = step(again, judged)
        self.settled, self.sure = settled, sure
        return judged

    def _findings(self, actual: Capture, paths: Iterable[str]) -> dict[str, budget.Finding]:
        """What the error budget says where it decides."""
        sides = self._budgeted(actual, paths)
        if not sides:
            return {}
        measure = self.measure()
        found = {p: budget.Finding(Verdict.PASS) for p, side in sides.items() if budget.is_explained(*side)}
        rest = [path for path in sides if path not in found]
        spreads = measure.spreads(rest) if rest else {}

        def weigh(path: str, spread: torch.Tensor | None) -> budget.Finding:
            golden, here, benchmark = sides[path]
            once = measure.once(path, here.dtype) if _is_narrow(here) else None
            if once is not None and once.shape != golden.shape:
                once = None
            # A backward pass works with what the forward pass stored, so it never rounds only once.
            composed = measure.composed or not path.startswith("output")
            return budget.weigh(golden, here, spread, benchmark, once, composed=composed)

        found |= {path: weigh(path, spreads.get(path)) for path in rest}
        close = [p for p in spreads if found[p].verdict is Verdict.FAIL and found[p].times <= _CLOSE]
        for path, steadier in measure.steadier(close).items():
            # Only of those few that the first runs happened to move by little: the others are as they were measured.
            (golden, here, _), least = sides[path], _UNLUCKY if self.case.module is None else 1.0
            unlucky = budget.is_beyond(golden, here, spreads[path]) & (steadier > least * spreads[path])
            found[path] = weigh(path, torch.where(unlucky, steadier, spreads[path]))
        return found

    def _budgeted(
        self, actual: Capture, paths: Iterable[str]
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Golden, actual and benchmark of what the error budget decides: of single functions, by a wider golden."""
        if self.reference.criterion.name != "auto" or self.case.is_model:
            return {}
        golden, here = leaves(self.reference.golden), leaves(actual)
        benchmark = self._benchmarks(here)
        paths = [
            path
            for path in paths
            if path in golden and path in here and path in benchmark and here[path].dtype in _BUDGETED
            if golden[path].shape == here[path].shape == benchmark[path].shape
        ]
        same = any(golden[path].dtype == here[path].dtype for path in paths)
        if same and not self.reference.own.drew:  # the callable casts its result itself
            golden = {**golden, **self.measure().unrounded()}
        return {
            path: (golden[path], here[path], benchmark[path])
            for path in paths
            if golden[path].dtype in (torch.float64, torch.complex128) and golden[path].shape == here[path].shape
        }

    def _benchmarks(self, here: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The CPU's own results; where it has no kernel for 16 bits, its float32 results rounded."""
        if self.reference.benchmark is not None:
            return leaves(self.reference.benchmark)
        rounded = {path: self.measure().once(path, value.dtype) for path, value in here.items() if _is_narrow(value)}
        return {path: value for path, value in rounded.items() if value is not None}

    def measure(self) -> Yardsticks:
        """What results are measured by beside golden and benchmark; the same for every look at one reference."""
        if self.reference.yardsticks is None:
            self.reference.yardsticks = Yardsticks(self.case, self.setting, self.reference, self.fn)
        found: Yardsticks = self.reference.yardsticks
        return found

    # -- chance ---------------------------------------------------------------------------------------------------

    def _random(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """Outputs that change with the seed on the CPU too can't be compared between two devices."""
        own = self.reference.own
        floating = torch.float64 if own is self.reference.golden and self.reference.benchmark is None else None
        runs, random, failing = [own], set[str](), {o.path for o in judged.failing if o.kind not in FORM}
        for seed in range(1, _SEEDS + 1 if own.drew else 2):  # what chooses among few may choose alike
            runs.append(chance.seeded(self, CpuTarget(), seed, floating=floating, fn=self.fn))
            random |= _differing(own, runs[-1])
            if failing <= random:
                break
        if not own.drew:  # no two runs of a solver have the same last bits, whatever the seed
            random = {path for path in random if not _is_close(own, runs[-1], path)}
        suspects = failing & random
        wrong = chance.examine(self, actual, runs, suspects, floating)
        judged = self.settle(judged, {path: said for path, said in wrong.items() if said[0] is not None})
        unsteady = {path for path, said in wrong.items() if said[0] is None}
        judged = judged.replaced(lambda o: o.path in unsteady, Verdict.NONDETERMINISTIC, chance.UNSTEADY)
        reason = (
            "random: the CPU's own result changes with the seed, and as a whole the numbers are like the CPU's "
            "(model.eval(), or dropout p=0, makes it comparable)"
        )
        suspects -= wrong.keys()
        return judged.replaced(lambda o: o.path in suspects, Verdict.NOT_COMPARABLE, reason), []

    def settle(self, judged: Judged, found: Mapping[str, tuple[Kind | None, str]]) -> Judged:
        """Give failures a kind and reason, by path, that nothing tried later excuses."""
        for output in judged.failing:
            if output.path in found:
                kind, reason = found[output.path]
                self.settled[output.path] = dataclasses.replace(output, kind=kind, reason=reason)
        return judged.mapped(lambda o: self.settled[o.path] if o.path in found else o)

    def _repeated(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        return (judged, []) if self.repeated else self.repeat(actual, judged, 2)

    def repeat(self, actual: Capture, judged: Judged, repeats: int) -> tuple[Judged, list[str]]:
        """Run the same inputs again and see whether the target agrees with itself.

        NONDETERMINISTIC when some runs pass and others don't, or when runs differ from each other as much as from the
        golden. Differences that stay within the criterion are a note.
        """
        runs = [(actual, judged)]
        for _ in range(repeats - 1):
            again = self.run()
            runs.append((again, judged if not _differing(actual, again) else self.rejudge(again)))
        captures = [capture for capture, _ in runs]
        paths = set().union(*(_differing(actual, capture) for capture in captures[1:]))
        if not paths:
            return judged, []
        most = {path: spread(captures, path) for path in paths}
        widest = max(most.values())
        failing = [one for _, one in runs if one.failed]
        if not failing:
            return judged, [f"{repeats} runs of the target differ by up to {widest:.3g}, within the criterion"]
        worst = judged if judged.failed else failing[0]
        if len(failing) == len(runs) and not _as_wide_as_the_error(worst, most):
            return judged, [f"{repeats} runs of the target differ by up to {widest:.3g}, less than they are wrong"]
        reason = (
            f"the target disagrees with itself: {len(failing)} of {repeats} runs with the same inputs are wrong, and "
            f"they differ from each other by up to {widest:.3g}"
        )
        return worst.replaced(lambda o: o.kind not in FORM, Verdict.NONDETERMINISTIC, reason), []

    # -- memory ---------------------------------------------------------------------------------------------------

    def _layout(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """The same values in plain memory, argument by argument."""
        given = {path: (self.relaid or {}).get(id(t), t) for path, t in self.case.arguments.items()}
        odd = [path for path, tensor in given.items() if not is_plain_layout(tensor)]
        if not odd or (self.reference.own.changes and _aliases(given.values())):
            return judged, []
        if self._fails(odd, judged):
            return judged, []
        guilty = [path for path in odd if len(odd) == 1 or not self._fails([path], judged)]
        names = " or ".join(guilty) if guilty else " and ".join(odd) + " together"
        form = "; ".join(f"{path}: {describe_layout(given[path])}" for path in guilty or odd)
        reason = f"wrong with {names} laid out as given, right with a contiguous copy of the same values ({form})"
        return judged.replaced(lambda o: True, Verdict.FAIL, reason, kind=Kind.layout), []

    def _fails(self, contiguous: Iterable[str], judged: Judged) -> bool:
        arguments = self.case.arguments
        plain = relay_all([arguments[path] for path in contiguous], "contiguous")
        return self._still_fails(self.run({**(self.relaid or {}), **plain}), judged)

    def _still_fails(self, again: Capture, judged: Judged) -> bool:
        """Whether a rerun fails where nothing has excused a failure yet."""
        every = [*judged.outputs, *(output for layer in judged.checkpoints for output in layer.outputs)]
        excused = {output.path for output in every if output.verdict.outcome == "noted"}
        return any(output.path not in excused for output in self.rejudge(again).failing)

    def _unwritten(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """``out=`` filled with a pattern beforehand: what still holds it afterwards was never written."""
        if not any(path == "out" or path.startswith("out[") for path in self.case.arguments):
            return judged, []
        patterns: dict[str, torch.Tensor] = {}

        def poison(entry: Entry) -> None:
            if entry.path == "out" or entry.path.startswith("out["):
                with torch.no_grad():
                    entry.copy.copy_(_pattern(entry.copy))
                patterns[entry.path] = entry.copy.detach().to("cpu").clone()

        again = self.run(poison=poison)
        for path, pattern in patterns.items():
            change = again.changes.get(path)
            left = pattern if change is None else change.after
            kept = int(_equal_bits(left, pattern).sum()) if left.shape == pattern.shape else 0
            if kept:
                reason = f"{kept} of {pattern.numel()} elements of {path} were never written"
                return judged.replaced(lambda o: o.kind not in FORM, Verdict.FAIL, reason, kind=Kind.unwritten), []
        return judged, []

    # -- modes ----------------------------------------------------------------------------------------------------

    def _mode(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """A documented mode that is on, and without which the target is right."""
        on = self.target.switches()
        small = _small(judged.failing, self.reference.golden, self.reference.own, actual) if on else set()
        if not small:
            return judged, []
        explained: set[str] = set()
        by: tuple[str, ...] = ()
        for switches in [(switch,) for switch in on] + ([tuple(on)] if len(on) > 1 else []):
            with self.target.without(*switches):
                right = small - {output.path for output in self.rejudge(self.run()).failing}
            if len(right) > len(explained):
                explained, by = right, switches
            if explained == small:
                break
        if not explained:
            return judged, []
        what, how = " and ".join(on[s] for s in by), ", ".join(by)
        reason = f"explained by {what}: within the criterion with {how}"
        if self.reference.criterion.name != "auto":
            return judged, [reason] if len(explained) == len(judged.failing) else []
        return judged.replaced(lambda o: o.path in explained, Verdict.MODE_DIFF, reason, status="warning"), []

    def amplified(self, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """Errors no larger than what the last bits of the inputs become on their way through the function."""
        if self.reference.criterion.name != "auto" or self.reference.golden.backward_error is not None:
            return judged, []
        paths = {o.path for o in judged.failing if o.kind not in (*FORM, Kind.mutation) and not _is_moved(o)}
        golden, benchmark = leaves(self.reference.golden), leaves(self.reference.own)
        here = leaves(actual)
        # What the budget weighed is settled.
        paths -= self._budgeted(actual, [o.path for o in judged.failing if _is_numeric(o)]).keys()
        floating = {p for p in paths if p in golden and (golden[p].is_floating_point() or golden[p].is_complex())}
        spreads = self.measure().spreads(floating) | self.measure().jumps(paths - floating)

        def excused(known: Mapping[str, torch.Tensor]) -> set[str]:
            return {
                path
                for path, spread in known.items()
                if budget.is_legal(golden[path], here.get(path), benchmark.get(path), spread)
            }

        legal = excused({path: spreads[path] for path in paths if path in spreads})
        if legal and self.case.is_model and (rest := floating - legal):
            # A relu flips in one run and not in the next: what it moves is as wide as the runs that met it.
            legal |= excused(self.measure().widest(rest))
        judged = judged.replaced(lambda o: o.path in legal and _is_rounding(o), Verdict.PASS, "", status="pass")
        return judged.replaced(lambda o: o.path in legal, Verdict.AMPLIFIED, _AMPLIFIED), []


def spread(captures: list[Capture], path: str) -> float:
    """The largest difference between runs at a path: NaN-safe, infinite where one run is finite and another isn't."""
    values = [leaves(capture).get(path) for capture in captures]
    tensors = [widened(v) for v in values if v is not None]
    if len(tensors) < len(values) or len({t.shape for t in tensors}) > 1:
        return float("inf")
    widest = 0.0
    for tensor in tensors[1:]:
        apart = (tensor - tensors[0]).abs()
        equal = (tensor == tensors[0]) | (tensor.isnan() & tensors[0].isnan())
        apart = torch.where(equal, torch.zeros_like(apart), apart.nan_to_num(nan=float("inf")))
        widest = max(widest, float(apart.max())) if apart.numel() else widest
    return widest


def describe_layout(value: torch.Tensor) -> str:
    """``shape (2, 3), strides (1, 2), offset 4``."""
    return f"shape {tuple(value.shape)}, strides {value.stride()}, offset {value.storage_offset()}"


def _differing(left: Capture, right: Capture) -> set[str]:
    """Paths at which two captures don't hold the same bits."""
    here, there = leaves(left), leaves(right)
    return {p for p in {*here, *there} if p not in here or p not in there or not same_bits(here[p], there[p])}


def _is_close(left: Capture, right: Capture, path: str) -> bool:
    here, there = leaves(left).get(path), leaves(right).get(path)
    if here is None or there is None or here.shape != there.shape or not here.is_floating_point():
        return False
    error, size = apart(here, there)
    return error <= 64 * torch.finfo(here.dtype).eps * size


def _aliases(tensors: Iterable[torch.Tensor]) -> bool:
    storages = [t.untyped_storage()._cdata for t in tensors if t.layout is torch.strided]
    return len(set(storages)) < len(storages)


def _as_wide_as_the_error(judged: Judged, spreads: Mapping[str, float]) -> bool:
    wrong = [(spreads.get(o.path, 0.0), o.metrics) for o in judged.failing]
    return any(apart >= 0.5 * metrics.max_abs_error for apart, metrics in wrong if metrics is not None)


def _small(wrong: Iterable[OutputResult], golden: Capture, own: Capture, actual: Capture) -> set[str]:
    """Failures as small as reduced precision makes them: beside the value, or beside float32's error."""
    golds, owns, here = leaves(golden), leaves(own), leaves(actual)
    found = set()
    for output in wrong:
        path = output.path
        if output.kind in (*FORM, Kind.mutation) or _is_moved(output) or path not in golds or path not in here:
            continue
        if not here[path].shape == golds[path].shape == owns.get(path, golds[path]).shape:
            continue
        error, size = apart(golds[path], here[path])
        float32 = apart(golds[path], owns[path])[0] if path in owns else 0.0
        if error <= max(_MODE_ERROR * size, _MODE_RATIO * float32):
            found.add(path)
    return found


def _is_numeric(output: OutputResult) -> bool:
    """Whether nothing but the size of errors was judged."""
    if output.metrics is None or not output.metrics.max_abs_error > 0 or output.metrics.non_finite_mismatches:
        return False
    return output.kind in (None, Kind.local, Kind.spread, Kind.bias, Kind.overflow, Kind.gradient)


def _is_narrow(value: torch.Tensor) -> bool:
    return value.dtype in (torch.float16, torch.bfloat16)


def _is_moved(output: OutputResult) -> bool:
    """Whether floating numbers had to be equal because they were only moved; nothing excuses another bit there."""
    return output.kind is Kind.exact and ("float" in output.dtype or "complex" in output.dtype)


def _is_rounding(output: OutputResult) -> bool:
    """Whether an error is a few units in the last place, so that nothing was amplified."""
    dtype = getattr(torch, output.dtype, None)
    if output.metrics is None or dtype is None or not dtype.is_floating_point:
        return False
    return output.metrics.relative_euclidean_distance <= 16 * torch.finfo(dtype).eps


def _pattern(like: torch.Tensor) -> torch.Tensor:
    """A value no kernel writes by chance: a NaN of unusual bits, or an integer of alternating ones."""
    if like.dtype.is_complex or like.dtype is torch.bool:
        return torch.full_like(like, float("nan") if like.dtype.is_complex else True)
    if like.dtype.is_floating_point:
        return torch.full_like(like, float("nan"))
    return torch.full_like(like, 0x5A)


def _equal_bits(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | ((left != left) & (right != right))
