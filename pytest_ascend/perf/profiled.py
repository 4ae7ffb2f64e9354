"""What the operators of a call cost, under torch's profiler and never while time is measured."""

from __future__ import annotations

import contextlib

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.observe.capture import caller_autocast, keep_rng, on_cpu
from pytest_ascend.perf import torch_profiler
from pytest_ascend.perf.operators import OperatorTable
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.perf.quiet import Refused, quiet
from pytest_ascend.perf.workload import Workload
from pytest_ascend.targets.base import Target

__all__ = ["profiled"]


def profiled(case: Case, target: Target, options: PerfOptions) -> OperatorTable:
    """Call a case ten times on a target, under the profiler.

    Raises:
        Refused: torch's profiler doesn't see this target's operators, or something else watches the program.
        Exception: what the workload raised.
    """
    if target.name not in ("cpu", "cuda") and not (target.name == "npu" and target.emulated):
        raise Refused(f"torch.profiler doesn't see {target.title()}'s operators: profile them with torch_npu.profiler")
    with contextlib.ExitStack() as stack:
        stack.enter_context(keep_rng(target))
        stack.enter_context(quiet(options.threads))
        stack.enter_context(target.activate())
        default = stack.enter_context(on_cpu())
        workload = Workload(case, target, options)
        autocast = caller_autocast(target)
        if autocast is not None:
            stack.enter_context(torch.autocast(target.name, dtype=autocast))
        if default is not None and target.name != "cpu":
            stack.enter_context(default)
        workload.first()()
        target.synchronize()
        workload.settle()
        return torch_profiler.profile(lambda: workload.batch(1)[0](), device="cuda" if target.name == "cuda" else "cpu")
