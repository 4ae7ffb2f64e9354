"""`pytest_ascend.record`: what a block calls becomes a dump that reads back as it was."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, relu

import pytest_ascend as pa
from pytest_ascend.dumps import Dump, Recorded
from pytest_ascend.dumps.values import Opaque, TensorSpec, Token


def entries(recording: Any) -> dict[str, Any]:
    """The recorded calls by name."""
    return {entry.name: entry for entry in Dump.read(recording.path)}


def value(recording: Any, spec: TensorSpec) -> torch.Tensor:
    assert spec.data_name is not None
    return Recorded(Path(recording.path).parent)(spec.data_name, spec.dtype, spec.shape)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):  # the weights are used three times: the order in which gradients add up shows
            x = self.norm(x + relu(self.inner(x)))
        return x


def test_names_are_those_of_msprobe_and_in_order(tmp_path: Path) -> None:
    model, x, wanted = Net(), torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    with pa.record(model, tmp_path) as recording:
        F.cross_entropy(model(x), wanted).backward()
    names = list(entries(recording))
    assert names[:4] == [
        "Functional.linear.0.forward",
        "Torch.relu.0.forward",
        "Tensor.add.0.forward",
        "Functional.layer_norm.0.forward",
    ]
    assert names[12] == "Functional.cross_entropy.0.forward"
    assert names[13:16] == [
        "Functional.cross_entropy.0.backward", "Functional.layer_norm.2.backward", "Tensor.add.2.backward",
    ]  # fmt: skip
    assert len(names) == 26
    assert recording.path == str(tmp_path / "step0" / "rank0" / "dump.json")
    stack = pa.dumps.open(recording.path).stack()
    assert "test_record.py" in stack["Torch.relu.0.forward"][0]
    assert "in forward" in stack["Torch.relu.0.forward"][0]


def test_gradients_are_the_same_to_the_bit(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(64, 8)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    with pa.record(model, tmp_path):
        recorded = gradients()
    assert len(plain) == 4
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


def test_a_backward_pass_holds_the_gradients_of_that_call_alone(tmp_path: Path) -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    with pa.record(None, tmp_path) as recording:
        first = x @ w
        loss = F.cross_entropy(first @ w, torch.tensor([0, 1, 2, 3]))  # two nodes of the graph, one call
        loss.backward()
    found = entries(recording)
    logits = (first.detach() @ w.detach()).requires_grad_()
    of_loss = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])), logits)[0]
    entry = found["Functional.cross_entropy.0.backward"]
    assert value(recording, entry.grads[0]) == 1
    assert torch.equal(value(recording, entry.output[0]), of_loss)
    second = found["Tensor.matmul.1.backward"]
    assert torch.equal(value(recording, second.grads[0]), of_loss)
    assert torch.equal(value(recording, second.output[1]), first.detach().t() @ of_loss)
    assert not torch.equal(value(recording, second.output[1]), w.grad)  # which holds the first call's share as well


def test_what_changes_a_tensor_later_does_not_change_the_dump(tmp_path: Path) -> None:
    x = torch.ones(3)
    with pa.record(None, tmp_path) as recording:
        y = torch.exp(x)
        y.add_(1)
        x[0] = 7
    found = entries(recording)
    assert torch.equal(value(recording, found["Torch.exp.0.forward"].output[0]), torch.exp(torch.ones(3)))
    assert torch.equal(value(recording, found["Tensor.add_.0.forward"].args[0]), torch.exp(torch.ones(3)))
    assert torch.equal(value(recording, found["Tensor.add_.0.forward"].output[0]), torch.exp(torch.ones(3)) + 1)
    assert torch.equal(value(recording, found["Tensor.__setitem__.0.forward"].args[0]), torch.ones(3))


def test_a_gradient_through_a_tensor_changed_in_place(tmp_path: Path) -> None:
    x = torch.randn(5, requires_grad=True)
    with pa.record(None, tmp_path) as recording:
        y = torch.sin(x)
        y[1:3].mul_(3)  # through a view: autograd then makes no node for the call alone
        y[4] = 2.0
        y.sum().backward()
    found = entries(recording)
    assert torch.equal(value(recording, found["Tensor.__setitem__.0.backward"].grads[0]), torch.ones(5))
    assert torch.equal(value(recording, found["Torch.sin.0.backward"].grads[0]), torch.tensor([1.0, 3, 3, 1, 0]))


def test_every_sort_of_argument_reads_back(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 4)
    with pa.record(None, tmp_path) as recording:
        x[..., 1:3, None]
        x.to(torch.float16, memory_format=torch.channels_last)
        torch.zeros(torch.Size([2, 3]), device=torch.device("cpu"))
        torch.clamp(x, min=-0.5, max=float("inf"))
        torch.sum(x, dim=(0, 1), keepdim=True)
        torch.as_tensor([1, 2])
        torch.relu(torch.empty(0, 3))
    found = {name.rpartition(".0.")[0]: entry for name, entry in entries(recording).items()}
    assert found["Tensor.__getitem__"].args[1] == [..., slice(1, 3, None), None]
    assert found["Tensor.to"].args[1] == Token("torch.dtype", "torch.float16")
    assert found["Tensor.to"].kwargs["memory_format"] == Token("torch.memory_format", "channels_last")
    assert found["Torch.zeros"].args[0] == Token("torch.Size", (2, 3))
    assert found["Torch.zeros"].kwargs["device"] == Token("torch.device", "cpu")
    assert dict(found["Torch.clamp"].kwargs) == {"min": -0.5, "max": float("inf")}
    assert found["Torch.sum"].kwargs["dim"] == [0, 1]
    assert found["Torch.as_tensor"].args[0] == [1, 2]
    assert found["Torch.relu"].args[0].shape == (0, 3)
    assert found["Torch.relu"].args[0].data_name is None


def test_what_has_no_plain_memory_is_named_and_not_lost(tmp_path: Path) -> None:
    with pa.record(None, tmp_path) as recording:
        torch.vmap(lambda row: row.exp())(torch.ones(2, 3))
        torch.ones(2, 2).to_sparse().coalesce()
    found = entries(recording)
    assert isinstance(found["Tensor.exp.0.forward"].args[0], Opaque)
    assert isinstance(found["Tensor.coalesce.0.forward"].args[0], Opaque)


def test_statistics_without_files(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, -3.0], [float("nan"), 2.0]])
    with pa.record(None, tmp_path, task="statistics") as recording:
        torch.relu(torch.tensor([3.0, -4.0], dtype=torch.bfloat16))
        torch.isnan(x)
        torch.neg(torch.tensor([2**40, -1]))
    found = entries(recording)
    spec = found["Torch.relu.0.forward"].args[0]
    assert (spec.max, spec.min, spec.mean, spec.norm) == (3.0, -4.0, -0.5, 5.0)
    assert found["Torch.isnan.0.forward"].args[0].max != found["Torch.isnan.0.forward"].args[0].max  # NaN
    assert (found["Torch.isnan.0.forward"].output[0].max, found["Torch.isnan.0.forward"].output[0].mean) == (1, None)
    assert found["Torch.neg.0.forward"].args[0].max == 2**40
    assert sorted(path.name for path in Path(recording.path).parent.iterdir()) == [
        "construct.json", "dump.json", "recording.json", "stack.json",
    ]  # fmt: skip


def test_statistics_of_a_mask_are_finite(tmp_path: Path) -> None:
    lowest = torch.finfo(torch.float32).min
    with pa.record(None, tmp_path, task="statistics") as recording:
        torch.neg(torch.tensor([0.0, lowest, lowest, 0.0]))
    spec = entries(recording)["Torch.neg.0.forward"].args[0]
    assert spec.mean == pytest.approx(lowest / 2)
    assert spec.norm == pytest.approx(-lowest * 2**0.5)


def test_reading_an_attribute_or_a_size_is_no_call(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    with pa.record(None, tmp_path) as recording:
        assert x.shape == x.size()
        assert x.T.dim() == 2
        assert x.sum().item() == 6
        x.numpy()
    assert list(entries(recording)) == ["Tensor.sum.0.forward"]


def test_a_function_that_calls_others_is_one_call(tmp_path: Path) -> None:
    with pa.record(None, tmp_path) as recording:
        F.normalize(torch.ones(2, 3))
        nn.init.uniform_(torch.empty(2))
    assert list(entries(recording)) == [
        "Torch.ones.0.forward", "Functional.normalize.0.forward", "Torch.empty.0.forward",
        "Other.torch.nn.init.uniform_.0.forward",
    ]  # fmt: skip


def test_only_the_apis_asked_for(tmp_path: Path) -> None:
    with pa.record(None, tmp_path, apis=("Tensor.add*", "torch.nn.functional.*")) as recording:
        x = torch.ones(3)
        (x + 1).add_(2).mul_(3)
        F.relu(x)
    assert list(entries(recording)) == ["Tensor.add.0.forward", "Tensor.add_.0.forward", "Functional.relu.0.forward"]
    with (
        pytest.warns(UserWarning, match=r"the block called nothing that Mint\.\* means"),
        pa.record(None, tmp_path, apis=("Mint.*",)),
    ):
        torch.ones(3)


def test_a_second_recording_overwrites_nothing(tmp_path: Path) -> None:
    paths = []
    for _ in range(2):
        with pa.record(None, tmp_path) as recording:
            torch.relu(torch.ones(2))
            recording.step()
            torch.abs(torch.ones(2))
        paths += recording.paths
    assert [str(Path(path).parent.relative_to(tmp_path)) for path in paths] == [
        "step0/rank0", "step1/rank0", "step2/rank0", "step3/rank0",
    ]  # fmt: skip
    assert "Torch.relu.0.forward" in {e.name for e in Dump.read(paths[2])}
    assert {e.name for e in Dump.read(paths[3])} == {"Torch.ones.0.forward", "Torch.abs.0.forward"}


def test_ranks_lie_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("0", "3"):
        monkeypatch.setenv("RANK", rank)
        with pa.record(None, tmp_path):
            torch.ones(2).exp()
    assert sorted(path.name for path in (tmp_path / "step0").iterdir()) == ["rank0", "rank3"]


def test_an_error_in_the_block_leaves_a_dump_that_opens(tmp_path: Path) -> None:
    recording = pa.record(None, tmp_path)

    def block() -> None:
        with recording:
            torch.relu(torch.ones(2))
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        block()
    assert list(entries(recording)) == ["Torch.ones.0.forward", "Torch.relu.0.forward"] + [
        f"Torch.ones.{i}.forward" for i in (1, 2)
    ]


def full_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A disk that takes so many bytes of tensors' files and then no more."""
    write, written = os.writev, [0]

    def writev(handle: int, pieces: list[Any]) -> int:
        size = sum(len(piece) for piece in pieces)
        if written[0] + size > room:
            os.write(handle, b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        written[0] += size
        return write(handle, pieces)

    monkeypatch.setattr(os, "writev", writev)


def test_a_full_disk_is_one_sentence_and_leaves_a_dump_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_after(monkeypatch, 2500)
    recording = pa.record(None, tmp_path)

    def block() -> None:
        with recording:
            x = torch.ones(2)
            torch.relu(x)
            torch.abs(x)

    with pytest.raises(OSError, match=r"a recorded tensor can't be written: No space left on device.*pt'"):
        block()
    found = entries(recording)
    specs = [spec for entry in found.values() for spec in (*entry.args, *entry.output) if isinstance(spec, TensorSpec)]
    saved = [spec.data_name for spec in specs if spec.data_name is not None]
    assert 0 < len(saved) < 5
    assert sorted(saved) == sorted(p.name for p in (Path(recording.path).parent / "dump_tensor_data").iterdir())
    for entry in found.values():
        for spec in (*entry.args, *entry.output):
            if isinstance(spec, TensorSpec) and spec.data_name is not None:
                assert torch.equal(value(recording, spec), torch.ones(2))


def test_a_full_disk_leaves_the_gradients_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_after(monkeypatch, 2500)
    w = torch.ones(3, requires_grad=True)

    def block() -> None:
        with pa.record(None, tmp_path):
            for _ in range(5):
                (w * 2).sum().backward()

    with pytest.raises(OSError, match="No space left on device"):
        block()
    assert torch.equal(w.grad, torch.full((3,), 10.0))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"level": "L2"}, "level='L2' can't be recorded: give 'L0' or 'L1' or 'mix'"),
        ({"task": "sha"}, "task='sha' can't be recorded: give 'tensor' or 'statistics' or 'md5'"),
        ({"format": "npy"}, "format='npy' can't be recorded: give 'pt' or 'safetensors'"),
        ({"steps": "1;2"}, "steps='1;2' can't be chosen: give numbers and ranges such as '0,2-4' or '3-'"),
        ({"rounds": "first"}, "rounds='first' can't be chosen: give all, prefill, decode, or numbers"),
        ({"tokens": -1}, r"tokens=\[-1\] can't be chosen: give whole numbers"),
        ({"warmup": -1}, "warmup=-1 can't be recorded: give a whole number"),
    ],
)
def test_what_is_not_offered_is_refused_with_what_is(tmp_path: Path, given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pa.record(None, tmp_path, **given)
    with pytest.raises(TypeError, match=r"needs a torch\.nn\.Module, several, .* or None, and was given a function"):
        pa.record(test_ranks_lie_beside_each_other, tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_backward_pass_after_the_block_is_said_to_be_missing(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    with pa.record(None, tmp_path):
        y = torch.exp(x).sum()
    with pytest.warns(UserWarning, match=r"its gradients aren't in the dump: call backward\(\) inside the block"):
        y.backward()
    assert x.grad is not None


def test_numbers_that_strict_json_has_not_are_written_as_msprobe_does(tmp_path: Path) -> None:
    with pa.record(None, tmp_path) as recording:
        torch.relu(torch.tensor([float("nan")]))
    assert "NaN" in Path(recording.path).read_text()
    assert json.loads(Path(recording.path).read_text())["task"] == "tensor"


def test_what_gives_back_its_argument_has_no_backward_pass_of_its_own(tmp_path: Path) -> None:
    x = torch.ones(3, 3, requires_grad=True)
    with pa.record(None, tmp_path) as recording:
        y = x * 2
        assert y.contiguous() is y
        y.contiguous().sum().backward()
    names = list(entries(recording))
    assert "Tensor.contiguous.1.forward" in names
    assert [name for name in names if name.endswith(".backward")] == ["Tensor.sum.0.backward", "Tensor.mul.0.backward"]


@pytest.mark.parametrize("fn", [lambda x: torch.mul(x, x), lambda x: torch.nn.functional.bilinear(x, x, WEIGHT)])
def test_an_argument_given_twice_has_one_gradient(tmp_path: Path, fn: Any) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with pa.record(None, tmp_path) as recording:
        fn(x).sum().backward()
    found = next(entry for name, entry in entries(recording).items() if ".sum." not in name and "backward" in name)
    assert x.grad is not None
    assert torch.equal(value(recording, found.output[0]), x.grad)


WEIGHT = torch.randn(2, 3, 3)


def test_a_conjugate_is_written_as_the_numbers_it_stands_for(tmp_path: Path) -> None:
    x = torch.randn(4, dtype=torch.complex64)
    with pa.record(None, tmp_path) as recording:
        torch.abs(x.conj())
        torch.abs(x.conj().imag)
    found = entries(recording)
    for name, wanted in (("Torch.abs.0.forward", x.conj()), ("Torch.abs.1.forward", x.conj().imag)):
        spec = found[name].args[0]
        assert torch.equal(value(recording, spec), wanted.resolve_conj().resolve_neg())
        stored = torch.load(Path(recording.path).parent / "dump_tensor_data" / spec.data_name, weights_only=True)
        assert not stored.is_conj()
        assert not stored.is_neg()


def test_no_tensor_s_file_is_written_over(tmp_path: Path) -> None:
    from pytest_ascend.dumps.writing import Writer

    writer = Writer(tmp_path / "dump", task="tensor", level="L1")
    for tensor in (torch.ones(3), torch.zeros(3)):
        taken: Any = []
        writer.value(tensor, "Torch.relu.0.forward", "input.0", taken)
        writer.keep(taken)
    with pytest.raises(FileExistsError, match="a recorded tensor can't be written: File exists"):
        writer.close()
    (file,) = (tmp_path / "dump").rglob("*.pt")
    held = torch.load(file, weights_only=True)  # whole: of whichever thread came first
    assert torch.equal(held, torch.ones(3)) or torch.equal(held, torch.zeros(3))


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_a_check_runs_often_and_is_recorded_once(tmp_path: Path, mode: Any) -> None:
    with pa.record(None, tmp_path) as recording:
        x = torch.randn(8)
        assert pa.check(lambda x: relu(x) + 1, x, options=pa.CheckOptions(target="emulated", mode=mode)).passed
        relu(x)
    assert sum("relu" in name for name in entries(recording)) == 2
