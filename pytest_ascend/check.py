"""The one road of precision: a case runs on the CPU and on the target, what came out is compared, a verdict comes back.

Golden (float64) and benchmark (the case's own dtype) run on the CPU, the target runs on a copy with the same values,
layout, seed, autocast and initial gradients; the callable's own module is never moved or changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_ascend.cases import references
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.layouts import relay_all
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.verdict import CheckResult, Kind, OutputResult, Verdict
from pytest_ascend.observe import errors
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, caller_autocast, keep_rng, on_cpu, run
from pytest_ascend.observe.hearing import Heard, unheard
from pytest_ascend.observe.isolation import Isolation
from pytest_ascend.observe.memory import written_outside
from pytest_ascend.observe.modules import choose
from pytest_ascend.observe.ops import bisect
from pytest_ascend.observe.places import with_places
from pytest_ascend.observe.reference import Judged, Reference
from pytest_ascend.observe.reruns import SecondLook
from pytest_ascend.observe.vacuous import without_power
from pytest_ascend.options import CheckOptions
from pytest_ascend.targets import resolve
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["check", "check_case", "seed_of_api", "still_fails"]


def check(fn: Callable[..., Any], /, *args: Any, options: Any = None, **kwargs: Any) -> CheckResult:
    """Run a callable on the target and on the CPU, and compare.

    Args:
        fn: a function, module, bound method or operator. A module is copied, never moved or changed.
        *args: its arguments: tensors of any layout, nested in anything, on any device; modules and optimizers too.
        options: a :class:`~pytest_ascend.options.CheckOptions`. Anything else is an argument of the callable's own.
        **kwargs: its keyword arguments.

    Returns:
        The verdict with everything it rests on. A mismatch is a result, not an exception.

    Raises:
        TargetUnavailable: this machine hasn't the target.
        ValueError: the case can't be compared as asked (no such layer, nothing to differentiate, a module that can't be
            copied).
        Exception: what the callable itself raised on the CPU, with a note that says so; the target wasn't asked then.
    """
    __tracebackhide__ = True
    if options is not None and not isinstance(options, CheckOptions):
        kwargs["options"], options = options, None
    return check_case(Case(fn, args, kwargs), options or CheckOptions())


def check_case(case: Case, options: CheckOptions) -> CheckResult:
    """:func:`check` of a case that was put together before, whatever its arguments are called.

    An operator that a reference is registered for is judged by that one, unless the options name another.
    """
    __tracebackhide__ = True
    if options.reference is None and (found := references.of_case(case)) is not None:
        options = options.replace(reference=found)
    with _unwatched(), unheard():
        return _compiled(case, options) if options.mode == "compile" else _checked(case, options)


def _checked(case: Case, options: CheckOptions) -> CheckResult:
    __tracebackhide__ = True
    target = resolve(options.target)
    with keep_rng(target), on_cpu() as default_device:
        return _Check(case, target, options, default_device).result()


def _compiled(case: Case, options: CheckOptions) -> CheckResult:
    """The check under ``torch.compile``: the compiled call against the CPU, and against the eager call."""
    from pytest_ascend.cases.catalogue.compiled import compiled  # loads torch's compiler
    from pytest_ascend.compiled import beside_eager

    case = dataclasses.replace(case, fn=compiled(case.fn))
    options = options.replace(checkpoints=False, isolate=False)
    return beside_eager(case, options, _checked(case, options))


def _unwatched() -> contextlib.AbstractContextManager[None]:
    """A context in which whoever watches this process for overflows looks away."""
    watching = sys.modules.get("pytest_ascend.observe.overflow_watch")
    return contextlib.nullcontext() if watching is None else watching.paused()


def still_fails(case: Case, options: CheckOptions, *, crash: bool = False) -> bool:
    """Whether a case fails as it stands: quickly, without looking for an explanation, for a search that asks often.

    ``crash``: whether it is an exception of the target's that is looked for. The sign of a zero alone is no failure
    here: a search that takes it for one ends there, whatever it began with.

    Raises:
        RunFailed: the CPU refuses the case.
    """
    target = resolve(options.target)
    with keep_rng(target), on_cpu() as default_device, _unwatched(), unheard():
        return _Check(case, target, options, default_device).fails(crash)


class _Check:
    """One check on its way."""

    def __init__(self, case: Case, target: Target, options: CheckOptions, default_device: torch.device | None) -> None:
        self.case = case
        self.target = target
        self.options = options
        thresholds = {name: getattr(options, name) for name in ("cosine", "max_abs", "rtol", "atol")}
        self.criterion = Criterion.of(options.criterion, **thresholds)
        seed = options.seed if options.seed is not None else seed_of_api(case.api)
        autocast, layers = caller_autocast(target), _layers(case, options)
        self.setting = Setting(seed, options.backward, autocast, layers, default_device, start=seed)
        self.isolation = Isolation(case, self.setting, options.isolate)
        self.notes: list[str] = []

    def result(self) -> CheckResult:
        """Run everything and judge."""
        __tracebackhide__ = True
        try:
            fn, feed = self.options.reference, self.isolation.recorder
            reference = Reference.of(self.case, self.setting, self.criterion, fn, feed)
        except RunFailed as failed:
            raise self._raised_on_cpu(failed) from failed.error.__cause__
        self._check_backward(reference)
        self.notes += reference.notes
        if self.case.remark is not None and (remark := self.case.remark(reference.own.output)):
            self.notes.append(remark)
        if self.setting.checkpoints and not reference.own.checkpoints:
            none = f"none of the {len(self.setting.checkpoints)} layers to compare was called"
            why = "code under torch.compile calls no layers: compare the eager model, or give mode='compile'"
            if self.options.checkpoints:
                return self._finish(Verdict.NOT_EXERCISED, f"{none}; {why}")
            self.notes.append(f"{none}; {why}")
        if self.options.mode == "eager":
            self.notes += _compiled_inside(self.case)
        if reference.compares_nothing:
            what = "returned no tensor or number and changed none of its arguments"
            return self._finish(Verdict.VACUOUS, f"nothing was compared: {self.case.api} {what}")
        outputs: list[OutputResult] = []
        layers: Judged = Judged(())
        seen: list[Capture] = []
        for layout, relaid in self._layouts():
            try:
                # The one run that a recording around the check is to hear.
                mode = Heard() if not seen else None
                actual = run(self.case, self.target, self.setting, relaid=relaid, mode=mode)
            except RunFailed as failed:
                if not seen and layout == "as_given":
                    return self._raised_on_target(failed)
                if self._on_cpu(relaid, layout) is not None:
                    outputs.append(self._layout_raised(failed, layout))
                continue
            if actual.backward_error is not None:
                outputs += self._backward_raised(actual.backward_error, reference, relaid, layout)
            judged = with_places(self._judged(reference, actual, relaid, layout), reference, actual)
            if not seen:
                layers = judged
                outputs[:0] = judged.outputs
            else:
                wrong = [_in_layout(o, layout) for o in judged.outputs if o.verdict.outcome == "failed"]
                if wrong and not self._depends_on_layout(reference, relaid, layout):
                    outputs += wrong
            seen.append(actual)
            self.notes += actual.notes
        if not seen and not outputs:
            return self._finish(Verdict.VACUOUS, f"nothing was compared: no argument can take {self.options.layouts}")
        result = CheckResult.of(outputs, layers.checkpoints, **self._about())
        if result.verdict.outcome in ("passed", "noted"):
            result = CheckResult.of(without_power(reference, outputs), layers.checkpoints, **self._about())
        if result.verdict.outcome == "failed" and (depth := self.isolation.depth()):
            result = dataclasses.replace(result, depth=depth)
        if self.options.bisect and result.verdict is Verdict.FAIL and seen:
            result = self._bisected(result, reference)
        result = self._exercised(result, seen)
        if not self.options.overflow or result.verdict is Verdict.NOT_EXERCISED:
            return result
        from pytest_ascend.observe.overflow_check import with_overflows

        return with_overflows(result, self.case, self.target, self.setting, self.options.reference)

    def fails(self, crash: bool) -> bool:
        """See :func:`still_fails`."""
        reference = Reference.of(self.case, self.setting, self.criterion, self.options.reference)
        if reference.compares_nothing:
            return False
        try:
            actual = run(self.case, self.target, self.setting)
        except RunFailed as failed:
            return crash and self._explain(failed)[0] is Verdict.CRASH
        look = self._look(reference, {})
        judged = look.rejudge(actual)
        if crash or not judged.failed:
            return False
        return any(_apart(output) for output in look.amplified(actual, judged)[0].failing)

    def _look(self, reference: Reference, relaid: Mapping[int, torch.Tensor]) -> SecondLook:
        return SecondLook(
            self.case,
            self.target,
            self.setting,
            reference,
            fn=self.options.reference,
            relaid=relaid,
            only_arguments=self.options.reference is not None,
            repeated=self.options.repeats > 1,
        )

    def _judged(self, reference: Reference, actual: Capture, relaid: Mapping[int, torch.Tensor], layout: str) -> Judged:
        look = self._look(reference, relaid)
        judged = look.judge(actual)
        if self.options.repeats > 1:
            judged, notes = look.repeat(actual, judged, self.options.repeats)
            self.notes += notes
        if judged.failed or look.doubtful(judged):
            judged, notes = look.explain(actual, judged)
            self.notes += [note if layout == "as_given" else f"{layout}: {note}" for note in notes]
        if layout == "as_given":
            judged, notes = self.isolation.judge(look, actual, judged)
            self.notes += notes
        return written_outside(look, actual, judged)

    # -- the operator to blame -------------------------------------------------------------------------------------

    def _bisected(self, result: CheckResult, reference: Reference) -> CheckResult:
        """The result with the operator that is to blame, and the layer where a wrong backward pass starts."""
        if self.options.reference is not None or reference.own is not reference.benchmark:
            return result
        try:
            look = self._look(reference, {})
            found = bisect(look, self._alone)
        except RunFailed as failed:
            note = f"the operators could not be told apart by running them again: {failed}"
            return dataclasses.replace(result, notes=(*result.notes, note))
        first, culprit = result.first_divergence, found.culprit
        if culprit is not None and culprit.confirmed:
            first = _around(culprit.module, result.checkpoints) or first
            if first is None and culprit.phase == "backward":
                first = culprit.module or None
        notes = (*result.notes, *found.notes)
        if culprit is None and found.judged > 1:
            everyone = f"each of the {found.judged} operators that were judged is right with the inputs it got"
            if found.cleared and (excused := self._by_mode(result, look, everyone)) is not None:
                return excused
            what = "the callable may do something else on this device, or an operator that can't be judged is to blame"
            notes = (*notes, f"{everyone}: {what}")
        return dataclasses.replace(result, culprit=culprit, first_divergence=first, notes=notes)

    def _by_mode(self, result: CheckResult, look: SecondLook, everyone: str) -> CheckResult | None:
        """The result with what a mode of the chip explains, whose rounding the model carries on; None without.

        Near the threshold of a relu, or in a normalisation over few values, that can be any error. It is the mode's
        where it goes with the mode, and no operator does more than the mode says. What only equal inputs or another
        layout showed to be wrong isn't asked here.
        """
        on = self.target.switches()
        if not on or self.criterion.name != "auto":
            return None
        explained = {output.path for output in look.rejudge(look.run()).failing}
        with self.target.without(*on):
            explained -= {output.path for output in look.rejudge(look.run()).failing}
        reason = f"explained by {' and '.join(on.values())}: right with {', '.join(on)}, and {everyone}"
        layers = tuple(result.checkpoints.values())
        judged = Judged(result.outputs, layers).replaced(
            lambda o: o.path in explained, Verdict.MODE_DIFF, reason, status="warning"
        )
        return None if judged.failed else CheckResult.of(judged.outputs, judged.checkpoints, **self._about())

    def _alone(self, case: Case) -> CheckResult:
        """The check of one operator of the run, under the same criterion's rules for a single call."""
        options = CheckOptions(target=self.options.target, backward=False, checkpoints=False, bisect=False)
        if (fn := references.of_case(case)) is not None:
            options = options.replace(reference=fn)
        return _Check(case, self.target, options, None).result()

    # -- layouts --------------------------------------------------------------------------------------------------

    def _layouts(self) -> list[tuple[str, dict[int, torch.Tensor]]]:
        """The layouts that some argument can take, with the re-laid arguments."""
        found = []
        for layout in self.options.layouts:
            relaid = relay_all(self.case.tensors, layout)
            if relaid or layout == "as_given":
                found.append((layout, relaid))
            else:
                self.notes.append(f"layout {layout}: no argument can take it")
        return found

    def _on_cpu(self, relaid: Mapping[int, torch.Tensor], layout: str) -> Capture | None:
        """What the CPU does with re-laid arguments; None, and a note, when it doesn't take them."""
        try:
            return run(self.case, CpuTarget(), self.setting, relaid=relaid, fn=self.options.reference)
        except RunFailed:
            self.notes.append(f"layout {layout}: {self.case.api} doesn't take it on the CPU either")
            return None

    def _depends_on_layout(self, reference: Reference, relaid: Mapping[int, torch.Tensor], layout: str) -> bool:
        """Whether the callable's result depends on the layout by design, as that of ``as_strided`` does."""
        own = self._on_cpu(relaid, layout)
        if own is None:
            return True
        if reference.judge(own).failed:
            self.notes.append(f"layout {layout}: {self.case.api} gives other values for it on the CPU too")
            return True
        return False

    def _layout_raised(self, failed: RunFailed, layout: str) -> OutputResult:
        verdict, reason = self._explain(failed)
        return OutputResult(f"output [{layout}]", verdict, None, f"with {layout} arguments: {reason}", "fail")

    # -- exceptions -----------------------------------------------------------------------------------------------

    def _raised_on_cpu(self, failed: RunFailed) -> Exception:
        """The caller's own error, with a note where it came from."""
        error = failed.error
        whose = "the reference" if self.options.reference is not None else self.case.api
        note = f"pytest-ascend: {whose} raised this on the CPU, so there is nothing to compare with"
        if self.options.reference is None and isinstance(error, (NotImplementedError, AttributeError)):
            note += "; if it only runs on the NPU, give reference= a callable that computes the same on the CPU, or "
            note += "register one for all its tests: pytest_ascend.register_reference"
        if sys.version_info >= (3, 11):
            error.add_note(note)
        return error

    def _explain(self, failed: RunFailed) -> tuple[Verdict, str]:
        about = {"api": self.case.api, "dtype": self.case.dtype, "target": self.target.title(), "stage": failed.stage}
        return errors.explain(failed.error, **about)

    def _raised_on_target(self, failed: RunFailed) -> CheckResult:
        verdict, reason = self._explain(failed)
        if verdict is Verdict.INFRA:
            memory = ", ".join(f"{name} {size >> 20} MiB" for name, size in self.target.memory().items())
            self.notes.append(f"device memory: {memory}")
        if verdict is Verdict.CRASH and "same device" in str(failed.error):
            self.notes += _stowaways(self.case)
        self.notes.append(f"the target's error: {str(failed.error).strip()[:2000]}")
        return self._finish(verdict, reason)

    def _check_backward(self, reference: Reference) -> None:
        """An explicit ``backward=True`` must compare gradients; without it, gradients that can't be had are a note."""
        error = reference.own.backward_error
        sides = (side for side in (reference.golden, reference.benchmark) if side is not None)
        if all(side.backward_error is not None for side in sides) and error is not None:
            if self.options.backward is True:
                raise self._raised_on_cpu(RunFailed("backward", error))
            self.notes.append(f"no gradients were compared: the CPU's backward pass raised {errors.one_line(error)}")
        elif self.options.backward is True and not reference.own.gradients and not reference.golden.gradients:
            raise ValueError(
                f"backward=True, but no output of {self.case.api} depends on an input or parameter that requires grad"
            )

    def _backward_raised(
        self, raised: Exception, reference: Reference, relaid: Mapping[int, torch.Tensor], layout: str
    ) -> list[OutputResult]:
        """The backward pass raised on the target; no finding where the CPU's does in the same dtype and layout."""
        if reference.own.backward_error is not None:
            if reference.golden.backward_error is None:
                self.notes.append(f"no gradients were compared: neither side has them in {self.case.dtype}")
            return []
        if relaid:
            own = self._on_cpu(relaid, layout)
            if own is None or own.backward_error is not None:
                self.notes.append(f"layout {layout}: no gradients, the CPU's backward pass doesn't take it either")
                return []
        verdict, reason = self._explain(RunFailed("backward", raised))
        self.notes.append(f"the target's error: {str(raised).strip()[:2000]}")
        return [OutputResult("backward", verdict, Kind.gradient, reason, "fail")]

    # -- the result -----------------------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        environment = {**self.target.describe(initialised=True), "seed": self.setting.seed}
        if self.setting.autocast is not None:
            environment["autocast"] = str(self.setting.autocast).removeprefix("torch.")
        if self.options.reference is not None:
            environment["reference"] = references.name_of(self.options.reference)
        return {
            "api": self.case.api,
            "dtype": self.case.dtype,
            "criterion": self.criterion.name,
            "target": self.target.title(initialised=True),
            "notes": tuple(dict.fromkeys(self.notes)),
            "environment": environment,
        }

    def _finish(self, verdict: Verdict, reason: str) -> CheckResult:
        return CheckResult(verdict, None, reason, **self._about())

    def _exercised(self, result: CheckResult, seen: list[Capture]) -> CheckResult:
        """A pass that the target had no part in is no pass."""
        if result.verdict.outcome not in ("passed", "noted"):
            return result
        fell_back = ", ".join(dict.fromkeys(op for capture in seen for op in capture.fell_back))
        reason = ""
        if fell_back and self.case.module is not None:
            result = dataclasses.replace(result, notes=(*result.notes, f"on the CPU, not on the target: {fell_back}"))
        elif fell_back:
            reason = f"{fell_back} fell back to the CPU, so the CPU was compared with itself"
        elif seen and not any(capture.exercised for capture in seen):
            reason = f"{self.target.title()} did nothing: {self.case.api} computed on the CPU, or was given no device"
        if not reason:
            return result
        about = self._about()
        return CheckResult(Verdict.NOT_EXERCISED, None, reason, outputs=result.outputs, **about)


def _layers(case: Case, options: CheckOptions) -> tuple[str, ...]:
    """Names of the layers to compare."""
    if options.reference is not None:
        return ()
    module = case.root
    if module is not None:
        return choose(module, options.checkpoints)
    if options.checkpoints:
        raise ValueError(f"checkpoints= needs a model, and {case.api} is none")
    return ()


def _apart(output: OutputResult) -> bool:
    """Whether a failure is more than a zero's other sign."""
    return output.metrics is None or output.metrics.max_abs_error != 0


def _compiled_inside(case: Case) -> list[str]:
    """A note about layers that were compiled in place: a copy of a module is made without that."""
    module = case.root
    names = [
        name or type(inner).__name__
        for name, inner in (module.named_modules() if module is not None else ())
        if getattr(inner, "_compiled_call_impl", None) is not None
    ]
    if not names:
        return []
    what = "compiled in place, and compared as eager code; mode='compile' compares compiled code"
    return [f"{', '.join(names[:5])}: {what}"]


def _around(module: str, layers: Mapping[str, object]) -> str:
    """The innermost of the layers that a module lies in, or ``""``."""
    return max((name for name in layers if f"{module}.".startswith(f"{name}.")), key=len, default="")


def _in_layout(output: OutputResult, layout: str) -> OutputResult:
    return dataclasses.replace(output, path=f"{output.path} [{layout}]")


def _stowaways(case: Case) -> list[str]:
    """Tensors that a module holds without having registered them: ``Module.to`` leaves them on the CPU."""
    names = [
        f"{prefix}.{name}" if prefix else name
        for module in case.modules
        for prefix, inner in module.named_modules()
        for name, value in vars(inner).items()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    ]
    if not names:
        return []
    return [f"{', '.join(names[:5])} is no parameter or buffer, so Module.to leaves it on the CPU: register_buffer it"]


def seed_of_api(api: str) -> int:
    """The seed of a case that was given none, the same in every process."""
    return zlib.crc32(api.encode())
