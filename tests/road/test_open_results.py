"""What the API leaves open is no fault: casts beyond a range, winners of duplicate writes. Everything else counts."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    return x.device.type == "npu"


# ------------------------------------------------------------------------------------------ casts


INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32]


def clamped(x, dtype):
    info = torch.iinfo(dtype)
    return (x.double().nan_to_num().clamp(info.min, info.max) if here(x) else x).to(dtype)


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_saturating_cast(check, dtype, source):
    x = torch.tensor([float("nan"), 3.5, 5e4, -5e4, 100.0, 0.25, float("inf")]).to(source)
    result = check(lambda x: clamped(x, dtype), x)
    assert result.passed, result.reason
    beyond = torch.tensor([3e38 if source is not torch.float16 else 6e4, 1.5]).to(source)
    if dtype is not torch.int32:
        assert check(lambda x: clamped(x, dtype), beyond).verdict is Verdict.UNDEFINED


@pytest.mark.parametrize("dtype", INTEGERS)
def test_in_range_every_integer_counts(check, dtype):
    top = float(torch.iinfo(dtype).max)
    x = torch.tensor([2 * top + 10, 3.75, 100.0, 7.25])

    def wrong(x):
        y = clamped(x, dtype)
        return torch.cat([y[:3], y[3:] + 1]) if here(x) else y

    result = check(wrong, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact
    assert check(lambda x: clamped(x, dtype), x).passed


def test_the_edges_of_the_range_are_in_it(check):
    x = torch.tensor([127.0, 127.99, -128.0, -128.99, 126.5])
    assert check(lambda x: (x.clamp(-127, 127) if here(x) else x).to(torch.int8), x).verdict is Verdict.FAIL
    beyond = check(lambda x: (x.clamp(-127, 127) if here(x) else x).to(torch.int8), torch.tensor([129.0, 1.0]))
    assert beyond.verdict is Verdict.UNDEFINED


def test_what_is_computed_from_an_open_cast(check):
    def fn(x):
        return clamped(x * 100, torch.int8).float() / 2 + 1

    x = torch.tensor([0.503, 3.007, -0.204, -7.003])
    assert check(fn, x).verdict is Verdict.UNDEFINED
    assert check(lambda x: fn(x) * (1.01 if here(x) else 1), x).verdict is Verdict.FAIL
    assert check(lambda x: fn(x) * (1.01 if here(x) else 1), x / 10).verdict is Verdict.FAIL


def test_a_cast_in_place_into_an_integer(check):
    def fn(x, out):
        out.copy_(x.clamp(-128, 127) if here(x) else x)
        return out

    out = torch.zeros(3, dtype=torch.int8)
    assert check(fn, torch.tensor([300.0, 1.0, -3.0]), out).verdict is Verdict.UNDEFINED
    assert check(fn, torch.tensor([30.0, 1.0, -3.0]), out).verdict is Verdict.PASS


def test_shifts_by_more_bits_than_there_are(check):
    def fn(x, n):
        return x << (n.remainder(32) if here(x) else n)

    x = torch.arange(1, 5, dtype=torch.int32)
    assert check(fn, x, torch.tensor([1, 2, 33, 40], dtype=torch.int32)).verdict is Verdict.UNDEFINED
    wrong = check(lambda x, n: fn(x, n) + (1 if here(x) else 0), x, torch.tensor([1, 2, 33, 40], dtype=torch.int32))
    assert wrong.verdict is Verdict.FAIL


def test_float8_beyond_its_range(check):
    dtype = torch.float8_e4m3fn

    def fn(x):
        return (x.clamp(-448, 448) if here(x) else x).to(dtype).float()

    assert check(fn, torch.tensor([1000.0, 3.0, -2.0])).passed
    assert check(lambda x: fn(x) * (2 if here(x) else 1), torch.tensor([1000.0, 3.0, -2.0])).verdict is Verdict.FAIL


def test_other_criteria_excuse_nothing(check):
    x = torch.tensor([215.26, 3.7])
    assert check(lambda x: clamped(x, torch.int8), x, options={"criterion": "exact"}).verdict is Verdict.FAIL


# ------------------------------------------------------------------------------------------ duplicate writes


INDEX = torch.tensor([3, 1, 3, 3, 0, 1])
VALUES = torch.tensor([1.5, 2.5, 3.5, 4.5, 5.5, 6.5])


def reversed_writes(x, op):
    """The same writes in the opposite order, so that the first stays."""
    index, values = INDEX.to(x.device), VALUES.to(x.device, x.dtype)
    return op(x, index.flip(0), values.flip(0)) if here(x) else op(x, index, values)


OPS = {
    "scatter": lambda x, i, v: torch.scatter(x, 0, i, v),
    "scatter_": lambda x, i, v: x.clone().scatter_(0, i, v),
    "index_put": lambda x, i, v: torch.index_put(x, (i,), v),
    "assigned": lambda x, i, v: x.clone().index_put_((i,), v),
    "index_copy": lambda x, i, v: torch.index_copy(x, 0, i, v),
    "put": lambda x, i, v: torch.Tensor.put(x, i, v),
    "rows": lambda x, i, v: torch.index_copy(x.view(4, 2), 0, i % 4, v[:, None].expand(6, 2)),
    "two_dims": lambda x, i, v: torch.scatter(x.view(2, 4), 1, (i % 4).expand(2, 6), v.expand(2, 6)),
    "negative": lambda x, i, v: torch.index_put(x, (i - 8,), v),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("name", OPS)
def test_any_write_may_stay(check, name, dtype):
    x = torch.arange(8).to(dtype)
    result = check(lambda x: reversed_writes(x, OPS[name]), x)
    assert result.verdict is Verdict.NOT_COMPARABLE, result.reason
    assert "several values are written to one place" in result.reason


@pytest.mark.parametrize("name", OPS)
def test_a_value_that_nobody_wrote(check, name):
    def fn(x):
        y = reversed_writes(x, OPS[name])
        return torch.where(y == 1.5, 2.0, torch.where(y == 4.5, 2.0, y)) if here(x) else y

    def elsewhere(x):
        y = reversed_writes(x, OPS[name])
        return torch.where((y == 5) | (y == 6), 7.5, y) if here(x) else y

    assert check(fn, torch.arange(8.0)).verdict is Verdict.FAIL
    assert check(elsewhere, torch.arange(8.0)).verdict is Verdict.FAIL


def test_an_assignment_in_place_and_what_is_computed_from_it(check):
    def fn(x, table):
        table[INDEX.to(x.device)] = reversed_order(x)
        return table.sum() * 2

    def reversed_order(x):
        return x.flip(0) if here(x) else x

    x, table = VALUES.clone(), torch.zeros(8)
    result = check(fn, x, table)
    assert result.verdict is Verdict.FAIL  # the values are written elsewhere as well: to the place of one write

    def same_places(x, table):
        index = INDEX.to(x.device)
        table[index.flip(0) if here(x) else index] = reversed_order(x)
        return table.sum() * 2

    assert check(same_places, x, table).verdict is Verdict.NOT_COMPARABLE
    assert check(lambda x, t: same_places(x, t) + (50 if here(x) else 0), x, table).verdict is Verdict.FAIL


def test_many_writes_to_one_place(check):
    x, index, values = torch.zeros(4), torch.zeros(500, dtype=torch.long), torch.arange(500.0)
    runs = itertools.count(100)

    def planted(x, dim, index, src):
        y = torch.scatter(x, dim, index, src)
        y[0] = src[next(runs) % 500]
        return y

    with pa.emulator.override("aten::scatter.src", planted):
        assert check(torch.scatter, x, 0, index, values).verdict is Verdict.NOT_COMPARABLE
    with pa.emulator.override("aten::scatter.src", lambda *a: torch.scatter(*a) * 2):
        assert check(torch.scatter, x, 0, index, values).verdict is Verdict.FAIL


def test_sums_of_duplicates_are_defined(check):
    x, index, values = torch.zeros(4), torch.tensor([1, 1, 2]), torch.tensor([1.0, 2.0, 3.0])

    def last_only(x, index, values):
        y = torch.index_add(x, 0, index, values)
        return y.index_fill(0, torch.tensor([1]).to(y.device), 2.0) if here(x) else y

    assert check(last_only, x, index, values).verdict is Verdict.FAIL
    accumulated = check(lambda x, i, v: torch.index_put(x, (i,), v, accumulate=not here(x)), x, index, values)
    assert accumulated.verdict is Verdict.FAIL


def test_the_gradient_of_duplicate_writes(check):
    def fn(x, v):
        i = INDEX.to(x.device)
        y = torch.scatter(x, 0, i.flip(0), v.flip(0)) if here(x) else torch.scatter(x, 0, i, v)
        return F.silu(y)

    x, v = torch.arange(8.0, requires_grad=True), VALUES.clone().requires_grad_()
    result = check(fn, x, v)
    assert result.passed, result.reason
