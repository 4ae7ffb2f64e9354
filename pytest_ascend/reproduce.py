"""A failure as a file that runs alone: the case made small, written down, and tried.

The file is run here once, by its own functions and in this process, before it is handed out: a file that doesn't fail
would be worse than none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import time
from typing import Any

import torch

from pytest_ascend.cases import references
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.layouts import relay_all
from pytest_ascend.cases.reproducer import Facts, NoScript, render
from pytest_ascend.cases.shrink import SECONDS, shrink, with_tensors
from pytest_ascend.check import check_case, seed_of_api, still_fails
from pytest_ascend.judge.verdict import CheckResult, Verdict
from pytest_ascend.observe.hearing import unheard
from pytest_ascend.options import LAYOUTS, CheckOptions
from pytest_ascend.targets import resolve

__all__ = ["NoScript", "script"]

_LAYOUT = re.compile(rf" \[({'|'.join(LAYOUTS)})\]$")
#: Seconds that one process spends on making cases small, in all.
_IN_ALL = 90.0
_spent = 0.0


def script(case: Case, options: CheckOptions, result: CheckResult, origin: str, home: str = "") -> str:
    """The text of a Python file that fails as the case does, as small as it could be made.

    Args:
        case: what failed.
        options: how it was checked.
        result: what came of it.
        origin: what the file says it was found by.
        home: the file of the test, loaded where an operator of torch's dispatcher isn't known without it.

    Raises:
        NoScript: there can be none; the message says why.
    """
    if result.verdict not in (Verdict.FAIL, Verdict.CRASH):
        raise NoScript(f"a {result.verdict} needs more than one call to show")
    if case.modules:
        raise NoScript("a model's weights don't go into a file")
    if options.reference is None and (found := references.of_case(case)) is not None:
        options = options.replace(reference=found)
    if options.seed is None:
        options = options.replace(seed=seed_of_api(case.api))
    case, options = _as_it_failed(case, options, result)
    whole = case, result
    tries = [whole] if (small := _small(*whole, options)) is None else [small, whole]
    reason: NoScript | None = None
    for one, of_it in tries:
        try:
            return _tried(one, options, of_it, origin, home)
        except NoScript as error:
            reason = error
    assert reason is not None
    raise reason


def _as_it_failed(case: Case, options: CheckOptions, result: CheckResult) -> tuple[Case, CheckOptions]:
    """The case in the layout in which it failed."""
    failing = [output.path for output in result.outputs if output.status == "fail"]
    layouts = [match[1] if (match := _LAYOUT.search(path)) else "as_given" for path in failing]
    if layouts and "as_given" not in layouts:
        new = relay_all(case.tensors, layouts[0])
        for tensor in case.tensors:
            if id(tensor) in new:
                new[id(tensor)].requires_grad_(tensor.requires_grad)
        case = with_tensors(case, new)
    return case, options.replace(layouts=("as_given",), repeats=1)


def _small(case: Case, result: CheckResult, options: CheckOptions) -> tuple[Case, CheckResult] | None:
    """The case made small, with its own result; None where that leads to nothing."""
    global _spent
    begun = time.monotonic()
    if _spent > _IN_ALL:
        return None
    crash = result.verdict is Verdict.CRASH
    try:
        found = shrink(case, lambda one: still_fails(one, options, crash=crash), SECONDS)
        if found is case:
            return None
        with unheard():
            of_it = check_case(found, options)
    except Exception:  # the search must never cost the result that it is about
        return None
    finally:
        _spent += time.monotonic() - begun
    return (found, of_it) if of_it.verdict is result.verdict else None


def _tried(case: Case, options: CheckOptions, result: CheckResult, origin: str, home: str) -> str:
    """The file's text, with its limits measured, once it has failed here."""
    target = resolve(options.target)
    backward = options.backward is not False and any(o.path.startswith("grad(") for o in result.outputs)
    facts = Facts(
        headline=next(iter(result.render())),
        origin=origin,
        device=str(target.device()),
        soc=str(target.describe().get("soc") or "Ascend910B"),
        seed=options.seed or 0,
        backward=backward,
        reference=options.reference,
        home=home,
    )
    try:
        facts = _measured(case, facts)
        text = render(case, facts)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = _loaded(text)["main"]()
    except NoScript:
        raise
    except Exception as error:
        raise NoScript(f"its file raised {type(error).__name__}: {str(error)[:200]}") from error
    if code != 1:
        raise NoScript("alone, the call doesn't fail")
    return text


def _loaded(text: str) -> dict[str, Any]:
    """The names of a file that was executed, without its last lines."""
    names: dict[str, Any] = {"__name__": "reproducer"}
    exec(compile(text, "<reproducer>", "exec"), names)
    return names


def _measured(case: Case, facts: Facts) -> Facts:
    """The facts with a limit for each result, and the precision that the CPU can compute in."""
    names = _loaded(render(case, facts))
    call, error = names["call"], names["error"]
    own: dict[str, torch.Tensor] | None = None
    raised = False
    with contextlib.suppress(Exception):
        own = call(names["on_cpu"], "cpu", False)
    try:
        golden = call(names["on_cpu"], "cpu", True)
    except Exception:
        if own is None:
            raise
        golden, facts = own, dataclasses.replace(facts, wide=False)
    try:
        actual = call(names["on_device"], facts.device)
    except Exception:  # it is the failure
        actual, raised = (golden if own is None else own), True
    limits: dict[str, tuple[str | None, float]] = {}
    ratios: dict[str, tuple[float, float, float]] = {}
    for name, value in golden.items():
        benchmark = None if own is None else own.get(name)
        dtype = None if benchmark is None else str(benchmark.dtype)
        here = actual.get(name)
        if here is None or here.shape != value.shape:
            limits[name] = dtype, 0.0
            continue
        seen, explained = error(value, here), 0.0 if benchmark is None else error(value, benchmark)
        limits[name] = dtype, _limit(seen, max(explained, _rounding(value, here)))
        ratios[name] = (seen / max(explained, 1e-300), seen, explained)
    told = raised or any(seen > limits[name][1] for name, (_, seen, _) in ratios.items())
    if not told and ratios:
        name = max(ratios, key=lambda one: ratios[one][0])
        _, seen, explained = ratios[name]
        limits[name] = limits[name][0], _short(max(0.9 * seen, min(explained, 0.99 * seen)))
    return dataclasses.replace(facts, limits=limits)


def _limit(seen: float, explained: float) -> float:
    """A limit between what rounding explains and what was seen, where those are apart; else above both."""
    if explained == 0 or not math.isfinite(explained):
        return 0.0 if explained == 0 else explained
    if seen > 4 * explained:
        return _short(math.sqrt(explained * seen) if math.isfinite(seen) else 16 * explained)
    return _short(4 * max(seen, explained))


def _rounding(golden: torch.Tensor, actual: torch.Tensor) -> float:
    """The distance of neighbours at the largest element; 0 for integers."""
    if not (actual.is_floating_point() or actual.is_complex()) or not golden.numel():
        return 0.0
    size = golden.abs().double()
    size = size[size.isfinite()]
    return float(size.max()) * torch.finfo(actual.dtype).eps if size.numel() else 0.0


def _short(value: float) -> float:
    return float(f"{value:.3g}")
