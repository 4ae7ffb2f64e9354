"""What torch's own samples leave out, derived from each entry by trying: sizes, special values, shapes, layouts.

Nothing here knows an operator by name. A dimension of a sample is given another size everywhere it occurs, and the call
is kept if it still runs; an operator is element-wise if changing one element of its input changes that element of its
output alone; values are replaced where the operator takes any. All of it happens when the list is made, on the CPU in
float32, so that what the list holds is known to run.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pytest_ascend.cases.catalogue.entries import Entry, Sample
from pytest_ascend.cases.catalogue.laid import relaid, replaced, tensors_of
from pytest_ascend.cases.catalogue.record import CLASSES

__all__ = ["widen"]

LAYOUTS = ("transposed", "sliced", "expanded", "channels_last")
#: sizes that blocks of 16, 32, 64 and 1024 don't divide, or just do, by turns, so that each operator gets some
_SIZES = (16, 17, 31, 33, 64, 65, 127, 128)
_LONG = (1024, 1025, 1023)
#: more than 65,535 elements: only where the result isn't larger still and the CPU is quick
_VAST = 65_537
#: elements of a result at most
_MOST = 300_000
#: seconds of CPU time that a derived call may take
_QUICK = 0.02


def widen(entry: Entry, *, values: bool = True) -> Entry:
    """The entry with its families and, for every sample, the layouts it runs in.

    Args:
        entry: as recorded.
        values: try special values as well. A polynomial of degree 1e38 never returns, so whoever asks must be able to
            stop it.
    """
    derived = list(_derived(entry, values))
    own = [s for s in entry.samples if s.shape_class != "scalar"] if is_random(entry) else entry.samples
    samples = [replace(s, layouts=tuple(_layouts(entry.api, s))) for s in [*(own or entry.samples), *derived]]
    kind = "unary" if entry.kind == "other" and is_elementwise(entry) else entry.kind
    return replace(entry, samples=samples, kind=kind)


def _derived(entry: Entry, values: bool) -> Iterator[Sample]:
    plain = [s for s in entry.samples if s.group == "float"]
    if not plain or entry.kind in ("module", "twin"):  # a twin has its operator's kernels, and these are tested there
        return
    base = next((s for s in plain if _resizable(s)), None)
    if base is None:
        return
    yield from _sized(entry, base)
    if is_random(entry):  # one number tells nothing, and the others don't depend on the values
        return
    yield from _shapes(entry, base)
    if entry.kind != "inplace" and values:
        yield from _valued(entry, base)


def is_random(entry: Entry) -> bool:
    """Whether the result depends on the seed of torch's generators."""
    if (entry.api, entry.variant) in _random:
        return _random[entry.api, entry.variant]
    sample = max(entry.samples, key=lambda s: sum(_numel(spec["s"]) for spec in s.tensors()))
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        ran = _run(entry, sample)
        results.append(tensors_of(ran[0]) if ran is not None else [])
    varies = any(one.shape != other.shape or _apart(one, other) for one, other in zip(*results, strict=False))
    _random[entry.api, entry.variant] = varies
    return varies


_random: dict[tuple[str, str], bool] = {}


def _apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (one == other) | ((one != one) & (other != other))
    return not bool(same.all())


def _run(entry: Entry, sample: Sample) -> tuple[Any, float] | None:
    """The result on the CPU and the seconds it took; None where it raises or comes to NaN."""
    try:
        fn, args, kwargs = sample.build(entry.api, CLASSES[sample.group], 1)
        start = time.process_time()
        with torch.no_grad():
            result = fn(*args, **kwargs)
        took = time.process_time() - start
    except Exception:
        return None
    outputs = tensors_of(result)
    if not outputs or any(t.layout is not torch.strided or t.numel() > _MOST for t in outputs):
        return None
    return result, took


def _runs(entry: Entry, sample: Sample, finite: bool = True) -> bool:
    ran = _run(entry, sample)
    if ran is None or ran[1] > _QUICK:
        return False
    if not finite:
        return True
    outputs = tensors_of(ran[0])
    fine = all(bool(t.isfinite().all()) for t in outputs if t.is_floating_point()) and any(t.numel() for t in outputs)
    return fine and (is_random(entry) or _is_well_conditioned(entry.api, sample, "as_given"))


def _is_well_conditioned(api: str, sample: Sample, layout: str) -> bool:
    """Whether float32 is right to three digits: a variance of zero under a square root leaves none."""
    results = []
    for dtype in (torch.float32, torch.float64):
        try:
            fn, args, kwargs = sample.build(api, torch.float32, 1)
            laid = (args, kwargs) if layout == "as_given" else relaid(args, kwargs, layout)
            assert laid is not None
            wide = {id(t): t.detach().to(dtype) for t in tensors_of(laid) if t.dtype is torch.float32}
            fn = fn.to(dtype) if isinstance(fn, torch.nn.Module) else fn
            torch.manual_seed(0)
            with torch.no_grad():
                results.append(tensors_of(fn(*replaced(laid[0], wide), **replaced(laid[1], wide))))
        except Exception:
            return True  # no float64, so nothing to say against it
    for narrow, golden in zip(*results, strict=False):
        if not golden.is_floating_point() or narrow.shape != golden.shape:
            continue
        error, size = (narrow.double() - golden.double()).nan_to_num().norm(), golden.double().nan_to_num().norm()
        if error > 1e-3 * size + 1e-30:
            return False
    return True


# ------------------------------------------------------------------------------------------------------------- sizes


def _resizable(sample: Sample) -> bool:
    """Whether its floating tensors are drawn, and one has a dimension to enlarge."""
    specs = list(sample.tensors())
    drawn = [spec for spec in specs if spec["v"][0] in ("u", "pd", "k") and "st" not in spec]
    return len(drawn) == len(specs) and any(size > 1 for spec in drawn for size in spec["s"])


def resized(sample: Sample, old: int, new: int, *, axis: int | None, ints: bool, family: str) -> Sample:
    """The sample with one size in place of another: along an axis or, with None, wherever it occurs in shapes; and, if
    asked, in whole numbers."""

    def grown(shape: list[int]) -> list[int]:
        if axis is not None and (not shape or shape[axis] != old):
            return shape
        at = None if axis is None else axis % len(shape)
        return [new if size == old and at in (None, i) else size for i, size in enumerate(shape)]

    def one(tree: Any) -> Any:
        if isinstance(tree, dict):
            if "T" in tree:
                return {"T": {**tree["T"], "s": grown(tree["T"]["s"])}}
            return {key: one(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [one(value) for value in tree]
        if ints and isinstance(tree, int) and not isinstance(tree, bool) and tree == old:
            return new
        return tree

    return replace(sample, args=one(sample.args), kwargs=one(sample.kwargs), family=family)


def _sized(entry: Entry, base: Sample) -> Iterator[Sample]:
    """One near each of the small blocks, one near 1024, and one of more than 65,535 elements."""
    few = entry.kind == "inplace"
    turn = sum(map(ord, entry.api))
    for sizes in (_SIZES,) if few else (_SIZES, _LONG):
        order = sizes[turn % len(sizes) :] + sizes[: turn % len(sizes)]
        for size in order[:3]:
            found = _first(_with_size(entry, base, size), 2 if sizes is _LONG else 1)
            yield from found
            if found:
                break
    if not few:
        yield from _first(_with_size(entry, _flat(base), _VAST), 1)


def _first(samples: Iterator[Sample], count: int) -> list[Sample]:
    """The first ``count`` of different shapes."""
    found: dict[str, Sample] = {}
    for sample in samples:
        found.setdefault(sample.shape_signature(), sample)
        if len(found) == count:
            break
    return list(found.values())


def _with_size(entry: Entry, base: Sample, new: int) -> Iterator[Sample]:
    """The calls that run with a size of ``new`` along the last axis, along the first, or wherever a size occurs."""
    shapes = [spec["s"] for spec in base.tensors()]
    sizes = dict.fromkeys(size for shape in shapes for size in reversed(shape) if size > 1)
    for axis, old, ints in itertools.product((-1, 0, None), sizes, (False, True)):
        if axis is not None and not any(shape and shape[axis] == old for shape in shapes):
            continue
        sample = resized(base, old, new, axis=axis, ints=ints, family="size")
        if _is_modest(sample, new) and _result_is_modest(entry, sample) and _runs(entry, sample):
            yield sample


def _is_modest(sample: Sample, new: int) -> bool:
    """Whether its tensors are small, and its whole numbers, which may be a result's shape, as well."""
    numbers = [n for n in _numbers([sample.args, sample.kwargs]) if n > 1]
    asked = _numel(numbers) if new in numbers else 0
    return sum(_numel(spec["s"]) for spec in sample.tensors()) <= 4 * _VAST and asked <= 4 * _VAST


def _result_is_modest(entry: Entry, sample: Sample) -> bool:
    """Whether the result is small, asked of torch's shape rules: ``diag`` of 65,537 elements has 4 billion."""
    try:
        fn, args, kwargs = sample.build(entry.api, torch.float32, 1)
        meta = {id(t): t.detach().to("meta") for t in tensors_of((args, kwargs))}
        with torch.no_grad():
            result = fn(*replaced(args, meta), **replaced(kwargs, meta))
        return all(t.numel() <= _MOST for t in tensors_of(result))
    except Exception:  # no rule, or one that depends on the values: then only what is small anyway
        return sum(_numel(spec["s"]) for spec in sample.tensors()) <= 1 << 15


def _numbers(tree: Any) -> Iterator[int]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _numbers(value) if key != "T" else ()
    elif isinstance(tree, list):
        for value in tree:
            yield from _numbers(value)
    elif isinstance(tree, int) and not isinstance(tree, bool):
        yield tree


def _flat(base: Sample) -> Sample:
    """All dimensions but the last made 1, so that the last can be long."""
    return _mapped(base, lambda spec: {**spec, "s": [*[1] * (len(spec["s"]) - 1), *spec["s"][-1:]]}, "size")


def _shapes(entry: Entry, base: Sample) -> Iterator[Sample]:
    """No dimension, no element, and enough dimensions to be transposed, unless torch's own samples have them."""
    shapes = [spec["s"] for sample in entry.samples if sample.group == "float" for spec in sample.tensors()]
    for rank, front in ((2, [5]), (4, [2, 3, 4])):
        if not any(len(shape) >= rank and min(shape) > 1 for shape in shapes):
            higher = _mapped(base, lambda spec, front=front: {**spec, "s": [*front, *spec["s"][-1:]]}, "size")
            if _runs(entry, higher):
                yield higher
    if [] not in shapes:
        scalar = _mapped(base, lambda spec: {**spec, "s": [], "v": _inside(spec["v"])}, "scalar")
        if _runs(entry, scalar):
            yield scalar
    if not any(0 in shape for shape in shapes):
        sizes = dict.fromkeys(size for shape in (s["s"] for s in base.tensors()) for size in shape if size > 1)
        for size in sizes:
            empty = resized(base, size, 0, axis=None, ints=False, family="empty")
            if _runs(entry, empty, finite=False):
                yield empty
                break


def _inside(values: list[Any]) -> list[Any]:
    """One value within the range rather than a drawn one, which might come to zero."""
    kind, *given = values
    return ["k", round(given[0] + 0.7 * (given[1] - given[0]), 3)] if kind == "u" else values


def _mapped(sample: Sample, change: Any, family: str) -> Sample:
    args, kwargs = json.loads(json.dumps([sample.args, sample.kwargs]))
    new = replace(sample, args=args, kwargs=kwargs, family=family)
    for spec in new.tensors():
        if spec["d"] == "*":
            spec.update(change(dict(spec)))
    return new


def _numel(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


# ------------------------------------------------------------------------------------------------------------ values


def is_elementwise(entry: Entry) -> bool:
    """Whether each element of the only output depends on that element of the only input, and on nothing else."""
    sample = next((s for s in entry.samples if s.group == "float" and _resizable(s)), None)
    if sample is None or len(list(sample.tensors())) != 1 or entry.api.rpartition(".")[2].startswith("__"):
        return False
    try:
        fn, args, kwargs = sample.build(entry.api, torch.float32, 1)
        x = tensors_of((args, kwargs))[0].detach()
        with torch.no_grad():
            torch.manual_seed(0)
            before = fn(*args, **kwargs)
            if not isinstance(before, torch.Tensor) or before.shape != x.shape:
                return False
            seen = 0
            for place in sorted({x.numel() * i // 6 for i in range(6)}):
                flat = x.flatten().clone()  # flatten gives a view
                flat[place] = flat[place - 1]
                torch.manual_seed(0)
                after = fn(*_with(args, flat.reshape(x.shape)), **_with(kwargs, flat.reshape(x.shape)))
                changed = (before.flatten() != after.flatten()).nonzero().flatten().tolist()
                if changed not in ([], [place]):
                    return False
                seen += len(changed)
    except Exception:
        return False
    return seen > 1


def _with(tree: Any, x: torch.Tensor) -> Any:
    return replaced(tree, {id(t): x for t in tensors_of(tree)})


def _valued(entry: Entry, base: Sample) -> Iterator[Sample]:
    """Special values where the operator takes any number."""
    free = all(spec["v"][0] == "u" and spec["v"][1] < -1 and spec["v"][2] > 1 for spec in base.tensors())
    if not free and entry.kind != "unary":
        return
    elementwise = entry.kind in ("unary", "binary", "inplace") or is_elementwise(entry)
    wide = next(iter(_with_size(entry, base, 33)), base)
    families = ("special",) if elementwise else ("nonfinite", "mean", "ties")
    for family in families:
        sample = _mapped(wide, lambda spec, family=family: {**spec, "v": [family]}, family)
        if family == "nonfinite" and entry.kind == "other" and not _keeps_company(entry, sample):
            continue
        if _runs(entry, sample, finite=family in ("mean", "ties")) and _is_quick(entry, sample):
            yield sample
    unary = entry.kind == "unary" or (entry.kind == "other" and is_elementwise(entry))
    if unary and len(list(base.tensors())) == 1:
        every = _mapped(base, lambda spec: {**spec, "s": [1 << 16], "v": ["every"]}, "every")
        ran = _run(entry, every)
        if ran is not None and ran[1] < 2 * _QUICK and _is_quick(entry, every):
            yield every


def _is_quick(entry: Entry, sample: Sample) -> bool:
    """Whether the values of the other dtypes, which reach further or lie closer, take no longer, backward as well."""
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        try:
            fn, args, kwargs = sample.build(entry.api, dtype, 1)
            wide = {
                id(t): t.detach().double().requires_grad_(t.requires_grad)
                for t in tensors_of((args, kwargs))
                if t.is_floating_point()
            }
            start = time.process_time()
            for result in tensors_of(fn(*replaced(args, wide), **replaced(kwargs, wide))):
                if result.requires_grad:
                    torch.autograd.backward(result.sum(), retain_graph=True)
            if time.process_time() - start > 8 * _QUICK:
                return False
        except Exception:
            continue
    return True


def _keeps_company(entry: Entry, sample: Sample) -> bool:
    """Whether a NaN stays where it belongs: an operator that iterates or decomposes has no say on one."""
    ran = _run(entry, sample)
    return ran is not None and ran[1] < _QUICK and "linalg" not in entry.api


# ----------------------------------------------------------------------------------------------------------- layouts


def _layouts(api: str, sample: Sample) -> Iterator[str]:
    """Layouts that change an argument, and in which the CPU gives the same values as for a plain copy of them."""
    if sample.family in ("every", "empty") or sample.group != "float":
        return
    for layout in LAYOUTS:
        try:
            results = []
            for plain in (False, True):
                fn, args, kwargs = sample.build(api, torch.float32, 1)
                laid = relaid(args, kwargs, layout)
                if laid is None:
                    break
                if plain:
                    copies = {id(t): t.detach().contiguous().clone() for t in tensors_of(laid)}
                    laid = replaced(laid[0], copies), replaced(laid[1], copies)
                torch.manual_seed(0)
                start = time.process_time()
                with torch.no_grad():
                    results.append(tensors_of(fn(*laid[0], **laid[1])))
                if time.process_time() - start > 0.1:
                    break
            fine = len(results) == 2 and _alike(*results) and _is_well_conditioned(api, sample, layout)
            if fine and _runs_in_16_bits(api, sample, layout):
                yield layout
        except Exception:
            continue


def _runs_in_16_bits(api: str, sample: Sample, layout: str) -> bool:
    """Whether the CPU runs it in 16 bits as well, or says that it has no kernel."""
    for dtype in (torch.float16, torch.bfloat16):
        fn, args, kwargs = sample.build(api, dtype, 1)
        laid = relaid(args, kwargs, layout)
        try:
            if laid is not None:
                fn(*laid[0], **laid[1])
        except Exception as error:
            if "INTERNAL ASSERT" in str(error):
                return False
    return True


def _alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4, equal_nan=True)
        for a, b in zip(one, other, strict=True)
        if not (a.is_complex() or b.is_complex())
    )
