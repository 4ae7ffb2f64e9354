"""Quantiles of Student's t against published tables, and robust means against their definitions."""

from __future__ import annotations

import random
import statistics

import pytest

from pytest_ascend.perf.student import difference, location, powerful, quantile


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [(0.05, 1, 6.314), (0.05, 2, 2.920), (0.01, 4, 3.747), (0.01, 9, 2.821), (0.005, 15, 2.947), (0.001, 30, 3.385),
     (0.0005, 40, 3.551), (0.01, 120, 2.358)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(p: float, df: int, t: float) -> None:
    assert quantile(p, df) == pytest.approx(t, abs=6e-4)


def test_the_far_tail() -> None:
    """df = 2 has the tail (1 - t / sqrt(2 + t**2)) / 2; with many degrees of freedom it nears the normal's."""
    t = quantile(1e-6, 2)
    assert (1 - t / (2 + t * t) ** 0.5) / 2 == pytest.approx(1e-6, rel=1e-5)
    assert statistics.NormalDist().inv_cdf(1 - 1e-6) < quantile(1e-6, 200) < 4.9
    assert quantile(1e-6, 10_000) == quantile(1e-6, 200)


def test_few_values_are_not_trimmed() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    found = location(values)
    assert found.value == 4.0
    assert found.error == pytest.approx(statistics.stdev(values) / 2)
    assert found.df == 3


def test_a_tenth_is_trimmed_at_either_end() -> None:
    values = [float(i) for i in range(19)] + [1e9]
    random.Random(0).shuffle(values)
    found = location(values)
    assert found.value == 9.5
    winsorised = [2.0] * 3 + [float(i) for i in range(3, 17)] + [17.0] * 3
    assert found.error == pytest.approx((statistics.variance(winsorised) * 19 / (16 * 15)) ** 0.5)
    assert found.df == 15


def test_welch() -> None:
    """Two sides of different spread; the degrees of freedom by the textbook formula are 5.9."""
    one, two = location([20.0, 22, 19, 24, 25]), location([30.0, 45, 28, 36, 60])
    found = difference(one, two)
    assert found.value == pytest.approx(17.8)
    a, b = statistics.variance([20, 22, 19, 24, 25]) / 5, statistics.variance([30, 45, 28, 36, 60]) / 5
    assert found.error == pytest.approx((a + b) ** 0.5)
    assert found.df == int((a + b) ** 2 / (a * a / 4 + b * b / 4))


def test_sides_without_spread() -> None:
    assert difference(location([1.0, 1.0]), location([2.0, 2.0, 2.0])) == (1.0, 0.0, 1)


def test_the_power_of_a_t_test() -> None:
    """Against a simulation: t of samples whose mean lies so many standard errors off; it errs to the safe side."""
    draw = random.Random(1)
    critical = quantile(1e-3, 9)
    shift = powerful(critical, 0.9, 9) / 10**0.5
    samples = ([draw.gauss(shift, 1) for _ in range(10)] for _ in range(4000))
    ts = [statistics.mean(one) / statistics.stdev(one) * 10**0.5 for one in samples]
    assert 0.89 < sum(t > critical for t in ts) / len(ts) < 0.95
