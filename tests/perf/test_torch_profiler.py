"""torch.profiler on the CPU, for real; CUDA's events as the profiler forms them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from pytest_ascend.perf.operators import OperatorTable
from pytest_ascend.perf.torch_profiler import from_key_averages, profile


def profiled(*args, **kwargs) -> OperatorTable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it skips the first step of a schedule
        return profile(*args, **kwargs)


def test_a_module_on_the_cpu() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    table = profiled(module, torch.randn(16, 64), calls=4)
    assert (table.level, table.steps) == ("operator", 4)
    products = {row.shapes: row for row in table.rows if row.name == "aten::addmm"}
    assert {shapes: row.calls for shapes, row in products.items()} == {
        "128;16,64;64,128": 4,
        "8;16,128;128,8": 4,
    }
    for row in table.rows:
        assert row.device_us is None
        assert row.total_us == row.host_us > 0
    assert {str(share.operators) for share in table.classes()} >= {"compute"}


def test_own_times_add_up_to_the_profile() -> None:
    """Operators that call others keep their own part only."""
    x = torch.randn(64, 64)
    table = profiled(lambda: torch.softmax(x @ x, dim=-1), calls=3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.softmax(x @ x, dim=-1)
    whole = sum(event.self_cpu_time_total for event in profiler.key_averages())
    assert from_key_averages(profiler.key_averages(), "one").total_us == pytest.approx(whole)
    assert next(row for row in table.rows if row.name == "aten::matmul").calls == 3


def test_more_work_is_seen_as_growth() -> None:
    x = torch.randn(200, 200)
    before, after = profiled(lambda: x @ x, calls=5), profiled(lambda: x @ x @ x, calls=5)
    grown = next(row for row in before.diff(after).rows if row.name == "aten::mm")
    assert (grown.before_calls, grown.after_calls) == (1, 2)


def event(key: str, host: float, device: float, kind: str = "DeviceType.CPU", count: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        key=key, self_cpu_time_total=host, self_device_time_total=device, device_type=kind, count=count,
        input_shapes=[[2, 3], []],
    )  # fmt: skip


def test_a_kernel_is_counted_once() -> None:
    """Its time stands with the operator and as an event of its own."""
    events = [event("aten::mm", 10.0, 90.0), event("sgemm", 0.0, 90.0, "DeviceType.CUDA"), event("ProfilerStep*", 5, 0)]
    table = from_key_averages(events, "cuda")
    assert [(row.name, row.device_us, row.host_us, row.total_us) for row in table.rows] == [
        ("aten::mm", 90.0, 10.0, 100.0)
    ]
    assert table.rows[0].shapes == "2,3"


def test_a_kernel_of_no_operator_is_not_lost() -> None:
    events = [event("aten::mm", 10.0, 90.0), event("sgemm", 0.0, 90.0, "DeviceType.CUDA"),
              event("my_kernel", 0.0, 40.0, "DeviceType.CUDA")]  # fmt: skip
    rows = {row.name: row.device_us for row in from_key_averages(events, "cuda").rows}
    assert rows == {"aten::mm": 90.0, "kernels that no operator started": 40.0}
    alone = from_key_averages(events[2:], "cuda")
    assert [(row.name, row.total_us) for row in alone.rows] == [("my_kernel", 40.0)]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"device='npu': torch.profiler is for cpu and cuda"):
        profile(torch.relu, torch.ones(1), device="npu")
    with pytest.raises(ValueError, match="calls=0"):
        profile(torch.relu, torch.ones(1), calls=0)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no CUDA device"):
            profile(torch.relu, torch.ones(1), device="cuda")
