"""What a caller can ask of one check: :class:`CheckOptions`.

This module imports no torch, so that settings, markers and the command line can build and validate
options without paying for it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, TypeVar

__all__ = ["CRITERIA", "LAYOUTS", "MODES", "CheckOptions", "Options", "nearest", "one_of", "refuse_unknown"]

CRITERIA: tuple[str, ...] = (
    *("auto", "cosine", "exact", "close"),
    *("binary", "absolute", "ulp", "thousandth", "mixed"),
    *("benchmark", "benchmark:L0", "benchmark:L1", "benchmark:L2"),
)
"""Names of the criteria that the judge knows, the default first; from ``binary`` on they are Ascend's standards."""

MODES: tuple[str, ...] = ("eager", "compile")
"""How the callable under test runs."""

LAYOUTS: tuple[str, ...] = ("as_given", "contiguous", "transposed", "sliced", "expanded", "channels_last")
"""Names of the layouts an argument can be given in; the values stay the same."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'cosine'?``, or nothing when no known name is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise ``TypeError`` for an unknown name, with the known ones; a dataclass alone names only the wrong one."""
    for name in given:
        if name not in known:
            raise TypeError(f"unknown option {name!r}{nearest(name, known)} (known options: {', '.join(known)})")


def one_of(option: str, value: object, known: tuple[str, ...]) -> None:
    """Raise ``ValueError`` for a value that isn't among the known ones, which the message lists."""
    if value not in known:
        hint = nearest(value, known) if isinstance(value, str) else ""
        raise ValueError(f"{option}={value!r} is not known: it is one of {', '.join(known)}{hint}")


_Some = TypeVar("_Some", bound="Options")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What all options have in common: a target, and that unknown names and bad values are refused."""

    target: str = "auto"

    def __new__(cls: type[_Some], *args: Any, **kwargs: Any) -> _Some:
        """Refuse unknown names with the known ones listed; a dataclass alone would name only the wrong one."""
        refuse_unknown(kwargs, cls.names())
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not self.target.strip():
            raise TypeError(f"target={self.target!r} is not a target: give a string such as 'auto', 'npu' or 'cpu'")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all options, in the order they are declared."""
        return tuple(field.name for field in dataclasses.fields(cls))

    def replace(self: _Some, **changes: Any) -> _Some:
        """A copy with some options changed; unknown names raise ``TypeError``, bad values ``ValueError``."""
        return type(self)(**{**{name: getattr(self, name) for name in self.names()}, **changes})

    def _whole(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r} is not a whole number")
        if value < low or (high is not None and value > high):
            span = f">= {low}" if high is None else f"in [{low}, {high}]"
            raise ValueError(f"{name}={value!r} is out of range: give a whole number {span}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """Options of one check. Frozen; every field has a default; unknown names raise ``TypeError``.

    Attributes:
        target: where the code under test runs: ``auto`` (an NPU, else the emulated one), ``npu``, ``npu:1``,
            ``emulated``, ``emulated:Ascend910A``, ``cuda``, ``cuda:0`` or ``cpu``.
        reference: a callable taking the same arguments, used on the CPU as golden and benchmark in place of the
            code under test (a custom operator against its torch composition).
        criterion: the rule that judges, one of :data:`CRITERIA`.
        cosine: smallest cosine similarity that passes, in [-1, 1]; ``None`` takes the criterion's own.
        max_abs: largest absolute error that passes, >= 0, in the output's own unit.
        rtol: relative tolerance, >= 0.
        atol: absolute tolerance, >= 0, in the output's own unit.
        backward: compare gradients too: ``True``, ``False``, or ``"auto"`` = when a floating input or parameter
            requires grad and an output depends on it.
        layouts: names out of :data:`LAYOUTS`; the target runs once per layout.
        repeats: how many times the target runs the same inputs, >= 1; more than one looks for nondeterminism.
        seed: seed set before every run, 0 <= seed < 2**63; ``None`` derives one from the case.
        checkpoints: which layers' outputs are compared: ``None`` = a sample over the depth, ``True`` = every named
            layer, ``()`` or ``False`` = none, else a name or a list of names and globs (``"encoder.layer.*"``).
        isolate: run the compared layers with equal inputs as well, which shows what the rounding of the layers before
            hides, for two more forward runs: ``True``, ``False``, or ``"auto"`` = for models in 16 bits, and for others
            after a failure. Only under the criterion ``auto``.
        mode: ``eager``, or ``compile``: the callable runs under ``torch.compile`` on the target, is compared with the
            eager call there as well, and layers, which compiled code doesn't call, are left out.
        bisect: after a failure, find the operator that is to blame, for one more run of the target in which every
            operator is held against the CPU's.
        overflow: watch the target's run for operators whose results leave the range of their dtype; one that the CPU
            has at the same place too is a note, any other a FAIL.

    Raises:
        TypeError: an unknown name, or a value of the wrong type.
        ValueError: a value out of range; the message names the option and what it takes.
    """

    reference: Callable[..., Any] | None = None
    criterion: str = "auto"
    cosine: float | None = None
    max_abs: float | None = None
    rtol: float | None = None
    atol: float | None = None
    backward: bool | Literal["auto"] = "auto"
    layouts: tuple[str, ...] = ("as_given",)
    repeats: int = 1
    seed: int | None = None
    checkpoints: bool | tuple[str, ...] | None = None
    isolate: bool | Literal["auto"] = "auto"
    mode: str = "eager"
    bisect: bool = True
    overflow: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference is not None and not callable(self.reference):
            raise TypeError(f"reference={self.reference!r} can't be called: give a function with the same arguments")
        one_of("criterion", self.criterion, CRITERIA)
        self._threshold("cosine", -1.0, 1.0)
        for name in ("max_abs", "rtol", "atol"):
            self._threshold(name, 0.0, math.inf)
        for name in ("backward", "isolate"):
            value = getattr(self, name)
            if value not in (True, False, "auto") or not isinstance(value, (bool, str)):
                raise ValueError(f"{name}={value!r} is not known: it is True, False or 'auto'")
        one_of("mode", self.mode, MODES)
        if self.mode == "compile" and self.checkpoints:
            raise ValueError("checkpoints= needs mode='eager': compiled code doesn't call layers one by one")
        for name in ("bisect", "overflow"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} is not known: it is True or False")
        object.__setattr__(self, "layouts", _names("layouts", self.layouts))
        if not self.layouts:
            raise ValueError(f"layouts is empty, so nothing would run: give at least one of {', '.join(LAYOUTS)}")
        for layout in self.layouts:
            one_of("layouts", layout, LAYOUTS)
        self._whole("repeats", 1)
        if self.seed is not None:
            self._whole("seed", 0, 2**63 - 1)
        if self.checkpoints is False:
            object.__setattr__(self, "checkpoints", ())
        elif self.checkpoints is not None and self.checkpoints is not True:
            object.__setattr__(self, "checkpoints", _names("checkpoints", self.checkpoints))

    def _threshold(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}={value!r} is not a number")
        if math.isnan(value) or math.isinf(value) or not low <= value <= high:
            span = f"a number in [{low:g}, {high:g}]" if high < math.inf else f"a finite number >= {low:g}"
            raise ValueError(f"{name}={value!r} can't be a threshold: give {span}")


def _names(option: str, value: object) -> tuple[str, ...]:
    """One name or several, as a tuple of distinct names in the order given."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        names = tuple(dict.fromkeys(value))
        if all(isinstance(name, str) and name for name in names):
            return names
    raise TypeError(f"{option}={value!r} is not a name or a list of names")
