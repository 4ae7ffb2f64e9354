"""What the operators of a call cost, under torch's profiler and never while time is measured."""

from __future__ import annotations

from pytest_ascend.cases.case import Case
from pytest_ascend.perf import torch_profiler
from pytest_ascend.perf.operators import OperatorTable
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.perf.quiet import Refused
from pytest_ascend.perf.workload import prepared
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
    with prepared(case, target, options) as workload:
        workload.first()()
        target.synchronize()
        workload.settle()
        return torch_profiler.profile(lambda: workload.batch(1)[0](), device="cuda" if target.name == "cuda" else "cpu")
