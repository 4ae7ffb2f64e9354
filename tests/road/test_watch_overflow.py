"""Watching operators: who left the range of its dtype, who was only given it, and what is none of both."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pytest_ascend as pa
from pytest_ascend.observe import overflow_ranges
from pytest_ascend.observe.overflow_findings import op_type
from pytest_ascend.observe.overflow_ranges import BATCH, Ranges
from pytest_ascend.targets import emulator
from pytest_ascend.targets.emulator.device import machine

DEVICES = ["cpu", "npu"]
HALF = torch.float16
INF = math.inf


@pytest.fixture(autouse=True)
def _device():
    emulator.install()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def watched(call, model=None, **options):
    with pa.watch_overflow(model, **options) as watch:
        call()
    assert watch.operators
    return watch


def only(watch):
    (finding,) = watch.findings
    return finding


# --- culprits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["half", "autocast"])
def test_an_lstm_given_more_than_float16_holds(device, how):
    """What float16 is given as 91234.5 is Inf in it: the cast made it, and the product is what it was cast for."""
    torch.manual_seed(0)
    if (device, how) == ("cpu", "autocast"):  # torch's CPU has no such LSTM
        device = "npu"
    lstm = nn.LSTM(16, 8).to(device)
    x = torch.randn(5, 2, 16, device=device)
    x[2, 1, 3] = 91234.5

    def run():
        if how == "half":
            lstm.half()(x.half())
        else:
            with torch.autocast(device, dtype=HALF):
                lstm(x)

    finding = only(watched(run, lstm))
    said = finding.to_dict()
    assert list(said)[:6] == ["op_name", "op_type", "overflow_type", "input_dtype", "input_max", "issue_hint"]
    assert (said["op_name"], said["op_type"]) == ("LSTM.MatMul", "MatMul")
    assert (said["overflow_type"], said["input_dtype"], said["input_max"]) == ("overflow_up", "float16", 91234.5)
    assert "float16 input overflow" in said["issue_hint"]
    assert "65504" in said["issue_hint"]
    assert "scale" in said["issue_hint"]
    assert finding.op == "aten::_to_copy"
    assert finding.source.endswith(f"test_watch_overflow.py:{finding.place.line}")
    assert finding.chain[0].result == "Inf"
    assert any(link.op.startswith("aten::sigmoid") and link.result == "finite" for link in finding.chain)
    assert finding.serious


def test_products_too_large_for_the_dtype(device):
    layers = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 4)).to(device, HALF)
    nn.init.constant_(layers[0].weight, 100.0)
    watch = watched(lambda: layers(torch.full((2, 64), 50.0, device=device, dtype=HALF)), layers)
    finding = only(watch)
    assert (finding.op_name, finding.overflow_type, finding.input_max) == ("0.MatMul", "overflow_up", 100.0)
    assert "accumulate in float32" in finding.issue_hint
    assert [link.place.module for link in finding.chain] == ["1", "2"]  # the ReLU and the next product are victims
    assert finding.victims == 2


def test_only_the_first_is_the_culprit(device):
    def run():
        x = torch.full((4,), 300.0, device=device, dtype=HALF)
        y = x * x
        z = y * 2
        return z - y, (x + 1) * 3

    finding = only(watched(run))
    assert finding.op == "aten::mul"
    assert [(link.op, link.result) for link in finding.chain] == [("aten::mul", "Inf"), ("aten::sub", "NaN")]


def test_nan_from_numbers(device):
    finding = only(watched(lambda: torch.sqrt(torch.full((3,), -1.0, device=device)) + 1))
    assert (finding.overflow_type, finding.result, finding.victims) == ("nan", "NaN", 1)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda x: torch.log(x), "pole"),
        (lambda x: 1 / x, "pole"),
        (lambda x: torch.ones_like(x) / x, "pole"),
        (lambda x: torch.exp(x + 12), "overflow_up"),
        (lambda x: (x + 300) ** 2, "overflow_up"),
        (lambda x: torch.cumsum(x + 60000, 0), "overflow_up"),
        (lambda x: (x + 60000).sum(), "overflow_up"),
    ],
)
def test_poles_are_told_from_overflows(device, call, kind):
    assert only(watched(lambda: call(torch.zeros(3, device=device, dtype=HALF)))).overflow_type == kind


def test_what_was_written_in_place(device):
    def run():
        x = torch.full((4, 4), 200.0, device=device, dtype=HALF)
        x[1].mul_(400.0)
        return x.sum()

    finding = only(watched(run))
    assert finding.op == "aten::mul_"
    assert [link.op for link in finding.chain] == ["aten::sum"]


def test_what_is_overwritten_was_given_to_nobody(device):
    def run():
        x = torch.full((4, 4), 300.0, device=device, dtype=HALF)
        y = x * x
        y.zero_()
        x[1] = 0.0
        x[2] = 1e-9
        return y + x

    assert only(watched(run)).victims == 0


def test_an_out_argument(device):
    def run():
        kept = torch.empty(4, device=device, dtype=HALF)
        torch.mul(torch.full((4,), 300.0, device=device, dtype=HALF), 300.0, out=kept)
        return kept + 1

    finding = only(watched(run))
    assert (finding.op, finding.victims) == ("aten::mul", 1)


def test_complex_numbers(device):
    finding = only(watched(lambda: torch.full((3,), 1e38 + 1e38j, device=device) * 10))
    assert finding.overflow_type == "overflow_up"


def test_a_part_of_what_is_infinite_is_judged_by_itself(device):
    """The other rows are right, and whoever works on them is no victim."""

    def run():
        x = torch.ones(3, 4, device=device, dtype=HALF)
        x[0] = 60000.0
        y = x * 2
        first, second = y[0], y[1]
        return first + 1, second + 1, second * 40000.0

    watch = watched(run)
    assert [finding.victims for finding in watch.findings] == [1, 0]


# --- backward ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_a_gradient_that_leaves_the_range(device):
    torch.manual_seed(0)
    model = Net().to(device, HALF)
    x = torch.randn(4, 8, device=device, dtype=HALF)
    finding = watched(lambda: (model(x).float().sum() * 2.0**18).backward(), model).findings[0]
    assert finding.to_dict()["pass"] == "backward"
    assert "loss scale" in finding.issue_hint
    assert {link.place.module for link in finding.chain} >= {"first", "second"}
    assert all(link.to_dict()["pass"] == "backward" for link in finding.chain)


def test_a_forward_overflow_is_followed_into_the_backward_pass(device):
    model = Net().to(device, HALF)
    nn.init.constant_(model.second.weight, 60000.0)
    nn.init.constant_(model.first.weight, 1.0)
    watch = watched(lambda: model(torch.ones(4, 8, device=device, dtype=HALF)).exp().sum().backward(), model)
    finding = watch.findings[0]
    assert (finding.op_name, finding.to_dict()["pass"]) == ("second.MatMul", "forward")
    passes = [link.to_dict()["pass"] for link in finding.chain]
    assert passes[0] == "forward"
    assert passes[-1] == "backward"
    assert any(link.place.parameter for link in finding.chain) or any(
        "first" in str(link.place) for link in finding.chain
    )


def scaled_steps(device, scale, steps):
    torch.manual_seed(0)
    model = Net().to(device)
    best = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=scale)
    x = torch.randn(4, 8, device=device)
    for _ in range(steps):
        best.zero_grad()
        with torch.autocast(device, dtype=HALF):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(best)
        scaler.update()
    return scaler.get_scale()


def test_a_loss_scaler_takes_care_of_what_it_skips(device):
    watch = watched(lambda: scaled_steps(device, 2.0**24, 1))
    assert watch.findings
    assert all(finding.handled for finding in watch.findings)
    assert not watch.serious
    assert "loss scaler" in str(watch)
    assert not watched(lambda: scaled_steps(device, 2.0**8, 2)).findings


def test_a_scale_that_is_found_in_the_end(device):
    watch = watched(lambda: scaled_steps(device, 2.0**24, 30))
    assert 1 < max(finding.count for finding in watch.findings) < 30
    assert not watch.serious


def test_recomputed_operators_belong_to_the_forward_pass(device):
    model = Net().to(device, HALF)
    nn.init.constant_(model.second.weight, 60000.0)
    nn.init.constant_(model.first.weight, 1.0)
    x = torch.ones(4, 8, device=device, dtype=HALF, requires_grad=True)
    watch = watched(lambda: checkpoint(model, x, use_reentrant=True).sum().backward(), model)
    passes = {finding.to_dict()["pass"] for finding in watch.findings if finding.op_type == "MatMul"}
    assert passes == {"forward"}


# --- underflow ---------------------------------------------------------------------------------------------------


def test_what_becomes_zero_altogether(device):
    finding = only(watched(lambda: torch.full((64,), 1e-9, device=device).half()))
    assert (finding.overflow_type, finding.result, finding.op_type) == ("overflow_down", "0", "Cast")
    assert finding.serious


def test_an_epsilon_that_float16_cannot_hold(device):
    finding = only(watched(lambda: torch.tensor(1e-8, device=device).half() + 1))
    assert (finding.overflow_type, finding.result) == ("overflow_down", "0")


def test_the_share_that_is_lost(device):
    x = torch.ones(1000, device=device)
    x[:700] = 1e-6
    finding = only(watched(lambda: x.half()))
    assert finding.lost == pytest.approx(0.7)
    assert not finding.serious
    x[300:] = 1.0
    assert not watched(lambda: x.half()).findings
    x[:900] = 0.0  # zeros aren't lost
    assert not watched(lambda: x.half()).findings


def test_small_gradients(device):
    torch.manual_seed(0)
    model = Net().to(device, HALF)
    x = torch.randn(64, 8, device=device, dtype=HALF)
    watch = watched(lambda: (model(x).float().mean() * 1e-5).backward(), model)
    assert {finding.overflow_type for finding in watch.findings} == {"overflow_down"}
    assert any(finding.op_type == "MatMul" and "loss up" in finding.issue_hint for finding in watch.findings)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.softmax(x * 100, -1),
        lambda x: torch.relu(-x.abs()),
        lambda x: x - x,
        lambda x: x * 0,
        lambda x: F.dropout(x, 1.0),
        lambda x: torch.exp(-x.abs() * 1000),
        lambda x: torch.zeros_like(x).half(),
    ],
)
def test_zeros_that_are_right(device, call):
    torch.manual_seed(0)
    assert not watched(lambda: call(torch.randn(32, 32, device=device, dtype=HALF))).findings


# --- hidden ------------------------------------------------------------------------------------------------------


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def row_of(device, value=8000.0):
    x = torch.ones(4, 64, device=device, dtype=HALF)
    x[1] = value
    return x


def test_a_row_that_the_norm_made_zero(device):
    x, weight = row_of(device), torch.ones(64, device=device, dtype=HALF)
    results = []
    finding = only(watched(lambda: results.append(rms_norm(x, weight))))
    assert results[0].isfinite().all()
    assert not results[0][1].any()
    assert (finding.overflow_type, finding.op_type, finding.input_max) == ("overflow_hidden", "Pow", 8000.0)
    assert finding.ends == "aten::rsqrt"
    assert "float32" in finding.issue_hint
    assert not watched(lambda: rms_norm(row_of(device, 100.0), weight)).findings


def test_a_norm_in_float32_is_right(device):
    x, weight = row_of(device), torch.ones(64, device=device, dtype=HALF)
    assert not watched(lambda: F.rms_norm(x, (64,), weight)).findings
    assert not watched(lambda: F.layer_norm(x, (64,), weight)).findings  # a constant row is zero, and rightly


def in_half(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture(scope="module")
def fused():
    """A custom operator: one kernel, of whose inside nobody sees anything."""
    library = torch.library.Library("watched_norms", "FRAGMENT")
    library.define("rms_norm(Tensor x, Tensor weight) -> Tensor")
    library.impl("rms_norm", in_half, "CPU")
    library.impl("rms_norm", in_half, "PrivateUse1")
    yield torch.ops.watched_norms.rms_norm
    library._destroy()


def test_a_fused_norm_that_computes_in_float16(device, fused):
    weight = torch.ones(64, device=device, dtype=HALF)
    finding = only(watched(lambda: fused(row_of(device), weight)))
    assert (finding.op_type, finding.overflow_type, finding.input_max) == ("RmsNorm", "overflow_hidden", 8000.0)
    assert "float32" in finding.issue_hint
    assert not watched(lambda: fused(row_of(device, 100.0), weight)).findings
    assert not watched(lambda: fused(row_of(device), torch.zeros_like(weight))).findings
    assert not watched(lambda: fused(row_of(device, 0.0), weight)).findings


def half_layer_norm(x, shape, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    root = torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + eps)
    return (x - mean) * root * weight + bias, mean, root


def test_a_layer_norm_that_computes_in_float16():
    x, weight = row_of("npu"), torch.ones(64, device="npu", dtype=HALF)
    norm = lambda: F.layer_norm(x, (64,), weight, torch.zeros_like(weight))  # noqa: E731
    with emulator.override("aten::native_layer_norm", half_layer_norm):
        assert not watched(norm).findings  # a constant row is zero, and rightly
        x[1, ::2] = -8000.0
        finding = only(watched(norm))
    assert (finding.op_type, finding.overflow_type) == ("LayerNorm", "overflow_hidden")
    assert not watched(norm).findings


# --- masks and constants -----------------------------------------------------------------------------------------


def attention(device, mask, scale=0.25):
    q = torch.randn(2, 8, 16, device=device, dtype=HALF)
    return F.softmax(q @ q.transpose(-1, -2) * scale + mask, -1) @ q


def causal(device):
    return torch.ones(8, 8, device=device).triu(1).bool()


MASKS = {
    "filled": lambda d: torch.zeros(8, 8, device=d, dtype=HALF).masked_fill(causal(d), -INF),
    "filled in place": lambda d: torch.zeros(8, 8, device=d, dtype=HALF).masked_fill_(causal(d), -INF),
    "full": lambda d: torch.full((8, 8), -INF, device=d, dtype=HALF).triu(1),
    "where": lambda d: torch.where(causal(d), torch.tensor(-INF, device=d), torch.zeros((), device=d)).half(),
    "where with a number": lambda d: torch.where(causal(d), -INF, 0.0).half(),
    "logarithm": lambda d: torch.ones(8, 8, device=d, dtype=HALF).tril().log(),
    "smallest number": lambda d: torch.full((8, 8), torch.finfo(HALF).min, device=d, dtype=HALF).triu(1) * 1.0,
    "two of them": lambda d: 2 * torch.full((8, 8), torch.finfo(HALF).min, device=d, dtype=HALF).triu(1),
    "cast": lambda d: torch.full((8, 8), -1e9, device=d).triu(1).half(),
    "from outside": lambda d: OUTSIDE[d],
}
OUTSIDE: dict[str, torch.Tensor] = {}


@pytest.mark.parametrize("mask", list(MASKS))
def test_a_mask_is_no_overflow(device, mask):
    torch.manual_seed(0)
    OUTSIDE[device] = MASKS["full"](device)
    watch = watched(lambda: attention(device, MASKS[mask](device)))
    assert not watch.findings
    assert not watch.notes


@pytest.mark.parametrize("mask", list(MASKS))
def test_a_mask_hides_no_overflow(device, mask):
    torch.manual_seed(0)
    OUTSIDE[device] = MASKS["full"](device)
    watch = watched(lambda: attention(device, MASKS[mask](device), 60000.0))
    assert [finding.op_type for finding in watch.findings if finding.result != "NaN"] == ["Mul"]


def test_attention_of_torch(device):
    torch.manual_seed(0)
    q = torch.randn(1, 2, 8, 16, device=device, dtype=HALF, requires_grad=True)
    assert not watched(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()).findings
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device)
    padding = torch.tensor([[False] * 6 + [True] * 2] * 2, device=device)
    x = torch.randn(2, 8, 16, device=device)
    assert not watched(lambda: layer(x, src_key_padding_mask=padding).sum().backward(), layer).findings


def test_a_row_that_is_masked_throughout_is_the_softmaxes(device):
    torch.manual_seed(0)
    mask = torch.zeros(8, 8, device=device, dtype=HALF)
    mask[3] = -INF
    finding = watched(lambda: attention(device, mask)).findings[0]
    assert (finding.op_type, finding.overflow_type) == ("Softmax", "nan")
    assert "masked throughout" in finding.issue_hint


def test_constants_and_padding(device):
    def run():
        best = torch.full((3,), -INF, device=device)
        best = torch.maximum(best, torch.zeros(3, device=device))
        low = torch.tensor([INF, 1.0], device=device)
        return best, F.pad(best, (1, 1), value=INF), low.clamp(max=5.0), torch.full((2,), math.nan, device=device) + 1

    assert not watched(run).findings


def test_what_was_infinite_from_the_start_is_told_and_no_finding(device):
    x = torch.tensor([1.0, INF], device=device)
    watch = watched(lambda: x * 2)
    assert not watch.findings
    assert "given NaN or Inf that no watched operator made" in watch.notes[0]


def test_memory_nobody_wrote_yet(device):
    def run():
        x = torch.empty(64, device=device).fill_(1.0)
        return x + 1, torch.empty_like(x).copy_(x)

    assert not watched(run).findings


# --- saturation --------------------------------------------------------------------------------------------------


def test_a_device_that_saturates():
    with saturation():
        x = torch.full((4,), 300.0, device="npu", dtype=HALF)
        results = []
        finding = only(watched(lambda: results.append(x * x + 1)))
        assert float(results[0][0]) == 65504.0
        assert (finding.overflow_type, finding.result, finding.op) == ("overflow_up", "saturated", "aten::mul")
        assert [link.result for link in finding.chain] == ["saturated"]
        watch = watched(lambda: attention("npu", MASKS["smallest number"]("npu")))
        assert not watch.findings
    assert not watched(lambda: torch.full((4,), 65504.0, device="npu", dtype=HALF) * 1.0).findings


def test_the_flag_of_a_device_that_saturates_is_a_hint():
    """NaN becomes 0 there: no result shows it, and only the flag tells. Loss scaling needs it, so it is left raised."""
    with saturation():
        torch.npu.clear_npu_overflow_flag()
        x = torch.full((4,), -1.0, device="npu", dtype=HALF)
        assert not watched(lambda: x + 1).notes
        watch = watched(lambda: torch.sqrt(x))
        assert not watch.findings
        assert "overflow flag was raised" in watch.notes[0]
        assert torch.npu.get_npu_overflow_flag()
        assert not watched(lambda: x + 1).notes  # raised before: it says nothing about this block
        torch.npu.clear_npu_overflow_flag()
        assert not watched(lambda: torch.full_like(x, 300.0).square()).notes  # a finding says more


def test_the_flag_is_not_asked_for_where_it_raises(monkeypatch):
    def never():
        raise AssertionError("asked")

    monkeypatch.setattr(torch.npu, "get_npu_overflow_flag", never)
    watched(lambda: torch.ones(3, device="npu") + 1)


@contextlib.contextmanager
def saturation():
    machine.modes.saturation = True
    try:
        yield
    finally:
        machine.modes.saturation = machine.overflow = False


# --- how it watches ----------------------------------------------------------------------------------------------


def test_the_host_waits_once_in_many_operators():
    def run():
        x = torch.ones(8, device="npu")
        for _ in range(BATCH * 2):
            x = x * 1.0

    watch = watched(run)
    assert watch.operators >= BATCH * 2
    assert watch.waits <= 4


def test_order_survives_the_batches(device):
    def run():
        x = torch.full((4,), 300.0, device=device, dtype=HALF)
        y = x * x
        for _ in range(BATCH + 100):
            x = x * 1.0
        return y + x

    finding = only(watched(run))
    assert [link.op for link in finding.chain] == ["aten::add"]


def test_asking_within_the_block(device):
    with pa.watch_overflow() as watch:
        x = torch.full((4,), 300.0, device=device, dtype=HALF)
        assert not watch.findings
        y = x * x
        assert [finding.victims for finding in watch.findings] == [0]
        y = y + 1
    assert only(watch).victims == 1


def test_a_device_whose_extremes_swallow_nan(monkeypatch):
    """Where aminmax doesn't carry NaN, isfinite is asked."""
    real = overflow_ranges._AMINMAX

    def swallowing(tensor, **kwargs):
        return real(tensor.nan_to_num(nan=0.0, posinf=INF, neginf=-INF), **kwargs)

    monkeypatch.setattr(overflow_ranges, "_AMINMAX", swallowing)
    monkeypatch.setattr(overflow_ranges, "_carries_nan", lambda device, dtype: False)
    finding = only(watched(lambda: torch.sqrt(torch.full((3,), -1.0, device="npu")) * 2))
    assert (finding.overflow_type, finding.victims) == ("nan", 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_ranges(device, dtype):
    ranges = Ranges()
    whole = torch.tensor([[-3.0, 2.0], [0.5, 1.0]], device=device).to(dtype)
    found = [ranges.take(whole), ranges.take(whole.t()), ranges.take(whole[1]), ranges.take(whole[:0])]
    broken = whole.clone()
    broken[1, 1] = math.nan
    found.append(ranges.take(broken))
    ranges.read()
    lows = [-3.0, -3.0, 0.0 if dtype.is_complex else 0.5, 0.0]
    assert [one.low for one in found[:4]] == lows
    assert [one.high for one in found[:4]] == [2.0, 2.0, 1.0, 0.0]
    assert found[4].nan
    assert found[4].beyond


def test_what_cannot_be_measured_is_told(device):
    def run():
        x = torch.ones(4, 4)
        return x.to_sparse() * 2, x.to(torch.float8_e5m2)

    watch = watched(run)
    assert any("sparse" in note for note in watch.notes)
    assert any("float8_e5m2" in note for note in watch.notes)


def test_tensors_of_other_kinds(device):
    """Those that wrap others are looked into; shapes without values have none."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.full((4,), 300.0, device=device, dtype=HALF)
    finding = only(watched(lambda: TwoTensor(x, torch.ones_like(x)).square()))
    assert finding.op_type == "Pow"
    assert not watched(lambda: torch.full((4,), 300.0, device="meta", dtype=HALF).square()).findings
    with pa.watch_overflow() as watch, FakeTensorMode():
        torch.full((4,), 300.0, dtype=HALF).square()
    assert not watch.findings


def test_function_transforms(device):
    x = torch.tensor([[1.0, 300.0], [2.0, 3.0]], device=device, dtype=HALF)
    assert only(watched(lambda: torch.vmap(lambda row: (row * row).sum())(x))).op_type == "Mul"
    slope = torch.func.grad(lambda t: (t.float() ** 3 * 1e6).sum())
    assert watched(lambda: slope(x)).findings[0].overflow_type == "overflow_up"


def test_nothing_was_watched():
    with pa.watch_overflow() as watch:
        pass
    assert watch.notes == ("no operator was watched: nothing is known about overflows",)
    assert "no overflow among 0 operators" in str(watch)


def test_gradients_and_random_numbers_are_the_same(device):
    def once(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)
        x = torch.randn(16, 8, device=device)
        if watch:
            with pa.watch_overflow(model):
                model(x).square().mean().backward()
        else:
            model(x).square().mean().backward()
        return [parameter.grad.cpu() for parameter in model.parameters()]

    for plain, watched_ in zip(once(False), once(True), strict=True):
        assert torch.equal(plain, watched_)


def test_an_error_in_the_block_stays_the_error(device):
    def failing():
        torch.full((4,), 300.0, device=device, dtype=HALF).square()
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"), pa.watch_overflow() as watch:
        failing()
    assert only(watch).op_type == "Pow"


def test_a_device_may_be_asked_for():
    def run():
        torch.full((4,), 300.0, dtype=HALF).square()
        torch.full((4,), 91234.5).half().npu().sum()

    assert [finding.op_type for finding in watched(run, device="npu").findings] == ["ReduceSum"]
    assert len(watched(run).findings) == 2


def test_compiled_code_is_never_passed_over_in_silence():
    net = torch.compile(lambda x: torch.sin(x) * 2, backend="aot_eager")
    net(torch.ones(4))
    watch = watched(lambda: net(torch.ones(4)))
    assert any("compiled" in note for note in watch.notes)
    assert not any("compiled" in note for note in watched(lambda: torch.sin(torch.ones(4))).notes)


def test_json_and_text(device):
    watch = watched(lambda: torch.full((4,), 300.0, device=device, dtype=HALF).square() * 2)
    said = json.loads(json.dumps(watch.to_dict()))
    assert said["findings"][0]["chain"][0]["op_type"] == "Mul"
    text = str(watch)
    assert text.startswith("1 overflow among ")
    assert "it went on through 1 operator:" in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [("aten::mm", "MatMul"), ("aten::_to_copy", "Cast"), ("npu::npu_rms_norm", "RmsNorm"), ("aten::rsqrt", "Rsqrt"),
     ("aten::mul_", "Mul"), ("aten::copy_", "Cast"), ("aten::tanh_backward", "TanhBackward")],
)  # fmt: skip
def test_types(name, kind):
    assert op_type(name) == kind


def test_a_model_that_is_none_is_refused():
    with pytest.raises(TypeError, match="not by a str"):
        pa.watch_overflow("model")
