"""Results that aren't unique are right when they are another right answer, and wrong when they are none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pytest_ascend as pa
from pytest_ascend.judge.verdict import Kind, Verdict

aten = torch.ops.aten


def here(x):
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


def on_target(fn, change):
    """``fn``, whose results are changed where the target computes them."""

    def changed(x, *args, **kwargs):
        results = fn(x, *args, **kwargs)
        return change(results) if here(x) else results

    return changed


def changed(value, change):
    value = value.clone()
    change(value)
    return value


def flips(n):
    """Signs of n vectors."""
    return torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])[:n]


def other_svd(change=lambda u, s, vh: (u, s, vh)):
    """Another library's singular vectors: half of them with the other sign; ``change`` breaks them."""

    def kernel(a, *args, **kwargs):
        u, s, vh = aten._linalg_svd(a, *args, **kwargs)
        u, vh, sign = u.clone(), vh.clone(), flips(s.shape[-1]).to(u.dtype)
        u[..., : s.shape[-1]] *= sign
        vh[..., : s.shape[-1], :] *= sign[:, None]
        return change(u, s.clone(), vh)

    return pa.emulator.override("aten::_linalg_svd", kernel)


def other_eigh(change=lambda w, v: (w, v)):
    def kernel(a, *args, **kwargs):
        w, v = aten._linalg_eigh(a, *args, **kwargs)
        return change(w.clone(), v * flips(v.shape[-1]).to(v.dtype))

    return pa.emulator.override("aten::_linalg_eigh", kernel)


TALL, SQUARE = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(1))
SQUARE = SQUARE[:8]
SYMMETRIC = SQUARE + SQUARE.T

# --------------------------------------------------------------------------------------------------- factorisations


@pytest.mark.parametrize(
    "fn",
    [
        torch.linalg.svd,
        torch.svd,
        torch.Tensor.svd,
        aten.linalg_svd.default,
        lambda x: torch.linalg.svd(x, full_matrices=False),
        lambda x: {"left": torch.linalg.svd(2 * x)[0]},
        TALL.svd,
    ],
)
def test_singular_vectors_with_other_signs_are_right(check, fn):
    with other_svd():
        result = check(fn) if getattr(fn, "__self__", None) is TALL else check(fn, TALL)
    assert result.verdict is Verdict.PASS, result.reason
    assert any("unique up to sign" in note and "= A" in note for note in result.notes)


@pytest.mark.parametrize("shape", [(6, 6), (3, 6, 4), (2, 3, 4, 5), (1, 1), (0, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_singular_vectors_of_any_shape_and_dtype(check, shape, dtype):
    with other_svd():
        assert check(torch.linalg.svd, torch.randn(shape, dtype=dtype)).verdict is Verdict.PASS


def rotated(v, i, j, cosine):
    sine = (1 - cosine**2) ** 0.5
    a, b = v[:, i].clone(), v[:, j].clone()
    v[:, i], v[:, j] = cosine * a + sine * b, cosine * b - sine * a


@pytest.mark.parametrize(
    "fault",
    [
        lambda u, s, vh: (changed(u, lambda u: u[:, 2].mul_(-1)), s, vh),
        lambda u, s, vh: (changed(u, lambda u: u[:, 2].mul_(1.001)), s, vh),
        lambda u, s, vh: (changed(u, lambda u: u[-2:].zero_()), s, vh),
        lambda u, s, vh: (changed(u, lambda u: rotated(u, 1, 2, 0.999)), s, vh),
        lambda u, s, vh: (u, s, changed(vh, lambda v: v[:, -1].zero_())),
        lambda u, s, vh: (u, s * 1.001, vh),
        lambda u, s, vh: (u, s, vh.roll(1, 0)),
        lambda u, s, vh: (changed(u, lambda u: u[:, -1].copy_(u[:, -2])), s, vh),
    ],
)
@pytest.mark.parametrize("shape", [(8, 8), (12, 8), (2, 8, 8)])
def test_singular_vectors_that_are_none_are_wrong(check, fault, shape):
    if len(shape) == 3:
        one, fault_of_one = fault, None  # noqa: F841

        def fault(u, s, vh):
            parts = [one(*part) for part in zip(u, s, vh, strict=True)]
            return tuple(map(torch.stack, zip(*parts, strict=True)))

    with other_svd(fault):
        result = check(torch.linalg.svd, torch.randn(shape))
    assert result.verdict is Verdict.FAIL


def test_the_reason_is_the_equation(check):
    with other_svd(lambda u, s, vh: (changed(u, lambda u: u[:, 2].mul_(-1)), s, vh)):
        result = check(torch.linalg.svd, SQUARE)
    assert "U S V^H = A doesn't hold: the residual is" in result.reason


@pytest.mark.parametrize("fn", [torch.linalg.eigh, lambda x: torch.linalg.eigh(x @ x.T)[1]])
def test_eigenvectors_with_other_signs_are_right(check, fn):
    with other_eigh():
        assert check(fn, SYMMETRIC).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "fault",
    [
        lambda w, v: (w, changed(v, lambda v: v[:, 3].mul_(1.01))),
        lambda w, v: (w, changed(v, lambda v: v[-2:].zero_())),
        lambda w, v: (w, changed(v, lambda v: rotated(v, 3, 4, 0.99))),
        lambda w, v: (w, v[:, [0, 2, 1, 3, 4, 5, 6, 7]]),
        lambda w, v: (changed(w, lambda w: w[-1].mul_(1.001)), v),
        lambda w, v: (w.flip(0), v.flip(1)),
    ],
)
def test_eigenvectors_that_are_none_are_wrong(check, fault):
    with other_eigh(fault):
        assert check(torch.linalg.eigh, SYMMETRIC).verdict is Verdict.FAIL


ORDER = torch.tensor([3, 1, 0, 2, 4, 7, 6, 5])


def reordered(w, v, phase=1.0):
    return w[ORDER.to(w.device)], v[:, ORDER.to(v.device)] * phase


def test_eigenvalues_of_a_general_matrix_come_in_any_order(check):
    phase = 0.6 + 0.8j
    result = check(on_target(torch.linalg.eig, lambda r: reordered(*r, phase)), SQUARE)
    assert result.verdict is Verdict.PASS
    assert check(on_target(torch.linalg.eigvals, lambda w: w.flip(0)), SQUARE).verdict is Verdict.PASS
    for fault in (
        lambda r: (r[0][ORDER.to(r[0].device)], r[1]),
        lambda r: (r[0], r[1] * 1.001),
        lambda r: reordered(r[0].roll(1), r[1]),
        lambda r: (changed(r[0], lambda w: w[1].copy_(w[0])), changed(r[1], lambda v: v[:, 1].copy_(v[:, 0]))),
    ):
        assert check(on_target(torch.linalg.eig, fault), SQUARE).verdict is Verdict.FAIL
    wrong = on_target(torch.linalg.eigvals, lambda w: changed(w.flip(0), lambda w: w[0].mul_(1.001)))
    assert check(wrong, SQUARE).verdict is Verdict.FAIL


def flipped_qr(r):
    sign = flips(r[1].shape[-2]).to(r[1].device)
    return r[0] * sign if r[0].numel() else r[0], r[1] * sign[:, None]


@pytest.mark.parametrize("mode", ["reduced", "r"])
def test_qr_with_other_signs(check, mode):
    def fn(x):
        return torch.linalg.qr(x, mode=mode)

    assert check(on_target(fn, flipped_qr), TALL).verdict is Verdict.PASS
    dirty = on_target(fn, lambda r: (r[0], changed(flipped_qr(r)[1], lambda u: u[3, 0].fill_(1e-3))))
    assert check(dirty, TALL).verdict is Verdict.FAIL
    if mode == "reduced":
        assert check(on_target(fn, lambda r: (flipped_qr(r)[0], r[1])), TALL).verdict is Verdict.FAIL


def test_a_pivot_may_fall_either_way_on_a_tie(check):
    matrix = torch.tensor([[2.0, 1, 3], [2, 4, 1], [-2, 5, 7]])
    other = [1, 0, 2]

    def lu(x):
        p, lower, upper = torch.linalg.lu(x)
        if not here(x):
            return p, lower, upper
        p, lower, upper = torch.linalg.lu(x.cpu()[other])
        return torch.eye(3)[other].T.matmul(p).to(x.device), lower.to(x.device), upper.to(x.device)

    assert check(lu, matrix).verdict is Verdict.PASS
    broken = on_target(torch.linalg.lu, lambda r: (r[0], r[1], changed(r[2], lambda u: u[-1, -1].mul_(1.001))))
    assert check(broken, SQUARE).verdict is Verdict.FAIL


def test_random_factorisations_are_judged_by_what_they_factorise(check):
    for fn, args in ((torch.svd_lowrank, ()), (torch.pca_lowrank, ()), (torch.svd_lowrank, (3,))):
        result = check(fn, TALL, *args)
        assert result.verdict is Verdict.PASS, result.reason
        assert any("is random" in note or "are random" in note for note in result.notes)
    positive = SQUARE @ SQUARE.T + torch.eye(8)
    assert check(torch.lobpcg, positive, 2, niter=40).verdict is Verdict.PASS
    with other_svd(lambda u, s, vh: (u, s * 1.01, vh)):
        assert check(torch.svd_lowrank, TALL).verdict is Verdict.FAIL


def test_a_solution_of_an_ill_conditioned_system_is_judged_by_its_residual(check):
    n = torch.arange(8.0)
    hilbert, right = 1 / (n[:, None] + n + 1), torch.randn(8, 2)

    def solve(a, b):
        if not here(a):
            return torch.linalg.solve(a, b)
        q, r = torch.linalg.qr(a)
        return torch.linalg.solve_triangular(r, q.T @ b, upper=True)

    result = check(solve, hilbert, right)
    assert result.passed, result.reason
    wrong = on_target(torch.linalg.solve, lambda x: changed(x, lambda x: x[-1].mul_(1.01)))
    assert check(wrong, hilbert, right).verdict is Verdict.FAIL
    assert check(wrong, SQUARE, right).verdict is Verdict.FAIL


def test_what_a_randomly_changed_matrix_has_is_random(check):
    assert check(lambda x: torch.linalg.svd(F.dropout(x)), TALL).verdict is Verdict.NOT_COMPARABLE


# -------------------------------------------------------------------------------------------------------- gradients


def test_gradients_are_compared_with_the_reference_s_signs(check):
    with other_eigh():
        result = check(lambda x: torch.linalg.eigh(x @ x.T), torch.randn(5, 8, requires_grad=True))
    assert result.verdict is Verdict.PASS
    assert by_path(result)["grad(args[0])"].verdict is Verdict.PASS
    assert any("reference's signs" in note for note in result.notes)
    with other_svd():
        fn = lambda x: torch.linalg.svd(x, full_matrices=False)  # noqa: E731
        assert check(fn, torch.randn(6, 4, requires_grad=True)).verdict is Verdict.PASS
    assert check(on_target(torch.linalg.qr, flipped_qr), TALL.clone().requires_grad_()).verdict is Verdict.PASS


def test_a_wrong_gradient_of_vectors_with_other_signs_is_wrong(check):
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * (1.1 if here(grad) else 1.0)

    with other_svd():
        result = check(
            lambda x: torch.linalg.svd(Kept.apply(x), full_matrices=False), torch.randn(6, 4, requires_grad=True)
        )
    assert (result.verdict, result.kind) == (Verdict.FAIL, Kind.gradient)


def test_a_loss_that_no_sign_changes_is_judged_as_ever(check):
    def loss(x):
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return ((u * s) @ vh).square().sum()

    with other_svd():
        assert check(loss, torch.randn(6, 4, requires_grad=True)).verdict is Verdict.PASS


# ------------------------------------------------------------------------------------------------------------- ties

TIES = torch.tensor([[1.0, 3, 3, 2, 3, 0, 1, 1]]).repeat(4, 1)


def last_first(fn, dim_at=0):
    """A kernel that looks at the row from its end, so that of equal values it takes the last."""

    def kernel(x, *args, **kwargs):
        values, indices = fn(x.flip(-1), *args, **kwargs)
        return values, x.shape[-1] - 1 - indices

    return kernel


def last_sort(x, dim=-1, descending=False, *, stable=False):
    values, indices = torch.sort(x.flip(-1), dim=-1, descending=descending, stable=True)
    return values, x.shape[-1] - 1 - indices


def last_argmax(x, dim=None, keepdim=False):
    x = x.reshape(-1) if dim is None else x
    dim = 0 if dim is None else dim
    return x.shape[dim] - 1 - x.flip(dim).argmax(dim, keepdim)


def test_where_torch_leaves_ties_open_any_of_equal_values_is_right(check):
    with pa.emulator.override("aten::sort", last_sort):
        for fn in (torch.sort, torch.argsort, lambda x: {"order": x.argsort()}, lambda x: x.sort(descending=True)):
            result = check(fn, TIES)
            assert result.verdict is Verdict.PASS, result.reason
            assert any("leaves open" in note for note in result.notes)
    with pa.emulator.override("aten::topk", last_first(torch.topk)):
        assert check(torch.topk, TIES, 2).verdict is Verdict.PASS
        assert check(torch.topk, TIES.bfloat16(), 3).verdict is Verdict.PASS
    for fn, index in (
        (lambda x: torch.kthvalue(x, 7, -1), 1),
        (lambda x: torch.median(x, -1), 7),
        (lambda x: torch.cummax(x, -1), None),
    ):
        move = lambda r, index=index: (  # noqa: E731
            r[0],
            torch.full_like(r[1], index) if index is not None else changed(r[1], lambda i: i[:, 2].fill_(1)),
        )
        rows = torch.tensor([[1.0, 0, 2, 3, 1, 5, 0, 1]]) if index == 7 else TIES
        assert check(on_target(fn, move), rows).verdict is Verdict.PASS
    pool = lambda x: F.max_pool2d(x, 2, return_indices=True)  # noqa: E731
    move = lambda r: (r[0], changed(r[1], lambda i: i[..., 0, 0].fill_(1)))  # noqa: E731
    assert check(on_target(pool, move), torch.ones(1, 1, 4, 4)).verdict is Verdict.PASS
    assert check(on_target(pool, move), torch.arange(16.0).view(1, 1, 4, 4)).verdict is Verdict.FAIL


def test_where_torch_defines_ties_another_index_is_wrong(check):
    with pa.emulator.override("aten::argmax", last_argmax):
        for args in ((TIES, 1), (TIES,), (TIES.long(), 1), (TIES.bfloat16(), 1)):
            result = check(torch.argmax, *args)
            assert (result.verdict, result.kind) == (Verdict.FAIL, Kind.exact)
            assert "torch defines which: the first of equal values" in result.reason
        assert check(lambda x: torch.softmax(x, -1).argmax(-1), TIES).verdict is Verdict.FAIL
        assert check(torch.argmax, torch.randn(4, 9), 1).verdict is Verdict.PASS
    with pa.emulator.override("aten::max.dim", last_first(torch.max)):
        assert check(torch.max, TIES, 1).kind is Kind.exact
        assert check(lambda x: x.max(1).values, TIES).verdict is Verdict.PASS
    with pa.emulator.override("aten::sort", last_sort):
        assert check(lambda x: torch.sort(x, stable=True), TIES).kind is Kind.exact
        assert check(lambda x: torch.argsort(x, stable=True), TIES).kind is Kind.exact


@pytest.mark.parametrize(
    "fault",
    [
        lambda i: i[:, -1].copy_(i[:, -2]),
        lambda i: i[:, [0, -1]].copy_(i[:, [-1, 0]]) if False else i.copy_(i.flip(-1)),
        lambda i: i[:, 0].fill_(99),
        lambda i: i[:, 0].fill_(-1),
    ],
)
def test_an_order_that_is_none_is_wrong(check, fault):
    assert check(on_target(torch.sort, lambda r: (r[0], changed(r[1], fault))), TIES).verdict is Verdict.FAIL


def test_unsorted_results_are_sets(check):
    x, numbers = torch.randn(4, 9), torch.tensor([3, 1, 2, 3, 1])
    topk = lambda x: torch.topk(x, 3, sorted=False)  # noqa: E731
    assert check(on_target(topk, lambda r: (r[0].flip(-1), r[1].flip(-1))), x).verdict is Verdict.PASS
    assert check(on_target(topk, lambda r: (r[0].flip(-1), r[1])), x).verdict is Verdict.FAIL
    ordered = on_target(lambda x: torch.topk(x, 3), lambda r: (r[0].flip(-1), r[1].flip(-1)))
    assert check(ordered, x).verdict is Verdict.FAIL
    unique = lambda x: torch.unique(x, sorted=False, return_inverse=True, return_counts=True)  # noqa: E731
    right = on_target(unique, lambda r: (r[0].flip(0), 2 - r[1], r[2].flip(0)))
    assert check(right, numbers).verdict is Verdict.PASS
    assert check(on_target(unique, lambda r: (r[0].flip(0), r[1], r[2].flip(0))), numbers).verdict is Verdict.FAIL
    assert check(on_target(torch.unique, lambda r: r.flip(0)), numbers).verdict is Verdict.FAIL


def test_the_gradient_of_a_tie_goes_to_either(check):
    x = TIES.clone().requires_grad_()
    with pa.emulator.override("aten::topk", last_first(torch.topk)):
        result = check(lambda x: torch.topk(x, 2)[0], x)
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert by_path(result)["output"].verdict is Verdict.PASS


# --------------------------------------------------------------------------------------------------------- rounding


def test_one_wrong_integer_among_ties_is_wrong(check):
    x, w = torch.randn(64, 32), torch.randn(32, 64) / 16

    def quantised(x, w, off=1e-7):
        return torch.clamp(torch.round(x @ w * (1 + off * here(x)) / 0.05) + 3, -128, 127).to(torch.int8)

    assert check(quantised, x, w).passed
    assert check(on_target(quantised, lambda q: changed(q, lambda q: q[3, 5].add_(1))), x, w).verdict is Verdict.FAIL
    rounded = lambda x, w: torch.round(64 * (x @ w) * (1 + 1e-7 * here(x))).int()  # noqa: E731
    assert check(rounded, x, w).passed
    assert check(on_target(rounded, lambda q: changed(q, lambda q: q[3, 5].add_(1))), x, w).verdict is Verdict.FAIL


def test_floors_of_sums_that_are_one(check):
    def floor(x):
        return torch.floor(torch.softmax(x, -1).sum(-1) * (1 - 1.2e-7 * here(x)))

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(64, 32).to(dtype)
        assert check(floor, x).passed
        assert check(on_target(floor, lambda y: changed(y, lambda y: y[5].add_(3))), x).verdict is Verdict.FAIL


def test_whole_numbers_that_nothing_rounded_are_no_steps(check):
    x, w = torch.arange(64.0).view(8, 8).bfloat16(), torch.arange(64.0).view(8, 8).bfloat16()
    assert check(torch.matmul, x, w).passed
    assert check(lambda x: x.cumsum(0), x).passed
    assert (
        check(on_target(torch.matmul, lambda y: changed(y, lambda y: y[2, 3].mul_(1.05))), x, w).verdict is Verdict.FAIL
    )


def test_a_custom_operator_is_judged_by_what_defines_its_reference(check):
    def mine(x):
        w, v = torch.linalg.eigh(x)
        return w, v * flips(8).to(v.device) if here(v) else v

    assert check(mine, SYMMETRIC, options={"reference": torch.linalg.eigh}).verdict is Verdict.PASS
    wrong = on_target(mine, lambda r: (r[0], changed(r[1], lambda v: v[:, 1].mul_(1.01))))
    assert check(wrong, SYMMETRIC, options={"reference": torch.linalg.eigh}).verdict is Verdict.FAIL


def test_thresholds_that_somebody_gave_are_kept(check):
    with other_eigh():
        assert check(torch.linalg.eigh, SYMMETRIC, options={"criterion": "close"}).verdict is Verdict.FAIL
