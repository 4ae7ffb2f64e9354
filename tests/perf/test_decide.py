"""The rule that says whether timings differ: its properties, its edges, and its stages."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_ascend as pa
from pytest_ascend.perf import PerfResult, PerfVerdict, decide

OK, REGRESSED, IMPROVED, INCONCLUSIVE = PerfVerdict


def processes(count: int, noise: float, *, seed: int = 0, slower: float = 0.0, timings: int = 7) -> list[list[float]]:
    """Processes that take about 1 ms, whose own level and whose timings vary by so much."""
    draw = random.Random(f"{seed} {count} {noise}")
    levels = [1e-3 * (1 + slower) * math.exp(draw.gauss(0, noise)) for _ in range(count)]
    return [[level * math.exp(draw.gauss(0, noise)) for _ in range(timings)] for level in levels]


def staged(noise: float, slower: float, seed: int, threshold: float = 0.03) -> tuple[PerfResult, int]:
    """Run pairs for as long as the rule wants more, as an A/B run does."""
    pairs, wanted = 0, 5
    base, other = processes(40, noise, seed=seed), processes(40, noise, seed=seed + 10_000, slower=slower)
    while wanted:
        pairs += wanted
        result = decide(base[:pairs], other[:pairs], paired=True, threshold=threshold)
        wanted = result.needs_more
    return result, pairs


noises = st.sampled_from([0.0005, 0.004, 0.01, 0.03, 0.1])
changes = st.sampled_from([-0.6, -0.1, -0.04, -0.02, 0.0, 0.01, 0.02, 0.04, 0.1, 1.5])
counts = st.integers(5, 45)
seeds = st.integers(0, 1_000)
thresholds = st.sampled_from([0.005, 0.01, 0.03, 0.05, 0.2, 0.5])


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]]]:
    count, noise, seed = draw(counts), draw(noises), draw(seeds)
    return processes(count, noise, seed=seed), processes(count, noise, seed=seed + 5_000, slower=draw(changes))


def scaled(samples: list[list[float]], factor: float) -> list[list[float]]:
    return [[time * factor for time in timings] for timings in samples]


class TestProperties:
    @given(sides(), st.booleans(), thresholds, st.integers(-30, 30))
    def test_the_unit_of_time_does_not_matter(self, both, paired, threshold, power) -> None:
        base, other = both
        result = decide(base, other, paired=paired, threshold=threshold)
        again = decide(scaled(base, 2.0**power), scaled(other, 2.0**power), paired=paired, threshold=threshold)
        assert again.ratio == pytest.approx(result.ratio, rel=1e-12)
        assert again.interval == pytest.approx(result.interval, rel=1e-12)
        assert (again.verdict, again.needs_more) == (result.verdict, result.needs_more)

    @given(sides(), st.booleans(), thresholds)
    def test_swapping_the_sides_turns_the_answer_round(self, both, paired, threshold) -> None:
        base, other = both
        one, two = (decide(*pair, paired=paired, threshold=threshold) for pair in ((base, other), (other, base)))
        assert two.ratio == pytest.approx(1 / one.ratio)
        assert two.interval == pytest.approx((1 / one.interval[1], 1 / one.interval[0]))
        assert (one.verdict is REGRESSED) == (two.verdict is IMPROVED)
        assert (one.verdict is IMPROVED) == (two.verdict is REGRESSED)
        assert one.detectable == pytest.approx(two.detectable)

    @given(sides(), st.booleans(), seeds)
    def test_order_does_not_matter(self, both, paired, seed) -> None:
        base, other = both
        shuffler = random.Random(seed)
        result = decide(base, other, paired=paired)
        order = list(range(len(base)))
        shuffler.shuffle(order)
        mixed = [[shuffler.sample(side[i], len(side[i])) for i in order] for side in both]
        if not paired:
            shuffler.shuffle(mixed[1])
        assert decide(*mixed, paired=paired) == result

    @given(sides(), st.booleans(), thresholds, st.floats(1.0, 3.0))
    def test_what_gets_slower_still_never_looks_better(self, both, paired, threshold, factor) -> None:
        base, other = both
        result = decide(base, other, paired=paired, threshold=threshold)
        slower = decide(base, scaled(other, factor), paired=paired, threshold=threshold)
        if result.verdict is REGRESSED:
            assert slower.verdict is REGRESSED
        if slower.verdict is IMPROVED:
            assert result.verdict is IMPROVED
        if result.verdict is INCONCLUSIVE and result.ratio >= 1:
            assert slower.verdict in (INCONCLUSIVE, REGRESSED)

    @given(sides(), st.booleans(), st.sampled_from([0.01, 0.03, 0.1]), st.floats(1.0, 5.0))
    def test_a_milder_threshold_never_finds_more(self, both, paired, threshold, factor) -> None:
        strict = decide(*both, paired=paired, threshold=threshold)
        mild = decide(*both, paired=paired, threshold=threshold * factor)
        assert not (mild.verdict is REGRESSED and strict.verdict is not REGRESSED)
        assert not (strict.verdict is OK and mild.verdict is not OK)

    @given(sides(), st.booleans(), thresholds)
    def test_the_answer_agrees_with_its_figures(self, both, paired, threshold) -> None:
        result = decide(*both, paired=paired, threshold=threshold)
        low, high = result.interval
        assert low <= result.ratio <= high
        assert result.final == (result.needs_more == 0)
        assert result.pairs + result.needs_more <= max(40, result.pairs)
        if result.verdict is REGRESSED:
            assert low > 1
            assert result.ratio > 1 + threshold / 2
        if result.verdict is IMPROVED:
            assert high < 1
        if result.verdict is OK:
            assert high < 1 + threshold
        if result.verdict is INCONCLUSIVE and result.final:
            assert high >= 1 + threshold
            assert result.detectable > threshold / 2
        if result.verdict in (REGRESSED, IMPROVED):
            assert result.pairs >= 10

    @given(st.lists(st.lists(st.floats(5e-324, 1.7e308), min_size=1, max_size=4), min_size=5, max_size=12), st.data())
    def test_no_finite_timing_breaks_it(self, base, data) -> None:
        timing = st.lists(st.floats(5e-324, 1.7e308), min_size=1, max_size=4)
        other = data.draw(st.lists(timing, min_size=len(base), max_size=len(base)))
        for paired in (True, False):
            result = decide(base, other, paired=paired)
            assert not math.isnan(result.ratio)
            json.dumps(result.to_dict(), allow_nan=False)


class TestStages:
    @pytest.mark.parametrize("threshold", [0.005, 0.01, 0.03, 0.1, 0.5])
    def test_a_slowdown_of_the_threshold_is_found_and_none_is_made_up(self, threshold: float) -> None:
        for seed in range(20):
            result, pairs = staged(threshold / 8, 0.0, seed, threshold)
            assert (result.verdict, pairs <= 10) == (OK, True)
        found = [staged(threshold / 8, threshold, seed, threshold)[0].verdict for seed in range(20)]
        assert found.count(REGRESSED) >= 19

    def test_five_pairs_are_enough_when_it_is_quiet(self) -> None:
        result, pairs = staged(0.002, 0.0, 1)
        assert (result.verdict, pairs) == (OK, 5)
        assert result.detectable < 0.03

    def test_what_more_pairs_may_pass_is_given_them(self) -> None:
        """Nothing hints at a slowdown; five pairs leave the interval too wide, and twenty wouldn't."""
        other = [[math.exp(log)] for log in (-0.03, -0.015, 0.0, 0.015, 0.03)]
        first = decide([[1.0]] * 5, other, paired=True)
        assert (first.verdict, first.needs_more) == (INCONCLUSIVE, 5)
        assert first.ratio == pytest.approx(1.0)
        assert decide([[1.0]] * 20, other * 4, paired=True).verdict is OK

    def test_what_is_flagged_is_confirmed_by_twenty_pairs(self) -> None:
        result, pairs = staged(0.004, 0.05, 1)
        assert (result.verdict, pairs) == (REGRESSED, 20)
        assert result.reason.startswith("it is 5")

    def test_a_gross_slowdown_needs_ten_pairs(self) -> None:
        for paired in (True, False):
            base, other = processes(10, 0.01), processes(10, 0.01, seed=7, slower=1.0)
            first = decide(base[:5], other[:5], paired=paired)
            assert (first.verdict, first.needs_more) == (INCONCLUSIVE, 5)
            assert decide(base, other, paired=paired).verdict is REGRESSED
            assert decide(other, base, paired=paired).verdict is IMPROVED

    def test_two_modes_of_a_machine_are_no_regression(self) -> None:
        """Processes are fast or 60 % slower by chance; with five pairs one in 500 runs deals them cleanly."""
        fast, slow = [1.0, 1.001, 0.999], [1.6, 1.601, 1.599]
        result = decide([fast] * 5, [slow] * 5, paired=True)
        assert (result.verdict, result.needs_more) == (INCONCLUSIVE, 5)

    def test_too_much_noise_is_inconclusive_and_says_what_would_be_seen(self) -> None:
        ends = [staged(0.2, 0.0, seed) for seed in range(20)]
        assert {result.verdict for result, _ in ends} == {INCONCLUSIVE}
        assert sum(pairs for _, pairs in ends) / 20 < 15  # no time is spent on what can't be settled
        assert all(result.detectable > 0.1 for result, _ in ends)
        assert "the noise hides a slowdown of 3 %" in ends[0][0].reason

    @pytest.mark.parametrize("noise", [0.004, 0.03, 0.1])
    def test_what_is_called_detectable_is_found_and_half_of_it_is_not(self, noise: float) -> None:
        typical = sorted(staged(noise, 0.0, seed)[0].detectable for seed in range(30))[15]
        found = [staged(noise, typical, seed)[0].verdict for seed in range(60)]
        assert found.count(REGRESSED) >= 50
        half = [staged(noise, typical / 2, seed)[0].verdict for seed in range(60)]
        assert half.count(REGRESSED) <= 25

    def test_an_improvement_is_confirmed_and_is_ok_until_then(self) -> None:
        base, other = processes(20, 0.004), processes(20, 0.004, seed=3, slower=-0.05)
        first = decide(base[:5], other[:5], paired=True)
        assert (first.verdict, first.needs_more) == (OK, 5)
        assert decide(base, other, paired=True).verdict is IMPROVED

    def test_what_a_pair_shares_cancels(self) -> None:
        """The machine slows down to half its speed while the pairs run."""
        state = [[[1 + i / 20] for i in range(20)], [[1.05 * (1 + i / 20) * (1 + 1e-3 * (-1) ** i)] for i in range(20)]]
        assert decide(*state, paired=True).verdict is REGRESSED
        assert decide(*state).verdict is INCONCLUSIVE

    def test_outlying_pairs_are_withstood(self) -> None:
        base, other = processes(20, 0.004), processes(20, 0.004, seed=3)
        other[3] = [t * 3 for t in other[3]]
        other[4] = [t * 5 for t in other[4]]
        assert decide(base, other, paired=True).verdict is OK

    def test_on_a_busy_machine_the_minima_decide(self) -> None:
        """Another process slows most timings down by chance, but rarely all of a process."""
        draw = random.Random(4)

        def busy(slower: float) -> list[list[float]]:
            levels = [(1 + slower) * math.exp(draw.gauss(0, 0.003)) for _ in range(40)]
            loads = [draw.random() for _ in levels]
            return [
                [level * (1 + 0.4 * (draw.random() < load)) for _ in range(30)]
                for level, load in zip(levels, loads, strict=True)
            ]

        result = decide(busy(0), busy(0.05), paired=True)
        assert (result.verdict, result.statistic) == (REGRESSED, "minimum")
        assert result.ratio == pytest.approx(1.05, abs=0.01)

    def test_a_gross_change_shows_in_what_stands_for_the_processes(self) -> None:
        """The minima are twice as long in every process; a busy machine mixes the medians up."""
        loads = [1.0, 2.5, 1.2, 3.0, 1.1, 2.2, 1.6, 1.4, 2.8, 1.9]
        base = [[1.0, 1.1 * load, 1.1 * load] for load in loads]
        other = [[2.0, 2.1 * load, 2.1 * load] for load in reversed(loads)]
        result = decide(base, other, paired=True)
        assert (result.verdict, result.needs_more, result.statistic) == (REGRESSED, 0, "minimum")

    def test_timings_without_any_spread(self) -> None:
        """A simulator counts cycles: every process takes as long."""
        assert decide([[2e-5]] * 5, [[2e-5]] * 5, paired=True).verdict is OK
        assert decide([[2e-5]] * 20, [[2.1e-5]] * 20, paired=True).verdict is REGRESSED
        assert decide([[2e-5]] * 20, [[2.1e-5]] * 20).verdict is REGRESSED


class TestEdges:
    def test_the_public_name(self) -> None:
        result = pa.perf.decide([[1.0]] * 5, [[1.0]] * 5)
        assert result.verdict == "ok"
        assert str(result.verdict) == "ok"

    @pytest.mark.parametrize(("base", "other", "wanted"), [(0, 0, 5), (0, 5, 5), (5, 0, 5), (1, 1, 4), (4, 9, 1)])
    def test_too_few_processes_are_inconclusive(self, base: int, other: int, wanted: int) -> None:
        result = decide([[1.0]] * base, [[2.0]] * other)
        assert (result.verdict, result.needs_more) == (INCONCLUSIVE, wanted)
        assert result.reason == (
            f"{base} processes of the baseline and {other} of the candidate tell nothing: 5 of each are needed at least"
        )
        assert math.isnan(result.ratio) if not base or not other else result.ratio == pytest.approx(2)
        json.dumps(result.to_dict(), allow_nan=False)

    @pytest.mark.parametrize("wrong", [0.0, -1e-3, math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("at", [0, 1, 2])
    def test_what_is_no_time_is_refused(self, wrong: float, at: int) -> None:
        timings = [1e-3, 2e-3]
        timings.insert(at, wrong)
        with pytest.raises(ValueError, match=rf"process 3 of the candidate has a timing of {wrong!r} s: a time is"):
            decide([[1e-3]] * 5, [*[[1e-3]] * 3, timings, [1e-3]])

    @pytest.mark.parametrize("wrong", ["12", 1.0, None, ["a"], [None]])
    def test_what_is_no_sequence_of_numbers_is_refused(self, wrong: object) -> None:
        with pytest.raises(TypeError, match="process 0 of the baseline"):
            decide([wrong], [[1.0]])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="the candidate is"):
            decide([[1.0]], "12")  # type: ignore[arg-type]

    def test_a_process_without_timings_is_refused(self) -> None:
        with pytest.raises(ValueError, match="process 1 of the baseline has no timings: leave it out"):
            decide([[1.0], []], [[1.0], [1.0]])

    def test_pairs_need_as_many_of_both(self) -> None:
        with pytest.raises(ValueError, match="the baseline has 5 processes and the candidate 6: pairs need"):
            decide([[1.0]] * 5, [[1.0]] * 6, paired=True)

    @pytest.mark.parametrize("wrong", [0, -0.03, 3, math.nan, math.inf])
    def test_a_threshold_is_a_fraction(self, wrong: float) -> None:
        with pytest.raises(ValueError, match=r"as a fraction, such as 0\.03 for 3 %"):
            decide([[1.0]] * 5, [[1.0]] * 5, threshold=wrong)

    def test_arrays_are_samples(self) -> None:
        import numpy as np

        times = np.random.default_rng(0).lognormal(0, 0.002, (5, 9))
        assert decide(times, times, paired=True).ratio == 1
