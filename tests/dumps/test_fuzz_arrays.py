"""Broken files of tensors and broken dumps beside a whole one: an answer or one sentence, whatever was done to them."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from dumped import msprobe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytest_ascend as pa
from pytest_ascend.dumps import DumpError, arrays
from pytest_ascend.dumps.atb import read_bin
from pytest_ascend.judge.verdict import Verdict

EXAMPLES = int(os.environ.get("ASCEND_FUZZ", "300"))
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def saved() -> dict[str, bytes]:
    """A whole file of each form."""
    pt, npy = io.BytesIO(), io.BytesIO()
    torch.save(X[:, 1:4], pt)
    np.save(npy, X.numpy())
    head = json.dumps({"x": {"dtype": "F32", "shape": [6, 5], "data_offsets": [0, 120]}}).encode()
    return {
        "pt": pt.getvalue(),
        "npy": npy.getvalue(),
        "safetensors": struct.pack("<Q", len(head)) + head + X.numpy().tobytes(),
        "bin": b"$Version=1.0\ndtype=0\ndims=6,5\n$End=1\n" + X.numpy().tobytes(),
    }


FILES = saved()
READERS = {"pt": arrays.pt, "npy": arrays.npy, "safetensors": arrays.safetensors, "bin": read_bin}


@st.composite
def mutated(draw, data: bytes) -> bytes:
    """Bytes changed, taken out, put in, cut off; numbers set to the largest there are."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        if not out:
            break
        at = draw(st.integers(0, len(out) - 1))
        how = draw(st.sampled_from(["byte", "cut", "out", "in", "most"]))
        if how == "byte":
            out[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del out[at:]
        elif how == "out":
            del out[at : at + draw(st.integers(1, 16))]
        elif how == "in":
            out[at:at] = draw(st.binary(min_size=1, max_size=16))
        else:
            width = draw(st.sampled_from([1, 2, 4, 8]))
            out[at : at + width] = b"\xff" * width
    return bytes(out)


@pytest.mark.parametrize("form", READERS)
@settings(max_examples=EXAMPLES, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_broken_file_of_a_tensor_is_read_or_refused(form: str, data) -> None:
    content = data.draw(mutated(FILES[form]))
    try:
        found, sentence = READERS[form](content, "there"), "there"
    except DumpError as error:
        found, sentence = {}, str(error)
    assert sentence.startswith("there")
    assert len(sentence) < 400
    assert sentence.isprintable()
    for held in found.values() if isinstance(found, dict) else [found]:
        if held is not None:
            np.array(held.values)  # lies within the file
            assert held.values.size * held.values.itemsize <= len(content) * max(1, held.values.size)


def test_whole_files_are_read() -> None:
    for form, reader in READERS.items():
        found = reader(FILES[form], "there")
        held = found["x"] if isinstance(found, dict) else found
        np.testing.assert_array_equal(held.values, X[:, 1:4] if form == "pt" else X)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("dumps")
    calls = {
        "Torch.relu.0.forward": {"input_args": [X, 2, "text", None], "output": [X.relu()]},
        "Torch.relu.0.backward": {"input": [X], "output": [X]},
        "Module.a.Linear.forward.0": {"input_args": [X], "input_kwargs": {"k": X}, "output": [X]},
    }
    return msprobe(folder / "golden", calls), msprobe(folder / "target", calls)


@settings(max_examples=EXAMPLES // 2, deadline=4000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_broken_dump_beside_a_whole_one_is_compared_or_refused(whole, data) -> None:
    golden, target = (Path(path) for path in whole)
    text = (golden if golden.is_file() else golden / "dump.json").read_bytes()
    broken = Path(target if target.is_file() else target / "dump.json")
    broken.write_bytes(data.draw(mutated(text)))
    for sides in ((golden, target), (target, golden)):
        found, sentence = None, ""
        try:
            found = pa.dumps.compare(*sides)
        except DumpError as error:
            sentence = str(error)
        assert len(sentence) < 1000
        assert "\n" not in sentence
        if found is not None:
            json.dumps(found.to_dict(), allow_nan=False)
            assert found.verdict in set(Verdict)
