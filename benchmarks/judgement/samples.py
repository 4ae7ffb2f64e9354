"""What is judged: torch's own sample inputs, the CPU's side of each, and what the emulated device makes of it.

An operator's callable is replaced on the device only: ``on_device(right, wrong)`` is ``wrong`` where its arguments lie
on the device and ``right`` on the CPU. So the CPU's side is never touched, and the whole road of a check, reruns
included, is the one a user's test takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import importlib
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_flatten, tree_unflatten

from pytest_ascend.cases.case import Case
from pytest_ascend.check import _Check
from pytest_ascend.judge.verdict import CheckResult
from pytest_ascend.observe.capture import Capture, RunFailed, keep_rng, run
from pytest_ascend.observe.reference import Reference, leaves
from pytest_ascend.observe.reruns import RAISED, SecondLook
from pytest_ascend.observe.sizes import find_size
from pytest_ascend.options import CheckOptions
from pytest_ascend.targets import resolve
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["DTYPES", "Bench", "Function", "Sample", "dropouts", "generator_of", "on_device", "samples", "usable"]

Function = Callable[..., Any]
road = importlib.import_module("pytest_ascend.check")  # the package's own name `check` is the function

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: random numbers, uninitialised memory and what reads the memory outside a view: nothing to compare; and what has
#: results of another shape on the device than on the CPU, in evaluation, which a check says
SKIPPED = {
    "as_strided",
    "as_strided_copy",
    "as_strided_scatter",
    "_native_batch_norm_legit",
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
    "native_batch_norm",
    "new_empty",
    "new_empty_strided",
    "normal",
    "pca_lowrank",
    "svd_lowrank",
    "uniform",
}
EXTRA = 4
MOST = 20_000  # elements of a result; larger samples are left out, they only take time


def generator_of(*what: object) -> random.Random:
    """Random numbers that depend on what they are for alone."""
    return random.Random(zlib.crc32(" ".join(map(str, what)).encode()))


@dataclasses.dataclass(frozen=True)
class Sample:
    """One operator with one set of inputs.

    Attributes:
        name: the operator and its variant: ``nn.functional.interpolate.linear``.
        op: the operator alone, without what it stands under: ``interpolate``.
        dtype: of its inputs.
        fn, args, kwargs: what to call, with what.
        backward: as in CheckOptions: ``"auto"`` compares gradients too.
        random: whether it draws random numbers on purpose.
        number: which of its operator's samples it is.
        extra: beyond the number asked for, for faults that fit few operators.
    """

    name: str
    op: str
    dtype: torch.dtype
    fn: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: Any = False
    random: bool = False
    number: int = 0
    extra: bool = False

    def tensors(self) -> list[tuple[int, torch.Tensor]]:
        """Every tensor among the arguments by its place."""
        return [(i, v) for i, v in enumerate(tree_flatten((self.args, self.kwargs))[0]) if isinstance(v, torch.Tensor)]

    def floating(self) -> list[tuple[int, torch.Tensor]]:
        """Every floating tensor of the sample's dtype, strided and not empty, by its place."""
        return [(i, v) for i, v in self.tensors() if v.dtype == self.dtype and v.numel() and v.layout is torch.strided]

    def with_tensors(self, new: dict[int, torch.Tensor], backward: Any = False) -> Sample:
        """The same call with other tensors at some places."""
        args, kwargs = replace_leaves(self.args, self.kwargs, new)
        return dataclasses.replace(self, args=args, kwargs=kwargs, backward=backward)

    def forward(self) -> Sample:
        """The same call without gradients."""
        return dataclasses.replace(self, backward=False)


def replace_leaves(args: Any, kwargs: Any, new: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with other leaves at some places, in the order of ``tree_flatten((args, kwargs))``."""
    flat, form = tree_flatten((args, kwargs))
    args, kwargs = tree_unflatten([new.get(i, v) for i, v in enumerate(flat)], form)
    return tuple(args), kwargs


def on_device(right: Function, wrong: Function) -> Function:
    """``wrong`` on the emulated device, ``right`` on the CPU."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (wrong if _is_there(args, kwargs) else right)(*args, **kwargs)

    return call


def _is_there(args: Any, kwargs: Any) -> bool:
    flat = tree_flatten((args, kwargs))[0]
    if any(isinstance(v, torch.Tensor) and v.device.type == "npu" for v in flat):
        return True
    return str(kwargs.get("device", "")).startswith("npu")


# --- the bench ------------------------------------------------------------------------------------------------------


class Bench:
    """A sample with its CPU side, computed once; runs callables in its place and judges them.

    Raises:
        RunFailed: the CPU doesn't take the sample.
    """

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.target = resolve("emulated")
        self.options = CheckOptions(target="emulated", backward=sample.backward, seed=0)
        check = _Check(self.case(sample.fn), self.target, self.options, None)
        self.setting = check.setting
        self.reference = Reference.of(check.case, check.setting, check.criterion, None)
        self._step_up: Capture | None = None
        self._emulated: Capture | None = None

    def case(self, fn: Function) -> Case:
        """The sample's case with another callable."""
        return Case(fn, self.sample.args, self.sample.kwargs, api=self.sample.name)

    def run(self, fn: Function) -> Capture:
        """Run a callable on the device.

        Raises:
            RunFailed: it raised, in the forward or in the backward pass.
        """
        capture = run(self.case(fn), self.target, self.setting)
        if capture.backward_error is not None and self.reference.own.backward_error is None:
            raise RunFailed("backward", capture.backward_error)
        return capture

    def emulated(self) -> Capture:
        """What the device makes of the sample itself."""
        if self._emulated is None:
            self._emulated = self.run(self.sample.fn)
        return self._emulated

    def judge(self, fn: Function, actual: Capture) -> CheckResult:
        """The verdict of the criterion ``auto``: the whole road of a check, from a run that was made already.

        What the CPU computes doesn't depend on the device, so all callables of a sample share it.
        """
        actual.exercised = True  # a fault that is planted on the CPU may leave the device nothing to do

        given = {"Reference": _Known(self.reference), "SecondLook": _Look, "run": lambda *_, **__: actual}
        before = {name: getattr(road, name) for name in given}
        vars(road).update(given)
        try:
            result = _Check(self.case(fn), self.target, self.options, None).result()
        finally:
            vars(road).update(before)
        raised = [note for note in result.notes if RAISED in note and "RunFailed" not in note]
        if raised:
            raise RuntimeError("; ".join(raised))
        return result

    def step_up(self) -> Capture:
        """The golden one precision above the sample's dtype: float32 for 16 bits, float64 for float32."""
        if self.sample.dtype == torch.float32:
            return self.reference.golden
        if self._step_up is None:
            try:
                case = self.case(self.sample.fn)
                self._step_up = run(case, CpuTarget(), self.setting, floating=torch.float32)
            except RunFailed:
                self._step_up = self.reference.golden
        return self._step_up


class _Known(NamedTuple):
    """In the place of the class Reference: a reference that was made before."""

    reference: Reference

    def of(self, *_: Any) -> Reference:
        return self.reference


class _Look(SecondLook):
    """A second look that leaves out what only describes a failure and takes long."""

    def _steps(self) -> Any:
        return tuple(step for step in super()._steps() if getattr(step, "func", None) is not find_size)


def usable(bench: Bench) -> bool:
    """Whether there is something to compare: strided tensors, 1 to MOST elements in all, no random numbers."""
    reference = bench.reference
    values = [v for v in tree_flatten(reference.own.output)[0] if isinstance(v, torch.Tensor)]
    return (
        1 <= sum(v.numel() for v in values) <= MOST
        and all(v.layout is torch.strided for v in values)
        and reference.benchmark is not None
        and (bench.sample.random or not (reference.own.drew or reference.golden.drew or _seeds_itself(bench)))
    )


def _seeds_itself(bench: Bench) -> bool:
    """Whether the callable seeds the generator, as torch's samples with dropout do, and another seed changes it."""
    original = torch.manual_seed

    def other(seed: int) -> Any:
        return original(seed ^ 1)

    torch.manual_seed = other
    try:
        again = run(bench.case(bench.sample.fn), CpuTarget(), dataclasses.replace(bench.setting, backward=False))
    finally:
        torch.manual_seed = original
    own, here = leaves(bench.reference.own), leaves(again)
    return any(p.startswith("output") and not torch.equal(v.nan_to_num(), own[p].nan_to_num()) for p, v in here.items())


# --- the samples ----------------------------------------------------------------------------------------------------


def samples(
    dtype: torch.dtype, pattern: str, count: int, *, seed: int = 0, larger: int = 0, part: tuple[int, int] = (0, 1)
) -> Iterator[Sample]:
    """``count`` samples of every operator that matches, then up to EXTRA more that are marked as such.

    Args:
        pattern: a glob such as ``nn.functional.*``.
        seed: other values, and other samples where the operator has more of them.
        larger: so much is added to the sizes torch makes its samples of (5, 10 and 20).
        part: ``(i, n)`` is the i-th of n equal parts of the operators.
    """
    for op in op_db[part[0] :: part[1]]:
        if dtype not in op.dtypes or op.name in SKIPPED or "dropout" in op.name or "rand" in op.name:
            continue
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not fnmatch.fnmatch(name, pattern):
            continue
        differentiable = op.supports_autograd and dtype in op.backward_dtypes
        try:
            with keep_rng(resolve("emulated")), _larger(larger):
                set_rng_seed(generator_of(name, seed).getrandbits(31))
                found = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable, set_seed=False))
        except Exception:  # torch has none for this dtype or size
            continue
        found = [s for s in found if all(v.numel() for v in _tensors(s))] or found
        generator_of(name).shuffle(found)
        first = seed * count % max(1, len(found))
        for i, s in enumerate((found[first:] + found[:first])[: count + EXTRA]):
            call = Sample(name, op.name.rpartition(".")[2], dtype, op.op, (s.input, *s.args), dict(s.kwargs))
            yield dataclasses.replace(call, backward="auto" if differentiable else False, number=i, extra=i >= count)


def _tensors(sample: Any) -> list[torch.Tensor]:
    flat = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return [v for v in flat if isinstance(v, torch.Tensor) and v.layout is torch.strided]


@contextlib.contextmanager
def _larger(by: int) -> Iterator[None]:
    """The sizes in torch's sample makers are constants of their modules."""
    before = []
    for name, module in list(sys.modules.items()) if by else ():
        if name.startswith("torch.testing._internal"):
            for size in ("S", "M", "L"):
                if isinstance(getattr(module, size, None), int):
                    before.append((module, size, getattr(module, size)))
    for module, size, value in before:
        setattr(module, size, value + by)
    try:
        yield
    finally:
        for module, size, value in before:
            setattr(module, size, value)


def dropouts(dtype: torch.dtype, pattern: str, seed: int) -> Iterator[Sample]:
    """Random by design: what can be judged is the rate of zeros and the scale of the rest."""
    functional = torch.nn.functional
    shapes = {"dropout": (64, 65), "dropout2d": (32, 33, 3, 2), "dropout3d": (32, 33, 2, 2, 2)}
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        if not fnmatch.fnmatch(f"nn.functional.{name}", pattern):
            continue
        for i, p in enumerate((0.2, 0.7)):
            x = (torch.rand(shape, generator=generator) + 0.5).to(dtype)
            kwargs = {"p": p, "training": True}
            yield Sample(
                f"nn.functional.{name}", name, dtype, getattr(functional, name), (x,), kwargs, random=True, number=i
            )
