"""How far a function carries rounding: what is changed, and what is measured by it."""

from __future__ import annotations

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.cases.case import Case
from pytest_ascend.judge.standards import Criterion
from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.observe.capture import Setting
from pytest_ascend.observe.conditioning import MORE, RUNS, Yardsticks, conditioning
from pytest_ascend.observe.reference import Reference, apart

PATH = "output"


def yardsticks(fn, *args) -> Yardsticks:
    case, setting = Case(fn, args), Setting(backward=False, seed=0)
    return Yardsticks(case, setting, Reference.of(case, setting, Criterion.of(), None))


def drawn(*shape, dtype=torch.float16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize(
    "in_place",
    [
        lambda y: y.add_(1).sigmoid_(),
        lambda y: y.chunk(2)[0].add_(1).exp_(),
        lambda y: torch.sigmoid(y.add(1), out=torch.empty_like(y)),
    ],
    ids=["in place", "of a view", "out"],
)
def test_what_is_overwritten_was_rounded_before(in_place):
    x = drawn(64)
    plain = yardsticks(lambda v: torch.sigmoid((v * 3) + 1), x).spreads([PATH])[PATH]
    found = yardsticks(lambda v: in_place(v * 3), x).spreads([PATH])[PATH]
    assert float(found.mean()) > 0.2 * float(plain.mean()) > 1e-6


def test_running_statistics_are_updated_all_the_same():
    layer = torch.nn.InstanceNorm1d(3, track_running_stats=True).bfloat16()
    paths = [f"mutated(module.running_{name})" for name in ("mean", "var")]
    found = yardsticks(layer, drawn(4, 3, 15, dtype=torch.bfloat16)).spreads(paths)
    assert sorted(found) == paths
    assert all(float(value.max()) < 2.0**-6 for value in found.values())


def test_subnormal_numbers_are_rounded_more_coarsely():
    x = drawn(64).abs() + 0.5
    found = yardsticks(lambda v: (v * 2.0**-20) * 2.0**20, x).spreads([PATH])[PATH]
    assert 2.0**-6 < float(found.median()) < 2.0**-3  # half a step of 2^-24, times 2^20


def test_infinities_on_the_way_stay_what_they_are():
    x = drawn(6, 8)
    mask = torch.arange(8) % 3 == 0
    fn = lambda v: torch.softmax((v * 3).masked_fill(mask, float("-inf")), -1)  # noqa: E731
    found = yardsticks(fn, x).spreads([PATH])[PATH]
    assert float((found[:, ~mask] > 0).double().mean()) > 0.9
    assert not found[:, mask].any()


def test_more_runs_differ_from_the_first_and_only_widen():
    case = yardsticks(lambda v: torch.softmax(v * 3, -1).log(), drawn(40, 8))
    first, steadier = case.spreads([PATH])[PATH], case.steadier([PATH])[PATH]
    assert bool((steadier >= first).all())
    assert bool((steadier > first).any())
    own = case.reference.golden
    groups = [
        conditioning(case.case, case.setting, own, None, [PATH], stored=torch.float16, first=i * RUNS)[PATH]
        for i in range(MORE + 1)
    ]
    assert torch.equal(groups[0], first)
    assert torch.equal(torch.maximum(first, sum(groups) / len(groups)), steadier)


def test_a_call_that_the_cpu_cant_do_in_16_bits_is_measured_in_them():
    layer = torch.nn.LocalResponseNorm(2)
    x = drawn(1, 5, 7, 7)
    with pytest.raises(RuntimeError):
        layer(x)
    assert float(yardsticks(layer, x).spreads([PATH])[PATH].mean()) > 2.0**-13


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (torch.nn.Linear(3, 3), False),
        (torch.nn.LSTM(3, 3), False),
        (torch.nn.Sequential(torch.nn.Linear(3, 3)), True),
        (torch.nn.MultiheadAttention(4, 2), True),
        (torch.relu, False),
    ],
    ids=["linear", "lstm", "sequential", "attention", "function"],
)
def test_one_layer_of_torch_is_no_model(fn, expected):
    assert Case(fn).is_model is expected


def test_a_function_of_a_module_may_do_anything():
    assert Case(lambda layer, x: layer(layer(x)), (torch.nn.Linear(3, 3), torch.randn(3))).is_model


def test_shared_infinities_count_for_nothing_and_others_for_everything():
    inf, nan = float("inf"), float("nan")
    golden = torch.tensor([3.0, inf, nan, -inf])
    assert apart(golden, torch.tensor([4.0, inf, nan, -inf])) == (1.0, 3.0)
    assert apart(golden, torch.tensor([3.0, -inf, nan, -inf]))[0] == inf
    assert not apart(golden, torch.tensor([3.0, inf, nan, nan]))[0] < inf
    assert apart(torch.tensor([inf]), torch.tensor([inf])) == (0.0, 0.0)
    assert apart(torch.tensor([inf, 3.0, 3.0]), torch.tensor([1.0, 3.0, 3.0])) == (inf, 3.0)


def test_the_parameters_of_a_layer_change_like_arguments():
    found = yardsticks(torch.nn.Linear(30, 20).half(), drawn(8, 30)).spreads([PATH])[PATH]
    assert 0 < float(found.max()) < 2.0**-18


def test_kernels_of_the_backward_pass_arent_counted():
    x = drawn(8, 30).requires_grad_()
    case, setting = Case(torch.nn.Linear(30, 20).half(), (x,)), Setting(backward=True, seed=0)
    assert Yardsticks(case, setting, Reference.of(case, setting, Criterion.of(), None)).kernels == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layer", [torch.nn.GRUCell, torch.nn.LSTMCell], ids=lambda c: c.__name__)
def test_recurrent_cells_are_right(check, layer, seed, dtype):
    torch.manual_seed(seed)
    result = check(layer(5, 20).to(dtype), drawn(6, 5, dtype=dtype))
    assert result.verdict.outcome != "failed", result


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_one_per_cent_in_one_layer_is_wrong(check, dtype):
    def wrong(x, *args):
        return torch.ops.aten.addmm(x, *args) * 1.01

    with pa.emulator.override("aten::addmm", wrong):
        result = check(torch.nn.Linear(30, 20).to(dtype), drawn(64, 30, dtype=dtype))
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_chip_s_gelu_beside_infinities(check, dtype):
    x = drawn(64, dtype=dtype)
    x[3], x[9], x[11] = float("inf"), float("-inf"), float("nan")
    assert check(torch.nn.functional.gelu, x).verdict is Verdict.MODE_DIFF


def test_rounded_factors_beside_infinities(check):
    x, weight = drawn(1, 4, 33, dtype=torch.float32), drawn(4, 4, 3, dtype=torch.float32)
    x[0, 1, 5] = float("inf")
    assert check(torch.nn.functional.conv1d, x, weight).verdict is Verdict.MODE_DIFF


@pytest.mark.parametrize("seed", range(4))
def test_what_chooses_among_few_is_random_all_the_same(check, seed):
    x = drawn(2, 3, 5, 5, 5, dtype=torch.bfloat16)
    options = {"seed": seed}
    result = check(torch.nn.functional.fractional_max_pool3d, x, (2, 2, 2), output_size=(2, 3, 2), options=options)
    assert result.verdict.outcome != "failed", result


def test_layers_without_a_kernel_on_the_cpu_are_judged_by_the_budget(check):
    layer, x = torch.nn.LocalResponseNorm(1, alpha=1.0, beta=0.5, k=2.0), drawn(1, 5, 7, 7, 7).requires_grad_()
    assert check(layer, x).verdict.outcome == "passed"
    with pa.emulator.override("aten::pow.Tensor_Scalar", lambda x, by: torch.ops.aten.pow(x, by) * 1.03):
        result = check(layer, x)
    assert result.verdict is Verdict.FAIL
    assert "units, and may be" in result.reason


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (torch.relu, range(1, 2)),
        (lambda v: torch.relu(v) * 2, range(2, 3)),
        (torch.nn.Linear(3, 3).half(), range(1, 2)),
        (torch.nn.GRUCell(3, 3).half(), range(10, 20)),
        (torch.nn.LSTM(3, 3).half(), range(40, 80)),
        (torch.nn.Softmax(-1), range(1, 2)),
    ],
    ids=["function", "composition", "linear", "cell", "lstm", "softmax"],
)
def test_kernels_are_counted(fn, expected):
    case = yardsticks(fn, drawn(4, 3))
    assert case.kernels in expected
    assert case.composed is (case.kernels > 1)
    path = "output[0]" if isinstance(fn, torch.nn.LSTM) else PATH
    assert case.once(path, torch.float16) is not None


def test_a_result_that_some_runs_have_in_another_shape_keeps_what_was_measured(monkeypatch):
    """What depends on how many values are equal isn't as long in every run."""
    from pytest_ascend.observe import conditioning as module

    whole = module.conditioning

    def without_some(*args, first=0, **kwargs):
        found = whole(*args, first=first, **kwargs)
        del found["output[0]" if first else "output[1]"]
        return found

    monkeypatch.setattr(module, "conditioning", without_some)
    case = yardsticks(lambda v: (torch.exp(v * 3), torch.exp(v * 2)), drawn(20))
    assert list(case.steadier(["output[0]", "output[1]"])) == ["output[0]"]
    assert torch.equal(case.steadier(["output[0]"])["output[0]"], case.spreads(["output[0]"])["output[0]"])
