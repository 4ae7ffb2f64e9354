"""Recording layers: levels L0 and mix, generation loops, limits, and what runs compiled."""

from __future__ import annotations

import json
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_ascend as pa
from pytest_ascend.dumps import Dump, Recorded, writing


def data(recording: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(recording.path).read_text())["data"]
    return found


def beside(recording: Any, name: str) -> Any:
    return json.loads(Path(recording.path).with_name(name).read_text())


def loaded(recording: Any, described: dict[str, Any]) -> torch.Tensor:
    file = Path(recording.path).parent / "dump_tensor_data" / described["data_name"]
    tensor: torch.Tensor = torch.load(file, weights_only=True)
    return tensor


class Block(nn.Module):
    """A residual block of a vision model, written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(self.relu(self.bn1(self.conv1(x))))
        y += x  # what conv2 returned is changed in place
        return self.relu(y)


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layers = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def tiny_bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    model: nn.Module = transformers.BertModel(config)
    return model


def tiny_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **sizes))


def gradients(model: nn.Module, step: Any) -> list[torch.Tensor]:
    model.zero_grad()
    step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("task", ["tensor", "statistics", "md5"])
def test_gradients_are_the_same_to_the_bit(tmp_path: Path, level: str, task: str) -> None:
    torch.manual_seed(0)
    vision, words = Vision(), torch.randint(0, 40, (2, 6))
    image, bert = torch.randn(2, 3, 10, 10), tiny_bert()
    for model, step in (
        (vision, lambda: vision(image).square().mean().backward()),
        (bert, lambda: bert(words).last_hidden_state.square().mean().backward()),
    ):
        buffers = {name: one.clone() for name, one in model.named_buffers()}
        plain = gradients(model, step)
        model.load_state_dict(buffers, strict=False)
        with pa.record(model, tmp_path, level=level, task=task):
            recorded = gradients(model, step)
        assert len(plain) > 8
        assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


def test_names_and_sections_are_those_of_msprobe(tmp_path: Path) -> None:
    model, x = Vision(), torch.randn(2, 3, 10, 10)
    with pa.record(model, tmp_path, level="L0") as recording:
        model(x).sum().backward()
    found = data(recording)
    names = list(found)
    assert names[0] == "Module.stem.Conv2d.forward.0"
    assert names[names.index("Module.layers.0.Block.forward.0") - 1] == "Module.layers.0.relu.ReLU.forward.1"
    assert not [name for name in names if name.startswith("Module.Vision")]
    entry = found["Module.layers.1.conv1.Conv2d.forward.0"]
    assert set(entry) == {"input_args", "input_kwargs", "output", "parameters"}
    assert entry["parameters"]["weight"]["data_name"] == "Module.layers.1.conv1.Conv2d.forward.0.parameters.weight.pt"
    assert entry["output"][0]["data_name"] == "Module.layers.1.conv1.Conv2d.forward.0.output.0.pt"
    assert set(found["Module.layers.1.conv1.Conv2d.backward.0"]) == {"input", "output"}
    grads = found["Module.head.Linear.parameters_grad.0"]
    assert grads["bias"][0]["data_name"] == "Module.head.Linear.parameters_grad.0.bias.pt"
    assert torch.equal(loaded(recording, grads["weight"][0]), model.head.weight.grad)
    construct = beside(recording, "construct.json")
    assert construct["Module.layers.1.conv1.Conv2d.forward.0"] == "Module.layers.1.Block.forward.0"
    assert construct["Module.layers.1.conv1.Conv2d.backward.0"] == "Module.layers.1.Block.backward.0"
    assert construct["Module.layers.1.Block.forward.0"] == "Module.layers.Sequential.forward.0"
    assert construct["Module.stem.Conv2d.forward.0"] is None
    assert not [name for name in construct if "parameters_grad" in name]
    frames = pa.dumps.open(recording.path).stack()["Module.stem.Conv2d.forward.0"]
    assert "test_record_layers.py" in frames[0]
    assert {entry.name for entry in Dump.read(recording.path)} >= {"Module.stem.Conv2d.forward.0"}


def test_outputs_are_kept_as_they_were_before_something_works_in_place(tmp_path: Path) -> None:
    model, x = Vision(), torch.randn(2, 3, 10, 10)
    with pa.record(model, tmp_path, level="L0") as recording:
        model(x)
    found = data(recording)
    before = loaded(recording, found["Module.layers.0.bn1.BatchNorm2d.forward.0"]["output"][0])
    after = loaded(recording, found["Module.layers.0.relu.ReLU.forward.0"]["output"][0])
    assert before.min() < 0
    assert torch.equal(after, before.relu())  # ReLU(inplace=True) wrote over what the norm had returned


def test_gradients_of_a_layer_are_those_of_its_inputs_and_outputs(tmp_path: Path) -> None:
    model, x = Vision(), torch.randn(2, 3, 10, 10, requires_grad=True)
    with pa.record(model, tmp_path, level="L0") as recording:
        stem = model.stem(x)
        stem.retain_grad()
        blocks = model.layers(stem)
        blocks.retain_grad()
        model.head(blocks.mean((2, 3))).square().sum().backward()
    found = data(recording)
    assert torch.equal(loaded(recording, found["Module.stem.Conv2d.backward.0"]["output"][0]), x.grad)
    whole = found["Module.layers.Sequential.backward.0"]
    assert torch.equal(loaded(recording, whole["input"][0]), blocks.grad)
    assert torch.allclose(loaded(recording, whole["output"][0]), stem.grad)


def test_mix_says_which_layer_each_call_belongs_to(tmp_path: Path) -> None:
    model = tiny_bert()
    with pa.record(model, tmp_path, level="mix", task="statistics") as recording:
        model(torch.randint(0, 40, (2, 6))).last_hidden_state.sum().backward()
    found, construct = data(recording), beside(recording, "construct.json")
    calls = [name for name in found if name.endswith((".forward", ".backward"))]
    assert len(calls) > 80
    assert set(calls) <= set(construct)
    owner = construct["Functional.softmax.0.forward" if "Functional.softmax.0.forward" in found else
                      "Functional.scaled_dot_product_attention.0.forward"]  # fmt: skip
    assert owner.startswith("Module.encoder.layer.0.attention.self.")
    assert construct["Functional.gelu.0.backward"] == construct["Functional.gelu.0.forward"].replace(
        "forward", "backward"
    )
    parents = {parent for parent in construct.values() if parent is not None}
    assert {parent for parent in parents if ".forward." in parent} <= set(found)


def test_a_model_that_is_one_layer_and_several_models(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    one = nn.Linear(3, 3)
    with pa.record(one, tmp_path / "one", level="L0") as recording:
        one(x)
    assert list(data(recording)) == ["Module.Linear.forward.0"]
    models = [nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.ReLU())]
    with pa.record(models, tmp_path / "two", level="L0") as recording:
        models[1](models[0](x))
    assert list(data(recording)) == ["Module.0.0.Linear.forward.0", "Module.1.0.ReLU.forward.0"]


def test_modules_that_nobody_named_are_taken_as_they_come(tmp_path: Path) -> None:
    first, second = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Tanh())
    with pa.record(None, tmp_path, level="L0") as recording:
        second(first(torch.ones(2, 3)))
        first(torch.ones(1, 3))
    assert list(data(recording)) == [
        "Module.0.Linear.forward.0", "Module.1.ReLU.forward.0", "Module.1.0.Tanh.forward.0",
        "Module.0.Linear.forward.1", "Module.1.ReLU.forward.1",
    ]  # fmt: skip


def test_the_inner_model_of_a_runner(tmp_path: Path) -> None:
    class Runner:
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.Embedding(40, 4), nn.Linear(4, 40))

        @torch.inference_mode()
        def execute(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens).argmax(-1)

    runner = Runner()
    with pa.record(runner, tmp_path, level="mix") as recording:
        runner.execute(torch.arange(5))
    assert list(data(recording)) == [
        "Torch.arange.0.forward", "Functional.embedding.0.forward", "Module.0.Embedding.forward.0",
        "Functional.linear.0.forward", "Module.1.Linear.forward.0", "Tensor.argmax.0.forward",
    ]  # fmt: skip


def test_only_the_layers_asked_for_and_what_they_call(tmp_path: Path) -> None:
    model = Vision()
    with pa.record(model, tmp_path / "some", level="mix", modules=["layers.1.*"]) as recording:
        model(torch.randn(1, 3, 8, 8)).sum().backward()
    names = list(data(recording))
    assert "Module.layers.1.conv1.Conv2d.forward.0" in names
    assert not [name for name in names if "layers.0" in name or "stem" in name or "linear" in name]
    assert sum(name.startswith("Functional.conv2d") for name in names if name.endswith("forward")) <= 2
    assert "Torch.sum.0.forward" not in names
    with pytest.raises(ValueError, match=r"checkpoint 'layer\.1' matches no layer: the closest"):
        pa.record(model, tmp_path / "none", level="L0", modules="layer.1")


def test_a_sample_of_layers_stands_for_a_deep_model(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(200)])
    with pa.record(model, tmp_path, level="L0", modules="sample") as recording:
        model(torch.ones(1, 4))
    assert 5 <= len(data(recording)) <= 14
    assert beside(recording, "recording.json")["modules"] == "sample"


def both(fn: Any, values: tuple[torch.Tensor, ...], folder: Path, **options: Any) -> Any:
    """A recording of a function of each value."""
    with pa.record(None, folder, **options) as recording:
        for value in values:
            fn(value)
    return recording


def compiled(model: Any, call: Any, folder: Path, level: str) -> Any:
    """A recording of a call."""
    with pa.record(model, folder, level=level) as recording:
        call()
    return recording


def test_limits_stand_in_the_dump_and_are_said(tmp_path: Path) -> None:
    big, small = torch.arange(4096.0), torch.ones(8)
    with (
        pytest.warns(UserWarning, match=r"of 2 tensors one element in 10 is kept"),
        pa.record(None, tmp_path / "every", every=10) as recording,
    ):
        torch.neg(big)
    described = data(recording)["Torch.neg.0.forward"]["output"][0]
    assert described["sampled"] == {"shape": [4096], "every": 10}
    assert described["shape"] == [410]
    assert described["Min"] == -4095.0
    assert torch.equal(loaded(recording, described), -big[::10])
    with pytest.warns(UserWarning, match="2 tensors are larger than 1000 bytes"):
        recording = both(torch.neg, (big, small), tmp_path / "largest", largest=1000)
    first, second = (data(recording)[f"Torch.neg.{i}.forward"]["output"][0] for i in (0, 1))
    assert first["not_saved"] == "larger than 1000 bytes"
    assert (first["Max"], first["Min"]) == (0.0, -4095.0)
    assert "data_name" not in first
    assert "data_name" in second
    assert beside(recording, "recording.json")["too_large"] == 2
    with pytest.warns(UserWarning, match="tensors lie beyond 20000 bytes of a step"):
        recording = both(torch.neg, (big, big * 2), tmp_path / "total", total=20000)
    assert "data_name" in data(recording)["Torch.neg.0.forward"]["input_args"][0]
    assert "not_saved" in data(recording)["Torch.neg.0.forward"]["output"][0]
    with pytest.raises(pa.dumps.DumpError, match="no values were recorded"):
        Recorded(Path(recording.path).parent)(None, "float32", (4096,))  # type: ignore[arg-type]


def test_a_sampled_call_is_not_replayed_as_if_it_were_whole(tmp_path: Path, pytester: pytest.Pytester) -> None:
    with pytest.warns(UserWarning, match="one element in 10"), pa.record(None, tmp_path, every=10) as recording:
        torch.neg(torch.arange(4096.0))
    result = pytester.runpytest_subprocess(recording.path, "--ascend-compare", "-k", "neg")
    result.stdout.fnmatch_lines(["*only some of its elements were recorded: record the call without `every`*"])
    result.assert_outcomes(errors=1)


def test_md5_is_the_crc_of_the_bytes(tmp_path: Path) -> None:
    x = torch.randn(40, 50)
    with pa.record(None, tmp_path, task="md5") as recording:
        torch.neg(x)
        torch.neg(x.t())
    head = json.loads(Path(recording.path).read_text())
    assert head["task"] == "statistics"
    first, second = (data(recording)[f"Torch.neg.{i}.forward"]["input_args"][0] for i in (0, 1))
    assert first["md5"] == f"{zlib.crc32(x.numpy().tobytes()):08x}"
    assert second["md5"] == f"{zlib.crc32(x.t().contiguous().numpy().tobytes()):08x}"
    assert not (Path(recording.path).parent / "dump_tensor_data").exists()


def test_safetensors_hold_the_same_values(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    with pa.record(None, tmp_path, format="safetensors") as recording:
        torch.neg(x.bfloat16())
        torch.abs(x)
    described = data(recording)["Torch.abs.0.forward"]["input_args"][0]
    assert described["data_name"] == "Torch.abs.0.forward.input.0.safetensors"
    raw = (Path(recording.path).parent / "dump_tensor_data" / described["data_name"]).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + size])["data"]
    assert head == {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}
    assert raw[8 + size :] == x.numpy().tobytes()
    recorded = Recorded(Path(recording.path).parent)
    assert torch.equal(recorded("Torch.abs.0.forward.input.0.safetensors", "float32", (3, 4)), x)
    assert torch.equal(recorded("Torch.neg.0.forward.output.0.safetensors", "bfloat16", (3, 4)), -x.bfloat16())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "isn't a .safetensors file, or was cut off"),
        (b"\xff" * 8 + b"{}", "isn't a .safetensors file, or was cut off"),
        ({"a": 1}, "its description of one tensor is broken"),
        ({}, "its description of one tensor is broken"),
        ({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}, "holds F64, and float32 is declared"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}, r"holds the shape \(3,\), and \(2,\)"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, "the tensor is larger than its values"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "the tensor is larger than its values"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, "8"]}}, "the tensor is larger than its values"),
    ],
)
def test_a_broken_safetensors_file_is_one_sentence(tmp_path: Path, raw: Any, text: str) -> None:
    (tmp_path / "dump_tensor_data").mkdir()
    if isinstance(raw, dict):
        head = json.dumps(raw).encode()
        raw = len(head).to_bytes(8, "little") + head + b"\0" * 7
    (tmp_path / "dump_tensor_data" / "x.safetensors").write_bytes(raw)
    with pytest.raises(pa.dumps.DumpError, match=text):
        Recorded(tmp_path)("x.safetensors", "float32", (2,))


# ---------------------------------------------------------------------------------------------- unchanged tensors


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_tensor_that_changed_behind_autograd_is_recorded_anew(tmp_path: Path, task: str) -> None:
    x = torch.randn(100, 100)
    y = torch.empty(0)
    with pa.record(None, tmp_path, task=task) as recording:
        y = torch.relu(x)
        kept = y.clone()
        torch.neg(y)
        y.data.mul_(2)  # another version counter
        torch.neg(y)
        y.numpy()[3, 4] = 1000.0  # none at all
        torch.neg(y)
        kept.view(-1)[::2].expand(5000).neg()
    found = data(recording)
    inputs = [found[f"Torch.neg.{i}.forward"]["input_args"][0] for i in range(3)]
    assert inputs[0]["Max"] == pytest.approx(x.max().item())
    assert inputs[1]["Max"] == pytest.approx(2 * x.max().item())
    assert inputs[2]["Max"] == 1000.0
    if task == "tensor":
        assert torch.equal(loaded(recording, inputs[0]), torch.relu(x))
        assert torch.equal(loaded(recording, inputs[2]), y)
        folder = Path(recording.path).parent / "dump_tensor_data"
        same = [folder / name for name in ("Torch.relu.0.forward.output.0.pt", "Torch.neg.0.forward.input.0.pt")]
        assert same[0].stat().st_ino == same[1].stat().st_ino  # written once
        assert same[0].read_bytes() == same[1].read_bytes()


def test_a_disk_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, path: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    x = torch.randn(100, 100)
    with pa.record(None, tmp_path) as recording:
        torch.neg(torch.relu(x))
    assert torch.equal(loaded(recording, data(recording)["Torch.neg.0.forward"]["input_args"][0]), torch.relu(x))


def test_the_block_waits_when_too_much_is_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ascend.dumps import saving

    go, waiting = threading.Event(), []
    write = saving._write

    def slow(path: str, pieces: list[Any]) -> None:
        go.wait(10)
        write(path, pieces)

    monkeypatch.setattr(saving, "_write", slow)
    monkeypatch.setattr(saving, "_PATIENCE", 0.0)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        waiting.append(recording._writer._saver._waiting if recording._writer is not None else 0)
        if len(said) == 3:
            go.set()

    recording = pa.record(None, tmp_path, memory=1 << 20, progress=say)
    threading.Timer(1.0, go.set).start()
    with recording:
        for _ in range(8):
            torch.ones(100_000)  # 400 kB
    assert max(waiting) <= 1 << 20
    assert any("MB of tensors written so far" in line for line in said)
    assert len(data(recording)) == 8


def test_a_dump_that_finds_no_room_for_its_own_text_keeps_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = writing._write

    def full(path: str, text: str) -> None:
        if path.endswith("dump.json") and len(text) > 3000:
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(writing, "_write", full)
    recording = pa.record(None, tmp_path, task="statistics")

    def block() -> None:
        with recording:
            for _ in range(20):
                torch.ones(3)

    with pytest.raises(OSError, match="the dump isn't whole: No space left on device"):
        block()
    assert 0 < len(data(recording)) < 20
    assert "entries are lost" in beside(recording, "recording.json")["cut_off"]


def test_a_disk_without_any_room_is_one_sentence_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "_write", full)
    with (
        pytest.raises(OSError, match=r"the dump can't be written: No space left on device: .*step0.*dump\.json"),
        pa.record(None, tmp_path, task="statistics"),
    ):
        torch.ones(3)


# ---------------------------------------------------------------------------------------------- steps and rounds


def test_steps_are_chosen_and_warm_up_is_not_counted(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pa.record(model, tmp_path, level="L0", steps="1,3-", warmup=1) as recording:
        for i in range(6):
            model(torch.full((1, 2), float(i)))
            recording.step()
    assert [Path(path).parent.parent.name for path in recording.paths] == ["step1", "step3", "step4", "step5"]
    described = json.loads(Path(recording.paths[0]).read_text())["data"]["Module.0.Linear.forward.0"]["input_args"][0]
    assert described["Max"] == 2.0  # the third call: one is warm-up, one is step 0


def test_ranks_that_are_not_asked_for_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pa.record(None, tmp_path, ranks="0,2-") as recording:
        torch.ones(2)
        recording.step() if recording.paths else None
    assert not list(tmp_path.iterdir())
    assert not recording.paths


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"rounds": "all"}, [0, 1, 2, 3]),
        ({"rounds": "prefill"}, [0]),
        ({"rounds": "decode"}, [1, 2, 3]),
        ({"rounds": "prefill,2-"}, [0, 2, 3]),
        ({"rounds": lambda one: one.number == 3}, [3]),
        ({"tokens": "6-7"}, [2, 3]),
        ({"tokens": 0}, [0]),
        ({"rounds": "all", "warmup": 1}, [0, 1, 2]),
    ],
)
def test_rounds_of_a_generation_loop(tmp_path: Path, given: dict[str, Any], steps: list[int]) -> None:
    model = tiny_llama()
    words = torch.tensor([[3, 1, 4, 1, 5]])
    with pa.record(model, tmp_path, level="L0", task="statistics", **given) as recording:
        model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [Path(path).parent.parent.name for path in recording.paths] == [f"step{i}" for i in steps]
    if "warmup" not in given:
        told = json.loads(Path(recording.paths[-1]).with_name("recording.json").read_text())["round"]
        assert told["first"] == (0 if steps[-1] == 0 else 4 + steps[-1])
        assert told["kind"] == ("prefill" if steps[-1] == 0 else "decode")


def test_rounds_of_an_engine_whose_sequences_lie_behind_each_other() -> None:
    from pytest_ascend.observe.rounds import Counter

    counter = Counter()
    kinds = []
    for positions in ([0, 1, 2, 0, 1], [3, 2], [4, 3]):
        found = counter.next((torch.zeros(len(positions), dtype=torch.int64), torch.tensor(positions)), {})
        assert found is not None
        kinds.append((found.kind, found.first, found.tokens))
    assert kinds == [("prefill", 0, 5), ("decode", 2, 1), ("decode", 3, 1)]


# ---------------------------------------------------------------------------------------------- what has no calls


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_compiled_model_is_said_to_be_not_exercised(tmp_path: Path, level: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    fast = torch.compile(model, backend="aot_eager")
    with pytest.warns(UserWarning, match="NOT_EXERCISED") as warned:
        recording = compiled(fast, lambda: fast(torch.ones(1, 3)), tmp_path, level)
    found = beside(recording, "recording.json")
    if level == "L0":
        assert found["verdict"] == "NOT_EXERCISED"
        assert found["layers_that_never_ran"] == ["0", "1"]
        assert any("2 layers never ran as modules" in str(one.message) for one in warned)
    assert not [name for name in data(recording) if name.startswith("Module.")]
    with torch.compiler.set_stance("force_eager"), pytest.warns(UserWarning, match="NOT_EXERCISED"):
        recording = compiled(fast, lambda: fast(torch.ones(1, 3)), tmp_path, "L0")
    assert list(data(recording)) == ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0"]


def test_a_compiled_function_that_calls_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    step = torch.compile(lambda x: model(x).sum(), backend="aot_eager")
    with pytest.warns(UserWarning, match=r"NOT_EXERCISED: 2 layers never ran as modules \(0, 1\)"):
        compiled(model, lambda: step(torch.ones(1, 3)), tmp_path, "mix")


def test_layers_that_a_fused_path_skips_are_listed(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    outer = nn.Sequential(nn.Linear(8, 8), model).eval()
    with pa.record(outer, tmp_path, level="L0") as recording, torch.inference_mode():
        outer(torch.randn(1, 3, 8))
    assert "1.linear1" in beside(recording, "recording.json")["layers_that_never_ran"]
    assert "Module.1.TransformerEncoderLayer.forward.0" in data(recording)


def test_checkpointed_layers_are_recorded_once_and_that_is_said(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3, requires_grad=True)
    with pytest.warns(UserWarning, match="3 calls of layers ran again inside a backward pass"):
        recording = compiled(model, lambda: checkpoint(model, x, use_reentrant=False).sum().backward(), tmp_path, "L0")
    assert "Module.0.Linear.backward.0" in data(recording)
    assert "Module.0.Linear.forward.1" not in data(recording)


def test_calling_modules_is_as_before_afterwards(tmp_path: Path) -> None:
    before = nn.Module.__call__
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"), pa.record(model, tmp_path, level="L0"):
        model(torch.ones(1, 4))
    assert nn.Module.__call__ is before
    assert not model[0].weight._post_accumulate_grad_hooks


def test_a_copy_of_the_model_works_on_its_own_weights(tmp_path: Path) -> None:
    import copy

    model = nn.Sequential(nn.Linear(3, 3))
    with pa.record(model, tmp_path, level="L0") as recording:
        other = copy.deepcopy(model)
        nn.init.zeros_(other[0].weight)
        nn.init.zeros_(other[0].bias)
        assert not other(torch.ones(1, 3)).any()
        assert model(torch.ones(1, 3)).any()
    assert list(data(recording)) == ["Module.0.Linear.forward.0"]


def test_a_forked_process_records_nothing(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> torch.Tensor:
            return torch.ones(2000) * i

    with pa.record(None, tmp_path) as recording:
        torch.ones(2000)
        loader: Any = DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork")
        batches = [batch.sum() for batch in loader]
    assert len(batches) == 4
    assert not [name for name in data(recording) if name.startswith("Tensor.mul")]


def test_every_structure_of_arguments_is_kept(tmp_path: Path) -> None:
    from dataclasses import dataclass

    @dataclass
    class Pair:
        left: torch.Tensor
        right: int

    class Odd(nn.Module):
        def forward(self, pair: Pair, table: dict[int, torch.Tensor], thing: object) -> dict[str, torch.Tensor]:
            return {"out": pair.left + table[3]}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = Odd()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.odd(Pair(x, 2), {3: x}, thing=object())["out"]

    model = Outer()
    with pa.record(model, tmp_path, level="L0") as recording:
        model(torch.ones(2))
    entry = data(recording)["Module.odd.Odd.forward.0"]
    assert entry["input_args"][0]["left"]["shape"] == [2]
    assert entry["input_args"][0]["right"] == {"type": "int", "value": 2}
    assert entry["input_args"][1]["3"]["shape"] == [2]
    assert entry["input_kwargs"]["thing"] == {"type": "builtins.object"}
    assert entry["output"][0]["out"]["Max"] == 2.0
    assert beside(recording, "recording.json")["by_type_alone"] == {"builtins.object": 1}


def test_functional_calls_inside_of_a_vmap_pass_through(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pa.record(model, tmp_path, level="mix") as recording:
        torch.vmap(model)(torch.ones(2, 3))
        F.relu(torch.ones(2))
    assert "Functional.relu.0.forward" in data(recording)


# ---------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("refuses", [False, True])
def test_large_files_are_those_of_torch_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    import errno
    import os
    import zipfile

    real, refused = os.open, []

    def opened(path: Any, flags: int, *mode: int) -> int:
        if refuses and flags & getattr(os, "O_DIRECT", 0):
            refused.append(path)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", opened)
    values = [torch.randn(700, 701), torch.randn(300, 301).bfloat16(), torch.randn(90, 700).t(), torch.randn(500_000)]
    with pa.record(None, tmp_path) as recording:
        for _ in range(2):  # the second time in memory that the first was written from
            for x in values:
                torch.neg(x)
        torch.abs(torch.randn(700, 701, dtype=torch.complex64).conj())
    found = data(recording)
    folder = Path(recording.path).parent / "dump_tensor_data"
    for i, x in enumerate(values * 2):
        entry = found[f"Torch.neg.{i}.forward"]
        for described, wanted in ((entry["input_args"][0], x), (entry["output"][0], -x)):
            got = loaded(recording, described)
            assert got.dtype == wanted.dtype
            assert torch.equal(got, wanted)
            assert got.is_contiguous()
            assert zipfile.ZipFile(folder / described["data_name"]).testzip() is None
            assert described["Max"] == pytest.approx(wanted.float().max().item())
            assert described["Mean"] == pytest.approx(wanted.float().mean().item(), abs=1e-6)
    conjugate = loaded(recording, found["Torch.abs.0.forward"]["input_args"][0])
    assert torch.equal(conjugate.abs(), loaded(recording, found["Torch.abs.0.forward"]["output"][0]))
    # Threads that write at the same time may each ask once.
    assert bool(refused) == refuses or not hasattr(os, "O_DIRECT")
    assert len(refused) < len(values)


@pytest.mark.parametrize("task", ["tensor", "statistics", "md5"])
def test_a_model_on_the_device_is_recorded_as_one_on_the_cpu(tmp_path: Path, task: str) -> None:
    pa.emulator.install()
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(40, 64)
    dumps = []
    for device in ("cpu", "npu"):
        model.zero_grad(set_to_none=True)
        model.to(device)
        given = x.to(device)
        with pa.record(model, tmp_path / device, level="mix", task=task) as recording:
            model(given).sum().backward()
        dumps.append(data(recording))
        if task == "tensor":
            described = dumps[-1]["Module.0.Linear.forward.0"]["input_args"][0]
            assert torch.equal(loaded(recording, described), x)
    assert list(dumps[0]) == list(dumps[1])
    one, other = (found["Module.0.Linear.forward.0"] for found in dumps)
    assert one["input_args"][0].get("md5") == other["input_args"][0].get("md5")
    assert one["output"][0]["Norm"] == pytest.approx(other["output"][0]["Norm"], rel=1e-3)
    assert one["parameters"]["bias"]["Max"] == other["parameters"]["bias"]["Max"]
