"""What a caller can ask of one timing: :class:`PerfOptions`. Torch-free, so that a marker costs nothing to check."""

from __future__ import annotations

import dataclasses
import math

from pytest_ascend.options import Options, one_of

__all__ = ["METRICS", "MOST_COPIES", "PerfOptions"]

METRICS = ("auto", "device", "wall")
"""Which clock judges: the device's own where it has one, else wall time; never a mix of the two."""

MOST_COPIES = 256
"""More copies of the arguments than this aren't made, whatever their size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerfOptions(Options):
    """Options of one timing. Frozen; every field has a default; unknown names raise ``TypeError``.

    Attributes:
        target: where the code runs, as in ``CheckOptions``: ``auto``, ``npu:1``, ``emulated``, ``cuda``, ``cpu``.
        threshold: the slowdown that must be caught, as a fraction in (0, 1]: 0.03 is 3 %; ``None``: the run's own.
        processes: how many fresh processes time it at least, >= 1; ``None``: the run's own number.
        metric: which time is judged: ``device``, ``wall``, or ``auto``: device time where the device has a clock of
            its own, else wall time.
        rotate: how many copies of the arguments take turns, >= 1, so that none is found in the cache: ``auto`` takes
            as many as exceed the last-level cache, ``False`` one. A call that changes its arguments gets as many as a
            block has calls, unless a number says otherwise.
        clear_cache: before each block, outside of what is timed, overwrite the last-level cache; a block then has no
            more calls than there are copies of the arguments.
        min_time: seconds that a block of calls takes at least; it is longer where the timer's own cost asks for it.
        max_time: seconds to spend on timed blocks in each process, once there are ``min_rounds``.
        min_rounds: blocks in each process at least, >= 2.
        warmup_time: seconds that warming up may take at most; one call before the first timed one there always is.
        threads: how many threads torch computes with, >= 1.
        seed: seed of the generators before the first call; ``None`` derives one from the test.

    Raises:
        TypeError: an unknown name, or a value of the wrong type.
        ValueError: a value out of range; the message names the option and what it takes.
    """

    threshold: float | None = None
    processes: int | None = None
    metric: str = "auto"
    rotate: bool | int | str = "auto"
    clear_cache: bool = False
    min_time: float = 1e-3
    max_time: float = 0.5
    min_rounds: int = 5
    warmup_time: float = 1.0
    threads: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("metric", self.metric, METRICS)
        if self.threshold is not None:
            self._number("threshold", 1.0)
        if self.processes is not None:
            self._whole("processes", 1)
        if isinstance(self.rotate, str):
            if self.rotate != "auto":
                raise ValueError(f"rotate={self.rotate!r} is not known: it is 'auto', False or a number of copies")
        elif not isinstance(self.rotate, bool):
            self._whole("rotate", 1, MOST_COPIES)
        if not isinstance(self.clear_cache, bool):
            raise TypeError(f"clear_cache={self.clear_cache!r} is not known: it is True or False")
        for name in ("min_time", "max_time", "warmup_time"):
            self._number(name, 3600.0)
        self._whole("min_rounds", 2)
        self._whole("threads", 1)
        if self.seed is not None:
            self._whole("seed", 0, 2**63 - 1)

    def _number(self, name: str, high: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}={value!r} is not a number")
        if math.isnan(value) or not 0.0 < value <= high:
            raise ValueError(f"{name}={value!r} is out of range: give a number in (0, {high:g}]")
