"""Between torch's tensors and plain arrays of their bits, for what is read or judged by torch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from pytest_ascend.dumps.arrays import Held

if TYPE_CHECKING:
    import torch

__all__ = ["held_of", "tensor_of"]


def held_of(tensor: torch.Tensor) -> Held:
    """The array of a dense CPU tensor."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if dtype == "bfloat16":
        return Held(dtype, tensor.view(torch.int16).numpy().view(np.uint16))
    if dtype.startswith("float8"):
        return Held(dtype, tensor.view(torch.uint8).numpy())
    return Held(dtype, tensor.numpy())


def tensor_of(held: Held) -> torch.Tensor:
    """The tensor of an array; it shares its memory, which may be a file's: nobody may write to it."""
    import torch

    values = held.values
    if any(stride < 0 for stride in values.strides):
        values = values.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that can't be written, which nobody does
        if held.dtype == "bfloat16":
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        tensor = torch.from_numpy(values)
    return tensor.view(getattr(torch, held.dtype)) if held.dtype.startswith("float8") else tensor
