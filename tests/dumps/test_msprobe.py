"""Reading what msprobe writes."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.dumps.msprobe import Name
from pytest_ascend.dumps.values import ITEMSIZES, Opaque, TensorSpec, Token, read_value, tensors


def test_a_dump_is_read_call_by_call(recorder) -> None:
    record = recorder()
    x = torch.randn(4, 8, requires_grad=True)
    record("Torch.softmax", torch.softmax, x, dim=-1)
    record("Tensor.add_", torch.Tensor.add_, torch.ones(3), 2)
    dump = pa.dumps.open(record.write())
    assert (dump.task, dump.level, dump.framework, dump.step, dump.rank) == ("tensor", "L1", "pytorch", 0, 0)
    forward, backward, add = dump
    assert forward.call == Name("Torch", "softmax", 0, "forward")
    assert backward.call is not None
    assert backward.call.forward == forward.name
    assert forward.kwargs == {"dim": -1}
    assert torch.equal(dump.tensor(forward.args[0]), x)
    assert not dump.tensor(forward.args[0]).requires_grad
    assert dump.tensor(backward.grads[0]).shape == (4, 8)
    assert add.args[1] == 2


def test_a_folder_with_one_dump_is_that_dump(recorder, tmp_path) -> None:
    record = recorder()
    record("Torch.relu", torch.relu, torch.ones(2))
    path = record.write()
    assert pa.dumps.open(tmp_path).path == str(path)
    recorder("step1/rank0").write({})
    with pytest.raises(pa.dumps.DumpError, match=r"2 dumps are below this folder \(dump.step0.rank0.dump.json, "):
        pa.dumps.open(tmp_path)
    with pytest.raises(pa.dumps.DumpError, match=r"no dump.json or debug.json is in this folder"):
        pa.dumps.open(path.parent / "dump_tensor_data")


def test_dumps_are_found_in_numeric_order(recorder, tmp_path) -> None:
    for step in (10, 9, 0):
        recorder(f"step{step}/rank1").write({})
    assert [pa.dumps.open(path).step for path in pa.dumps.find(tmp_path)] == [0, 9, 10]


def test_the_reader_is_light() -> None:
    code = "import sys, pytest_ascend as pa; pa.dumps.open; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", sorted(ITEMSIZES))
def test_every_dtype_is_read_back(recorder, dtype) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"torch {torch.__version__} has no {dtype}")
    record = recorder()
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    try:
        about = record.tensor(value, "x")
    except (RuntimeError, NotImplementedError):  # no kernel for its statistics; the values lie there all the same
        (record.folder / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
        torch.save(value, record.folder / "dump_tensor_data" / "x.pt")
        about = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": [2, 3], "data_name": "x.pt"}
    record.data["x.0.debug"] = about
    dump = pa.dumps.open(record.write(level="debug"))
    (entry,) = dump
    loaded = dump.tensor(entry.value)
    assert loaded.dtype == value.dtype
    assert torch.equal(loaded.view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        ({"type": "int", "value": 3}, 3),
        ({"type": "bool", "value": True}, True),
        ({"type": "float", "value": 2}, 2.0),
        ({"type": "float", "value": -math.inf}, -math.inf),
        ({"type": "float", "value": 10**400}, math.inf),
        ({"type": "str", "value": "ij->ji"}, "ij->ji"),
        ({"type": "slice", "value": [None, 3, -1]}, slice(None, 3, -1)),
        ({"type": "ellipsis", "value": "..."}, ...),
        ({"type": "torch.Size", "value": [2, 3]}, Token("torch.Size", (2, 3))),
        ({"type": "torch.dtype", "value": "torch.float16"}, Token("torch.dtype", "torch.float16")),
        ({"type": "torch.device", "value": "npu:0"}, Token("torch.device", "npu:0")),
        ({"type": "torch.memory_format", "format": "channels_last"}, Token("torch.memory_format", "channels_last")),
        ({"type": "torch.ProcessGroup", "group_ranks": [0]}, Opaque("torch.ProcessGroup")),
        ({"type": "numpy.ndarray", "dtype": "float64", "shape": [1]}, Opaque("numpy.ndarray")),
        ({"type": "float32", "value": 1.5}, 1.5),
        ([{"type": "int", "value": 1}, [None]], [1, [None]]),
        ({"a": {"type": "int", "value": 1}}, {"a": 1}),
        ({"type": "NoneType", "value": None}, None),
    ],
)
def test_arguments_of_every_type(value, wanted) -> None:
    found = read_value(value, "here")
    assert found == wanted
    assert type(found) is type(wanted)


def test_a_mindspore_tensor_has_the_same_names(recorder) -> None:
    about = {"type": "mindspore.Tensor", "dtype": "BFloat16", "shape": [2], "Max": 1.0, "Min": 0.5}
    spec = read_value(about, "here")
    assert isinstance(spec, TensorSpec)
    assert spec.dtype == "bfloat16"
    record = recorder(framework="mindspore")
    (record.folder / "dump_tensor_data").mkdir(parents=True)
    np.save(record.folder / "dump_tensor_data" / "a.npy", np.array([0.5, 1.0], np.float32))
    record.data["Mint.exp.0.forward"] = {"input_args": [{**about, "data_name": "a.npy"}], "output": []}
    dump = pa.dumps.open(record.write())
    (entry,) = dump
    assert torch.equal(dump.tensor(entry.args[0]), torch.tensor([0.5, 1.0], dtype=torch.bfloat16))


def test_layers_single_saves_and_other_names() -> None:
    assert Name.parse("Module.encoder.layer.0.Linear.forward.2") == Name(
        "Module", "encoder.layer.0.Linear", 2, "forward"
    )
    assert Name.parse("Aten.add.Tensor.4.backward") == Name("Aten", "add.Tensor", 4, "backward")
    assert Name.parse("x.0.debug") is None
    assert Name.parse("Torch.relu") is None


def test_stacks_and_layers_beside_a_dump(recorder) -> None:
    record = recorder()
    path = record.write({})
    dump = pa.dumps.open(path)
    assert dump.stack() == {}
    assert dump.parents() == {}
    (path.parent / "stack.json").write_text('{"0": [["a", "b"], ["File x.py, line 1"]], "1": 5}')
    (path.parent / "construct.json").write_text('{"a": "Module.fc", "b": null}')
    assert dump.stack() == {"a": ["File x.py, line 1"], "b": ["File x.py, line 1"]}
    assert dump.parents() == {"a": "Module.fc", "b": None}


def test_all_samples_are_read(samples) -> None:
    counts = {}
    for path in pa.dumps.find(samples):
        dump = pa.dumps.open(path)
        entries = list(dump)
        for entry in entries:
            for spec in tensors([*entry.args, *entry.kwargs.values(), *entry.output, *entry.grads, entry.value]):
                if spec.data_name is not None:
                    assert tuple(dump.tensor(spec).shape) == spec.shape
        counts[path.removeprefix(str(samples)).split("/")[1]] = len(entries)
        dump.stack(), dump.parents()
    assert counts["tf_tensor_L1_fp32"] == 62
    assert counts["pain"] == 45
    assert len(counts) == 13
