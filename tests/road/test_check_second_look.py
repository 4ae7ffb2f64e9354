"""A failure is looked at again: chance, the run, the layout, a mode, the function's own conditioning."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


# ---------------------------------------------------------------------------------------------------- chance


def test_random_outputs_cannot_be_compared(check):
    result = check(F.dropout, torch.randn(64))
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert "changes with the seed" in result.reason
    assert check(torch.rand, 8, device="npu").verdict is Verdict.NOT_COMPARABLE


def test_a_callable_that_seeds_itself_is_random_too(check):
    def fn(x):
        state = torch.get_rng_state()
        torch.manual_seed(42)
        result = F.dropout(x)
        torch.set_rng_state(state)  # and leaves no trace
        return result

    assert check(fn, torch.randn(64)).verdict is Verdict.NOT_COMPARABLE
    torch.manual_seed(5)
    here_again = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), here_again)  # seeding is as it was


def test_a_wrong_gradient_is_not_taken_for_chance(check):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * (2.2 if here(grad) else 2)

    assert check(Wrong.apply, torch.randn(9, requires_grad=True)).kind is Kind.gradient


def test_only_what_is_random_is_excused(check):
    def fn(x):
        return {"random": F.dropout(x), "wrong": x * (1.1 if here(x) else 1.0), "right": x + 1}

    outputs = by_path(check(fn, torch.randn(64)))
    assert outputs["output['random']"].verdict is Verdict.NOT_COMPARABLE
    assert outputs["output['wrong']"].verdict is Verdict.FAIL
    assert outputs["output['right']"].verdict is Verdict.PASS


def test_a_random_output_of_another_shape_is_wrong_all_the_same(check):
    result = check(lambda x: F.dropout(x)[: 3 if here(x) else 4], torch.randn(4))
    assert result.kind is Kind.shape


def test_a_model_in_eval_mode_is_comparable(check):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    assert check(model.train(), torch.randn(9, 4)).verdict is Verdict.NOT_COMPARABLE
    assert check(model.eval(), torch.randn(9, 4)).verdict is Verdict.PASS


# ---------------------------------------------------------------------------------------------------- repeats


def unsteady(size, every=2):
    runs = itertools.count()

    def fn(x):
        return x * 2 + (size if here(x) and next(runs) % every else 0.0)

    return fn


def test_a_target_that_disagrees_with_itself(check):
    result = check(unsteady(0.5), torch.rand(8), options={"repeats": 4})
    assert result.verdict is Verdict.NONDETERMINISTIC
    assert "2 of 4 runs" in result.reason
    assert "up to 0.5" in result.reason


def test_a_first_run_that_is_wrong_by_chance_is_found_without_repeats(check):
    runs = itertools.count()
    result = check(lambda x: x * 2 + (0.5 if here(x) and next(runs) == 0 else 0.0), torch.rand(8))
    assert result.verdict is Verdict.NONDETERMINISTIC


def test_runs_that_differ_within_the_criterion_are_a_note(check):
    result = check(unsteady(3e-7), torch.rand(8) + 1, options={"repeats": 3})
    assert result.verdict is Verdict.PASS
    assert any("3 runs of the target differ" in note for note in result.notes)


def test_a_steady_fault_stays_a_failure(check):
    x = torch.rand(8) + 1
    assert check(lambda x: x * (2.1 if here(x) else 2.0), x, options={"repeats": 3}).verdict is Verdict.FAIL
    noisy = unsteady(1e-6)
    result = check(lambda x: noisy(x) * (1.1 if here(x) else 1.0), x, options={"repeats": 3})
    assert result.verdict is Verdict.FAIL
    assert any("less than they are wrong" in note for note in result.notes)


# ---------------------------------------------------------------------------------------------------- layouts


def reads_linearly(x):
    """What a kernel sees that takes memory for the values in order."""
    strides = torch.empty(x.shape, device="meta").stride()
    return x.as_strided(x.shape, strides, 0) if here(x) else x


def test_an_argument_whose_strides_are_ignored_is_named(check):
    def fn(a, b):
        return a + reads_linearly(b)

    a = torch.randn(4, 4).t()
    result = check(fn, a, torch.randn(4, 4).t())
    assert result.verdict is Verdict.FAIL
    assert result.kind is Kind.layout
    assert "args[1]" in result.reason
    assert "args[0]" not in result.reason
    assert check(fn, a, torch.randn(4, 4)).verdict is Verdict.PASS


def test_an_ignored_offset_is_a_matter_of_layout(check):
    def fn(x, *, c):
        return x * (c.as_strided((), (), 0) if here(c) else c)

    result = check(fn, torch.full((3,), 4.0), c=torch.tensor([9.0, 2.0, 7.0])[2])
    assert result.kind is Kind.layout
    assert "with c laid out" in result.reason
    assert "offset 2" in result.reason


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "channels_last"])
def test_asked_for_layouts_find_what_contiguous_inputs_hide(check, layout):
    x = torch.arange(4.0).view(4, 1).repeat(1, 5) if layout == "expanded" else torch.randn(2, 3, 4, 5)
    fn = lambda x: reads_linearly(x).exp()  # noqa: E731
    if layout == "expanded":  # a kernel that reads past the single element would fault: read it wrongly instead
        fn = lambda x: x.exp() * (2 if here(x) and 0 in x.stride() else 1)  # noqa: E731
    assert check(fn, x).verdict is Verdict.PASS
    result = check(fn, x, options={"layouts": ("as_given", layout)})
    assert result.kind is Kind.layout
    assert by_path(result)["output"].verdict is Verdict.PASS
    assert by_path(result)[f"output [{layout}]"].kind is Kind.layout


def test_right_operators_pass_in_every_layout(check):
    from pytest_ascend.options import LAYOUTS

    for fn, args in (
        (torch.matmul, (torch.randn(6, 5, requires_grad=True), torch.randn(5, 4))),
        (F.conv2d, (torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))),
        (torch.where, (torch.rand(3, 4) > 0.5, torch.randn(3, 4), torch.zeros(3, 4))),
        (torch.gather, (torch.randn(5, 7), 1, torch.randint(7, (5, 3)))),
    ):
        result = check(fn, *args, options={"layouts": LAYOUTS})
        assert result.passed, (fn, result.reason)


def test_a_layout_that_no_argument_can_take_is_a_note(check):
    result = check(torch.exp, torch.randn(3), options={"layouts": ("as_given", "channels_last")})
    assert result.verdict is Verdict.PASS
    assert any("channels_last" in note for note in result.notes)
    assert check(torch.exp, torch.randn(3), options={"layouts": ("channels_last",)}).verdict is Verdict.VACUOUS


def test_a_layout_that_the_cpu_refuses_too_is_a_note(check):
    result = check(lambda x: x.view(-1) + 1, torch.randn(3, 4), options={"layouts": ("as_given", "transposed")})
    assert result.verdict is Verdict.PASS
    assert any("doesn't take it on the CPU either" in note for note in result.notes)


def test_a_backward_pass_that_refuses_a_layout_everywhere_is_a_note(check):
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.strides = x.stride()
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if ctx.strides[-1] != 1:
                raise RuntimeError("grad_input must be contiguous")
            return grad * 2

    x = torch.randn(3, 4, requires_grad=True)
    result = check(Picky.apply, x, options={"layouts": ("as_given", "transposed")})
    assert result.verdict is Verdict.PASS
    assert "grad(args[0])" in by_path(result)
    assert any("transposed: no gradients" in note for note in result.notes)


def test_a_layout_that_only_the_target_refuses(check):
    def fn(x):
        if here(x) and not x.is_contiguous():
            raise RuntimeError("only contiguous tensors are supported... not supported")
        return x + 1

    result = check(fn, torch.randn(3, 4), options={"layouts": ("as_given", "transposed")})
    assert by_path(result)["output"].verdict is Verdict.PASS
    assert result.verdict is Verdict.UNSUPPORTED
    assert "transposed" in result.reason


def test_a_callable_that_looks_at_strides_is_not_blamed(check):
    result = check(lambda x: x * float(x.stride(0)), torch.rand(3, 4), options={"layouts": ("as_given", "transposed")})
    assert result.verdict is Verdict.PASS
    assert any("other values for it on the CPU too" in note for note in result.notes)


# ---------------------------------------------------------------------------------------------------- modes


def test_a_documented_mode_explains_what_it_does(check):
    torch.manual_seed(0)
    x, w = torch.randn(2, 16, 9, 9), torch.randn(8, 16, 3, 3)
    result = check(F.conv2d, x, w)
    assert result.verdict is Verdict.MODE_DIFF
    assert "torch.npu.conv.allow_hf32 = False" in result.reason
    assert result.passed
    assert torch.npu.conv.allow_hf32 is True
    torch.npu.conv.allow_hf32 = False
    try:
        assert check(F.conv2d, x, w).verdict is Verdict.PASS
    finally:
        torch.npu.conv.allow_hf32 = True


def test_the_chip_s_gelu_is_a_mode_too(check):
    result = check(F.gelu, torch.linspace(-4, 4, 200))
    assert result.verdict is Verdict.MODE_DIFF
    assert "gelu" in result.reason
    assert not torch.npu.are_compatible_impl_enabled()


def test_a_mode_excuses_no_fault(check):
    def fn(x, w):
        y = F.conv2d(x, w)
        return torch.cat([y[:, :-1], y[:, -2:-1]], 1) if here(x) else y

    assert check(fn, torch.randn(2, 16, 9, 9), torch.randn(8, 16, 3, 3)).verdict is Verdict.FAIL


def test_explicit_thresholds_are_not_excused_by_a_mode(check):
    result = check(F.conv2d, torch.randn(2, 16, 9, 9), torch.randn(8, 16, 3, 3), options={"criterion": "close"})
    assert result.verdict is Verdict.FAIL
    assert any("allow_hf32" in note for note in result.notes)


# ---------------------------------------------------------------------------------------------------- conditioning


def near_one(x):
    """exp(floor(sum of a softmax column)): a last bit decides between 1 and e."""
    total = torch.softmax(x, 0).sum(0)
    return torch.exp(torch.floor(total + (1.2e-7 if here(x) else 0.0)))


def test_a_last_bit_made_large_by_a_floor_is_amplified(check):
    x = torch.linspace(0, 1, 32).view(32, 1).repeat(1, 32)
    result = check(near_one, x)
    assert result.verdict in (Verdict.AMPLIFIED, Verdict.PASS)
    thirds = torch.arange(1.0, 65.0) * 3
    flipped = check(lambda x: torch.floor(x * 0.1 / 0.3 * (1 - 2**-23 * here(x))), thirds)
    assert flipped.verdict is Verdict.AMPLIFIED
    assert flipped.passed


def test_a_fault_far_from_any_jump_is_not_excused(check):
    x = torch.arange(1.0, 65.0) + 0.5
    assert check(lambda x: torch.floor(x) + (x > 60) * here(x), x).verdict is Verdict.FAIL
    index = torch.tensor([49406, 5, 49407, 7])
    assert check(lambda i: i.to(torch.bfloat16 if here(i) else i.dtype).argmax(), index).verdict is Verdict.FAIL


def test_a_tie_between_two_keys_may_fall_either_way(check):
    x = torch.tensor([0.1, 0.7, 0.7 + 6e-8, 0.2])
    lower = 2**-22 * torch.arange(4)
    result = check(lambda x: (x * 0.3 * (1 - lower.to(x.device) * here(x))).argmax(), x)
    assert result.verdict in (Verdict.AMPLIFIED, Verdict.PASS)
    assert check(lambda x: (x * (1 - lower.to(x.device) * here(x))).argmax(), x).kind is Kind.exact  # of exact keys


def test_cancellation_is_counted(check):
    def variance(x):
        return (x * x).mean(-1) - x.mean(-1) ** 2

    x = torch.randn(64, 50) + 300
    assert check(variance, x).passed
    assert check(lambda x: variance(x) * (1.5 if here(x) else 1), x).verdict is Verdict.FAIL


# ---------------------------------------------------------------------------------------------------- error budget


def test_what_only_the_width_of_bfloat16_lets_pass_fails(check):
    x = torch.rand(200).bfloat16() + 1
    result = check(lambda x: torch.exp(x) * (1.01 if here(x) else 1.0), x)
    assert (result.verdict, result.kind) == (Verdict.FAIL, Kind.bias)
    assert "what rounding to bfloat16 and the function itself explain" in result.reason
    for fn in (torch.exp, torch.tanh, lambda x: x.cumsum(0), lambda x: (x * x).mean()):
        assert check(fn, x).verdict is Verdict.PASS


def test_labels_have_no_last_bit(check):
    x, y = torch.rand(64).bfloat16() + 1, torch.tensor([1.0, -1.0]).repeat(32).bfloat16()
    assert check(F.hinge_embedding_loss, x, y, reduction="none").verdict is Verdict.PASS
    wrong = check(lambda x, y: F.hinge_embedding_loss(x, y, reduction="none") * (1.01 if here(x) else 1.0), x, y)
    assert wrong.verdict is Verdict.FAIL


def test_a_failure_with_an_expanded_argument(check):
    for dtype in (torch.float32, torch.float16):
        x = (torch.rand(1, 5) + 1.5).to(dtype).expand(4, 5)
        assert check(torch.acosh, x).verdict is Verdict.PASS
        assert check(lambda x: torch.acosh(x) * (1.01 if here(x) else 1), x).verdict is Verdict.FAIL


def test_a_mode_is_found_beside_a_random_output(check):
    x, w = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3)
    result = check(lambda x, w: (F.conv2d(x, w), torch.rand(4, device=x.device)), x, w)
    verdicts = {output.path: output.verdict for output in result.outputs}
    assert verdicts == {"output[0]": Verdict.MODE_DIFF, "output[1]": Verdict.NOT_COMPARABLE}


def test_a_layout_is_found_beside_a_random_output(check):
    def fn(x):
        y = x.as_strided(x.shape, (x.shape[1], 1)) if here(x) else x
        return y * 2, torch.rand(4, device=x.device)

    result = check(fn, torch.randn(5, 7).t())
    assert result.kind is Kind.layout


@pytest.mark.parametrize(
    "fn",
    [lambda x: x.diagonal(), lambda x: F.pad(x[:1, :2], (1, 0)), lambda x: x[:1].t(), lambda x: x.half()[:, :1]],
    ids=["diagonal", "pad", "t", "half"],
)
def test_what_only_moves_is_exact_however_small(check, fn):
    x = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    assert check(fn, x).verdict is Verdict.PASS
    assert check(lambda x: fn(x) * (-1.0 if here(x) else 1.0), x, options={"reference": fn}).verdict is Verdict.FAIL
    near = check(lambda x: fn(x) * (1 + 2**-9 * here(x)), x + 2.5, options={"reference": fn})
    assert near.verdict is Verdict.FAIL


def test_signs_of_zeros_that_only_move_count(check):
    x = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    assert check(
        lambda x: x.diagonal() * (-1.0 if here(x) else 1.0), x, options={"reference": torch.diagonal}
    ).kind is (Kind.exact)
    assert check(torch.relu, torch.tensor([-1.0, -2.0])).verdict is Verdict.PASS
