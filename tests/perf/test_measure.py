"""Timing a call: on a simulated device with a clock of its own, on the CPU and on the emulated NPU.

How long something takes is asserted on the simulated device only.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time

import numpy as np
import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.cases.case import Case
from pytest_ascend.perf import measure as module
from pytest_ascend.perf.blocks import Block
from pytest_ascend.perf.counting import effort
from pytest_ascend.perf.measure import Refused, Timer, Window, measure
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.targets import resolve

from . import simulated

QUICK = PerfOptions(max_time=0.01, warmup_time=0.02, min_rounds=3, rotate=2)


@pytest.fixture
def device(monkeypatch):
    simulated.restart()
    monkeypatch.setattr(module, "_other_devices", lambda target: [lambda: simulated.wait(1)])
    return simulated.Simulated()


@pytest.fixture
def undisturbed(monkeypatch):
    """A clock by which nothing else on this machine makes a timing unusable."""
    monkeypatch.setattr(module, "_other_devices", lambda target: [])
    return Timer.of(time.perf_counter)


def on_simulated(device, fn, *args, **options):
    return measure(Case(fn, args), device, PerfOptions(**{"seed": 0, **options}), simulated.TIMER)


def one_kernel(x):
    simulated.launch()
    return x + 1


def launch_bound(x):
    for _ in range(10):
        simulated.launch(1e-7)
    return x + 1


def in_another_stream(x):
    simulated.launch(on="side")
    return x + 1


def on_another_device(x):
    simulated.launch(device=1)
    return x + 1


X = torch.ones(64)


def test_both_clocks_say_what_the_device_took(device) -> None:
    found = on_simulated(device, one_kernel, X)
    assert found.unusable == ""
    assert found.metric == "device"
    assert statistics.median(found.metrics["device"]) == pytest.approx(simulated.KERNEL, rel=0.01)
    assert statistics.median(found.metrics["wall"]) == pytest.approx(simulated.KERNEL, rel=0.01)
    assert found.seconds is found.metrics["device"]
    assert found.overhead <= 1e-3
    assert found.clock == "events of the simulated device"


def test_what_the_host_takes_is_in_both(device) -> None:
    found = on_simulated(device, launch_bound, X)
    assert statistics.median(found.seconds) == pytest.approx(10 * simulated.LAUNCH, rel=0.01)


def test_work_in_another_stream_is_not_timed_by_the_events_and_refused(device) -> None:
    found = on_simulated(device, in_another_stream, X)
    assert "not synchronised" in found.unusable
    assert "in another stream" in found.unusable
    assert statistics.median(found.metrics["device"]) < simulated.KERNEL / 10


def test_wall_time_waits_for_every_stream(device) -> None:
    found = on_simulated(device, in_another_stream, X, metric="wall")
    assert found.unusable == ""
    assert set(found.metrics) == {"wall"}
    assert statistics.median(found.seconds) == pytest.approx(simulated.KERNEL, rel=0.01)


@pytest.mark.parametrize("metric", ["auto", "wall"])
def test_work_of_another_device_is_refused(device, metric) -> None:
    assert "another device" in on_simulated(device, on_another_device, X, metric=metric).unusable


def test_the_first_call_is_apart(device) -> None:
    compiled = []

    def compiles(x):
        if not compiled:
            simulated.time += 3.0
            compiled.append(True)
        simulated.launch()
        return x + 1

    found = on_simulated(device, compiles, X)
    assert found.first_call_s > 3.0
    assert max(found.seconds) < 2 * simulated.KERNEL


def test_the_first_call_lasts_until_the_device_has_finished(device) -> None:
    found = on_simulated(device, one_kernel, X)
    assert found.first_call_s == pytest.approx(simulated.KERNEL + simulated.LAUNCH, rel=0.01)


def test_what_the_device_still_had_to_do_is_not_in_a_block(device) -> None:
    def batch(calls):
        simulated.launch(1.0)  # such as the copies that put arguments back
        return [simulated.launch] * calls

    block = Window(batch, device, simulated.TIMER)(10)
    assert block.wall == pytest.approx(10 * simulated.KERNEL, rel=0.01)


def test_reading_the_processors_time_is_no_work_of_another_device(device) -> None:
    def processor():
        simulated.time += 5e-3
        return simulated.time

    timer = Timer(simulated.now, simulated.READING, processor)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        block = Window(lambda calls: [lambda: X + 1] * calls, resolve("cpu"), timer)(3)
    finally:
        torch.set_num_threads(before)
    assert block.processor is not None
    assert block.elsewhere < 1e-6
    assert block.wall < 1e-6


def test_what_another_device_still_had_to_do_is_not_of_a_block(device) -> None:
    def batch(calls):
        simulated.launch(1.0, device=1)
        return [simulated.launch] * calls

    block = Window(batch, device, simulated.TIMER)(1)
    assert block.elsewhere < 1e-6
    assert block.wall == pytest.approx(simulated.KERNEL, rel=0.05)


@pytest.mark.parametrize(("threads", "tells"), [(1, True), (2, False)])
def test_processor_time_is_read_where_one_thread_computes(threads, tells) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert (Window(list, resolve("cpu"), Timer.of()).processor is not None) is tells
    finally:
        torch.set_num_threads(before)


def test_functions_of_another_process_are_not_timed(device) -> None:
    device.name = "mindspore"
    with pytest.raises(Refused, match="mindspore's functions run in another process here"):
        on_simulated(device, one_kernel, X)


@pytest.mark.parametrize("left", [2, 3])
def test_too_few_blocks_that_nothing_disturbed_say_nothing(device, monkeypatch, left) -> None:
    blocks = [Block(1, 1e-3, 1e-3, processor=1e-3)] * left + [Block(1, 2e-3, 2e-3, processor=1e-3)] * 4
    monkeypatch.setattr(module, "take", lambda *args, **kwargs: blocks)
    found = on_simulated(device, one_kernel, X)
    assert found.seconds == [1e-3] * left
    assert f"4 of {left + 4} blocks, in which other programs took the processor away, don't count" in found.notes
    said = f"other programs took the processor away in 4 of {left + 4} blocks: time it on a machine with less to do"
    assert found.unusable == (said if left == 2 else "")


def test_the_peak_is_what_a_call_takes_beyond_its_arguments() -> None:
    target = resolve("emulated")
    x = torch.ones(1 << 20, device=target.device())
    assert effort(lambda: x + 1, target, holds_tensors=True).peak_bytes == pytest.approx(4 << 20, rel=0.01)


def test_the_cpu_has_wall_time_only(undisturbed) -> None:
    case = Case(torch.softmax, (torch.randn(8, 8),), {"dim": -1})
    found = measure(case, resolve("cpu"), QUICK, undisturbed)
    assert set(found.metrics) == {"wall"}
    assert (found.metric, found.clock, found.unusable) == ("wall", None, "")
    assert len(found.seconds) >= 3
    assert all(seconds > 0 for seconds in found.seconds)
    assert found.peak_bytes is None
    assert "doesn't count" in found.peak_source
    with pytest.raises(Refused, match="has no clock of its own, so metric='device' can't be had"):
        measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK.replace(metric="device"))


def test_the_emulated_device_says_whose_clock_it_reads() -> None:
    found = measure(Case(torch.nn.Linear(8, 4), (torch.randn(2, 8),)), resolve("emulated"), QUICK)
    assert set(found.metrics) == {"wall", "device"}
    assert found.metric == "wall"
    assert found.clock.startswith("the host's clock")
    assert found.kernels_per_call >= 1
    assert found.peak_bytes > 0
    assert found.peak_source == "the allocator of npu:0"


def test_a_call_without_kernels_is_not_exercised() -> None:
    target = resolve("emulated")
    for fn in (torch.t, lambda x: x.numel(), lambda x: torch.ones(4).relu()):
        found = measure(Case(fn, (torch.randn(3, 3),)), target, QUICK)
        assert found.kernels_per_call == 0
        assert found.unusable.startswith("not exercised: ")
    assert measure(Case(torch.clone, (torch.randn(3, 3),)), target, QUICK).kernels_per_call == 1


def test_a_compiled_call_has_kernels_too() -> None:
    compiled = torch.compile(lambda x: (x.sin() + 1).relu(), backend="aot_eager")
    found = measure(Case(compiled, (X,)), resolve("cpu"), QUICK)
    assert found.kernels_per_call == 3
    assert found.first_call_s > max(found.seconds)


def test_what_torch_has_no_part_in_has_no_kernels_to_count(undisturbed) -> None:
    found = measure(Case(np.sort, (np.arange(1000.0)[::-1],)), resolve("cpu"), QUICK, undisturbed)
    assert found.kernels_per_call is None
    assert found.unusable == ""
    assert found.peak_bytes >= 8000
    assert found.peak_source == "tracemalloc"


def generates():
    yield 1


async def awaits():
    return 1


def futures():
    return torch.futures.Future()


@pytest.mark.parametrize(("fn", "what"), [(generates, "a generator"), (awaits, "to be awaited"), (futures, "a future")])
def test_what_was_put_off_is_refused(fn, what) -> None:
    with pytest.raises(Refused, match=what):
        measure(Case(fn), resolve("cpu"), QUICK)


def test_the_callers_error_comes_out() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        measure(Case(torch.mm, (torch.ones(2, 3), torch.ones(2, 3))), resolve("cpu"), QUICK)


def state():
    return (
        random.getstate(),
        str(np.random.get_state()),
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        gc.isenabled(),
        sys.gettrace(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )


@pytest.mark.parametrize("spec", ["cpu", "emulated"])
@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_left_as_it_was_found(spec, fails) -> None:
    target, seen = resolve(spec), []

    def draws(x):
        seen.append((torch.get_num_threads(), gc.isenabled(), sys.gettrace()))
        if fails:
            raise ValueError("on purpose")
        return x + torch.rand(()) + random.random() + np.random.rand()

    def traces(*args):
        return None

    x, before, coverage = torch.ones(4), None, sys.gettrace()
    sys.settrace(traces)
    try:
        before, device = state(), target.rng_state()
        if fails:
            with pytest.raises(ValueError, match="on purpose"):
                measure(Case(draws, (x,)), target, QUICK.replace(threads=3, seed=5))
        else:
            measure(Case(draws, (x,)), target, QUICK.replace(threads=3, seed=5))
        after = state()
    finally:
        sys.settrace(coverage)  # else nothing that runs after this test counts as covered
    assert after == before
    assert device is None or torch.equal(device, target.rng_state())
    assert set(seen) == {(3, False, None)}
    assert torch.equal(x, torch.ones(4))


def test_the_same_numbers_are_drawn_in_every_process() -> None:
    def first_draw(seed: int) -> float:
        values = []
        fn = Case(lambda: values.append(torch.rand(()).item()) or torch.ones(3).relu())
        measure(fn, resolve("cpu"), QUICK.replace(seed=seed))
        return values[0]

    assert first_draw(7) == first_draw(7) != first_draw(8)


def test_a_recording_is_not_timed_along(tmp_path) -> None:
    with pa.record(None, tmp_path):
        torch.relu(X)
        with pytest.raises(Refused, match=r"a recording \(pytest_ascend.record\) is active"):
            measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK)


def test_a_profiler_is_not_timed_along() -> None:
    with torch.profiler.profile(), pytest.raises(Refused, match="torch's profiler is active"):
        measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK)
    sys.setprofile(lambda *args: None)
    try:
        with pytest.raises(Refused, match="a profiler"):
            measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK)
    finally:
        sys.setprofile(None)
    with torch.autograd.detect_anomaly(check_nan=False), pytest.raises(Refused, match="anomaly"):
        measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK)


def test_a_default_device_is_no_recording(undisturbed) -> None:
    with torch.device("cpu"):
        assert measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK, undisturbed).unusable == ""


def test_a_clock_that_was_throttled_meanwhile_makes_it_unusable(monkeypatch, undisturbed) -> None:
    counts = iter([7, 8])
    monkeypatch.setattr(module, "throttled", lambda: next(counts))
    assert "slowed down for its heat" in measure(Case(torch.relu, (X,)), resolve("cpu"), QUICK, undisturbed).unusable


def test_the_default_device_of_the_caller_goes_along() -> None:
    target, made = resolve("emulated"), []

    def makes(x):
        made.append(torch.ones(4).device.type)
        return x + 1

    with torch.device(target.device()):
        measure(Case(makes, (torch.ones(4),)), target, QUICK)
    assert set(made) == {"npu"}


@pytest.mark.parametrize("spec", ["cpu", "emulated"])
def test_autocast_of_the_caller_goes_along(spec) -> None:
    seen = []

    def product(x):
        seen.append((x @ x).dtype)
        return x

    with torch.autocast("cpu", dtype=torch.bfloat16):
        measure(Case(product, (torch.ones(4, 4),)), resolve(spec), QUICK)
    assert set(seen) == {torch.bfloat16}
