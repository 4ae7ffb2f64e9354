"""torch.profiler on the CPU and on CUDA, into the same table as the card's profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .operators import OperatorRow, OperatorTable
from .summaries import Sums

#: what the profiler itself adds to a profile
_OVERHEAD = ("ProfilerStep*", "Activity Buffer Request", "Lazy Function Loading", "Command Buffer Full")


def profile(
    fn: Callable[..., Any], *args: Any, calls: int = 10, warm_up: int = 3, device: str = "cpu", **kwargs: Any
) -> OperatorTable:
    """Call ``fn(*args, **kwargs)`` under torch.profiler and give what its operators cost.

    Never profile and measure together: the profiler's own time is in these figures, so they say which operator is
    expensive and not how long the whole takes.

    Args:
        fn: a function or a module.
        calls: how many calls are profiled; the table counts each as one step.
        warm_up: how many calls go before, unprofiled.
        device: `cpu` or `cuda`.

    Returns:
        Own times in microseconds. On the CPU ``device_us`` is ``None``.

    Raises:
        ValueError: another device, or no call to profile.
    """
    import torch
    from torch.profiler import ProfilerActivity

    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r}: torch.profiler is for cpu and cuda; on an NPU use torch_npu_profiler")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda': this torch sees no CUDA device")
    if calls < 1 or warm_up < 0:
        raise ValueError(f"calls={calls}, warm_up={warm_up}: there has to be a call to profile")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    for _ in range(warm_up):
        fn(*args, **kwargs)
    if device == "cuda":
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(calls):
            fn(*args, **kwargs)
        if device == "cuda":
            torch.cuda.synchronize()
    averages = profiler.key_averages(group_by_input_shape=True)
    return from_key_averages(averages, f"torch.profiler on {device}", steps=calls)


def from_key_averages(averages: Iterable[Any], source: str, *, steps: int = 1) -> OperatorTable:
    """The table of what ``torch.profiler.profile().key_averages()`` gives; own times only, microseconds.

    A kernel's time stands twice in there, with the operator that started it and as an event of its own; it is counted
    with the operator. What belongs to no operator (a kernel of the user's own) is a row by its own name where no
    operator has device time, and otherwise one row for all of it.
    """
    events = [event for event in averages if event.key not in _OVERHEAD]
    kernels = [event for event in events if not _on_host(event)]
    operators = [event for event in events if _on_host(event)]
    in_operators = sum(_device_time(event) for event in operators)
    in_kernels = sum(_device_time(event) for event in kernels)
    sums = Sums(source)
    for event in operators:
        host = float(event.self_cpu_time_total)
        device = _device_time(event) if in_operators else None
        if host or device:
            shapes = ";".join(_shape(shape) for shape in event.input_shapes or ()).strip(";")
            name, calls, total = event.key, int(event.count), host + (device or 0.0)
            sums.add(OperatorRow(name, name, calls, total, device, host, core="CPU", shapes=shapes))
    if in_operators:
        if (rest := in_kernels - in_operators) > max(1.0, 0.01 * in_kernels):
            name = "kernels that no operator started"
            sums.add(OperatorRow(name, name, 1, rest, device_us=rest, core="device"))
    else:
        for event in kernels:
            took = _device_time(event)
            if took:
                sums.add(OperatorRow(event.key, event.key, int(event.count), took, device_us=took, core="device"))
    return OperatorTable.of(sums.rows.values(), source, "operator", steps=steps)


def _on_host(event: Any) -> bool:
    return str(getattr(event, "device_type", "CPU")).endswith("CPU")


def _device_time(event: Any) -> float:
    for name in ("self_device_time_total", "self_cuda_time_total"):
        value = getattr(event, name, None)
        if value is not None:
            return float(value)
    return 0.0


def _shape(shape: Any) -> str:
    if isinstance(shape, (list, tuple)) and all(isinstance(size, int) for size in shape):
        return ",".join(str(size) for size in shape)
    return ""
