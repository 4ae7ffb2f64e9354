"""Random outputs: right ones can't be compared, and wrong ones show in their statistics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict

# "NPU" random numbers are drawn here by the emulated device's own generator, so the streams differ from the CPU's.


def here(x):
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


class Residual(nn.Module):
    """Dropout inside a block, behind a projection, and of whole channels."""

    def __init__(self, wrong=None):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.dropout, self.channels = nn.Dropout(0.1), nn.Dropout1d(0.2)
        self.wrong = wrong

    def forward(self, x):
        hidden = F.gelu(self.first(x))
        hidden = self.wrong(hidden) if self.wrong is not None and here(x) else self.dropout(hidden)
        return self.channels((x + self.second(hidden)).unsqueeze(0)).squeeze(0)


RIGHT = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "rare": lambda x: F.dropout(x, 0.02),
    "mostly": lambda x: F.dropout(x, 0.95),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "channels": lambda x: F.dropout1d(x.view(1, -1, 1).expand(1, -1, 4), 0.3),
    "rand": torch.rand_like,
    "randn": torch.randn_like,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "exponential": lambda x: torch.empty_like(x).exponential_(),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "multinomial": lambda x: torch.multinomial(x.abs() + 0.1, 8, replacement=True),
    "randint": lambda x: torch.randint_like(x, 0, 10),
    "permutation": lambda x: x[torch.randperm(x.shape[0], device=x.device)],
    "path": lambda x: x * (torch.rand(1, device=x.device) > 0.3),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=False),
    "self_noise": lambda x: torch.softmax(x + torch.randn_like(x), -1),
    "after": lambda x: torch.exp(F.dropout(x, 0.1) @ torch.ones(x.shape[0], 3, device=x.device) / 50),
}


@pytest.mark.parametrize("size", [33, 1000])
@pytest.mark.parametrize("name", RIGHT)
def test_right_random_numbers_are_not_comparable(check, name, size):
    torch.manual_seed(size)
    result = check(RIGHT[name], torch.randn(size))
    assert result.passed, result.reason
    assert size < 1000 or name == "path" or result.verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["dropout", "rand", "randn", "rrelu", "self_noise"])
def test_right_random_numbers_of_few_bits(check, name, dtype):
    assert check(RIGHT[name], torch.randn(1000).to(dtype)).verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_right_models_in_training(check, rows):
    torch.manual_seed(rows)
    result = check(Residual().train(), torch.randn(rows, 16, requires_grad=True))
    assert result.passed, result.reason


def keeping(keep, scale):
    """Wrong dropouts of 10 %: which elements stay, and by what they are multiplied."""
    return lambda x: x * (keep(torch.rand(x.shape).to(x.device)) * scale)


ORDER = torch.arange(2000)
WRONG = {
    "inverted": (keeping(lambda r: r < 0.1, 10.0), "keeps"),
    "rate": (keeping(lambda r: r > 0.2, 1.25), "keeps"),
    "unscaled": (keeping(lambda r: r > 0.1, 1.0), "kept ones are 0.9"),
    "scale": (keeping(lambda r: r > 0.1, 1.13), "kept ones are 1.02 x"),
    "huge": (keeping(lambda r: r > 0.1, 77.0), "kept ones are 69."),
    "first": (lambda x: x * (ORDER.to(x.device) > 200) / 0.9 + 0 * torch.rand_like(x), "every seed"),
    "together": (keeping(lambda r: ORDER.to(r.device) > 190 + 20 * r[0], 1 / 0.9), "zeros lie"),
    "all": (lambda x: x + 0 * torch.rand_like(x), ""),
    "nothing": (lambda x: 0 * x, ""),
    "nan": (lambda x: torch.where(ORDER.to(x.device) == 7, float("nan"), F.dropout(x, 0.1)), "NaN"),
    "added": (lambda x: F.dropout(x, 0.1) + 0.1, "keeps 100 %"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_dropouts(check, name, dtype):
    wrong, words = WRONG[name]
    if name == "scale" and dtype is torch.bfloat16:
        pytest.skip("bfloat16 holds few more than two digits")
    x = torch.randn(2000).to(dtype)
    result = check(lambda x: wrong(x).to(x.dtype) if here(x) else F.dropout(x, 0.1), x)
    assert result.verdict is Verdict.FAIL
    assert result.kind in (Kind.bias, Kind.spread, Kind.local, Kind.non_finite)
    assert words in result.reason
    assert "random, and not as the CPU's" in result.reason


@pytest.mark.parametrize("name", ["inverted", "unscaled", "huge"])
def test_wrong_dropouts_of_few_elements(check, name):
    assert check(lambda x: WRONG[name][0](x) if here(x) else F.dropout(x, 0.1), torch.randn(64)).verdict is Verdict.FAIL


OTHER = {
    "rand": (torch.rand_like, lambda x: torch.rand_like(x) * 0.9, "distributions"),
    "rand_signed": (torch.rand_like, lambda x: 2 * torch.rand_like(x) - 1, ""),
    "rand_range": (torch.rand_like, lambda x: torch.rand_like(x) + 3 * (ORDER.to(x.device) == 5), "out of range"),
    "randn": (torch.randn_like, lambda x: torch.randn_like(x) * 1.2, ""),
    "randn_shift": (torch.randn_like, lambda x: torch.randn_like(x) + 0.2, ""),
    "randn_uniform": (torch.randn_like, lambda x: (torch.rand_like(x) - 0.5) * 12**0.5, "distributions"),
    "ramp": (
        torch.rand_like,
        lambda x: (ORDER.to(x.device) / 2000 + torch.rand(1, device=x.device)) % 1,
        "neighbours",
    ),
    "rrelu": (
        lambda x: F.rrelu(x, training=True),
        lambda x: F.rrelu(x, 0.3, 0.6, training=True),
        "",
    ),
    "bernoulli": (
        lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
        lambda x: torch.bernoulli(torch.full_like(x, 0.7)),
        "keeps",
    ),
    "exponential": (
        lambda x: torch.empty_like(x).exponential_(1.0),
        lambda x: torch.empty_like(x).exponential_(1.5),
        "",
    ),
    "randint": (lambda x: torch.randint_like(x, 0, 10), lambda x: torch.randint_like(x, 0, 9), ""),
    "multinomial": (
        lambda x: torch.multinomial(torch.arange(1.0, 11, device=x.device), 2000, True),
        lambda x: torch.multinomial(torch.ones(10, device=x.device), 2000, True),
        "",
    ),
    "permutation": (
        lambda x: x[torch.randperm(2000, device=x.device)],
        lambda x: x[torch.randint(0, 2000, (2000,), device=x.device)],
        "another order",
    ),
    "stuck": (torch.rand_like, lambda x: torch.linspace(0, 1, 2000, device=x.device)[ORDER * 7 % 2000], "every seed"),
}


@pytest.mark.parametrize("name", OTHER)
def test_wrong_distributions(check, name):
    right, wrong, words = OTHER[name]
    result = check(lambda x: wrong(x) if here(x) else right(x), torch.randn(2000))
    assert result.verdict is Verdict.FAIL
    assert words in result.reason


def test_the_same_seed_must_give_the_same_numbers(check):
    calls = iter(range(1000))

    def fn(x):
        return F.dropout(x * (1 + next(calls)), 0.5) if here(x) else F.dropout(x, 0.5)

    result = check(fn, torch.ones(2000))
    assert result.verdict is Verdict.NONDETERMINISTIC
    assert "same seed" in result.reason


def test_the_gradient_of_a_dropout_is_scaled_too(check):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mask = torch.rand(x.shape).to(x.device) > 0.5
            ctx.save_for_backward(mask)
            return x * mask * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    def fn(x):
        return Wrong.apply(x) if here(x) else F.dropout(x, 0.5)

    outputs = by_path(check(fn, torch.randn(500, requires_grad=True)))
    assert outputs["output"].verdict is Verdict.NOT_COMPARABLE
    assert outputs["grad(args[0])"].verdict is Verdict.FAIL
    assert "0.5 x the CPU's" in outputs["grad(args[0])"].reason
    right = check(lambda x: F.dropout(x, 0.5), torch.randn(500, requires_grad=True))
    assert right.verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize("wrong", [lambda h: F.dropout(h, 0.1) * 3, lambda h: F.dropout(h, 0.9)])
def test_a_wrong_dropout_within_a_model(check, wrong):
    torch.manual_seed(0)
    result = check(Residual(wrong).train(), torch.randn(100, 16))
    assert result.verdict is Verdict.FAIL


def test_explicit_thresholds_do_not_excuse_wrong_numbers_either(check):
    options = {"criterion": "close", "rtol": 0.1, "atol": 0.1}
    x = torch.ones(2000)
    assert check(lambda x: F.dropout(x, 0.5), x, options=options).verdict is Verdict.NOT_COMPARABLE
    wrong = check(lambda x: F.dropout(x, 0.5) * (3 if here(x) else 1), x, options=options)
    assert wrong.verdict is Verdict.FAIL


def test_a_planted_kernel_that_always_drops_the_first(check):
    def native_dropout(x, p, train):
        mask = torch.arange(x.numel()).view(x.shape) >= p * x.numel()
        return x * mask / (1 - p), mask

    with pa.emulator.override("aten::native_dropout", native_dropout) as planted:
        result = check(lambda x: F.dropout(x, 0.25), torch.ones(40, 25, requires_grad=True))
    assert planted.calls
    assert result.verdict is Verdict.FAIL


class KeepsTheRest(nn.Module):
    """Dropout that keeps on the device what it should drop."""

    def forward(self, x):
        return F.dropout(x, 0.9 if here(x) else 0.1)


def test_the_first_layer_with_a_wrong_dropout_is_named(check):
    torch.manual_seed(0)
    layers = nn.Linear(16, 64), KeepsTheRest(), nn.Linear(64, 16), nn.Dropout(0.1)
    result = check(nn.Sequential(*layers).train(), torch.randn(100, 16), options={"checkpoints": True})
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence == "1"
    assert "keeps" in result.checkpoints["1"].reason
    right = nn.Linear(16, 64), nn.Dropout(0.1), nn.Linear(64, 16), nn.Dropout(0.1)
    result = check(nn.Sequential(*right).train(), torch.randn(100, 16), options={"checkpoints": True})
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert result.first_divergence is None
