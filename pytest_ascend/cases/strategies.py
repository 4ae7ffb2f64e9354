"""Hypothesis strategies for the inputs of an operator, and the decorator that tests with them.

Strategies are written so that they shrink well: sizes towards 1, layouts and values towards the plain ones that are
listed first. A size that arguments share is drawn once for each example, by its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import hypothesis
import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st

from pytest_ascend.cases.layouts import relay

__all__ = ["LAYOUTS", "SIZES", "SPECIAL", "ascend_cases", "dim", "dtype", "indices", "ints", "tensors"]

Test = TypeVar("Test", bound=Callable[..., Any])

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "channels_last")
"""Layouts of memory, the plain one first. One that a shape can't have (``channels_last`` needs 4 or 5 dimensions) gives
a contiguous tensor.
"""
SPECIAL = ("ordinary", "large_mean", "ties", "signed_zeros", "subnormal", "nonfinite", "extremes")
"""Sorts of values. ``ordinary``: 1, small whole numbers or a normal distribution. ``large_mean``: those around 1,000.
``ties``: few different ones. ``signed_zeros``, ``nonfinite`` (NaN and both infinities), ``extremes`` (the largest and
the smallest normal numbers): some among ordinary ones. ``subnormal``: all below the smallest normal number.
"""
SIZES: st.SearchStrategy[int] = st.one_of(
    st.integers(1, 9), st.sampled_from((15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)), st.integers(1, 300)
)
"""Sizes of a dimension: small ones, those around the blocks that kernels work in, and any up to 300."""
_USUAL = ("ordinary", "large_mean", "ties", "signed_zeros")
_LARGEST = 1 << 20


def dim(name: str, sizes: st.SearchStrategy[int] | Sequence[int] = SIZES) -> st.SearchStrategy[int]:
    """A size that has the same value wherever its name stands in one example.

    Args:
        name: what it is called; in shapes and bounds ``"n"`` is short for ``dim("n")``.
        sizes: what it is drawn from. A name must have the same ``sizes`` everywhere.
    """
    return st.shared(_sizes(tuple(sizes) if isinstance(sizes, Iterable) else sizes), key=f"pytest-ascend dim {name}")


@functools.lru_cache(maxsize=256)
def _sizes(sizes: Any) -> st.SearchStrategy[Any]:
    """One strategy for equal choices: Hypothesis shares by the strategy's identity as well."""
    return sizes if isinstance(sizes, st.SearchStrategy) else st.sampled_from(sizes)


def _one(size: int | str | st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    if isinstance(size, str):
        return dim(size)
    return st.just(size) if isinstance(size, int) else size


@st.composite
def _shapes(draw: st.DrawFn, shapes: Any) -> tuple[int, ...]:
    if shapes is None:
        rank = draw(st.sampled_from((1, 2, 3, 0, 4)))
        sizes = SIZES if rank < 3 else st.one_of(st.integers(1, 9), st.sampled_from((15, 16, 17)))
        shape = tuple(draw(sizes) for _ in range(rank))
    else:
        chosen = draw(st.sampled_from(shapes)) if isinstance(shapes, list) else shapes
        shape = tuple(draw(_one(size)) for size in chosen)
    hypothesis.assume(torch.Size(shape).numel() <= _LARGEST)
    return shape


@st.composite
def tensors(
    draw: st.DrawFn,
    shapes: Any = None,
    dtypes: Any = ("float32",),
    layouts: Sequence[str] = LAYOUTS[:4],
    special: Sequence[str] = _USUAL,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Tensors on the CPU.

    Args:
        shapes: a shape, or a list of shapes to choose from. Its sizes are numbers, names of shared sizes
            (``("n", 64)``) or strategies; ``()`` has no dimension. None: any of 0 to 4 dimensions.
        dtypes: dtypes to choose from, by name or torch's own; the first is the plainest. A strategy as well, for one
            that arguments share: ``strategies.dtype("float32", "float16")``.
        layouts: out of :data:`LAYOUTS`.
        special: sorts of values, out of :data:`SPECIAL`.
        low, high: bounds of the values, both included; for integers -8 and 8 unless given.
        requires_grad: whether floating ones require a gradient, so that the backward pass is compared.

    Raises:
        ValueError: an unknown layout or sort of values.
    """
    shape = draw(_shapes(shapes))
    given = draw(dtypes) if isinstance(dtypes, st.SearchStrategy) else draw(st.sampled_from(_several(dtypes)))
    kind = _dtype(given)
    layout = draw(st.sampled_from(_known("layouts", layouts, LAYOUTS)))
    small = shape
    if layout == "expanded" and shape:
        wide = [d for d, n in enumerate(shape) if n > 1]
        if wide:
            which = draw(st.sampled_from(wide))
            small = tuple(1 if d == which else n for d, n in enumerate(shape))
    sort = draw(st.sampled_from(_known("special", special, SPECIAL)))
    values = draw(_values(small, kind, sort, low, high)).expand(shape)
    made = values if layout == "expanded" else relay(values, layout)
    made = values if made is None else made
    return made.requires_grad_() if requires_grad and kind.is_floating_point else made


def dtype(*names: Any) -> st.SearchStrategy[torch.dtype]:
    """A dtype that has the same value wherever the same ones are given in one example."""
    found = tuple(_dtype(name) for name in names)
    return st.shared(_sizes(found), key=f"pytest-ascend dtype {found}")


@st.composite
def _values(
    draw: st.DrawFn, shape: tuple[int, ...], kind: torch.dtype, sort: str, low: float | None, high: float | None
) -> torch.Tensor:
    tier = draw(st.integers(0, 5))
    seed = draw(st.integers(0, 0xFFFF)) if tier > 1 else 0
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    if kind is torch.bool:
        return (torch.ones(shape) if tier < 2 else torch.rand(shape, generator=generator)) > 0.5
    if not kind.is_floating_point and not kind.is_complex:
        least, most = int(-8 if low is None else low), int(8 if high is None else high)
        if tier < 2:
            plain = torch.ones(count) if tier == 0 else torch.arange(count)
            return plain.clamp(least, most).to(kind).reshape(shape)
        return torch.randint(least, most + 1, shape, generator=generator).to(kind)
    if tier == 0:
        x = torch.ones(count, dtype=torch.float64)
    elif tier == 1:
        x = torch.arange(count).double().remainder(5) - 2
    else:
        x = torch.randn(count, generator=generator, dtype=torch.float64)
    real = torch.finfo(kind)
    if sort == "large_mean":
        x = x + 1000
    elif sort == "ties":
        x = x.round()
    elif sort == "subnormal":
        x = x.clamp(-8, 8) * (real.smallest_normal / 16)
    elif sort != "ordinary" and count:
        special = {
            "signed_zeros": (-0.0, 0.0),
            "nonfinite": (float("nan"), float("inf"), float("-inf")),
            "extremes": (real.max, real.min, real.smallest_normal),
        }[sort]
        for place in draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)):
            x[place] = draw(st.sampled_from(special))
    if low is not None or high is not None:
        bounds = (real.min if low is None else low), (real.max if high is None else high)
        if low is not None and high is not None and tier > 1 and sort == "ordinary":
            x = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
        x = x.clamp(*bounds)
    return x.reshape(shape).to(kind)


@st.composite
def ints(draw: st.DrawFn, low: int, high: int | str | st.SearchStrategy[int]) -> int:
    """Whole numbers from ``low`` up to, and without, ``high``: a number or the name of a shared size."""
    stop = draw(_one(high))
    hypothesis.assume(low < stop)
    return draw(st.integers(low, stop - 1))


@st.composite
def indices(
    draw: st.DrawFn, below: int | str | st.SearchStrategy[int], shapes: Any = None, dtypes: Any = ("int64",)
) -> torch.Tensor:
    """Tensors of indices into a dimension: whole numbers from 0 up to, and without, ``below``.

    ``below``: a number or the name of a shared size. ``shapes``, ``dtypes``: as for :func:`tensors`.
    """
    stop = draw(_one(below))
    hypothesis.assume(stop > 0)
    return draw(tensors(shapes, dtypes, ("contiguous",), ("ordinary",), low=0, high=stop - 1))


def ascend_cases(*, examples: int | None = None, **arguments: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Run a test that takes ``ascend_compare`` with many inputs; a failure shrinks to the smallest and plainest ones.

    Args:
        examples: how many inputs are tried; as Hypothesis's profile says unless given (100, or the profile ``ci``).
        **arguments: a strategy for each of the test's arguments that is no fixture.

    One result is recorded for all inputs: the failure, or the pass. Inputs that the device doesn't support are passed
    over. Hypothesis keeps failing inputs in its example database and tries them first in the next run; in CI its own
    profile draws the same inputs in every run.
    """

    def decorate(test: Test) -> Test:
        parameters = inspect.signature(test).parameters
        if "ascend_compare" not in parameters:
            raise TypeError(f"{test.__name__} has no argument ascend_compare, so it would compare nothing")
        unknown = sorted(set(arguments) - set(parameters))
        if unknown:
            raise TypeError(f"{test.__name__} has no argument {', '.join(unknown)}")
        suppressed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
        chosen: dict[str, Any] = {} if examples is None else {"max_examples": examples}
        settings = hypothesis.settings(
            deadline=None, report_multiple_bugs=False, suppress_health_check=suppressed, **chosen
        )
        given = settings(hypothesis.given(**arguments)(test))

        @functools.wraps(given)
        def whole(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            many = kwargs["ascend_compare"].many()
            many.run(lambda: given(*args, **{**kwargs, "ascend_compare": many.each}))

        return whole  # type: ignore[return-value]

    return decorate


def _several(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, (str, torch.dtype)) else tuple(values)


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    chosen = (given,) if isinstance(given, str) else tuple(given)
    for one in chosen:
        if one not in known:
            raise ValueError(f"{what}: {one!r} is not known: it is one of {', '.join(known)}")
    return tuple(sorted(chosen, key=known.index))


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtypes: {name!r} is no dtype of torch's")
    return found
