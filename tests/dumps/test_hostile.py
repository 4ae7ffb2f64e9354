"""A dump is untrusted: nothing in it is executed, nothing outside it is read, and every refusal is one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.dumps import DumpError
from pytest_ascend.dumps import tensors as tensor_files
from pytest_ascend.dumps.text import DEPTH
from pytest_ascend.dumps.values import TensorSpec

SPEC = TensorSpec("float32", (2, 3), data_name="x.pt")
HEAD = '{"task": "tensor", "level": "L1", "framework": "pytorch", "data": '


def read_all(path: Path, text: str | bytes) -> list[object]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(pa.dumps.open(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty"),
        ("   \n ", "the file is empty"),
        ("[1]", "isn't a dump of msprobe: it isn't a JSON object"),
        ("nonsense", "isn't a dump of msprobe: it isn't a JSON object"),
        ('{"a": 1}', "it has no object called 'data'"),
        ('{"data": {}}', "it has no text called 'task' before 'data'"),
        ('{"task": 1, "level": "L1", "data": {}}', "it has no text called 'task' before 'data'"),
        ('{"task": "a", "task": "b", "data": {}}', "the file: the key 'task' occurs twice"),
        (HEAD.replace("pytorch", "jax") + "{}}", "framework 'jax' is neither pytorch nor mindspore"),
        (HEAD, "data: the file ends there, so it was cut off"),
        (HEAD + "{", "line 1, column 68: data: the file ends there, so it was cut off"),
        (HEAD + '{"Torch.relu.0.forward": {"input_args": [', "Torch.relu.0.forward: the file ends there"),
        (HEAD + '{"Torch.relu.0.forward": {"input_args": "ab', "so it was cut off"),
        (HEAD + '{"a": null}', "the file: the file ends there"),
        (HEAD + '{"a": null, "a": null}}', "data: the key 'a' occurs twice"),
        (HEAD + '{"a": {"b": 1, "b": 2}}}', "a: the key 'b' occurs twice"),
        (HEAD + '{"a": {"b": 1,, }}}', "line 1, column 81: a: "),
        (HEAD + "{}} more", "there is more after its end"),
        (HEAD + '{"a": ' + "9" * 5000 + "}}", "a: "),
        (HEAD + '{"Torch.relu.0.forward": {"other": 1}}}', "a call has input_args or input, and output, not "),
        (HEAD + '{"Torch.relu.0.forward": 5}}', "a call has input_args or input, and output, not 5"),
        (HEAD + '{"Torch.relu.0.forward": {"input_args": [], "input_kwargs": 3}}}', "input_kwargs: 3 isn't an object"),
        (b"\xff\xfe{", "byte 0 is no UTF-8 text"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path, text, sentence) -> None:
    path = tmp_path / "dump.json"
    with pytest.raises(DumpError) as caught:
        read_all(path, text)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert sentence in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ({"type": "torch.Tensor", "dtype": "torch.float31", "shape": [1]}, "no dtype is called 'torch.float31'"),
        ({"type": "torch.Tensor", "dtype": 5, "shape": [1]}, "no dtype is called 5"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [-1]}, "[-1] is no shape"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [True]}, "[True] is no shape"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": 4}, "4 is no shape"),
        (
            {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1 << 40, 1 << 40]},
            "[1099511627776, 1099511627776] is no shape",
        ),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1] * 65}, "a shape of 65 dimensions"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1], "data_name": 3}, "data_name is 3, not a text"),
        ({"type": "int", "value": "3"}, "the int has the value '3'"),
        ({"type": "int", "value": True}, "the int has the value True"),
        ({"type": "slice", "value": [1, 2]}, "the slice has the value [1, 2], not start, stop and step"),
        ({"type": "torch.Size", "value": [-1]}, "the torch.Size has the value [-1]"),
        ({"type": "torch.dtype", "value": None}, "the torch.dtype has the value None"),
    ],
)
def test_a_broken_argument_is_named_with_its_place(tmp_path, argument, sentence) -> None:
    data = {"Torch.relu.0.forward": {"input_args": [None, argument], "input_kwargs": {}, "output": []}}
    with pytest.raises(DumpError) as caught:
        read_all(tmp_path / "dump.json", HEAD + json.dumps(data) + "}")
    assert f"dump.json: Torch.relu.0.forward.input_args[1]: {sentence}" in str(caught.value)


@pytest.mark.parametrize("depth", [DEPTH + 1, 5_000, 200_000])
def test_depth_is_bounded(tmp_path, depth) -> None:
    with pytest.raises(DumpError, match=f"nested more than {DEPTH} deep"):
        read_all(tmp_path / "dump.json", HEAD + '{"a": ' + "[" * depth + "]" * depth + "}}")


def test_size_is_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pytest_ascend.dumps.text.read.__defaults__", (100,))
    with pytest.raises(DumpError, match="is more than the"):
        read_all(tmp_path / "dump.json", HEAD + '{"a": "' + "x" * 1000 + '"}}')


def test_bare_nan_is_taken(tmp_path) -> None:
    (entry,) = read_all(tmp_path / "dump.json", HEAD + '{"a": [NaN, Infinity, -Infinity]}}')
    assert [str(x) for x in entry.value] == ["nan", "inf", "-inf"]


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_a_pipe_does_not_block(tmp_path) -> None:
    os.mkfifo(tmp_path / "dump.json")
    with pytest.raises(DumpError, match="is no regular file"):
        pa.dumps.open(tmp_path / "dump.json")


# ------------------------------------------------------------------------------------------------ tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dump_tensor_data").mkdir()
    return tmp_path


def load(folder: Path, data: bytes | None = None, spec: TensorSpec = SPEC) -> torch.Tensor:
    if data is not None:
        (folder / "dump_tensor_data" / str(spec.data_name)).write_bytes(data)
    return tensor_files.load(str(folder), spec, "dump.json: x")


def saved(value: object, **options: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def refused(folder: Path, sentence: str, data: bytes | None = None, spec: TensorSpec = SPEC) -> None:
    with pytest.raises(DumpError) as caught:
        load(folder, data, spec)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plain_tensor_is_loaded(folder) -> None:
    value = torch.randn(2, 3)
    assert torch.equal(load(folder, saved(value)), value)


@pytest.mark.parametrize(
    "name",
    ["../x.pt", "/etc/passwd", "a/b.pt", "..", ".", "", "a\\b.pt", "C:x.pt", "x.pt\0", "../dump_tensor_data/x.pt"],
)
def test_no_name_leads_elsewhere(folder, name) -> None:
    (folder / "x.pt").write_bytes(saved(torch.ones(2, 3)))
    refused(folder, "is no file name", spec=TensorSpec("float32", (2, 3), data_name=name))


def test_no_link_leads_elsewhere(folder, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "x.pt"
    outside.write_bytes(saved(torch.ones(2, 3)))
    (folder / "dump_tensor_data" / "x.pt").symlink_to(outside)
    refused(folder, "leads out of the dump's folder")
    (folder / "dump_tensor_data" / "x.pt").unlink()
    (folder / "dump_tensor_data").rmdir()
    (folder / "dump_tensor_data").symlink_to(outside.parent)
    refused(folder, "leads out of the dump's folder")


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_no_pipe_blocks(folder) -> None:
    os.mkfifo(folder / "dump_tensor_data" / "x.pt")
    refused(folder, "is no regular file")


def test_a_missing_file_is_named(folder) -> None:
    refused(folder, "dump.json: x: 'x.pt': can't be read from dump_tensor_data: No such file or directory")
    refused(folder, "no values were recorded", spec=TensorSpec("float32", (2, 3)))


class Bomb:
    """What an attacker puts into a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("wrap", ["alone", "beside", "legacy", "bare"])
def test_no_pickle_is_executed(folder, wrap) -> None:
    mark = folder / "executed"
    bomb = Bomb(mark)
    data = {
        "alone": lambda: saved(bomb),
        "beside": lambda: saved([torch.ones(2, 3), bomb]),
        "legacy": lambda: saved(bomb, _use_new_zipfile_serialization=False),
        "bare": lambda: pickle.dumps(bomb),
    }[wrap]()
    refused(folder, "x.pt: ", data)
    assert not mark.exists()
    spec = TensorSpec("float32", (2, 3), data_name="x.npy")
    refused(folder, "x.npy: ", data, spec)
    array = io.BytesIO()
    np.save(array, np.array([bomb], dtype=object), allow_pickle=True)
    refused(folder, "x.npy: holds", array.getvalue(), TensorSpec("float32", (1,), data_name="x.npy"))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (torch.ones(3, 2), "holds the shape (3, 2), and (2, 3) is declared"),
        (torch.ones(6), "holds another shape than the declared one"),
        (torch.ones(2, 3, dtype=torch.float64), "holds more than a float32 tensor: torch.DoubleStorage"),
        ([torch.ones(2, 3)], "x.pt: holds a list, not a tensor"),
        ({"a": torch.ones(2, 3)}, "x.pt: "),
        (torch.ones(100_000)[:6].reshape(2, 3), "has 4"),
        (5, "doesn't hold one tensor"),
        (torch.ones(2, 3).to_sparse(), "x.pt: "),
    ],
)
def test_what_is_not_declared_is_refused(folder, value, sentence) -> None:
    refused(folder, sentence, saved(value))


def test_a_strided_view_is_loaded_with_its_values(folder) -> None:
    value = torch.arange(6.0).reshape(3, 2).t()
    assert torch.equal(load(folder, saved(value)), value)


def rewritten(data: bytes, change: dict[str, object], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A ``.pt`` file with some of its records replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", compression) as new:
        for record in old.infolist():
            name = record.filename.partition("/")[2]
            content = change[name](old.read(record)) if name in change else old.read(record)  # type: ignore[operator]
            new.writestr(record.filename, content)
    return file.getvalue()


def test_a_compressed_file_cannot_swell(folder) -> None:
    data = saved(torch.zeros(2, 3))
    refused(folder, "is compressed", rewritten(data, {"data/0": lambda _: bytes(1 << 24)}, zipfile.ZIP_DEFLATED))


def test_a_shape_cannot_outgrow_its_values(folder) -> None:
    data = saved(torch.zeros(2, 3))
    spec = TensorSpec("float32", (2, 1 << 20), data_name="x.pt")
    huge = b"J" + struct.pack("<i", 1 << 20)
    grown = rewritten(data, {"data.pkl": lambda old: old.replace(b"K\x02K\x03\x86", b"K\x02" + huge + b"\x86")})
    refused(folder, "the tensor is larger than its values", grown, spec)


def test_a_storage_cannot_outgrow_its_record(folder) -> None:
    data = saved(torch.zeros(2, 3))
    refused(folder, "x.pt: ", rewritten(data, {"data/0": lambda old: old[:8]}))


def test_what_is_declared_is_bounded(folder) -> None:
    refused(folder, "are declared, more than the 8 GiB", spec=TensorSpec("float32", (1 << 40,), data_name="x.pt"))


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 500, -1])
def test_cut_off_files_are_refused(folder, keep) -> None:
    data = saved(torch.ones(2, 3))
    refused(folder, "x.pt: ", data[:keep])
    array = io.BytesIO()
    np.save(array, np.ones((2, 3), np.float32))
    refused(folder, "x.npy: ", array.getvalue()[: min(keep, 100)], TensorSpec("float32", (2, 3), data_name="x.npy"))


def test_files_beside_a_dump_cannot_lead_elsewhere(recorder, tmp_path) -> None:
    path = recorder().write({})
    (tmp_path / "outside.json").write_text("{}")
    (path.parent / "stack.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(DumpError, match="leads out of the dump's folder"):
        pa.dumps.open(path).stack()
