"""Of all tests: the plugin under test is only ever loaded through its entry point; and a recorder of small dumps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SAMPLES = Path(__file__).parent.parent.parent / "shared" / "samples" / "msprobe-dumps"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What takes long runs at night."""
    if item.get_closest_marker("whole") is not None and os.environ.get("ASCEND_WHOLE") != "1":
        pytest.skip("takes long: ASCEND_WHOLE=1")


class Recorder:
    """Writes calls the way msprobe does: ``record("Torch.relu", torch.relu, x)``, then ``write()``."""

    def __init__(self, folder: Path, task: str = "tensor", level: str = "L1", framework: str = "pytorch") -> None:
        self.folder = folder
        self.head = {"task": task, "level": level, "framework": framework, "dump_data_dir": "/home/user/elsewhere"}
        self.data: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, api: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call and write it down, with its backward pass where an argument requires a gradient."""
        import torch

        number = self._counts.get(api, 0)
        self._counts[api] = number + 1
        name = f"{api}.{number}.forward"
        before = [self.value(one, f"{name}.input.{i}") for i, one in enumerate(args)]
        keywords = {key: self.value(one, f"{name}.kwargs.{key}") for key, one in kwargs.items()}
        output = fn(*args, **kwargs)
        outputs = list(output) if isinstance(output, (tuple, list)) else [output]
        recorded = [self.value(one, f"{name}.output.{i}") for i, one in enumerate(outputs)]
        self.data[name] = {"input_args": before, "input_kwargs": keywords, "output": recorded}
        able = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
        if able:
            name = f"{api}.{number}.backward"
            starts = [torch.linspace(-1, 1, one.numel()).reshape(one.shape).to(one.dtype) for one in able]
            grads = [self.value(one, f"{name}.input.{i}") for i, one in enumerate(starts)]
            self.data[name] = {"input": grads, "output": []}
        return output

    def value(self, value: Any, name: str) -> Any:
        """One argument as msprobe writes it."""
        import torch

        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            return self.tensor(value, name)
        if isinstance(value, torch.Size):
            return {"type": "torch.Size", "value": list(value)}
        if isinstance(value, torch.dtype):
            return {"type": "torch.dtype", "value": str(value)}
        if isinstance(value, (tuple, list)):
            return [self.value(one, f"{name}.{i}") for i, one in enumerate(value)]
        if isinstance(value, slice):
            return {"type": "slice", "value": [value.start, value.stop, value.step]}
        if value is Ellipsis:
            return {"type": "ellipsis", "value": "..."}
        return {"type": type(value).__name__, "value": value}

    def tensor(self, value: Any, name: str) -> dict[str, Any]:
        """One tensor: its statistics, and its values in a file in tensor mode."""
        import torch

        grad, value = value.requires_grad, value.detach().clone()
        numbers: dict[str, Any] = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
        if value.numel():
            real = value.abs() if value.is_complex() else value
            numbers.update(Max=real.max().item(), Min=real.min().item())
            if real.is_floating_point():
                numbers.update(Mean=real.double().mean().item(), Norm=real.double().norm().item())
        about = {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape), **numbers}
        about["requires_grad"] = grad
        if self.head["task"] == "tensor" and value.numel():
            tensors = self.folder / "dump_tensor_data"
            tensors.mkdir(parents=True, exist_ok=True)
            torch.save(value.contiguous(), tensors / f"{name}.pt")
            about["data_name"] = f"{name}.pt"
        return about

    def write(self, data: Any = None, **changes: Any) -> Path:
        """Write ``dump.json``; bare ``NaN`` tokens as msprobe's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "dump.json"
        path.write_text(json.dumps({**self.head, **changes, "data": self.data if data is None else data}, indent=1))
        return path


@pytest.fixture
def recorder(tmp_path: Path) -> Callable[..., Recorder]:
    """Make a recorder: ``recorder("step0/rank1", task="statistics")`` below the test's folder."""

    def make(folder: str = "step0/rank0", **head: str) -> Recorder:
        return Recorder(tmp_path / "dump" / folder, **head)

    return make


@pytest.fixture
def samples() -> Path:
    """Dumps that msprobe itself made; the test is skipped where they aren't at hand."""
    if not SAMPLES.is_dir():
        pytest.skip("the sample dumps aren't beside this checkout")
    return SAMPLES


@pytest.fixture(scope="session")
def _emulated():
    from pytest_ascend.targets import resolve

    return resolve("emulated")


@pytest.fixture
def check(_emulated):
    """``check(fn, *args, options=dict(...))`` on the emulated device."""
    from pytest_ascend.check import check
    from pytest_ascend.observe.reruns import RAISED
    from pytest_ascend.options import CheckOptions

    def run(fn, *args, options=None, **kwargs):
        result = check(fn, *args, options=CheckOptions(**{"target": "emulated", **(options or {})}), **kwargs)
        # A step that trips leaves the verdict as it was, so nothing else would show it.
        tripped = [note for note in result.notes if RAISED in note and "RunFailed" not in note]
        assert not tripped, tripped
        return result

    return run
