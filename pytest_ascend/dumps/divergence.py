"""Which call was the first to go wrong: the culprit's inputs still agreed, its victims' didn't.

Forward passes are looked at in the order they ran, backward passes after them in theirs, which is the reverse. A layer
holds the calls that were made in it: of a layer and a call in it that both have right inputs and wrong outputs, the
inner one is the culprit. A backward pass computes with what its forward pass saw as well, so it is a victim where that
one's tensors differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ascend.dumps.msprobe import Name

__all__ = ["Found", "State", "judge_calls"]


@dataclass
class State:
    """What was found of one pair of calls.

    Attributes:
        name: the golden's.
        inputs, outputs: whether all, none or some that were compared agree: ``agree``, ``differ``, ``unknown``.
        mark: filled in here: ``culprit``, ``victim``, ``holds`` (a layer that holds the culprit), ``source`` (its
            inputs differ, and no call before it made them differ), ``unclear`` (nothing is known of its inputs, and
            something before it went wrong) or nothing.
    """

    name: str
    inputs: str
    outputs: str
    mark: str = ""

    @property
    def backward(self) -> bool:
        """Whether it is a backward pass."""
        parsed = Name.parse(self.name)
        return parsed is not None and parsed.direction == "backward"


@dataclass(frozen=True)
class Found:
    """The answer.

    Attributes:
        first: the first call whose inputs agree and whose outputs don't.
        source: the first call whose inputs differ, where no recorded call made them so: other data, other weights.
        culprits: all calls like ``first``, in order.
        victims: how many calls went wrong after it because of what they were given.
    """

    first: str | None = None
    source: str | None = None
    culprits: tuple[str, ...] = ()
    victims: int = 0


def judge_calls(states: Sequence[State], parents: Mapping[str, str | None]) -> Found:
    """Mark each state, and name the first divergence."""
    ordered = in_order(states)
    by_name = {state.name: state for state in states}
    wrong: list[State] = []
    source = None
    victims = 0
    for state in ordered:
        inputs = state.inputs
        if state.backward and (forward := by_name.get(forward_of(state.name))) is not None:
            inputs = "differ" if "differ" in (forward.inputs, forward.outputs) else inputs
        if inputs == "differ" and not wrong and source is None:
            source, state.mark = state.name, "source"
            victims += state.outputs == "differ"
        elif state.outputs == "differ":
            if inputs == "differ":
                state.mark = "victim"
                victims += 1
            elif inputs == "unknown" and _is_gradient(state.name) and (wrong or source is not None):
                state.mark = "unclear"
            else:
                state.mark = "culprit"
                wrong.append(state)
    inside = {name for state in wrong for name in _around(state.name, parents)}
    paths = [_path(state.name) for state in wrong]
    for state, path in zip(wrong, paths, strict=True):
        if state.name in inside or (path is not None and any(p and p.startswith(path) and p != path for p in paths)):
            state.mark = "holds"
    culprits = tuple(state.name for state in wrong if state.mark == "culprit")
    return Found(culprits[0] if culprits else None, source, culprits, victims)


def _is_gradient(name: str) -> bool:
    """Whether it is the gradients of a layer's parameters, which are recorded without what they were computed from."""
    return ".parameters_grad" in name


def in_order(states: Sequence[State]) -> list[State]:
    """Forward passes in the order they ran, then backward passes in theirs."""
    forward = [state for state in states if not state.backward]
    backward = [state for state in states if state.backward]
    at = {state.name: i for i, state in enumerate(forward)}
    places = [at[name] for state in backward if (name := forward_of(state.name)) in at]
    rising = sum(b > a for a, b in itertools.pairwise(places))
    if len(places) > 1 and rising * 2 > len(places) - 1:  # listed in the forward's order
        backward.reverse()
    return forward + backward


def forward_of(name: str) -> str:
    """The forward pass that a backward pass belongs to; empty for what isn't a call."""
    parsed = Name.parse(name)
    return parsed.forward if parsed is not None else ""


def _around(name: str, parents: Mapping[str, str | None]) -> set[str]:
    """The layers that a call was made in."""
    around: set[str] = set()
    inner = name
    while (outer := parents.get(inner)) is not None and outer not in around:
        around.add(outer)
        inner = outer
    return around


def _path(name: str) -> str | None:
    """Direction and path of a layer, with a dot at its end: that of a layer inside it begins with it."""
    parsed = Name.parse(name)
    if parsed is None or not parsed.is_layer:
        return None
    return f"{parsed.direction}:{parsed.path}."
