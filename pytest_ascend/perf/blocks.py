"""How many calls to time at once, and when a workload is warm. Pure: what is timed comes in as a function.

A block is a number of calls between two readings of the clock. Its size follows pytest-benchmark's calibration (ten
times as many calls until the clock sees them, then as many as are wanted), with one more wish: what reading the clocks
and waiting for the device cost is no more than :data:`OVERHEAD` of the block.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    *("MOST_BLOCKS", "OVERHEAD", "Block", "Plan", "Window", "calibrate", "idle", "is_steady", "take", "undisturbed"),
]

#: What the timer may cost, as a fraction of what is timed (torch.utils.benchmark's choice is ten times smaller, for
#: blocks that are ten times as long).
OVERHEAD = 1e-3
#: More blocks than this say nothing new about one process.
MOST_BLOCKS = 500
#: A workload is warm when the later half of so many rounds or more is faster than the earlier by less than this part,
#: and a tenth of the time for warming up is over: a slow trend doesn't show in a few blocks.
ROUNDS, GAIN, LEAST = 6, 0.02, 0.1
#: The part of its time that a block may wait for the processor.
INTERRUPTED = 0.02
_EMPTY_BLOCKS = 21
_MOST_CALLS = 10**7


@dataclass(frozen=True)
class Block:
    """What the clocks said of some calls.

    Attributes:
        calls: how many.
        wall: seconds until the device had finished them.
        device: seconds between two events around them in the device's own queue; None without a device.
        late: seconds that the device still worked after the second of the events.
        elsewhere: seconds that other devices still worked when the block had ended.
        processor: seconds of processor time that the process took meanwhile; None where that means nothing.
    """

    calls: int
    wall: float
    device: float | None = None
    late: float = 0.0
    elsewhere: float = 0.0
    processor: float | None = None


Window = Callable[[int], Block]


@dataclass(frozen=True)
class Plan:
    """How a workload is timed.

    Attributes:
        calls: per block.
        warmup_calls: that ran before.
        steady: whether it had stopped getting faster.
        share: what a block without calls takes, as a fraction of a block.
    """

    calls: int
    warmup_calls: int
    steady: bool
    share: float


def idle(window: Window) -> Block:
    """What the clocks say of a block without any call: the medians of a few of them."""
    blocks = [window(0) for _ in range(_EMPTY_BLOCKS)]
    device = [block.device for block in blocks if block.device is not None]
    wall, late, elsewhere = (
        statistics.median(getattr(block, name) for block in blocks) for name in ("wall", "late", "elsewhere")
    )
    return Block(0, wall, statistics.median(device) if device else None, late, elsewhere)


def undisturbed(blocks: Sequence[Block]) -> list[Block]:
    """The blocks during which no other program took the processor away.

    One thread takes as much processor time as wall time while it computes, and always the same part of it where it also
    waits. So a block counts unless it waited for longer than the best one did, by more than :data:`INTERRUPTED` of its
    time. Blocks without processor time all count.
    """
    shares = [1.0 - b.processor / b.wall if b.processor is not None and b.wall > 0 else 0.0 for b in blocks]
    waited = [max(0.0, share) for share in shares]  # several threads take more than one has
    most = min(waited, default=0.0) + INTERRUPTED
    return [block for block, part in zip(blocks, waited, strict=True) if part <= most]


def is_steady(times: Sequence[float], rounds: int = ROUNDS, gain: float = GAIN) -> bool:
    """Whether the later half of the times brought none that is clearly below the best of the earlier half.

    The best time stands for each half: noise only adds to a time, so that the best of a few is what shows a trend.
    """
    if len(times) < rounds:
        return False
    half = len(times) // 2
    return min(times[half:]) >= (1.0 - gain) * min(times[:half])


def calibrate(
    window: Window,
    now: Callable[[], float],
    *,
    min_time: float,
    overhead: float,
    resolution: float = 0.0,
    warmup_time: float = 1.0,
    most_calls: int = _MOST_CALLS,
) -> Plan:
    """Warm a workload up and find the size of its blocks.

    Args:
        window: times a number of calls.
        now: the clock, in seconds.
        min_time: seconds that a block takes at least.
        overhead: seconds that a block takes without any call.
        resolution: the smallest step of the clock, in seconds.
        warmup_time: seconds after which the workload is taken for warm as it is. One call is made in any case.
        most_calls: of a block.
    """
    wanted = max(min_time, max(overhead, resolution) / OVERHEAD)
    begin = now()
    calls, done = 1, 1
    wall = window(1).wall
    best, times = wall, [wall]
    while wall < wanted and calls < most_calls and now() - begin < warmup_time:
        # An estimate from a block that the overhead fills isn't worth much: ten times as many tell more.
        calls = min(most_calls, max(calls + 1, _fill(wanted, wall / calls) if wall > wanted / 10 else calls * 10))
        wall = window(calls).wall
        done += calls
        best = min(best, wall / calls)
        times.append(wall / calls)
    calls = min(most_calls, max(1, _fill(wanted, best)))
    times = times[-1:]
    while True:
        spent = now() - begin
        steady = spent >= LEAST * warmup_time and is_steady(times)
        if steady or spent >= warmup_time:
            break
        times.append(window(calls).wall / calls)
        done += calls
        best = min(best, times[-1])
        calls = max(calls, min(most_calls, _fill(wanted, best)))
    return Plan(calls, done, steady, overhead / (calls * best) if best > 0 else math.inf)


def _fill(wanted: float, each: float) -> int:
    """How many calls of so many seconds fill a time."""
    return math.ceil(wanted / each) if each > 0 and wanted / each < _MOST_CALLS else _MOST_CALLS


def take(
    window: Window, calls: int, now: Callable[[], float], *, min_rounds: int, max_time: float, most: int = MOST_BLOCKS
) -> list[Block]:
    """Time blocks until there are ``min_rounds`` of them and ``max_time`` seconds are over."""
    begin = now()
    blocks: list[Block] = []
    while len(blocks) < max(min_rounds, 1) or (now() - begin < max_time and len(blocks) < most):
        blocks.append(window(calls))
    return blocks
