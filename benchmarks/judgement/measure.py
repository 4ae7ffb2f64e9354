"""How often a criterion is wrong: right results it blames and planted faults it lets pass, over torch's sample inputs.

Every operator of ``torch.testing._internal.common_methods_invocations.op_db`` is judged on the emulated device with a
few of its own sample inputs, in float32, float16 and bfloat16, forward and backward. rights.py makes the *right* runs,
faults.py, reading_faults.py and kernel_faults.py plant the *faults* (``--list`` names them), criteria.py holds the
rules that are compared.

A right result that fails is a false alarm, a fault that fails is caught. What passes with a note (MARGINAL, MODE_DIFF,
AMPLIFIED) counts as passed and is printed beside. Not counted are

- faults that leave the result as it was, or bring every element they change at least as near to the golden;
- faults after which every element is one of the two numbers next to the golden, where fewer than 16 elements have
  changed or where it is the accumulator that had few bits: nobody can tell them from a right result;
- right runs with the inputs a fault needs (``other inputs``) that are bit by bit what the CPU computes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import kernel_faults
import reading_faults
from criteria import CRITERIA, verdicts
from faults import FAULTS, Fault, Planted
from pytest_ascend.cases.case import Case
from pytest_ascend.check import check_case
from pytest_ascend.observe.capture import Capture, RunFailed, keep_rng
from pytest_ascend.observe.reference import leaves
from pytest_ascend.options import CheckOptions
from pytest_ascend.targets import resolve
from rights import rights
from samples import DTYPES, Bench, Sample, dropouts, generator_of, samples, usable
from tally import Tally, compact, show, show_kinds, worse

__all__ = ["CRITERIA", "main", "measure"]

_REGISTERED = (reading_faults, kernel_faults)  # importing them enters their kinds into FAULTS
#: Their eigenvalues come in any order, and those of real matrices together with their conjugates.
SPECTRA = ("linalg.eig", "linalg.eigvals")
#: In float32 a faulty input may leave the value as it is but for a few last bits (the determinant of a transpose).
ROOM = 4.0
#: How many of the kinds that fit every operator one sample gets: of the forward, and of the backward pass.
DEALT, DEALT_GRADIENTS = 14, 3


def measure(
    dtype: torch.dtype,
    *,
    ops: str = "*",
    count: int = 2,
    kinds: str = "*",
    seed: int = 0,
    larger: int = 0,
    part: tuple[int, int] = (0, 1),
) -> Tally:
    """Judge everything of one dtype; the arguments are those of the command line."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    tally, start = Tally(), time.perf_counter()
    found = [*samples(dtype, ops, count, seed=seed, larger=larger, part=part)]
    if part[0] == 0:
        found += dropouts(dtype, ops, seed)
    for sample in found:
        with keep_rng(resolve("emulated")):
            _judge(tally, sample, kinds, f"{dtype} {seed} {sample.number}")
    tally.seconds = time.perf_counter() - start
    return tally


def _judge(tally: Tally, sample: Sample, kinds: str, number: str) -> None:
    bench: Bench | None = None
    if not sample.extra:
        bench = _bench(tally, sample)
        if bench is None:
            return
        tally.samples += 1
        _judge_rights(tally, bench)
        _time(tally, sample)
    forward = bench if sample.backward is False else None
    for kind in _dealt(sample, number, kinds):
        plain = sample if kind.gradients else sample.forward()
        try:
            planted = kind.plant(plain, generator_of(sample.name, kind.name, number))
        except Exception as error:
            tally.skip(f"{sample.name} ({kind.name})", error)
            continue
        if planted is None:
            continue
        if planted.sample is not None:
            on = _bench(tally, planted.sample, kind.name)
        elif kind.gradients:
            on = bench = bench or _bench(tally, sample)
        else:
            on = forward = forward or _bench(tally, plain)
        if on is not None:
            _plant(tally, on, kind, planted)


def _bench(tally: Tally, sample: Sample, what: str = "sample") -> Bench | None:
    """The sample's CPU side; None where the CPU doesn't take it or there is nothing to compare."""
    try:
        bench = Bench(sample)
        return bench if usable(bench) else None
    except Exception as error:
        tally.skip(f"{sample.name} ({what})", _inner(error))
        return None


def _dealt(sample: Sample, number: str, pattern: str) -> list[Fault]:
    """The kinds this sample gets; all that match where a pattern asks for some."""
    matching = [f for f in FAULTS.values() if fnmatch.fnmatch(f.name, pattern)]
    if sample.extra or sample.random:
        return [f for f in matching if (f.rare if sample.extra else "dropout" in f.name)]
    if pattern != "*":
        return matching
    chance = generator_of(sample.name, number)
    dealt = [f for f in matching if not f.common]
    for gradients, count in ((False, DEALT), (True, DEALT_GRADIENTS if sample.backward else 0)):
        common = [f for f in matching if f.common and f.gradients is gradients]
        dealt += chance.sample(common, min(count, len(common)))
    return dealt


def _inner(error: Exception) -> Exception:
    return error.error if isinstance(error, RunFailed) else error


# --- right runs ------------------------------------------------------------------------------------------------------


def _judge_rights(tally: Tally, bench: Bench) -> None:
    for kind, fn, around in rights(bench):
        with around():
            try:
                actual = bench.run(fn) if kind != "emulator" else bench.emulated()
            except Exception as error:
                if not isinstance(_inner(error), LookupError):
                    tally.skip(f"{bench.sample.name} ({kind})", _inner(error))
                continue
            own = bench.reference.own
            if kind == "decomposition" and not _alike(actual, own):
                continue  # other dtypes or shapes than the operator's own
            if kind == "hf32" and _same(actual, bench.emulated()):
                continue  # nothing in it has the mode
            _count_right(tally, bench, kind, fn, actual)


def _count_right(tally: Tally, bench: Bench, kind: str, fn: Any, actual: Capture) -> None:
    try:
        tally.right(bench.sample.name, kind, verdicts(bench, fn, actual), not _same(actual, bench.reference.own))
    except Exception as error:
        tally.broken.append(f"{bench.sample.name} ({kind}): {type(error).__name__} {error}"[:200])


def _time(tally: Tally, sample: Sample) -> None:
    """One whole check of the forward pass: golden, benchmark, device, conditioning, verdict."""
    start = time.perf_counter()
    try:
        check_case(
            Case(sample.fn, sample.args, sample.kwargs, api=sample.name),
            CheckOptions(target="emulated", backward=False, seed=0),
        )
    except Exception:
        return
    tally.checked += 1
    tally.checking += time.perf_counter() - start


# --- faults ----------------------------------------------------------------------------------------------------------


def _plant(tally: Tally, bench: Bench, kind: Fault, planted: Planted) -> None:
    what = f"{bench.sample.name} ({kind.name})"
    try:
        own = bench.emulated()
        with planted.around():
            actual = bench.run(planted.fn)
    except Exception as error:  # the fault makes the operator raise
        tally.skip(what, _inner(error))
        return
    if kind.name == "saturation hidden" and not _overflows_alike(bench.reference.golden, own):
        return  # an intermediate overflowed, which depends on the order of the operations
    if not bench.sample.random and not _counts(kind.name, bench.reference.golden, actual, own):
        return
    if bench.sample.name in SPECTRA and _same_spectrum(actual, own):
        return
    if planted.sample is not None and not _same(own, bench.reference.own):
        _count_right(tally, bench, "other inputs", bench.sample.fn, own)
    with planted.around():
        try:
            tally.fault(bench.sample.name, kind.name, verdicts(bench, planted.fn, actual))
        except Exception as error:
            tally.broken.append(f"{what}: {type(error).__name__} {error}"[:200])


def _counts(kind: str, golden: Capture, actual: Capture, own: Capture) -> bool:
    """Whether a fault can be told from a right result at all."""
    if kind == "sign of zero":
        return not _same(actual, own, signed=True)
    if _same(actual, own):
        return False
    exact, right, here = leaves(golden), leaves(own), leaves(actual)
    if kind == "NaN in one element" and any(path.startswith("output.LD") for path in exact):
        return False  # one of its triangles holds anything
    changed, nearer, beside, drowned, twice = 0, True, True, True, True
    for path, value in here.items():
        if path not in exact or path not in right or not value.shape == right[path].shape == exact[path].shape:
            return True
        value, before, g = value.detach(), right[path].detach(), exact[path].detach()
        where = _apart(value, before)
        if not bool(where.any()):
            continue
        if not value.is_floating_point() or value.dtype != before.dtype or not g.is_floating_point():
            return True
        changed += int(where.sum())
        nearer &= bool((~where | ((value.to(g.dtype) - g).abs() <= (before.to(g.dtype) - g).abs())).all())
        beside &= bool((~where | _next_to(g, value)).all())
        drowned &= _is_drowned(g, value, before, 1.0 if kind == "truncating store" else ROOM)
        twice &= value.dtype.itemsize == 2 and bool((~where | _within_roundoffs(g, value, 3.0)).all())
    if kind.startswith("gradient") and changed < 16 and twice:
        return False
    return not drowned and not nearer and not (beside and (changed < 16 or kind == "half accumulator"))


def _within_roundoffs(golden: torch.Tensor, value: torch.Tensor, most: float) -> torch.Tensor:
    """Which elements are no further off than so many roundoffs: a backward pass rounds twice at least."""
    roundoff = torch.finfo(value.dtype).eps / 2
    return (value.to(golden.dtype) - golden).abs() <= most * roundoff * golden.abs()


def _is_drowned(golden: torch.Tensor, value: torch.Tensor, before: torch.Tensor, room: float) -> bool:
    """Whether the errors of a result are no larger than those of the right one: relative, the largest and the rms."""
    size = golden.abs().clamp_min(torch.finfo(value.dtype).smallest_normal)
    ours, theirs = ((t.to(golden.dtype) - golden).abs() / size for t in (value, before))
    if not bool(torch.isfinite(ours).all() & torch.isfinite(theirs).all()):
        return False
    room = room if value.dtype == torch.float32 else 1.0
    local, spread = float(theirs.max()), float(theirs.square().sum())
    return float(ours.max()) <= room * local and float(ours.square().sum()) <= room**2 * spread


def _same_spectrum(left: Capture, right: Capture) -> bool:
    """Whether the same eigenvalues came out in another order, as conjugates of each other do."""
    here, there = next(iter(leaves(left).values())), next(iter(leaves(right).values()))
    if here.shape != there.shape:
        return False

    def ordered(values: torch.Tensor) -> torch.Tensor:
        rows = values.to(torch.complex128).reshape(-1, values.shape[-1])
        return torch.stack([row[(row.real.round(decimals=4) + 1e-9 * row.imag).argsort()] for row in rows])

    return torch.allclose(ordered(here), ordered(there), rtol=1e-3, atol=1e-4)


def _next_to(golden: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Which elements are one of the two numbers of their dtype that enclose the golden."""
    near = golden.to(value.dtype)
    inf = torch.full_like(near, float("inf"))
    above, below = near.to(golden.dtype) < golden, near.to(golden.dtype) > golden
    other = torch.where(above, torch.nextafter(near, inf), torch.where(below, torch.nextafter(near, -inf), near))
    return (value == near) | (value == other)


def _alike(left: Capture, right: Capture) -> bool:
    here, there = leaves(left), leaves(right)
    return here.keys() == there.keys() and all(
        here[p].shape == there[p].shape and here[p].dtype == there[p].dtype for p in here
    )


def _overflows_alike(golden: Capture, own: Capture) -> bool:
    """Whether the right run is infinite exactly where the golden leaves the dtype's range."""
    exact = leaves(golden)
    return all(
        path in exact
        and exact[path].shape == value.shape
        and torch.equal(exact[path].to(value.dtype).isinf(), value.isinf())
        for path, value in leaves(own).items()
        if value.is_floating_point()
    )


def _same(left: Capture, right: Capture, *, signed: bool = False) -> bool:
    """Whether two runs gave the same numbers; the sign of a zero is one of them only if ``signed``."""
    here, there = leaves(left), leaves(right)
    if here.keys() != there.keys():
        return False
    return all(
        here[p].shape == there[p].shape
        and here[p].dtype == there[p].dtype
        and not bool(_apart(here[p], there[p], signed).any())
        for p in here
    )


def _apart(left: torch.Tensor, right: torch.Tensor, signed: bool = False) -> torch.Tensor:
    apart = (left != right) & ~((left != left) & (right != right))
    if signed and left.is_floating_point():
        apart |= left.signbit() != right.signbit()
    return apart


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2, help="sample inputs per operator (default: 2)")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--ops", default="*", help="operators, a glob such as 'nn.functional.*'")
    parser.add_argument("--faults", default="*", help="kinds of faults, a glob; each sample then gets all that match")
    parser.add_argument("--seed", type=int, default=0, help="another one: other values, samples and places of faults")
    parser.add_argument("--larger", type=int, default=0, help="add so much to the sizes torch makes its samples of")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", type=Path, metavar="BASELINE", help="exit with 1 when the figures got worse")
    parser.add_argument("--write-baseline", type=Path, metavar="BASELINE", help="write the figures down to be checked")
    parser.add_argument("--verbose", action="store_true", help="print every miss and every run that was left out")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults and stop")
    options = parser.parse_args(arguments)
    if options.list:
        show_kinds(FAULTS.values())
        return 0
    settings = {"samples": options.samples, "ops": options.ops, "faults": options.faults}
    settings |= {"seed": options.seed, "larger": options.larger}
    start = time.perf_counter()
    found = {}
    for name, tally in _measured(options):
        found[name] = tally.summary()
        show(name, found[name], options.verbose)
        sys.stdout.flush()
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps({"schema": 2, "settings": settings, "dtypes": found}, indent=1) + "\n")
    if options.write_baseline:
        options.write_baseline.write_text(compact(settings, found))
    said = worse(options.check, settings, found) if options.check else []
    if said:
        print(f"\nworse than {options.check}:\n" + "\n".join(f"  {line}" for line in said))
    elif options.check:
        print(f"no worse than {options.check}")
    return 1 if said else 0


def _measured(options: argparse.Namespace) -> Iterator[tuple[str, Tally]]:
    """Every dtype's figures; with several jobs each dtype is cut in two, so that no process waits for the longest."""
    asked = {"ops": options.ops, "count": options.samples, "kinds": options.faults}
    asked |= {"seed": options.seed, "larger": options.larger}
    if options.jobs == 1:
        for name in options.dtypes:
            yield name, measure(DTYPES[name], **asked)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        parts = {
            name: [pool.submit(measure, DTYPES[name], **asked, part=(i, 2)) for i in range(2)]
            for name in options.dtypes
        }
        for name, futures in parts.items():
            tally = Tally()
            for future in futures:
                tally.add(future.result())
            yield name, tally


if __name__ == "__main__":
    sys.exit(main())
