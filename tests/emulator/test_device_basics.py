"""The device as torch's users know a device: making, moving, viewing, saving, differentiating."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A convolution stem and a small transformer; at module level so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(16)
        self.project = nn.Linear(256, 64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True), 2)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.conv(x))).flatten(2)
        return self.head(self.encoder(self.project(y)).mean(1))


def make_net() -> Net:
    torch.manual_seed(0)
    return Net()


def train(device: str, optimizer=torch.optim.AdamW, steps: int = 3, autocast: torch.dtype | None = None) -> list[float]:
    model = make_net().to(device)
    torch.manual_seed(1)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([1, 2, 3, 4])
    step = optimizer(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        step.zero_grad()
        with torch.autocast(device, dtype=autocast or torch.float16, enabled=autocast is not None):
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses


def test_factory_functions_name_the_device():
    for make in (
        lambda: torch.randn(3, device="npu"),
        lambda: torch.zeros(2, 2, device="npu"),
        lambda: torch.arange(4, device="npu"),
        lambda: torch.full((2,), 3.0, device="npu"),
        lambda: torch.tensor([1, 2], device="npu"),
        lambda: torch.eye(3, device="npu"),
        lambda: torch.linspace(0, 1, 5, device="npu"),
        lambda: torch.empty_strided((2, 3), (1, 2), device="npu"),
        lambda: torch.randperm(5, device="npu"),
        lambda: torch.zeros_like(torch.ones(2, device="npu")),
    ):
        assert make().device == torch.device("npu:0")


def test_printing_shows_values_and_device():
    text = str(torch.tensor([1.5, 2.5], device="npu"))
    assert "1.5" in text
    assert "npu:0" in text


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
def test_round_trip_keeps_values_shape_and_strides(dtype):
    x = torch.arange(12).reshape(3, 4).t().to(dtype)
    y = x.to("npu")
    assert y.stride() == x.stride()
    assert y.dtype == dtype
    assert torch.equal(y.cpu(), x)


def test_moving_copies():
    x = torch.ones(3)
    y = x.to("npu")
    y.add_(1)
    assert x.tolist() == [1, 1, 1]
    assert y.tolist() == [2, 2, 2]


def test_module_and_tensor_have_npu_methods():
    assert torch.ones(1).npu().is_npu
    assert next(nn.Linear(2, 2).npu().parameters()).device.type == "npu"


def test_training_follows_the_cpu():
    cpu, npu = train("cpu"), train("npu")
    assert npu == pytest.approx(cpu, rel=2e-3)
    assert npu[-1] < npu[0]


def test_training_without_hf32_is_closer_but_not_bitwise_the_cpu():
    torch.npu.conv.allow_hf32 = False
    cpu, npu = train("cpu"), train("npu")
    assert npu == pytest.approx(cpu, rel=1e-5)


def test_sgd_with_momentum():
    losses = train("npu", lambda p, lr: torch.optim.SGD(p, lr=0.01, momentum=0.9))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_trains(dtype):
    assert train("npu", autocast=dtype) == pytest.approx(train("cpu"), rel=0.05)


def test_autocast_picks_types_by_operator():
    a, b = torch.randn(4, 4, device="npu"), torch.randn(4, 4, device="npu")
    with torch.autocast("npu", dtype=torch.float16):
        product = a @ b
        assert product.dtype == torch.float16
        assert product.softmax(-1).dtype == torch.float32
        assert torch.addcmul(a, product, product).dtype == torch.float32
    assert (a @ b).dtype == torch.float32


def test_grad_scaler_steps_and_backs_off():
    scaler = torch.amp.GradScaler("npu", init_scale=1024.0)
    layer = nn.Linear(4, 4).npu()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler.scale(layer(torch.randn(2, 4, device="npu")).sum()).backward()
    before = layer.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before.cpu(), layer.weight.detach().cpu())
    optimizer.zero_grad()
    scaler.scale((layer(torch.randn(2, 4, device="npu")) * float("inf")).sum()).backward()
    before = layer.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before.cpu(), layer.weight.detach().cpu())
    assert scaler.get_scale() == 512.0


def test_state_dict_travels_between_devices():
    buffer = io.BytesIO()
    model = make_net().to("npu")
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    on_cpu = torch.load(buffer, map_location="cpu", weights_only=True)
    buffer.seek(0)
    on_npu = torch.load(buffer, weights_only=True)
    assert next(iter(on_npu.values())).device.type == "npu"
    make_net().load_state_dict(on_cpu)
    assert torch.equal(on_npu["head.weight"].cpu(), on_cpu["head.weight"])


def test_whole_module_is_saved_and_loaded():
    buffer = io.BytesIO()
    torch.save(make_net().npu(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert next(loaded.parameters()).device.type == "npu"


def test_deepcopy_makes_independent_memory():
    model = make_net().npu()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.head.weight.zero_()
    assert model.head.weight.abs().sum().item() > 0


def test_module_half():
    y = make_net().npu().half()(torch.randn(1, 3, 32, 32).npu().half())
    assert y.dtype == torch.float16
    assert y.isfinite().all().item()


def test_views_share_memory():
    t = torch.zeros(4, 4, device="npu")
    t[1:3, ::2] = 5
    t.t()[0].add_(1)
    assert t.cpu().tolist() == [[1, 0, 0, 0], [6, 0, 5, 0], [6, 0, 5, 0], [1, 0, 0, 0]]


def test_in_place_on_a_view_under_autograd():
    a = torch.ones(2, 2, device="npu", requires_grad=True)
    b = a * 2
    b[0].mul_(3)
    b.sum().backward()
    assert a.grad.cpu().tolist() == [[6, 6], [2, 2]]


def test_boolean_index_and_nonzero():
    t = torch.tensor([1.0, -1.0, 2.0], device="npu")
    assert t[t > 0].tolist() == [1, 2]
    assert torch.tensor([0, 1, 2]).npu().nonzero().tolist() == [[1], [2]]


def test_cpu_indices_are_accepted_as_on_a_card():
    assert torch.arange(5, device="npu")[torch.tensor([1, 3])].tolist() == [1, 3]


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(causal):
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    got = F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), is_causal=causal)
    torch.testing.assert_close(got.cpu(), want)


def test_attention_backward():
    q = torch.randn(1, 2, 8, 16)
    grads = []
    for device in ("cpu", "npu"):
        x = q.clone().to(device).requires_grad_()
        F.scaled_dot_product_attention(x, x, x).square().sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_forward_and_backward(kind, bias):
    torch.manual_seed(0)
    layer = kind(8, 6, num_layers=2, bias=bias)
    x = torch.randn(5, 2, 8)
    results = []
    for device in ("cpu", "npu"):
        twin = copy.deepcopy(layer).to(device)
        y, _ = twin(x.to(device))
        y.square().sum().backward()
        results.append((y.detach().cpu(), twin.weight_hh_l0.grad.cpu()))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_embedding_backward():
    layer = nn.Embedding(10, 4).npu()
    layer(torch.tensor([1, 2, 2]).npu()).sum().backward()
    assert layer.weight.grad.cpu().sum(1).tolist() == [0, 4, 8, 0, 0, 0, 0, 0, 0, 0]


def test_multihead_attention_in_eval_mode():
    layer = nn.MultiheadAttention(16, 4).eval()
    x = torch.randn(3, 2, 16)
    want, _ = layer(x, x, x)
    got, _ = copy.deepcopy(layer).npu()(x.npu(), x.npu(), x.npu())
    torch.testing.assert_close(got.cpu(), want)


def test_dropout_keeps_its_rate_but_not_the_cpu_stream():
    torch.manual_seed(3)
    cpu = F.dropout(torch.ones(10_000))
    torch.manual_seed(3)
    npu = F.dropout(torch.ones(10_000, device="npu")).cpu()
    assert set(npu.unique().tolist()) == {0.0, 2.0}
    assert abs(npu.mean().item() - 1) < 0.1
    assert not torch.equal(cpu, npu)


def test_fft_and_complex_views():
    x = torch.randn(8, dtype=torch.complex64)
    y = x.npu()
    torch.testing.assert_close(torch.fft.fft(y).cpu(), torch.fft.fft(x))
    torch.testing.assert_close(
        torch.view_as_real(y.conj().resolve_conj()).cpu(), torch.view_as_real(x.conj().resolve_conj())
    )
    torch.testing.assert_close((y.conj() * y).cpu(), x.conj() * x)
    assert y.imag.cpu().tolist() == x.imag.tolist()
    torch.testing.assert_close(y.conj().imag.cpu(), x.conj().imag)


def test_linear_algebra():
    x = torch.randn(4, 4)
    torch.testing.assert_close(torch.linalg.svdvals(x.npu()).cpu(), torch.linalg.svdvals(x))


def test_out_argument_is_resized_written_and_returned():
    out = torch.empty(0, device="npu")
    assert torch.add(torch.ones(3).npu(), 1, out=out) is out
    assert out.tolist() == [2, 2, 2]
    kept = torch.zeros(3, device="npu")
    pointer = kept.data_ptr()
    torch.mul(torch.ones(3, device="npu"), 4, out=kept)
    assert kept.tolist() == [4, 4, 4]
    assert kept.data_ptr() == pointer


def test_out_writes_through_a_view():
    base = torch.zeros(2, 3, device="npu")
    torch.add(torch.ones(3).npu(), 1, out=base[1])
    assert base.tolist() == [[0, 0, 0], [2, 2, 2]]


def test_two_outs():
    values, indices = torch.empty(0, device="npu"), torch.empty(0, dtype=torch.long, device="npu")
    torch.max(torch.tensor([[1.0, 3.0], [5.0, 2.0]]).npu(), dim=1, out=(values, indices))
    assert values.tolist() == [3, 5]
    assert indices.tolist() == [1, 0]


def test_resize_grows_and_keeps_what_was_there():
    t = torch.arange(4.0, device="npu")
    t.resize_(2, 3)
    assert t.shape == (2, 3)
    assert t.flatten()[:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    layer = nn.Linear(4, 4).npu()
    x = torch.randn(2, 4, device="npu", requires_grad=True)
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    assert x.grad.device.type == "npu"


def test_func_grad_and_vmap():
    assert torch.func.grad(lambda x: (x * x).sum())(torch.ones(3).npu()).cpu().tolist() == [2, 2, 2]
    a = torch.randn(3, 2, 2)
    torch.testing.assert_close(torch.vmap(torch.matmul)(a.npu(), a.npu()).cpu(), a @ a)


def test_double_backward():
    x = torch.tensor([2.0], device="npu", requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert second.item() == 12


def test_profiler_sees_operators():
    from torch.profiler import ProfilerActivity, profile

    a = torch.randn(4, 4, device="npu")
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        a @ a
    assert "aten::mm" in {event.key for event in trace.key_averages()}


def test_compile_with_the_eager_backend():
    compiled = torch.compile(lambda x: torch.relu(x @ x) + 1, backend="eager")
    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(x.npu()).cpu(), torch.relu(x @ x) + 1)


def test_dtype_view():
    assert torch.tensor([1.0]).npu().view(torch.int32).item() == 0x3F800000


def test_device_as_context_and_default():
    with torch.device("npu"):
        assert torch.ones(2).device.type == "npu"
    torch.set_default_device("npu")
    try:
        assert torch.ones(2).device.type == "npu"
    finally:
        torch.set_default_device(None)


def test_mixed_devices_raise_and_name_both():
    for call in (
        lambda: torch.ones(2).npu() + torch.ones(2),
        lambda: torch.ones(2) + torch.ones(2).npu(),
        lambda: torch.cat([torch.ones(2).npu(), torch.ones(2)]),
        lambda: F.linear(torch.ones(2, 2).npu(), torch.ones(2, 2)),
        lambda: torch.where(torch.ones(2).npu() > 0, torch.ones(2), torch.ones(2).npu()),
    ):
        with pytest.raises(RuntimeError, match=r"same device.*(npu:0 and cpu|cpu and npu:0|npu)"):
            call()


def test_zero_dimensional_cpu_tensors_mix_as_on_a_card():
    assert (torch.ones(2).npu() * torch.tensor(3.0)).tolist() == [3, 3]


def test_numpy_is_refused_as_on_a_card():
    with pytest.raises(TypeError, match=r"npu:0 device type tensor to numpy"):
        torch.ones(2).npu().numpy()


def test_foreach_and_fused_style_lists():
    tensors = [torch.ones(2, device="npu"), torch.ones(3, device="npu")]
    torch._foreach_add_(tensors, 2.0)
    assert [t.tolist() for t in tensors] == [[3, 3], [3, 3, 3]]
    assert [t.tolist() for t in torch._foreach_mul(tensors, 2.0)] == [[6, 6], [6, 6, 6]]


def test_set_and_swap_data():
    a, b = torch.zeros(2, device="npu"), torch.ones(3, device="npu")
    a.data = b
    assert a.tolist() == [1, 1, 1]


def test_sort_topk_unique():
    x = torch.tensor([3.0, 1.0, 2.0]).npu()
    assert x.sort()[1].tolist() == [1, 2, 0]
    assert x.topk(2)[0].tolist() == [3, 2]
    assert torch.tensor([1, 1, 2]).npu().unique().tolist() == [1, 2]


def test_moving_a_module_keeps_its_parameters():
    """As on a card: an optimizer or a hook made before `.to("npu")` still serves the same parameters after it."""
    model = nn.Linear(2, 2)
    weight, seen = model.weight, []
    weight.register_hook(lambda grad: seen.append(grad.device.type))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("npu")
    assert model.weight is weight
    assert weight.device.type == "npu"
    model(torch.ones(1, 2, device="npu")).sum().backward()
    before = weight.detach().cpu()
    optimizer.step()
    assert seen == ["npu"]
    assert torch.equal(weight.detach().cpu(), before - 1)
    model.to("cpu")
    assert model.weight is weight
    assert weight.device.type == "cpu"


def test_data_can_be_assigned_across_devices():
    x = torch.zeros(2)
    x.data = torch.ones(3, device="npu")
    assert x.device.type == "npu"
    assert x.tolist() == [1, 1, 1]
    meta = torch.empty(2, device="meta")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        meta.data = torch.ones(2)


def test_softmax_from_half_to_float_and_back():
    x = torch.randn(4, 100).half()
    results = []
    for device in ("cpu", "npu"):
        y = (x.float() if device == "cpu" else x.clone().to(device)).requires_grad_()
        z = y.softmax(-1, dtype=torch.float32)
        z[:, 3].sum().backward()
        results.append((z.detach().cpu(), y.grad.cpu().float()))
    torch.testing.assert_close(results[1], results[0], rtol=2e-3, atol=1e-5)


def test_convolution_of_mixed_types():
    x, w = torch.randn(1, 3, 8, 8).half(), torch.randn(4, 3, 3, 3)
    got = F.conv2d(x.npu(), w.npu())
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.cpu().float(), F.conv2d(x.float(), w), rtol=5e-3, atol=5e-3)


def test_a_gradient_of_zeros_has_memory():
    x = torch.eye(3, device="npu", requires_grad=True)
    (grad,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert torch.equal(grad.cpu(), torch.zeros(3, 3))


def test_resizing_to_the_same_size_changes_nothing():
    x = torch.arange(6.0, device="npu").view(2, 3).t()
    x.resize_as_(torch.empty(3, 2, device="npu"))
    assert x.stride() == (1, 3)
    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        lambda x: F.grid_sample(x, torch.arange(-25, 25, device=x.device).view(1, 5, 5, 2).to(x.dtype) / 32),
        lambda x: x.prod(-1),
    ],
)
def test_interpolation_and_products_round_sixteen_bits_once(call, dtype):
    x = torch.rand(1, 2, 9, 9).to(dtype) + 0.5
    got = call(x.npu())
    assert got.dtype == dtype
    wide = call(x.float()).to(dtype)
    torch.testing.assert_close(got.cpu(), wide, rtol=torch.finfo(dtype).eps, atol=0)
