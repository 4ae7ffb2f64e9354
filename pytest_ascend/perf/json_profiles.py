"""Profiles that are JSON: trace_view.json and msprof_*.json, torch.profiler's Chrome trace, and aicore_*.json.

A trace is a list of events, or an object with a list `traceEvents`; its `ts` is a text or a number and its `dur` a
number, both microseconds. JSON has to be in memory as a whole to be read, so the size is bounded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from .operators import OperatorRow, OperatorTable, stem_of
from .summaries import Sums
from .tabular import MOST_CALLS, checked_time, refuse, shown

#: bytes; Python needs about ten times as much to hold it
LARGEST = 128 << 20

_AGAIN = "profile again, or give kernel_details.csv"


def read_json(path: str | os.PathLike[str]) -> OperatorTable:
    """The table of a JSON profile, whichever of the three it is.

    Raises:
        ProfileError: it is none of them, or an event or entry can't be read; it is named by its place in the list.
        OSError: the file can't be opened.
    """
    path = os.fspath(path)
    content = _loaded(path)
    if isinstance(content, dict) and isinstance(content.get("traceEvents"), list):
        content = content["traceEvents"]
    if isinstance(content, list) and content:
        if all(isinstance(entry, dict) and "op_name" in entry for entry in content):
            return _cost_list(path, content)
        if any(isinstance(entry, dict) and "ph" in entry for entry in content):
            return _trace(path, content)
    return refuse(
        path, None, "it is JSON, but neither a trace (a list of events with 'ph') nor a list of entries with 'op_name'",
        "give trace_view.json, a Chrome trace, or aicore_*.json",
    )  # fmt: skip


def _loaded(path: str) -> Any:
    if os.path.getsize(path) > LARGEST:
        refuse(path, None, f"it is larger than {LARGEST >> 20} MiB", "give kernel_details.csv from beside it")
    with open(path, "rb") as file:
        raw = file.read(LARGEST + 1)
    try:
        return json.loads(raw)
    except UnicodeDecodeError:
        refuse(path, None, "this isn't UTF-8 text", _AGAIN)
    except json.JSONDecodeError as error:
        refuse(path, error.lineno, f"this isn't JSON ({error.msg})", "the file may be cut off: profile again")
    except (RecursionError, ValueError) as error:
        refuse(path, None, f"the JSON can't be read ({str(error)[:80] or 'nested too deeply'})", _AGAIN)


def _time(path: str, what: str, value: object) -> float:
    """A time of an entry: a number, or a text that is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        refuse(path, None, f"{what} is {shown(_short(value))}, not a number", _AGAIN)
    return checked_time(path, None, what, _short(value))


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > MOST_CALLS:
        return "1e999"
    return str(value)


def _cost_list(path: str, entries: list[Any]) -> OperatorTable:
    """aicore_*.json: a list of {op_name, op_type, total_time_us, device_time_us, host_time_us, ratio[, count]}.

    The `ratio` is worked out again from the times: some write it as a fraction and some in percent.
    """
    sums = Sums(path)
    for i, entry in enumerate(entries):
        where = f"entry {i}"
        name, kind = entry["op_name"], entry.get("op_type", "")
        if not isinstance(name, str) or not name or not isinstance(kind, str):
            refuse(path, None, f"{where} has no name", _AGAIN)
        if "total_time_us" not in entry:
            refuse(path, None, f"{where} ({shown(name)}) has no total_time_us", _AGAIN)
        total = _time(path, f"{where}, total_time_us", entry["total_time_us"])
        device, host = (
            _time(path, f"{where}, {column}", entry[column]) if entry.get(column) is not None else None
            for column in ("device_time_us", "host_time_us")
        )
        calls = entry.get("count", entry.get("calls", 1))
        if type(calls) is not int or not 0 <= calls <= MOST_CALLS:
            refuse(path, None, f"{where} has {shown(_short(calls))} calls", _AGAIN)
        sums.add(OperatorRow(name, kind or name, calls, total, device, host))
    return OperatorTable.of(sums.rows.values(), path, "operator")


def _trace(path: str, events: list[Any]) -> OperatorTable:
    """The operators of a trace: tasks on a device, or, without any, torch's calls on the host.

    On an NPU the tasks are the complete events of the process `Ascend Hardware` and the collective calls (`hcom_...`);
    the rest of what the profiler draws (overlap analysis, parts of collective calls) would count them again. In
    torch.profiler's trace they are the events of the category `kernel` and the copies.
    """
    processes = {
        event.get("pid"): event["args"].get("name")
        for event in events
        if isinstance(event, dict) and event.get("ph") == "M" and event.get("name") == "process_name"
        and isinstance(event.get("args"), dict) and isinstance(event.get("pid"), (int, str))
    }  # fmt: skip
    device, host = Sums(path), Sums(path)
    spans: dict[tuple[object, object], list[tuple[float, float, str]]] = {}
    for where, event in _complete(path, events):
        name, category = event["name"], event.get("cat")
        arguments = event["args"] if isinstance(event.get("args"), dict) else {}
        took = _time(path, f"{where} ({shown(name)}), dur", event.get("dur"))
        pid = event.get("pid") if isinstance(event.get("pid"), (int, str)) else None
        if processes.get(pid) == "Ascend Hardware":
            core = str(arguments.get("Task Type", ""))[:40]
            stem = stem_of(name)
            device.add(OperatorRow(stem, stem, 1, took, device_us=took, core=core))
        elif name.startswith("hcom_"):
            stem = stem_of(name)
            device.add(OperatorRow(stem, stem.rstrip("_"), 1, took, device_us=took, core="COMMUNICATION"))
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            device.add(OperatorRow(name, name, 1, took, device_us=took, device=str(arguments.get("device", ""))[:20]))
        elif category == "cpu_op":
            start = _time_of_day(path, f"{where} ({shown(name)}), ts", event.get("ts"))
            spans.setdefault((pid, str(event.get("tid"))[:40]), []).append((start, took, name))
    if device.rows:
        notes = ["host times are left out; give operator_details.csv for them"] if spans else []
        return OperatorTable.of(device.rows.values(), path, "kernel", notes=notes)
    for calls in spans.values():
        for name, own in _own_times(calls):
            host.add(OperatorRow(name, name, 1, own, host_us=own))
    if not host.rows:
        refuse(path, None, "the trace holds no operator", "profile with the activities CPU and NPU or CUDA")
    return OperatorTable.of(host.rows.values(), path, "operator")


def _complete(path: str, events: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for i, event in enumerate(events):
        if not isinstance(event, dict):
            refuse(path, None, f"event {i} isn't an object", _AGAIN)
        if event.get("ph") == "X":
            if not isinstance(event.get("name"), str) or not event["name"]:
                refuse(path, None, f"event {i} has no name", _AGAIN)
            yield f"event {i}", event


def _time_of_day(path: str, what: str, value: object) -> float:
    """A point in time: microseconds since some start, a text in torch_npu's traces."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not 0 <= number < 1e18:
            raise ValueError
    except (ValueError, OverflowError):
        refuse(path, None, f"{what} is {shown(_short(value))}, not a time", _AGAIN)
    return number


def _own_times(calls: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """What each call of one thread took without the calls inside of it, in microseconds."""
    inside: list[list[Any]] = []  # [end, name, own time], the innermost last
    for start, took, name in sorted(calls, key=lambda call: (call[0], -call[1])):
        while inside and inside[-1][0] <= start:
            _, done, own = inside.pop()
            yield done, max(own, 0.0)
        if inside:
            inside[-1][2] -= took
        inside.append([start + took, name, took])
    for _, done, own in inside:
        yield done, max(own, 0.0)
