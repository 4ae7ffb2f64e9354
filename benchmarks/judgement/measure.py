"""How often a criterion is wrong: right results it blames and planted faults it lets pass, over torch's sample inputs.

Every operator of ``torch.testing._internal.common_methods_invocations.op_db`` is judged on the emulated device with a
few of its own sample inputs. *Right* runs: the emulated device, PyTorch's decompositions, and for 16-bit types the
float32 computation rounded once; gradients included. *Faults* are planted in the output (or in the computation) of the
run on the device. What a fault leaves as it was isn't counted, and neither is an accumulator of few bits whose every
result is still one of the two numbers next to the golden, because nobody can tell that from a right one.

A right result that fails is a false alarm, a fault that fails is caught. MARGINAL passes with a note: it counts as
neither, and is printed beside the misses.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import json
import random
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from pytest_ascend.cases.case import Case
from pytest_ascend.check import _Check
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.verdict import CheckResult, Verdict
from pytest_ascend.observe.capture import Capture, RunFailed, keep_rng, run
from pytest_ascend.observe.reference import Reference, leaves
from pytest_ascend.options import CheckOptions
from pytest_ascend.targets import resolve

CRITERIA = ("auto", "cosine", "assert_close")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: random numbers and uninitialised memory: nothing to compare
SKIPPED = {
    "as_strided",
    "bernoulli",
    "cauchy",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "new_empty",
    "new_empty_strided",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "normal",
    "uniform",
}
MOST = 20_000  # elements of a result; larger samples are left out, they only take time

Function = Callable[..., Any]


# --- right in another way -------------------------------------------------------------------------------------------


class _Decomposed(TorchDispatchMode):
    """PyTorch's own decompositions in place of its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        decomposition = decomposition_table.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **(kwargs or {}))
            if result is not NotImplemented:
                self.used += 1
                return result
        return func(*args, **(kwargs or {}))


def decomposed(fn: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Decomposed() as mode:
            result = fn(*args, **kwargs)
        if not mode.used:
            raise LookupError("nothing to decompose")
        return result

    return call


def rounded_once(fn: Function, dtype: torch.dtype) -> Function:
    """Computed in float32, then stored."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(_as(torch.float32), (args, kwargs))
        return tree_map(_as(dtype), fn(*args, **kwargs))

    return call


def _as(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v


# --- wrong ----------------------------------------------------------------------------------------------------------


def _tail(y: torch.Tensor) -> None:
    y[-max(1, y.numel() // 16) :] = 0


def _one(y: torch.Tensor) -> None:
    y[y.numel() // 2] *= 1.01 if y.dtype == torch.float32 else 1.05


def _lower_precision(y: torch.Tensor) -> None:
    low = torch.float16 if y.dtype == torch.float32 else torch.float8_e4m3fn
    y.copy_(y.cpu().to(low).to(y.dtype))


def _scale(y: torch.Tensor) -> None:
    y.copy_((y.float().cpu().double() * (1.002 if y.dtype == torch.float32 else 1.01)).to(y.dtype))


def _duplicate(y: torch.Tensor) -> None:
    y[-1] = y[-2]


def _roll(y: torch.Tensor) -> None:
    y.copy_(torch.roll(y, 1))


def _sign(y: torch.Tensor) -> None:
    y[0] = -y[0]


def _stale_lane(y: torch.Tensor) -> None:
    """Lane 3 of 8 still holds what another block had there."""
    y[3::8] = y.flip(0)[3::8].clone()


OUTPUT_FAULTS = {
    "tail zeroed": _tail,
    "one element off": _one,
    "lower precision": _lower_precision,
    "scaled": _scale,
    "last duplicated": _duplicate,
    "rolled": _roll,
    "sign flipped": _sign,
    "stale lane": _stale_lane,
}


def in_output(fn: Function, fault: Callable[[torch.Tensor], None]) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        def spoil(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 2:
                return value
            flat = value.detach().clone().reshape(-1)
            fault(flat)
            return flat.reshape(value.shape)

        return tree_map(spoil, fn(*args, **kwargs))

    return call


def truncated(fn: Function, dtype: torch.dtype) -> Function:
    """The right value, stored without rounding."""
    bits = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23}[dtype]

    def store(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        value = value.cpu().double()
        info = torch.finfo(dtype)
        step = torch.frexp(value).exponent.double().sub(bits + 1).exp2().clamp_min(info.smallest_normal * info.eps)
        return (torch.trunc(value / step) * step).to(dtype)

    def call(*args: Any, **kwargs: Any) -> Any:
        device = next(
            (v.device for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)), torch.device("cpu")
        )

        def widen(v: Any) -> Any:
            if not isinstance(v, torch.Tensor):
                return v
            return v.cpu().double() if v.is_floating_point() else v.cpu()

        args, kwargs = tree_map(widen, (args, kwargs))
        result = tree_map(store, fn(*args, **kwargs))
        return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, result)

    return call


class _HalfAccumulator(TorchDispatchMode):
    """Sums, means and products that add up in 16 bits, one term after another."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if first is None or not first.is_floating_point():
            return func(*args, **kwargs)
        aten, low = torch.ops.aten, torch.bfloat16 if first.dtype == torch.bfloat16 else torch.float16
        if name in (aten.mm, aten.bmm):
            return self.product(args[0].cpu(), args[1].cpu(), low).to(first.dtype).to(first.device)
        if name in (aten.addmm, aten.baddbmm) and not kwargs:
            added = self.product(args[1].cpu(), args[2].cpu(), low) + args[0].cpu()
            return added.to(first.dtype).to(first.device)
        if name in (aten.sum, aten.mean):
            dims = args[1] if len(args) > 1 and args[1] else list(range(first.dim()))
            keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
            return self.total(first.cpu(), dims, bool(keep), low, name is aten.mean).to(first.dtype).to(first.device)
        return func(*args, **kwargs)

    @staticmethod
    def product(a: torch.Tensor, b: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=low)
        for k in range(a.shape[-1]):
            total = (total.float() + a[..., :, k, None].float() * b[..., k, None, :].float()).to(low)
        return total.float()

    @staticmethod
    def total(x: torch.Tensor, dims: Any, keep: bool, low: torch.dtype, mean: bool) -> torch.Tensor:
        dims = sorted(d % max(1, x.dim()) for d in ([dims] if isinstance(dims, int) else dims))
        rest = [d for d in range(x.dim()) if d not in dims]
        terms = x.permute(*rest, *dims).reshape(*(x.shape[d] for d in rest), -1)
        total = torch.zeros(terms.shape[:-1], dtype=low)
        for k in range(terms.shape[-1]):
            total = (total.float() + terms[..., k].float()).to(low)
        result = total.float() / (max(1, terms.shape[-1]) if mean else 1)
        return result.reshape([1 if d in dims else s for d, s in enumerate(x.shape)]) if keep else result


def half_accumulator(fn: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), _HalfAccumulator():
            return fn(*args, **kwargs)

    return call


class _WrongGradient(torch.autograd.Function):
    """The input itself, whose gradient loses its last sixteenth or is scaled."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: str) -> torch.Tensor:
        ctx.how = how
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        flat = grads[0].clone(memory_format=torch.contiguous_format).reshape(-1)
        {"tail": _tail, "scale": _scale}[ctx.how](flat)
        return flat.reshape(grads[0].shape), None


def wrong_gradient(fn: Function, how: str) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        flat = list(args)
        i = next(i for i, a in enumerate(flat) if isinstance(a, torch.Tensor) and a.requires_grad)
        flat[i] = _WrongGradient.apply(flat[i], how)
        return fn(*flat, **kwargs)

    return call


# --- judging --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Sample:
    """One operator with one set of inputs, and the CPU's side of it."""

    name: str
    dtype: torch.dtype
    fn: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: Any = False
    reference: Any = None

    def run(self, fn: Function, where: str) -> tuple[_Check, Capture]:
        options = CheckOptions(target=where, reference=self.fn, backward=self.backward, seed=0)
        check = _Check(Case(fn, self.args, self.kwargs, api=self.name), resolve(where), options, None)
        if self.reference is None:
            self.reference = Reference.of(check.case, check.setting, check.criterion, self.fn)
        return check, run(check.case, check.target, check.setting)

    def judge(self, check: _Check, actual: Capture) -> dict[str, Verdict]:
        judged = check._judged(self.reference, actual, {}, "as_given")
        result = CheckResult.of(judged.outputs, api=self.name)
        rule = dataclasses.replace(self.reference, criterion=Criterion("cosine", cosine=0.999, max_abs=1e-3))
        cosine = rule.judge(actual, only_arguments=True)
        return {
            "auto": result.verdict,
            "cosine": Verdict.FAIL if cosine.failed else Verdict.PASS,
            "assert_close": Verdict.PASS if self.close(actual) else Verdict.FAIL,
        }

    def close(self, actual: Capture) -> bool:
        golden, here = leaves(self.reference.golden), leaves(actual)
        try:
            for path, value in here.items():
                torch.testing.assert_close(value, golden[path].to(value.dtype), equal_nan=True)
        except (AssertionError, KeyError):
            return False
        return True


def samples(dtype: torch.dtype, pattern: str, count: int) -> Iterator[Sample]:
    for op in op_db:
        if dtype not in op.dtypes or op.name in SKIPPED or "dropout" in op.name or "rand" in op.name:
            continue
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not fnmatch.fnmatch(name, pattern):
            continue
        differentiable = op.supports_autograd and dtype in op.backward_dtypes
        torch.manual_seed(0)
        try:
            found = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
        except Exception:
            continue
        random.Random(zlib.crc32(name.encode())).shuffle(found)
        for s in [s for s in found if not _draws(s)][:count]:
            yield Sample(name, dtype, op.op, (s.input, *s.args), dict(s.kwargs), "auto" if differentiable else False)


def _draws(sample: Any) -> bool:
    """Whether a sample asks for dropout."""
    return any(bool(v) for k, v in sample.kwargs.items() if k in ("dropout", "dropout_p", "dropout_prob"))


def usable(sample: Sample) -> bool:
    """Whether the result is floating tensors of the dtype alone, finite, of 2 to MOST elements."""
    values = [v for v in tree_flatten(sample.reference.own.output)[0] if isinstance(v, torch.Tensor)]
    goldens = [v for v in tree_flatten(sample.reference.golden.output)[0] if isinstance(v, torch.Tensor)]
    return (
        bool(values)
        and len(values) == len(goldens)
        and all(v.dtype == sample.dtype and 2 <= v.numel() <= MOST for v in values)
        and all(v.layout is torch.strided for v in (*values, *goldens))
        and all(g.dtype == torch.float64 and bool(torch.isfinite(g).all()) for g in goldens)
    )


def _same(left: Capture, right: Capture) -> bool:
    here, there = leaves(left), leaves(right)
    return all(torch.equal(here[p].nan_to_num(), there[p].nan_to_num()) for p in here if p in there)


def _neighbours(golden: Capture, actual: Capture) -> bool:
    """Whether every element is one of the two numbers of its dtype that enclose the golden."""
    there = leaves(golden)
    for path, value in leaves(actual).items():
        exact, value = there[path], value.detach()
        near = exact.to(value.dtype)
        inf = torch.tensor(float("inf"), dtype=value.dtype)
        next_up, next_down = torch.nextafter(near, inf), torch.nextafter(near, -inf)
        if not bool(((value == near) | (value == next_up) | (value == next_down)).all()):
            return False
    return True


def rights(sample: Sample) -> Iterator[tuple[str, Function, str]]:
    yield "emulator", sample.fn, "emulated"
    if sample.reference is not None and sample.reference.own.changes:
        return  # the others don't change arguments in place
    yield "decomposition", decomposed(sample.fn), "cpu"
    if sample.dtype != torch.float32:
        yield "rounded once", rounded_once(sample.fn, sample.dtype), "cpu"


def faults(sample: Sample) -> Iterator[tuple[str, Function]]:
    for name, fault in OUTPUT_FAULTS.items():
        yield name, in_output(sample.fn, fault)
    yield "half accumulator", half_accumulator(sample.fn)
    yield "truncating store", truncated(sample.fn, sample.dtype)


class Tally:
    """Counts for one dtype."""

    def __init__(self) -> None:
        self.n: collections.Counter[str] = collections.Counter()
        self.wrong: dict[str, collections.Counter[str]] = {c: collections.Counter() for c in CRITERIA}
        self.noted: collections.Counter[str] = collections.Counter()
        self.alarms: list[str] = []
        self.misses: list[str] = []

    def right(self, sample: Sample, kind: str, verdicts: dict[str, Verdict]) -> None:
        self.n["right"] += 1
        for criterion, verdict in verdicts.items():
            self.wrong[criterion]["right"] += verdict.outcome == "failed"
        self.noted["right"] += verdicts["auto"].outcome == "noted"
        if verdicts["auto"].outcome == "failed":
            self.alarms.append(f"{sample.name} ({kind}): {verdicts['auto'].value}")

    def fault(self, sample: Sample, kind: str, verdicts: dict[str, Verdict]) -> None:
        self.n["fault"] += 1
        self.n[f"fault: {kind}"] += 1
        for criterion, verdict in verdicts.items():
            if verdict.outcome != "failed":
                self.wrong[criterion]["fault"] += 1
                self.wrong[criterion][f"fault: {kind}"] += 1
        self.noted["fault"] += verdicts["auto"].outcome == "noted"
        if verdicts["auto"].outcome != "failed":
            self.misses.append(f"{sample.name} ({kind}): {verdicts['auto'].value}")

    def summary(self) -> dict[str, Any]:
        rights, planted = max(1, self.n["right"]), max(1, self.n["fault"])
        kinds = sorted(k.removeprefix("fault: ") for k in self.n if k.startswith("fault: "))
        return {
            "right": self.n["right"],
            "faults": self.n["fault"],
            "criteria": {
                c: {
                    "false_alarms": w["right"] / rights,
                    "faults_caught": 1 - w["fault"] / planted,
                    "missed": {k: [w[f"fault: {k}"], self.n[f"fault: {k}"]] for k in kinds},
                }
                for c, w in self.wrong.items()
            },
            "noted": {"right": self.noted["right"], "faults": self.noted["fault"]},
            "alarms": self.alarms,
            "misses": self.misses,
        }


def measure(dtype: torch.dtype, pattern: str, count: int) -> Tally:
    tally = Tally()
    for sample in samples(dtype, pattern, count):
        gradients = sample.backward == "auto"
        with keep_rng(resolve("emulated")):
            for kind, fn, where in rights(sample):
                try:
                    check, actual = sample.run(fn, where)
                    if not usable(sample):
                        break
                    verdicts = sample.judge(check, actual)
                except Exception as error:
                    _skip(sample, kind, error)
                    if sample.reference is None:
                        break
                    continue
                tally.right(sample, kind, verdicts)
            if sample.reference is None or not usable(sample):
                continue
            own = emulated(sample)
            if gradients and own is not None:
                for how in ("tail", "scale"):
                    plant(tally, sample, f"gradient: {how}", wrong_gradient(sample.fn, how), own)
            sample.backward, sample.reference = False, None
            own = emulated(sample)
            for kind, fn in faults(sample) if own is not None else ():
                plant(tally, sample, kind, fn, own)
    return tally


def emulated(sample: Sample) -> Capture | None:
    try:
        return sample.run(sample.fn, "emulated")[1]
    except Exception as error:
        _skip(sample, "emulator", error)
        return None


def plant(tally: Tally, sample: Sample, kind: str, fn: Function, own: Capture) -> None:
    try:
        check, actual = sample.run(fn, "emulated")
        if _same(actual, own) or (kind == "half accumulator" and _neighbours(sample.reference.golden, actual)):
            return
        if kind == "truncating store" and next(iter(leaves(actual).values())).numel() < 16:
            return  # a handful of elements one step off is what rounding does as well
        tally.fault(sample, kind, sample.judge(check, actual))
    except Exception as error:
        _skip(sample, kind, error)


SKIPS: collections.Counter[str] = collections.Counter()


def _skip(sample: Sample, kind: str, error: Exception) -> None:
    inner = error.error if isinstance(error, RunFailed) else error
    if not isinstance(inner, LookupError):
        SKIPS[
            f"{sample.name} ({kind}): {type(inner).__name__} {str(inner).splitlines()[0][:90] if str(inner) else ''}"
        ] += 1


def show(name: str, summary: dict[str, Any], seconds: float, verbose: bool) -> None:
    print(f"\n{name}: {summary['right']} right runs, {summary['faults']} faults, {seconds:.0f} s")
    for criterion, row in summary["criteria"].items():
        print(f"  {criterion:13} false alarms {row['false_alarms']:7.2%}   faults caught {row['faults_caught']:7.2%}")
        missed = {k: v for k, v in row["missed"].items() if v[0]}
        print("                missed: " + (", ".join(f"{k} {a}/{n}" for k, (a, n) in missed.items()) or "none"))
    print(f"  auto passed with a note: {summary['noted']['right']} right runs, {summary['noted']['faults']} faults")
    for title, lines in (("false alarms", summary["alarms"]), ("misses", summary["misses"])):
        shown = lines if verbose else lines[:40]
        print(f"  {title}: {'; '.join(shown) or 'none'}{' …' if len(shown) < len(lines) else ''}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2, help="sample inputs per operator (default: 2)")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--ops", default="*", help="operators, a glob such as 'nn.functional.*'")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--verbose", action="store_true", help="print every miss and every run that was left out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    found: dict[str, Any] = {}
    for name in options.dtypes:
        start = time.perf_counter()
        found[name] = measure(DTYPES[name], options.ops, options.samples).summary()
        show(name, found[name], time.perf_counter() - start, options.verbose)
        sys.stdout.flush()
    if options.verbose:
        print(f"\nleft out: {'; '.join(SKIPS)}")
    if options.json:
        options.json.write_text(json.dumps({"schema": 1, "samples": options.samples, "dtypes": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
