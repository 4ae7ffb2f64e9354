"""What was found to leave the range of its dtype: values that render themselves, and what to do about them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ascend.observe.op_places import Place

__all__ = ["Finding", "Link", "OverflowType", "hint", "op_type"]

OverflowType = Literal["overflow_up", "overflow_down", "overflow_hidden", "nan", "pole"]
"""``overflow_up``: Inf, or on a device that saturates the largest number there is, from smaller numbers.
``overflow_down``: zero or subnormal numbers from normal ones. ``overflow_hidden``: an overflow that ended as zeros, so
that no result shows it. ``nan``: NaN from numbers. ``pole``: Inf where a function has no number to give, as ``log(0)``
and ``1 / 0``."""

SHOWN = 8
"""How many links of a chain are shown to a person."""

_TYPES = {
    **dict.fromkeys(("mm", "addmm", "mv", "addmv", "dot", "linear", "matmul"), "MatMul"),
    **dict.fromkeys(("bmm", "baddbmm"), "BatchMatMul"),
    **dict.fromkeys(("_to_copy", "copy_", "npu_dtype_cast"), "Cast"),
    **dict.fromkeys(("add", "_foreach_add"), "Add"),
    **dict.fromkeys(("sub", "rsub"), "Sub"),
    **dict.fromkeys(("mul", "_foreach_mul"), "Mul"),
    **dict.fromkeys(("div", "_foreach_div"), "RealDiv"),
    **dict.fromkeys(("pow", "square"), "Pow"),
    **dict.fromkeys(("_softmax", "_safe_softmax"), "Softmax"),
    **dict.fromkeys(("native_layer_norm", "npu_layer_norm_eval"), "LayerNorm"),
    **dict.fromkeys(("npu_rms_norm", "_fused_rms_norm", "rms_norm"), "RmsNorm"),
    "npu_add_rms_norm": "AddRmsNorm",
    **dict.fromkeys(("convolution", "convolution_overrideable"), "Conv"),
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "linalg_vector_norm": "LpNorm",
    "_log_softmax": "LogSoftmax",
}
MATMULS = frozenset({"MatMul", "BatchMatMul", "Conv"})
SUMS = frozenset({"ReduceSum", "ReduceMean", "LpNorm", "Cumsum"})
POLES = frozenset({"log", "log2", "log10", "reciprocal", "rsqrt", "div", "logit"})


def op_type(name: str) -> str:
    """The operator's type: CANN's name where there is a plain one (``aten::mm``: ``MatMul``), else torch's own.

    In CamelCase, as profiles and dumps of the card write types.
    """
    plain = name.rpartition("::")[2].partition(".")[0]
    bare = plain if plain in _TYPES else plain.rstrip("_")
    return _TYPES.get(bare) or "".join(part[:1].upper() + part[1:] for part in re.split("_+", bare) if part)


@dataclass(frozen=True)
class Link:
    """One operator that an overflow came through.

    Attributes:
        op: the operator, such as ``aten::mm``.
        place: where it was called.
        result: what it made of it: ``Inf``, ``-Inf``, ``NaN``, ``saturated``, or ``finite`` where the chain ends.
    """

    op: str
    place: Place
    result: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "op": self.op,
            "op_type": op_type(self.op),
            "module": self.place.module,
            "source": self.place.source,
            "pass": "backward" if self.place.is_backward else "forward",
            "result": self.result,
        }


@dataclass(frozen=True)
class Finding:
    """An operator whose result left the range of its dtype, and what became of it.

    Attributes:
        op_name: ``module.op_type``, such as ``encoder.layer.0.attention.MatMul``.
        op_type: the operator's type, as :func:`op_type` gives it.
        overflow_type: see :data:`OverflowType`.
        input_dtype: of the inputs; for a cast that feeds an operator, what that operator computes in.
        input_max: the largest absolute value among the inputs, before a cast.
        issue_hint: what is wrong and what to change.
        op: the operator, such as ``aten::mm``; the cast, where it is one.
        output_dtype: of what it made.
        result: ``Inf``, ``-Inf``, ``NaN``, ``saturated``, ``0``, ``subnormal``.
        place: where it was called.
        chain: the operators that it came through afterwards, in the order in which they ran, as far as kept.
        victims: how many operators were given it.
        ends: what took the last of it away, such as ``aten::rsqrt``, or ``""``.
        handled: a loss scaler saw it and skipped the step.
        lost: share of elements that became zero or subnormal, where that is known.
        count: how often this operator did this at this place.
    """

    op_name: str
    op_type: str
    overflow_type: OverflowType
    input_dtype: str
    input_max: float
    issue_hint: str
    op: str
    output_dtype: str
    result: str
    place: Place
    chain: tuple[Link, ...] = ()
    victims: int = 0
    ends: str = ""
    handled: bool = False
    lost: float | None = None
    count: int = 1

    @property
    def serious(self) -> bool:
        """Whether results are wrong by it: not an underflow of some elements, nor what a loss scaler took care of."""
        if self.overflow_type == "overflow_down":
            return self.result == "0"
        return not self.handled

    @property
    def module(self) -> str:
        """The layer it happened in."""
        return self.place.module

    @property
    def source(self) -> str:
        """``file:line`` of the caller's code."""
        return self.place.source

    def times(self, count: int) -> Finding:
        """The same finding, met so often."""
        return dataclasses.replace(self, count=count)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: the six keys ``op_name`` to ``issue_hint`` first."""
        return {
            "op_name": self.op_name,
            "op_type": self.op_type,
            "overflow_type": self.overflow_type,
            "input_dtype": self.input_dtype,
            "input_max": self.input_max if math.isfinite(self.input_max) else str(self.input_max),
            "issue_hint": self.issue_hint,
            "op": self.op,
            "output_dtype": self.output_dtype,
            "result": self.result,
            "module": self.module,
            "source": self.source,
            "pass": "backward" if self.place.is_backward else "forward",
            "chain": [link.to_dict() for link in self.chain],
            "victims": self.victims,
            "ends": self.ends,
            "handled": self.handled,
            "lost": self.lost,
            "count": self.count,
        }

    def line(self) -> str:
        """One sentence: what, from what, where."""
        size = f"{self.input_max:g}" if self.input_max == self.input_max else "NaN"
        given = f"{self.input_dtype} inputs up to {size}"
        often = f", {self.count} times" if self.count > 1 else ""
        what = {
            "overflow_down": f"{self.op_name} lost {given} to {self.result}",
            "overflow_hidden": f"{self.op_name} overflowed unseen, with {given}",
        }.get(self.overflow_type, f"{self.op_name} made {self.result} from {given}")
        return f"{self.overflow_type}: {what} ({self.place}){often}"

    def render(self) -> Iterator[str]:
        """Lines for a person."""
        yield self.line()
        yield f"  {self.issue_hint}"
        if self.chain:
            yield f"  it went on through {self.victims} operator{'s' * (self.victims != 1)}:"
            for link in self.chain[:SHOWN]:
                yield f"    {op_type(link.op)} → {link.result}: {link.place}"
            if self.victims > SHOWN:
                yield f"    and {self.victims - SHOWN} more"
        if self.ends and self.overflow_type == "overflow_hidden":
            yield f"  {op_type(self.ends)} turned it into zeros: no result shows it"
        if self.handled:
            yield "  a loss scaler saw it and skipped the step"


def hint(
    kind: OverflowType, what: str, *, dtype: str, size: float, limit: float, backward: bool, cast: str = ""
) -> str:
    """What is wrong and what to change.

    Args:
        kind: what happened.
        what: the operator's type.
        dtype: what it computes in.
        size: the largest input, as an absolute value.
        limit: the largest number of ``dtype``; for ``overflow_down`` the smallest normal one.
        backward: whether it was in a backward pass.
        cast: the dtype that the inputs were cast from, where the cast did it.
    """
    scaled = "lower the loss scale (GradScaler's init_scale), or clip gradients" if backward else ""
    if kind == "overflow_down":
        remedy = (
            "scale the loss up (torch.amp.GradScaler)" if backward else "scale the values up, or keep them in float32"
        )
        return f"below {limit:.3g}, the smallest normal {dtype} number, values lose bits and become 0: {remedy}"
    if kind == "overflow_hidden":
        return (
            f"inputs up to {size:g} overflow {dtype} (largest {limit:g}) on the way, and the infinite statistic made "
            "the result 0: compute the statistics in float32, or scale the inputs"
        )
    if kind == "nan":
        return (
            f"{what} has no number to give for these inputs (0 * Inf, Inf - Inf, 0 / 0, a root or logarithm of a "
            "negative number, softmax of a row that is masked throughout): keep such inputs away from it"
        )
    if kind == "pole":
        return f"{what} is infinite at an input of 0: add an epsilon that {dtype} can hold, or clamp the input"
    if cast:
        remedy = f"scale or normalise its input, or keep {what} in float32 (bfloat16 has the range)"
        return (
            f"{dtype} input overflow: {what} is given {cast} values up to {size:g} cast to {dtype}, whose largest "
            f"number is {limit:g}: {scaled or remedy}"
        )
    if what in MATMULS or what in SUMS:
        remedy = "accumulate in float32 and scale or normalise the inputs, or use bfloat16"
        about = f"sums of {what}" if what in SUMS else f"the products that {what} adds up"
        return f"{about} leave {dtype} (largest {limit:g}) with inputs up to {size:g}: {scaled or remedy}"
    remedy = "scale or normalise the inputs, compute this in float32, or use bfloat16"
    return f"{what} of inputs up to {size:g} leaves {dtype} (largest {limit:g}): {scaled or remedy}"
