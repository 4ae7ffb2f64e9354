"""The list that ships, and choosing from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pytest_ascend.cases.catalogue import choose, pendings
from pytest_ascend.cases.catalogue.caselist import SHIPPED, load, save
from pytest_ascend.cases.pending import Absent, Pending
from pytest_ascend.settings import Settings


@pytest.fixture(scope="module")
def listed():
    return load()


def chosen(*patterns: str, **settings: object) -> list[Pending]:
    return [one for one in pendings(patterns, Settings(**settings)) if isinstance(one, Pending)]


def test_the_list_covers_torch(listed) -> None:
    own = {entry.api for entry in listed.entries if not entry.of}
    assert len(own) >= 700
    assert (
        sum(api.startswith("torch.nn.") and entry.kind == "module" for entry in listed.entries for api in [entry.api])
        > 90
    )
    assert SHIPPED.stat().st_size < 400_000


def test_it_names_public_things_only(listed) -> None:
    for entry in listed.entries:
        assert not any(part.startswith("_") and not part.startswith("__") for part in entry.api.split(".")) or (
            entry.api.startswith("torch.ops.aten.")
        )


def test_650_and_more_in_the_three_dtypes(listed) -> None:
    wish = choose.Wish(dtypes=("float32", "float16", "bfloat16"))
    apis = {entry.api for entry in listed.entries if not entry.of and any(True for _ in choose.cases(entry, wish))}
    assert len(apis) >= 650


def test_writing_and_reading(listed, tmp_path: Path) -> None:
    some = listed.entries[::100]
    save(tmp_path / "list.gz", "2.13.0", some, {"torch.x": "why"})
    again = load(tmp_path / "list.gz")
    assert again.entries == some
    assert again.left_out == {"torch.x": "why"}


@pytest.mark.parametrize("content", [b"", b"no list", b"\x1f\x8b broken"])
def test_a_broken_list_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"list\.gz is no case list"):
        load(tmp_path / "list.gz")


def test_ids_are_readable_and_each_is_there_once() -> None:
    found = chosen("torch.softmax", "torch.div")
    ids = [one.id for one in found]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"torch\.(softmax|div)\[(float32|float16|bfloat16)-[a-z_]+-\d+(-\w+)?\]", i) for i in ids)
    assert any(i.startswith("torch.softmax[float16-transposed-") for i in ids)


def test_every_family_and_layout_is_among_the_cases() -> None:
    found = {one.id.split("-")[1] for one in chosen("torch.exp", "torch.softmax", "torch.nn.functional.avg_pool2d")}
    assert found >= {"as_given", "transposed", "sliced", "expanded", "channels_last", "scalar", "empty", "size"}
    assert found >= {"special", "every", "nonfinite", "mean", "ties"}


def test_sizes_around_the_blocks() -> None:
    sizes = set()
    for one in chosen("torch.exp", "torch.sum", dtypes="float32", layouts="as_given"):
        case, _ = one.build()
        sizes.update(size for tensor in case.tensors for size in tensor.shape)
    assert sizes & {16, 17, 31, 33, 64, 65, 127, 128}
    assert sizes & {1023, 1024, 1025}
    assert 65537 in sizes


def test_dtypes_layouts_and_samples() -> None:
    found = chosen("torch.exp", dtypes="float16", layouts="sliced")
    assert {(one.dtype, one.detail["layout"]) for one in found} == {("float16", "sliced")}
    few, more = (chosen("torch.add", samples=n, dtypes="float32", layouts="as_given") for n in (1, 5))
    assert len(more) == len(few) + 4


def test_an_api_without_the_usual_dtypes_has_another() -> None:
    assert {one.dtype for one in chosen("torch.bitwise_and")} == {"int64"}
    (absent,) = pendings(["torch.bitwise_and"], Settings(dtypes="float32"))
    assert isinstance(absent, Absent)


def test_cases_are_built_as_named() -> None:
    for one in chosen("torch.nn.functional.conv2d", "torch.nn.Linear", dtypes="bfloat16"):
        case, options = one.build()
        assert case.dtype == "bfloat16"
        assert options.get("checkpoints", ()) == ()
        if one.detail["layout"] == "channels_last":
            assert any(t.dim() == 4 and not t.is_contiguous() for t in case.tensors)


def test_the_values_are_the_same_in_every_process_and_dtype() -> None:
    a, b = (chosen("torch.exp", dtypes=name)[0].build()[0].tensors[0] for name in ("float32", "float16"))
    assert torch.allclose(a, b.float(), rtol=1e-3)


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [("torch.softmx", "torch.softmax"), ("torch.nn.softmax", "torch.nn.Softmax"),
     ("softmax", "torch.softmax|torch.*softmax")],
)  # fmt: skip
def test_an_unknown_name_says_the_nearest(pattern: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"no API is called '{pattern}'; the nearest there is: '({nearest})'"):
        chosen(pattern)


def test_what_torch_has_and_the_list_has_not_is_named() -> None:
    absent = {
        one.api: one.reason for one in pendings(["torch.*"], Settings(dtypes="float32")) if isinstance(one, Absent)
    }
    assert "torch.empty_like" in absent
    assert all(absent.values())
    assert "torch.softmax" not in absent


def test_live_samples_are_those_of_the_list(listed) -> None:
    live = chosen("torch.tanh", live=True)
    assert [one.id for one in live] == [one.id for one in chosen("torch.tanh")]
