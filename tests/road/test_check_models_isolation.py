"""Layers with equal inputs: how they are given to a layer, and what is concluded from what it makes of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.observe import curve
from pytest_ascend.observe.isolation import Feeder, Recorder
from pytest_ascend.observe.modules import Taps

BF16 = torch.bfloat16
LAYERS = {"checkpoints": ["layers.?"], "backward": False}


def here(x):
    return x.device.type == "npu"


class Scaled(nn.Module):
    """A linear layer, a little too large on the device."""

    def __init__(self, factor=1.0, width=32):
        super().__init__()
        self.linear, self.factor = nn.Linear(width, width), factor

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return y * self.factor if here(x) else y


class Stack(nn.Module):
    """Residual layers; ``between`` is what happens on the way to the last one."""

    def __init__(self, wrong=None, between=1.0, depth=4):
        super().__init__()
        self.layers = nn.ModuleList([Scaled(1.01 if i == wrong else 1.0) for i in range(depth)])
        self.between = between

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            if i == len(self.layers) - 1 and here(x):
                x = x * self.between
            x = x + layer(x)
        return x


@pytest.fixture
def x():
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(BF16)


@pytest.fixture(autouse=True)
def seeded(_emulated):
    """Autograd knows the devices there were at the first backward pass, so the emulated one comes first."""
    torch.manual_seed(0)


def model_outputs(model, x, names):
    with Taps(model, names) as taps:
        model(x.clone())
    return taps.captured


def fed(model, recorded_with, called_with, names):
    """What the model does with ``called_with`` when its layers are given what they got for ``recorded_with``."""
    recorder = Recorder()
    with Taps(model, names, recorder):
        model(recorded_with.clone())
    returned = model_outputs(model, recorded_with, names)
    feeder = Feeder(recorder.calls, returned)
    with Taps(model, names, feeder) as taps:
        output = model(called_with.clone())
    return output, taps.captured, feeder.given


# --- giving ---------------------------------------------------------------------------------------------------------


def test_a_layer_gets_the_recorded_values_and_its_caller_keeps_its_own():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    ones, twos = torch.ones(2, 4), torch.full((2, 4), 2.0)
    output, _, given = fed(model, ones, twos, ["0", "1"])
    assert torch.equal(output, model(ones))
    assert torch.equal(given["0"]["[0][0]"], twos)
    assert torch.equal(given["1"]["[0][0]"], model[0](ones)), "the layer before had equal inputs already"


def test_values_change_device_and_dtype_with_the_run():
    recorder = Recorder()
    layer = nn.Linear(4, 4).to(BF16)
    model = nn.Sequential(layer)
    with Taps(model, ["0"], recorder):
        model(torch.ones(2, 4, dtype=BF16))
    wide = nn.Sequential(nn.Linear(4, 4)).double()
    with Taps(wide, ["0"], Feeder(recorder.calls, {})):
        assert wide(torch.zeros(2, 4, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, 1:3],
        lambda t: t[::2],
        lambda t: t[:1].expand(5, -1),
        lambda t: t.as_strided((3, 2), (1, 1)),
        lambda t: t[0],
        lambda t: t[0, 0],
    ],
)
def test_values_come_in_the_memory_layout_of_the_run(view):
    class Reader(nn.Module):
        def forward(self, x):
            self.seen = x.clone(), x.stride(), x.storage_offset()
            return x * 1

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.reader = Reader()

        def forward(self, x):
            return self.reader(view(x))

    model, a, b = Model(), torch.arange(24.0).reshape(4, 6), -torch.arange(24.0).reshape(4, 6)
    fed(model, a, b, ["reader"])
    values, strides, offset = model.reader.seen
    assert torch.equal(values, view(a))
    if view(a).stride() != (1, 1):  # elements that lie upon each other can't be written one by one
        assert (strides, offset) == (view(b).stride(), view(b).storage_offset())


def test_what_a_layer_changes_in_place_its_caller_sees():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            self.act(x)  # the result is in x
            return x

    a, b = torch.tensor([-1.0, 2.0]), torch.tensor([-3.0, 4.0])
    output, _, given = fed(Model(), a, b, ["act"])
    assert output.tolist() == [0, 2]
    assert given["act"]["[0][0]"].tolist() == [-3, 4], "the input as it was before the call"


def test_each_call_of_a_layer_has_inputs_of_its_own():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(self.layer(x))

    model, a = Twice(), torch.ones(1, 3)
    output, _, given = fed(model, a, 2 * a, ["layer"])
    assert list(given) == ["layer", "layer#2"]
    assert torch.equal(output, model(a))


def test_containers_caches_numbers_and_parameters():
    class Cache:
        def __init__(self):
            self.keys = torch.zeros(2)

    class Layer(nn.Module):
        def forward(self, pair, *, table, cache, weight, flag, empty):
            self.seen = pair, table, cache, weight, flag, empty
            return pair[0] + table["a"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.weight, self.cache, self.empty = Layer(), nn.Parameter(torch.ones(2)), Cache(), []

        def forward(self, x):
            return self.layer((x, None), table={"a": x * 2, "b": 1}, cache=self.cache, weight=self.weight,
                              flag=True, empty=self.empty)  # fmt: skip

    model, a = Model(), torch.ones(2)
    output, _, given = fed(model, a, 5 * a, ["layer"])
    pair, table, cache, weight, flag, empty = model.layer.seen
    assert output.tolist() == [3, 3]
    assert (pair[1], table["b"], flag) == (None, 1, True)
    assert cache is model.cache
    assert weight is model.weight
    assert empty is model.empty
    assert set(given["layer"]) == {"[0][0][0]", "[1]['table']['a']"}


def test_what_follows_a_layer_gets_the_recorded_output():
    """In tuples and in the dict-like outputs of transformers too."""
    from transformers.modeling_outputs import BaseModelOutput

    class Layer(nn.Module):
        def forward(self, x, kind):
            return kind(x * 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = Layer(), Layer(), Layer()

        def forward(self, x):
            named = self.a(x, lambda y: BaseModelOutput(last_hidden_state=y))
            pair = self.b(x, lambda y: (y, None))
            plain = self.c(x, lambda y: y)
            return named.last_hidden_state + named["last_hidden_state"] + pair[0] + plain

    a = torch.ones(2)
    output, _, _ = fed(Model(), a, a, ["a", "b", "c"])
    assert output.tolist() == [8, 8]
    recorder = Recorder()
    model = Model()
    with Taps(model, ["a", "b", "c"], recorder):
        model(a)
    other = {"a": {"last_hidden_state": 10 * a}, "b": (100 * a, None), "c": 1000 * a}
    with Taps(model, ["a", "b", "c"], Feeder(recorder.calls, other)) as taps:
        assert model(a).tolist() == [1120, 1120]
    assert taps.captured["c"].tolist() == [2, 2], "what the layer itself returned is what is compared"


def test_one_tensor_given_twice_stays_one():
    class Layer(nn.Module):
        def forward(self, q, k):
            return q * (1 if q is k else 0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, x):
            return self.layer(x, k=x)

    output, _, _ = fed(Model(), torch.ones(2), torch.zeros(2), ["layer"])
    assert output.tolist() == [1, 1]


def test_gradients_run_on_to_the_tensor_that_was_replaced():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    recorder = Recorder()
    with Taps(model, ["0", "1"], recorder):
        model(torch.ones(2, 3))
    with Taps(model, ["0", "1"], Feeder(recorder.calls, {})):
        model(torch.zeros(2, 3)).sum().backward()
    assert torch.equal(model[0].weight.grad[0], model[1].weight[0, 0] * torch.full((3,), 2.0))


# --- concluding -----------------------------------------------------------------------------------------------------


def test_one_per_cent_in_bfloat16_is_named(check, x):
    result = check(Stack(wrong=2).to(BF16), x, options=LAYERS)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence == "layers.2"
    assert "with equal inputs" in result.reason
    assert {n: c.verdict for n, c in result.checkpoints.items()} == {
        **dict.fromkeys([f"layers.{i}" for i in range(4)], Verdict.PASS),
        "layers.2": Verdict.FAIL,
    }


def test_a_fault_between_two_layers_is_named_where_it_arrives(check, x):
    result = check(Stack(between=1.01).to(BF16), x, options=LAYERS)
    assert result.first_divergence == "layers.3"
    assert "the fault lies between 'layers.2' and 'layers.3'" in result.checkpoints["layers.3"].reason
    assert result.checkpoints["layers.2"].verdict is Verdict.PASS


def test_a_fault_behind_the_last_layer_is_the_output_s(check, x):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = Stack()

        def forward(self, x):
            y = self.stack(x)
            return y * 1.01 if here(x) else y

    result = check(Model().to(BF16), x, options={"checkpoints": ["stack.layers.*"], "backward": False})
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence is None
    assert "with equal inputs" in result.outputs[0].reason


def test_a_fault_in_a_part_is_not_its_siblings(check, x):
    class Block(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.a, self.b, self.c = Scaled(), Scaled(factor), Scaled()

        def forward(self, x):
            return x + self.c(self.b(self.a(x)))

    model = nn.Sequential(Block(1.0), Block(1.01), Block(1.0)).to(BF16)
    options = {"checkpoints": ["?", "?.?"], "backward": False}
    result = check(model, x, options=options)
    assert result.first_divergence == "1.b"
    assert [n for n, c in result.checkpoints.items() if c.verdict is Verdict.FAIL] == ["1.b"]


def test_the_second_call_of_a_layer(check, x):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Scaled()

        def forward(self, x):
            y = self.layer(x)
            self.layer.factor = 1.01
            z = self.layer(x + y)
            self.layer.factor = 1.0
            return z

    result = check(Twice().to(BF16), x, options={"checkpoints": ["layer"], "backward": False})
    assert result.first_divergence == "layer#2"
    assert result.checkpoints["layer"].verdict is Verdict.PASS


def test_layers_behind_a_fault_are_amplified_not_wrong(check, x):
    result = check(Stack(wrong=1), x.float(), options=LAYERS)
    assert result.first_divergence == "layers.1"
    assert result.checkpoints["layers.0"].verdict is Verdict.PASS
    assert result.checkpoints["layers.3"].verdict is Verdict.AMPLIFIED
    assert "'layers.1' isn't" in result.checkpoints["layers.3"].reason
    assert "error rms" in result.checkpoints["layers.1"].reason


class Steep(nn.Module):
    """The last bit of the first layer decides everything behind it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.last((self.first(x) * 1e4).sin())


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_model_that_carries_rounding_far_is_no_fault(check, x, dtype):
    """The CPU is lucky, its sums are exact; the device rounds the last bit another way, and layer by layer is right."""
    from pytest_ascend.targets import emulator

    def last_bit(bias, a, b, **scales):
        y = torch.addmm(bias, a, b, **scales)
        places = torch.arange(y.numel()).view(y.shape) % 14
        down, up = torch.nextafter(y, 0 * y), torch.nextafter(y, 2 * y)
        return torch.where(places == 0, down, torch.where(places == 7, up, y))

    model = Steep()
    with torch.no_grad():
        model.first.weight.copy_((model.first.weight * 16).round() / 16)
        model.first.bias.zero_()
    with emulator.override("aten::addmm", last_bit):
        result = check(model.to(dtype), x.to(dtype).round(), options={"backward": False})
    assert result.passed, str(result)
    assert result.first_divergence is None


@pytest.mark.parametrize(
    ("dtype", "isolate", "named"),
    [(BF16, "auto", True), (BF16, True, True), (BF16, False, False), (torch.float16, "auto", True)],
)
def test_when_layers_are_isolated(check, x, dtype, isolate, named):
    factor = 1.004 if dtype is BF16 else 1.001
    model = Stack(wrong=2)
    model.layers[2].factor = factor
    result = check(model.to(dtype), x.to(dtype), options={"isolate": isolate, **LAYERS})
    assert (result.first_divergence == "layers.2") is named


def test_it_costs_two_forward_runs_in_16_bits_and_none_in_float32(check, x):
    class Counted(Stack):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return super().forward(x)

    def calls(dtype, **options):
        Counted.calls = 0
        assert check(Counted().to(dtype), x.to(dtype), options={"backward": False, **options}).verdict is Verdict.PASS
        return Counted.calls

    plain = calls(torch.float32)
    assert calls(BF16, isolate=False) == plain
    assert calls(BF16) == plain + 2
    assert calls(torch.float32, isolate=True) == plain + 2


def test_autocast_counts_as_16_bits(check, x):
    with torch.autocast("cpu", dtype=BF16):
        result = check(Stack(wrong=1), x.float(), options=LAYERS)
    assert result.first_divergence == "layers.1"


def test_a_mode_is_told_from_a_fault_with_equal_inputs(check):
    """Tanh gelu is the chip's own; in float16 whole runs hide it."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(32, 32), nn.GELU()

        def forward(self, x):
            return self.act(self.a(x))

    x = 4 * torch.randn(64, 32).half()
    result = check(Model().half(), x, options={"backward": False})
    assert result.verdict is Verdict.MODE_DIFF, str(result)
    assert result.checkpoints["act"].verdict is Verdict.MODE_DIFF
    assert "tanh" in result.checkpoints["act"].reason
    assert "HF32" not in result.checkpoints["act"].reason


def test_a_fault_that_comes_and_goes_is_nondeterministic(check, x):
    class Moody(Scaled):
        calls = 0

        def forward(self, x):
            y = torch.tanh(self.linear(x))
            if not here(x):
                return y
            Moody.calls += 1
            return y * 1.01 if Moody.calls == 2 else y

    model = nn.Sequential(Scaled(), Moody(), Scaled()).to(BF16)
    result = check(model, x, options={"backward": False})
    assert result.verdict is Verdict.NONDETERMINISTIC, str(result)


def test_a_training_step_can_be_isolated(check, x):
    def step(model, x):
        loss = model(x).float().square().mean()
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in model.parameters()]

    result = check(step, Stack().to(BF16), x)
    assert result.verdict is Verdict.PASS, str(result)
    assert not any("could not be told apart" in note for note in result.notes)
    assert check(step, Stack(wrong=2).to(BF16), x, options={"checkpoints": ["layers.?"]}).first_divergence == "layers.2"


@pytest.mark.parametrize("training", [False, True])
def test_in_place_layers(check, training):
    parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.ReLU(inplace=True)]
    model = nn.Sequential(*parts).to(BF16).train(training)
    images = torch.randn(2, 3, 12, 12).to(BF16).to(memory_format=torch.channels_last)
    result = check(model, images)
    assert result.verdict is Verdict.PASS
    assert not any("could not be told apart" in note for note in result.notes)


def test_layers_inside_vmap_are_left_alone(check, x):
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(32, 32), nn.Linear(32, 4)

        def forward(self, x):
            return self.last(torch.vmap(self.layer)(x))

    result = check(Mapped().to(BF16), x, options={"backward": False})
    assert result.verdict is Verdict.PASS, str(result)
    assert list(result.checkpoints) == ["last"]


def test_random_layers_are_left_alone(check, x):
    model = nn.Sequential(Scaled(), nn.Dropout(0.5), Scaled()).to(BF16).train()
    assert check(model, x).passed


def test_the_option_is_checked():
    from pytest_ascend.options import CheckOptions

    with pytest.raises(ValueError, match="isolate='always' is not known"):
        CheckOptions(isolate="always")


# --- the curve ------------------------------------------------------------------------------------------------------


def points(*pairs):
    return [curve.Point(f"layer{i}", actual, benchmark) for i, (actual, benchmark) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("curve_of", "at"),
    [
        ([(2.3, 2.3), (2.9, 2.9), (2.8, 2.8), (9988, 2.7), (6874, 2.7)], 3),
        ([(2.3, 2.3), (2.9, 2.9), (2.8, 2.8)], None),
        ([(957, 2.3), (1239, 2.9), (1200, 2.8)], 0),
        ([(0.4, 0.4), (0.4, 0.4), (1.3, 0.4), (1.1, 0.4)], 2),
        ([(0.4, 0.4), (1.0, 0.4), (50.0, 0.4), (400.0, 0.4)], 2),  # a lucky one before, a larger one after
        ([(0.0, 0.0), (0.2, 0.0), (0.5, 0.0)], None),  # rounding once
        ([], None),
        ([(1e150, 0.4), (1e150, 0.4)], 0),
    ],
)
def test_where_the_curve_leaves_the_benchmark_s(curve_of, at):
    found = curve.step(points(*curve_of))
    assert (None if found is None else found.name) == (None if at is None else f"layer{at}")


def test_the_words_for_a_step():
    assert curve.words(points((2.8, 2.7), (9988, 2.7)), "layer1") == (
        "error rms 9988 units here, 2.8 before (the CPU's own: 2.7)"
    )
    assert curve.words(points((5, 2)), "layer0") == "error rms 5 units here (the CPU's own: 2)"
    assert curve.words([], "layer0") == ""


def test_gelu_and_softmax_of_a_plain_function_are_never_isolated(check, x):
    assert check(F.softmax, x, dim=-1).verdict is Verdict.PASS
