"""One training step of a small decoder in Llama's architecture: loss, gradients, optimizer state."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def decoder() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))


def training_step(model: torch.nn.Module, tokens: torch.Tensor) -> dict[str, object]:
    """Loss, every gradient, and AdamW's two moments after one step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    state = {name: dict(optimizer.state[p]) for name, p in model.named_parameters()}
    return {"loss": loss.detach(), "gradients": gradients, "state": state}


def test_forward_and_gradients(ascend_compare, decoder, tokens):
    result = ascend_compare(decoder, input_ids=tokens, labels=tokens)
    assert any(output.path.startswith("grad(") for output in result.outputs)


def test_training_step(ascend_compare, decoder, tokens):
    result = ascend_compare(training_step, decoder, tokens)
    assert len(result.outputs) > 3 * len(list(decoder.parameters()))
