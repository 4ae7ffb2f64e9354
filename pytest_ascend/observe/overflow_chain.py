"""Who made what is beyond its dtype, and who was only given it.

Works on the ranges of operators' inputs and outputs, once they are known, in the order in which the operators ran. An
operator whose inputs are all within their dtype and whose output isn't is the culprit; what it made carries its name
on, and whoever is given it is a victim. Infinities that the program itself writes (``masked_fill``, ``full``, a
constant) or that were there before are nobody's fault; NaN that an operator makes of them is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from pytest_ascend.judge.structure import dtype_name
from pytest_ascend.observe.op_places import Place
from pytest_ascend.observe.overflow_findings import MATMULS, POLES, Finding, Link, OverflowType, hint, op_type
from pytest_ascend.observe.overflow_ranges import Range

__all__ = ["LOST", "Chains", "Step"]

LOST = 0.5
"""Share of the elements from which on numbers lost to zero or to subnormal ones are reported."""

_LINKS = 64
_INTENDED: Final = "intended"
_OUTSIDE: Final = "outside"
# What gives a finite answer to -Inf by its meaning.
_ABSORB_MASKS = ("softmax", "attention", "logsumexp", "exp", "sigmoid", "where", "max", "clamp", "topk", "sort")
_TO_ZERO = frozenset({"rsqrt", "reciprocal", "div", "pow", "exp"})
# Results of these are small by their nature.
_SMALL = (
    "softmax",
    "exp",
    "sigmoid",
    "tanh",
    "gelu",
    "silu",
    "erfc",
    "dropout",
    "threshold",
    "relu",
    "where",
    "sub",
    "var",
)
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale"


class Step(NamedTuple):
    """One operator that ran.

    Attributes:
        name: ``aten::mm``.
        place: where it was called.
        inputs, outputs: ranges of the floating tensors it was given, and of those it made or wrote.
        device: type of the device that the outputs are on.
        constant: the largest size among its scalars, NaN where one of them is.
        cast: it only changes dtype or device.
        keeps: a result of 0 means an input of 0 (a cast, a square, a product with a number that isn't 0).
    """

    name: str
    place: Place
    inputs: tuple[Range, ...]
    outputs: tuple[Range, ...]
    device: str
    constant: float = 0.0
    cast: bool = False
    keeps: bool = False

    @property
    def plain(self) -> str:
        """The name without library and the underscore of in-place operators."""
        return self.name.rpartition("::")[2].rstrip("_")


@dataclass
class _Trace:
    """An overflow on its way."""

    step: Step
    kind: OverflowType
    output: Range
    links: list[Link] = field(default_factory=list)
    victims: int = 0
    negative: bool = True
    ends: str = ""
    to_zero: bool = False
    masked: bool = False
    visible: bool = False  # a forward operator was given it after it had become zeros
    handled: bool = False
    consumer: Step | None = None
    devices: set[str] = field(default_factory=set)


class Chains:
    """Collects culprits and what became of what they made.

    Args:
        device: count only what reaches a device of this type; None: everything.
    """

    def __init__(self, device: str | None = None) -> None:
        self._device = device
        self._traces: dict[Any, _Trace] = {}
        self._counts: dict[Any, int] = {}
        self.outside: dict[Any, Step] = {}
        """Operators that were given NaN or +Inf which was there before, once per place."""

    def add(self, step: Step) -> None:
        """Judge the next operator, in the order in which they ran; its ranges are known."""
        for one in (*step.inputs, *step.outputs):
            if one.notable:
                break
        else:
            return
        traces: list[_Trace] = []
        intended = False
        for given in step.inputs:
            given.settle()
            cause = given.cause
            if cause is None:
                if not given.beyond:
                    continue
                base = given.base.cause if given.base is not None else None
                cause = given.cause = base or _OUTSIDE  # no operator that was watched made it
            if isinstance(cause, _Trace):
                if cause not in traces:
                    traces.append(cause)
            else:
                intended = True
                if cause == _OUTSIDE and (given.nan or given.high >= given.limit):
                    self.outside.setdefault((step.name, id(step.place)), step)
        beyond = [made for made in step.outputs if made.beyond]
        if traces:
            self._victim(step, traces, beyond)
        elif beyond:
            self._first(step, beyond, intended)
        else:
            self._within(step)

    def findings(self) -> list[Finding]:
        """What was found, the first culprit first."""
        return [
            self._finding(trace).times(self._counts[key])
            for key, trace in self._traces.items()
            if self._counts_in(trace)
        ]

    # -- one operator ---------------------------------------------------------------------------------------------

    def _victim(self, step: Step, traces: list[_Trace], beyond: list[Range]) -> None:
        mild = [trace for trace in traces if self._is_mild(step, trace)] if beyond else []
        severe = [trace for trace in traces if trace not in mild]
        for trace in traces:
            trace.devices.add(step.device)
            trace.victims += 1
            if trace.consumer is None and not step.cast:
                trace.consumer = step
            if step.plain == _UNSCALE and trace.step.place.is_backward:
                trace.handled = True
            result = _result(beyond) if beyond else "finite"
            if len(trace.links) < _LINKS:
                trace.links.append(Link(step.name, step.place, result))
            if not beyond:
                trace.ends = step.name
                zero = any(made.low == 0.0 or made.high == 0.0 for made in step.outputs) or step.plain == "div"
                trace.to_zero |= step.plain in _TO_ZERO and zero
                trace.masked |= any(word in step.plain for word in _ABSORB_MASKS)
            elif trace in mild and severe:
                trace.masked = True  # a mask beside an overflow: what comes of the two isn't the mask's doing
            else:
                trace.negative &= all(_only_negative(made) for made in beyond)
                trace.visible |= trace.to_zero and not step.place.backward
        for made in beyond:
            made.cause = (severe or mild)[0]

    @staticmethod
    def _is_mild(step: Step, trace: _Trace) -> bool:
        """Whether a step is given nothing of an overflow but -Inf, as of a mask."""
        return trace.negative and all(_only_negative(given) for given in step.inputs if given.cause is trace)

    def _first(self, step: Step, beyond: list[Range], intended: bool) -> None:
        nan = any(made.nan for made in beyond)
        if math.isnan(step.constant) or (nan and any(given.nan for given in step.inputs)):
            intended, nan = True, False
        constant = any(step.constant >= min(made.limit, torch.finfo(made.dtype).max) for made in beyond)
        if (intended or constant) and not nan:
            for made in beyond:
                made.cause = _INTENDED
            return
        kind: OverflowType = "nan" if nan else "overflow_up"
        if not nan and step.plain in POLES and beyond[0].limit == math.inf and self._at_a_pole(step):
            kind = "pole"
        trace = self._note(step, kind, beyond[0])
        trace.negative &= all(_only_negative(made) for made in beyond)
        for made in beyond:
            made.cause = trace

    @staticmethod
    def _at_a_pole(step: Step) -> bool:
        """Whether zero lies within the inputs, and none of them is large enough to overflow."""
        last = step.inputs[-1] if step.plain == "div" else step.inputs[0] if step.inputs else None
        if last is None:
            return True  # a division by the number 0
        return last.low <= 0.0 <= last.high

    def _within(self, step: Step) -> None:
        for made in step.outputs:
            if made.zero_rows:
                self._note(step, "overflow_hidden", made)
                continue
            size = made.size
            lost = made.lost
            if size < torch.finfo(made.dtype).tiny and made.numel and step.inputs and lost is None:
                given = max(one.size for one in step.inputs)
                small = any(word in step.plain for word in _SMALL)
                if size == 0.0 and given > 0.0 and step.keeps:
                    lost = 1.0
                elif size > 0.0 and not small and given >= torch.finfo(step.inputs[0].dtype).tiny:
                    lost = 0.99  # subnormal throughout: bits are lost, not everything
            if lost is not None and lost >= LOST:
                made.lost = lost
                self._note(step, "overflow_down", made)

    def _note(self, step: Step, kind: OverflowType, made: Range) -> _Trace:
        key = (step.name, step.place, kind)
        self._counts[key] = self._counts.get(key, 0) + 1
        if key not in self._traces:
            self._traces[key] = _Trace(step, kind, made, devices={step.device})
        return self._traces[key]

    # -- the whole ------------------------------------------------------------------------------------------------

    def _counts_in(self, trace: _Trace) -> bool:
        if self._device is not None and self._device not in trace.devices:
            return False
        # Scores that a mask pushed below the smallest number, and softmax made 0 of them as it should.
        mask = trace.negative and trace.masked and op_type(trace.step.name) not in MATMULS
        return not (mask and trace.kind in ("overflow_up", "pole"))

    @staticmethod
    def _finding(trace: _Trace) -> Finding:
        step, made = trace.step, trace.output
        kind = trace.kind
        if kind == "overflow_up" and trace.to_zero and not trace.visible:
            kind = "overflow_hidden"
        what, dtype, cast = op_type(step.name), _dtype(step.inputs, made), ""
        if step.cast and kind == "overflow_up" and trace.consumer is not None:
            what, cast, dtype = op_type(trace.consumer.name), dtype, dtype_name(made.dtype)
        place = trace.consumer.place if cast and trace.consumer is not None else step.place
        info = torch.finfo(made.dtype)
        size = max((given.size for given in step.inputs), default=step.constant)
        return Finding(
            op_name=".".join(part for part in (place.module, what) if part),
            op_type=what,
            overflow_type=kind,
            input_dtype=dtype,
            input_max=size,
            issue_hint=hint(
                kind,
                what,
                dtype=dtype_name(made.dtype),
                size=size,
                limit=info.tiny if kind == "overflow_down" else info.max,
                backward=place.is_backward,
                cast=cast,
            ),
            op=step.name,
            output_dtype=dtype_name(made.dtype),
            result=_lost(made) if kind == "overflow_down" else _result([made]) if made.beyond else "0",
            place=place,
            chain=tuple(trace.links),
            victims=trace.victims,
            ends=trace.ends or (step.name if kind == "overflow_hidden" else ""),
            handled=trace.handled,
            lost=made.lost if kind == "overflow_down" else None,
        )


def _only_negative(made: Range) -> bool:
    return not made.nan and made.high < made.limit


def _result(made: list[Range]) -> str:
    if any(one.nan for one in made):
        return "NaN"
    first = next(one for one in made if one.beyond)
    if first.limit != math.inf and first.size != math.inf:
        return "saturated"
    return "Inf" if any(one.high == math.inf for one in made) else "-Inf"


def _lost(made: Range) -> str:
    if made.size == 0.0:
        return "0"
    share = f"{made.lost:.0%} " if made.lost is not None and made.lost < 0.99 else ""
    return f"{share}0 or subnormal" if share else "subnormal"


def _dtype(inputs: tuple[Range, ...], made: Range) -> str:
    widest = max(inputs, key=lambda given: given.size, default=made)
    return dtype_name(widest.dtype)
