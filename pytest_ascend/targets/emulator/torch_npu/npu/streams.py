"""`torch.npu` streams and events. The emulated device is synchronous: work is done when its call returns."""

from __future__ import annotations

import time as _time
from typing import Any as _Any

from ...device import machine as _machine
from .utils import _index_of


class Event:
    """A point in time on the device; `elapsed_time` answers in milliseconds."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: _Any
    ) -> None:
        self.enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: _Any = None) -> None:
        """Note the time."""
        self._time = _time.perf_counter()

    def wait(self, stream: _Any = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`.

        Raises:
            RuntimeError: an event made without `enable_timing=True`, or not recorded.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("both events need enable_timing=True for elapsed_time")
        if self._time is None or end_event._time is None:
            raise RuntimeError("both events must be recorded before calculating elapsed time")
        return (end_event._time - self._time) * 1e3


class Stream:
    """A queue of device work, always empty here."""

    def __init__(self, device: _Any = None, priority: int = 0, **_: _Any) -> None:
        self.device_index = _index_of(device)
        self.priority = priority
        self._before: Stream | None = None

    @property
    def npu_stream(self) -> int:
        """The stream's handle: there is none, 0."""
        return 0

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def wait_stream(self, stream: _Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: _Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, now."""
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before = current_stream(self.device_index)
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            set_stream(self._before)


_defaults: dict[int, Stream] = {}
_current: dict[int, Stream] = {}


def default_stream(device: _Any = None) -> Stream:
    """The device's default stream."""
    index = _index_of(device)
    return _defaults.setdefault(index, Stream(index))


def current_stream(device: _Any = None) -> Stream:
    """The device's current stream."""
    index = _index_of(device)
    return _current.get(index) or default_stream(index)


def set_stream(stream: Stream) -> None:
    """Make a stream its device's current one."""
    _current[stream.device_index] = stream


class stream:
    """Context manager that makes a stream current; None does nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before = current_stream(self.stream.device_index)
            set_stream(self.stream)
            _machine.current = self.stream.device_index

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            set_stream(self._before)
