"""Isolation: every layer judged with equal inputs.

A whole run in 16 bits hides what a layer does wrong by less than the rounding of all layers before it: an output that
is 1 % too large passes in bfloat16. So the model runs twice more, the golden and the target, and each layer that is
compared gets the tensors the benchmark's layer got, and its caller those it returned then. Errors then come from one
layer alone, or from what lies between two of them (what would have reached a layer is judged as well), and the
benchmark's own error there is what they are measured by. A part that is wrong doesn't make its siblings wrong, nor the
layer it belongs to.

Non-tensors are left alone: a key-value cache is what the run itself put into it. The values are given in the memory
layout that the layer would have had in that run, and autograd still runs through them.

Cost: two forward runs, one of them in float64, and the inputs of the chosen layers in memory three times (as recorded,
in float64, as on the target). So ``auto`` isolates models that compute in 16 bits always, others after a failure only;
these run the benchmark once more for the inputs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.transfer import flat_storage
from pytest_ascend.judge import budget
from pytest_ascend.judge.structure import flatten
from pytest_ascend.judge.verdict import CheckpointResult, Kind, OutputResult, Verdict
from pytest_ascend.observe import curve
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, run
from pytest_ascend.observe.reference import Judged
from pytest_ascend.observe.reruns import FORM, SecondLook
from pytest_ascend.observe.spool import Spool
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["Feeder", "Isolation", "Recorder", "like"]

_NARROW = (torch.float16, torch.bfloat16)
#: The benchmark's error in a layer counts as noise up to so many roundoffs of its output's root mean square.
_NOISE_CAP = 4.0
#: The layers of the deepest curve that is kept.
_LAYERS = 1000


class Recorder:
    """Keeps the tensors that layers are called with: ``calls[call][path]``, cloned to the CPU before the call."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, torch.Tensor]] = {}
        self._spool = Spool()

    def before(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Note what a layer is given; it gets just that."""
        found = self.calls[call] = {}

        def note(value: torch.Tensor, path: str) -> torch.Tensor:
            if path not in found and _is_replaceable(value):
                found[path] = self._spool.keep(value)
            return value

        _mapped((args, kwargs), "", note)
        return args, kwargs

    def after(self, call: str, output: Any) -> Any:
        """Nothing is changed."""
        return output


class Feeder:
    """Gives layers the tensors that a :class:`Recorder` kept, and their callers those that the layers returned then.

    ``given[call][path]`` is what the layers would have got, on the CPU.

    Args:
        recorded: what the recorder kept.
        returned: what the layers returned in the recorded run, by call.
    """

    def __init__(self, recorded: Mapping[str, Mapping[str, torch.Tensor]], returned: Mapping[str, Any]) -> None:
        self.given: dict[str, dict[str, torch.Tensor]] = {}
        self._recorded, self._returned = recorded, returned
        self._open: dict[str, _Swapping] = {}
        self._spool = Spool()

    def before(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments a layer gets."""
        swapping = self._open[call] = _Swapping(self._recorded.get(call, {}), self._spool)
        args, kwargs = _mapped((args, kwargs), "", swapping)
        self.given[call] = swapping.given
        return args, kwargs

    def after(self, call: str, output: Any) -> Any:
        """What a layer's caller gets. A layer that works in place changes its caller's tensor too."""
        for value, new, version in self._open.pop(call).swapped.values():
            if _version(new) != version:
                with torch.no_grad():
                    value.copy_(new)
        returned: dict[str, torch.Tensor] = {}

        def note(value: torch.Tensor, path: str) -> torch.Tensor:
            returned[path] = value
            return value

        _mapped(self._returned.get(call), "", note)
        return _mapped(output, "", _Swapping(returned, self._spool))


class _Swapping:
    """Other values for tensors, by path; the same tensor is replaced by the same one wherever it stands."""

    def __init__(self, others: Mapping[str, torch.Tensor], spool: Spool) -> None:
        self.given: dict[str, torch.Tensor] = {}
        self._spool = spool
        self.swapped: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._others = others

    def __call__(self, value: torch.Tensor, path: str) -> torch.Tensor:
        if id(value) in self.swapped:
            return self.swapped[id(value)][1]
        other = self._others.get(path)
        if other is None or other.shape != value.shape or not _is_replaceable(value):
            return value
        self.given[path] = self._spool.keep(value)
        graph = torch.is_grad_enabled() and value.requires_grad
        new = _Swap.apply(value, other) if graph else like(value, other)  # type: ignore[no-untyped-call]
        self.swapped[id(value)] = value, new, _version(new)
        return new


class _Swap(torch.autograd.Function):
    """Other values, the gradient of which goes to the tensor in whose place they stand."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return like(value, other)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def like(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The values of ``other`` with the device, dtype, strides and offset of ``value``."""
    plain = other.to(device=value.device, dtype=value.dtype, copy=True)
    storage = flat_storage(value)
    usual = value.is_contiguous() and value.storage_offset() == 0
    if usual or storage is None or value.is_conj() or value.is_neg():
        return plain
    memory = storage[1].clone().untyped_storage()
    # No view of that memory, which autograd wouldn't let a layer change in place.
    new = torch.empty(0, dtype=value.dtype, device=value.device)
    new.set_(memory, value.storage_offset(), value.size(), value.stride())
    # One element may stand in many places along a stride of 0, and is written once.
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in value.stride())
    try:
        new[once].copy_(plain[once])
    except RuntimeError:  # overlap of another kind
        return plain
    return new if torch.equal(new, plain) or bool(plain.isnan().any()) else plain


def _is_replaceable(value: torch.Tensor) -> bool:
    return not isinstance(value, nn.Parameter) and flat_storage(value) is not None


def _version(value: torch.Tensor) -> int:
    return 0 if value.is_inference() else value._version


def _mapped(tree: Any, path: str, change: Callable[[torch.Tensor, str], torch.Tensor]) -> Any:
    """A tree of tuples, lists and dicts with its tensors changed; a container in which none is stays the same one."""
    if isinstance(tree, torch.Tensor):
        return change(tree, path)
    if isinstance(tree, dict):
        items = {key: _mapped(item, f"{path}[{key!r}]", change) for key, item in tree.items()}
        changed = {key: item for key, item in items.items() if item is not tree[key]}
        new = copy.copy(tree) if changed else tree
        for key, item in changed.items():
            new[key] = item
        return new
    if type(tree) is list or isinstance(tree, tuple):
        row = [_mapped(item, f"{path}[{i}]", change) for i, item in enumerate(tree)]
        if all(new is old for new, old in zip(row, tree, strict=True)):
            return tree
        return type(tree)(*row) if hasattr(tree, "_fields") else type(tree)(row)
    return tree


# ------------------------------------------------------------------------------------------------ the judgement


@dataclass(frozen=True)
class Stage:
    """What isolation says of one call of a layer, or of what leads to it.

    Attributes:
        path: the path of the output, or of the input.
        before: whether what reaches the layer was judged, not what it makes of it.
    """

    call: str
    path: str
    finding: budget.Finding
    before: bool = False

    @property
    def failed(self) -> bool:
        return self.finding.verdict is Verdict.FAIL


class Isolation:
    """Isolates the layers of one check.

    Args:
        case, setting: as in the check.
        wanted: ``"auto"``: always in 16 bits, else after a failure; True: always; False: never.
    """

    def __init__(self, case: Case, setting: Setting, wanted: bool | Literal["auto"]) -> None:
        self.setting = dataclasses.replace(setting, backward=False)
        self.always = bool(setting.checkpoints) and (wanted is True or (wanted == "auto" and _is_narrow(case, setting)))
        self.possible = bool(setting.checkpoints) and wanted is not False
        #: to be filled by the benchmark's run
        self.recorder = Recorder() if self.always else None
        self._points: list[curve.Point] = []
        self._seen: list[Stage] = []
        # Under autocast a layer rounds its weights first.
        self._kernels = _kernels(case, setting.checkpoints) if setting.autocast is None else frozenset()

    def judge(self, look: SecondLook, actual: Capture, judged: Judged) -> tuple[Judged, list[str]]:
        """The judgement with the layers at fault named: they, and only they, are wrong with equal inputs."""
        if not _can_tell(look, judged, self.always):
            return judged, []
        wrong = [o.verdict for o in _results(judged) if o.verdict in (Verdict.FAIL, Verdict.AMPLIFIED)]
        points: list[curve.Point] = []
        notes: list[str] = []
        try:
            if wrong:
                points = self._points = curve.measure(look, actual)
            if self.always or (self.possible and wrong):
                stages = self._seen = self._stages(look)
                if any(stage.failed for stage in stages):
                    return self._confirmed(look, judged, stages, points), []
                judged = _excused(judged, stages)
        except (RunFailed, ValueError) as error:
            notes = [f"the layers could not be told apart by running them again: {error}"]
        return (curve.judge(judged, points) if judged.failed else judged), notes

    def depth(self) -> tuple[dict[str, Any], ...]:
        """How far off each layer is, as ``CheckResult.depth``; empty where nothing was wrong."""
        alone: dict[str, float] = {}
        for stage in self._seen:
            if not stage.before:
                alone[stage.call] = max(alone.get(stage.call, 0.0), stage.finding.times)
        points = {point.name: point for point in self._points}
        names = list(points) or [name for name in alone if name]
        if not any(stage.failed for stage in self._seen) and not points:
            return ()
        return tuple(
            {
                "layer": name,
                "error": points[name].actual if name in points else None,
                "cpu": points[name].benchmark if name in points else None,
                "alone": alone.get(name),
            }
            for name in names[:_LAYERS]
        )

    def _stages(self, look: SecondLook) -> list[Stage]:
        feed = self._feeder(look)
        self._golden = run(look.case, CpuTarget(), self.setting, floating=torch.float64, feed=feed)
        self._golden_given = feed.given
        return self._again(look)

    def _feeder(self, look: SecondLook) -> Feeder:
        assert look.reference.benchmark is not None
        return Feeder(self._recorded(look).calls, look.reference.benchmark.checkpoints)

    def _recorded(self, look: SecondLook) -> Recorder:
        if self.recorder is None:
            self.recorder = Recorder()
            run(look.case, CpuTarget(), self.setting, feed=self.recorder)
        return self.recorder

    def _again(self, look: SecondLook) -> list[Stage]:
        """The target's run with equal inputs, once more, beside the same golden."""
        feed = self._feeder(look)
        return self._weighed(look, run(look.case, look.target, self.setting, relaid=look.relaid, feed=feed), feed)

    def _weighed(self, look: SecondLook, actual: Capture, feed: Feeder) -> list[Stage]:
        """What reaches each layer and what it makes of it, in the order in which layers end; the output last."""
        golden, benchmark, recorded = self._golden, look.reference.benchmark, self._recorded(look).calls
        assert benchmark is not None
        found: list[Stage] = []
        for call in (*actual.checkpoints, ""):
            for path, value in feed.given.get(call, {}).items():
                sides = self._golden_given.get(call, {}).get(path), value, recorded[call].get(path)
                if (finding := _weigh(*sides)) is not None:
                    found.append(Stage(call, path, finding, before=True))
            trees = [side.checkpoints.get(call) if call else side.output for side in (golden, actual, benchmark)]
            known, here, own = (dict(_tensors(tree, call or "output")) for tree in trees)
            composed = call.partition("#")[0] not in self._kernels
            for path, value in here.items():
                if (finding := _weigh(known.get(path), value, own.get(path), composed=composed)) is not None:
                    found.append(Stage(call, path, finding))
        return found

    def _confirmed(
        self, look: SecondLook, judged: Judged, stages: list[Stage], points: Sequence[curve.Point]
    ) -> Judged:
        """Layers that fail with equal inputs: again, and without a mode that is on?"""
        if not any(stage.failed for stage in self._again(look)):
            reason = "with equal inputs the target disagrees with itself: one of two runs is wrong"
            return _named(judged, stages, Verdict.NONDETERMINISTIC, reason)
        on = look.target.switches()
        if not on:
            return _named(judged, stages, Verdict.FAIL, points=points)
        with look.target.without(*on):
            plain = self._again(look)
        if any(stage.failed for stage in plain):
            judged = _named(judged, plain, Verdict.FAIL, points=points)
        wrong = {stage.call for stage in plain if stage.failed}
        explained = [stage for stage in stages if stage.call not in wrong]
        if not any(stage.failed for stage in explained):
            return judged
        switches = self._enough(look, on, wrong)
        what, how = " and ".join(on[s] for s in switches), ", ".join(switches)
        return _named(judged, explained, Verdict.MODE_DIFF, f"explained by {what}: right with equal inputs with {how}")

    def _enough(self, look: SecondLook, on: Mapping[str, str], wrong: set[str]) -> tuple[str, ...]:
        """The one mode without which nothing else is wrong, or all that are on."""
        for switch in on if len(on) > 1 else ():
            with look.target.without(switch):
                if {stage.call for stage in self._again(look) if stage.failed} == wrong:
                    return (switch,)
        return tuple(on)


def _results(judged: Judged) -> list[OutputResult]:
    return [*judged.outputs, *(output for layer in judged.checkpoints for output in layer.outputs)]


def _can_tell(look: SecondLook, judged: Judged, always: bool) -> bool:
    """Whether there are layers to compare by the criterion ``auto``, and nothing has explained the result yet.

    In 16 bits a mode may explain the whole run and yet hide a fault.
    """
    reference = look.reference
    if not look.setting.checkpoints or reference.criterion.name != "auto" or reference.benchmark is None:
        return False
    if reference.golden is reference.benchmark or reference.golden.drew or look.only_arguments:
        return False
    if any(layer.kind in FORM for layer in judged.checkpoints):
        return False
    for output in _results(judged):
        chance = output.verdict is Verdict.NOT_COMPARABLE and output.metrics is not None
        mode = output.verdict is Verdict.MODE_DIFF and not always and not judged.failed
        explained = output.verdict is Verdict.NONDETERMINISTIC or mode
        if chance or explained or output.kind in (Kind.layout, Kind.unwritten):
            return False
    return True


def _is_narrow(case: Case, setting: Setting) -> bool:
    """Whether the model computes in 16 bits."""
    held = [t for module in case.modules for t in module.parameters()]
    return setting.autocast in _NARROW or any(t.dtype in _NARROW for t in (*held, *case.tensors))


def _kernels(case: Case, names: Iterable[str]) -> frozenset[str]:
    """The layers that are one kernel: torch's own without parts, recurrent ones aside."""
    module = case.root
    layers = {} if module is None else {name: module.get_submodule(name) for name in names}
    return frozenset(
        name
        for name, layer in layers.items()
        if type(layer).__module__.startswith("torch.nn.modules")
        if not isinstance(layer, nn.RNNBase) and next(layer.children(), None) is None
    )


def _tensors(tree: Any, root: str) -> Iterator[tuple[str, torch.Tensor]]:
    for leaf in flatten(tree, root):
        if isinstance(leaf.value, torch.Tensor):
            yield leaf.path, leaf.value


#: A layer's limits may be overdrawn so many times.
UNMEASURED = 1.5


def _weigh(
    golden: torch.Tensor | None, actual: torch.Tensor, benchmark: torch.Tensor | None, *, composed: bool = True
) -> budget.Finding | None:
    """The error of one tensor beside the benchmark's; None for what isn't floating or has no counterpart."""
    if golden is None or benchmark is None or not golden.shape == actual.shape == benchmark.shape:
        return None
    if not (actual.is_floating_point() or actual.is_complex()) or not golden.dtype.itemsize >= 8 or not actual.numel():
        return None
    if actual.dtype != benchmark.dtype or actual.layout is not torch.strided:
        return None
    if torch.equal(actual, benchmark):
        return budget.Finding(Verdict.PASS)
    found = budget.weigh(golden, actual, _noise(golden, benchmark), benchmark, composed=composed, drawn=False)
    # Nobody measured here how far the layer itself carries rounding.
    return budget.Finding(Verdict.PASS, times=found.times) if found.times <= UNMEASURED else found


def _noise(golden: torch.Tensor, benchmark: torch.Tensor) -> torch.Tensor | None:
    """The size of the benchmark's error in this layer, the same for all elements.

    A sum's error doesn't shrink with the sum: without it, elements near zero would be all that is seen.
    """
    error = (benchmark.to(golden.dtype) - golden).abs()
    if not bool(error.isfinite().all()):
        error = error.nan_to_num(nan=0.0, posinf=0.0)
    real = benchmark.dtype.to_real() if benchmark.is_complex() else benchmark.dtype
    size = golden.abs().nan_to_num(nan=0.0, posinf=0.0)
    cap = _NOISE_CAP * torch.finfo(real).eps / 2 * size.square().mean().sqrt()
    return error.square().mean().sqrt().minimum(cap).expand(golden.shape).double()


# ------------------------------------------------------------------------------------------------ words


def _named(
    judged: Judged, stages: list[Stage], verdict: Verdict, reason: str = "", points: Sequence[curve.Point] = ()
) -> Judged:
    """The judgement with that verdict on the stages that fail, and AMPLIFIED on other layers that were wrong."""
    failing: dict[str, list[Stage]] = {}
    seen: list[str] = []
    last: dict[str, str] = {}  # the layer that ended before
    for stage in stages:
        if stage.call not in seen:
            last[stage.call] = seen[-1] if seen else ""
            seen.append(stage.call)
        if stage.failed:
            failing.setdefault(stage.call, []).append(stage)
    first = next(iter(failing), None)
    if first is None:
        return judged

    def words(stage: Stage) -> str:
        if verdict is not Verdict.FAIL:
            return f"{reason}; {stage.finding.reason}"
        whole = curve.words(points, stage.call)
        whole = f"; in the whole run {whole}" if whole else ""
        if not stage.before:
            return f"with equal inputs {stage.finding.reason}{whole}"
        start = repr(last[stage.call]) if last[stage.call] else "the model's inputs"
        end = repr(stage.call) if stage.call else "the output"
        return (
            f"what reaches {end} is wrong, with equal inputs to the layers before, so the fault lies between {start} "
            f"and {end}: {stage.finding.reason}{whole}"
        )

    status = "fail" if verdict.outcome == "failed" else "warning"

    def mark(output: OutputResult, stage: Stage) -> OutputResult:
        kind = stage.finding.kind if verdict is Verdict.FAIL else None
        return dataclasses.replace(output, verdict=verdict, kind=kind, reason=words(stage), status=status)

    def layer(found: CheckpointResult) -> CheckpointResult:
        wrong = failing.get(found.name)
        if not wrong and verdict is Verdict.MODE_DIFF:
            return found
        if not wrong:
            return _amplified(found, f"its inputs were already off: with equal inputs it is right, {first!r} isn't")
        by_path = {stage.path: stage for stage in wrong if not stage.before}
        outputs = [mark(o, by_path[o.path]) if o.path in by_path else o for o in found.outputs]
        if not by_path and outputs:
            outputs[0] = mark(outputs[0], wrong[0])
        return CheckpointResult.of(found.name, outputs)

    layers = tuple(map(layer, judged.checkpoints))
    outputs = judged.outputs
    if "" in failing:
        by_path = {stage.path: stage for stage in failing[""]}
        outputs = tuple(mark(o, by_path[o.path]) if o.path in by_path else o for o in outputs)
    return Judged(outputs, layers)


def _amplified(layer: CheckpointResult, reason: str) -> CheckpointResult:
    def one(output: OutputResult) -> OutputResult:
        if output.verdict is not Verdict.FAIL or output.kind in FORM:
            return output
        why = f"{reason}; {output.reason}"
        return dataclasses.replace(output, verdict=Verdict.AMPLIFIED, kind=None, reason=why, status="warning")

    return CheckpointResult.of(layer.name, map(one, layer.outputs)) if layer.outputs else layer


def _excused(judged: Judged, stages: list[Stage]) -> Judged:
    """Nothing is wrong with equal inputs: what was wrong all the same is what the model makes of rounding."""
    if not judged.failed or any(stage.finding.verdict is not Verdict.PASS for stage in stages):
        return judged
    reason = "with equal inputs every layer is right, so the model itself carries rounding this far"
    floating = (Kind.local, Kind.spread, Kind.bias)
    return judged.replaced(
        lambda o: o.kind in floating and not o.path.startswith(("grad(", "mutated(")), Verdict.AMPLIFIED, reason
    )
