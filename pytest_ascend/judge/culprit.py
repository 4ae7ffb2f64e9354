"""The operator that is to blame for what a whole model got wrong, as a value. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Culprit"]


@dataclass(frozen=True)
class Culprit:
    """The first operator of a run that is wrong with the very inputs it got there.

    Attributes:
        op: its overload: ``aten.addmm.default``.
        inputs: what it was called with: ``float16[8, 128]``, plain values as they are.
        phase: ``forward`` or ``backward``.
        module: path of the innermost layer that called it, of a backward operator the layer of the forward operator
            that it belongs to; ``""`` outside all layers.
        source: the line that called it, or the forward operator: ``modeling_bert.py:182 in forward``; ``""`` where no
            line of a caller is known.
        number, total: the how manieth of how many operators of the run.
        reason: what is wrong with it.
        confirmed: whether it is wrong when it runs alone, too.
    """

    op: str
    inputs: tuple[str, ...] = ()
    phase: str = "forward"
    module: str = ""
    source: str = ""
    number: int = 0
    total: int = 0
    reason: str = ""
    confirmed: bool = True

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Culprit:
        """The way back from :meth:`to_dict`."""
        return cls(**{**plain, "inputs": tuple(plain["inputs"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {**asdict(self), "inputs": list(self.inputs)}

    @property
    def where(self) -> str:
        """``in encoder.layer.0, modeling_bert.py:182 in forward, operator 31 of 412, backward``."""
        parts = [f"in {self.module}" if self.module else "", self.source, f"operator {self.number} of {self.total}"]
        if self.phase == "backward":
            parts.append("in the backward pass")
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        alone = "" if self.confirmed else " (wrong in the model's run, right when it runs alone)"
        return f"{self.op}({', '.join(self.inputs)}) {self.where}: {self.reason}{alone}"
