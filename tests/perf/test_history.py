"""The rule for stored sessions, and the part of a session's state that its sentinels measure."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.perf import PerfVerdict, decide_history
from pytest_ascend.perf.history import session_factors

OK, REGRESSED, IMPROVED, INCONCLUSIVE = PerfVerdict


def sessions(count: int, spread: float, seed: int = 0) -> list[list[list[float]]]:
    """Sessions of five processes that differ by so much, and processes that differ by half of it."""
    draw = random.Random(seed)
    levels = [math.exp(draw.gauss(0, spread)) for _ in range(count)]
    return [[[1e-3 * level * math.exp(draw.gauss(0, spread / 2))] for _ in range(5)] for level in levels]


def slower(samples: list[list[float]], by: float) -> list[list[float]]:
    return [[time * (1 + by) for time in timings] for timings in samples]


def test_ten_sessions_tell() -> None:
    *known, now = sessions(11, 0.002)
    assert decide_history(known, now).verdict is OK
    assert decide_history(known, slower(now, 0.05)).verdict is REGRESSED
    assert decide_history(known, slower(now, -0.05)).verdict is IMPROVED
    result = decide_history(known, slower(now, 0.05))
    assert result.reason.startswith("it is 5")
    assert "slower than 10 sessions" in result.reason


def test_the_interval_predicts_a_session() -> None:
    """Known: the spread of ten sessions of one process each, and Student's t of 1 % with 9 degrees of freedom."""
    logs = [0.01 * step for step in range(-5, 5)]
    result = decide_history([[[math.exp(log)]] for log in logs], [[1.0]])
    margin = 2.821438 * statistics.stdev(logs) * math.sqrt(1 + 1 / 10)
    assert result.interval[0] == pytest.approx(math.exp(0.005 - margin), rel=1e-6)
    assert result.interval[1] == pytest.approx(math.exp(0.005 + margin), rel=1e-6)


def test_a_certain_change_below_the_cut_off_is_none() -> None:
    *known, now = sessions(11, 0.0001)
    assert decide_history(known, slower(now, 0.015)).verdict is OK
    assert decide_history(known, slower(now, -0.015)).verdict is OK
    assert decide_history(known, slower(now, 0.025)).verdict is REGRESSED


def test_no_false_alarm_in_many_histories() -> None:
    verdicts = [decide_history(known, now).verdict for *known, now in (sessions(11, 0.01, seed) for seed in range(500))]
    assert REGRESSED not in verdicts
    assert IMPROVED not in verdicts


def test_sessions_that_differ_much_are_inconclusive() -> None:
    *known, now = sessions(16, 0.05)
    result = decide_history(known, now)
    assert result.verdict is INCONCLUSIVE
    assert "the sessions' spread hides a slowdown of 3 %" in result.reason
    assert result.detectable > 0.1


@pytest.mark.parametrize("count", [1, 5, 9])
def test_few_sessions_tell_gross_changes_only(count: int) -> None:
    *known, now = sessions(count + 1, 0.002)
    assert decide_history(known, now).verdict is INCONCLUSIVE
    assert "with fewer than 10 sessions their spread is taken to be 5 %" in decide_history(known, now).reason
    assert decide_history(known, slower(now, 0.05)).verdict is INCONCLUSIVE
    assert decide_history(known, slower(now, 1.0)).verdict is REGRESSED
    assert decide_history(known, now, threshold=0.3).verdict is OK


def test_nothing_to_compare_is_inconclusive() -> None:
    *known, now = sessions(11, 0.002)
    assert decide_history([], now).verdict is INCONCLUSIVE
    assert decide_history([], now).reason == "there is no baseline: nothing is compared"
    assert decide_history(known, []).reason == "the candidate was not timed: nothing is compared"


def test_sentinels_take_the_sessions_state_out() -> None:
    draw = random.Random(3)
    state = [math.exp(draw.gauss(0, 0.1)) for _ in range(13)]
    state[-1] = 1.6  # today the machine is throttled
    calm = sessions(13, 0.002, seed=5)
    seen = [[[t * s for t in timings] for timings in one] for one, s in zip(calm, state, strict=True)]
    sentinels = [[base * s * math.exp(draw.gauss(0, 0.001)) for s in state] for base in (1e-5, 3e-3, 0.2)]
    factors = session_factors(sentinels)
    assert factors == pytest.approx([s / sorted(state)[6] for s in state], rel=0.01)
    *known, now = seen
    plain = decide_history(known, now)
    assert plain.verdict is not OK
    told = decide_history(known, now, factors=factors[:-1], factor=factors[-1])
    assert told.verdict is OK
    assert decide_history(known, slower(now, 0.06), factors=factors[:-1], factor=factors[-1]).verdict is REGRESSED


def test_an_outlying_session_is_left_out() -> None:
    *known, now = sessions(15, 0.002)
    known[4] = slower(known[4], 1.0)
    result = decide_history(known, slower(now, 0.05))
    assert result.verdict is REGRESSED
    assert "1 outlying sessions left out" in result.reason


@pytest.mark.parametrize("count", [3, 14])
def test_on_a_busy_machine_the_minima_decide(count: int) -> None:
    """Another process slows most timings down, in some sessions to half their speed; the minima hardly notice."""
    draw = random.Random(8)

    def busy(loaded: float) -> list[list[float]]:
        levels = [math.exp(draw.gauss(0, 0.002)) for _ in range(5)]
        return [[level] + [level * (1 + draw.random() * loaded * 2) for _ in range(8)] for level in levels]

    known, now = [busy(draw.random() / 4) for _ in range(count)], busy(1.0)
    result = decide_history(known, now, threshold=0.2)
    assert (result.verdict, result.statistic) == (OK, "minimum")
    assert decide_history(known, slower(now, 1.0)).verdict is REGRESSED


def test_a_session_of_one_noisy_process_counts_for_less() -> None:
    *known, now = sessions(16, 0.002)
    noisy = [[1e-3], [1.2e-3], [0.8e-3]]
    assert decide_history(known, now).verdict is OK
    assert decide_history(known, noisy).verdict is INCONCLUSIVE


@given(st.floats(1e-6, 1e6), st.integers(0, 99))
def test_the_unit_of_time_does_not_matter(factor: float, seed: int) -> None:
    *known, now = sessions(12, 0.004, seed)
    result = decide_history(known, now)
    scaled = [[[t * factor for t in timings] for timings in one] for one in (*known, now)]
    again = decide_history(scaled[:-1], scaled[-1])
    assert again.verdict is result.verdict
    assert again.ratio == pytest.approx(result.ratio)


@given(st.integers(0, 99), st.sampled_from([0.05, 0.5]))
def test_turning_the_change_round_turns_the_answer_round(seed: int, by: float) -> None:
    *known, now = sessions(12, 0.004, seed)
    turned = [[[1 / t for t in timings] for timings in one] for one in (*known, slower(now, by))]
    one, two = decide_history(known, slower(now, by)), decide_history(turned[:-1], turned[-1])
    assert (one.verdict is REGRESSED) == (two.verdict is IMPROVED)
    assert one.ratio == pytest.approx(1 / two.ratio)


def test_wrong_arguments_are_refused() -> None:
    *known, now = sessions(11, 0.002)
    with pytest.raises(ValueError, match="2 factors for 10 sessions: give one for each"):
        decide_history(known, now, factors=[1.0, 1.0])
    with pytest.raises(ValueError, match="process 10 of the factors has a timing of 0"):
        decide_history(known, now, factor=0.0)
    with pytest.raises(ValueError, match="process 0 of the session 2 has a timing of nan"):
        decide_history([*known[:2], [[math.nan]]], now)
    with pytest.raises(ValueError, match="different numbers of sessions"):
        session_factors([[1.0, 2.0], [1.0]])
    assert session_factors([]) == []
