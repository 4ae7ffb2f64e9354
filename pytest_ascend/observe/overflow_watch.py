"""``pytest_ascend.watch_overflow``: which operator was the first to leave the range of its dtype, and where that went.

Every operator's results are measured where they are (``overflow_ranges``: smallest and largest value, one pass, nothing
copied) and noted with the place of the call and with the ranges of what it was given: those are known already, because
another operator made them. The host waits for the device once in 512 tensors of a dtype, and judges then
(``overflow_chain``), in the order in which the operators ran.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from pytest_ascend.observe.compiled_calls import CompiledCalls
from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.observe.op_places import Place, Places
from pytest_ascend.observe.overflow_chain import Chains, Step
from pytest_ascend.observe.overflow_findings import Finding
from pytest_ascend.observe.overflow_ranges import Range, Ranges
from pytest_ascend.observe.overflow_rows import NORMS, floating, lost_share, zero_rows
from pytest_ascend.targets.npu import overflow_flag, saturates

__all__ = ["OverflowWatch", "paused", "watch_overflow"]

#: The share of small numbers is measured at a place's first call and at every so manieth one.
SHARES = 16
#: Storages whose ranges are remembered; beyond that the finite ones are forgotten and measured again when needed.
REMEMBERED = 1 << 16
_ALLOCATE = ("empty", "new_empty", "resize", "_efficientzerotensor")
_PASSIVE = frozenset({"_unsafe_view", "lift", "set", "is_pinned", "record_stream", "_local_scalar_dense"})
_OVERWRITE = frozenset({"copy", "fill", "zero", "normal", "uniform", "exponential", "bernoulli", "random"})
_NARROW = (torch.float16,)  # bfloat16 has float32's exponents


def watch_overflow(
    model: torch.nn.Module | None = None, *, device: str | torch.device | None = None, saturating: bool | None = None
) -> OverflowWatch:
    """Watch every operator of a block, forward and backward, for results that leave the range of their dtype::

        with pa.watch_overflow(model) as watch:
            scaler.scale(loss(model(batch))).backward()
        print(watch)

    Found are the first operator that made Inf or NaN from finite numbers (not those that were given it: they are the
    chain that follows), results that saturated where the device does that, results that became zero or subnormal, and
    overflows that ended as zeros. Infinities that the program writes itself, such as a mask, are none.

    Args:
        model: what names of layers are taken from; None: the outermost layer that is called.
        device: report only what reaches a device of this type (``"npu"``); None: everything.
        saturating: whether the NPU saturates rather than makes Inf; None: it is asked.

    Returns:
        A context manager. :attr:`OverflowWatch.findings` may be read within the block, which waits for the device, and
        after it.

    Raises:
        TypeError: the model is none.
    """
    return OverflowWatch(model, device, saturating)


class OverflowWatch:
    """What :func:`watch_overflow` returns, with the same arguments.

    Attributes:
        operators: how many operators were watched.
        on_device: how many of them gave a result on the device that was asked for, other than a copy.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        device: str | torch.device | None = None,
        saturating: bool | None = None,
    ) -> None:
        self._places = Places(model, root="" if model is None else type(model).__name__)
        self._device = None if device is None else torch.device(device).type
        self._chains = Chains(self._device)
        self._ranges = Ranges()
        self._saturating = saturating
        self._modes: dict[str, bool] = {}
        self._steps: list[Step] = []
        self._together: list[Range] = []
        self._storages: dict[int, tuple[Range, int]] = {}
        self._kinds: dict[Any, _Kind] = {}
        self._calls: Counter[Any] = Counter()
        self._compiled = CompiledCalls()
        self._lock = threading.RLock()  # a backward pass has a thread for each device
        self._reading = 0  # the thread that does
        self._paused = False
        self._flag: bool | None = None  # the NPU's own, where it has one
        self._flagged = False
        self._mode: _Mode | None = None
        self.operators = 0
        self.on_device = 0

    # -- what came of it ------------------------------------------------------------------------------------------

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, the first culprit first; waits for the device while the block runs."""
        self._read()
        return tuple(self._chains.findings())

    @property
    def serious(self) -> tuple[Finding, ...]:
        """The findings by which results are wrong: see :attr:`Finding.serious`."""
        return tuple(finding for finding in self.findings if finding.serious)

    @property
    def compiled(self) -> bool:
        """Whether compiled kernels ran, of whose inside nothing is known."""
        return self._compiled.ran > 0

    @property
    def waits(self) -> int:
        """How often the host waited for a device."""
        return self._ranges.waits

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the findings should know: what could not be watched, what was infinite from the start."""
        self._read()
        said = []
        if self._compiled.ran:
            said.append(
                f"compiled code ran ({self._compiled.ran} graphs): the operators inside of its kernels were not "
                "watched; run it without torch.compile to see them"
            )
        elif self._compiled.asked:
            said.append(
                "torch runs compiled functions eagerly while they are watched: their operators were seen, and their "
                "compiled kernels were not"
            )
        if not self.operators:
            said.append("no operator was watched: nothing is known about overflows")
        if self._flagged:
            said.append(
                "the NPU's overflow flag was raised and no result shows why: a kernel may have overflowed on the way, "
                "or NaN became 0"
            )
        for step in list(self._chains.outside.values())[:3]:
            said.append(f"{step.name} was given NaN or Inf that no watched operator made ({step.place})")
        for what, count in self._ranges.unmeasured.most_common():
            said.append(f"{count} results in {what} were not checked")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "operators": self.operators,
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
        }

    def render(self) -> Iterator[str]:
        """Lines for a person."""
        findings = self.findings
        what = f"{len(findings)} overflow{'s' * (len(findings) != 1)}" if findings else "no overflow"
        yield f"{what} among {self.operators} operators"
        for finding in findings:
            yield from finding.render()
        yield from self.notes

    def __str__(self) -> str:
        return "\n".join(self.render())

    # -- the block ------------------------------------------------------------------------------------------------

    def __enter__(self) -> OverflowWatch:
        if self._mode is not None:
            raise RuntimeError("this watch runs already: call pytest_ascend.watch_overflow again for another one")
        self._places.__enter__()
        self._compiled.__enter__()
        self._on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._off()
        self._close(error)

    @contextlib.contextmanager
    def standing(self) -> Iterator[OverflowWatch]:
        """A block in parts of which operators are watched: those under :meth:`while_on`."""
        self._places.__enter__()
        self._compiled.__enter__()
        error: BaseException | None = None
        try:
            yield self
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._close(error)

    def while_on(self) -> _While:
        """A context that watches; it may be entered several times, within :meth:`standing`."""
        return _While(self._on, self._off)

    def _on(self) -> None:
        self._mode = _Mode(self._call)
        _running.append(self)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _off(self) -> None:
        assert self._mode is not None
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _running.remove(self)
        self._mode = None

    def _close(self, error: BaseException | None) -> None:
        self._compiled.__exit__(None, None, None)
        try:
            self._read()
        except RuntimeError:  # the device is gone, and the block's own error says so
            if error is None:
                raise
        finally:
            self._places.__exit__(None, None, None)
            self._storages.clear()

    # -- one operator ---------------------------------------------------------------------------------------------

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._paused or self._reading == threading.get_ident():
            return func(*args, **kwargs)  # our own
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _Kind(func)
        place = self._places.here(func)
        if kind.passive:
            return func(*args, **kwargs)
        inputs: list[Range] = []
        constant = 0.0
        given = args[1:] if kind.overwrites else args
        if kwargs:
            given = (*given, *(value for name, value in kwargs.items() if name not in kind.outs))
        for one in given:
            if isinstance(one, torch.Tensor):
                if one.is_floating_point() or one.is_complex():
                    self._given(one, inputs)
            elif isinstance(one, float):
                constant = max(constant, abs(one)) if one == one else math.nan
            elif isinstance(one, (list, tuple)) and one and isinstance(one[0], torch.Tensor):
                for tensor in one:
                    if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                        self._given(tensor, inputs)
        result = func(*args, **kwargs)
        self.operators += 1
        if not kind.cast and not kind.allocates and (self._device is None or _device_of(result) == self._device):
            self.on_device += 1
        written = kind.written(args, kwargs, result)
        if kind.allocates:  # whatever lies in fresh memory is nobody's result
            for tensor in written:
                if tensor.layout is torch.strided and _has_values(tensor):
                    self._remember(tensor, Range.of(tensor.dtype, 0, 0.0, 0.0), True)
            return result
        outputs: list[Range] = []
        device = ""
        with self._lock:
            for tensor in written:
                made = self._ranges.take(tensor) if _has_values(tensor) else None
                if made is not None:
                    device = tensor.device.type
                    if self._saturates(device):
                        made.limit = torch.finfo(made.dtype).max
                    outputs.append(made)
                    self._remember(tensor, made, not kind.writes)
            if outputs:
                self._closer(kind, place, args, written, outputs[0])
                keeps = kind.keeps(args)
                self._steps.append(
                    Step(kind.name, place, tuple(inputs), tuple(outputs), device, constant, kind.cast, keeps)
                )
                if self._ranges.full:
                    self._read()
        return result

    def _given(self, tensor: torch.Tensor, inputs: list[Range]) -> None:
        """The range of an argument: what its storage was known to hold, else measured now, before the call."""
        if tensor.layout is not torch.strided or not _has_values(tensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is not None and known[1] == storage.nbytes():
            found = known[0]
            if tensor.nbytes >= known[1] or (found.known and not found.beyond):
                inputs.append(found)  # a part of what is finite is finite
                return
        with self._lock:
            taken = self._ranges.take(tensor)
        if taken is None:
            return
        if self._saturates(tensor.device.type):
            taken.limit = torch.finfo(taken.dtype).max
        if known is not None and known[1] == storage.nbytes():
            taken.base = known[0]
        elif tensor.nbytes == storage.nbytes():
            self._storages[key] = taken, storage.nbytes()
        inputs.append(taken)

    def _remember(self, tensor: torch.Tensor, made: Range, fresh: bool) -> None:
        """What a storage holds from now on."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        old = self._storages.get(key)
        if not fresh and tensor.nbytes < size and old is not None and old[1] == size:
            made = Range.together(old[0], made)
            self._together.append(made)
        self._storages[key] = made, size

    def _closer(
        self, kind: _Kind, place: Place, args: tuple[Any, ...], written: list[torch.Tensor], made: Range
    ) -> None:
        """What the range of a result doesn't tell, for the few operators of which more is asked."""
        if kind.norm:
            found = zero_rows(kind.plain, floating(args), written)
            if found is not None:
                self._ranges.flag(made, "zero_rows", found)
        elif made.dtype in _NARROW and (kind.cast or place.backward):
            key = id(place), kind
            calls = self._calls[key] = self._calls[key] + 1
            if calls % SHARES == 1:
                source = args[1] if kind.plain == "copy" and len(args) > 1 else args[0] if args else None
                cast = kind.cast and isinstance(source, torch.Tensor) and source.dtype.itemsize > made.dtype.itemsize
                if cast or place.backward:
                    there = cast and isinstance(source, torch.Tensor) and source.device == written[0].device
                    share = lost_share(source if there else None, written[0])
                    if share is not None:
                        self._ranges.flag(made, "lost", share)

    def _saturates(self, device: str) -> bool:
        """Whether a device saturates."""
        known = self._modes.get(device)
        if known is None:
            if device != "npu":
                known = False
            elif self._saturating is not None:
                known = self._saturating
            else:
                known = saturates()
            self._modes[device] = known
            if known and self._saturating is None:
                self._flag = overflow_flag()
        return known

    def _read(self) -> None:
        """Wait for the devices, and judge what ran since."""
        with self._lock:
            self._reading = threading.get_ident()
            try:
                self._ranges.read()
            finally:
                self._reading = 0
            steps, self._steps = self._steps, []
            for step in steps:
                self._chains.add(step)
            for made in self._together:
                made.settle()
            self._together.clear()
            if self._flag is False:  # it is raised for good, so that it tells nothing more once it is
                self._flag = overflow_flag()
                self._flagged = self._flag and not self._chains.findings()
            if len(self._storages) > REMEMBERED:
                self._storages = {key: one for key, one in self._storages.items() if one[0].cause is not None}


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A block in which the watches that run now see nothing: a check runs its case many times, with other values."""
    running = [watch for watch in _running if not watch._paused]
    for watch in running:
        watch._paused = True
    try:
        yield
    finally:
        for watch in running:
            watch._paused = False


_running: list[OverflowWatch] = []


class _While:
    """A context that may be entered again."""

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *error: Any) -> None:
        self._leave()


class _Kind:
    """What is known of an operator, whatever it is called with."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name: str = schema.name
        self.plain = self.name.rpartition("::")[2].rstrip("_")
        arguments, returns = list(schema.arguments), list(schema.returns)
        self.writes = tuple(
            (i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
        )
        view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.passive = view or self.plain in _PASSIVE
        self.allocates = self.plain.startswith(_ALLOCATE)
        self.overwrites = self.plain in _OVERWRITE and bool(self.writes)
        self.outs = frozenset(a.name for a in arguments if a.is_out)
        self.cast = self.plain in ("_to_copy", "copy", "npu_dtype_cast")
        self.norm = any(part in self.plain for part in NORMS) and not self.plain.endswith("backward")

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
        """The floating tensors that a call made or wrote, each once."""
        if isinstance(result, torch.Tensor) and not self.writes:
            return [result] if result.is_floating_point() or result.is_complex() else []
        values = [result]
        for at, name in self.writes:
            values.append(args[at] if at < len(args) else kwargs.get(name))
        found: dict[int, torch.Tensor] = {}
        for value in values:
            for one in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex()):
                    found[id(one)] = one
        return list(found.values())

    def keeps(self, args: tuple[Any, ...]) -> bool:
        """Whether a result of 0 means an input of 0."""
        if self.cast:
            return True
        if self.plain in ("mul", "div") and len(args) > 1:
            factor = args[1]
            if isinstance(factor, torch.Tensor):
                return False
            return bool(factor) if self.plain == "mul" else math.isfinite(factor)
        return self.plain in ("square", "neg", "abs")


class _Mode(DispatchMode):
    """Hands every operator to the watch."""

    def __init__(self, call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and not all(map(_is_plain, types)):
            if any(kind.__module__.startswith("torch._subclasses") for kind in types):
                return func(*args, **(kwargs or {}))  # shapes that are traced: there are no values
            return NotImplemented  # what it does is made of operators on plain tensors, which come here too
        return self._call(func, args, kwargs or {})


def _is_plain(kind: type) -> bool:
    """Whether a class of tensors has no dispatch of its own."""
    return getattr(kind, "__torch_dispatch__", _PLAIN) is _PLAIN


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether there are numbers behind a tensor: not for shapes alone, nor for one that wraps others."""
    return tensor.device.type != "meta" and type(tensor).__torch_dispatch__ is _PLAIN


_PLAIN: Any = torch.Tensor.__torch_dispatch__


def _device_of(result: Any) -> str:
    """Type of the device that an operator's first result is on."""
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    return result.device.type if isinstance(result, torch.Tensor) else ""
