"""What the vendor's own comparison tool (PyPI mindstudio-probe 26.2) gets wrong, with the right answers.

False passes first: wrong results that its rules let through. Then false alarms: right results that it calls wrong.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict

NAN, INF = float("nan"), float("inf")


def here(x):
    """Whether a tensor lies on the device under test."""
    return x.device.type == "npu"


def peer(golden, actual):
    """Its rule for float32 outputs of one API, from its documents: "pass", "warning" or "error"."""
    golden, actual = golden.double().reshape(-1), actual.double().reshape(-1)
    finite = torch.isfinite(golden) & torch.isfinite(actual)
    golden, actual = golden[finite], actual[finite]
    cosine = torch.dot(golden, actual) / (golden.norm() * actual.norm())
    if cosine <= 0.99:
        return "error"
    if (golden - actual).abs().max() < 1e-3:
        return "pass"
    relative = (golden - actual).abs() / golden.abs().clamp_min(1e-30)
    if (relative >= 1e-3).double().mean() >= 1e-3:
        return "error"
    return "warning" if (relative >= 1e-4).double().mean() >= 1e-4 else "pass"


# ------------------------------------------------------------------------------------------ false passes


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_one_element_of_many_is_not_finite(check, value):
    x = torch.randn(100_000)

    def wrong(x):
        y = torch.exp(x)
        y[31_415] = value
        return y

    assert peer(torch.exp(x), wrong(x)) == "pass"
    with pa.emulator.override("aten::exp", wrong):
        result = check(torch.exp, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.non_finite
    assert "[31415]" in result.reason
    assert pa.compare(torch.exp(x), wrong(x)).kind is Kind.non_finite


def test_small_values_twice_as_large(check):
    x = torch.randn(1000)
    golden = x * 1e-4
    assert peer(golden, golden * 2) == "pass"
    assert check(lambda x: x * (2e-4 if here(x) else 1e-4), x).verdict is Verdict.FAIL
    result = pa.compare(golden, golden * 2)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.bias
    assert "2 x the golden" in result.reason


def test_a_value_where_zero_is_right(check):
    x = torch.randn(1000)
    golden, actual = torch.relu(x), torch.relu(x).clamp_min(5e-4)
    assert peer(golden, actual) == "pass"
    with pa.emulator.override("aten::relu", lambda x: torch.relu(x).clamp_min(5e-4)):
        result = check(torch.relu, x)
    assert result.verdict is Verdict.FAIL
    assert pa.compare(golden, actual).verdict is Verdict.FAIL


def quantise(x):
    q = torch.clamp(torch.round(x * 10), -128, 127).to(torch.int8)
    return -(q + 1) if here(x) else q  # 127 becomes -128


def test_quantised_to_the_other_end(check):
    x = torch.tensor([20.0, 30.0, 100.0, 50.0])
    result = check(quantise, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.exact
    result = pa.compare(torch.tensor([-128], dtype=torch.int8), torch.tensor([127], dtype=torch.int8))
    assert result.kind is Kind.exact
    assert result.metrics.max_abs_error == 255  # no wrap to 1


def test_dropout_77_times_too_large(check):
    def native_dropout(x, p, train):
        mask = torch.rand(x.shape) >= p
        return x * mask * 77, mask

    with pa.emulator.override("aten::native_dropout", native_dropout):
        result = check(lambda x: F.dropout(x, 0.5), torch.ones(4000, requires_grad=True), options={"backward": False})
    assert result.verdict is Verdict.FAIL


def test_an_output_more_or_less(check):
    x = torch.randn(5)
    for golden, actual in (((x,), (x, x)), ((x, x), (x,)), ({"a": x}, {"a": x, "b": x}), (x, (x, x))):
        assert pa.compare(golden, actual).kind is Kind.structure
    assert check(lambda x: (x, x + 1) if here(x) else (x,), x).kind is Kind.structure


def test_an_empty_result(check):
    x = torch.randn(5)
    for actual in (x[:0], torch.empty(0, 5), torch.empty(5, 0)):
        assert pa.compare(x, actual).kind is Kind.shape
    for nothing in ((), None, []):
        assert pa.compare((x,), nothing).kind is Kind.structure
    result = check(lambda x: x[:0] if here(x) else x, x)
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.shape


@pytest.mark.parametrize(
    ("golden", "actual", "kind"),
    [
        (torch.full((4,), INF), torch.full((4,), -INF), Kind.non_finite),
        (torch.tensor([1.0, INF]), torch.tensor([1.0, -INF]), Kind.non_finite),
        (torch.polar(torch.ones(20), torch.linspace(1, 2, 20)), None, None),
        (torch.linspace(-1, 2, 50), torch.zeros(50), None),
        (torch.linspace(-1, 2, 50), None, None),
        (torch.linspace(-1, 2, 50) * 1e-3, None, Kind.bias),
        (torch.arange(9), torch.arange(9, dtype=torch.int32), Kind.dtype),
    ],
    ids=["all_infinite", "one_infinite", "conjugated", "all_zero", "negated", "doubled", "int32"],
)
def test_saved_tensors(request, golden, actual, kind):
    change = request.node.callspec.id
    if actual is None:
        actual = {"conjugated": golden.conj(), "negated": -golden, "doubled": golden * 2}[change]
    result = pa.compare(golden, actual)
    assert result.verdict is Verdict.FAIL
    assert kind is None or result.kind is kind
    assert pa.compare(golden, golden.clone()).verdict is Verdict.PASS


# ------------------------------------------------------------------------------------------ false alarms

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR)


A, B, C = normal(16, 32), normal(32, 24), normal(16, 32).abs() + 0.1
IMAGE, KERNEL = normal(2, 4, 9, 9), normal(6, 4, 3, 3)
RIGHT = {
    "add": (torch.add, A, C),
    "sub": (torch.sub, A, C),
    "mul": (torch.mul, A, C),
    "div": (torch.div, A, C),
    "exp": (torch.exp, A),
    "log": (torch.log, C),
    "sqrt": (torch.sqrt, C),
    "rsqrt": (torch.rsqrt, C),
    "reciprocal": (torch.reciprocal, C),
    "pow": (torch.pow, C, 3),
    "sin": (torch.sin, A),
    "tanh": (torch.tanh, A),
    "sigmoid": (torch.sigmoid, A),
    "gelu": (F.gelu, A),
    "silu": (F.silu, A),
    "softplus": (F.softplus, A),
    "elu": (F.elu, A),
    "softmax": (lambda x: torch.softmax(x, -1), A),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), A),
    "layer_norm": (lambda x: F.layer_norm(x, (32,)), A),
    "group_norm": (lambda x: F.group_norm(x, 2), IMAGE),
    "sum": (lambda x: x.sum(-1), A),
    "mean": (lambda x: x.mean(-1), A),
    "var": (lambda x: x.var(-1), A),
    "cumsum": (lambda x: x.cumsum(-1), A),
    "prod": (lambda x: x.prod(-1), C),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), A),
    "matmul": (torch.matmul, A, B),
    "linear": (F.linear, A, B.t()),
    "conv2d": (F.conv2d, IMAGE, KERNEL),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "mse_loss": (F.mse_loss, A, C),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), A),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", RIGHT)
def test_correctly_rounded_results(check, name, dtype):
    """Computed in float32 (or better) and rounded once: 21 of 31 such APIs get a warning there in bfloat16."""
    fn, *args = RIGHT[name]
    args = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args]

    def once(*args):
        if not here(args[0]):
            return fn(*args)
        return fn(*(a.float() if isinstance(a, torch.Tensor) else a for a in args)).to(dtype)

    once.__name__ = name
    right = Verdict.MODE_DIFF if name == "gelu" else Verdict.PASS  # the chip documents another form of gelu
    assert check(once, *args).verdict is right
    assert check(fn, *args).verdict is right
    golden = fn(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    assert pa.compare(golden, golden.to(dtype)).verdict is Verdict.PASS


@pytest.mark.parametrize("values", [[NAN], [INF], [-INF, NAN], [NAN, 0.0, INF], [NAN] * 3])
def test_equal_nan_and_infinities(check, values):
    x = torch.tensor(values)
    assert pa.compare(x, x.clone()).verdict is Verdict.PASS
    assert check(lambda x: x * 2, x).verdict is Verdict.PASS
    assert check(lambda x: x * 2, x.bfloat16()).verdict is Verdict.PASS


def test_bfloat16_beside_float32(check):
    """A dump in bfloat16 against one in float32: the dtype alone is no error where that is what was asked for."""
    golden = torch.softmax(torch.randn(16, 32), -1)
    actual = golden.bfloat16()
    assert pa.compare(golden, actual).kind is Kind.dtype  # unless asked for, it is one
    assert pa.compare(golden, actual, exact_dtype=False).verdict is Verdict.PASS
    assert pa.compare(golden, actual * 1.1, exact_dtype=False).verdict is Verdict.FAIL
    assert pa.compare(golden.double(), actual).verdict is Verdict.PASS
    nested = pa.compare({"a": [golden, golden + 1]}, {"a": [actual, (golden + 1).bfloat16()]}, exact_dtype=False)
    assert nested.verdict is Verdict.PASS
