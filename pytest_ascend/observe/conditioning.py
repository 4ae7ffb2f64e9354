"""How far a function itself carries a change in the last bits of its inputs and of its intermediates.

The golden is computed again (Monte-Carlo arithmetic) with every floating input multiplied by 1 ± 2^-23, drawn at
random, for a model every parameter by 1 ± its dtype's unit roundoff, and what one kernel hands to the next by 1 ± the
roundoff of the case's own dtype, unless that holds it exactly. The largest change of an element over four such runs is
its spread: large under cancellation, on steep slopes, and as large as the jump where a discontinuity is near (a floor,
a tie). Runs come in pairs of opposite signs, so that a jump on either side of an input is met. An error is legal when
it is no larger, in units of that spread, than errors of the CPU's own result are (judge/budget.py).

A change of the inputs stands for what a kernel rounds inside. Integers and booleans that a kernel makes of exact inputs
have nothing rounded before them, so for them only intermediates change.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_ascend.cases.case import Case
from pytest_ascend.cases.transfer import Entry, flat_storage
from pytest_ascend.observe.capture import Capture, RunFailed, Setting, run
from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.observe.movement import Kernels, computes
from pytest_ascend.observe.reference import Reference, leaves
from pytest_ascend.observe.spool import Spool
from pytest_ascend.targets.cpu import CpuTarget

__all__ = ["Yardsticks", "conditioning"]

RUNS = 4
MORE = 3
"""So many times as many runs again, where a result hangs on how lucky the first ones were."""
MOST_KERNELS = 5000
"""So many take changed intermediates; what iterates until nothing changes any more would never end."""
INPUT_ROUNDOFF = 2.0**-23
_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def conditioning(
    case: Case,
    setting: Setting,
    golden: Capture,
    fn: Callable[..., Any] | None,
    paths: Collection[str],
    *,
    inputs: bool = True,
    stored: torch.dtype | None = None,
    composed: bool = False,
    first: int = 0,
) -> dict[str, torch.Tensor]:
    """The spread of every element at the given paths, as float64 tensors of the outputs' shapes.

    ``first`` is the number of the first of the runs, which all differ. In what is ``composed`` a product may be stored
    before something is added to it.

    Raises:
        RunFailed: the function raised with slightly changed inputs.
    """
    if not paths:
        return {}
    before, spool = leaves(golden), Spool()
    found: dict[str, torch.Tensor] = {}
    for i in range(first, first + RUNS):
        shaker = _shaker(case, i) if inputs else None
        mode = _Rounded(stored, i, composed) if stored is not None else None
        after = leaves(run(case, CpuTarget(), setting, floating=torch.float64, fn=fn, poison=shaker, mode=mode))
        for path in paths:
            if path in before and path in after and before[path].shape == after[path].shape:
                change = _distance(after[path], before[path])
                if path in found:
                    torch.maximum(found[path], change, out=found[path])
                else:
                    found[path] = spool.keep(change)
    return found


def _shaker(case: Case, number: int) -> Callable[[Entry], None]:
    """Changes the last bit of every floating input, storage by storage so that views stay consistent.

    Equal values change alike, wherever they are: a tie is a property of the inputs and not of their last bits.
    """
    direction = 1 if number % 2 else -1
    done: set[int] = set()

    def shake(entry: Entry) -> None:
        roundoff = INPUT_ROUNDOFF
        if entry.role != "argument" and case.is_model:
            roundoff = _ROUNDOFF.get(entry.source.dtype, INPUT_ROUNDOFF)
        storage = flat_storage(entry.copy)
        if storage is None or storage[0] in done or not (entry.copy.is_floating_point() or entry.copy.is_complex()):
            return
        done.add(storage[0])
        if entry.role == "argument" and bool(((storage[1] == 0) | (storage[1].abs() == 1)).all()):
            return  # labels and masks are compared for equality and have no last bit
        with torch.no_grad():
            storage[1].mul_(1 + direction * roundoff * _drawn(storage[1], number // 2))

    return shake


# Odd constants of 64 bits that scatter well (Steele, Lea and Flood's SplitMix64).
_MIX = (-7046029254386353131, -4658895280553007687, -7723592293110705685)


def _drawn(values: torch.Tensor, number: int) -> torch.Tensor:
    """A number between 0.5 and 1.5, of either sign, for every value, drawn from its bits: equal ones get equal ones.

    Of different sizes, so that what cancels doesn't cancel again.
    """
    if values.is_complex():
        values = torch.view_as_real(values)
        return torch.view_as_complex(_drawn(values, number)) / (1 + 1j)
    start = (number * _MIX[2] + 2**63) % 2**64 - 2**63  # as 64 bits hold it
    bits = values.to(torch.float64).contiguous().view(torch.int64) + start
    for factor, shift in zip(_MIX, (30, 27, 31), strict=True):
        bits = (bits ^ (bits >> shift)) * factor
    size = (bits >> 11).bitwise_and_((1 << 52) - 1).to(torch.float64).mul_(2.0**-52).add_(0.5)
    return torch.where(bits < 0, -size, size)


def _distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Element-wise; integers and booleans that differ are infinitely far apart.

    A number that became NaN says that the reference's own way can't take the change, not how far the function moves.
    """
    if not (left.is_floating_point() or left.is_complex()):
        return torch.where(left == right, 0.0, float("inf")).double()
    wide = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
    left, right = left.to(wide), right.to(wide)
    equal = (left == right) | (left.isnan() & right.isnan())
    return torch.where(equal, 0.0, (left - right).abs().nan_to_num(nan=0.0, posinf=float("inf"))).double()


@dataclass
class Yardsticks:
    """What a result in 16 bits is measured by beside golden and benchmark; computed on first use, and once.

    Attributes:
        case, setting, reference: as in the run that is judged.
        fn: the reference callable, or None when the case is its own.
    """

    case: Case
    setting: Setting
    reference: Reference
    fn: Callable[..., Any] | None = None
    _spreads: dict[str, torch.Tensor] = field(default_factory=dict)
    _steadier: dict[str, torch.Tensor] = field(default_factory=dict)
    _widest: dict[str, torch.Tensor] = field(default_factory=dict)
    _jumps: dict[str, torch.Tensor] = field(default_factory=dict)
    _once: dict[str, torch.Tensor] | None = None
    _unrounded: dict[str, torch.Tensor] | None = None
    _kernels: int = MOST_KERNELS

    @property
    def known(self) -> Mapping[str, torch.Tensor]:
        """The spreads that were measured so far."""
        return self._spreads

    def spreads(self, paths: Collection[str]) -> dict[str, torch.Tensor]:
        """The spread of every element at the paths; paths that have none are missing.

        Raises:
            RunFailed: the function raised with slightly changed inputs.
        """
        return self._measured(self._spreads, paths, inputs=True)

    def steadier(self, paths: Collection[str]) -> dict[str, torch.Tensor]:
        """The spreads again, where four runs happened to move an element little: what four runs do on the average.

        Never less than :meth:`spreads`: an element that a jump was met at keeps it.

        Raises:
            RunFailed: the function raised with slightly changed inputs.
        """
        if set(paths) - self._steadier.keys():
            every = leaves(self.reference.golden).keys()
            first = self.spreads(every)
            spool = Spool()
            total = {path: spool.keep(value) for path, value in first.items()}
            for group in range(1, MORE + 1):
                more = self._once_more(every, inputs=True, first=group * RUNS)
                for path in more.keys() & total.keys():  # what has another shape now and then may miss one
                    total[path] += more[path]
            for path, value in total.items():
                torch.maximum(first[path], value.div_(1 + MORE), out=value)
            self._steadier = total
        return {path: self._steadier[path] for path in paths if path in self._steadier}

    def widest(self, paths: Collection[str]) -> dict[str, torch.Tensor]:
        """The spreads over four times as many runs: where a jump is near, each run meets it or doesn't.

        Raises:
            RunFailed: the function raised with slightly changed inputs.
        """
        if set(paths) - self._widest.keys():
            every = leaves(self.reference.golden).keys()
            spool = Spool()
            widest = {path: spool.keep(value) for path, value in self.spreads(every).items()}
            for group in range(1, MORE + 1):
                more = self._once_more(every, inputs=True, first=group * RUNS)
                for path in more.keys() & widest.keys():
                    torch.maximum(widest[path], more[path], out=widest[path])
            self._widest = widest
        return {path: self._widest[path] for path in paths if path in self._widest}

    def jumps(self, paths: Collection[str]) -> dict[str, torch.Tensor]:
        """The same with the inputs as they are, for results that are exact if those are; for a module it is the same.

        Raises:
            RunFailed: the function raised with slightly changed intermediates.
        """
        if self.case.is_model:
            return self.spreads(paths)
        return self._measured(self._jumps, paths, inputs=False)

    def _measured(
        self, known: dict[str, torch.Tensor], paths: Collection[str], *, inputs: bool
    ) -> dict[str, torch.Tensor]:
        if set(paths) - known.keys():
            # They all come out of the same runs.
            known |= self._once_more(leaves(self.reference.golden).keys(), inputs=inputs)
        return {path: known[path] for path in paths if path in known}

    def _once_more(self, paths: Collection[str], *, inputs: bool, first: int = 0) -> dict[str, torch.Tensor]:
        golden, stored = self.reference.golden, None if self.case.is_model else self._stored()
        if not inputs and stored is None:
            return {}
        case, setting, fn, composed = self.case, self.setting, self.fn, self.composed
        return conditioning(
            case, setting, golden, fn, paths, inputs=inputs, stored=stored, composed=composed, first=first
        )

    def _stored(self) -> torch.dtype | None:
        """What intermediates are stored in: the narrowest floating dtype that comes out, or goes in where none does."""
        own = self.reference.benchmark
        found = _floating(leaves(own).values() if own is not None else ()) or _floating(self.case.tensors)
        known = [dtype for dtype in found if dtype in _ROUNDOFF]
        return max(known, key=_ROUNDOFF.__getitem__, default=None)

    def unrounded(self) -> dict[str, torch.Tensor]:
        """The golden's results as they are before the callable itself casts them to a narrower dtype, in float64."""
        if self._unrounded is None:
            self._unrounded = {}
            with contextlib.suppress(RunFailed, ValueError):
                golden = run(
                    self.case, CpuTarget(), self.setting, floating=torch.float64, fn=self.fn, widened=tuple(_ROUNDOFF)
                )
                self._unrounded = leaves(golden)
        return self._unrounded

    def once(self, path: str, dtype: torch.dtype) -> torch.Tensor | None:
        """What the CPU computes in float32, rounded once; None where it doesn't."""
        found = self._in_float32().get(path)
        return None if found is None else found.to(dtype)

    @property
    def composed(self) -> bool:
        """Whether the call is a composition of several compute kernels, or isn't known to be one kernel."""
        return self.kernels > 1

    @property
    def kernels(self) -> int:
        """How many kernels compute in the forward pass; :data:`MOST_KERNELS` where it isn't known."""
        self._in_float32()
        return self._kernels

    def _in_float32(self) -> dict[str, torch.Tensor]:
        if self._once is None:
            self._once = {}
            if self.setting.autocast is None:  # autocast rounds the inputs of single operators, on purpose
                with contextlib.suppress(RunFailed, ValueError):
                    if self.case.module is None:
                        self._once, self._kernels = self._counted()
                    else:
                        self._once = leaves(
                            run(self.case, CpuTarget(), self.setting, floating=torch.float32, fn=self.fn)
                        )
                        self._kernels = self._of_layer()
        return self._once

    def _counted(self) -> tuple[dict[str, torch.Tensor], int]:
        kernels = Kernels()
        fn = self.case.fn if self.fn is None else self.fn

        def counted(*args: Any, **kwargs: Any) -> Any:
            with kernels:
                return fn(*args, **kwargs)

        return leaves(run(self.case, CpuTarget(), self.setting, floating=torch.float32, fn=counted)), kernels.count

    def _of_layer(self) -> int:
        """Counted in float64: in float32 the CPU has recurrent layers in one kernel."""
        kernels, setting = Kernels(), dataclasses.replace(self.setting, backward=False)
        run(self.case, CpuTarget(), setting, floating=torch.float64, fn=self.fn, mode=kernels)
        return kernels.count


def _floating(values: Iterable[torch.Tensor]) -> list[torch.dtype]:
    return [
        value.dtype.to_real() if value.is_complex() else value.dtype
        for value in values
        if value.is_floating_point() or value.is_complex()
    ]


class _Rounded(DispatchMode):
    """Multiplies every floating intermediate by 1 ± roundoff, signs at random, where a kernel takes it in.

    An intermediate is what a kernel computed, or moved from such a tensor, and another kernel takes: what a device may
    store in the case's own dtype in between. What goes in from outside and what comes out at the end is left alone.
    """

    def __init__(self, dtype: torch.dtype, number: int, products: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype
        self.products = products
        self.roundoff = torch.finfo(dtype).eps / 2
        self.least = torch.finfo(dtype).smallest_normal * self.roundoff  # subnormal numbers are rounded more coarsely
        self.generator = torch.Generator(device="cpu").manual_seed(1000 + number // 2)
        self.direction = 1 if number % 2 else -1
        self.computed: set[int] = set()
        self.left = MOST_KERNELS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        computing = computes(func)
        inner = any(self._is_computed(value) for value in tree_leaves((args, kwargs)))
        if computing and inner and self.left:
            self.left -= 1
            args, kwargs = self._rounded(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.products and func._schema.name in _ADD_TO_PRODUCTS:
            self._store_product(args, kwargs, result)
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                storage = value.untyped_storage()._cdata
                if computing or inner:
                    self.computed.add(storage)
                else:  # memory that was freed and given out again
                    self.computed.discard(storage)
        return result

    def _store_product(self, args: Any, kwargs: Any, result: torch.Tensor) -> None:
        if result.layout is torch.strided:
            beta = kwargs.get("beta", 1)
            product = result - beta * args[0] if beta else result
            result.add_(self._stored(product) - product)

    def _is_computed(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and (value.is_floating_point() or value.is_complex())
            and value.layout is torch.strided
            and value.untyped_storage()._cdata in self.computed
        )

    def _rounded(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        schema = func._schema.arguments
        takes = {a.name: self._round for a in schema} | {a.name: self._overwritten(a) for a in schema if _written(a)}
        args = [tree_map(takes[schema[i].name], a) for i, a in enumerate(args)]
        kwargs = {k: tree_map(takes[k], v) for k, v in kwargs.items()}
        return args, kwargs

    def _overwritten(self, argument: Any) -> Callable[[Any], Any]:
        """What is done to an argument that is written: what is read of it before is rounded in place."""

        def rounded(value: Any) -> Any:
            if not argument.kwarg_only and self._is_computed(value):
                value.copy_(self._round(value))
            return value

        return rounded

    def _round(self, value: Any) -> Any:
        return self._stored(value) if self._is_computed(value) else value

    def _stored(self, value: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(value.shape, generator=self.generator, dtype=torch.float64).mul_(3).sub_(1.5)
        drawn += 0.5 * torch.sign(drawn) * (drawn.abs() < 0.5)  # between 0.5 and 1.5, of either sign
        step = value * self.roundoff
        step = torch.where(step.abs() < self.least, self.least, step)
        held = value == _held(value, self.dtype)  # what the dtype holds, infinities too, isn't rounded
        return torch.where(held, value, value + self.direction * drawn * step)


#: Kernels that add a product to their first argument. Ones that don't fuse it round the product before: a recurrent
#: cell on an accelerator adds its biases later.
_ADD_TO_PRODUCTS = frozenset(f"aten::{name}" for name in ("addmm", "addmv", "baddbmm", "addbmm", "addr"))


def _written(argument: Any) -> bool:
    """Whether a kernel changes an argument; of running statistics `native_batch_norm`'s schema doesn't say so."""
    if argument.name in ("running_mean", "running_var"):
        return True
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _held(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if value.is_complex():
        return torch.complex(_held(value.real, dtype), _held(value.imag, dtype))
    return value.to(dtype).to(value.dtype)
