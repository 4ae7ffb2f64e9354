"""Which operator is to blame: every operator of a run, judged alone with the inputs it got in that run.

A layer is wrong because an operator in it is. The target runs the case once more, and each operator's results are held
against the CPU's for the same inputs, at once, one operator at a time: what an earlier one got wrong is in the inputs
of both sides, so it makes nobody else suspicious, and no more memory is taken than one operator needs. The same goes
for the operators of the backward pass. Whoever is suspicious is run alone afterwards, by the whole road of a check,
which knows what a right kernel may do.

What isn't judged: views, which move nothing; operators that draw random numbers or hand out memory as it is; and, named
in a note, those that the CPU has no kernel for and nobody registered a reference for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from pytest_ascend.cases import references
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.transfer import same_bits
from pytest_ascend.judge.compare import judge_tree
from pytest_ascend.judge.culprit import Culprit
from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.judge.verdict import CheckResult, OutputResult, worst_output
from pytest_ascend.observe.capture import run
from pytest_ascend.observe.errors import one_line
from pytest_ascend.observe.isolation import like
from pytest_ascend.observe.modes import DispatchMode
from pytest_ascend.observe.op_places import Place, Places

if TYPE_CHECKING:
    from pytest_ascend.observe.reruns import SecondLook
    from pytest_ascend.targets.base import Target

__all__ = ["Bisection", "bisect"]

MOST = 64
"""Suspects that are kept to be run alone: the first of each sort; one fault shows in every layer alike."""
LARGEST = 1 << 30
"""Bytes of the suspects' inputs, which are kept until then."""
_NOT_JUDGED = ("empty", "_local_scalar_dense", "detach", "lift_fresh", "resize_", "record_stream", "set_")
_MOST_NAMED = 5
_LONGEST = 40


@dataclass(frozen=True)
class Bisection:
    """What came of looking at every operator.

    Attributes:
        culprit: the first that is wrong, or None.
        judged: how many operators were judged.
        cleared: whether all were, and none was wrong, nor suspicious.
        notes: what a reader should know: what couldn't be judged.
    """

    culprit: Culprit | None
    judged: int
    cleared: bool = False
    notes: tuple[str, ...] = ()


def bisect(look: SecondLook, confirm: Callable[[Case], CheckResult]) -> Bisection:
    """Find the operator that is to blame for a failure.

    Where a mode of the chip is on that can be switched off, operators are looked at without it first: what it does to
    every one of them would hide among its like what one gets wrong.

    Args:
        look: the check that failed.
        confirm: checks an operator alone. What it raises is told in the reason, and the operator stays suspicious.

    Raises:
        RunFailed: the target raised.
    """
    on = look.target.switches()
    if on:
        with look.target.without(*on):
            found = _bisect(look, confirm)
        if found.culprit is not None and found.culprit.confirmed:
            return found
    return _bisect(look, confirm)


def _bisect(look: SecondLook, confirm: Callable[[Case], CheckResult]) -> Bisection:
    screen = Screen(look.target)
    run(look.case, look.target, look.setting, relaid=look.relaid, mode=screen, inside=screen.watch)
    if screen.judged < 2 and look.case.module is None:
        return Bisection(None, screen.judged)  # the call is that operator
    doubtful: Culprit | None = None
    for suspect in screen.suspects:
        try:
            result = confirm(suspect.case)
        except Exception as error:  # whatever an operator raises alone; the run it is about is over
            doubtful = doubtful or suspect.culprit(screen.count, f"{suspect.reason}; alone it raised {one_line(error)}")
            continue
        if result.verdict.outcome == "failed":
            culprit = suspect.culprit(screen.count, result.reason, confirmed=True)
            return Bisection(culprit, screen.judged, notes=tuple(screen.notes()))
        if result.verdict.outcome == "passed":
            doubtful = doubtful or suspect.culprit(screen.count, suspect.reason)
    cleared = doubtful is None and not screen.passed_over and not screen.unknown
    return Bisection(doubtful, screen.judged, cleared, tuple(screen.notes()))


@dataclass(frozen=True)
class Suspect:
    """An operator whose results the CPU doesn't have, given the same inputs."""

    case: Case
    op: str
    inputs: tuple[str, ...]
    number: int
    place: Place
    reason: str

    def culprit(self, total: int, reason: str, *, confirmed: bool = False) -> Culprit:
        """As what is told."""
        phase = "backward" if self.place.is_backward else "forward"
        source = f"{self.place.source} in {self.place.function}" if self.place.source else ""
        about = self.op, self.inputs, phase, self.place.module, source
        return Culprit(*about, self.number, total, reason, confirmed)


class Screen(DispatchMode):
    """Judges operators as they run; ``suspects`` are in the order in which they ran.

    Args:
        target: operators with a tensor on its device are judged.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = target.device()
        self.places: Places | None = None
        self.count = 0
        self.judged = 0
        self.suspects: list[Suspect] = []
        self.unknown: Counter[str] = Counter()
        self.passed_over = 0
        """Suspects of which there was no room to keep the inputs."""
        self._sorts: set[Any] = set()
        self._room = LARGEST

    def watch(self, module: torch.nn.Module | None) -> Places:
        """A context in which it is known from where operators are called."""
        self.places = Places(module)
        return self.places

    def notes(self) -> Iterator[str]:
        """What a reader should know."""
        if self.unknown:
            most = self.unknown.most_common(_MOST_NAMED)
            named = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in most)
            more = f" and {len(self.unknown) - _MOST_NAMED} more" if len(self.unknown) > _MOST_NAMED else ""
            yield f"operators that the CPU can't judge, for it has no kernel or raised: {named}{more}"
        if self.passed_over:
            yield f"{self.passed_over} suspicious operators after the first {len(self.suspects)} were passed over"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.count += 1
        place = self.places.here(func) if self.places is not None else Place()
        if not self._is_judged(func, args, kwargs):
            return func(*args, **kwargs)
        number, before = self.count, _on_cpu((args, kwargs))
        result = func(*args, **kwargs)
        worst = self._judge(func, (args, kwargs), before, result)
        if worst is not None and worst.verdict.outcome == "failed":
            self._suspect(func, (args, kwargs), before, (number, place, worst.reason))
        return result

    def _is_judged(self, func: Any, args: Any, kwargs: Any) -> bool:
        name = func._schema.name.partition("::")[2]
        if func.is_view or name.startswith(_NOT_JUDGED) or torch.Tag.nondeterministic_seeded in func.tags:
            return False
        given = pytree.tree_leaves((args, kwargs))
        if any(isinstance(one, torch.Generator) for one in given):
            return False
        return any(isinstance(one, torch.Tensor) and one.device == self.device for one in given)

    def _judge(self, func: Any, given: Any, before: Any, result: Any) -> OutputResult | None:
        here = _on_cpu((result, _changed(func, *given)), copy=False)
        try:
            call = func if _runs_on_cpu(func) else references.lookup(f"torch.ops.{func}")
            if call is None:
                raise NotImplementedError
            own = _called(call, func, before)
            unfilled = _unfilled(own, here)
            own, here = (_without(side, unfilled) for side in (own, here))
            if _equal(own, here):
                self.judged += 1
                return None
            try:
                golden = _called(call, func, pytree.tree_map(_wide, before))
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                golden = own
            found = judge_tree(_without(golden, unfilled), here, own, "auto")
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            self.unknown[str(func)] += 1
            return None
        self.judged += 1
        return worst_output(found)

    def _suspect(self, func: Any, given: Any, before: Any, about: tuple[int, Place, str]) -> None:
        inputs = tuple(_described(*given))
        size = sum(t.nbytes for t in pytree.tree_leaves(before) if isinstance(t, torch.Tensor))
        if (func, inputs) in self._sorts:
            return
        if len(self.suspects) == MOST or size > self._room:
            self.passed_over += 1
            return
        self._sorts.add((func, inputs))
        self._room -= size
        args, kwargs = pytree.tree_map(_restored, given, before)
        self.suspects.append(Suspect(Case(func, args, kwargs), str(func), inputs, *about))


def _unfilled(own: Any, here: Any) -> set[int]:
    """Which of several results one side leaves empty: what is kept for a backward pass that won't come."""
    results = [side[0] for side in (own, here)]
    if not all(isinstance(one, (tuple, list)) for one in results):
        return set()
    pairs = enumerate(zip(*results, strict=False))
    return {i for i, (a, b) in pairs if _is_empty(a) != _is_empty(b)}


def _is_empty(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 0


def _without(side: Any, unfilled: set[int]) -> Any:
    if not unfilled:
        return side
    results, changed = side
    return [None if i in unfilled else one for i, one in enumerate(results)], changed


def _runs_on_cpu(func: Any) -> bool:
    name = func.name()
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _called(call: Callable[..., Any], func: Any, given: Any) -> Any:
    """What a call returns, and the arguments that it changed without returning them."""
    args, kwargs = _on_cpu(given) if func._schema.is_mutable else given
    result = call(*args, **kwargs)
    return result, _changed(func, args, kwargs)


def _changed(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to and doesn't return."""
    schema = func._schema
    if not schema.is_mutable:
        return []
    returned = {name for one in schema.returns if one.alias_info is not None for name in one.alias_info.before_set}
    found = []
    for i, one in enumerate(schema.arguments):
        if one.alias_info is None or not one.alias_info.is_write or one.alias_info.before_set & returned:
            continue
        found.append(args[i] if i < len(args) else kwargs.get(one.name))
    return found


def _on_cpu(tree: Any, *, copy: bool = True) -> Any:
    """A tree with its tensors on the CPU, one that stands in two places still one; devices follow."""
    seen: dict[int, torch.Tensor] = {}

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in seen:
                seen[id(value)] = value.detach().to("cpu", copy=copy)
            return seen[id(value)]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    return pytree.tree_map(one, tree)


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _equal(left: Any, right: Any) -> bool:
    one, other = pytree.tree_leaves(left), pytree.tree_leaves(right)
    return len(one) == len(other) and all(
        same_bits(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def _restored(given: Any, before: Any) -> Any:
    """An argument with the values that it had, where it was and as it lay there."""
    return like(given, before) if isinstance(given, torch.Tensor) else given


def _described(args: Any, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """``float32[8, 128]``, ``int64[8] stride (2,)``, ``alpha=2``."""
    for value in args:
        yield _one(value)
    for name, value in kwargs.items():
        yield f"{name}={_one(value)}"


def _one(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        plain = value.layout is not torch.strided or value.is_contiguous()
        return f"{dtype_name(value.dtype)}{list(value.shape)}{'' if plain else f' stride {value.stride()}'}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_one, value))}]"
    text = repr(value).removeprefix("torch.")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
