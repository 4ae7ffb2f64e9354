"""Comparing hostile and broken dumps: one clear error per item, nothing executed, nothing else lost."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from dumped import atb, msprobe

import pytest_ascend as pa
from pytest_ascend.dumps import DumpError, arrays
from pytest_ascend.dumps import atb as atb_files
from pytest_ascend.judge.verdict import Verdict

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
GOOD, BAD = "Torch.relu.0.forward", "Torch.exp.0.forward"


def calls():
    return {BAD: {"input_args": [X], "output": [X]}, GOOD: {"input_args": [X], "output": [X * 2]}}


@pytest.fixture
def pair(tmp_path):
    """Two equal dumps, and what compares them after the target was spoilt."""

    class Pair:
        golden = msprobe(tmp_path / "golden", calls())
        target = msprobe(tmp_path / "target", calls())
        tensor = tmp_path / "target" / "dump_tensor_data" / f"{BAD}.output.0.pt"

        def content(self, change) -> None:
            found = json.loads(self.target.read_text())
            change(found["data"])
            self.target.write_text(json.dumps(found))

        def compare(self):
            return pa.dumps.compare(self.golden, self.target)

    return Pair()


def only_one_is_bad(found, sentence: str) -> None:
    """One error, a sentence that names its place; the other call is compared all the same."""
    bad = [row for row in found.rows if row.status == "fail"]
    assert [row.verdict for row in bad] == [Verdict.INFRA]
    assert BAD in bad[0].name
    assert sentence in bad[0].reason
    assert "\n" not in bad[0].reason
    good = [row for row in found.rows if row.name.startswith(GOOD)]
    assert [row.verdict for row in good] == [Verdict.PASS] * 2
    assert not found.passed


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def spec(data):
    return data[BAD]["output"][0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: spec(d).update(data_name="../../secret.pt"), "is no file name"),
        (lambda d: spec(d).update(data_name="/etc/passwd"), "is no file name"),
        (lambda d: spec(d).update(data_name="gone.pt"), "can't be read: No such file"),
        (lambda d: spec(d).update(data_name=""), "is no file name"),
        (lambda d: spec(d).update(data_name="a\0b"), "is no file name"),
        (lambda d: spec(d).update(dtype="torch.float31"), "no dtype is called 'torch.float31'"),
        (lambda d: spec(d).update(shape=[-1]), "[-1] is no shape"),
        (lambda d: d[BAD].update(input_args={"a": 1}) or d[BAD].update(input_kwargs=[1]), "isn't an object"),
    ],
)
def test_a_hostile_entry_costs_itself_alone(pair, tmp_path, change, sentence) -> None:
    (tmp_path / "secret.pt").write_bytes(b"not to be read")
    pair.content(change)
    found = pair.compare()
    bad = [row for row in found.rows if row.status == "fail"]
    assert sentence in bad[0].reason
    assert bad[0].verdict is Verdict.INFRA
    assert [row.verdict for row in found.rows if row.name.startswith(GOOD)] == [Verdict.PASS] * 2


def test_ten_gigabytes_declared_cost_nothing(pair) -> None:
    for side in (pair.golden, pair.target):
        content = json.loads(side.read_text())
        spec(content["data"]).update(shape=[5 << 29])
        side.write_text(json.dumps(content))
    only_one_is_bad(pair.compare(), "10 GiB are declared, more than the 8 GiB read")


def test_a_link_out_of_the_dump_is_not_followed(pair, tmp_path) -> None:
    torch.save(X, tmp_path / "outside.pt")
    pair.tensor.unlink()
    pair.tensor.symlink_to(tmp_path / "outside.pt")
    only_one_is_bad(pair.compare(), "can't be read")


def test_a_pickle_that_would_run_is_not_run(pair, tmp_path) -> None:
    torch.save([Evil(tmp_path / "written")], pair.tensor)
    found = pair.compare()
    only_one_is_bad(found, BAD)
    assert not (tmp_path / "written").exists()
    inside = io.BytesIO()
    with zipfile.ZipFile(inside, "w") as archive:  # with the right records, and a pickle that asks for more
        archive.writestr("x/data.pkl", b"cposix\nsystem\n(S'touch " + str(tmp_path / "written").encode() + b"'\ntR.")
        archive.writestr("x/data/0", bytes(120))
    pair.tensor.write_bytes(inside.getvalue())
    only_one_is_bad(pair.compare(), "holds more than a tensor: posix.system")
    assert not (tmp_path / "written").exists()


def test_files_that_are_cut_off(pair) -> None:
    data = pair.tensor.read_bytes()
    for length in (0, 1, 40, len(data) // 2, len(data) - 1):
        pair.tensor.write_bytes(data[:length])
        only_one_is_bad(pair.compare(), "cut off")


def test_a_compressed_file_is_refused(pair) -> None:
    inside = io.BytesIO()
    with zipfile.ZipFile(pair.tensor) as old, zipfile.ZipFile(inside, "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
    pair.tensor.write_bytes(inside.getvalue())
    only_one_is_bad(pair.compare(), "is compressed")


def test_a_tensor_larger_than_its_values_is_refused(pair) -> None:
    inside = io.BytesIO()
    with zipfile.ZipFile(pair.tensor) as old, zipfile.ZipFile(inside, "w") as new:
        for record in old.infolist():
            new.writestr(
                record.filename, old.read(record)[:-8] if record.filename.endswith("data/0") else old.read(record)
            )
    pair.tensor.write_bytes(inside.getvalue())
    only_one_is_bad(pair.compare(), "the tensor is larger than its values")


def test_deep_json_costs_its_own_call_alone(pair) -> None:
    text = pair.target.read_text()
    deep = json.dumps(json.loads(text)["data"][BAD])
    for depth in (100, 200_000):
        pair.target.write_text(text.replace(deep, "[" * depth + "]" * depth))
        only_one_is_bad(pair.compare(), "nested more than 64 deep")


def test_a_key_twice_costs_its_own_call_alone(pair) -> None:
    content = json.loads(pair.target.read_text())
    entry = json.dumps(content["data"][BAD])
    text = pair.target.read_text().replace('"data": {', f'"data": {{"{BAD}": {entry}, ')
    pair.target.write_text(text)
    only_one_is_bad(pair.compare(), f"the key '{BAD}' occurs twice")
    pair.target.write_text(json.dumps(content).replace('"dtype":', '"dtype": "torch.int8", "dtype":', 1))
    only_one_is_bad(pair.compare(), "the key 'dtype' occurs twice")


def test_a_dump_that_was_cut_off_keeps_what_is_before(pair) -> None:
    content = json.loads(pair.target.read_text())
    content["data"] = {GOOD: content["data"][GOOD], BAD: content["data"][BAD]}
    text = json.dumps(content)
    pair.target.write_text(text[: text.index(f'"{BAD}"') + 60])
    found = pair.compare()
    bad = [row for row in found.rows if row.status == "fail"]
    assert bad
    assert all(row.verdict is Verdict.INFRA for row in bad)
    assert "so it was cut off" in bad[0].reason
    assert [row.verdict for row in found.rows if row.name.startswith(GOOD)] == [Verdict.PASS] * 2


def test_bare_nan_tokens_are_read(tmp_path) -> None:
    x = torch.tensor([1.0, torch.nan, torch.inf])
    sides = [msprobe(tmp_path / s, {GOOD: {"input_args": [x], "output": [x]}}) for s in ("golden", "target")]
    assert "NaN" in sides[0].read_text()
    assert pa.dumps.compare(*sides).verdict is Verdict.PASS
    sides = [
        msprobe(tmp_path / s, {GOOD: {"input_args": [x], "output": [y]}}, task="statistics")
        for s, y in (("g", x), ("t", torch.tensor([1.0, 2.0, 3.0])))
    ]
    assert pa.dumps.compare(*sides).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"cut": 1}, "was cut off"),
        ({"dims": "1000000,1000000"}, "was cut off"),
        ({"dims": "-3"}, "is no shape"),
        ({"dims": "9" * 40}, "is no shape"),
        ({"dtype": 99}, "no dtype has the number 99"),
        ({"dims": "2"}, "dims=2 of float32 are 8"),
    ],
)
def test_broken_files_of_atb(tmp_path, how, sentence) -> None:
    atb(tmp_path / "x.bin", X, **how)
    with pytest.raises(DumpError) as caught:
        atb_files.read_bin((tmp_path / "x.bin").read_bytes(), "x.bin")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"12345678",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"{{{",
        struct.pack("<Q", 62) + b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}',
        struct.pack("<Q", 61) + b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}',
        struct.pack("<Q", 62) + b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        struct.pack("<Q", 60) + b'{"a": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}}' + b" " * 9,
        struct.pack("<Q", 40_000) + b"[" * 40_000,
    ],
)
def test_broken_safetensors(data) -> None:
    with pytest.raises(DumpError):
        arrays.safetensors(data, "x")


def test_a_npy_file_of_objects_is_refused(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.array([Evil(tmp_path / "written")]), allow_pickle=True)
    with pytest.raises(DumpError, match="no tensor's dtype"):
        arrays.npy((tmp_path / "x.npy").read_bytes(), "x")
    assert not (tmp_path / "written").exists()


COUNT = int(os.environ.get("ASCEND_FUZZ", "200"))


def test_no_mutation_of_a_file_does_more_than_fail(tmp_path) -> None:
    """Bytes changed, cut and doubled, in every format: a tensor or one sentence, and no more memory than the file."""
    rng = random.Random(7)
    torch.save(X, tmp_path / "x.pt")
    np.save(tmp_path / "x.npy", X.numpy())
    atb(tmp_path / "x.bin", X)
    head = json.dumps({"a": {"dtype": "F32", "shape": [6, 5], "data_offsets": [0, 120]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + X.numpy().tobytes())
    readers = {".pt": arrays.pt, ".npy": arrays.npy, ".bin": atb_files.read_bin, ".safetensors": arrays.safetensors}
    sentences: list[str] = []
    for ending, read in readers.items():
        original = (tmp_path / f"x{ending}").read_bytes()
        for _ in range(COUNT):
            data = bytearray(original)
            for _ in range(rng.choice((1, 1, 3, 20))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            data = data[: rng.choice((len(data), len(data), rng.randrange(len(data))))]
            try:
                found = read(bytes(data), "x")
            except DumpError as error:
                sentences.append(str(error))
                continue
            for held in found.values() if isinstance(found, dict) else [found]:
                assert held is None or held.values.sum() is not None
    assert len(sentences) > COUNT
    assert not any("\n" in sentence for sentence in sentences)


def test_no_mutation_of_a_dump_does_more_than_fail(pair) -> None:
    """The same of ``dump.json``: a comparison whose every row has a verdict, or one sentence."""
    rng = random.Random(11)
    original = pair.target.read_text()
    compared = 0
    sentences: list[str] = []
    for _ in range(COUNT):
        at = rng.randrange(len(original))
        piece = rng.choice(
            ["", '"', "{", "}", "[", "]", ",", ":", "NaN", "\\", "\0", "9" * 5000, "[" * 70, '{"a":' * 9999]
        )
        pair.target.write_text(original[:at] + piece + original[at + rng.choice((0, 1, 9)) :])
        try:
            found = pair.compare()
        except DumpError as error:
            sentences.append(str(error))
            continue
        compared += 1
        json.dumps(found.to_dict(), allow_nan=False)
        assert all("\n" not in row.reason for row in found.rows)
    assert compared > COUNT / 3
    assert not any("\n" in sentence for sentence in sentences)
