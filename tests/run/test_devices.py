"""Which worker owns which card."""

from __future__ import annotations

import pytest

from pytest_ascend.run import devices
from pytest_ascend.targets.visible import emulated_cards, listed

ASCEND = "ASCEND_RT_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("0,1", ("0", "1")),
        (" 5 , 7 ", ("5", "7")),
        ("0,3-5", ("0", "3", "4", "5")),
        ("1,-1,2", ("1",)),  # what follows a device that can't be isn't looked at
        ("2,2,3", ("2", "3")),
        ("GPU-3d1f,GPU-77", ("GPU-3d1f", "GPU-77")),
        ("", ()),
    ],
)
def test_lists_are_read_as_the_runtimes_read_them(given, wanted) -> None:
    assert listed(given) == wanted


def test_the_emulated_machine_has_the_cards_of_the_list_or_two() -> None:
    assert emulated_cards(None) == emulated_cards("") == ("0", "1")
    assert emulated_cards("4,6,9") == ("4", "6", "9")
    assert len(emulated_cards("0-99")) == 16


def test_workers_get_cards_of_the_callers_own_list() -> None:
    plan = devices.plan("emulated", 2, {ASCEND: "5,7"})
    assert [devices.environment(plan.place(i), {})[ASCEND] for i in range(2)] == ["5", "7"]
    assert devices.describe(plan) == "2 workers on cards 5, 7"


def test_more_workers_than_cards_share_them_evenly_with_a_cap() -> None:
    plan = devices.plan("emulated", 5, {ASCEND: "3,4"})
    assert plan.cards == ("3", "4", "3", "4", "3")
    shares = [devices.environment(plan.place(i), {}) for i in range(5)]
    assert [devices.memory_share(one) for one in shares] == pytest.approx(
        [0.95 / 3, 0.95 / 2] * 2 + [0.95 / 3], abs=1e-4
    )
    alone = devices.environment(devices.plan("emulated", 2, {}).place(0), {})
    assert devices.memory_share(alone) is None


def test_a_numbered_target_means_that_card_for_all() -> None:
    plan = devices.plan("emulated:1", 3, {ASCEND: "5,7"})
    assert ASCEND not in devices.environment(plan.place(0), {})
    assert plan.names == ("7",)


def test_threads_are_shared_unless_the_caller_says_so() -> None:
    place = devices.plan("cpu", 4, {}).place(3)
    assert devices.environment(place, {}, cores=10)["OMP_NUM_THREADS"] == "2"
    assert devices.environment(place, {}, cores=2)["MKL_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in devices.environment(place, {"OMP_NUM_THREADS": "8"}, cores=10)


def test_auto_means_the_number_of_visible_devices() -> None:
    assert devices.count("emulated", {ASCEND: "0,1,2"}) == 3
    assert devices.count("cpu", {}) is None
