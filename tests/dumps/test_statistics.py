"""Values made from statistics have them."""

from __future__ import annotations

import math

import pytest
import torch

import pytest_ascend as pa


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda n: torch.randn(n),
        lambda n: torch.rand(n) * 3 + 100,
        lambda n: torch.randn(n).exp(),
        lambda n: torch.randn(n) * 1e-4,
        lambda n: (torch.rand(n) < 0.3).double(),
        lambda n: torch.full((n,), 2.5),
        lambda n: torch.zeros(n),
        lambda n: torch.randn(n) ** 5,
    ],
)
@pytest.mark.parametrize("n", [1, 2, 3, 64, 4096])
def test_floats_have_the_recorded_statistics(dtype, draw, n) -> None:
    torch.manual_seed(n)
    value = draw(n).to(getattr(torch, dtype)).double()
    known = {"min": value.min(), "max": value.max(), "mean": value.mean(), "norm": value.norm()}
    known = {name: float(number) for name, number in known.items()}
    made = pa.dumps.like(dtype, (n,), **known, name="a")
    again = pa.dumps.like(dtype, (n,), **known, name="a")
    assert torch.equal(made, again)
    assert (float(made.min()), float(made.max())) == (known["min"], known["max"])
    if n >= 64:
        size = known["norm"] / math.sqrt(n)
        assert float(made.double().mean()) == pytest.approx(known["mean"], abs=0.02 * size + 1e-12)
        assert float(made.double().norm()) == pytest.approx(known["norm"], rel=0.05, abs=1e-12)


@pytest.mark.parametrize("largest", [1e308, 1e-310, 1e30])
def test_no_size_is_too_large_or_too_small(largest) -> None:
    made = pa.dumps.like("float64", (100,), min=-largest, max=largest, mean=0.0, norm=largest * 5, name="a")
    assert (float(made.min()), float(made.max())) == (-largest, largest)
    pa.dumps.like("float64", (100,), min=-1e-300, max=largest, mean=1e308, norm=1e308)
    pa.dumps.like("float16", (100,), min=-largest, max=largest, mean=largest, norm=0.0)


def test_integers_bools_and_complex_numbers_stay_in_range() -> None:
    made = pa.dumps.like("int64", (1000,), min=3, max=9)
    assert (int(made.min()), int(made.max())) == (3, 9)
    assert pa.dumps.like("uint8", (10,), min=-5, max=1 << 40).max() == 255
    assert pa.dumps.like("int64", (3,), min=(1 << 63) - 1, max=(1 << 63) - 1).tolist() == [(1 << 63) - 1] * 3
    assert set(pa.dumps.like("bool", (10,), min=0, max=1).tolist()) == {True, False}
    assert pa.dumps.like("bool", (3,), min=1, max=1).all()
    made = pa.dumps.like("complex64", (100,), min=1.0, max=2.0, mean=1.5, norm=15.1)
    assert float(made.abs().max()) == pytest.approx(2.0)


def test_what_is_not_finite_occurs() -> None:
    nan = float("nan")
    assert int(pa.dumps.like("float32", (50,), min=nan, max=nan, mean=nan, norm=nan).isnan().sum()) == 1
    made = pa.dumps.like("float32", (50,), min=-math.inf, max=2.0)
    assert int(made.isinf().sum()) == 1
    assert float(made.max()) <= 2.0


def test_shapes_and_names() -> None:
    assert pa.dumps.like("float32", (0, 3)).shape == (0, 3)
    assert pa.dumps.like("float32", ()).dim() == 0
    assert not torch.equal(pa.dumps.like("float32", (9,), name="a"), pa.dumps.like("float32", (9,), name="b"))
    with pytest.raises(ValueError, match="no dtype is called 'float31'"):
        pa.dumps.like("float31", (1,))
    with pytest.raises(ValueError, match="is no shape"):
        pa.dumps.like("float32", (-1,))


def test_a_mask_whose_norm_had_no_room_has_nothing_between_its_ends() -> None:
    lowest = torch.finfo(torch.float32).min
    made = pa.dumps.like("float32", (4, 1, 8, 8), min=lowest, max=0.0, mean=-math.inf, norm=math.inf, name="mask")
    assert set(made.flatten().tolist()) == {lowest, 0.0}
    assert 0.3 < float((made == 0).float().mean()) < 0.7
    spread = pa.dumps.like("float32", (64,), min=-1e20, max=0.0, mean=-3e19, norm=math.inf, name="no mask")
    assert len(set(spread.tolist())) > 32
