"""Dumps for the tests of comparing: written as msprobe, msit and ATB write them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

Calls = Mapping[str, Mapping[str, Any]]


def msprobe(
    folder: Path, calls: Calls, *, task: str = "tensor", framework: str = "pytorch", level: str = "mix"
) -> Path:
    """A ``dump.json``. Each call has lists of tensors and plain values by section; task ``md5`` adds checksums."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Any] = {}
    for name, sections in calls.items():
        data[name] = {}
        for section, values in sections.items():
            label = {"input_args": "input"}.get(section, section)
            data[name][section] = [
                described(folder, value, f"{name}.{label}.{i}", task, framework) for i, value in enumerate(values)
            ]
    head = {"task": "statistics" if task == "md5" else task, "level": level, "framework": framework}
    path = folder / "dump.json"
    path.write_text(json.dumps({**head, "dump_data_dir": None, "data": data}))
    return path


def described(folder: Path, value: Any, name: str, task: str, framework: str) -> Any:
    """A value as ``dump.json`` has it, and its file."""
    if not isinstance(value, torch.Tensor):
        return None if value is None else {"type": type(value).__name__, "value": value}
    wide = value.double() if not value.is_complex() else value.abs().double()
    floating = value.is_floating_point() or value.is_complex()
    found: dict[str, Any] = {
        "type": "torch.Tensor" if framework == "pytorch" else "mindspore.Tensor",
        "dtype": str(value.dtype) if framework == "pytorch" else str(value.dtype).removeprefix("torch.").capitalize(),
        "shape": list(value.shape),
        "Max": wide.max().item() if value.numel() else None,
        "Min": wide.min().item() if value.numel() else None,
        "Mean": wide.mean().item() if floating and value.numel() else None,
        "Norm": wide.norm().item() if floating and value.numel() else None,
    }
    if task == "md5":
        found["md5"] = f"{zlib.crc32(value.contiguous().view(torch.uint8).numpy().tobytes()):08x}"
    if task == "tensor":
        ending = "pt" if framework == "pytorch" else "npy"
        path = folder / "dump_tensor_data" / f"{name}.{ending}"
        if framework == "pytorch":
            torch.save(value, path)
        else:
            np.save(path, value.numpy())
        found["data_name"] = path.name
    return found


def atb(path: Path, value: torch.Tensor, *, dtype: int | None = None, dims: str | None = None, cut: int = 0) -> None:
    """A ``.bin`` file of ATB."""
    numbers = {torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.int32: 3, torch.int64: 9, torch.bool: 12}
    number = dtype if dtype is not None else numbers.get(value.dtype, 27)
    held = value.contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    size = ",".join(map(str, value.shape)) if dims is None else dims
    head = f"$Version=1.0\n$Object.Count=1\n$Object.Length={len(held)}\nformat=2\ndtype={number}\ndims={size}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"{head}$Object.data=0,{len(held)}\n$End=1\n".encode() + held[: len(held) - cut])
