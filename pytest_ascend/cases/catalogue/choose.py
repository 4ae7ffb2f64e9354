"""Choosing from the case list: APIs, dtypes, layouts, how many samples, eager or compiled. Torch-free at import.

A case is called ``torch.softmax[float16-transposed-7]``: its dtype, its layout (or the family it was made for, such as
``size``), and its number in the list, so that the name means the same case whatever else was asked for.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ascend.cases.catalogue.caselist import CaseList, load
from pytest_ascend.cases.catalogue.entries import Entry, Sample
from pytest_ascend.cases.pending import Absent, CaseUnavailable, Pending

if TYPE_CHECKING:
    from pytest_ascend.cases.case import Case

__all__ = ["Wish", "cases", "chosen", "matching", "others", "pending_of", "pendings"]

DTYPES = ("float32", "float16", "bfloat16")
#: for an API that has none of the default dtypes
FALLBACK = ("int64", "complex64", "bool", "float64")
LAYOUTS = ("as_given", "transposed", "sliced", "expanded", "channels_last", "scalar", "empty")
#: for which the arguments stay as they were made
AS_MADE = ("as_given", "scalar", "empty")
SAMPLES = 3


@dataclass(frozen=True)
class Wish:
    """What the command line asks for.

    Attributes:
        dtypes: None: the default ones, or what an API has where it has none of them.
        layouts: names of :data:`LAYOUTS`; ``scalar`` and ``empty`` are tensors without dimensions, without elements.
        samples: how many of torch's own samples per API, variant and dtype.
        modes: ``eager``, ``compile`` or both.
        live: take the samples from the installed torch rather than from the list.
    """

    dtypes: tuple[str, ...] | None = None
    layouts: tuple[str, ...] = LAYOUTS
    samples: int = SAMPLES
    modes: tuple[str, ...] = ("eager",)
    live: bool = False

    @classmethod
    def of(cls, settings: Any) -> Wish:
        """From the plugin's settings, lists there separated by commas; what isn't given there has its default."""
        given = {name: getattr(settings, name, None) for name in ("dtypes", "layouts", "samples", "modes", "live")}
        return cls(**{name: _words(value) for name, value in given.items() if value is not None})


def _words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def pendings(apis: Sequence[str], settings: Any) -> Iterator[Pending | Absent]:
    """The cases of the APIs that the patterns name, and what of torch's API they name that has none.

    Args:
        apis: public names and globs, ``torch.softmax`` or ``torch.nn.functional.*``; those that begin with ``mint.``
            mean MindSpore's.
        settings: the plugin's; see :class:`Wish`.

    Raises:
        ValueError: a pattern names nothing; the text says the nearest name there is.
    """
    of_mint = [pattern for pattern in apis if pattern.removeprefix("mindspore.").startswith("mint.")]
    if of_mint:
        from pytest_ascend.cases import mint

        yield from mint.pendings(of_mint, settings)
        apis = [pattern for pattern in apis if pattern not in of_mint]
        if not apis:
            return
    wish = Wish.of(settings)
    if wish.live:
        from pytest_ascend.cases.catalogue.live import case_list

        listed = case_list(apis)
    else:
        listed = load()
    known = list(dict.fromkeys(entry.api for entry in listed.entries))
    chosen = matching(apis, known, others(listed, apis))
    for entry in listed.entries:
        if entry.api in chosen:
            yield from _of_entry(entry, wish)
    globs = [pattern for pattern in apis if pattern not in known]
    for name, reason in others(listed, apis).items():
        if name not in chosen and any(fnmatch.fnmatchcase(name, pattern) for pattern in globs):
            yield Absent(name, reason)


def matching(patterns: Iterable[str], known: Sequence[str], others: Iterable[str] = ()) -> set[str]:
    """The known names that a pattern means; ``torch.`` may be left out.

    Raises:
        ValueError: a pattern means none of them and none of the others.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in known if fnmatch.fnmatchcase(name, pattern)}
        if not found and not any(fnmatch.fnmatchcase(name, pattern) for name in others):
            raise ValueError(f"no API is called {pattern!r}{_nearest(pattern, known)}")
        chosen |= found
    return chosen


def _nearest(pattern: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.6)
    if not near:
        tail = pattern.rpartition(".")[2]
        near = [name for name in known if name.rpartition(".")[2] == tail][:1]
    if not near:
        tails = {name.rpartition(".")[2]: name for name in known}
        near = [tails[name] for name in difflib.get_close_matches(pattern.rpartition(".")[2], list(tails), n=1)]
    return f"; the nearest there is: {near[0]!r}" if near else ""


def others(listed: CaseList, apis: Sequence[str]) -> dict[str, str]:
    """What of torch's public functions has no case, and why. Asks torch only where a glob could mean some."""
    if not any("*" in pattern or "?" in pattern for pattern in apis):
        return {}
    from pytest_ascend.cases.catalogue.universe import without_cases

    return without_cases({entry.api for entry in listed.entries}, listed.left_out)


# ------------------------------------------------------------------------------------------------------------ cases


def _of_entry(entry: Entry, wish: Wish) -> Iterator[Pending | Absent]:
    found = False
    for one in cases(entry, wish):
        found = True
        yield one
    if not found:
        yield Absent(entry.api, f"no case in {', '.join(wish.dtypes or DTYPES)} and the layouts asked for")


def cases(entry: Entry, wish: Wish) -> Iterator[Pending]:
    """The cases of one entry that are asked for."""
    for dtype, number, sample, layout in chosen(entry, wish):
        for mode in wish.modes:
            if mode == "eager" or (layout == "as_given" and not sample.family):  # compiling takes its time
                yield pending_of(entry, number, sample, dtype, layout, mode)


def chosen(
    entry: Entry, wish: Wish, able: Callable[[Sample], bool] = lambda sample: True
) -> Iterator[tuple[str, int, Sample, str]]:
    """Dtype, number, sample and layout of the cases that are asked for, out of the samples that will do."""
    for dtype in _dtypes(entry, wish):
        numbered = [(i, s) for i, s in enumerate(entry.samples) if s.group == _group(dtype) and able(s)]
        for number, sample, layout in _picked(numbered, entry, wish, dtype):
            yield dtype, number, sample, layout


def _dtypes(entry: Entry, wish: Wish) -> list[str]:
    groups = {sample.group for sample in entry.samples}
    able = [name for name in entry.dtypes if _group(name) in groups]
    if wish.dtypes is not None:
        return [name for name in wish.dtypes if name in able]
    usual = [name for name in DTYPES if name in able]
    return usual or [name for name in FALLBACK if name in able][:1] or able[:1]


def _group(dtype: str) -> str:
    return next((c for c in ("float", "complex", "bool") if c in dtype), "int")


def _picked(
    numbered: list[tuple[int, Sample]], entry: Entry, wish: Wish, dtype: str
) -> Iterator[tuple[int, Sample, str]]:
    """Samples with the layout each is run in: torch's own as given, each other layout once or twice, each family."""
    own = [(i, s) for i, s in numbered if not s.family and s.shape_class == "plain"]
    if "as_given" in wish.layouts:
        yield from ((i, s, "as_given") for i, s in own[: wish.samples])
        for i, sample in numbered:
            if sample.family and sample.family not in ("scalar", "empty") and _fits(sample, dtype):
                yield i, sample, "as_given"
    for layout in wish.layouts:
        if layout in ("scalar", "empty"):
            shaped = [(i, s) for i, s in numbered if s.shape_class == layout]
            yield from ((i, s, layout) for i, s in shaped[:1])
        elif layout != "as_given":
            able = [(i, s) for i, s in numbered if layout in s.layouts and s.shape_class == "plain"]
            yield from ((i, s, layout) for i, s in _two(able))


def _two(able: list[tuple[int, Sample]]) -> list[tuple[int, Sample]]:
    """A sample of torch's own and one of another size, with rows and columns where there is one: gaps lie between."""
    own = [one for one in able if not one[1].family]
    sized = [one for one in able if one[1].family == "size"]
    return [*own[:1], *sorted(sized, key=lambda one: not one[1].has_rows)[:1]]


def _fits(sample: Sample, dtype: str) -> bool:
    """Whether a family is for the dtype: all 65,536 patterns are those of 16-bit types."""
    return sample.family != "every" or dtype in ("float16", "bfloat16")


def pending_of(entry: Entry, number: int, sample: Sample, dtype: str, layout: str, mode: str) -> Pending:
    """A case that is built when it runs."""
    shown = sample.family or layout if layout == "as_given" else layout
    words = [
        dtype,
        shown,
        str(number),
        *([entry.variant] if entry.variant else []),
        *([mode] if mode != "eager" else []),
    ]
    return Pending(
        id=f"{entry.api}[{'-'.join(filter(None, words))}]",
        api=entry.api,
        dtype=dtype,
        build=partial(_build, entry, number, dtype, layout, mode),
        origin=f"case list, {entry.api}{f' ({entry.variant})' if entry.variant else ''}, sample {number}",
        detail={"layout": layout, "family": sample.family, "mode": mode},
        keywords=(layout, *([sample.family] if sample.family else []), mode),
    )


def _build(entry: Entry, number: int, dtype: str, layout: str, mode: str) -> tuple[Case, dict[str, Any]]:
    """Make the case. Raises ``CaseUnavailable`` where this torch can't."""
    import torch

    from pytest_ascend.cases.case import Case
    from pytest_ascend.cases.catalogue.laid import Maker, laid_out

    sample = entry.samples[number]
    try:
        fn, args, kwargs = sample.build(entry.api, getattr(torch, dtype), entry.seed(number))
    except AttributeError as error:
        raise CaseUnavailable(f"{entry.api} can't be tested with torch {torch.__version__}: {error}") from None
    args, kwargs = laid_out(args, kwargs, layout, f"sample {number} of {entry.api}")
    if sample.made is None and not any(True for _ in sample.tensors()):
        fn, args = Maker(fn), (torch.empty(0, dtype=getattr(torch, dtype)), *args)
    options: dict[str, Any] = {"checkpoints": ()} if sample.made is not None else {}
    if mode == "compile":
        from pytest_ascend.cases.catalogue.compiled import Compiled, Eager

        if entry.kind == "inplace":
            options["backward"] = False
        return Case(Compiled(fn), args, kwargs, entry.api), {**options, "reference": Eager(fn)}
    return Case(fn, args, kwargs, entry.api), options
