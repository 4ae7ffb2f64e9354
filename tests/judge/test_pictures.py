"""Pictures of failed outputs: what they show is where the errors are, whatever the shape."""

from __future__ import annotations

import json

import pytest
import torch

from pytest_ascend.judge.pictures import EDGES, picture


def test_a_factor_on_some_columns_shows_in_histogram_map_and_values() -> None:
    golden = torch.rand(4, 6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    right = golden.half()
    wrong = right.clone()
    wrong[..., 8:16] *= 1.02
    seen = picture(golden, wrong, right)
    assert seen is not None
    assert seen["unit"] == "what storing it in float16 rounds away"
    hist, unit = seen["histogram"], EDGES.index(1.0) + 1
    assert sum(hist["counts"]) + hist["equal"] + hist["strange"] == golden.numel()
    assert sum(hist["counts"][unit:]) == 4 * 6 * 8
    assert sum(hist["cpu"][unit:]) == 0
    assert (seen["map"]["rows"], seen["map"]["columns"], seen["map"]["down"]) == (24, 40, 1)
    for row in seen["map"]["cells"]:
        assert set(row[8:16]) == {"2"}
        assert set(row[:8] + row[16:]) <= {".", "="}
    around = seen["around"]
    i, j = around["index"][1] - around["first"][0], around["index"][2] - around["first"][1]
    at = tuple(around["index"])
    assert around["golden"][i][j] == pytest.approx(float(golden[at]), rel=1e-8)
    assert around["actual"][i][j] == float(wrong[at])
    assert around["units"][i][j] == max(max(row) for row in around["units"])
    json.dumps(seen, allow_nan=False)


@pytest.mark.parametrize("shape", [(2,), (5000,), (1, 3), (700, 3), (3, 2, 2, 1), (1, 1, 200_000)])
def test_it_stays_small_whatever_the_shape(shape) -> None:
    golden = torch.ones(shape, dtype=torch.float64)
    wrong = golden.float()
    wrong.view(-1)[-1] = float("nan")
    seen = picture(golden, wrong)
    assert seen is not None
    assert len(json.dumps(seen, allow_nan=False)) < 8_000
    assert seen["histogram"]["strange"] == 1
    cells = "".join(seen["map"]["cells"])
    assert cells.rstrip()[-1] == "x"
    assert set(cells[: len(cells.rstrip()) - 1]) <= {"="}
    assert seen["around"]["index"] == [n - 1 for n in shape]


def test_integers_count_in_ones() -> None:
    big = 2**60
    seen = picture(torch.tensor([big, 5, 7]), torch.tensor([big + 1, 5, 17]))
    assert seen is not None
    assert seen["unit"] == "1"
    assert seen["around"]["units"] == [[1.0, 0.0, 10.0]]


def test_a_large_error_where_the_golden_is_zero_is_an_error() -> None:
    golden = torch.tensor([0.0, 1.0, float("inf"), float("nan")], dtype=torch.float64)
    seen = picture(golden, torch.tensor([0.5, float("inf"), float("inf"), float("nan")]))
    assert seen is not None
    assert (seen["histogram"]["strange"], seen["histogram"]["counts"][-1], seen["histogram"]["equal"]) == (1, 1, 2)
    assert "".join(seen["map"]["cells"]).strip() == "6x=="


def test_a_measured_spread_widens_the_unit() -> None:
    golden = torch.ones(8, dtype=torch.float64)
    wrong = golden.float() + 1e-3
    close = picture(golden, wrong, spread=torch.full((8,), 1e-3, dtype=torch.float64))
    assert close is not None
    assert max(close["around"]["units"][0]) == pytest.approx(1.0, rel=1e-3)


def test_what_has_nothing_to_show_has_no_picture() -> None:
    assert picture(torch.ones(3), torch.ones(4)) is None
    assert picture(torch.tensor(1.0), torch.tensor(2.0)) is None
