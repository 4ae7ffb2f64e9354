"""Rounds of a generation loop: each call of the model is one, the first of a sequence its prefill.

msit's ``-er`` chooses by the number of the round alone; here the kind of a round and the positions of its tokens choose
too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Counter", "Round", "chooser", "numbers"]

PREFILL, DECODE = "prefill", "decode"
_TOKENS = ("input_ids", "inputs_embeds", "tokens", "x")
_POSITIONS = ("position_ids", "positions", "cache_position")


@dataclass(frozen=True)
class Round:
    """One call of a model.

    Attributes:
        number: from 0; warm-up isn't counted.
        kind: ``prefill``: several tokens of a sequence at once, or its first; ``decode``: one more token.
        first: position of its first token in the sequence.
        tokens: how many positions it takes.
    """

    number: int
    kind: str
    first: int
    tokens: int


def numbers(given: str | int | Iterable[int], what: str) -> Callable[[int], bool]:
    """A choice of whole numbers: one, several, or text such as ``0,2-4,7-``. Raises ``ValueError`` for another."""
    if isinstance(given, int):
        given = [given]
    if not isinstance(given, str):
        try:
            some = frozenset(given)
        except TypeError:
            some = frozenset({-1})
        if not all(type(one) is int and one >= 0 for one in some):
            raise ValueError(f"{what}={given!r} can't be chosen: give whole numbers such as [0, 2], or '0,2-4'")
        return some.__contains__
    ranges: list[tuple[int, float]] = []
    for part in given.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(-(\d{1,9})?)?\s*", part)
        if match is None:
            raise ValueError(f"{what}={given!r} can't be chosen: give numbers and ranges such as '0,2-4' or '3-'")
        last = float(match[3]) if match[3] else float("inf") if match[2] else int(match[1])
        ranges.append((int(match[1]), last))
    return lambda number: any(low <= number <= high for low, high in ranges)


def chooser(
    rounds: str | int | Iterable[int] | Callable[[Round], bool] | None, tokens: str | int | Iterable[int] | None
) -> Callable[[Round], bool]:
    """Whether a round is recorded.

    Args:
        rounds: ``"all"``, ``"prefill"``, ``"decode"``, numbers (``"0,2-4"``), several of these separated by commas, or
            a function; None: all.
        tokens: positions in the sequence (``"0-15,100"``): the rounds that compute one of them; None: all.

    Raises:
        ValueError: what is given is none of these.
    """
    if callable(rounds):
        by_round: Callable[[Round], bool] = rounds
    else:
        by_round = _by_words(rounds)
    if tokens is None:
        return by_round
    wanted = numbers(tokens, "tokens")

    def chosen(one: Round) -> bool:
        return by_round(one) and any(wanted(one.first + i) for i in range(one.tokens))

    return chosen


def _by_words(rounds: str | int | Iterable[int] | None) -> Callable[[Round], bool]:
    if rounds is None or rounds == "all":
        return lambda one: True
    if not isinstance(rounds, str):
        by_number = numbers(rounds, "rounds")
        return lambda one: by_number(one.number)
    words = [word.strip() for word in rounds.split(",")]
    kinds = {word for word in words if word in (PREFILL, DECODE)}
    rest = ",".join(word for word in words if word not in kinds)
    try:
        by_number = numbers(rest, "rounds") if rest else lambda number: False
    except ValueError:
        raise ValueError(
            f"rounds={rounds!r} can't be chosen: give all, prefill, decode, or numbers and ranges such as '0,2-4'"
        ) from None
    return lambda one: one.kind in kinds or by_number(one.number)


class Counter:
    """Tells what round a call of a model is, by what it is given.

    Args:
        warmup: so many calls at the beginning are none.
    """

    def __init__(self, warmup: int = 0) -> None:
        self._warmup = warmup
        self._number = 0
        self._next = 0

    def next(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Round | None:
        """The round that begins with this call; None for a warm-up."""
        if self._warmup:
            self._warmup -= 1
            return None
        tokens, flat = _tokens(args, kwargs)
        first = _first(args, kwargs)
        if first is None:
            first = 0 if tokens > 1 else self._next
        kind = PREFILL if first == 0 or (tokens > 1 and not flat) else DECODE
        count = 1 if flat and kind == DECODE else tokens  # a batch of sequences, one token of each
        found = Round(self._number, kind, first, count)
        self._number += 1
        self._next = first + count
        return found


def _tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, bool]:
    """How many tokens of a sequence a model is given, and whether sequences lie behind each other in one dimension."""
    named = [kwargs[name] for name in _TOKENS if isinstance(kwargs.get(name), torch.Tensor)]
    given = [*named, *(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))]
    if not given or not given[0].dim():
        return 1, False
    tensor = given[0]
    return (int(tensor.shape[0]), True) if tensor.dim() == 1 else (int(tensor.shape[1]), False)


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The smallest position that a model is told, or None."""
    for name in _POSITIONS:
        given = kwargs.get(name)
        if isinstance(given, torch.Tensor) and given.numel() and not given.dtype.is_floating_point:
            return int(given.min())
    flat = [one for one in args if isinstance(one, torch.Tensor) and one.dim() == 1 and one.dtype is torch.int64]
    return int(flat[1].min()) if len(flat) > 1 and flat[1].numel() == flat[0].numel() else None  # input_ids, positions
