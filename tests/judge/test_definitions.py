"""Equations hold for whatever solves them, and for nothing else; ties are open where torch's documentation says so."""

from __future__ import annotations

import pytest
import torch

from pytest_ascend.judge import definitions, ties
from pytest_ascend.judge.matching import match

torch.manual_seed(0)
TALL, SQUARE = torch.randn(12, 8), torch.randn(8, 8)
SYMMETRIC = SQUARE + SQUARE.T
POSITIVE = SQUARE @ SQUARE.T + torch.eye(8)
RIGHT = torch.randn(8, 3)
PHASE = torch.tensor(0.6 + 0.8j)

CASES = [
    ("torch.linalg.svd", (TALL,), {"full_matrices": False}),
    ("torch.linalg.svd", (TALL,), {}),
    ("torch.linalg.svd", (torch.randn(3, 4, 6, dtype=torch.complex64),), {}),
    ("torch.svd", (TALL,), {}),
    ("torch.svd_lowrank", (TALL, 3), {}),
    ("torch.pca_lowrank", (TALL, 3), {}),
    ("torch.linalg.eigh", (SYMMETRIC,), {}),
    ("torch.linalg.eigh", (SQUARE, "U"), {}),
    ("torch.linalg.eig", (SQUARE,), {}),
    ("torch.linalg.eigvals", (SQUARE,), {}),
    ("torch.linalg.qr", (TALL,), {}),
    ("torch.linalg.qr", (TALL,), {"mode": "complete"}),
    ("torch.linalg.qr", (TALL,), {"mode": "r"}),
    ("torch.geqrf", (TALL,), {}),
    ("torch.linalg.lu", (TALL,), {}),
    ("torch.linalg.lu_factor", (torch.stack([SQUARE, POSITIVE]),), {}),
    ("torch.linalg.ldl_factor", (SYMMETRIC,), {}),
    ("torch.linalg.cholesky", (POSITIVE,), {}),
    ("torch.linalg.cholesky", (POSITIVE,), {"upper": True}),
    ("torch.linalg.inv", (SQUARE,), {}),
    ("torch.linalg.pinv", (TALL,), {}),
    ("torch.linalg.solve", (SQUARE, RIGHT), {}),
    ("torch.linalg.solve", (SQUARE, RIGHT.T), {"left": False}),
    ("torch.linalg.solve", (SQUARE, RIGHT[:, 0]), {}),
    ("torch.linalg.solve_triangular", (SQUARE, RIGHT), {"upper": True}),
    ("torch.cholesky_solve", (RIGHT, torch.linalg.cholesky(POSITIVE)), {}),
    ("torch.linalg.lu_solve", (*torch.linalg.lu_factor(SQUARE), RIGHT), {}),
    ("torch.linalg.lstsq", (TALL, torch.randn(12, 2)), {}),
    ("torch.linalg.lstsq", (TALL.T, RIGHT), {}),
    ("torch.linalg.tensorsolve", (torch.eye(6).view(2, 3, 6) + 0.1 * torch.randn(2, 3, 6), torch.randn(2, 3)), {}),
    ("torch.linalg.tensorinv", (torch.randn(2, 3, 6),), {}),
    ("torch.lobpcg", (POSITIVE, 2), {}),
]


def solve(api, args, kwargs):
    fn = torch
    for name in api.split(".")[1:]:
        fn = getattr(fn, name)
    found = fn(*args, **kwargs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def judged(api, args, kwargs, results, benchmark=None):
    definition = definitions.find(api)
    dtype = next(r.dtype for r in results if r.is_floating_point() or r.is_complex())

    def call(found):
        return definition.call(args, kwargs, dict(zip(definition.results, found, strict=False)), dtype)

    return definitions.judge(definition, call(results), None if benchmark is None else call(benchmark))


@pytest.mark.parametrize(("api", "args", "kwargs"), CASES)
def test_equations_hold_for_what_torch_computes(api, args, kwargs):
    results = solve(api, args, kwargs)
    wrong, asked = judged(api, args, kwargs, results, results)
    assert wrong == ""
    assert asked
    if not definitions.find(api).random:  # which stop at a tolerance of their own
        assert judged(api, args, kwargs, results)[0] == ""  # the limits without a benchmark are wide enough


@pytest.mark.parametrize(("api", "args", "kwargs"), CASES)
@pytest.mark.parametrize("fault", ["scaled", "one", "tail", "zeros", "nan", "rolled"])
def test_equations_find_a_fault_in_any_result(api, args, kwargs, fault):
    results = solve(api, args, kwargs)
    definition = definitions.find(api)
    for i, name in enumerate(definition.results[: len(results)]):
        value = results[i]
        if name not in definition.free or not (value.is_floating_point() or value.is_complex()) or not value.numel():
            continue
        broken = value.clone(memory_format=torch.contiguous_format)
        if fault == "scaled":
            broken *= 1.001
        elif fault == "one":
            broken.view(-1)[0] += 0.01 * value.abs().max()
        elif fault == "tail":
            broken[..., -1] = 0
        elif fault == "zeros":
            broken.zero_()
        elif fault == "nan":
            broken.view(-1)[-1] = float("nan")
        else:
            broken = broken.roll(1, -1)
        if torch.equal(broken, value) or (api.endswith("eigvals") and fault == "rolled"):
            continue
        given = [*results[:i], broken, *results[i + 1 :]]
        wrong, _ = judged(api, args, kwargs, given, results)
        assert "doesn't hold" in wrong, (name, fault)


def test_signs_phases_and_order_are_free_together_only():
    u, s, vh = torch.linalg.svd(TALL, full_matrices=False)
    flip = torch.tensor([1.0, -1, -1, 1, 1, -1, 1, 1])
    assert judged("torch.linalg.svd", (TALL,), {}, [u * flip, s, vh * flip[:, None]])[0] == ""
    assert "U S V^H = A doesn't hold" in judged("torch.linalg.svd", (TALL,), {}, [u * flip, s, vh])[0]
    w, v = torch.linalg.eig(SQUARE)
    order = torch.randperm(8)
    assert judged("torch.linalg.eig", (SQUARE,), {}, [w[order], v[:, order] * PHASE])[0] == ""
    assert "A v = w v" in judged("torch.linalg.eig", (SQUARE,), {}, [w[order], v])[0]
    twice = [w.clone(), v.clone()]
    twice[0][1], twice[1][:, 1] = w[0], v[:, 0]
    assert "eigenvalues" in judged("torch.linalg.eig", (SQUARE,), {}, twice)[0]


def test_a_rotation_is_free_within_equal_eigenvalues_only():
    basis = torch.linalg.qr(torch.randn(5, 5))[0]
    assert judged("torch.linalg.eigh", (torch.eye(5),), {}, [torch.ones(5), basis])[0] == ""
    matrix = torch.diag(torch.arange(1.0, 6.0))
    assert "A V = V L" in judged("torch.linalg.eigh", (matrix,), {}, [torch.arange(1.0, 6.0), basis])[0]


def test_each_matrix_of_a_batch_has_its_own_limit():
    batch = torch.stack([torch.eye(4), 1e6 * torch.eye(4) + torch.randn(4, 4)])
    good = torch.linalg.svd(batch)
    u = good.U.clone()
    u[0, 0, 0] = 1.01
    wrong, _ = judged("torch.linalg.svd", (batch,), {}, [u, good.S, good.Vh], list(good))
    assert "1 of 2 matrices" in wrong


def test_a_limit_follows_the_benchmark():
    """A residual that the CPU itself leaves is no fault, and three times as much is the limit."""
    x = torch.linalg.solve(SQUARE, RIGHT)
    poor = x * (1 + 1e-4)
    assert judged("torch.linalg.solve", (SQUARE, RIGHT), {}, [poor], [x])[0]
    assert judged("torch.linalg.solve", (SQUARE, RIGHT), {}, [x * (1 + 2e-4)], [poor])[0] == ""
    assert judged("torch.linalg.solve", (SQUARE, RIGHT), {}, [x * (1 + 9e-4)], [poor])[0]


def test_alignment_gives_the_golden_s_signs_phases_and_order():
    definition = definitions.find("torch.linalg.eig")
    w, v = torch.linalg.eig(SQUARE.double())
    order = torch.randperm(8)
    how = definitions.align(definition, {"L": w, "V": v}, {"L": w[order], "V": v[:, order] * PHASE})
    axis, index, factor = how["V"]
    assert axis == -1
    assert torch.allclose((v[:, order] * PHASE)[:, index] * factor, v)
    assert torch.equal(w[order][how["L"][1]], w)
    svd = definitions.find("torch.linalg.svd")
    u, s, vh = torch.linalg.svd(torch.randn(4, 4, dtype=torch.complex128))
    how = definitions.align(svd, {"U": u, "S": s, "Vh": vh}, {"U": u * PHASE, "S": s, "Vh": vh * PHASE.conj()})
    assert torch.allclose(u * PHASE * how["U"][2], u)
    assert torch.allclose(vh * PHASE.conj() * how["Vh"][2][:, None], vh)


def test_matching_is_one_to_one():
    golden = torch.tensor([1.0, 1.0, 2.0, 5.0])
    assert sorted(match(golden, torch.tensor([5.0, 2.0, 1.0, 1.0])).tolist()) == [0, 1, 2, 3]
    assert match(golden, torch.tensor([5.0, 2.0, 1.0, float("nan")])).unique().numel() == 4


@pytest.mark.parametrize(
    ("api", "name"),
    [
        ("torch.linalg.svd", "linalg.svd"),
        ("torch.ops.aten.linalg_svd.default", "linalg.svd"),
        ("torch.Tensor.svd", "svd"),
        ("torch.ops.aten.sort.stable", "sort"),
        ("torch.nn.functional.max_pool2d_with_indices", "max_pool2d_with_indices"),
        ("my.linalg.svd", ""),
    ],
)
def test_a_function_has_one_name(api, name):
    assert definitions.canonical(api) == name
    assert (definitions.find(api) is not None) == ("svd" in name)


# ------------------------------------------------------------------------------------------------------------- ties


@pytest.mark.parametrize(
    ("api", "args", "kwargs", "defined"),
    [
        ("torch.argmax", (1,), {}, True),
        ("torch.Tensor.argmin", (), {}, True),
        ("torch.max", (1,), {}, True),
        ("torch.min", (), {"dim": 0}, True),
        ("torch.sort", (), {}, False),
        ("torch.sort", (), {"stable": True}, True),
        ("torch.argsort", (0,), {"stable": True}, True),
        ("torch.ops.aten.sort.stable", (True, -1), {}, True),
        ("torch.topk", (2,), {}, False),
        ("torch.kthvalue", (2,), {}, False),
        ("torch.median", (1,), {}, False),
        ("torch.mode", (), {}, False),
        ("torch.cummax", (1,), {}, False),
    ],
)
def test_torch_says_which_ties_are_defined(api, args, kwargs, defined):
    assert bool(ties.find(api, (TALL, *args), kwargs).defined) is defined


def test_torch_s_own_documentation_says_so():
    assert "indices of the first maximal value" in torch.argmax.__doc__
    assert "the indices of the first maximal value are returned" in torch.max.__doc__
    assert "not guaranteed to be stable" in torch.topk.__doc__
    assert "does not necessarily contain the first occurrence" in torch.median.__doc__
    assert "becomes stable" in torch.sort.__doc__


def test_functions_of_the_same_name_that_select_nothing_are_left_alone():
    assert ties.find("torch.max", (TALL,), {}) is None  # the largest of all
    assert ties.find("torch.max", (TALL, TALL), {}) is None  # element by element
    assert ties.find("torch.exp", (TALL,), {}) is None


def test_an_index_out_of_range_names_nothing():
    how = ties.find("torch.sort", (TALL,), {})
    index = TALL.sort().indices
    assert torch.equal(ties.gathered(how, TALL, index).float(), TALL.sort().values)
    index[0, 0] = 99
    assert ties.gathered(how, TALL, index)[0, 0].isnan()
    index[0, 0] = index[0, 1]
    assert ties.repeats(how, index)


def equation_of(residual):
    """A definition of one equation, whose residual a call's result gives; one that raises can't be asked."""

    def equations(call):
        value = call["x"]

        def ask():
            if value.isnan().any():
                raise RuntimeError("singular")
            return definitions.Equation("x = 0", residual(value).reshape(1, 1))

        return [ask]

    return definitions.Definition(("a",), ("x",), {}, equations)


def test_an_equation_that_the_cpu_doesnt_meet_either_is_not_this_case_s():
    definition = equation_of(lambda value: value.max())
    small, large = torch.tensor([1e-7]), torch.tensor([0.5])
    calls = [definition.call((), {}, {"x": x}, torch.float32) for x in (small, large)]
    assert definitions.judge(definition, calls[0], calls[0]) == ("", "x = 0")
    assert definitions.judge(definition, calls[1], calls[0])[0].startswith("x = 0 doesn't hold")
    assert definitions.judge(definition, calls[1], calls[1]) == ("", "")


def test_what_can_be_asked_of_the_cpu_s_result_alone_is_wrong():
    definition = equation_of(lambda value: value.max())
    right, none = (definition.call((), {}, {"x": torch.tensor([x])}, torch.float32) for x in (0.0, float("nan")))
    assert definitions.judge(definition, none, right)[0] == "x = 0 can't even be asked of it, and can of the CPU's own"
    assert definitions.judge(definition, none, none) == ("", "")
