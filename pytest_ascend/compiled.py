"""A compiled call beside the eager one, on the same device.

Both are held against the CPU like any other case. Here they are held against each other. Where they differ by no more
than rounding may, as each of them is within its budget, the difference is told. What no rounding explains fails:
another structure, shape or dtype, NaN or infinity in other places. And where the compiled call is wrong, the eager one
says whether torch.compile made it so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.catalogue.compiled import Compiled, CompiledModule, log
from pytest_ascend.cases.transfer import same_bits
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.structure import widened
from pytest_ascend.judge.verdict import CheckResult, Kind, OutputResult, Verdict
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, caller_autocast, keep_rng, on_cpu, run
from pytest_ascend.observe.reference import Reference
from pytest_ascend.options import CheckOptions
from pytest_ascend.targets import resolve
from pytest_ascend.targets.base import Target

__all__ = ["beside_eager"]

_AT = "compiled against eager: "
_NOT_ROUNDING = {Kind.structure, Kind.shape, Kind.dtype, Kind.non_finite}


def beside_eager(case: Case, options: CheckOptions, result: CheckResult) -> CheckResult:
    """The result of a compiled case with what comes of comparing it with the eager call.

    Args:
        case: its callable comes from :func:`~pytest_ascend.cases.catalogue.compiled.compiled`.
        options: how it was checked.
        result: what came of it against the CPU.

    A compiled call whose results are of another kind than the eager ones fails; one of which no graph was compiled is
    NOT_EXERCISED; else the result stays what it is. Notes say what compiled it, and how the two compare.
    """
    assert isinstance(case.fn, (Compiled, CompiledModule))
    target, fn = resolve(options.target), case.fn.eager()
    before = log.graphs
    with keep_rng(target), on_cpu() as default_device:
        seed = options.seed or 0
        setting = Setting(seed, options.backward, caller_autocast(target), (), default_device, start=seed)
        try:
            eager = run(case, target, setting, fn=fn)
        except RunFailed as failed:
            return _noted(
                result, f"the eager call raised, so there is nothing to hold the compiled one against: {failed}"
            )
        try:
            compiled = run(case, target, setting)
        except RunFailed:
            return _noted(result, "the eager call runs: torch.compile's doing")
        how = _compiler(target)
        if log.graphs == before:
            reason = "torch.compile compiled nothing of it: what ran was the eager call"
            return dataclasses.replace(_noted(result, how), verdict=Verdict.NOT_EXERCISED, kind=None, reason=reason)
        if _same(eager, compiled):
            text = "it is the eager result to the bit"
            whose = ", so the failure is none of torch.compile's" if result.verdict.outcome == "failed" else ""
            return _noted(result, how, f"{text}{whose}")
        if eager.drew or compiled.drew or _draws(case, target, setting, fn, eager):
            return _noted(result, how, "random numbers differ from the eager call's: each was compared with the CPU")
        reference = Reference.of(case, setting, Criterion.of("auto"), fn)
        judged = dataclasses.replace(reference, benchmark=eager, yardsticks=None).judge(compiled, only_arguments=True)
    outputs = [dataclasses.replace(output, path=_AT + output.path) for output in judged.outputs]
    return _with(_noted(result, how), outputs, _apart(eager, compiled))


def _with(result: CheckResult, outputs: list[OutputResult], apart: str) -> CheckResult:
    """The result with those outputs of the direct comparison that no rounding explains."""
    if result.verdict.outcome == "failed":
        worse = any(output.verdict.outcome == "failed" for output in outputs)
        whose = "isn't as wrong: torch.compile's doing" if worse else "is about as wrong: none of torch.compile's doing"
        return _noted(result, f"the eager result {whose} ({apart})")
    failing = [
        dataclasses.replace(output, reason=f"compiled and eager differ: {output.reason}")
        for output in outputs
        if output.verdict is Verdict.FAIL and output.kind in _NOT_ROUNDING
    ]
    if not failing:
        return _noted(result, f"it differs from the eager result ({apart}), and each is within its budget")
    names = ("api", "dtype", "criterion", "target", "notes", "environment", "reproducer")
    about: dict[str, Any] = {name: getattr(result, name) for name in names}
    return CheckResult.of((*result.outputs, *failing), result.checkpoints.values(), **about)


def _apart(eager: Capture, compiled: Capture) -> str:
    """``at most 0.00195 apart``."""
    pairs = [(a, b) for a, b in zip(eager.tensors(), compiled.tensors(), strict=False) if a.shape == b.shape]
    apart = [(widened(a) - widened(b)).abs() for a, b in pairs]
    largest = max((float(one[one.isfinite()].max()) for one in apart if bool(one.isfinite().any())), default=0.0)
    return f"at most {largest:.3g} apart"


def _same(a: Capture, b: Capture) -> bool:
    mine, others = list(a.tensors()), list(b.tensors())
    return len(mine) == len(others) and all(
        one.dtype == other.dtype and one.shape == other.shape and same_bits(one, other)
        for one, other in zip(mine, others, strict=True)
    )


def _draws(case: Case, target: Target, setting: Setting, fn: Callable[..., Any], eager: Capture) -> bool:
    """Whether the eager call draws random numbers on the device: another seed gives another result."""
    other = dataclasses.replace(setting, seed=setting.seed + 1)
    return not _same(run(case, target, other, fn=fn), eager)


def _compiler(target: Target) -> str:
    if log.backend == "aot_eager":
        what = "has no compiler of its own, so its graphs were captured and run by eager kernels"
        return f"compiled with aot_eager: {target.title()} {what}"
    return f"compiled with {log.backend}"


def _noted(result: CheckResult, *notes: str) -> CheckResult:
    return dataclasses.replace(result, notes=(*result.notes, *notes))
