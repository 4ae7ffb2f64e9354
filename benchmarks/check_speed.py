"""Judged forward cases per second: torch's own samples in float32, on the emulated device and one core.

    python benchmarks/check_speed.py [--samples 2] [--slowest 10]

Each case is what ``pytest_ascend.check(fn, *args)`` does without gradients: golden in float64, benchmark, the run on
the device, verdict. A check measures the conditioning (four more runs of the golden) only where the quick tests don't
settle the verdict, so there are two figures: as it is, and with the conditioning of every other case measured as well.
Making the samples isn't counted; samples with a result of more than 20,000 elements are left out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

import pytest_ascend as pa
from pytest_ascend.cases.case import Case
from pytest_ascend.check import check_case
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.observe import conditioning
from pytest_ascend.observe.capture import Setting
from pytest_ascend.observe.reference import Reference, leaves
from pytest_ascend.options import CheckOptions

WANTED = 150.0
MOST = 20_000
#: uninitialised memory: nothing to compare
SKIPPED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
ON = CheckOptions(target="emulated", backward=False, seed=0)


def cases(most: int) -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Up to ``most`` samples of each operator: name, callable, arguments, keyword arguments."""
    for op in op_db:
        if op.name in SKIPPED or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        try:
            made = [sample for sample, _ in zip(op.sample_inputs("cpu", torch.float32), range(most), strict=False)]
        except Exception:  # some need a library that isn't installed
            continue
        for sample in made:
            yield op.name, op.op, (sample.input, *sample.args), sample.kwargs


def is_small(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it runs, to no more than ``MOST`` elements."""
    try:
        result = fn(*args, **kwargs)
    except Exception:
        return False
    return all(leaf.numel() <= MOST for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor))


class Counted:
    """Counts the calls of ``conditioning``."""

    def __init__(self) -> None:
        self.calls, self.original = 0, conditioning.conditioning

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.original(*args, **kwargs)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2, help="of each operator (default: 2)")
    parser.add_argument("--slowest", type=int, default=5, help="operators to name (default: 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counted = conditioning.conditioning = Counted()
    pa.check(torch.mul, torch.randn(9), torch.randn(9), options=ON)  # loads what is loaded once
    verdicts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    took = cpu = extra = 0.0
    conditioned = added = 0
    odd: list[str] = []
    for name, fn, args, kwargs in cases(options.samples):
        if not is_small(fn, args, kwargs):
            continue
        before, start, start_cpu = counted.calls, time.perf_counter(), time.process_time()
        try:
            result = check_case(Case(fn, args, kwargs), ON)  # a sample may have an argument called `options`
        except Exception as error:
            verdicts[type(error).__name__] += 1
            odd.append(f"{name} {type(error).__name__}")
            continue
        seconds[name] += time.perf_counter() - start
        took, cpu = took + time.perf_counter() - start, cpu + time.process_time() - start_cpu
        verdicts[str(result.verdict)] += 1
        odd += [f"{name} {result.verdict}"] if result.verdict.outcome == "failed" else []
        if counted.calls > before:
            conditioned += 1
            continue
        case, setting = Case(fn, args, kwargs), Setting(0, False, start=0)
        try:
            golden = Reference.of(case, setting, Criterion.of("auto"), None).golden
            start = time.process_time()
            counted.original(case, setting, golden, None, leaves(golden).keys())
        except Exception:
            continue
        extra, added = extra + time.process_time() - start, added + 1
    n = verdicts.total()
    print(f"{n} forward cases of {len(seconds)} operators, float32, one thread, torch {torch.__version__}")
    print(f"verdicts: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.most_common())}")
    print(
        f"{n / took:7.1f} cases per second by the clock, {n / cpu:.1f} per second of CPU time; "
        f"{conditioned} measured their conditioning"
    )
    print(
        f"{n / (cpu + extra):7.1f} per second of CPU time with the conditioning of {added} others added "
        f"(wanted: >= {WANTED:.0f})"
    )
    print("failed: " + (", ".join(odd) or "none"))
    print("slowest: " + ", ".join(f"{name} {1e3 * t:.0f} ms" for name, t in seconds.most_common(options.slowest)))


if __name__ == "__main__":
    main()
