"""Which layers are compared, and how their outputs are taken."""

from __future__ import annotations

import errno
import itertools
import os

import pytest
import torch
from torch import nn

import pytest_ascend as pa
from pytest_ascend.observe import modules
from pytest_ascend.observe.modules import CALLS, SAMPLE, Taps, choose
from pytest_ascend.observe.spool import Spool


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn1(self.conv1(x)) + x)


class ResNet(nn.Module):
    def __init__(self, blocks=(2, 2, 2, 2)):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 1)
        for i, count in enumerate(blocks, 1):
            setattr(self, f"layer{i}", nn.Sequential(*[Block() for _ in range(count)]))
        self.drop, self.fc = nn.Dropout(0.1), nn.Linear(4, 2)

    def forward(self, x):
        x = self.conv1(x)
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(self.drop(x.mean((2, 3))))


class Encoder(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(depth)])
        self.head = nn.Linear(4, 9)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_a_sample_reaches_from_the_first_to_the_last_layer():
    names = choose(ResNet((3, 4, 6, 3)), None)
    assert names[0] == "conv1"
    assert names[-1] == "fc"
    assert len(names) <= SAMPLE
    assert all(any(name.startswith(f"layer{i}") for name in names) for i in range(1, 5))
    assert not any("drop" in name for name in names)


def test_a_deep_stack_is_thinned_evenly():
    names = choose(Encoder(48), None)
    assert len(names) == SAMPLE
    assert (names[0], names[-1]) == ("embed", "head")
    depths = [int(name.split(".")[1]) for name in names if name.startswith("layers.")]
    steps = [b - a for a, b in itertools.pairwise(depths)]
    assert max(steps) - min(steps) <= 1


def test_real_architectures_give_their_blocks():
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}
    bert = choose(transformers.BertModel(transformers.BertConfig(num_hidden_layers=12, **small)), None)
    assert bert[0] == "embeddings"
    assert bert[-1] == "pooler"
    assert sum(name.startswith("encoder.layer.") for name in bert) == 10
    llama = choose(transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **small)), None)
    assert llama[0] == "model.embed_tokens"
    assert llama[-1] == "lm_head"
    assert {"model.layers.0.mlp", "model.layers.0", "model.layers.1"} <= set(llama)


def test_a_small_model_gives_all_its_layers():
    assert choose(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), None) == ("0", "1", "2")
    assert choose(nn.Linear(2, 2), None) == ()


def test_names_and_globs():
    model = Encoder(3)
    assert choose(model, ["layers.*"]) == ("layers.0", "layers.1", "layers.2")
    assert choose(model, ["layers.?.norm1", "embed"]) == ("embed", "layers.0.norm1", "layers.1.norm1", "layers.2.norm1")
    assert "layers.0.self_attn.out_proj" in choose(model, ["layers.**"])
    assert choose(model, ()) == ()
    every = choose(model, True)
    assert "layers" not in every  # a list is never called
    assert {"embed", "layers.2.linear1", "head"} <= set(every)


def test_a_name_that_matches_nothing_gets_the_closest():
    with pytest.raises(ValueError, match=r"'layer.1.norm1' matches no layer.*layers\.1\.norm1"):
        choose(Encoder(2), ["layer.1.norm1"])
    with pytest.raises(ValueError, match=r"'layers' is a ModuleList.*'layers\.\*'"):
        choose(Encoder(2), ["layers"])


def test_outputs_are_taken_when_they_exist():
    model = ResNet()
    with Taps(model, ["layer1.0.bn1"]) as taps:
        model(torch.randn(2, 3, 2, 2))
    first = taps.captured["layer1.0.bn1"]
    model.eval()
    assert (first < 0).any()  # before the in-place relu that follows


def test_order_is_that_in_which_outputs_come_to_exist():
    model = ResNet()
    names = ["conv1", "layer1", "layer1.0", "layer1.0.conv1", "fc"]
    with Taps(model, names) as taps:
        model(torch.randn(2, 3, 2, 2))
    assert list(taps.captured) == ["conv1", "layer1.0.conv1", "layer1.0", "layer1", "fc"]


def test_a_layer_called_again_is_numbered_and_not_kept_forever():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU())
    with Taps(model, ["0"]) as taps:
        for i in range(CALLS + 3):
            model(torch.full((1, 2), float(i)))
    assert list(taps.captured)[:3] == ["0", "0#2", "0#3"]
    assert len(taps.captured) == CALLS
    assert taps.dropped == 3
    assert not torch.equal(taps.captured["0"], taps.captured["0#2"])


def test_layers_are_as_before_afterwards():
    model = ResNet()
    before = dict(vars(model.conv1))
    with pytest.raises(RuntimeError), Taps(model, ["conv1", "fc"]):
        model(torch.randn(1))
    assert vars(model.conv1) == before
    assert not model.conv1._forward_hooks


def test_a_fused_path_is_not_left_because_somebody_looks():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model, x = nn.Sequential(layer), torch.randn(1, 3, 8)

    def fused():
        with torch.no_grad(), torch.profiler.profile() as profile:
            model(x)
        return any("_transformer_encoder_layer_fwd" in event.key for event in profile.key_averages())

    assert fused()
    with Taps(model, ["0", "0.linear1"]):
        assert fused()
    handle = layer.linear1.register_forward_hook(lambda *_: None)
    assert not fused()  # what a hook would have done
    handle.remove()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted_layers_are_passed_over():
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.ReLU())
    assert choose(model, None) == choose(model, True) == ("1",)
    with pytest.raises(ValueError, match="can't be captured"):
        choose(model, ["0"])


def test_what_goes_beyond_the_budget_lies_in_files_and_is_the_same():
    spool = Spool(in_memory=1 << 18)
    tensors = [torch.randn(3, 5, dtype=torch.float64), *(torch.randn(1 << 15) for _ in range(6))]
    tensors += [t.to(torch.bfloat16).repeat(4) for t in tensors[1:3]]
    tensors += [torch.randn(256, 512).t(), torch.view_as_complex(torch.randn(1 << 15, 2)), torch.randn(1 << 16) > 0]
    kept = [spool.keep(t.requires_grad_(t.dtype is torch.float64)) for t in tensors]
    copies = [t.detach().clone() for t in tensors]
    with torch.no_grad():
        for t in tensors:
            t.zero_()
    assert spool.spooled >= 4 << 17
    for copy, held in zip(copies, kept, strict=True):
        assert torch.equal(copy, held)
        assert (held.dtype, held.stride(), held.requires_grad) == (copy.dtype, copy.stride(), False)


def test_without_room_on_the_disk_tensors_stay_in_memory(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    spool = Spool(in_memory=0)
    value = torch.randn(1 << 16)
    assert torch.equal(spool.keep(value), value)
    assert spool.spooled == 0


@pytest.mark.usefixtures("_emulated")
def test_a_deep_model_keeps_a_bounded_part_in_memory(monkeypatch):
    """Every layer of 60 is compared; in memory stays what the budget says, of each run."""
    spools = []

    class Counted(Spool):
        def __init__(self):
            super().__init__(in_memory=4 << 20)
            spools.append(self)

    monkeypatch.setattr(modules, "Spool", Counted)
    model = torch.nn.Sequential(*(torch.nn.Hardtanh() for _ in range(60)))
    options = pa.CheckOptions(target="emulated", checkpoints=True, backward=False)
    result = pa.check(model, torch.randn(512, 256), options=options)
    assert result.verdict is pa.Verdict.PASS
    assert len(result.checkpoints) == 60
    golden, benchmark, actual = sorted(spool.spooled >> 19 for spool in spools)[-1:-4:-1]
    assert (golden, benchmark, actual) == (112, 52, 52)
