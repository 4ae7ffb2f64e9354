"""A copy keeps what an argument is: strides, offset, overlap, bits, leafness and identity."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from pytest_ascend.cases.transfer import Copier, same_bits
from pytest_ascend.cases.tree import holds_tensors, snapshot

CPU = torch.device("cpu")


def copied(value, **options):
    return Copier(CPU, **options).build(value, "args[0]")


def layout(t: torch.Tensor):
    return t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes(), t.dtype, t.is_conj(), t.is_neg()


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.complex128]


def values(n: int, dtype: torch.dtype) -> torch.Tensor:
    plain = torch.arange(n) % 251
    if dtype.is_complex:
        return torch.complex(plain.double(), -plain.double()).to(dtype)
    return plain.to(dtype)


@st.composite
def views(draw, base: torch.Tensor):
    """Any view that fits into a flat base: strides of 0, overlapping rows, any offset, 0 dimensions, empty ones."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    strides, room = [], base.numel() - 1
    for size in sizes:
        most = room // max(size - 1, 1)
        stride = draw(st.integers(0, min(most, 7)))
        room -= stride * max(size - 1, 0)
        strides.append(stride)
    return base.as_strided(sizes, strides, draw(st.integers(0, room)))


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(DTYPES))
    base = values(draw(st.integers(1, 40)), dtype)
    found = [draw(views(base)) for _ in range(draw(st.integers(1, 3)))]
    if dtype.is_complex and draw(st.booleans()):
        found = [t.conj() for t in found]
    return found


@settings(max_examples=200, deadline=None)
@given(cases())
def test_any_strided_view_survives_with_its_values_and_its_neighbours(tensors):
    new = copied(tensors)
    for old, twin in zip(tensors, new, strict=True):
        assert layout(twin) == layout(old)
        assert same_bits(twin, old)
        assert twin.data_ptr() != old.data_ptr() or not old.untyped_storage().nbytes() or not old.numel()
    assert len({t.untyped_storage()._cdata for t in new}) == 1  # still one storage


@settings(max_examples=100, deadline=None)
@given(cases())
def test_promotion_changes_precision_and_nothing_else(tensors):
    new = copied(tensors, floating=torch.float64)
    for old, twin in zip(tensors, new, strict=True):
        assert twin.dtype == (torch.promote_types(old.dtype, torch.float64) if _floats(old) else old.dtype)
        assert (twin.shape, twin.stride(), twin.storage_offset()) == (old.shape, old.stride(), old.storage_offset())
        assert torch.equal(twin.resolve_conj(), old.resolve_conj().to(twin.dtype))
    assert len({t.untyped_storage()._cdata for t in new}) == 1


def _floats(t):
    return t.is_floating_point() or t.is_complex()


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_writing_through_one_view_shows_in_the_other_as_it_did(tensors, data):
    index = data.draw(st.integers(0, len(tensors) - 1))
    new = copied(tensors)
    for group in (tensors, new):
        if group[index].numel() and not _overlaps(group[index]):
            group[index].fill_(1)
    for old, twin in zip(tensors, new, strict=True):
        assert same_bits(twin, old)


def _overlaps(t):
    """Whether two elements lie on one another, where torch refuses to write."""
    places = torch.arange(t.untyped_storage().nbytes()).as_strided(t.size(), t.stride(), t.storage_offset())
    return places.unique().numel() < t.numel()


def test_two_views_of_one_storage_stay_two_views_of_one_storage():
    base = torch.arange(12.0)
    a, b = copied([base[:8].view(2, 4), base[4:].view(2, 4).t()])
    a[1].fill_(-1)
    assert b.flatten().tolist().count(-1) == 4


def test_real_and_complex_views_of_one_storage_stay_together_when_promoted():
    real = torch.arange(6.0).view(3, 2)
    new_real, new_complex = copied([real, torch.view_as_complex(real)], floating=torch.float64)
    assert (new_real.dtype, new_complex.dtype) == (torch.float64, torch.complex128)
    new_real[0, 0] = 100
    assert new_complex[0].real == 100
    first, second = copied([torch.view_as_complex(real), real], floating=torch.float64)  # the other one first
    second[0, 0] = 100
    assert first[0].real == 100


def test_other_dtypes_on_one_storage_share_bytes():
    data = torch.arange(8, dtype=torch.int32)
    ints, small = copied([data, data.view(torch.int16)])
    ints[0] = 0x00020001
    assert small[:2].tolist() == [1, 2]


def test_a_storage_of_odd_size_keeps_its_last_bytes():
    data = torch.arange(11, dtype=torch.uint8)
    words = torch.empty(0, dtype=torch.int32).set_(data.untyped_storage(), 0, (2,), (1,))
    new_words, new_bytes = copied([words, data])
    assert same_bits(new_words, words)
    assert new_bytes.tolist() == list(range(11))


def test_an_expanded_argument_stays_one_element_of_memory():
    value = torch.tensor([3.0]).expand(1000)
    twin = copied(value)
    assert twin.stride() == (0,)
    assert twin.untyped_storage().nbytes() == 4


def test_a_zero_dim_view_keeps_its_offset():
    c = torch.tensor([9.0, 2.0, 7.0])
    twin = copied(c[2])
    assert (twin.dim(), twin.storage_offset(), twin.item()) == (0, 2, 7.0)


@pytest.mark.parametrize("dims", [4, 5])
def test_channels_last_survives(dims):
    form = torch.channels_last if dims == 4 else torch.channels_last_3d
    value = torch.randn(*range(2, 2 + dims)).to(memory_format=form)
    assert copied(value).is_contiguous(memory_format=form)
    sliced = value[:, 1:]  # channels_last with an offset
    assert layout(copied(sliced)) == layout(sliced)


def test_conjugate_and_negative_bits_survive():
    value = torch.randn(4, dtype=torch.complex64)
    conj, neg = value.conj(), value.conj().imag
    new_conj, new_neg = copied([conj, neg])
    assert new_conj.is_conj()
    assert new_neg.is_neg()
    assert torch.equal(new_conj.resolve_conj(), conj.resolve_conj())
    assert torch.equal(new_neg.resolve_neg(), neg.resolve_neg())


def test_memory_outside_a_view_comes_along():
    base = torch.arange(10.0)
    twin = copied(base[3:5])
    assert torch.equal(twin.as_strided((10,), (1,), 0), base)


def test_the_same_object_twice_stays_one_object():
    x, module = torch.randn(3), nn.Linear(3, 3)
    new = copied([x, {"again": x}, module, (module,)])
    assert new[0] is new[1]["again"]
    assert new[2] is new[3][0]
    assert new[0] is not x


def test_a_leaf_stays_a_leaf_and_a_result_stays_changeable_in_place():
    leaf = torch.randn(3, requires_grad=True)
    result = leaf * 2
    copier = Copier(CPU)
    new_leaf, new_result = copier.build([leaf, result], "args[0]")
    assert new_leaf.is_leaf
    assert new_leaf.requires_grad
    assert not new_result.is_leaf
    new_result.mul_(3).sum().backward()  # in place on a leaf would raise
    assert torch.equal(copier.entries[1].leaf.grad, torch.full((3,), 3.0))
    assert copier.entries[0].leaf is new_leaf
    assert leaf.grad is None


def test_a_result_with_strides_keeps_them():
    result = (torch.randn(3, 4, requires_grad=True) * 2).t()
    twin = copied(result)
    assert twin.stride() == result.stride()
    assert torch.equal(twin, result)


def test_a_parameter_stays_a_parameter():
    value = nn.Parameter(torch.randn(2, 3).t(), requires_grad=False)
    value.tag = "mine"
    twin = copied(value)
    assert type(twin) is nn.Parameter
    assert not twin.requires_grad
    assert twin.tag == "mine"
    assert twin.stride() == value.stride()


def test_a_subclass_of_parameter_keeps_its_class():
    class Mine(nn.Parameter):
        pass

    assert type(copied(Mine(torch.ones(2)))) is Mine


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int = 3


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Cache:
    def __init__(self, x):
        self.layers = [x]
        self.me = self


def test_containers_come_out_as_what_they_were():
    x = torch.ones(2)
    tree = {
        "list": [x],
        "tuple": (x, None, "text"),
        "named": Pair(x, 1),
        "dataclass": Frozen(x),
        "ordered": collections.OrderedDict(a=x),
        "default": collections.defaultdict(list, a=x),
        "user": collections.UserDict(a=x),
        "deque": collections.deque([x], maxlen=4),
        "slots": Slotted(x),
        "set": {x},
        "partial": functools.partial(torch.add, x, alpha=2),
    }
    new = copied(tree)
    for name, value in tree.items():
        assert type(new[name]) is type(value), name
        assert new[name] is not value, name
    twin = new["list"][0]
    assert twin is not x
    found = [new["tuple"][0], new["named"].left, new["dataclass"].x, new["ordered"]["a"], new["default"]["a"]]
    found += [new["user"]["a"], new["deque"][0], new["slots"].x, *new["set"], new["partial"].args[0]]
    assert all(value is twin for value in found)
    assert new["default"]["missing"] == []
    assert new["deque"].maxlen == 4
    assert new["tuple"][1:] == (None, "text")


def test_transformers_containers_come_out_as_what_they_were():
    transformers = pytest.importorskip("transformers")
    x = torch.ones(2)
    batch = transformers.BatchEncoding({"input_ids": x})
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=x)
    new_batch, new_output = copied([batch, output])
    assert type(new_batch) is type(batch)
    assert type(new_output) is type(output)
    assert new_batch.input_ids is new_output.last_hidden_state is new_output["last_hidden_state"]
    assert new_batch.input_ids is not x


def test_an_object_that_refers_to_itself_is_copied_once():
    cache = Cache(torch.ones(2))
    twin = copied(cache)
    assert twin.me is twin
    assert twin.layers[0] is not cache.layers[0]


def test_objects_without_tensors_pass_through_and_containers_are_new():
    config, names = object(), ["a"]
    new = copied([config, names])
    assert new[0] is config
    new[1].append("b")
    assert names == ["a"]


def test_numpy_arrays_are_copied():
    import numpy as np

    array = np.arange(3)
    twin = copied([array])[0]
    twin[0] = 9
    assert array[0] == 0


def test_a_closure_is_an_input():
    w = torch.ones(3)
    helper = lambda x: x * w  # noqa: E731
    new = Copier(CPU, floating=torch.float64).build(lambda x: helper(x), "fn")
    assert new(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    assert helper(torch.ones(3)).dtype == torch.float32


def test_a_recursive_closure_is_rebuilt():
    w = torch.ones(1)

    def outer(n):
        return w if n == 0 else outer(n - 1) + w

    new = copied(outer)
    assert new(3).item() == 4
    w.fill_(10)
    assert new(3).item() == 4


def test_a_generator_argument_is_refused_by_name():
    with pytest.raises(ValueError, match=r"args\[0\] is a generator"):
        copied(i for i in range(3))


def test_devices_follow_the_copy_and_dtypes_its_precision():
    copier = Copier(torch.device("meta"), floating=torch.float64)
    build = lambda value, name="": copier.build(value, "x", name)  # noqa: E731
    assert build(torch.device("cpu")) == torch.device("meta")
    assert build("npu:0", "device") == "meta"
    assert build("cpu", "device") == "meta"
    assert build("cpu") == "cpu"  # a word, not a place
    assert build("npu") == "meta"
    assert build({"device": "cpu", "name": "cpu"}) == {"device": "meta", "name": "cpu"}
    assert build(torch.float16) == torch.float64
    assert build(torch.complex64) == torch.complex128
    assert build(torch.int32) == torch.int32


def test_a_generator_of_numbers_is_not_advanced():
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    twin = copied({"generator": generator})["generator"]
    assert torch.equal(torch.rand(2, generator=twin), torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(generator.get_state(), state)


def test_sparse_and_8_bit_tensors_are_copied_and_promoted():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(copied(sparse, floating=torch.float64).to_dense(), torch.eye(3, dtype=torch.float64))
    small = torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn)
    assert copied(small, floating=torch.float64).tolist() == [0.5, 2.0]


def test_float32_promotes_only_what_is_smaller():
    new = copied(
        [torch.ones(1).half(), torch.ones(1).double(), torch.ones(1, dtype=torch.int8)], floating=torch.float32
    )
    assert [t.dtype for t in new] == [torch.float32, torch.float64, torch.int8]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.inner.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("table", torch.arange(6.0).view(2, 3).t())
        self.scale = torch.tensor(2.0)  # neither parameter nor buffer
        self.hidden = [nn.Linear(3, 3)]  # a module that .to() doesn't find
        self.stale = self.inner.weight * 2  # not a leaf: deepcopy alone refuses it
        self.register_forward_hook(lambda *_: None)


def test_a_module_is_copied_whole_and_left_alone():
    model = Model().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    copier = Copier(CPU, floating=torch.float64)
    twin = copier.build(model, "module")
    assert {t.dtype for t in twin.parameters()} == {torch.float64}
    assert twin.tied.weight is twin.inner.weight
    assert twin.table.stride() == model.table.stride()
    assert twin.norm.num_batches_tracked.dtype == torch.int64
    assert twin.scale.dtype == torch.float64
    assert twin.hidden[0].weight.dtype == torch.float64
    assert not twin.training
    assert len(twin._forward_hooks) == 1
    twin.inner.weight.data.fill_(7)
    twin.hidden[0].weight.data.fill_(7)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not (model.hidden[0].weight == 7).any()
    paths = {entry.path: entry.role for entry in copier.entries}
    assert paths["module.inner.weight"] == "parameter"
    assert paths["module.norm.running_mean"] == "buffer"
    assert "module.tied.weight" not in paths


def test_what_module_to_leaves_behind_stays_behind():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.scale = torch.ones(2)

    twin = Copier(torch.device("meta")).build(Holder(), "module")
    assert twin.weight.device.type == "meta"
    assert twin.scale.device.type == "cpu"


def test_a_module_that_cannot_be_copied_says_so():
    class Locked(nn.Module):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle '_thread.lock' object")

    with pytest.raises(ValueError, match=r"Locked can't be copied.*lock"):
        copied(Locked())


def test_a_lazy_module_says_what_to_do():
    with pytest.raises(ValueError, match="call the module once first"):
        copied(nn.LazyLinear(3))


def test_an_optimizer_follows_its_model():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    weight = model.weight.clone()
    twin, new = copied([model, optimizer])
    assert new.param_groups[0]["params"][0] is twin.weight
    assert twin.weight in new.state
    twin(torch.ones(1, 2)).sum().backward()
    new.step()
    assert not torch.equal(twin.weight, weight)
    assert torch.equal(model.weight, weight)
    assert optimizer.state[model.weight]["step"] == 1


def test_snapshot_takes_values_now():
    x = torch.ones(3, requires_grad=True)
    cache = Cache(x)
    taken = snapshot({"x": x, "cache": [cache], "pair": Pair(x, "y")})
    with torch.no_grad():
        x.fill_(5)
    assert torch.equal(taken["x"], torch.ones(3))
    assert not taken["x"].requires_grad
    assert torch.equal(taken["cache"][0]["layers"][0], torch.ones(3))
    assert taken["pair"].right == "y"


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_same_bits_tells_what_equal_does_not():
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.ones(2), torch.ones(2).double())
    assert not same_bits(torch.ones(2), torch.ones(2, 1))
    assert same_bits(torch.eye(2).to_sparse_csr(), torch.eye(2).to_sparse_csr())
    assert not same_bits(torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse())
    assert not same_bits(torch.eye(2).to_sparse(), torch.eye(2))


def test_a_zero_that_has_no_memory_is_taken_as_zeros():
    x = torch.randn(3, requires_grad=True)
    torch.sgn(x).sum().backward()
    assert x.grad._is_zerotensor()
    assert snapshot(x.grad).tolist() == [0, 0, 0]
    assert snapshot(x.grad).data_ptr() != 0


def test_holds_tensors_looks_through_closures_and_objects():
    x = torch.ones(1)
    assert holds_tensors(lambda: x)
    assert holds_tensors({"a": [Cache(x)]})
    assert holds_tensors(x.add)
    assert not holds_tensors({"a": [1, "b", object(), torch.float32, len]})
