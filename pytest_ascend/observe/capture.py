"""Run a case once on a target and capture everything it did: outputs, gradients, changed inputs, layers.

Nothing of the caller's is touched: the case is copied to the target, called, and what came out of it is cloned to the
CPU. The same seed is set before every run, gradients start from the same numbers, and the caller's autocast is carried
over to the target.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from pytest_ascend.cases.case import Built, Case
from pytest_ascend.cases.transfer import Entry, flat_storage, same_bits
from pytest_ascend.cases.tree import reach, snapshot
from pytest_ascend.observe import guards
from pytest_ascend.observe.modules import Feed, Taps
from pytest_ascend.observe.widen import Widened
from pytest_ascend.targets.base import Target

__all__ = [
    *("FILL", "Capture", "Change", "RunFailed", "Setting", "caller_autocast", "keep_rng", "on_cpu", "run", "seed_all"),
]

#: Fresh memory holds NaN in every floating dtype, and -1: what is never written shows.
FILL = 0xFF
_FELL_BACK = re.compile(r".*operator '([^']+)' is not currently supported on the NPU backend and will fall back")


class RunFailed(Exception):
    """The case raised: ``error`` is what, ``stage`` where: ``copying``, ``forward`` or ``backward``."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(f"{stage}: {error}")
        self.stage = stage
        self.error = error


@dataclass(frozen=True)
class Change:
    """A tensor that a call changed: its values before and after, on the CPU."""

    before: torch.Tensor
    after: torch.Tensor


@dataclass(frozen=True)
class Setting:
    """What is the same for every run of one check.

    Attributes:
        seed: set before each run.
        backward: whether to run a backward pass: ``"auto"`` does when an output depends on an argument, or a parameter
            of the module under test, that requires grad.
        autocast: the caller's autocast dtype, or None when autocast is off.
        checkpoints: names of layers to capture.
        default_device: where the caller makes tensors without naming a device, if not on the CPU; for the target only.
        start: seed of the numbers a backward pass starts with.
    """

    seed: int
    backward: bool | Literal["auto"] = "auto"
    autocast: torch.dtype | None = None
    checkpoints: tuple[str, ...] = ()
    default_device: torch.device | None = None
    start: int = 0


@dataclass
class Capture:
    """What one run did; every tensor is on the CPU.

    Attributes:
        output: what the callable returned.
        gradients: ``grad(args[0])``, ``grad(weight)``, ... to the gradient, None where there is none.
        changes: what stood at ``args[0]``, ``module.running_mean``, ... before and after, where it changed.
        checkpoints: layers' outputs in the order they came to exist.
        notes: what a reader of the result should know.
        exercised: whether the target did anything.
        fell_back: operators that the target handed to the CPU.
        drew: whether random numbers were drawn from the CPU's generator.
        backward_error: what the backward pass raised, or None.
        origins: every tensor's path, to what was copied and the dtype of the copy.
        beside: beside whose memory something was written, and what.
        starts: the gradients that the backward pass began with.
    """

    output: Any
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exercised: bool = True
    fell_back: tuple[str, ...] = ()
    drew: bool = False
    backward_error: Exception | None = None
    origins: Mapping[str, tuple[torch.Tensor, torch.dtype]] = field(default_factory=dict)
    beside: list[tuple[str, str]] = field(default_factory=list)
    starts: tuple[torch.Tensor, ...] = ()

    def unchanged(self, path: str) -> torch.Tensor | None:
        """The value at a path that this run did not change, in this run's precision; None for an unknown path."""
        origin = self.origins.get(path)
        return None if origin is None else origin[0].detach().to(device="cpu", dtype=origin[1])

    def tensors(self) -> Iterator[torch.Tensor]:
        """Outputs, gradients and changed values, in that order."""
        for found in reach(self.output, self.gradients):
            if isinstance(found, torch.Tensor):
                yield found
        for change in self.changes.values():
            yield change.after


def run(
    case: Case,
    target: Target,
    setting: Setting,
    *,
    floating: torch.dtype | None = None,
    relaid: Mapping[int, torch.Tensor] | None = None,
    fn: Callable[..., Any] | None = None,
    poison: Callable[[Entry], None] | None = None,
    mode: contextlib.AbstractContextManager[Any] | None = None,
    widened: Collection[torch.dtype] = (),
    feed: Feed | None = None,
    fill: int = FILL,
    guard: bool = False,
    inside: Callable[[torch.nn.Module | None], contextlib.AbstractContextManager[Any]] | None = None,
) -> Capture:
    """Run a case once.

    Args:
        case: what to run.
        target: where.
        setting: what all runs of a check share.
        floating: precision to promote to, for a golden; autocast is then off.
        relaid: arguments to be given in another layout.
        fn: a reference to be called instead, with the same arguments.
        poison: called with every copied tensor before the run.
        mode: a context around the forward and around the backward pass, entered twice.
        widened: dtypes that a float64 golden doesn't round to where the callable says so, beside the case's own.
        fill: the byte that memory the call takes is filled with, where the target can do that.
        guard: give the arguments in storages between guard bands, which the callable can tell by their offsets.
        feed: sees, and may replace, what the layers to capture are called with.
        inside: makes a context around both passes, given the copy of the module that is under test, if there is one.

    Raises:
        RunFailed: the callable or the device raised; an error of the backward pass is kept in the capture.
        ValueError: the case can't be copied.
    """
    __tracebackhide__ = True
    mode = contextlib.nullcontext() if mode is None else mode
    with contextlib.ExitStack() as stack:
        stack.enter_context(target.activate())
        watch = stack.enter_context(target.watch())
        built = _build(case, target, floating=floating, relaid=relaid, fn=fn, guard=guard)
        if poison is not None:
            for entry in built.entries:
                poison(entry)
        stack.enter_context(_autocast(target, setting.autocast, off=floating is not None))
        stack.enter_context(_default_dtype(floating))
        if setting.backward is True:
            stack.enter_context(torch.enable_grad())
        seen = stack.enter_context(_fallbacks(target))
        seed_all(target, setting.seed)
        generator = torch.get_rng_state()
        kernels, copied = target.kernel_count(), target.downloads()
        if watch is not None:
            watch.fill = fill
        module = built.module if built.module is not None else _only_module(built)
        if inside is not None:
            stack.enter_context(inside(module))
        with Taps(module, setting.checkpoints, feed) as taps:
            live = _guarded("forward", target, lambda: _call(built, target, setting, floating, mode, widened))
        exercised = _exercised(target, live, built, kernels, copied if not taps.captured else None)
        capture = Capture(
            output=snapshot(live),
            changes=_changes(built.entries),
            checkpoints=taps.captured,
            notes=list(built.notes),
            exercised=exercised,
            drew=not torch.equal(generator, torch.get_rng_state()),
            origins={entry.path: (entry.source, entry.copy.dtype) for entry in built.entries},
        )
        if taps.dropped:
            capture.notes.append(
                f"{taps.dropped} more calls of layers were not captured: a layer keeps its first calls"
            )
        try:
            _guarded("backward", target, lambda: _backward(live, built, setting, capture, mode))
        except RunFailed as failed:
            capture.backward_error = failed.error
        if watch is not None:
            capture.beside = guards.named(watch.found(), built.entries, live)
        capture.beside += guards.found_in_rooms(built.rooms)
    capture.fell_back = tuple(dict.fromkeys(seen))
    return capture


def _build(case: Case, target: Target, **options: Any) -> Built:
    """Copy the case. On the CPU a failure is the caller's to know; on a target it is a finding (no memory, a dtype)."""
    try:
        return case.build(target.device(), **options)
    except (RuntimeError, TypeError) as error:
        if target.name == "cpu":
            raise
        raise RunFailed("copying", error) from error


def _guarded(stage: str, target: Target, call: Callable[[], Any]) -> Any:
    """Call and wait, so that an asynchronous error is raised here and not in another test."""
    __tracebackhide__ = True
    try:
        result = call()
        target.synchronize()
    except Exception as error:
        raise RunFailed(stage, error) from error
    return result


def seed_all(target: Target, seed: int) -> None:
    """Seed Python's, numpy's and the target's generators."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    target.manual_seed(seed)


@contextlib.contextmanager
def keep_rng(target: Target) -> Iterator[None]:
    """Leave the caller's random number generators as they were: Python's, numpy's, torch's and the target's."""
    python, cpu, device = random.getstate(), torch.get_rng_state(), target.rng_state()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if device is not None:
            target.set_rng_state(device)
        if numpy is not None and state is not None:
            numpy.random.set_state(state)


def _only_module(built: Built) -> torch.nn.Module | None:
    """The module to look into when a function was given one: ``train_step(model, batch)``."""
    found = [m for m in reach(built.fn, built.args, built.kwargs) if isinstance(m, torch.nn.Module)]
    return found[0] if len(found) == 1 else None


# ------------------------------------------------------------------------------------------------ the caller's modes


def caller_autocast(target: Target) -> torch.dtype | None:
    """The dtype of the autocast the caller is in, for whatever device it was asked; None when it is off."""
    for kind in dict.fromkeys((target.name, "npu", "cuda", "cpu")):
        try:
            if torch.is_autocast_enabled(kind):
                return torch.get_autocast_dtype(kind)
        except (RuntimeError, ValueError):  # a device this torch doesn't have
            continue
    return None


def _autocast(target: Target, dtype: torch.dtype | None, off: bool) -> contextlib.AbstractContextManager[Any]:
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(target.name, enabled=False) if off else torch.autocast(target.name, dtype=dtype)


def _call(
    built: Built,
    target: Target,
    setting: Setting,
    floating: torch.dtype | None,
    mode: contextlib.AbstractContextManager[Any],
    widened: Collection[torch.dtype],
) -> Any:
    """The call itself, under the caller's default device on a target, and kept in float64 for a golden."""
    __tracebackhide__ = True
    around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if floating is torch.float64:
        own = {entry.source.dtype for entry in built.entries}.union(widened)
        around = Widened(dtype for dtype in own if dtype.is_floating_point or dtype.is_complex)
    elif target.name != "cpu" and setting.default_device is not None:
        around = setting.default_device
    with around, mode:
        live = built.call()
        return list(live) if isinstance(live, types.GeneratorType) else live


@contextlib.contextmanager
def on_cpu() -> Iterator[torch.device | None]:
    """Make the harness's own tensors on the CPU; yields the caller's default device where that is another."""
    default = torch.get_default_device()
    if default.type == "cpu":
        yield None
        return
    with torch.device("cpu"):
        yield default


@contextlib.contextmanager
def _default_dtype(floating: torch.dtype | None) -> Iterator[None]:
    """What a golden makes itself (``torch.zeros(n)`` for a first state) has the golden's precision too."""
    before = torch.get_default_dtype()
    if floating is None or torch.promote_types(before, floating) == before:
        yield
        return
    torch.set_default_dtype(floating)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _fallbacks(target: Target) -> Iterator[list[str]]:
    """Collects the operators that an NPU announces to run on the CPU; other warnings go on as they were."""
    found: list[str] = []
    if target.name != "npu":
        yield found
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("always", message=_FELL_BACK.pattern)
        yield found
    for warning in seen:
        match = _FELL_BACK.match(str(warning.message))
        if match:
            found.append(match[1])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _exercised(target: Target, live: Any, built: Built, kernels: int | None, copied: int | None) -> bool:
    """Whether the target took part: it ran kernels, or it returned something that no CPU made for it."""
    if target.name == "cpu":
        return True
    device = target.device().type
    returned = [found for found in reach(live) if isinstance(found, torch.Tensor)]
    here = device != "cpu" and any(tensor.device.type == device for tensor in returned)
    now = target.kernel_count()
    if now is not None and kernels is not None:
        fetched = copied is not None and (target.downloads() or 0) > copied
        return now > kernels or (here and not fetched)  # views and copies run no kernels; a detour over the CPU doesn't
    given = any(entry.copy.device.type == device for entry in built.entries)
    return here or (given and not returned)


# ------------------------------------------------------------------------------------------------ gradients


def _backward(
    live: Any, built: Built, setting: Setting, capture: Capture, mode: contextlib.AbstractContextManager[Any]
) -> None:
    """Run the backward pass and put gradients into the capture; a callable that ran its own is left at that."""
    leaves = [entry for entry in built.entries if entry.leaf is not None]
    if setting.backward == "auto":
        leaves = [e for e in leaves if e.role == "argument" or e.path.startswith("module.")]
    own = [entry for entry in built.entries if entry.leaf is not None and entry.leaf.grad is not None]
    if own:
        capture.notes.append("the callable ran its own backward pass: its gradients were compared")
        leaves = own
    elif setting.backward is False or not leaves:
        return
    else:
        results, starts = _given(live, built.starts) if built.starts else (_differentiable(live), [])
        if not results:
            return
        starts = starts or [_start(result, setting.start + i) for i, result in enumerate(results)]
        capture.starts = tuple(start.to("cpu") for start in starts)
        anchor = _Anchor.apply(starts, *results)  # type: ignore[no-untyped-call]
        with mode:
            anchor.backward()
    for entry in leaves:
        gradient = entry.leaf.grad if entry.leaf is not None else None
        name = entry.path.removeprefix("module.") if built.module is not None else entry.path
        capture.gradients[f"grad({name})"] = None if gradient is None else snapshot(_dense(gradient))


class _Anchor(torch.autograd.Function):
    """A number whose backward pass hands given gradients to the tensors it hangs on.

    ``torch.autograd.backward(tensors, gradients)`` does the same, and imports sympy to compare their shapes: a third of
    a second in a process that needs it for nothing else.
    """

    @staticmethod
    def forward(ctx: Any, starts: list[torch.Tensor], *results: torch.Tensor) -> torch.Tensor:
        ctx.starts = starts
        return torch.zeros((), device="cpu")

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return (None, *ctx.starts)


def _differentiable(live: Any) -> list[torch.Tensor]:
    """The outputs a backward pass starts from: the loss when the output names one, else all that can."""
    loss = live.get("loss") if isinstance(live, Mapping) else getattr(live, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return [loss]
    return [found for found in reach(live) if isinstance(found, torch.Tensor) and found.requires_grad]


def _given(live: Any, starts: Sequence[torch.Tensor | None]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that the case has a gradient for, and those gradients in the outputs' precision and place.

    Raises ``ValueError`` when they don't fit what the callable returned.
    """
    returned = [found for found in reach(live) if isinstance(found, torch.Tensor)]
    able = [tensor for tensor in returned if tensor.requires_grad]
    outputs = able if len(able) == len(starts) else returned
    pairs = [(o, s) for o, s in zip(outputs, starts, strict=False) if s is not None and o.requires_grad]
    if len(outputs) != len(starts) or any(o.shape != s.shape for o, s in pairs):
        have = ", ".join(str(tuple(tensor.shape)) for tensor in able) or "none"
        given = ", ".join("None" if start is None else str(tuple(start.shape)) for start in starts)
        raise ValueError(f"the gradients to start from, {given}, don't fit the outputs that can have one, {have}")
    return [o for o, _ in pairs], [s.to(device=o.device, dtype=o.dtype, copy=True) for o, s in pairs]


def _start(result: torch.Tensor, seed: int) -> torch.Tensor:
    """The gradient a backward pass starts with: 1 for a scalar, else sixteenths in [-1, 1], exact in every dtype."""
    if result.dim() == 0 and not result.is_complex():
        return torch.ones_like(result)
    generator = torch.Generator(device="cpu").manual_seed(seed % 2**63)
    shape = (*result.shape, 2) if result.is_complex() else tuple(result.shape)
    numbers = torch.randint(-16, 17, shape, generator=generator, device="cpu").double() / 16
    if result.is_complex():
        numbers = torch.view_as_complex(numbers)
    return numbers.to(device=result.device, dtype=result.dtype)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient


# ------------------------------------------------------------------------------------------------ changed inputs


def _changes(entries: Sequence[Entry]) -> dict[str, Change]:
    """What the call changed among its inputs, memory beside a view included.

    Arguments and buffers are compared bit by bit, storage by storage. Parameters only when autograd counted a change,
    because they are the bulk of a model.
    """
    found: dict[str, Change] = {}
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        if _maybe_changed(entry):
            storage = flat_storage(entry.copy)
            groups.setdefault(id(entry) if storage is None else storage[0], []).append(entry)
    with torch.no_grad():
        for group in groups.values():
            found.update(_changes_of(group))
    return found


def _maybe_changed(entry: Entry) -> bool:
    if entry.role != "parameter":
        return True
    now = entry.current()
    if now is not entry.copy or entry.version is None:
        return True
    return now._version != entry.version


def _changes_of(group: Sequence[Entry]) -> dict[str, Change]:
    """Changes among views of one storage: each view by its path, and what lies in none of them."""
    found: dict[str, Change] = {}
    first = group[0]
    source, now = flat_storage(first.source), flat_storage(first.current())
    whole = None
    if source is not None and now is not None:
        whole = source[1].to(device="cpu", dtype=now[1].dtype), now[1].to("cpu")
        kept = all(entry.current() is entry.copy for entry in group)
        if kept and same_bits(*whole):
            return found
    for entry in group:
        before = entry.source.detach().to(device="cpu", dtype=entry.copy.dtype)
        after = entry.current().detach().to("cpu")
        if not same_bits(before, after):
            found[entry.path] = Change(before, after.clone())
    uniform = len({entry.source.dtype for entry in group}) == 1
    if whole is not None and uniform and whole[0].shape == whole[1].shape:
        outside = torch.ones(whole[0].shape, dtype=torch.bool)
        for entry in group:
            place = entry.source
            numbers = torch.arange(outside.numel())  # an expanded view has several elements in one place
            outside[numbers.as_strided(place.size(), place.stride(), place.storage_offset()).reshape(-1)] = False
        if outside.any():
            before, after = whole[0][outside], whole[1][outside]
            if not same_bits(before, after):
                found[f"{first.path} outside the view"] = Change(before, after)
    return found
