"""Memory over repeated calls: device, native heap and Python's objects; what grows, from which line, and who holds it.

Each series is read where it is settled: right after a garbage collection, at equal distances. What was there before is
frozen (``gc.freeze``), so that a collection only looks at what the calls made. Where something grows, a few calls more
are traced: which line made the tensors that outlive their call, and what refers to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from pytest_ascend.health.growth import Growth, growth

if TYPE_CHECKING:
    from pytest_ascend.targets.base import Target

__all__ = ["LEAST", "Leak", "Looked", "look"]

LEAST = 30
"""Fewer calls say nothing."""

_POINTS = 20  # settled measurements
_TRACED = 12  # calls that are traced
_ROUNDS = 2  # times that growth of the host has to be found again
_PAUSE = 0.1  # seconds before each
_AS_FAST = 0.7  # of the rate that was found before
_WORTH_A_NOTE = 64 << 10  # bytes of the host
_DEEP = 6  # levels that owners are looked for
_MOST = 3  # places that are named
_BROAD = 200  # referrers of one object
_UNITS = {"device": "bytes", "heap": "bytes", "python": "objects"}
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class Leak:
    """Something that grows.

    Attributes:
        what: ``device``, ``heap`` (the host's native memory) or ``python`` (objects).
        growth: of the series.
        places: lines that made what stayed, each with what it was and how much for each call.
        owners: what refers to it.
    """

    what: str
    growth: Growth
    places: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()

    def line(self) -> str:
        """One line: what grows, how fast and how sure that is."""
        names = {"device": "device memory", "heap": "host memory", "python": "the number of Python's objects"}
        rate = self.growth.rate
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return (
            f"{names[self.what]} grows by {shown} {_UNITS[self.what]} per call "
            f"({self.growth.total:,.0f} in all; by chance in 1 of {1 / max(self.growth.chance, 1e-12):,.0f} cases)"
        )


@dataclass(frozen=True)
class Looked:
    """What came of the calls.

    Attributes:
        calls: how many were made.
        leaks: what grows.
        notes: remarks: what grew and settled, what couldn't be measured.
        before, after: bytes on the device before the first call and after the last; None without a device.
    """

    calls: int
    leaks: tuple[Leak, ...]
    notes: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None


def look(call: Callable[[], Any], steps: int, target: Target | None, heap: bool = True) -> Looked:
    """Call something many times and see what grows.

    Args:
        call: without arguments. What it raises goes on.
        steps: how many times, at least :data:`LEAST`; a tenth of them warms up.
        target: whose memory is looked at, too; None: the host's alone.
        heap: whether the native heap is looked at.
    """
    if steps < LEAST:
        raise ValueError(f"steps={steps}: a trend needs {LEAST} calls or more")
    gauges = _gauges(target, heap)
    warm = max(5, steps // 10)
    apart = max(1, (steps - warm) // _POINTS)
    points = (steps - warm) // apart
    series = {name: array("d", bytes(8 * (points + 1))) for name in gauges}  # it must not grow with what it measures
    before = None if target is None else target.allocated()
    kernels = None if target is None else target.kernel_count()
    with _frozen():
        for _ in range(warm):
            call()
        if target is not None and target.emulated and target.kernel_count() != kernels:
            del gauges["python"], series["python"]  # the emulated device is made of such objects, and keeps some
        _read(gauges, series, 0)
        for point in range(1, points + 1):
            for _ in range(apart):
                call()
            _read(gauges, series, point)
        calls = warm + points * apart
        judged = {name: growth(values, apart, noisy=name != "device") for name, values in series.items()}
        doubted = [name for name, one in judged.items() if one.grows and name != "device"]
        for _ in range(_ROUNDS):
            doubted = [name for name in doubted if judged[name].grows]
            if not doubted:
                break
            # Tables of the framework fill slowly, and other threads come to rest: a leak goes on, as fast as before.
            time.sleep(_PAUSE)
            again = {name: array("d", bytes(8 * (points + 1))) for name in doubted}
            few = {name: gauges[name] for name in doubted}
            _read(few, again, 0)
            for point in range(1, points + 1):
                for _ in range(2 * apart):
                    call()
                _read(few, again, point)
            calls += 2 * points * apart
            for name in doubted:
                later = growth(again[name], 2 * apart, noisy=True)
                goes_on = later.grows and later.rate >= _AS_FAST * judged[name].rate
                settled = judged[name].settled or not goes_on
                judged[name] = replace(later if goes_on else judged[name], grows=goes_on, settled=settled)
        grown = [name for name, one in judged.items() if one.grows]
        found = {}
        if grown:
            found = _traced(call, grown)
            calls += _TRACED
    leaks = [Leak(name, judged[name], *found.get(name, ((), ()))) for name in grown]
    if any(leak.what == "heap" for leak in leaks) and any(leak.what == "device" for leak in leaks):
        # An emulated device's memory is the host's.
        leaks = [leak for leak in leaks if leak.what != "heap" or target is None or not target.emulated]
    if any(leak.what != "python" and leak.places for leak in leaks):
        leaks = [leak for leak in leaks if leak.what != "python"]  # the objects that hold it
    elif any(leak.what == "python" for leak in leaks):
        leaks = [leak for leak in leaks if leak.what != "heap"]  # the tables that hold them
    notes = [
        f"{'device' if name == 'device' else 'host'} memory grew by {one.total:,.0f} bytes and then stayed: a cache"
        for name, one in judged.items()
        if one.settled and one.total >= (1 if name == "device" else _WORTH_A_NOTE) and name != "python"
    ]
    if heap and "heap" not in gauges:
        notes.append("the host's native memory can't be measured here: it takes glibc 2.33 or newer")
    return Looked(calls, tuple(leaks), tuple(notes), before, None if target is None else target.allocated())


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """What exists now is left out of garbage collections, which makes them quick."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _gauges(target: Target | None, heap: bool) -> dict[str, Callable[[], float]]:
    gauges: dict[str, Callable[[], float]] = {"python": sys.getallocatedblocks}
    if target is not None:
        gauges["device"] = target.allocated
    if heap and (measure := _heap()) is not None:
        gauges["heap"] = measure
    return gauges


def _read(gauges: Mapping[str, Callable[[], float]], series: Mapping[str, array[float]], point: int) -> None:
    gc.collect()
    for name, gauge in gauges.items():
        series[name][point] = gauge()


_MALLINFO = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def _heap() -> Callable[[], float] | None:
    """Bytes in use of the native heap, mapped blocks included; None where the C library doesn't tell."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    ask.restype = _MallInfo

    def used() -> float:
        said = ask()
        return float(said.uordblks + said.hblkhd)

    return used


# ------------------------------------------------------------------------------------------------ from where, and whose


def _traced(call: Callable[[], Any], grown: list[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Places and owners of what outlives its call, by series."""
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    if "torch" in sys.modules:
        found.update(_tensors(call, grown))
    if "python" in grown or ("heap" in grown and not found.get("heap", ((), ()))[0]):
        places = _objects(call)
        found["python"] = places, ()
        if "python" not in grown:
            found["heap"] = places, ()
    return found


def _tensors(call: Callable[[], Any], grown: list[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Where tensors that outlive their call were made, and what refers to them."""
    import torch

    from pytest_ascend.observe.modes import DispatchMode

    made: dict[tuple[str, int], tuple[int, int, str]] = {}  # storage → call, bytes, place

    class Seen(DispatchMode):
        number = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for one in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(one, torch.Tensor) and (key := _key(one)) is not None:
                    old = made.get(key)
                    if old is None or old[0] != self.number or not func.is_view:
                        made[key] = self.number, one.untyped_storage().nbytes(), f"{func._schema.name}, {_line()}"
            return result

    mode = Seen()  # type: ignore[no-untyped-call]
    with mode:
        for mode.number in range(_TRACED):
            call()
    gc.collect()
    gc.unfreeze()  # what is frozen is hidden from what follows
    alive: dict[tuple[str, int], Any] = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and (key := _key(one)) in made and made[key][0] < _TRACED - 1:
            alive.setdefault(key, one)
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for name in ("device", "heap"):
        keys = [key for key in alive if (key[0] == "cpu") == (name == "heap")]
        if name not in grown or not keys:
            continue
        sizes: Counter[str] = Counter()
        for key in keys:
            sizes[made[key][2]] += made[key][1]
        most = sizes.most_common(_MOST)
        places = [f"{place}: {size / (_TRACED - 1):,.0f} bytes per call" for place, size in most]
        one_each = [next(key for key in keys if made[key][2] == place) for place, _ in most]
        owners = dict.fromkeys(owner for key in one_each if (owner := _owner(alive[key], [alive])))
        found[name] = tuple(places), tuple(owners)
    return found


def _key(tensor: Any) -> tuple[str, int] | None:
    try:
        return tensor.device.type, tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # without storage
        return None


def _line() -> str:
    """The caller's line, outside of torch and this package."""
    import torch

    packages = (_OWN, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*packages, "<")):
            return f"{_short(name)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "a backward pass"


def _short(name: str) -> str:
    here = os.getcwd() + os.sep
    return name.removeprefix(here)


def _objects(call: Callable[[], Any]) -> tuple[str, ...]:
    """Lines whose Python objects outlive the calls."""
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start(10)
    try:
        call()
        gc.collect()
        first = tracemalloc.take_snapshot()
        for _ in range(_TRACED):
            call()
        gc.collect()
        second = tracemalloc.take_snapshot()
    finally:
        if not running:
            tracemalloc.stop()
    beside = [tracemalloc.Filter(False, pattern) for pattern in (_OWN + "*", tracemalloc.__file__, "<*>")]
    changes = second.filter_traces(beside).compare_to(first.filter_traces(beside), "traceback")
    grown = [one for one in changes if one.count_diff >= _TRACED // 2]
    places = []
    for one in sorted(grown, key=lambda one: -one.size_diff)[:_MOST]:
        frame = one.traceback[-1]
        size = one.size_diff / _TRACED
        places.append(f"{_short(frame.filename)}:{frame.lineno}: {size:,.0f} bytes of objects per call")
    return tuple(places)


def _owner(thing: Any, ours: list[Any]) -> str:
    """What holds an object, in words: a module's global, an instance's attribute, a closure; ``""`` where unknown."""
    seen = {id(thing), id(ours), id(sys.modules), *map(id, ours)}
    level, paths = [thing], [""]
    for _ in range(_DEEP):
        above: list[Any] = []
        further: list[str] = []
        seen.update((id(level), id(above)))
        for held, path in zip(level, paths, strict=True):
            referrers = gc.get_referrers(held)
            seen.add(id(referrers))
            for holder in referrers[:_BROAD]:
                if id(holder) in seen or isinstance(holder, FrameType) or type(holder).__name__ == "zip":
                    continue
                seen.add(id(holder))
                if isinstance(holder, ModuleType):
                    return f"the module {holder.__name__}{path}"
                if (
                    isinstance(holder, dict)
                    and isinstance(name := holder.get("__name__"), str)
                    and "__spec__" in holder
                ):
                    return f"the global {_key_of(holder, held)} of {name}{path}"
                if isinstance(holder, dict):
                    name = _key_of(holder, held)
                    step = f".{name}" if isinstance(name, str) and name.isidentifier() else "[...]"
                elif isinstance(holder, (list, tuple, set)) or type(holder).__name__ == "deque":
                    step = f", within a {type(holder).__name__} of {len(holder)}"
                elif type(holder).__name__ in ("cell", "function", "method", "builtin_function_or_method"):
                    name = getattr(holder, "__qualname__", "")
                    if name:
                        return f"the function {name}{path}"
                    step = ""
                else:
                    own = next((k for k, v in getattr(holder, "__dict__", {}).items() if v is held), None)
                    kind = f"{type(holder).__module__}.{type(holder).__qualname__}"
                    if not kind.startswith(("builtins.", "_pytest.", "pluggy.", "torch.")):
                        inner = path if own is None else f".{own}{path}"
                        return f"a {kind}{inner}"
                    step = f" (a {kind})" if kind.startswith("torch.") else ""
                above.append(holder)
                further.append(step + path)
        level, paths = above[:_BROAD], further[:_BROAD]
    return ""


def _key_of(mapping: Mapping[Any, Any], value: Any) -> Any:
    return next((key for key, one in mapping.items() if one is value), "?")
