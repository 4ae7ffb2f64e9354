"""Shared by the examples: no hub is asked for anything, and there is one seed."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch = pytest.importorskip("torch", reason="the examples compare torch models: pip install 'pytest-ascend[torch]'")
    torch.manual_seed(0)
