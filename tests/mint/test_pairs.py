"""Which torch function each function of mint has, and how arguments are said to it: all without MindSpore."""

from __future__ import annotations

import pytest

from pytest_ascend.cases.catalogue.entries import Sample
from pytest_ascend.cases.catalogue.names import resolve
from pytest_ascend.cases.mint import choose, pairs
from pytest_ascend.cases.pending import Absent, CaseUnavailable, Pending
from pytest_ascend.settings import Settings
from pytest_ascend.targets import mindspore


@pytest.fixture
def with_mindspore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindspore, "installed", lambda: True)


def known(name: str) -> pairs.Pair:
    found = pairs.known(name)
    assert isinstance(found, pairs.Pair)
    return found


def test_every_pair_is_a_function_of_torch() -> None:
    found = [pairs.known(name) for name in pairs.names()]
    paired = [one for one in found if isinstance(one, pairs.Pair)]
    assert len(paired) >= 340
    for one in paired:
        assert callable(resolve(one.torch)), one.name


def test_what_has_no_pair_has_a_reason() -> None:
    rest = [one for one in map(pairs.known, pairs.names()) if isinstance(one, pairs.Unpaired)]
    assert rest
    assert all(one.reason for one in rest)


@pytest.mark.parametrize("name", ["mint.softmax_ext", "mint.nn.functional.inplace_silu", "mint.nothing", "os.system"])
def test_what_is_no_part_of_the_interface_is_unknown(name: str) -> None:
    assert pairs.known(name) is None


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("mint.isnan", {"input": 1}, {"tensor": 1}),
        ("mint.softmax", {"dim": 1, "dtype": None}, {"dim": 1, "dtype": None}),
        ("mint.nn.functional.leaky_relu", {"negative_slope": 0.2, "inplace": False}, {"negative_slope": 0.2}),
        ("mint.nn.functional.leaky_relu", {"inplace": True}, None),
        ("mint.zeros_like", {"memory_format": "preserve"}, None),
        ("mint.add", {"alpha": 2, "anything": 1}, {"alpha": 2, "anything": 1}),  # overloads: only a call can tell
    ],
)
def test_keywords(name: str, given: dict, expected: dict | None) -> None:
    assert pairs.keywords(known(name), given) == expected


def test_positions() -> None:
    assert pairs.positions(known("mint.sort"), ("x", 1, True)) == (("x",), {"dim": 1, "descending": True})
    assert pairs.positions(known("mint.einsum"), ("ij,jk", ["a", "b"])) == (("ij,jk", "a", "b"), {})
    assert pairs.positions(known("mint.cumsum"), ("x", 1)) == (("x", 1), {})


def test_a_sample_that_mint_does_not_take_is_passed_over() -> None:
    assert not choose._expressible(known("mint.squeeze"), Sample([{"T": {}}], {}, "float"))
    assert choose._expressible(known("mint.squeeze"), Sample([{"T": {}}, 0], {}, "float"))


def test_ids_read_like_those_of_torch(with_mindspore: None) -> None:
    settings = Settings(dtypes="float16", layouts="transposed")
    found = list(choose.pendings(["mint.softmax"], settings))
    assert found
    for one in found:
        assert isinstance(one, Pending)
        assert one.id.startswith("mint.softmax[float16-transposed-")
        assert one.detail["reference"] == "torch.softmax"


def test_nothing_of_mint_is_left_unsaid(with_mindspore: None) -> None:
    found = {one.api for one in choose.pendings(["mindspore.mint.*"], Settings())}
    assert found == set(pairs.names())


def test_a_name_without_cases_says_why(with_mindspore: None) -> None:
    [one] = choose.pendings(["mint.empty"], Settings())
    assert isinstance(one, Absent)
    assert one.reason == "writes no values"


def test_without_mindspore_a_pattern_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindspore, "installed", lambda: False)
    with pytest.raises(ValueError, match=r"MindSpore is not installed: pip install 'pytest-ascend\[mindspore\]'"):
        list(choose.pendings(["mint.softmax"], Settings()))


def test_a_wrong_name_is_one_sentence(with_mindspore: None) -> None:
    with pytest.raises(ValueError, match=r"no API is called 'mint.softmx'; the nearest there is: 'mint.softmax'"):
        list(choose.pendings(["mint.softmx"], Settings()))


@pytest.mark.parametrize("name", ["mindspore.load_checkpoint", "mindspore.mint.nn.Linear", "mindspore.mint.nothing"])
def test_a_dump_calls_listed_functions_only(name: str) -> None:
    from pytest_ascend.cases.mint.recorded import replay

    with pytest.raises(CaseUnavailable, match=name):
        replay(name, (), {})
