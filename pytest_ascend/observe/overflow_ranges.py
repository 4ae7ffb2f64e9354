"""Smallest and largest value of many tensors, taken where the tensors are and read many at a time.

``aminmax`` is one pass over a tensor and copies nothing: NaN in it makes both numbers NaN, an infinity is one of them.
They are written into a buffer on the device; the host waits for the device only when a buffer is full, or when somebody
asks. Whether the device's ``aminmax`` carries NaN is tried out once per dtype; where it doesn't, ``isfinite`` is asked
as well.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

__all__ = ["BATCH", "Range", "Ranges"]

BATCH = 512
"""How many tensors of a dtype are measured before the host waits for the device."""

_AMINMAX: Any = torch.ops.aten.aminmax.out
_COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
_TRIED = (3, 1000, 4099)  # lengths: less than a vector, several blocks, a tail


class Range:
    """What is known of a tensor's values.

    Attributes:
        dtype: of the tensor; of the parts of a complex one.
        numel: how many elements.
        low, high: smallest and largest value; NaN where one of them is NaN. Meaningless until :attr:`known`.
        known: whether the numbers have been read.
        notable: whether there is something to look at: a value beyond the dtype or none of a normal size, or what isn't
            known.
        parts: for a storage written in parts, what it is made of.
        cause: where what is beyond the dtype comes from; filled in by ``overflow_chain``.
        zero_rows: for a normalisation, whether whole rows became zero though their input isn't, once known.
        lost: share of the elements that the operator lost to zero or to subnormal numbers, where it was measured.
        base: for a part of a storage known to be beyond its dtype, the storage's range.
        limit: the size from which on a value is beyond the dtype: infinite, or on a device that saturates the largest
            finite number.
    """

    low = high = 0.0
    known = False
    notable = True
    parts: tuple[Range, ...] = ()
    cause: Any = None
    zero_rows = False
    lost: float | None = None
    limit = math.inf
    base: Range | None = None

    def __init__(self, dtype: torch.dtype, numel: int) -> None:
        self.dtype = dtype
        self.numel = numel

    @classmethod
    def of(cls, dtype: torch.dtype, numel: int, low: float, high: float) -> Range:
        """A range whose numbers are known."""
        made = cls(dtype, numel)
        made.low, made.high = low, high
        made.read()
        return made

    @classmethod
    def together(cls, old: Range, new: Range) -> Range:
        """Of a storage part of which was written: old values and new ones."""
        made = cls(new.dtype, max(old.numel, new.numel))
        made.parts, made.limit = (old, new), new.limit
        return made

    def settle(self) -> None:
        """Take the numbers of parts that are known by now."""
        if self.parts and not self.known:
            for part in self.parts:
                part.settle()
            lows, highs = [part.low for part in self.parts], [part.high for part in self.parts]
            nan = any(math.isnan(number) for number in lows + highs)
            self.low, self.high = (math.nan, math.nan) if nan else (min(lows), max(highs))
            self.cause = next((part.cause for part in self.parts if part.cause is not None), None)
            self.parts = ()
            self.read()

    def read(self) -> None:
        """The numbers are there."""
        self.known = True
        low, high = self.low, self.high
        tiny = _TINY[self.dtype]
        fine = -self.limit < low <= high < self.limit and (high >= tiny or low <= -tiny)
        self.notable = not fine or self.cause is not None

    @property
    def beyond(self) -> bool:
        """Whether a value in it is none that the dtype holds."""
        return not -self.limit < self.low <= self.high < self.limit  # NaN is never within

    @property
    def nan(self) -> bool:
        """Whether there is a NaN in it."""
        return math.isnan(self.low) or math.isnan(self.high)

    @property
    def size(self) -> float:
        """The largest absolute value; infinite or NaN where the tensor isn't finite."""
        return math.nan if self.nan else max(abs(self.low), abs(self.high))


class Ranges:
    """Measures tensors. ``waits`` counts how often the host waited for a device; one object for all devices."""

    def __init__(self) -> None:
        self.waits = 0
        self.measured = 0
        self.unmeasured: Counter[str] = Counter()
        self._buffers: dict[tuple[torch.device, torch.dtype], _Buffer] = {}
        self._flags: list[tuple[Range, str, torch.Tensor]] = []

    def take(self, tensor: torch.Tensor) -> Range | None:
        """Measure a tensor on its device; None where there is nothing to measure, which is counted by its reason."""
        if tensor.layout is not torch.strided:
            self.unmeasured[f"layout {str(tensor.layout).removeprefix('torch.')}"] += 1
            return None
        dtype = tensor.dtype
        if dtype in _COMPLEX:
            tensor, dtype = torch.view_as_real(tensor.resolve_conj()), _COMPLEX[dtype]
        if dtype not in _TINY:
            self.unmeasured[str(dtype).removeprefix("torch.")] += 1
            return None
        numel = tensor.numel()
        if not numel:
            return Range.of(dtype, 0, 0.0, 0.0)
        key = tensor.device, dtype
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _Buffer(*key)
        found = Range(dtype, numel)
        buffer.add(tensor, found)
        self.measured += 1
        return found

    def flag(self, found: Range, name: str, value: torch.Tensor) -> None:
        """Keep a number on the device to be read with the rest: an attribute of a range."""
        self._flags.append((found, name, value))

    @property
    def full(self) -> bool:
        """Whether a buffer has no room left."""
        return any(buffer.room < 64 for buffer in self._buffers.values()) or len(self._flags) >= BATCH

    def read(self) -> None:
        """Wait for the devices and fill in the numbers of everything that was measured."""
        waited = False
        for (device, _), buffer in self._buffers.items():
            waited |= buffer.read(device)
        if self._flags:
            waited = True
            by_kind: dict[tuple[torch.device, torch.dtype], list[tuple[Range, str, torch.Tensor]]] = {}
            for flag in self._flags:
                by_kind.setdefault((flag[2].device, flag[2].dtype), []).append(flag)
            for flags in by_kind.values():
                values = torch.stack([value for _, _, value in flags]).tolist()
                for (found, name, _), value in zip(flags, values, strict=True):
                    setattr(found, name, value)
                    found.notable = True
            self._flags.clear()
        self.waits += waited


class _Buffer:
    """Numbers of one dtype on one device that wait to be read."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.carries_nan = _carries_nan(device, dtype)
        self.numbers = torch.zeros(2, BATCH, device=device, dtype=dtype)
        self.places = list(zip(self.numbers[0].unbind(), self.numbers[1].unbind(), strict=True))
        self.finite = None if self.carries_nan else torch.ones(BATCH, device=device, dtype=torch.bool)
        self.waiting: list[Range] = []

    @property
    def room(self) -> int:
        return BATCH - len(self.waiting)

    def add(self, tensor: torch.Tensor, found: Range) -> None:
        if not self.room:
            self.read(tensor.device)
        at = len(self.waiting)
        low, high = self.places[at]
        _AMINMAX(tensor, min=low, max=high)
        if self.finite is not None:
            self.finite[at] = torch.isfinite(tensor).all()
        self.waiting.append(found)

    def read(self, device: torch.device) -> bool:
        if not self.waiting:
            return False
        if device.type != "cpu":  # whatever stream the numbers were made on
            getattr(torch, device.type).synchronize(device)
        count = len(self.waiting)
        lows, highs = self.numbers[:, :count].to("cpu").tolist()
        finite = [True] * count if self.finite is None else self.finite[:count].tolist()
        for found, low, high, sound in zip(self.waiting, lows, highs, finite, strict=True):
            lost = not sound and math.isfinite(low) and math.isfinite(high)
            found.low, found.high = (math.nan, math.nan) if lost else (low, high)
            found.read()
        self.waiting.clear()
        return device.type != "cpu"


def _carries_nan(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this device's aminmax of a tensor with one NaN in it is NaN, wherever it stands."""
    for length in _TRIED:
        for place in (0, length // 2, length - 1):
            tried = torch.zeros(length, dtype=dtype)
            tried[place] = math.nan
            low, high = torch.aminmax(tried.to(device))
            if not (bool(low.isnan()) and bool(high.isnan())):
                return False
    return True
