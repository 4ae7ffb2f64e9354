"""Time a callable on a target, in this process.

Wall time runs from the first call of a block until the device has finished them all; device time is what the device
itself says went by between two marks in its queue. They are two metrics and never one. How many calls make a block,
and when the workload is warm, is decided in ``blocks``; the copies that take turns are made in ``workload``.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_ascend.cases.case import Case
from pytest_ascend.observe.capture import seed_all
from pytest_ascend.perf.blocks import Block, Plan, calibrate, idle, take, undisturbed
from pytest_ascend.perf.counting import effort
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.perf.quiet import Refused, throttled
from pytest_ascend.perf.workload import Workload, prepared
from pytest_ascend.targets.base import Target

__all__ = ["Measurement", "Refused", "Timer", "Window", "measure"]

#: Work that goes on after the timing ended may take this part of it, and no more.
LATE = 0.01
#: So many times what waiting for an idle device takes is still no work.
IDLE = 3.0
#: Fewer blocks than this that no other program disturbed say nothing.
LEAST_BLOCKS = 3


@dataclass(frozen=True)
class Timer:
    """A clock in seconds and its smallest step, pytest-benchmark's by default; and the process's processor time."""

    now: Callable[[], float]
    resolution: float
    processor: Callable[[], float] | None = None

    @classmethod
    def of(cls, now: Callable[[], float] | None = None) -> Timer:
        """A clock, with pytest-benchmark's measurement of its step."""
        from pytest_benchmark import timers

        processor = time.process_time if now is None else None
        now = now or timers.default_timer  # type: ignore[attr-defined]
        return cls(now, float(timers.compute_timer_precision(now) or 0.0), processor)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Measurement:
    """The timings of a workload in one process.

    Attributes:
        api: what was called.
        metrics: ``"wall"`` and, on a device, ``"device"``: seconds per call, one for each block.
        metric: which of them is to be judged.
        clock: what device time was read from, or None.
        first_call_s: seconds of wall time of the first call, with what it compiles and loads.
        warmup_calls, calls_per_block: how many.
        steady: whether the workload had stopped getting faster when the timing began.
        overhead: what the timer costs, as a fraction of a block.
        copies: of the arguments, which took turns.
        kernels_per_call: operators that ran on the device; 0: it took no part; None: nothing to count.
        peak_bytes, peak_source: the most memory held at once beyond what was there before, and who counted it.
        threads: that torch computed with.
        unusable: why the timings say nothing, or ``""``.
        notes: what a reader should know.
    """

    api: str
    metrics: dict[str, list[float]]
    metric: str
    clock: str | None
    first_call_s: float
    warmup_calls: int
    calls_per_block: int
    steady: bool
    overhead: float
    copies: int
    kernels_per_call: int | None
    peak_bytes: int | None
    peak_source: str
    threads: int
    unusable: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """The timings to be judged."""
        return self.metrics.get(self.metric, [])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


def measure(case: Case, target: Target, options: PerfOptions, timer: Timer | None = None) -> Measurement:
    """Time a case on a target, in this process.

    Args:
        case: what to call. It is copied; the caller's own tensors and modules stay where and what they are.
        target: where. Its default stream is not changed: the caller's current stream is the one that is timed.
        options: how.
        timer: the clock of wall time; pytest-benchmark's without it.

    Returns:
        The timings. ``unusable`` says why they count for nothing where they don't: no kernel ran, work went on after
        the timing had ended, the clock was throttled.

    Raises:
        Refused: it can't be timed as things are; one sentence says why.
        ValueError: the case can't be copied.
        Exception: what the workload raised.
    """
    if target.name not in ("cpu", "cuda", "npu"):
        raise Refused(
            f"not timed: {target.name}'s functions run in another process here, so the way there is timed too"
        )
    metric = _judged(options, target)
    timer = timer or Timer.of()
    with prepared(case, target, options) as workload:
        heat = throttled()
        if options.seed is not None:
            seed_all(target, options.seed)
        first_s = _first(workload, target, timer)
        workload.settle()
        window = Window(workload.batch, target, timer)
        done = effort(workload.batch(1)[0], target, holds_tensors=bool(case.tensors or case.modules))
        empty = idle(window)
        plan = calibrate(
            window,
            timer.now,
            min_time=options.min_time,
            overhead=max(empty.wall, empty.device or 0.0),
            resolution=timer.resolution,
            warmup_time=options.warmup_time,
            **({} if workload.most_calls is None else {"most_calls": workload.most_calls}),
        )
        blocks = take(window, plan.calls, timer.now, min_rounds=options.min_rounds, max_time=options.max_time)
        unusable = _not_exercised(done.kernels, target) or _not_waited_for(blocks, empty, target, options)
        kept = undisturbed(blocks)
        if not unusable and len(kept) < LEAST_BLOCKS <= len(blocks):
            unusable = (
                f"other programs took the processor away in {len(blocks) - len(kept)} of {len(blocks)} blocks: time it "
                "on a machine with less to do"
            )
        if not unusable and throttled() > heat:
            unusable = "the CPU was slowed down for its heat while it was timed: let it cool, or cool it better"
    return Measurement(
        api=case.api,
        metrics=_metrics(kept, options),
        metric=metric,
        clock=target.clock(),
        first_call_s=first_s,
        warmup_calls=plan.warmup_calls,
        calls_per_block=plan.calls,
        steady=plan.steady,
        overhead=plan.share,
        copies=workload.copies,
        kernels_per_call=done.kernels,
        peak_bytes=done.peak_bytes,
        peak_source=done.peak_source,
        threads=options.threads,
        unusable=unusable,
        notes=[*workload.notes, *_remarks(plan), *_left_out(len(blocks) - len(kept), len(blocks))],
    )


class Window:
    """Times a number of calls on a target; see ``blocks.Block``.

    Args:
        batch: gives so many calls, made ready outside of what is timed.
        target: where they run.
        timer: the clock of wall time.
    """

    def __init__(self, batch: Callable[[int], Sequence[Callable[[], object]]], target: Target, timer: Timer) -> None:
        self.batch = batch
        self.target = target
        self.now = timer.now
        self.others = _other_devices(target)
        # Processor time tells what one thread of this process does, and nothing of a device.
        computes = (target.name == "cpu" or target.emulated) and torch.get_num_threads() == 1
        self.processor = timer.processor if computes else None

    def __call__(self, calls: int) -> Block:
        batch = self.batch(calls)
        now, target = self.now, self.target
        start, end = target.event(), target.event()
        target.synchronize()
        for wait in self.others:
            wait()
        before = self.processor() if self.processor is not None else 0.0
        begin = now()
        if start is not None:
            start.record()
        for call in batch:
            call()
        if end is not None:
            end.record()
            end.synchronize()
        reached = now()
        target.synchronize()
        stop = now()
        processor = self.processor() - before if self.processor is not None else None
        read = now()  # a busy machine may well give the processor away while its time is read: no device worked then
        for wait in self.others:
            wait()
        after = now()
        device = start.elapsed_time(end) / 1e3 if start is not None and end is not None else None
        return Block(calls, stop - begin, device, stop - reached, after - read, processor)


def _first(workload: Workload, target: Target, timer: Timer) -> float:
    """Seconds of the first call. Raises ``Refused`` when what it returns shows that it wasn't carried out."""
    call = workload.first()
    target.synchronize()
    begin = timer.now()
    result = call()
    target.synchronize()
    seconds = timer.now() - begin
    if (what := _put_off(result)) is not None:
        if inspect.iscoroutine(result):
            result.close()
        raise Refused(f"not timed: {workload.case.api} returned {what}")
    return seconds


def _put_off(result: object) -> str | None:
    """What a result is that stands for work nobody has waited for."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return "a generator, so nothing was computed; time a function that consumes it, such as lambda: list(...)"
    if inspect.isawaitable(result):
        return "something to be awaited, so nothing was computed; time a function that runs it to its end"
    if callable(getattr(result, "done", None)) and callable(getattr(result, "result", None) or _of(result, "wait")):
        return "a future, whose work nobody waits for; time a function that waits for its result"
    if callable(_of(result, "is_completed")) and callable(_of(result, "wait")):
        return "a handle of work that nobody waits for; time a function that calls its wait()"
    return None


def _of(value: object, name: str) -> Any:
    return getattr(value, name, None)


def _other_devices(target: Target) -> list[Callable[[], object]]:
    """How to wait for each running device but the target's own, in case a workload uses them."""
    found: list[Callable[[], object]] = []
    for kind in ("cuda", "npu"):
        module = getattr(torch, kind, None)
        if module is None or not module.is_initialized():
            continue
        for index in range(module.device_count()):
            if (kind, index) != (target.name, target.index):
                found.append(lambda wait=module.synchronize, index=index: wait(index))  # type: ignore[misc]
    return found


def _not_exercised(kernels: int | None, target: Target) -> str:
    if kernels != 0:
        return ""
    return f"not exercised: a call runs no kernel on {target.title()}, so there is nothing to time"


def _not_waited_for(blocks: Sequence[Block], empty: Block, target: Target, options: PerfOptions) -> str:
    """Whether work went on after the clocks were read: then they say nothing about it.

    Waiting for a device that has nothing to do takes a while too: the blocks without calls tell how long.
    """
    limit = LATE * statistics.median(block.wall for block in blocks)
    elsewhere = statistics.median(block.elsewhere for block in blocks)
    if elsewhere > limit + IDLE * empty.elsewhere:
        return (
            f"not synchronised: another device than {target.title()} still worked for {elsewhere:.3g} s when the "
            "timing had ended; time it on that device, or wait for it in the workload"
        )
    late = statistics.median(block.late for block in blocks)
    if blocks[0].device is not None and late > limit + IDLE * empty.late and options.metric != "wall":
        return (
            f"not synchronised: {target.title()} still worked for {late:.3g} s in another stream when the last event "
            "had passed, which its device time leaves out; let the current stream wait for it, or give metric='wall'"
        )
    return ""


def _metrics(blocks: Sequence[Block], options: PerfOptions) -> dict[str, list[float]]:
    metrics = {"wall": [block.wall / block.calls for block in blocks]}
    device = [block.device / block.calls for block in blocks if block.device is not None]
    if device and options.metric != "wall":
        metrics["device"] = device
    return metrics


def _judged(options: PerfOptions, target: Target) -> str:
    if options.metric == "auto":
        return "device" if target.clock() is not None and not target.emulated else "wall"
    if options.metric == "device" and target.clock() is None:
        raise Refused(f"not timed: {target.title()} has no clock of its own, so metric='device' can't be had")
    return options.metric


def _remarks(plan: Plan) -> list[str]:
    found = []
    if not plan.steady:
        found.append("it was still getting faster, or too slow to tell, when warming up ended: raise warmup_time")
    if plan.share > 1.1e-3:
        found.append(f"reading the clock is {100 * plan.share:.2g} % of a block, which can't have more calls")
    return found


def _left_out(count: int, of: int) -> list[str]:
    return [f"{count} of {of} blocks, in which other programs took the processor away, don't count"] if count else []
