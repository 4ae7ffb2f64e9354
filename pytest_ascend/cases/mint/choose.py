"""The cases of mint's functions: torch's samples with mint's arguments. Torch-free at import, and without MindSpore.

A case is called ``mint.softmax[float16-transposed-7]``; number, dtype and layout mean the same as those of the torch
function's case.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ascend.cases.catalogue import caselist
from pytest_ascend.cases.catalogue.choose import DTYPES, Wish, chosen, matching
from pytest_ascend.cases.catalogue.entries import Entry, Sample
from pytest_ascend.cases.mint import own, pairs
from pytest_ascend.cases.mint.pairs import Pair, Unpaired
from pytest_ascend.cases.pending import Absent, CaseUnavailable, Pending

if TYPE_CHECKING:
    from pytest_ascend.cases.case import Case

__all__ = ["is_mint", "pendings"]


def is_mint(pattern: str) -> bool:
    """Whether a pattern means functions of mint: ``mint.*``, ``mindspore.mint.softmax``."""
    return pairs.public(pattern).startswith(pairs.PREFIX)


def pendings(apis: Sequence[str], settings: Any) -> Iterator[Pending | Absent]:
    """The cases of the functions that the patterns name, and what they name that has none.

    Args:
        apis: names and globs, ``mint.softmax`` or ``mint.nn.functional.*``.
        settings: the plugin's.

    Raises:
        ValueError: MindSpore isn't installed, or a pattern names nothing; the text says what to do.
    """
    from pytest_ascend.targets import mindspore

    if not mindspore.installed():
        raise ValueError(mindspore.MISSING)
    wish = Wish.of(settings)
    compare = str(getattr(settings, "compare", None) or "")
    target = compare if compare.startswith("mindspore") else "mindspore"
    patterns = [pairs.public(pattern) for pattern in apis]
    known = pairs.names()
    wanted = matching(patterns, known)
    listed = _entries()
    for name in known:
        if name not in wanted:
            continue
        pair = pairs.known(name)
        assert pair is not None
        if isinstance(pair, Unpaired):
            yield Absent(name, pair.reason)
            continue
        yield from _of_pair(pair, listed.get(pair.samples, ()), wish, target)


def _of_pair(pair: Pair, listed: Sequence[Entry], wish: Wish, target: str) -> Iterator[Pending | Absent]:
    own_one = own.entry(pair.name, pair.torch)
    left_out = pairs.VARIANTS.get(pair.name, ())
    entries = [own_one] if own_one is not None else [entry for entry in listed if entry.variant not in left_out]
    able = functools.partial(_expressible, pair)
    found = False
    for entry in entries:
        for dtype, number, sample, layout in chosen(entry, wish, able):
            found = True
            yield _pending(pair, entry, dtype, number, sample, layout, target)
    if found:
        return
    if not entries:
        yield Absent(pair.name, "its torch function has no sample")
    elif not any(map(able, (sample for entry in entries for sample in entry.samples))):
        yield Absent(pair.name, "it takes none of the samples of its torch function")
    else:
        yield Absent(pair.name, f"no case in {', '.join(wish.dtypes or DTYPES)} and the layouts asked for")


@functools.lru_cache(maxsize=1)
def _entries() -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in caselist.load().entries:
        found.setdefault(entry.api, []).append(entry)
    return found


def _expressible(pair: Pair, sample: Sample) -> bool:
    """Whether a sample's arguments can be said to mint."""
    if sample.made is not None:
        return pairs.keywords(pair, sample.made["k"]) is not None
    if pair.in_place and sample.group != "float":  # the result has another dtype than the argument
        return False
    if len(sample.args) < pairs.LEAST.get(pair.name, 0):
        return False
    return pairs.keywords(pair, sample.kwargs) is not None


def _pending(pair: Pair, entry: Entry, dtype: str, number: int, sample: Sample, layout: str, target: str) -> Pending:
    shown = sample.family or layout if layout == "as_given" else layout
    words = [dtype, shown, str(number), entry.variant]
    return Pending(
        id=f"{pair.name}[{'-'.join(filter(None, words))}]",
        api=pair.name,
        dtype=dtype,
        build=functools.partial(_build, pair, entry, dtype, number, layout, target),
        origin=f"case list, {entry.api}{f' ({entry.variant})' if entry.variant else ''}, sample {number}",
        detail={"layout": layout, "family": sample.family, "reference": pair.torch},
        keywords=(layout, *([sample.family] if sample.family else [])),
    )


def _build(pair: Pair, entry: Entry, dtype: str, number: int, layout: str, target: str) -> tuple[Case, dict[str, Any]]:
    """Make the case. Raises ``CaseUnavailable`` where this torch can't."""
    import torch

    from pytest_ascend.cases.catalogue.laid import laid_out
    from pytest_ascend.cases.catalogue.names import resolve
    from pytest_ascend.cases.mint import calls

    sample = entry.samples[number]
    try:
        fn, args, kwargs = sample.build(entry.api, getattr(torch, dtype), entry.seed(number))
        counterpart = resolve(pair.torch)
    except AttributeError as error:
        raise CaseUnavailable(f"{pair.name} can't be judged with torch {torch.__version__}: {error}") from None
    args, kwargs = laid_out(args, kwargs, layout, f"sample {number} of {entry.api}")
    if sample.made is not None:
        return calls.of_module(pair, counterpart, fn, sample, args, kwargs, target, entry.seed(number))
    return calls.of_function(pair, counterpart, args, kwargs, target)
