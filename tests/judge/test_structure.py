"""Nested outputs: paths, missing and extra parts, conversions, and structures that can't be walked."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
import torch

from pytest_ascend.judge import structure
from pytest_ascend.judge.structure import (
    Leaf,
    StructureError,
    UnsupportedTensor,
    as_tensor,
    describe,
    flatten,
    pair,
    same_object,
)

Point = collections.namedtuple("Point", ["left", "right"])


@dataclasses.dataclass
class Output:
    logits: object
    hidden: object = None


class DynamicCache:
    """Shaped like the one of transformers."""

    def __init__(self, layers):
        self.layers = layers


class Layer:
    def __init__(self, keys, values):
        self.keys, self.values = keys, values


def paths(value, root="output"):
    return [leaf.path for leaf in flatten(value, root)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, ["output"]),
        (None, ["output"]),
        ((1, 2), ["output[0]", "output[1]"]),
        ([1, [2, None]], ["output[0]", "output[1][0]", "output[1][1]"]),
        ({"k": 1, 3: 2}, ["output['k']", "output[3]"]),
        (Point(1, (2,)), ["output.left", "output.right[0]"]),
        (Output(1, {"a": 2}), ["output.logits", "output.hidden['a']"]),
        (torch.Size([2, 3]), ["output[0]", "output[1]"]),
        ((), []),
        ({}, []),
        (DynamicCache([Layer(1, 2)]), ["output.layers[0].keys", "output.layers[0].values"]),
    ],
    ids=lambda v: repr(v).split(" object at ")[0],  # the same in every process
)
def test_paths(value, expected):
    assert paths(value) == expected


def test_leaves_carry_their_values():
    assert flatten([1, None], "grad") == [Leaf("grad[0]", 1), Leaf("grad[1]", None)]


def test_torch_return_types_name_their_fields():
    assert paths(torch.max(torch.ones(2, 2), 0)) == ["output.values", "output.indices"]


def test_model_output():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    value = outputs.BaseModelOutputWithPast(last_hidden_state=torch.ones(1), hidden_states=(torch.ones(2),))
    assert paths(value) == ["output.last_hidden_state", "output.hidden_states[0]"]


def test_a_real_key_value_cache():
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    leaves = flatten({"past": cache})
    assert len(leaves) == 2
    assert all(isinstance(leaf.value, torch.Tensor) for leaf in leaves)


def test_long_lists_of_numbers_are_one_leaf():
    assert paths([list(range(16)), list(range(3))]) == ["output[0]", "output[1][0]", "output[1][1]", "output[1][2]"]
    assert as_tensor(list(range(20))).dtype == torch.int64
    assert as_tensor([2.0**60] * 20).dtype == torch.float64
    assert as_tensor([2**70] * 20) is None


def test_a_list_that_mixes_booleans_and_integers_stays_a_list():
    assert len(paths([True] + [1] * 20)) == 21


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_equal_structures_pair_by_path():
    pairs, mismatches = pair({"a": 1, "b": (2, None)}, {"b": [3, None], "a": 4})
    assert [(p.path, p.golden, p.actual) for p in pairs] == [
        ("output['a']", 1, 4),
        ("output['b'][0]", 2, 3),
        ("output['b'][1]", None, None),
    ]
    assert mismatches == []


def test_a_named_tuple_matches_a_plain_one_by_position():
    pairs, mismatches = pair(Point(1, 2), (3, 4))
    assert [p.path for p in pairs] == ["output.left", "output.right"]
    assert not mismatches


@pytest.mark.parametrize(
    ("golden", "actual", "path", "words"),
    [
        ((1, 2), (1,), "output[1]", ["missing from the actual", "the int 2", "a tuple of 1"]),
        ((1,), (1, 2), "output[1]", ["not in the golden", "the int 2", "a tuple of 1"]),
        ({"a": 1}, {"b": 1}, "output['a']", ["missing from the actual", "'b'"]),
        (torch.ones(2), (torch.ones(2),), "output", ["float32 tensor of shape (2,)", "a tuple of 1"]),
        ((1,), {"0": 1}, "output", ["a tuple of 1", "a dict with the keys '0'"]),
        ([None], [1], "output[0]", ["golden is None", "actual is the int 1"]),
        ([1], [None], "output[0]", ["golden is the int 1", "actual is None"]),
        (Output(1, (2, 3)), Output(1, (2,)), "output.hidden[1]", ["missing from the actual"]),
    ],
)
def test_mismatches_name_the_place_and_both_sides(golden, actual, path, words):
    _, mismatches = pair(golden, actual)
    assert mismatches[0].path == path
    for word in words:
        assert word in mismatches[0].reason


def test_a_mismatch_does_not_hide_its_siblings():
    pairs, mismatches = pair((1, 2, (3, 4)), (1, (2,), (3,)))
    assert [p.path for p in pairs] == ["output[0]", "output[2][0]"]
    assert [m.path for m in mismatches] == ["output[1]", "output[2][1]"]


def test_extra_keys_are_reported_beside_missing_ones():
    _, mismatches = pair({"a": 1}, {"b": 1})
    assert [m.path for m in mismatches] == ["output['a']", "output['b']"]


# --- structures that can't be walked --------------------------------------------------------------------------------


def cyclic():
    value = [1]
    value.append({"again": value})
    return value


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_value_that_contains_itself_is_refused_by_path():
    with pytest.raises(StructureError, match=r"output\[1\]\['again'\] contains itself"):
        flatten(cyclic())
    with pytest.raises(StructureError, match="contains itself"):
        pair(cyclic(), cyclic())


def test_the_same_object_twice_is_no_cycle():
    shared = [1]
    assert paths([shared, shared]) == ["output[0][0]", "output[1][0]"]


def test_very_deep_values_are_refused():
    assert len(flatten(deep(100))) == 1
    with pytest.raises(StructureError, match="nested more than 100 deep"):
        flatten(deep(100_000))
    with pytest.raises(StructureError, match="nested more than 100 deep"):
        pair(deep(100_000), deep(100_000))


def test_structures_that_double_at_each_level_are_refused(monkeypatch):
    monkeypatch.setattr(structure, "MOST_LEAVES", 1000)
    value = [1, 2]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(StructureError, match="more than 1,000 leaves"):
        flatten(value)
    with pytest.raises(StructureError, match="more than 1,000 leaves"):
        pair(value, value)


# --- conversions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, torch.bool),
        (3, torch.int64),
        (3.5, torch.float64),
        (1j, torch.complex128),
        (np.float32(3), torch.float32),
        (np.int8(3), torch.int8),
        (np.ones(3, np.float16), torch.float16),
        (np.ones(3, ">f4"), torch.float32),
        (np.ones((3, 4), np.complex64)[::-1, ::-2], torch.complex64),
        (np.array(True), torch.bool),
    ],
    ids=repr,
)
def test_numbers_become_tensors(value, dtype):
    tensor = as_tensor(value)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(value))


@pytest.mark.parametrize("value", ["text", None, torch.float32, np.array(["a"]), np.array([object()]), object(), 2**80])
def test_other_values_are_not_numeric(value):
    assert as_tensor(value) is None


def test_a_read_only_array_is_read_without_a_warning(recwarn):
    array = np.arange(4.0)
    array.setflags(write=False)
    assert as_tensor(array).tolist() == [0, 1, 2, 3]
    assert not recwarn.list


def test_an_object_with_asnumpy_is_read():
    class Tensor:
        def asnumpy(self):
            return np.arange(3, dtype=np.float32)

    assert as_tensor(Tensor()).tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_densified():
    dense = torch.eye(3)
    assert torch.equal(as_tensor(dense.to_sparse()), dense)
    assert torch.equal(as_tensor(dense.to_sparse_csr()), dense)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_dequantized():
    quantized = torch.quantize_per_tensor(torch.tensor([0.0, 0.5]), 0.5, 0, torch.qint8)
    assert as_tensor(quantized).tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor.*unbind"),
        (lambda: torch.empty(2, device="meta"), "meta tensor has no values"),
        (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "bits8 packs several values"),
    ],
    ids=["nested", "meta", "packed"],
)
def test_tensors_that_cannot_be_read_say_why(make, words):
    with pytest.raises(UnsupportedTensor, match=words):
        as_tensor(make())


def test_gradients_are_detached():
    assert not as_tensor(torch.ones(2, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("golden", "actual", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        (torch.float32, torch.float32, True),
        (torch.device("cpu"), torch.device("meta"), True),
        ({1, 2}, {1, 2}, True),
        ({1, 2}, {1}, False),
        (np.array(["a"]), np.array(["a"]), True),
        (2**80, 2**80 + 1, False),
        (object(), object(), None),
    ],
)
def test_other_leaves_are_equal_different_or_unknown(golden, actual, expected):
    assert same_object(golden, actual) is expected


def test_an_object_whose_comparison_raises_is_unknown():
    class Bad:
        def __eq__(self, other):
            raise RuntimeError("no")

        __hash__ = None

    assert same_object(Bad(), Bad()) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(2, 3), "a float32 tensor of shape (2, 3)"),
        (torch.eye(2).to_sparse(), "a sparse_coo float32 tensor of shape (2, 2)"),
        (np.ones(2), "a float64 array of shape (2,)"),
        ("x" * 100, "the str 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."),
        ({}, "an empty mapping"),
        (dict.fromkeys("abcdefg"), "a dict with the keys 'a', 'b', 'c', 'd', 'e', ..."),
        (object(), "a object object"),
    ],
)
def test_descriptions_are_short(value, text):
    assert describe(value) == text
