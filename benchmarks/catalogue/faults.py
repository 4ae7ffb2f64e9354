"""Would the catalogue notice? Faults planted in 40 operators of the emulated device, 24 of them only for one layout,
dtype or size class; each must fail ``pytest --ascend-compare --ascend-api API``, and none may without the fault.

    python benchmarks/catalogue/faults.py [--only softmax,exp] [--quick]

For each fault it runs that command on a device that has it, up to the first failure, with ``--ascend-reproducers``;
then the file that the failure left, in a process of its own. That must fail on the device with the fault, pass on one
without it, and hold no more than 64 elements, or 64 more than the fault needs to show. ``--quick``: the cases alone, in
this process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import pytest_ascend as pa
from pytest_ascend.cases.catalogue import choose
from pytest_ascend.cases.catalogue.caselist import CaseList, load
from pytest_ascend.check import check_case
from pytest_ascend.options import CheckOptions
from pytest_ascend.settings import Settings

Args = tuple[Any, ...]
WISH = choose.Wish.of(Settings(dtypes="float32,float16,bfloat16"))


@dataclass(frozen=True)
class Fault:
    """A wrong kernel.

    Attributes:
        op: the operator of the device that is replaced, without ``aten::``.
        api: the API whose cases must notice.
        damage: gets the right result and the arguments, returns the wrong result.
        only: when the kernel is wrong; always without it. Its name says when.
        needs: how many elements an argument must have for it to be wrong.
    """

    op: str
    api: str
    damage: Callable[[Any, Args], Any]
    only: Callable[[Args], bool] | None = None
    needs: int = 0

    @property
    def when(self) -> str:
        return self.only.__name__.strip("_").replace("_", " ") if self.only is not None else "always"

    def kernel(self, *args: Any, **kwargs: Any) -> Any:
        right = getattr(torch.ops.aten, self.op)(*args, **kwargs)
        return self.damage(right, args) if self.only is None or self.only(args) else right


# -------------------------------------------------------------------------------------------------- when it is wrong


def _tensors(args: Args) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(tuple(arg))


def transposed(args: Args) -> bool:
    return any(t.dim() > 1 and t.numel() and t.stride(-1) > t.stride(-2) > 0 for t in _tensors(args))


def with_gaps_between_rows(args: Args) -> bool:
    return any(t.dim() > 1 and t.numel() and t.stride(-1) == 1 and t.stride(-2) > t.shape[-1] for t in _tensors(args))


def with_stride_0(args: Args) -> bool:
    return any(0 in t.stride() and t.numel() > 1 for t in _tensors(args))


def channels_last(args: Args) -> bool:
    return any(
        t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()
        for t in _tensors(args)
    )


def without_dimensions(args: Args) -> bool:
    return all(t.dim() == 0 for t in _tensors(args))


def in_float32(args: Args) -> bool:
    return next(_tensors(args)).dtype is torch.float32


def in_float16(args: Args) -> bool:
    return next(_tensors(args)).dtype is torch.float16


def in_bfloat16(args: Args) -> bool:
    return next(_tensors(args)).dtype is torch.bfloat16


def beyond_65535_elements(args: Args) -> bool:
    return any(t.numel() > 65535 for t in _tensors(args))


def beyond_1000_columns(args: Args) -> bool:
    return any(t.dim() and t.shape[-1] > 1000 for t in _tensors(args))


def from_16_columns_unless_a_multiple(args: Args) -> bool:
    return any(t.dim() and t.shape[-1] > 16 and t.shape[-1] % 16 for t in _tensors(args))


# ------------------------------------------------------------------------------------------------------ what is wrong


def _of_results(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Args], Any]:
    def damage(right: Any, args: Args) -> Any:
        if isinstance(right, (tuple, list)):
            return type(right)([change(right[0]), *right[1:]])
        return change(right)

    return damage


@_of_results
def last_unwritten(x: torch.Tensor) -> torch.Tensor:
    """The last column keeps what was in memory before."""
    x = x.clone()
    if x.dim() and x.numel():
        x[..., -1] = 0 if x.dtype is not torch.bool else False
    return x


@_of_results
def scaled(x: torch.Tensor) -> torch.Tensor:
    """Everything by 2 % too large: a constant is wrong."""
    return x * 1.02


@_of_results
def through_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """The unit computes in fewer bits."""
    return x.to(torch.bfloat16).to(x.dtype) if x.dtype is not torch.bfloat16 else x * (1 + 2**-6)


@_of_results
def rows_swapped(x: torch.Tensor) -> torch.Tensor:
    """A wrong index: the elements are all there, by one place off."""
    return x.roll(1, -1) if x.dim() else x + 1


@_of_results
def sign_lost(x: torch.Tensor) -> torch.Tensor:
    """The sign bit is dropped."""
    return x.abs()


@_of_results
def not_a_number(x: torch.Tensor) -> torch.Tensor:
    """One NaN."""
    x = x.clone()
    if x.numel():
        x.view(-1)[x.numel() // 2] = float("nan")
    return x


FAULTS = (
    # one layout
    Fault("_softmax", "torch.softmax", rows_swapped, transposed),
    Fault("exp", "torch.exp", rows_swapped, transposed),
    Fault("mm", "torch.mm", rows_swapped, transposed),
    Fault("cumsum", "torch.cumsum", rows_swapped, with_gaps_between_rows),
    Fault("silu", "torch.nn.functional.silu", scaled, with_gaps_between_rows),
    Fault("mul", "torch.mul", rows_swapped, with_stride_0),
    Fault("amax", "torch.amax", scaled, with_stride_0),
    Fault("_adaptive_avg_pool2d", "torch.nn.functional.adaptive_avg_pool2d", rows_swapped, channels_last),
    Fault("upsample_nearest2d", "torch.nn.functional.interpolate", rows_swapped, channels_last),
    Fault("floor", "torch.floor", scaled, without_dimensions),
    # one dtype
    Fault("tanh", "torch.tanh", through_bfloat16, in_bfloat16),
    Fault("native_layer_norm", "torch.nn.functional.layer_norm", through_bfloat16, in_float16),
    Fault("log", "torch.log", through_bfloat16, in_float32),
    Fault("sigmoid", "torch.sigmoid", through_bfloat16, in_float16),
    Fault("logsumexp", "torch.logsumexp", through_bfloat16, in_float32),
    Fault("addmm", "torch.addmm", through_bfloat16, in_bfloat16),
    Fault("reciprocal", "torch.reciprocal", through_bfloat16, in_float16),
    # one class of sizes
    Fault("sqrt", "torch.sqrt", last_unwritten, beyond_65535_elements, 65536),
    Fault("sin", "torch.sin", last_unwritten, beyond_65535_elements, 65536),
    Fault("sum", "torch.sum", scaled, beyond_1000_columns, 1001),
    Fault("sort", "torch.sort", rows_swapped, beyond_1000_columns, 1001),
    Fault("add", "torch.add", last_unwritten, from_16_columns_unless_a_multiple),
    Fault("bmm", "torch.bmm", last_unwritten, from_16_columns_unless_a_multiple),
    Fault("_log_softmax", "torch.log_softmax", last_unwritten, from_16_columns_unless_a_multiple),
    Fault("relu", "torch.nn.functional.relu", last_unwritten, from_16_columns_unless_a_multiple),
    Fault("cos", "torch.cos", last_unwritten, from_16_columns_unless_a_multiple),
    # always
    Fault("gather", "torch.gather", last_unwritten),
    Fault("abs", "torch.abs", scaled),
    Fault("neg", "torch.neg", sign_lost),
    Fault("div", "torch.div", through_bfloat16),
    Fault("erf", "torch.erf", scaled),
    Fault("mean", "torch.mean", not_a_number),
    Fault("prod", "torch.prod", scaled),
    Fault("var", "torch.var", scaled),
    Fault("index_select", "torch.index_select", rows_swapped),
    Fault("where", "torch.where", last_unwritten),
    Fault("avg_pool2d", "torch.nn.functional.avg_pool2d", scaled),
    Fault("convolution", "torch.nn.functional.conv2d", scaled),
    Fault("embedding", "torch.nn.functional.embedding", rows_swapped),
    Fault("triu", "torch.triu", last_unwritten),
    Fault("flip", "torch.flip", rows_swapped),
    Fault("linalg_vector_norm", "torch.linalg.vector_norm", scaled),
    Fault("maximum", "torch.maximum", not_a_number),
    Fault("hardswish", "torch.nn.functional.hardswish", scaled),
)


def found(fault: Fault, listed: CaseList) -> str | None:
    """The first case that fails with the fault; None where the catalogue misses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pa.emulator.override(f"aten::{fault.op}", fault.kernel):
            return first_failure(fault.api, listed)


def first_failure(api: str, listed: CaseList) -> str | None:
    """The first case of an API that fails, with its verdict; None where all pass."""
    for entry in listed.entries:
        if entry.api != api:
            continue
        for pending in choose.cases(entry, WISH):
            case, options = pending.build()
            asked = {"target": "emulated", "seed": zlib.crc32(pending.id.encode()), **options}
            result = check_case(case, CheckOptions(**asked))
            if result.verdict.outcome == "failed":
                return f"{pending.id} {result.verdict}" + (f" ({result.kind})" if result.kind else "")
    return None


@dataclass(frozen=True)
class Found:
    """What the command made of a fault.

    Attributes:
        case: the case that failed first, or "" where none did.
        kind: of the failure.
        elements: of the inputs of the file that it left, in memory; None without a file.
        broken, healthy: the file's exit status on the device with the fault, and on one without.
        problem: what is wrong with all of this, or "".
    """

    case: str = ""
    kind: str = ""
    elements: int | None = None
    broken: int | None = None
    healthy: int | None = None
    problem: str = ""


LARGEST = 64
HERE = Path(__file__).resolve().parent


def by_command(fault: Fault, scratch: Path) -> Found:
    """Run the command on a device with the fault, then the file that its first failure left."""
    folder = scratch / fault.op
    folder.mkdir()
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PLANTED": fault.op, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pytest", "-p", "planted", "-p", "no:cacheprovider", "-q", "-x"]
    command += ["--ascend-compare=emulated", f"--ascend-api={fault.api}", "--ascend-dtypes=float32,float16,bfloat16"]
    command += ["--ascend-reproducers=scripts", "--ascend-json=results.json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if not (folder / "results.json").exists():
        return Found(problem=f"pytest wrote no results: {(done.stdout + done.stderr)[-500:]}")
    results = json.loads((folder / "results.json").read_text())["results"]
    failed = next((one for one in results if one["outcome"] == "failed"), None)
    if failed is None or done.returncode != 1:
        return Found(problem=f"not found by {len(results)} cases")
    case, kind = failed["nodeid"].partition("::")[2], failed["kind"] or failed["verdict"]
    if not failed["script"]:
        return Found(case, kind, problem="no file that fails alone")
    alone = [sys.executable, str(HERE / "planted.py"), fault.op, str(folder / failed["script"])]
    done = subprocess.run(alone, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        return Found(case, kind, problem=f"its file raised {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")
    said = json.loads(done.stdout.splitlines()[-1])
    problems = [
        "its file doesn't fail" if said["broken"] != 1 else "",
        "its file fails without the fault" if said["healthy"] != 0 else "",
        "its file is large" if said["elements"] > LARGEST + fault.needs else "",
    ]
    return Found(case, kind, **said, problem=", ".join(filter(None, problems)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators, comma separated; default: all")
    parser.add_argument("--quick", action="store_true", help="the cases alone, in this process, without reproducers")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    warnings.simplefilter("ignore")
    listed = load()
    chosen = [fault for fault in FAULTS if not only or fault.op in only]
    start = time.monotonic()
    missed = quick(chosen, listed) if arguments.quick else whole(chosen)
    alarms = []
    for api in sorted({fault.api for fault in chosen}):
        if by := first_failure(api, listed):
            print(f"FALSE ALARM  {by}", flush=True)
            alarms.append(by)
    what = "found" if arguments.quick else "found and reproduced"
    print(
        f"{len(chosen) - len(missed)} of {len(chosen)} faults {what}, "
        f"{sum(f.only is not None for f in chosen)} of them conditional; {len(alarms)} APIs fail without one; "
        f"{time.monotonic() - start:.0f} s"
    )
    sys.exit(bool(missed or alarms))


def quick(chosen: list[Fault], listed: CaseList) -> list[str]:
    """Operators whose faults no case notices."""
    missed = []
    for fault in chosen:
        by = found(fault, listed)
        print(f"{'found ' if by else 'MISSED'}  {fault.op:<22} {fault.when:<34} {by or ''}", flush=True)
        missed += [] if by else [fault.op]
    return missed


def whole(chosen: list[Fault]) -> list[str]:
    """Operators whose faults the command misses, or whose reproducers aren't what they should be."""
    missed = []
    print(f"{'':<10}{'operator':<21} {'wrong':<33} {'elements':>8} {'exit':>4} {'healthy':>7}  first case that fails")
    with tempfile.TemporaryDirectory() as name:
        for fault in chosen:
            seen = by_command(fault, Path(name))
            numbers = (seen.elements, seen.broken, seen.healthy)
            elements, broken, healthy = ("-" if number is None else number for number in numbers)
            word = "WRONG" if seen.problem and seen.case else "MISSED" if seen.problem else "found"
            print(
                f"{word:<10}{fault.op:<21} {fault.when:<33} {elements:>8} {broken:>4} {healthy:>7}  "
                f"{seen.case} ({seen.kind}){f': {seen.problem}' if seen.problem else ''}",
                flush=True,
            )
            missed += [fault.op] if seen.problem else []
    return missed


if __name__ == "__main__":
    main()
