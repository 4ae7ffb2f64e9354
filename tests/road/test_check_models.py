"""Models: nothing of the caller's is touched, layers are compared, the first wrong one is named."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_ascend.judge.verdict import Kind, Verdict
from pytest_ascend.observe.modules import SAMPLE


def here(x):
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


class Layer(nn.Module):
    """A linear layer that is wrong on the device when told so."""

    def __init__(self, width, factor=1.0):
        super().__init__()
        self.linear, self.norm, self.factor = nn.Linear(width, width), nn.LayerNorm(width), factor

    def forward(self, x):
        y = self.norm(torch.tanh(self.linear(x)))
        return x + (y * self.factor if here(x) else y)


class Model(nn.Module):
    def __init__(self, depth=5, wrong=None, width=8):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList([Layer(width, 1.05 if i == wrong else 1.0) for i in range(depth)])
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 3)

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        return {"logits": self.head(self.norm(x.mean(1))), "hidden": (x, None)}


IDS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def state_of(model):
    """Everything about a model that a check could disturb."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "values": {k: v.detach().clone() for k, v in tensors.items()},
        "memory": {k: (id(v), v.data_ptr(), v.device, v.dtype, v._version) for k, v in tensors.items()},
        "grads": {k: (None if v.grad is None else v.grad.clone(), v.requires_grad) for k, v in tensors.items()},
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "training": [m.training for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
    }


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


@pytest.mark.parametrize("wrong", [None, 2])
@pytest.mark.parametrize(
    "options", [{}, {"repeats": 2, "layouts": ("as_given", "sliced"), "checkpoints": True}], ids=str
)
def test_the_model_and_its_inputs_are_left_alone(check, wrong, options):
    model = Model(wrong=wrong).train()
    model.embed.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.head.register_forward_hook(lambda *_: None)
    mask = torch.ones(3, 3, requires_grad=True)
    before, ids = state_of(model), IDS.clone()
    result = check(model, IDS, mask=mask, options=options)
    assert result.passed == (wrong is None)
    assert same(before, state_of(model))
    assert torch.equal(IDS, ids)
    assert mask.grad is None


def test_the_caller_s_random_numbers_modes_and_defaults_are_left_alone(check):
    numpy = pytest.importorskip("numpy")
    states = lambda: (torch.get_rng_state(), torch.npu.get_rng_state(), random.getstate(), numpy.random.get_state()[1])  # noqa: E731
    before = states()
    with torch.no_grad():
        check(F.dropout, torch.randn(20))
        assert not torch.is_grad_enabled()
    random.setstate(before[2])
    torch.set_rng_state(before[0])
    before = states()
    check(nn.Dropout(0.5), torch.ones(20))
    check(lambda x: x * random.random() * numpy.random.rand(), torch.ones(2))
    after = states()
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]
    assert (before[3] == after[3]).all()
    assert torch.get_default_dtype() is torch.float32
    assert torch.npu.current_device() == 0


def test_python_and_numpy_draw_the_same_in_every_run(check):
    import numpy

    result = check(lambda x: x * random.random() + float(numpy.random.rand()), torch.ones(4))
    assert result.verdict is Verdict.PASS


def test_layers_are_compared_and_the_first_wrong_one_is_named(check):
    result = check(Model(wrong=2), IDS)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence == "layers.2"
    assert len(result.checkpoints) <= SAMPLE
    names = list(result.checkpoints)
    assert names[0] == "embed"
    assert names.index("layers.1") < names.index("layers.2")
    assert result.checkpoints["layers.1"].status == "pass"
    assert result.checkpoints["layers.2"].status == "fail"
    assert result.checkpoints["layers.2"]["max_abs_error"] > 1e-3


def test_a_right_model_diverges_nowhere(check):
    result = check(Model(), IDS)
    assert result.verdict is Verdict.PASS
    assert result.first_divergence is None
    assert {c.status for c in result.checkpoints.values()} == {"pass"}
    assert {"output['logits']", "output['hidden'][0]", "grad(head.weight)"} <= set(by_path(result))


def test_named_layers_go_down_to_the_guilty_leaf(check):
    from pytest_ascend.targets import emulator

    def forgets_a_channel(x, shape, weight, bias, eps):
        y, *rest = torch.native_layer_norm(x, shape, weight, bias, eps)
        y[..., -1] = y[..., -2]
        return y, *rest

    with emulator.override("aten::native_layer_norm", forgets_a_channel):
        result = check(Model(), IDS, options={"checkpoints": True, "backward": False})
    assert result.first_divergence == "layers.0.norm"
    assert result.checkpoints["layers.0.linear"].status == "pass"


def test_only_the_layers_asked_for(check):
    options = {"checkpoints": ["layers.?", "head"]}
    assert list(check(Model(), IDS, options=options).checkpoints) == [f"layers.{i}" for i in range(5)] + ["head"]
    assert not check(Model(), IDS, options={"checkpoints": ()}).checkpoints
    with pytest.raises(ValueError, match=r"'layer\.1' matches no layer"):
        check(Model(), IDS, options={"checkpoints": "layer.1"})
    with pytest.raises(ValueError, match="needs a model"):
        check(torch.exp, torch.ones(2), options={"checkpoints": ["layer"]})


def test_a_layer_called_several_times_is_compared_each_time(check):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            x = self.layer(x)
            return self.layer(x * (1.01 if here(x) else 1.0))

    result = check(Twice(), torch.randn(2, 4))
    assert list(result.checkpoints) == ["layer", "layer#2"]
    assert result.first_divergence == "layer#2"


def test_a_layer_that_only_one_side_calls_is_a_matter_of_structure(check):
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            if here(x):
                self.b(x)
            return self.a(x)

    result = check(Branch(), torch.randn(1, 2))
    assert result.checkpoints["b"].kind is Kind.structure
    assert result.verdict is Verdict.FAIL


def test_a_function_that_is_given_a_model_shows_its_layers_too(check):
    model = Model(wrong=1)
    for fn, args in ((lambda ids: model(ids)["logits"], (IDS,)), (lambda m, ids: m(ids)["logits"], (model, IDS))):
        result = check(fn, *args)
        assert result.first_divergence == "layers.1"
        assert not any("grad(" in path for path in by_path(result))  # parameters of a helper aren't differentiated


def test_a_method_of_a_model(check):
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def encode(self, x):
            return self.layer(x)

    coder = Coder()
    result = check(coder.encode, torch.randn(2, 3))
    assert result.api == "Coder.encode"
    assert result.verdict is Verdict.PASS
    assert "grad(layer.weight)" in by_path(result)
    assert list(result.checkpoints) == ["layer"]
    assert coder.layer.weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_models(check, dtype):
    result = check(Model().eval().to(dtype), IDS)
    assert result.passed, result.reason
    assert result.dtype == str(dtype).removeprefix("torch.")
    assert by_path(result)["output['logits']"].dtype == result.dtype


def test_recurrent_convolutional_and_attention_models(check):
    lstm = check(nn.LSTM(4, 6, 2, batch_first=True), torch.randn(2, 3, 4))
    assert lstm.verdict is Verdict.PASS
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    assert check(encoder, torch.randn(2, 3, 8)).passed
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    image = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    assert check(convolution, image).passed


def test_transformers_outputs_and_caches(check):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(17, (2, 5))
    result = check(model, input_ids=ids, labels=ids, use_cache=True)
    assert result.passed, result.reason
    paths = set(by_path(result))
    assert {"output.loss", "output.logits", "grad(model.embed_tokens.weight)"} <= paths
    assert any("past_key_values" in path for path in paths)


def test_gradient_checkpointing_of_either_kind(check):
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inner, self.reentrant = nn.Linear(3, 3), reentrant

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=self.reentrant)

    for reentrant in (True, False):
        result = check(Recomputed(reentrant), torch.randn(2, 3, requires_grad=True))
        assert result.passed, result.reason
        assert "grad(inner.weight)" in by_path(result)


def test_a_model_that_makes_its_own_tensors(check):
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            return self.cell(x, torch.zeros(len(x), 4, device=x.device))

    result = check(Stateful(), torch.randn(2, 3))
    assert result.verdict is Verdict.PASS
    assert not result.notes  # the golden made its state in float64


# ---------------------------------------------------------------------------------------------------- devices, modes


def test_what_already_lies_on_the_device_is_compared_from_there(check):
    model = nn.Linear(3, 2).to("npu")
    x = torch.randn(4, 3).to("npu")
    result = check(model, x)
    assert result.verdict is Verdict.PASS
    assert model.weight.device.type == "npu"
    assert check(model, x.cpu()).verdict is Verdict.PASS


def test_a_cpu_scalar_beside_npu_arguments_stays_on_the_cpu(check):
    seen = []

    def fn(x, c):
        seen.append((x.device.type, c.device.type))
        return x * c

    c = torch.tensor([9.0, 2.0, 7.0])[2]  # a 0-d view with an offset
    assert check(fn, torch.full((3,), 4.0).to("npu"), c).verdict is Verdict.PASS
    assert ("npu", "cpu") in seen
    assert set(seen) == {("npu", "cpu"), ("cpu", "cpu")}


def test_a_device_keyword_follows_the_run(check):
    seen = []

    def fn(x, device):
        seen.append(str(device))
        return x + torch.ones(2, device=device)

    assert check(fn, torch.ones(2), device="npu").verdict is Verdict.PASS
    assert set(seen) == {"cpu", "npu:0"}


def test_the_caller_s_autocast_goes_along(check):
    model, x = nn.Linear(16, 4), torch.randn(3, 16)
    for kind, dtype in (("npu", torch.float16), ("cpu", torch.bfloat16)):
        with torch.autocast(kind, dtype=dtype):
            result = check(model, x)
        assert result.passed, result.reason
        assert result.outputs[0].dtype == str(dtype).removeprefix("torch.")
        assert result.environment["autocast"] == str(dtype).removeprefix("torch.")
    assert "autocast" not in check(model, x).environment


def test_inference_mode(check):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with torch.inference_mode():
        result = check(model, torch.randn(2, 3))
    assert result.verdict is Verdict.PASS
    assert set(by_path(result)) == {"output"}


def test_a_default_device_is_for_the_target_only(check):
    def fn(x):
        return x + torch.arange(3)

    x = torch.randn(3)
    torch.set_default_device("npu")
    try:
        assert check(fn, x).verdict is Verdict.PASS
    finally:
        torch.set_default_device(None)


def test_one_seed_gives_one_result(check):
    def fn(x):
        return x + torch.rand(3, device="cpu").to(x.device)

    x = torch.zeros(3)
    assert check(fn, x).verdict is Verdict.PASS  # drawn on the CPU: the same everywhere
    first, second = (check(fn, x, options={"seed": seed}) for seed in (1, 2))
    assert first.environment["seed"] == 1
    assert first.outputs[0].verdict is second.outputs[0].verdict is Verdict.PASS
    assert check(fn, x).environment["seed"] == check(fn, x).environment["seed"]


def test_nothing_stays_on_the_device(check):
    import gc

    from pytest_ascend.targets import emulator

    gc.collect()
    before = emulator.live_allocations()
    check(Model(), IDS)
    gc.collect()
    assert emulator.live_allocations() == before


# ---------------------------------------------------------------------------------------------------- odd modules


def test_reparametrised_weights(check):
    x = torch.randn(3, 4)
    modern = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    result = check(modern, x)
    assert result.verdict is Verdict.PASS
    assert any("original0" in path for path in by_path(result))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    changed = check(spectral, x)  # one power iteration per call, in buffers
    assert changed.passed, changed.reason
    assert any(path.startswith("mutated(module.parametrizations") for path in by_path(changed))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_stale_weight_is_no_obstacle(check):
    old = nn.utils.weight_norm(nn.Linear(4, 4))  # keeps the last weight as a plain, non-leaf attribute
    old(torch.ones(1, 4))
    assert check(old, torch.randn(3, 4)).verdict is Verdict.PASS


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:The .grad attribute")
def test_a_scripted_module(check):
    result = check(torch.jit.script(nn.Linear(3, 2)), torch.randn(4, 3))
    assert result.verdict is Verdict.PASS
    assert by_path(result)["output"].shape == (4, 2)


def test_sparse_gradients(check):
    result = check(nn.Embedding(10, 4, sparse=True), torch.tensor([1, 2, 2]), options={"target": "cpu"})
    assert result.verdict is Verdict.PASS
    assert by_path(result)["grad(weight)"].shape == (10, 4)


def test_a_generator_is_read_out(check):
    def parts(x):
        for factor in (1, 2):
            yield x * factor

    assert set(by_path(check(parts, torch.randn(3)))) == {"output[0]", "output[1]"}
    with pytest.raises(ValueError, match=r"args\[0\] is a generator"):
        check(sum, (torch.ones(1) for _ in range(2)))


def test_casts_inside_a_model_leave_the_golden_in_float64(check):
    dtypes = []

    class Norm(nn.Module):
        def forward(self, x):
            y = torch.softmax(x, -1, dtype=torch.float32)
            dtypes.append((x.dtype, x.float().dtype, y.dtype, x.to(torch.float8_e4m3fn).dtype))
            return y.to(x.dtype)

    assert check(Norm(), torch.randn(4, 8).half()).verdict is Verdict.PASS
    f8 = torch.float8_e4m3fn
    assert (torch.float64, torch.float64, torch.float64, f8) in dtypes
    assert (torch.float16, torch.float32, torch.float32, f8) in dtypes
