"""Whether a series keeps growing: rates of false alarms and of leaks found, on made series."""

from __future__ import annotations

import itertools
import random

import pytest

from pytest_ascend.health.growth import growth, mann_kendall

POINTS = 21


def test_the_exact_chance_is_a_count_of_orders() -> None:
    orders = list(itertools.permutations(range(6)))
    for values in random.Random(0).sample(orders, 20):
        score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
        as_much = sum(sum((b > a) - (b < a) for a, b in itertools.combinations(one, 2)) >= score for one in orders)
        assert mann_kendall(values) == pytest.approx(as_much / len(orders))


def test_noise_rarely_grows() -> None:
    source = random.Random(1)
    made = [[source.gauss(0, 1) for _ in range(POINTS)] for _ in range(3000)]
    assert sum(growth(values).grows for values in made) <= 3


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_leaks_grow(noise) -> None:
    source = random.Random(2)
    for every in (1, 4, 9, 10, 20):  # calls per leak, 9 calls between two points
        found = growth([call // every * 64 + source.gauss(0, 64 * noise) for call in range(0, 9 * POINTS, 9)], 9)
        assert found.grows
        assert found.rate == pytest.approx(64 / every, rel=0.25)


@pytest.mark.parametrize(
    "values",
    [
        [min(i, 8) * 100 for i in range(POINTS)],  # a cache that has filled
        [100 * (1 - 0.7**i) for i in range(POINTS)],  # one that fills ever more slowly
        [i % 5 for i in range(POINTS)],  # garbage
        [0] * 12 + [128] * 9,  # a table that grew once
        [7] * POINTS,
        list(range(POINTS, 0, -1)),
        [1, 2, 3],
    ],
)
def test_what_is_no_leak(values) -> None:
    assert not growth(values).grows


def test_a_filled_cache_is_told() -> None:
    assert growth([min(i, 8) * 100 for i in range(POINTS)]).settled
    assert not growth([i % 5 for i in range(POINTS)]).settled


def test_few_jumps_are_no_leak_where_others_take_memory() -> None:
    jumps = [0] * 6 + [128] * 6 + [256] * 5 + [384] * 4
    assert not growth(jumps, noisy=True).grows
