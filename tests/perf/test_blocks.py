"""The size of a block and the warm-up, on a clock that the tests move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.perf.blocks import OVERHEAD, Block, calibrate, idle, is_steady, take, undisturbed


class Machine:
    """A clock and a workload: call number ``i`` takes ``cost(i)`` seconds, each block ``overhead`` more."""

    def __init__(self, cost, overhead: float = 1e-7, outside: float = 0.0) -> None:
        self.time, self.done, self.blocks = 0.0, 0, 0
        self.cost, self.overhead, self.outside = cost, overhead, outside

    def now(self) -> float:
        return self.time

    def window(self, calls: int) -> Block:
        spent = self.overhead + sum(self.cost(self.done + i) for i in range(calls))
        self.done += calls
        self.blocks += 1
        self.time += spent + self.outside
        return Block(calls, spent)


def steady(seconds: float, **how: float) -> Machine:
    return Machine(lambda _: seconds, **how)


@given(st.floats(1e-5, 1e-1), st.floats(1e-8, 1e-5), st.floats(1e-5, 1e-3))
def test_the_timer_costs_a_thousandth_at_most(seconds, overhead, min_time) -> None:
    machine = steady(seconds, overhead=overhead)
    plan = calibrate(machine.window, machine.now, min_time=min_time, overhead=overhead)
    assert plan.share <= OVERHEAD
    assert plan.calls * (seconds + overhead) >= min_time
    assert plan.warmup_calls == machine.done


@given(st.floats(1e-6, 1e-3), st.floats(1e-8, 1e-6))
def test_a_block_is_no_longer_than_it_has_to_be(seconds, overhead) -> None:
    machine = steady(seconds, overhead=overhead)
    plan = calibrate(machine.window, machine.now, min_time=1e-4, overhead=overhead)
    wanted = max(1e-4, overhead / OVERHEAD)
    assert (plan.calls - 2) * seconds <= wanted


def test_the_clocks_step_counts_like_an_overhead() -> None:
    machine = steady(1e-6, overhead=0.0)
    plan = calibrate(machine.window, machine.now, min_time=1e-6, overhead=0.0, resolution=1e-6)
    assert plan.calls >= 1000


@pytest.mark.parametrize("cold", [40, 400, 4000])
def test_what_gets_faster_is_warmed_up_until_it_no_longer_does(cold) -> None:
    machine = Machine(lambda i: 1e-5 * (1 + 9 * max(0.0, 1 - i / cold)))
    plan = calibrate(machine.window, machine.now, min_time=1e-3, overhead=1e-7)
    assert plan.steady
    assert machine.done > cold
    assert machine.cost(machine.done) == pytest.approx(1e-5)
    assert plan.calls >= 100  # of the warm calls, not of the cold ones


def test_warming_up_ends_when_its_time_is_over() -> None:
    machine = Machine(lambda i: 1e-2 * 0.97**i)
    plan = calibrate(machine.window, machine.now, min_time=1e-4, overhead=1e-7, warmup_time=0.25)
    assert not plan.steady
    assert 0.25 <= machine.time < 0.3


def test_one_call_is_made_however_slow_it_is() -> None:
    machine = steady(60.0)
    plan = calibrate(machine.window, machine.now, min_time=1e-3, overhead=1e-7, warmup_time=1.0)
    assert (plan.calls, plan.warmup_calls, plan.steady) == (1, 1, False)


def test_a_block_has_no_more_calls_than_are_allowed_and_the_share_says_so() -> None:
    machine = steady(1e-6, overhead=1e-6)
    plan = calibrate(machine.window, machine.now, min_time=1e-3, overhead=1e-6, most_calls=8)
    assert plan.calls == 8
    assert plan.share == pytest.approx(1 / 9)


def test_a_workload_that_the_clock_cannot_see_ends_too() -> None:
    machine = steady(0.0, overhead=0.0, outside=0.01)
    plan = calibrate(machine.window, machine.now, min_time=1e-3, overhead=0.0, most_calls=1000)
    assert plan.calls == 1000


def test_noise_on_one_side_does_not_look_like_getting_faster() -> None:
    assert is_steady([1.0, 1.8, 1.1, 5.0, 1.01, 1.3, 1.02])
    assert not is_steady([1.0, 1.0, 1.0, 1.0, 1.0])  # too few to tell
    assert not is_steady([5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.2])
    assert is_steady([5.0, 1.0, 1.0, 1.0, 1.0, 1.0])


@given(st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=40), st.floats(0.01, 100.0))
def test_being_steady_knows_no_unit(times, factor) -> None:
    scaled = [time * factor for time in times]
    assert is_steady(times) == is_steady(scaled) or min(times[len(times) // 2 :]) == pytest.approx(
        0.98 * min(times[: len(times) // 2])
    )


def test_there_are_enough_blocks_and_not_too_many() -> None:
    slow, fast = steady(1.0), steady(1e-6)
    assert len(take(slow.window, 1, slow.now, min_rounds=5, max_time=0.5)) == 5
    assert len(take(fast.window, 1, fast.now, min_rounds=5, max_time=0.5, most=50)) == 50
    between = steady(0.01)
    assert 49 <= len(take(between.window, 1, between.now, min_rounds=5, max_time=0.5)) <= 51


def test_time_spent_outside_of_the_blocks_counts() -> None:
    machine = steady(1e-4, outside=0.1)
    assert len(take(machine.window, 1, machine.now, min_rounds=3, max_time=0.5)) == 5


def test_an_empty_block_is_the_median_of_some() -> None:
    costs = iter([5e-3, *[1e-6] * 100])
    found = idle(lambda calls: Block(calls, next(costs), device=2e-6, late=3e-6))
    assert (found.wall, found.device, found.late, found.elsewhere) == (1e-6, 2e-6, 3e-6, 0.0)


def test_blocks_that_waited_for_the_processor_dont_count():
    whole, interrupted = Block(10, 1.0, processor=0.999), Block(10, 1.4, processor=1.0)
    assert undisturbed([whole, interrupted, whole]) == [whole, whole]


def test_several_threads_of_the_process_are_no_measure_for_one() -> None:
    blocks = [Block(1, 1e-3, processor=seconds) for seconds in (2e-3, 1e-3, 1.5e-3)]
    assert undisturbed(blocks) == blocks


def test_a_workload_that_waits_by_itself_is_not_disturbed():
    sleeps = [Block(1, 1.0 + i / 1000, processor=0.3) for i in range(5)]
    assert undisturbed(sleeps) == sleeps
    assert undisturbed([*sleeps, Block(1, 2.0, processor=0.3)]) == sleeps


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.floats(0, 20)), max_size=20))
def test_the_least_disturbed_block_counts(times):
    blocks = [Block(1, wall, processor=processor) for wall, processor in times]
    kept = undisturbed(blocks)
    assert bool(kept) is bool(blocks)
    assert [block for block in blocks if block in kept] == kept


def test_without_processor_time_all_count():
    blocks = [Block(1, 1.0), Block(1, 9.0)]
    assert undisturbed(blocks) == blocks
    assert undisturbed([]) == []
