"""torch's own samples (OpInfo, ModuleInfo) as entries of the case list. Development and ``--ascend-live`` only: this is
the one place that reads ``torch.testing._internal``.

An operator of OpInfo is often a lambda around the call that matters. The call is therefore recorded while it runs, and
its public name is what the entry is called; where there is none, the operator is left out and counted.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_ascend.cases.catalogue.entries import Entry, Sample
from pytest_ascend.cases.catalogue.laid import replaced, tensors_of
from pytest_ascend.cases.catalogue.names import public_name, resolve
from pytest_ascend.cases.catalogue.specs import Unwritable, encode

__all__ = ["Recorder", "entries", "left_out"]

#: the dtype that samples of a class are recorded in
CLASSES = {"float": torch.float32, "int": torch.int64, "complex": torch.complex64, "bool": torch.bool}
_DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
#: samples looked at and kept per operator and class of dtypes
LOOKED_AT, KEPT = 200, 16
MOST_ELEMENTS = 20_000
#: nothing to compare (memory that nobody wrote), or only for one vendor's devices
_NO_CASES = ("empty", "new_empty", "jiterator", "_scaled_mm", "_flash_attention", "_efficient_attention", "resize_")

#: what public functions are made of; nobody calls these by themselves
_INTERNAL = ("_unsafe", "_native", "_chunk", "_segment", "native_")

left_out: dict[str, str] = {}
"""Operators without an entry, and why."""


class Recorder(TorchFunctionMode):
    """The outermost calls of torch functions, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result


def entries(names: Callable[[str], bool] = lambda name: True) -> Iterator[Entry]:
    """Entries of every operator of OpInfo whose name is asked for, then those of the modules."""
    from torch.testing._internal.common_methods_invocations import op_db

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if names(op.name):
                yield from _of_op(op)
        yield from _of_modules(names)


def _of_op(op: Any) -> Iterator[Entry]:
    if any(part in op.name for part in _NO_CASES):
        left_out[op.formatted_name] = "writes no values, or is for one vendor's device only"
        return
    able = {str(d).removeprefix("torch.") for d in op.dtypes | op.dtypesIfCUDA}
    dtypes = tuple(name for name in _DTYPES if name in able)
    found: dict[str, Entry] = {}
    for group, dtype in CLASSES.items():
        if _class_of(dtype) not in {_class(name) for name in dtypes} or dtype not in op.dtypes:
            continue
        grad = op.supports_autograd and group in ("float", "complex")
        for api, sample in _samples(op, dtype, grad, group):
            if api not in found:
                found[api] = Entry(api, op.variant_test_name, _kind(op), dtypes, [])
            found[api].samples.append(sample)
    if not found:
        left_out.setdefault(op.formatted_name, "no public name, or no sample that the list has words for")
    for entry in found.values():
        entry.samples[:] = _spread(entry.samples)
        yield entry
        yield from _twins(op, entry)


def _samples(op: Any, dtype: torch.dtype, grad: bool, group: str) -> Iterator[tuple[str, Sample]]:
    torch.manual_seed(0)
    try:
        made = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), LOOKED_AT))
    except Exception as error:  # some need a library that isn't installed
        left_out.setdefault(op.formatted_name, f"no samples: {type(error).__name__}")
        return
    seen: set[str] = set()
    for sample in made:
        call = call_of(op, sample)
        if call is None:
            continue
        api, args, kwargs = call
        if api.rpartition(".")[2].startswith(_INTERNAL) and not api.startswith("torch.ops."):
            left_out.setdefault(op.formatted_name, "internal: a building block of other functions")
            continue
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "generator")}
        spec = written(api, args, kwargs, dtype, group)
        if spec is not None and (text := repr(spec)) not in seen:
            seen.add(text)
            yield api, spec


def call_of(op: Any, sample: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    """The public call that a sample of an operator comes to: its name and arguments."""
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    direct = op.name if op.name.startswith("torch.") else f"torch.{op.name}"
    try:
        named = resolve(direct)
    except AttributeError:
        named = None
    if named is not None and (named is op.op or named == op.op):
        return direct, args, kwargs
    if (name := public_name(op.op)) is not None:
        return name, args, kwargs
    recorder = Recorder()
    try:
        copied = copy.deepcopy(_detached(args)), copy.deepcopy(_detached(kwargs))
        with recorder:
            op.op(*copied[0], **copied[1])
    except Exception:
        return None
    tail = op.name.rpartition(".")[2].strip("_")
    for func, given, keywords, _ in reversed(recorder.calls):
        name = public_name(func)
        if name is not None and name.rpartition(".")[2].strip("_") == tail:
            originals = {id(new): old for new, old in zip(tensors_of(copied), tensors_of((args, kwargs)), strict=True)}
            return name, _restored(given, originals), _restored(keywords, originals)
    return None


def _detached(tree: Any) -> Any:
    return replaced(tree, {id(t): t.detach() for t in tensors_of(tree)})


def _restored(tree: Any, originals: dict[int, torch.Tensor]) -> Any:
    """The recorded arguments with requires_grad as the sample had it."""
    return replaced(tree, originals)


def written(api: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype, group: str) -> Sample | None:
    """The call as a sample whose values come from a seed if it still runs with those, else with its values listed."""
    if sum(t.numel() for t in tensors_of((args, kwargs))) > MOST_ELEMENTS:
        return None
    for listed in (False, True):
        try:
            sample = Sample(
                [encode(v, dtype, listed=listed) for v in args],
                {k: encode(v, dtype, listed=listed) for k, v in kwargs.items()},
                group,
            )
        except Unwritable as error:
            left_out.setdefault(api, f"an argument that can't be written: {error}")
            return None
        if runs(api, sample, dtype):
            return None if is_for_the_cpu(api, sample, dtype) else sample
    return None


def runs(api: str, sample: Sample, dtype: torch.dtype) -> bool:
    """Whether the sample runs on the CPU, without NaN where there was none among its inputs."""
    try:
        fn, args, kwargs = sample.build(api, dtype, 1)
        with torch.no_grad():
            result = fn(*args, **kwargs)
    except Exception:
        return False
    if not tensors_of((args, kwargs)) and not makes_tensors(fn, args, kwargs):
        return False
    outputs = tensors_of(result)
    if any(t.layout is not torch.strided or t.numel() > 1_000_000 for t in outputs):
        return False
    return not _is_finite((args, kwargs)) or _is_finite(result)


def makes_tensors(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call without tensors can be told on which device to make some."""
    try:
        return bool(tensors_of(fn(*args, **kwargs, device=torch.device("cpu"))))
    except Exception:
        return False


def is_for_the_cpu(api: str, sample: Sample, dtype: torch.dtype) -> bool:
    """Whether an argument has to lie on the CPU, as torch says of any other device."""
    fn, args, kwargs = sample.build(api, dtype, 1)
    meta = {id(t): t.detach().to("meta") for t in tensors_of((args, kwargs))}
    try:
        fn(*replaced(args, meta), **replaced(kwargs, meta))
    except Exception as error:
        return "to be on cpu" in str(error) or "on CPU" in str(error)
    return False


def _is_finite(tree: Any) -> bool:
    return all(map(_finite, tensors_of(tree)))


def _finite(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or not bool(value.isnan().any())


def _kind(op: Any) -> str:
    return {"UnaryUfuncInfo": "unary", "BinaryUfuncInfo": "binary", "ReductionOpInfo": "reduction"}.get(
        type(op).__name__, "other"
    )


def _class_of(dtype: torch.dtype) -> str:
    return _class(str(dtype).removeprefix("torch."))


def _class(name: str) -> str:
    return next((c for c in ("float", "complex", "bool") if c in name), "int")


def _spread(samples: list[Sample]) -> list[Sample]:
    """The first of each class of dtypes, then those that differ most in shape and keywords from what is there."""
    kept: list[Sample] = []
    for group in CLASSES:
        of_group = [s for s in samples if s.group == group]
        most = KEPT if group == "float" else 4
        chosen: list[Sample] = []
        seen: set[str] = set()
        plain = sorted(of_group, key=lambda s: s.is_trivial)
        for key in (Sample.signature, Sample.shape_signature):
            for sample in plain:
                if len(chosen) < most and key(sample) not in seen and sample not in chosen:
                    seen.add(key(sample))
                    chosen.append(sample)
        kept += chosen
    return kept


# ------------------------------------------------------------------------------------- in-place, methods, aliases


def _twins(op: Any, entry: Entry) -> Iterator[Entry]:
    """The same operator under its other public names, with the first samples that run there."""
    others: dict[str, Any] = {}
    for fn in (op.inplace_variant, op.method_variant, *(alias.op for alias in op.aliases)):
        if fn is not None and (name := public_name(fn)) is not None and name != entry.api:
            others[name] = fn
    for alias in op.aliases:
        for fn in (alias.inplace_variant, alias.method_variant):
            if fn is not None and (name := public_name(fn)) is not None:
                others.setdefault(name, fn)
    for name in others:
        in_place = name.endswith("_") and not name.endswith("__")
        kept: list[Sample] = []
        for sample in entry.samples:
            twin = sample.without_grad(0) if in_place else sample
            enough = sum(s.group == sample.group for s in kept) >= 2
            if not enough and twin.args and _is_tensor(twin.args[0]) and runs(name, twin, CLASSES[sample.group]):
                kept += [twin] if not in_place or _keeps_shape(name, twin) else []
        if kept:
            yield Entry(name, entry.variant, "inplace" if in_place else "twin", entry.dtypes, kept, of=entry.api)


def _keeps_shape(name: str, sample: Sample) -> bool:
    """Whether an in-place call leaves its tensor's shape alone; some on the CPU resize it by mistake."""
    fn, args, kwargs = sample.build(name, CLASSES[sample.group], 1)
    before = args[0].shape
    with torch.no_grad():
        fn(*args, **kwargs)
    return bool(args[0].shape == before)


def _is_tensor(spec: Any) -> bool:
    return isinstance(spec, dict) and "T" in spec


# --------------------------------------------------------------------------------------------------------- modules


def _of_modules(names: Callable[[str], bool]) -> Iterator[Entry]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        api = f"torch.{info.name}" if not info.name.startswith("torch.") else info.name
        if not names(api.removeprefix("torch.")):
            continue
        samples: list[Sample] = []
        for training in (True, False) if info.train_and_eval_differ else (False,):
            torch.manual_seed(0)
            try:
                inputs = list(info.module_inputs_func(info, "cpu", torch.float32, True, training))
            except Exception as error:
                left_out[api] = f"no samples: {type(error).__name__}"
                continue
            for given in inputs[:LOOKED_AT]:
                sample = _module_sample(api, given, training)
                if sample is not None and sample not in samples:
                    samples.append(sample)
        if samples:
            yield Entry(api, "", "module", ("float32", "float16", "bfloat16", "float64"), _spread(samples)[:6])
        else:
            left_out.setdefault(api, "no sample that the list has words for")


def _module_sample(api: str, given: Any, training: bool) -> Sample | None:
    own = torch.float32
    made, called = given.constructor_input, given.forward_input
    if called is None:
        return None
    try:
        kwargs = {k: encode(v, own) for k, v in made.kwargs.items() if k not in ("device", "dtype")}
        sample = Sample(
            [encode(v, own) for v in called.args],
            {k: encode(v, own) for k, v in called.kwargs.items()},
            "float",
            made={"a": [encode(v, own) for v in made.args], "k": kwargs, "t": int(training)},
        )
        return sample if runs_module(api, sample) else None
    except Unwritable as error:
        left_out.setdefault(api, f"an argument that can't be written: {error}")
        return None


def runs_module(api: str, sample: Sample) -> bool:
    """Whether a module's sample can be made and called on the CPU in float32."""
    try:
        fn, args, kwargs = sample.build(api, torch.float32, 1)
        return all(_finite(t) for t in tensors_of(fn(*args, **kwargs)))
    except Exception:
        return False
