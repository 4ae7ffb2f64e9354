"""Real models, watched forward and backward: nothing is found that isn't there, and what was planted is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_ascend as pa
from pytest_ascend.targets import emulator

transformers = pytest.importorskip("transformers")

HALF, BRAIN = torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def _device():
    emulator.install()


def llama(dtype):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to("npu", dtype)


def bert(dtype):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).to("npu", dtype)


def batch(model):
    torch.manual_seed(1)
    ids = torch.randint(5, 60, (2, 12)).npu()
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    labels = ids if isinstance(model, transformers.LlamaForCausalLM) else torch.tensor([0, 1]).npu()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("dtype", [HALF, BRAIN, torch.float32], ids=str)
@pytest.mark.parametrize("build", [llama, bert])
def test_padding_and_masks_of_transformers_are_no_overflows(build, dtype):
    model = build(dtype)
    with pa.watch_overflow(model) as watch:
        (model(**batch(model)).loss * 1024.0).backward()
    assert not [str(finding) for finding in watch.findings if finding.overflow_type != "overflow_down"]
    assert not watch.serious
    assert watch.operators > 100


def test_generation_with_a_cache_is_no_overflow():
    model = llama(HALF)
    with pa.watch_overflow(model) as watch, torch.no_grad():
        model.generate(torch.tensor([[5, 6, 7]]).npu(), max_new_tokens=4, do_sample=True, top_k=5, pad_token_id=0)
    assert not watch.findings


def test_a_planted_overflow_in_an_mlp():
    model = llama(HALF)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.fill_(3000.0)
        model.model.layers[1].post_attention_layernorm.weight.fill_(8.0)
    with pa.watch_overflow(model) as watch:
        model(**batch(model)).loss.backward()
    first = watch.findings[0]
    assert first.overflow_type == "overflow_up"
    assert first.module.startswith("model.layers.1.mlp")
    assert "modeling_llama.py" in first.source
    modules = [link.place.module for link in first.chain]
    assert "lm_head" in modules
    assert first.chain[-1].to_dict()["pass"] == "backward"


def test_a_norm_that_forgot_float32():
    model = bert(HALF)

    class Norm(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

    model.bert.encoder.layer[0].output.LayerNorm = Norm()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias.fill_(8000.0)
    with pa.watch_overflow(model) as watch, torch.no_grad():
        outputs = model(**batch(model))
    assert outputs.logits.isfinite().all()
    finding = watch.findings[0]  # rows of zeros then make the next norms' 1 / sqrt(variance + 1e-12) infinite
    assert (finding.overflow_type, finding.module) == ("overflow_hidden", "bert.encoder.layer.0.output.LayerNorm")


def test_training_steps_with_adam():
    model = llama(torch.float32)
    best = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("npu", init_scale=256.0)
    with pa.watch_overflow(model) as watch:
        for _ in range(2):
            best.zero_grad()
            with torch.autocast("npu", dtype=HALF):
                loss = model(**batch(model)).loss
            scaler.scale(loss).backward()
            scaler.unscale_(best)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(best)
            scaler.update()
    assert not watch.serious, str(watch)
    assert not [f for f in watch.findings if f.overflow_type != "overflow_down"]


@pytest.mark.parametrize("dtype", [HALF, torch.float32], ids=str)
def test_recurrent_networks(dtype):
    torch.manual_seed(0)
    model = nn.LSTM(8, 16, num_layers=2, bidirectional=True).to("npu", dtype)
    with pa.watch_overflow(model) as watch:
        model(torch.randn(6, 3, 8).to("npu", dtype))[0].float().square().mean().backward()
    assert not watch.serious
