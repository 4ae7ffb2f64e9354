"""Two nested structures of tensors or arrays, judged leaf by leaf: no device, no test framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_ascend.judge.metrics import measure
from pytest_ascend.judge.places import with_pattern
from pytest_ascend.judge.standards import Criterion, Exactness, judge
from pytest_ascend.judge.structure import (
    Pair,
    StructureError,
    UnsupportedTensor,
    as_tensor,
    describe,
    dtype_name,
    pair,
    same_object,
)
from pytest_ascend.judge.verdict import CheckResult, Kind, Metrics, OutputResult, Verdict


def compare(
    golden: Any,
    actual: Any,
    *,
    benchmark: Any = None,
    criterion: str | Criterion = "auto",
    cosine: float | None = None,
    max_abs: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    exact_dtype: bool = True,
    api: str = "compare",
    root: str = "output",
) -> CheckResult:
    """Compare ``actual`` with ``golden``: tensors, arrays, numbers, or any nesting of them.

    ``benchmark`` is the same result computed on the CPU in the actual's own dtype; with it ``auto`` asks the actual
    to be about as good, and without it only the per-dtype table counts. ``golden`` may be float64 where the actual is
    not; any other difference in dtype fails unless ``exact_dtype`` is False. A mismatch never raises: see the
    result's verdict.

    Raises ValueError for an unknown criterion or a threshold that can't be one.
    """
    rule = Criterion.of(criterion, cosine=cosine, max_abs=max_abs, rtol=rtol, atol=atol)
    outputs = judge_tree(golden, actual, benchmark, rule, root, exact_dtype=exact_dtype)
    if any(output.status != "pass" for output in outputs):
        outputs = _with_patterns(outputs, golden, actual, benchmark, rule, root)
    dtypes = [o.dtype for o in outputs if o.metrics is not None]
    # What computed the result is told by its floating outputs rather than by an index or a mask.
    floating = [d for d in dtypes if "float" in d or "complex" in d]
    dtype = next(iter([*floating, *dtypes]), "")
    return CheckResult.of(outputs, api=api, dtype=dtype, criterion=rule.name)


def _with_patterns(
    outputs: tuple[OutputResult, ...], golden: Any, actual: Any, benchmark: Any, criterion: Criterion, root: str
) -> tuple[OutputResult, ...]:
    try:
        pairs = {p.path: p for p in pair(golden, actual, root)[0]}
        yardsticks = _yardsticks(golden, benchmark, root)
    except StructureError:
        return outputs
    return tuple(
        with_pattern(o, pairs[o.path].golden, pairs[o.path].actual, yardsticks.get(o.path), criterion)
        if o.path in pairs
        else o
        for o in outputs
    )


def judge_tree(
    golden: Any,
    actual: Any,
    benchmark: Any = None,
    criterion: str | Criterion = "auto",
    root: str = "output",
    expected_dtype: torch.dtype | None = None,
    *,
    exact_dtype: bool = True,
    exact: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], Exactness] | None = None,
) -> tuple[OutputResult, ...]:
    """Judge every leaf, in the golden's order; structural mismatches come first.

    Each pair is judged in this order: structure, shape, dtype, NaN and infinities, exactness, the numeric criterion.
    The dtype must be ``expected_dtype`` where given, else the benchmark's, else the golden's unless that is the wider
    float64 or complex128. ``exact`` tells of a golden, its benchmark and the actual how much must be equal bit for bit.
    A benchmark with another structure or shape than the golden is left out where they differ.

    Raises ValueError for an unknown criterion; never for a mismatch.
    """
    rule = Criterion.of(criterion)
    try:
        pairs, mismatches = pair(golden, actual, root)
        yardsticks = _yardsticks(golden, benchmark, root)
    except StructureError as error:
        return (_fail(root, Kind.structure, str(error)),)
    results = [_fail(m.path, Kind.structure, m.reason) for m in mismatches]
    expected = expected_dtype if exact_dtype else None
    results += [_judge_pair(p, yardsticks.get(p.path), rule, expected, exact_dtype, exact) for p in pairs]
    return tuple(results)


def _yardsticks(golden: Any, benchmark: Any, root: str) -> dict[str, Any]:
    if benchmark is None:
        return {}
    pairs, _ = pair(golden, benchmark, root)
    return {p.path: p.actual for p in pairs}


def _judge_pair(
    p: Pair,
    yardstick: Any,
    criterion: Criterion,
    expected: torch.dtype | None,
    exact_dtype: bool,
    exact: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], Exactness] | None,
) -> OutputResult:
    try:
        golden, actual = as_tensor(p.golden), as_tensor(p.actual)
        benchmark = None if yardstick is None else as_tensor(yardstick)
    except UnsupportedTensor as error:
        return OutputResult(p.path, Verdict.UNSUPPORTED, None, str(error))
    if golden is None or actual is None:
        return _judge_object(p, yardstick, golden, actual)
    dtype = _dtype(p.actual, actual)
    name, shape = dtype_name(dtype), tuple(actual.shape)
    if _layout(p.golden) != _layout(p.actual):
        reason = f"golden is {describe(p.golden)}, actual is {describe(p.actual)}"
        return _fail(p.path, Kind.structure, reason, name, shape)
    if golden.shape != actual.shape:
        reason = f"golden has shape {tuple(golden.shape)}, actual has {shape}"
        return _fail(p.path, Kind.shape, reason, name, shape)
    if benchmark is not None and benchmark.shape != golden.shape:
        benchmark, yardstick = None, None
    if exact_dtype:
        golden_dtype = _dtype(p.golden, golden)
        dtype_wanted = expected or (golden_dtype if yardstick is None else _dtype(yardstick, benchmark))
        wider = expected is None and yardstick is None and _is_wider(golden_dtype, dtype)
        if dtype != dtype_wanted and not wider:
            reason = f"expected {dtype_name(dtype_wanted)}, actual is {name}"
            return _fail(p.path, Kind.dtype, reason, name, shape, measure(golden, actual))
    # Python numbers are float64 whatever computed them, and float32 is the most that a target computes in.
    working = torch.float32 if type(p.actual) is float else None
    wanted = Exactness.NOTHING if exact is None else exact(golden, benchmark, actual)
    found = judge(golden, actual, benchmark, criterion, exact=wanted, working_dtype=working)
    return OutputResult(p.path, found.verdict, found.kind, found.reason, found.status, name, shape, found.metrics)


def _judge_object(p: Pair, yardstick: Any, golden: torch.Tensor | None, actual: torch.Tensor | None) -> OutputResult:
    if p.golden is None and p.actual is None:
        return OutputResult(p.path, Verdict.PASS)
    sides = f"golden is {describe(p.golden)}, actual is {describe(p.actual)}"
    if (golden is None) != (actual is None):
        return _fail(p.path, Kind.structure, sides)
    equal = same_object(p.golden, p.actual)
    if equal is False and yardstick is not None:
        # The golden ran in float64, so what tells the dtype apart is right when the benchmark says the same.
        equal = same_object(yardstick, p.actual)
    if equal is None:
        reason = f"a {type(p.golden).__name__} has no values that can be compared: return its tensors"
        return OutputResult(p.path, Verdict.NOT_COMPARABLE, None, reason, "warning")
    return OutputResult(p.path, Verdict.PASS) if equal else _fail(p.path, Kind.exact, sides)


def _fail(
    path: str,
    kind: Kind,
    reason: str,
    dtype: str = "",
    shape: tuple[int, ...] = (),
    metrics: Metrics | None = None,
) -> OutputResult:
    return OutputResult(path, Verdict.FAIL, kind, reason, "fail", dtype, shape, metrics)


def _dtype(value: Any, tensor: torch.Tensor | None) -> torch.dtype:
    """The dtype a person sees: a quantized tensor's own, not that of its dequantized values."""
    dtype = value.dtype if isinstance(value, torch.Tensor) else tensor.dtype if tensor is not None else None
    assert isinstance(dtype, torch.dtype)
    return dtype


def _layout(value: Any) -> torch.layout:
    return value.layout if isinstance(value, torch.Tensor) else torch.strided


def _is_wider(golden: torch.dtype, actual: torch.dtype) -> bool:
    if golden == torch.float64:
        return actual.is_floating_point
    return golden == torch.complex128 and actual.is_complex
