"""Record one training step of MiniLM: python record_minilm.py DIR, then pytest DIR --ascend-compare.

Each API that the step called, forward and backward, is then a test of its own, with the inputs that it had here.
"""

import sys

import torch
import transformers
from test_minilm import SENTENCES, SentenceEncoder, weights

import pytest_ascend as pa

torch.manual_seed(0)
tokenizer = transformers.AutoTokenizer.from_pretrained(weights(), local_files_only=True)
batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
model = SentenceEncoder(transformers.AutoModel.from_pretrained(weights(), local_files_only=True))

with pa.record(model, sys.argv[1]) as recording:
    embeddings = model(batch["input_ids"], batch["attention_mask"])
    wanted = torch.tensor([1.0, -1.0])  # draw the first sentence to the third, push the second from the fourth
    torch.nn.functional.cosine_embedding_loss(embeddings[:2], embeddings[2:], wanted).backward()

print(f"recorded {recording.path}")
