"""Power: whether a criterion with thresholds could have told anything wrong from right on the values at hand.

A tolerance says nothing by itself: ``atol=0.5`` is strict for values of size 1000 and accepts a constant where values
lie in [0.5, 1]. So *impostors*, which nobody could take for the result, are judged by the same criterion in its place:
zeros, a constant (the mean), the same values in another order (noise of the golden's own size and distribution), and
twice the values. A criterion that accepts one of them is blind to this output.

Only what differs enough to be an impostor counts: by a tenth of the golden's size at least (a constant stands in well
for values that hardly vary, and who allows 5 % on them asks a question that can be answered), and by several times what
the CPU's own result is off (a gradient made of rounding errors can't be told from zeros). So a golden of zeros has no
impostors at all, and one of one element only zeros and its double.

``cosine`` is judged without the double: its cosine can't see a factor, so only ``max_abs`` would, and its default of
0.1 is for values of size one. That blindness is part of the criterion that was asked for, not of the case.
"""

from __future__ import annotations

import torch

from pytest_ascend.judge.standards import Criterion, judge
from pytest_ascend.judge.structure import dtype_name, widened
from pytest_ascend.judge.verdict import Verdict

__all__ = ["blind_spot", "has_thresholds"]

#: relative Euclidean distance from the golden from which on something is an impostor
DISTINCT = 0.1
#: ... and so many times the distance of the CPU's own result
BEYOND_ROUNDING = 4.0
#: elements judged first; what passes there is judged as a whole
SAMPLE = 1 << 14
#: of these, the largest of so many equal parts: few large values may be all that a criterion stumbles over
LARGEST = 1 << 8


def has_thresholds(criterion: Criterion) -> bool:
    """Whether a criterion allows errors by a table or thresholds, without a look at the case's own conditioning."""
    return criterion.name not in ("auto", "exact", "binary")


def blind_spot(golden: torch.Tensor, benchmark: torch.Tensor | None, criterion: Criterion) -> str:
    """What the criterion accepts in place of the golden, in words; empty where it rejects every impostor.

    Args:
        golden: dense, on the CPU, of any shape and dtype; other than floating and complex numbers are exact in any
            case, or at least no matter of size.
        benchmark: the same in the dtype that is judged, of the same shape; None where the golden is all there is.
        criterion: one that :func:`has_thresholds`.
    """
    own = golden if benchmark is None or benchmark.shape != golden.shape else benchmark
    if not (own.is_floating_point() or own.is_complex()) or not golden.numel():
        return ""
    golden, own = golden.detach().reshape(-1), own.detach().reshape(-1)
    chosen = _sample(golden)
    for name in ("zeros", "constant", "shuffled", "double"):
        if name == "double" and criterion.name == "cosine":
            continue
        if chosen is not None and not _accepts(golden[chosen], own[chosen], criterion, name):
            continue
        if _accepts(golden, own, criterion, name):
            return _words(name, golden)
    return ""


def _accepts(golden: torch.Tensor, own: torch.Tensor, criterion: Criterion, name: str) -> bool:
    """Whether there is such an impostor, and it passes."""
    impostor = _impostor(golden, name)
    apart = _rms(impostor - golden)
    rounding = 0.0 if own is golden else _rms(own.to(golden.dtype) - golden)
    if not apart > max(DISTINCT * _rms(golden), BEYOND_ROUNDING * rounding):
        return False
    benchmark = None if own is golden else own
    return judge(golden, impostor.to(own.dtype), benchmark, criterion).verdict is Verdict.PASS


def _impostor(golden: torch.Tensor, name: str) -> torch.Tensor:
    """The impostor, with NaN and infinities where the golden has them: those alone would give it away."""
    finite = golden.isfinite()
    if name == "zeros":
        other = torch.zeros_like(golden)
    elif name == "constant":
        other = torch.full_like(golden, _mean(golden))
    elif name == "double":
        other = golden * 2
    else:
        other = golden.clone()
        values = golden[finite]
        generator = torch.Generator(device="cpu").manual_seed(0)
        other[finite] = values[torch.randperm(values.numel(), generator=generator)]
    return torch.where(finite, other, golden)


def _words(name: str, golden: torch.Tensor) -> str:
    if name == "constant":
        mean = _mean(golden)
        return f"a constant {mean:.3g}"
    return {"zeros": "zeros", "shuffled": "the same values in another order", "double": "twice the values"}[name]


def blind_reason(criterion: Criterion, spot: str, dtype: torch.dtype) -> str:
    """Why such a check is no check."""
    given = ", ".join(f"{name} {value:g}" for name, value in criterion.thresholds.items())
    rule = f"criterion {criterion.name} with {given}" if given else f"criterion {criterion.name} in {dtype_name(dtype)}"
    return f"{rule} accepts {spot} in place of the values: this check can't fail"


def _sample(golden: torch.Tensor) -> torch.Tensor | None:
    """Places of a fixed random sample with the largest values in it; None where all elements are few enough."""
    if golden.numel() <= SAMPLE:
        return None
    generator = torch.Generator(device="cpu").manual_seed(0)
    random = torch.randint(golden.numel(), (SAMPLE - LARGEST,), generator=generator)
    width = golden.numel() // LARGEST
    parts = golden[: width * LARGEST].view(LARGEST, width).abs()
    largest = torch.where(parts.isfinite(), parts, 0.0).argmax(1) + torch.arange(LARGEST) * width
    return torch.cat([random, largest])


def _mean(golden: torch.Tensor) -> complex | float:
    values = golden[golden.isfinite()]
    if not values.numel():
        return 0.0
    mean = widened(values).mean().item()
    return complex(mean) if golden.is_complex() else float(mean)


def _rms(values: torch.Tensor) -> float:
    values = values[values.isfinite()]
    return float(values.abs().double().square().mean().sqrt()) if values.numel() else 0.0
