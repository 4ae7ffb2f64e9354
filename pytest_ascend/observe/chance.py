"""Random outputs: no two devices draw the same numbers, but as a whole they must be like the CPU's.

A random output differs from the golden everywhere, so without a look at its statistics any number would be excused: a
dropout that keeps 10 % in place of 90 %, doesn't scale what it keeps, or always drops the first elements. The CPU runs
with :data:`CPU_RUNS` seeds and the target with :data:`TARGET_RUNS`, and what is compared is how the CPU's own runs
differ from each other. That needs no table of random operators, and it holds where elements are not independent: a
dropout of whole channels, one draw for all, a model's layers after a dropout.

Compared are, run by run: the share of zeros, how often zeros and others alternate and where zeros lie, the level and
size of values (cut off at the CPU's outer half percents, because a mean of heavy tails says nothing), the correlation
of neighbours, and the largest distance between distribution functions (Kolmogorov-Smirnov). A statistic is wrong when
the mean of the target's runs is further from that of the CPU's than Student's t allows at 1e-10, by more than
:data:`MATERIAL`, and when every single run of the target leans the same way: an event that is rare on the CPU, such as
a layer dropped as a whole, isn't a different distribution.

Three more things are exact: where the CPU gives every element one of two values (dropout of a given input), so must the
target; where it only orders the same values anew, they must be those values; a bounded range is kept, NaN and
infinities don't appear. The target must repeat itself with the same seed, and not with another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pytest_ascend.judge.verdict import Kind
from pytest_ascend.observe.capture import Capture, run
from pytest_ascend.observe.reference import leaves, rms
from pytest_ascend.targets.base import Target
from pytest_ascend.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook

__all__ = ["examine", "seeded"]

CPU_RUNS, TARGET_RUNS = 16, 4
#: of a model with more parameters than so many
LARGE, LARGE_RUNS = 10_000_000, 8
#: Student's t at a two-sided level of 1e-10, by number of runs
_T = {CPU_RUNS: 15.8, LARGE_RUNS: 59.5}
#: the least difference of a statistic that counts; all of them are shares, or parts of the width of a distribution
MATERIAL = 0.015
#: each run of the target must lean the same way by so many of the CPU's standard deviations
_LEAN = 3.0
#: elements of an output looked at, in blocks of neighbours; of each where there are many outputs
SAMPLE, BLOCK = 1 << 14, 256
FEW, SAMPLE_OF_MANY = 4, 1 << 12
#: relative difference between two values that are the same but for rounding, modes of the chip included
_SAME = {torch.bfloat16: 2.0**-6}
_SAME_ELSE = 2.0**-8
#: so many elements, or values, are enough to say what a distribution is like
_ENOUGH, _MANY = 32, 4096
#: values of the CPU's runs that distributions are compared with
_POOLED = 1 << 16

#: of an output that differs from itself
UNSTEADY = "random, and the same seed gives the target other numbers: no run can be repeated"

Found = tuple[Kind | None, str]


def seeded(
    look: SecondLook,
    target: Target,
    number: int,
    *,
    floating: torch.dtype | None = None,
    fn: Callable[..., Any] | None = None,
    backward: bool = True,
) -> Capture:
    """Run the case with its seed changed to the ``number``-th other one; 0 keeps it.

    Raises:
        RunFailed: it raised.
    """
    setting = dataclasses.replace(look.setting, seed=look.setting.seed ^ number)
    if not backward:
        setting = dataclasses.replace(setting, backward=False)
    relaid = None if target.name == "cpu" else look.relaid
    with _other_seeds(number):
        return run(look.case, target, setting, fn=fn, floating=floating, relaid=relaid)


@contextlib.contextmanager
def _other_seeds(number: int) -> Iterator[None]:
    """Make ``torch.manual_seed`` set another seed, for callables that seed themselves."""
    original = torch.manual_seed

    def manual_seed(seed: Any) -> torch.Generator:
        return original(int(seed) ^ number)

    torch.manual_seed = torch.random.manual_seed = manual_seed
    try:
        yield
    finally:
        torch.manual_seed = torch.random.manual_seed = original


def examine(
    look: SecondLook, actual: Capture, own: Sequence[Capture], paths: Collection[str], floating: torch.dtype | None
) -> dict[str, Found]:
    """What is wrong with the target's random numbers: path to kind and reason; a path that is right is missing.

    The kind is None where the target doesn't repeat itself.

    Args:
        look: reruns the case.
        actual: the target's run.
        own: the CPU's runs with the seed and with the first other one.
        paths: of outputs that are random on the CPU, and of the CPU's shape and dtype on the target.
        floating: the precision the CPU runs in, None for the case's own.

    Raises:
        RunFailed: the case raised with another seed.
    """
    if not paths:
        return {}
    size = sum(p.numel() for module in look.case.modules[:1] for p in module.parameters())
    count = LARGE_RUNS if size > LARGE else CPU_RUNS
    backward = any(path.startswith("grad(") for path in paths)
    cpu = [_Sampled.of(capture, paths) for capture in own]
    for number in range(len(own), count):
        options: dict[str, Any] = {"floating": floating, "fn": look.fn, "backward": backward}
        cpu.append(_Sampled.of(seeded(look, CpuTarget(), number, **options), paths))
    again = _Sampled.of(seeded(look, look.target, 0, backward=backward), paths)
    here = [_Sampled.of(actual, paths)]
    for number in range(1, TARGET_RUNS):
        here.append(_Sampled.of(seeded(look, look.target, number, backward=backward), paths))
    found: dict[str, Found] = {}
    for path in paths:
        theirs, ours = [s.values.get(path) for s in cpu], [s.values.get(path) for s in here]
        there, mine = [t for t in theirs if t is not None], [t for t in ours if t is not None]
        if len(there) < len(cpu) or len(mine) < len(here) or len({t.shape for t in (*there, *mine)}) > 1:
            continue  # a result whose shape is random: nothing to compare element by element
        if not there[0].numel():
            continue
        repeated = again.values.get(path)
        if repeated is None or not _equal(repeated, mine[0]):
            found[path] = None, UNSTEADY
            continue
        said = _compare(torch.stack(there), torch.stack(mine), here[0].dtypes[path])
        if said is not None:
            found[path] = said[0], f"random, and not as the CPU's: {said[1]}"
    return found


@dataclasses.dataclass
class _Sampled:
    """The values of one run at a sample of places: path to a flat float64 tensor."""

    values: dict[str, torch.Tensor]
    dtypes: dict[str, torch.dtype]

    @classmethod
    def of(cls, capture: Capture, paths: Collection[str]) -> _Sampled:
        found = {path: value for path, value in leaves(capture).items() if path in paths}
        size = SAMPLE if len(paths) <= FEW else SAMPLE_OF_MANY
        return cls({p: _sample(v, size) for p, v in found.items()}, {p: v.dtype for p, v in found.items()})


def _sample(value: torch.Tensor, size: int = SAMPLE) -> torch.Tensor:
    """Flat, in float64 (real and imaginary parts side by side); of a large tensor blocks from the first to the last."""
    value = value.detach()
    value = value.to_dense() if value.layout is not torch.strided else value
    if value.is_complex():
        value = torch.view_as_real(value.to(torch.complex128).resolve_conj().resolve_neg())
    flat = value.reshape(-1)
    if flat.numel() > size:
        starts = torch.linspace(0, flat.numel() - BLOCK, size // BLOCK, dtype=torch.float64).long()
        flat = flat[(starts[:, None] + torch.arange(BLOCK)).reshape(-1)]
    return flat.double()


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and bool(((left == right) | (left.isnan() & right.isnan())).all())


# --- one output -----------------------------------------------------------------------------------------------------


def _compare(cpu: torch.Tensor, here: torch.Tensor, dtype: torch.dtype) -> Found | None:
    """Compare runs (a row each) of the CPU and of the target; None where they are alike."""
    same = _SAME.get(dtype, _SAME_ELSE) if dtype.is_floating_point or dtype.is_complex else 0.0
    tests: tuple[Callable[[torch.Tensor, torch.Tensor, float], Found | None], ...]
    tests = (_one_seed, _reordered, _zeros, _two_values, _statistics, _bounded)
    if bool(cpu.isfinite().all()):
        wrong = _non_finite(cpu, here, same)
        if wrong is not None:
            return wrong
    cpu, here = (t.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for t in (cpu, here))
    return next((wrong for test in tests if (wrong := test(cpu, here, same)) is not None), None)


def _non_finite(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    bad = here.isnan() if bool(here.isnan().any()) else here.isinf()
    # One infinity may be a rare large number that the dtype can't hold.
    if not bool(bad.any(1).all() if not bool(here.isnan().any()) else bad.any()):
        return None
    what = "NaN" if bool(here.isnan().any()) else "infinite"
    return (
        Kind.non_finite,
        f"{int(bad[0].sum()) or int(bad.sum())} elements are {what}, and none is with any seed there",
    )


def _one_seed(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    """Whether the target draws the same numbers whatever the seed."""
    if not all(torch.equal(row, here[0]) for row in here[1:]):
        return None
    changed = [int((a != b).sum()) for a, b in itertools.pairwise(cpu)]
    return (Kind.spread, "it gives the same numbers with every seed") if min(changed) >= _ENOUGH else None


def _reordered(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    """Where the CPU's runs hold the same values in other orders, the target must have these values."""
    if any(bool((edge != edge[0]).any()) for edge in (cpu.amin(1), cpu.amax(1))) or cpu.shape[1] < 2:
        return None
    theirs = cpu.sort(1).values
    if not bool((theirs == theirs[0]).all()):
        return None
    room = same * (theirs[0].abs() + rms(theirs[0]))
    missing = (here.sort(1).values - theirs[0]).abs() > room
    if not bool(missing.any()):
        return None
    return Kind.exact, "the CPU puts the same values in another order for each seed, and here they are other values"


def _zeros(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    """The share of zeros, which tells most and is told first."""
    theirs, ours = ((t == 0).double().mean(1) for t in (cpu, here))
    mean = float(theirs.mean())
    # None in so many draws doesn't mean that there are never any.
    least = math.sqrt(max(mean * (1 - mean), 3 / cpu.numel()) / cpu.shape[1])
    if not _is_off(theirs, ours, least):
        return None
    kept, there = (f"{100 * (1 - share):.3g} %" for share in (float(ours.mean()), mean))
    return Kind.bias, f"it keeps {kept} of the elements, the CPU keeps {there} (not zero)"


def _statistics(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    pool = _Pool.of(cpu, same)
    theirs, ours = [pool.describe(row) for row in cpu], [pool.describe(row) for row in here]
    for name, what in _WHAT.items():
        there, mine = (torch.tensor([d[name] for d in rows], dtype=torch.float64) for rows in (theirs, ours))
        if _is_off(there, mine):
            return _KIND[name], what(float(mine.mean()), float(there.mean()), ours[0], theirs[0])
    return None


def _is_off(there: torch.Tensor, here: torch.Tensor, least: float = 0.0) -> bool:
    """Whether a statistic of the target's runs is another one than that of the CPU's, which deviates by ``least``."""
    critical = _T[len(there)] * math.sqrt(1 / len(here) + 1 / len(there))
    deviation = max(float(there.std()), least)
    apart = here - there.mean()
    if not abs(float(apart.mean())) > max(critical * deviation, MATERIAL):
        return False
    return bool((apart * torch.sign(apart[0]) > _LEAN * deviation).all())


def _two_values(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    """Where each element has two values on the CPU, dropped or kept, it has one of these on the target."""
    low, high = cpu.min(0).values, cpu.max(0).values
    room = same * (torch.maximum(low.abs(), high.abs()) + rms(cpu))
    told = high - low > 2 * room
    near = torch.minimum((cpu - low).abs(), (cpu - high).abs()) <= 0.25 * room
    if int(told.sum()) < _ENOUGH or not bool(near[:, told].all()):
        return None
    off = (torch.minimum((here - low).abs(), (here - high).abs()) > room)[:, told]
    often = bool((off.double().mean(1) >= 0.05).all())
    steady = off.sum(0) >= TARGET_RUNS - 1
    if not often and not bool(steady.any()):
        return None
    kept = torch.where(low.abs() > high.abs(), low, high)[told]
    factor = float((here[0][told][off[0]] / kept[off[0]]).median()) if bool(off[0].any()) else math.nan
    what = (
        f"{100 * float(off.double().mean()):.3g} % of the elements are" if often else f"{int(steady.sum())} always are"
    )
    reason = f"with any seed the CPU gives an element one of two values, and here {what} neither"
    return (Kind.bias if often else Kind.local), f"{reason} (kept ones are {factor:.3g} x the CPU's)"


def _bounded(cpu: torch.Tensor, here: torch.Tensor, same: float) -> Found | None:
    """Where the CPU's numbers end sharply, so do the target's."""
    if cpu.numel() < _MANY:
        return None
    low, high = cpu.amin(), cpu.amax()
    room = 0.05 * (high - low)
    if not bool(((here > high + room) | (here < low - room)).any()):
        return None
    values = cpu.reshape(-1).sort().values
    outer, middle, inner = (values[int((len(values) - 1) * q)] for q in (0.99, 0.5, 0.01))
    above = (here > high + room) & (high - outer <= 0.05 * (outer - middle))
    below = (here < low - room) & (inner - low <= 0.05 * (middle - inner))
    bad = above | below
    if not bool(bad.any(1).all()):
        return None
    there = f"between {float(low):.4g} and {float(high):.4g} with any seed"
    return Kind.local, f"{int(bad[0].sum())} elements are out of range, which is {there} there"


# --- statistics -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Pool:
    """All values of the CPU's runs, and what a run is measured by beside them.

    ``points`` are values at which distribution functions are compared, ``reached`` the share of the CPU's values up to
    each, ``room`` the rounding at each.
    """

    low: float
    high: float
    middle: float
    points: torch.Tensor
    reached: torch.Tensor
    room: torch.Tensor

    @classmethod
    def of(cls, cpu: torch.Tensor, same: float) -> _Pool:
        values = cpu[:: max(1, cpu.numel() // _POOLED)].reshape(-1).sort().values
        last = len(values) - 1
        low, middle, high = (float(values[int(last * q)]) for q in (0.005, 0.5, 0.995))
        points = values[torch.linspace(0, last, min(1024, len(values))).long()]
        points = torch.cat([points, (points[1:] + points[:-1]) / 2])  # between two of few values rounding plays no part
        reached = torch.searchsorted(values, points, right=True).double() / len(values)
        return cls(low, high, middle, points, reached, same * (2 * points.abs() + 0.5 * (high - low)))

    def describe(self, values: torch.Tensor) -> dict[str, float]:
        """The statistics of one run; shares, or in widths of the CPU's distribution."""
        width = max(self.high - self.low, 1e-300)
        zero = values == 0
        cut = (values.clamp(self.low, self.high) - self.middle) / width
        place = torch.arange(len(values), dtype=torch.float64) / max(len(values) - 1, 1)
        ordered = values.sort().values
        upper = torch.searchsorted(ordered, self.points + self.room, right=True).double() / len(values)
        lower = torch.searchsorted(ordered, self.points - self.room, right=True).double() / len(values)
        many = len(values) > 1
        return {
            "changes": float((zero[1:] != zero[:-1]).double().mean()) if many else 0.0,
            "places": float(place[zero].mean()) if bool(zero.any()) else 0.5,
            "distance": max(0.0, float((lower - self.reached).max()), float((self.reached - upper).max())),
            "level": float(cut.mean()),
            "size": float(cut.abs().mean()),
            "neighbours": float((cut[1:] * cut[:-1]).mean()) if many else 0.0,
            "kept": _kept(values),
        }


def _kept(values: torch.Tensor) -> float:
    kept = values[values != 0].abs()
    return float(kept.median()) if kept.numel() else 0.0


Words = Callable[[float, float, dict[str, float], dict[str, float]], str]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


_WHAT: dict[str, Words] = {
    "changes": lambda m, t, *_: (
        f"zeros lie together: {_percent(m)} of neighbours are one zero and one not, {_percent(t)} there"
    ),
    "places": lambda m, t, *_: (
        f"zeros lie {_percent(m)} of the way through the elements on average, {_percent(t)} there"
    ),
    "distance": lambda m, t, ours, theirs: (
        f"the distributions of values are {m:.2g} apart, the CPU's own {t:.2g} from seed to seed (the median of those "
        f"that are not zero is {ours['kept']:.4g}, {theirs['kept']:.4g} there)"
    ),
    "level": lambda m, t, *_: f"values lie {m - t:+.2g} of their range off",
    "size": lambda m, t, *_: f"values spread {m / t if t else math.inf:.3g} x as far",
    "neighbours": lambda m, t, *_: f"neighbours follow each other: their mean product is {m:.2g}, {t:.2g} there",
}
_KIND = {
    "changes": Kind.local,
    "places": Kind.local,
    "distance": Kind.spread,
    "level": Kind.bias,
    "size": Kind.bias,
    "neighbours": Kind.local,
}
