"""What a case is judged against: its golden and benchmark, and the judging of whole captures against them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.judge.compare import judge_tree
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.structure import flatten, widened
from pytest_ascend.judge.verdict import CheckpointResult, Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, run
from pytest_ascend.observe.modules import Feed
from pytest_ascend.observe.movement import Kernels, moved
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["Judged", "Reference", "apart", "leaves", "rms"]


@dataclass(frozen=True)
class Judged:
    """A capture's judgement: outputs, gradients and changes in one row, and the layers."""

    outputs: tuple[OutputResult, ...]
    checkpoints: tuple[CheckpointResult, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether anything is wrong."""
        verdicts = [*(o.verdict for o in self.outputs), *(c.verdict for c in self.checkpoints)]
        return Verdict.FAIL in verdicts

    @property
    def failing(self) -> list[OutputResult]:
        """What is wrong, layers' outputs included."""
        results = [*self.outputs, *(output for layer in self.checkpoints for output in layer.outputs)]
        return [output for output in results if output.verdict is Verdict.FAIL]

    def replaced(
        self,
        which: Callable[[OutputResult], bool],
        verdict: Verdict,
        reason: str,
        *,
        kind: Kind | None = None,
        status: str | None = None,
    ) -> Judged:
        """The same judgement with another verdict on those failures; a pass without a reason drops the old one."""

        def one(output: OutputResult) -> OutputResult:
            if output.verdict is not Verdict.FAIL or not which(output):
                return output
            mark = status or ("fail" if verdict.outcome == "failed" else "warning")
            why = f"{reason}; {output.reason}" if reason else ""
            return dataclasses.replace(output, verdict=verdict, kind=kind, reason=why, status=mark)

        return self.mapped(one)

    def mapped(self, one: Callable[[OutputResult], OutputResult]) -> Judged:
        """The same judgement with every output replaced, layers' outputs included."""
        layers = tuple(
            CheckpointResult.of(layer.name, map(one, layer.outputs)) if layer.outputs else layer
            for layer in self.checkpoints
        )
        return Judged(tuple(map(one, self.outputs)), layers)


@dataclass
class Reference:
    """The CPU's side of a check.

    Attributes:
        golden: the result in float64 (or the widest precision the callable supports).
        benchmark: the result in the case's own dtype; None where the CPU has no kernel for it.
        criterion: the rule that judges.
        inputs: the case's tensors, to tell data movement by; None where nothing is told so.
        only_moves: whether no kernel of the call computes.
        notes: what a reader should know about how these came to be.
        yardsticks: what was measured about them since, kept by who measured it (observe/conditioning.py).
    """

    golden: Capture
    benchmark: Capture | None
    criterion: Criterion
    inputs: tuple[torch.Tensor, ...] | None = None
    only_moves: Callable[[], bool] = lambda: False
    notes: list[str] = field(default_factory=list)
    yardsticks: Any = None

    @classmethod
    def of(
        cls,
        case: Case,
        setting: Setting,
        criterion: Criterion,
        fn: Callable[..., Any] | None,
        feed: Feed | None = None,
    ) -> Reference:
        """Run the case, or the reference ``fn`` in its place, on the CPU.

        The benchmark runs first. The golden runs in float64 with the same input values; where the callable can't, in
        float32 when the case is of fewer bits, else the benchmark stands in for it. ``feed`` sees what the benchmark's
        layers are called with.

        Raises:
            RunFailed: the CPU raised in the case's own dtype and in every wider one; the error is the first one.
        """
        __tracebackhide__ = True
        cpu = CpuTarget()
        notes: list[str] = []
        failure: RunFailed | None = None
        benchmark: Capture | None = None
        try:
            benchmark = run(case, cpu, setting, fn=fn, feed=feed)
        except RunFailed as failed:
            failure = failed
        golden: Capture | None = None
        for floating in _wider(case):
            try:
                golden = run(case, cpu, setting, floating=floating, fn=fn)
            except RunFailed as failed:
                notes.append(
                    f"no {_name(floating)} reference: {type(failed.error).__name__} ({_first_line(failed.error)})"
                )
                continue
            break
        if golden is not None and benchmark is not None and benchmark.drew and not _agree(golden, benchmark):
            notes.append("it draws random numbers, which differ in float64: the golden was computed in its own dtype")
            golden = benchmark
        if benchmark is None and golden is None:
            assert failure is not None
            raise failure
        if golden is None:
            golden = benchmark
        if benchmark is None and failure is not None:
            notes.append(f"the CPU has no result in {case.dtype} to compare with: {_first_line(failure.error)}")
        assert golden is not None
        if case.module is not None or setting.autocast is not None:
            return cls(golden, benchmark, criterion, notes=notes)
        only_moves = functools.cache(functools.partial(_only_moves, case, setting, fn))
        return cls(golden, benchmark, criterion, case.tensors, only_moves, notes)

    @property
    def own(self) -> Capture:
        """The capture in the case's own dtype, or the golden where there is none."""
        return self.benchmark or self.golden

    @property
    def compares_nothing(self) -> bool:
        """Whether there is nothing in it that a target could get wrong."""
        return not any(True for _ in self.own.tensors()) and not _numbers(self.own.output)

    def judge(self, actual: Capture, *, only_arguments: bool = False) -> Judged:
        """Judge what a target did.

        Args:
            actual: the target's capture.
            only_arguments: pass over gradients and changes of parameters and buffers (the reference is another
                callable, with other ones or none).
        """
        outputs = list(self._tree(self.golden.output, actual.output, self.own.output, "output"))
        right = all(output.verdict is not Verdict.FAIL for output in outputs)
        outputs += self._gradients(actual, right, only_arguments)
        for path in _union(self.own.changes, self.golden.changes, actual.changes):
            if not only_arguments or path in self.own.origins or path in self.own.changes:
                outputs += self._change(path, actual)
        return Judged(tuple(outputs), tuple(self._layers(actual)))

    def _tree(
        self, golden: Any, actual: Any, benchmark: Any, root: str, starts: tuple[torch.Tensor, ...] = ()
    ) -> tuple[OutputResult, ...]:
        exact = None
        if self.inputs is not None and self.criterion.name == "auto":
            exact = functools.partial(moved, inputs=(*self.inputs, *starts))
            if root == "output":  # a backward pass has kernels of its own
                exact = functools.partial(exact, only_moves=self.only_moves)
        yardstick = None if self.benchmark is None or benchmark is golden else benchmark
        return judge_tree(golden, actual, yardstick, self.criterion, root, exact=exact)

    def _gradients(self, actual: Capture, right: bool, only_arguments: bool) -> Iterator[OutputResult]:
        """Judge gradients; a side whose backward pass raised has none to offer."""
        able = [side for side in (self.golden, self.benchmark) if side is not None and side.backward_error is None]
        if not able or actual.backward_error is not None:
            return
        golden, benchmark = able[0].gradients, able[-1].gradients
        largest = max((rms(g) for g in golden.values() if g is not None), default=0.0)  # may be infinite
        for name in _union(benchmark, golden, actual.gradients):
            sides = golden.get(name), actual.gradients.get(name), benchmark.get(name)
            if all(side is None for side in sides) or (only_arguments and name not in benchmark):
                continue
            vanishes = _vanishes(sides[0], sides[1], largest)
            for output in self._tree(*sides, name, starts=self.own.starts):
                yield _passing(output) if vanishes else _as_gradient(output, right)

    def _change(self, path: str, actual: Capture) -> list[OutputResult]:
        """Judge an input that either side changed in place."""
        here, there = actual.changes.get(path), self.own.changes.get(path)
        after = here.after if here is not None else actual.unchanged(path)
        golden, benchmark = _after(self.golden, path), _after(self.own, path)
        if golden is None and here is not None:  # memory outside a view, which the reference left alone
            golden = benchmark = here.before
        results = self._tree(golden, after, benchmark, f"mutated({path})")
        if (here is None) == (there is None):
            return list(results)
        who = "the target changed it and the CPU did not" if there is None else "the CPU changed it, the target did not"
        return [_failing(o, Kind.mutation, f"{who}: {o.reason}") for o in results]

    def _layers(self, actual: Capture) -> Iterator[CheckpointResult]:
        for name in _union(actual.checkpoints, self.own.checkpoints):
            golden, here, own = (side.checkpoints.get(name, _MISSING) for side in (self.golden, actual, self.own))
            if any(side is _MISSING for side in (golden, here, own)):
                absent = "on the target" if here is _MISSING else "by the reference"
                reason = f"this call of the layer was not made {absent}"
                yield CheckpointResult(name, Verdict.FAIL, Kind.structure, reason, "fail")
                continue
            yield CheckpointResult.of(name, self._tree(golden, here, own, name))


_MISSING = object()


def _only_moves(case: Case, setting: Setting, fn: Callable[..., Any] | None) -> bool:
    kernels = Kernels()
    try:
        capture = run(case, CpuTarget(), dataclasses.replace(setting, backward=False), fn=fn, mode=kernels)
    except RunFailed:
        return False
    return not (case.modules or capture.drew or kernels.count or kernels.made)


def leaves(capture: Capture) -> dict[str, torch.Tensor]:
    """Every tensor a capture holds, by the path it is judged under."""
    found = list(flatten(capture.output, "output"))
    for name, gradient in capture.gradients.items():
        found += flatten(gradient, name)
    for path, change in capture.changes.items():
        found += flatten(change.after, f"mutated({path})")
    for name, output in capture.checkpoints.items():
        found += flatten(output, name)
    return {leaf.path: leaf.value for leaf in found if isinstance(leaf.value, torch.Tensor)}


def _agree(golden: Capture, benchmark: Capture) -> bool:
    """Whether two precisions drew the same random numbers: their results then differ by rounding only."""
    here, there = leaves(golden), leaves(benchmark)
    return all(
        path in here and value.shape == here[path].shape and _distance(here[path], value) < 0.1
        for path, value in there.items()
        if value.is_floating_point()
    )


def _distance(golden: torch.Tensor, other: torch.Tensor) -> float:
    apart, size = rms(golden.double() - other.double()), rms(golden)
    return apart / size if size else apart


def _wider(case: Case) -> tuple[torch.dtype, ...]:
    """Precisions to try a golden in, the widest first."""
    held = [t for module in case.modules for t in (*module.parameters(), *module.buffers())]
    narrow = any(
        (t.dtype.is_floating_point and t.dtype.itemsize < 4) or t.dtype is torch.complex32
        for t in (*case.tensors, *held)
    )
    return (torch.float64, torch.float32) if narrow else (torch.float64,)


def _after(capture: Capture, path: str) -> torch.Tensor | None:
    change = capture.changes.get(path)
    return change.after if change is not None else capture.unchanged(path)


def _as_gradient(output: OutputResult, forward_is_right: bool) -> OutputResult:
    """A wrong gradient of a right forward pass is a kind of its own; a missing one stays a matter of structure."""
    if output.verdict is not Verdict.FAIL or output.kind is Kind.structure or not forward_is_right:
        return output
    return _failing(output, Kind.gradient, output.reason)


def _vanishes(golden: torch.Tensor | None, actual: torch.Tensor | None, largest: float) -> bool:
    """Whether a gradient is zero but for rounding on both sides, beside the largest gradient of the model.

    The bias before a batch norm and the key bias of attention have no effect, so their gradients are made of rounding
    errors only: no two implementations agree on them, and neither is wrong.
    """
    if golden is None or actual is None or not actual.is_floating_point() or golden.shape != actual.shape:
        return False
    roundoff = torch.finfo(actual.dtype).eps / 2
    if not math.isfinite(largest):
        return False
    return rms(golden) <= 2.0**-6 * roundoff * largest and rms(actual) <= 64 * roundoff * largest


def rms(value: torch.Tensor) -> float:
    """Root mean square; 0 for a tensor without elements."""
    return float(widened(value).abs().square().mean().sqrt()) if value.numel() else 0.0


def apart(golden: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Root mean squares of the error and of the golden, of one shape, where they don't share an infinity or a NaN.

    The error is infinite or NaN where one of them isn't finite and the other is something else.
    """
    left, right = widened(golden), widened(other)
    shared = ~left.isfinite() & ((left == right) | (left.isnan() & right.isnan()))
    if bool(shared.any()):
        left, right = left[~shared], right[~shared]
    return rms(right - left), rms(left[left.isfinite()])


def _passing(output: OutputResult) -> OutputResult:
    return dataclasses.replace(output, verdict=Verdict.PASS, kind=None, reason="", status="pass")


def _failing(output: OutputResult, kind: Kind, reason: str) -> OutputResult:
    return dataclasses.replace(output, verdict=Verdict.FAIL, kind=kind, reason=reason, status="fail")


def _union(*mappings: Any) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def _numbers(tree: Any) -> bool:
    """Whether plain numbers are among the leaves of an output."""
    if isinstance(tree, (int, float, complex)):
        return True
    if isinstance(tree, dict):
        return any(_numbers(value) for value in tree.values())
    return isinstance(tree, (list, tuple)) and any(_numbers(value) for value in tree)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n", 1)[0].split())[:160]
