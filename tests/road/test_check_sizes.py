"""A failure that has to do with size says from which size on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    return x.device.type == "npu"


def beyond(limit, dim):
    def product(x, w):
        return (x @ w) * (1.5 if here(x) and x.shape[dim] > limit else 1.0)

    return product


@pytest.mark.parametrize("rows", [1025, 2048, 5000])
def test_a_limit_of_rows_is_found_to_the_row(check, rows):
    def broken(x, *args, **kwargs):
        values, indices = torch.topk(x, *args, **kwargs)
        values[1024:] = float("inf")
        return values, indices

    with pa.emulator.override("aten::topk", broken):
        result = check(lambda x: torch.softmax(x, -1).topk(2), torch.randn(rows, 8))
    assert result.kind is Kind.non_finite
    assert "right up to 1024 rows (dim 0 of args[0]), wrong from 1025" in result.reason


@pytest.mark.parametrize("limit", [1, 7, 100, 254])
def test_any_limit_is_found(check, limit):
    result = check(beyond(limit, 0), torch.randn(256, 4), torch.randn(4, 4))
    assert result.verdict is Verdict.FAIL
    assert f"right up to {limit} row" in result.reason
    assert f"wrong from {limit + 1}" in result.reason


def test_dimensions_that_belong_together_are_cut_together(check):
    result = check(beyond(100, 1), torch.randn(30, 300), torch.randn(300, 24))
    assert "right up to 100 columns (dim 1 of args[0], dim 0 of args[1]), wrong from 101" in result.reason

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v) * (1.5 if here(q) and k.shape[-2] > 48 else 1.0)

    q, k, v = torch.randn(3, 1, 2, 64, 16)
    assert "right up to size 48 (dim 2 of args[0]" in check(attention, q, k, v).reason


def test_a_gradient_has_a_limit_too(check):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * (2.2 if here(grad) and len(grad) > 128 else 2)

    result = check(Doubled.apply, torch.randn(200, 3, requires_grad=True))
    assert result.kind is Kind.gradient
    assert "right up to 128 rows" in result.reason


def test_keywords_and_nested_arguments_are_cut(check):
    def fn(batch, *, scale):
        return batch["x"] * scale * (2 if here(scale) and len(scale) > 20 else 1)

    result = check(fn, {"x": torch.randn(64, 3)}, scale=torch.rand(64, 1) + 1)
    assert "right up to 20" in result.reason
    assert "dim 0 of scale" in result.reason


def test_what_fails_at_every_size_says_nothing_of_size(check):
    for fn in (
        beyond(0, 0),
        lambda x, w: torch.cat([(x @ w)[:-1], (x @ w)[-1:] * (2 if here(x) else 1)]),
    ):
        result = check(fn, torch.randn(64, 8), torch.randn(8, 8))
        assert result.verdict is Verdict.FAIL
        assert "right up to" not in result.reason


def test_a_failure_that_hangs_on_a_value_is_no_limit(check):
    x = torch.rand(300)
    x[170] = 3.5
    result = check(lambda x: torch.where(x > 3, x * (1.1 if here(x) else 1.0), x).exp(), x)
    assert result.verdict is Verdict.FAIL
    assert "right up to" not in result.reason
    assert "wrong with index 170 of dim 0 of args[0]" in result.reason


def test_a_failure_that_hangs_on_a_remainder_is_no_limit(check):
    def fn(x):
        return x.exp() * (1.5 if here(x) and len(x) % 32 == 0 else 1.0)

    result = check(fn, torch.randn(256))
    assert "right up to" not in result.reason
    assert "though other sizes fall otherwise" in result.reason


def test_the_search_is_bounded(check):
    runs = []

    def fn(x):
        runs.append(len(x))
        return x.exp() * (1.5 if here(x) and len(x) > 1000 else 1.0)

    result = check(fn, torch.randn(4001))
    assert "right up to 1000 elements" in result.reason
    assert len(set(runs)) <= 25


def test_sizes_the_cpu_refuses_are_left_alone(check):
    result = check(lambda x: x.view(20, -1).exp() * (1.5 if here(x) else 1.0), torch.randn(40))
    assert result.verdict is Verdict.FAIL
    assert "right up to" not in result.reason


def test_a_passing_case_is_not_cut(check):
    sizes = []
    assert check(lambda x: (sizes.append(len(x)), x.exp())[1], torch.randn(64)).verdict is Verdict.PASS
    assert set(sizes) == {64}
