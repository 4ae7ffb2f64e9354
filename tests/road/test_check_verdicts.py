"""What `check` answers to right and wrong targets. Faults are planted by asking where a tensor lies."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_ascend.judge.verdict import Kind, Verdict


def here(x):
    """Whether a tensor lies on the device under test."""
    return x.device.type == "npu"


def by_path(result):
    return {output.path: output for output in result.outputs}


# ---------------------------------------------------------------------------------------------------- passing


def test_a_right_operator_passes_and_says_what_ran(check):
    result = check(torch.softmax, torch.randn(8, 33), dim=-1)
    assert result.verdict is Verdict.PASS
    assert (result.api, result.dtype, result.criterion) == ("torch.softmax", "float32", "auto")
    assert result.target.startswith("npu:0 (emulated Ascend")
    assert result.environment["emulated"] is True
    assert result.environment["versions"]["torch"] == torch.__version__
    assert result.outputs[0].metrics.count == 8 * 33


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (F.gelu, [(64,)]),
        (torch.matmul, [(7, 33), (33, 5)]),
        (lambda x: F.layer_norm(x, (33,)), [(4, 33)]),
        (lambda x, w: F.linear(x, w).relu().sum(), [(4, 9), (3, 9)]),
        (torch.cumsum, [(3, 40)]),
    ],
    ids=["gelu", "matmul", "layer_norm", "composed", "cumsum"],
)
def test_right_operators_pass_in_every_dtype_forward_and_backward(check, fn, shapes, dtype):
    args = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    kwargs = {"dim": 1} if fn is torch.cumsum else {}
    result = check(fn, *args, **kwargs)
    assert result.passed, result.reason
    assert {f"grad(args[{i}])" for i in range(len(args))} <= set(by_path(result))


class Out(NamedTuple):
    logits: torch.Tensor
    extra: object


def test_nested_outputs_have_paths(check):
    def fn(x):
        return {"a": [x + 1, (x * 2, None)], "b": Out(x.sum(), "text"), "n": 3}

    result = check(fn, torch.randn(3))
    assert result.verdict is Verdict.PASS
    assert {"output['a'][0]", "output['a'][1][0]", "output['b'].logits"} <= set(by_path(result))


def test_keyword_only_arguments(check):
    def fn(*, query, scale=1.0):
        return query * scale

    result = check(fn, query=torch.randn(3, requires_grad=True), scale=2.0)
    assert result.verdict is Verdict.PASS
    assert "grad(query)" in by_path(result)


def test_an_argument_called_options_is_the_callable_s(check):
    from pytest_ascend.cases.case import Case
    from pytest_ascend.check import check as plain
    from pytest_ascend.check import check_case
    from pytest_ascend.options import CheckOptions

    def fn(x, options):
        return x * options["scale"]

    x = torch.randn(3)
    assert plain(fn, x, options={"scale": 2}).verdict is Verdict.PASS
    case = Case(fn, (x,), {"options": {"scale": 2}})
    assert check_case(case, CheckOptions(target="emulated", seed=7)).environment["seed"] == 7


def test_plain_numbers_are_compared(check):
    assert check(lambda x: x.sum().item(), torch.ones(4)).verdict is Verdict.PASS
    assert check(lambda x: x.sum().item() + 1.0 * here(x), torch.ones(4)).verdict is Verdict.FAIL


def test_other_targets(check):
    assert check(torch.exp, torch.randn(4), options={"target": "cpu"}).target.startswith("cpu")
    result = check(torch.exp, torch.randn(4), options={"target": "emulated:1"})
    assert result.target.startswith("npu:1")
    assert result.verdict is Verdict.PASS


# ---------------------------------------------------------------------------------------------------- plain faults


def test_a_wrong_kernel_fails_with_numbers(check):
    from pytest_ascend.targets import emulator

    with emulator.override("aten::_softmax", lambda x, dim, half: torch.softmax(x, dim) * 1.01):
        result = check(torch.softmax, torch.randn(8, 33), dim=-1)
    assert result.verdict is Verdict.FAIL
    assert result.kind in (Kind.bias, Kind.spread)
    assert result.outputs[0].metrics.max_abs_error > 1e-4
    assert not result.passed


def test_another_structure_shape_or_dtype_fails_with_its_kind(check):
    x = torch.randn(4)
    assert check(lambda x: (x, x) if here(x) else x, x).kind is Kind.structure
    assert check(lambda x: x[:2] if here(x) else x, x).kind is Kind.shape
    assert check(lambda x: x.half() if here(x) else x, x).kind is Kind.dtype


def test_integers_and_moved_data_are_exact(check):
    assert check(torch.sum, torch.arange(9), options={}).verdict is Verdict.PASS
    assert check(lambda x: x + 1 * here(x), torch.arange(9)).kind is Kind.exact
    x = torch.randn(20, 5)
    moved = check(lambda x: (x.half().float() if here(x) else x).flip(0), x)
    assert moved.kind is Kind.exact
    assert check(lambda x: x[:2, :4] * 1 + 1e-7 * here(x), x + 1).kind is Kind.exact
    by_one_ulp = check(lambda x: (x * (1 + 2**-23) if here(x) else x).t(), x)
    assert by_one_ulp.kind is Kind.exact
    assert check(lambda x: x / (1 / 1.1) if here(x) else x * 1.1, x).verdict is Verdict.PASS  # computing


def test_sparse_results(check):
    options = {"target": "cpu"}
    assert check(lambda x: x.to_sparse(), torch.eye(5) * 3, options=options).verdict is Verdict.PASS


def test_explicit_thresholds_count(check):
    fn = lambda x: x * 1.001 if here(x) else x * 1.0  # noqa: E731
    x = torch.rand(50) + 1
    assert check(fn, x, options={"criterion": "cosine", "cosine": 0.99, "max_abs": 0.1}).verdict is Verdict.PASS
    result = check(fn, x, options={"criterion": "cosine", "max_abs": 1e-4})
    assert result.verdict is Verdict.FAIL
    assert result.criterion == "cosine"
    assert check(fn, x, options={"rtol": 1e-6, "atol": 0.0}).criterion == "close"  # whose thresholds these are


# ---------------------------------------------------------------------------------------------------- gradients


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x * (1.1 if here(grad) else 1.0)


class LostBackward(WrongBackward):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, None if here(grad) else grad * x


def test_a_wrong_gradient_alone_is_named(check):
    result = check(WrongBackward.apply, torch.randn(9, requires_grad=True), torch.randn(9, requires_grad=True))
    verdicts = {path: output.verdict for path, output in by_path(result).items()}
    assert verdicts == {"output": Verdict.PASS, "grad(args[0])": Verdict.PASS, "grad(args[1])": Verdict.FAIL}
    assert result.kind is Kind.gradient


def test_a_gradient_missing_on_one_side_is_a_matter_of_structure(check):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(9))

        def forward(self, x):
            return LostBackward.apply(x, self.weight)

    result = check(Scale(), torch.randn(9, requires_grad=True))
    assert by_path(result)["grad(weight)"].kind is Kind.structure
    assert by_path(result)["grad(args[0])"].verdict is Verdict.PASS


def test_gradients_only_where_asked_and_possible(check):
    x, model = torch.randn(2, 3, requires_grad=True), nn.Linear(3, 2)
    auto = set(by_path(check(model, x)))
    assert auto == {"output", "grad(args[0])", "grad(weight)", "grad(bias)"}
    assert set(by_path(check(model, x, options={"backward": False}))) == {"output"}
    with torch.no_grad():
        assert set(by_path(check(model, x))) == {"output"}
        assert set(by_path(check(model, x, options={"backward": True}))) == auto
    assert set(by_path(check(torch.exp, torch.randn(3)))) == {"output"}
    with pytest.raises(ValueError, match="backward=True"):
        check(torch.exp, torch.randn(3), options={"backward": True})


def test_a_loss_is_where_the_backward_pass_starts(check):
    def fn(x):
        return {"loss": x.square().mean(), "logits": x * 100}

    result = check(fn, torch.randn(5, requires_grad=True))
    worst = by_path(result)["grad(args[0])"].metrics
    assert worst.count == 5
    x = torch.randn(5, requires_grad=True)
    big = check(lambda x: {"loss": x.square().mean(), "logits": x * (1e3 if here(x) else 100)}, x)
    assert by_path(big)["grad(args[0])"].verdict is Verdict.PASS  # the logits took no part


def test_complex_outputs_have_gradients(check):
    result = check(torch.fft.rfft, torch.randn(16, requires_grad=True))
    assert result.passed, result.reason
    assert "grad(args[0])" in by_path(result)


def test_a_training_step_of_the_callable_s_own(check):
    def step(model, x):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    before = model.weight.detach().clone()
    result = check(step, model, x)
    assert result.verdict is Verdict.PASS
    assert {"output", "grad(args[0].weight)", "mutated(args[0].weight)", "mutated(args[0].bias)"} <= set(
        by_path(result)
    )
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None

    def wrong(model, x):
        loss = step(model, x)
        if here(x):
            with torch.no_grad():
                model.bias.add_(0.1)
        return loss

    assert by_path(check(wrong, model, x))["mutated(args[0].bias)"].verdict is Verdict.FAIL


def test_an_optimizer_of_the_caller_s_is_copied_with_its_model(check):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    result = check(step, model, optimizer, torch.randn(2, 4))
    assert result.passed, result.reason
    assert "mutated(args[0].weight)" in by_path(result)
    assert not optimizer.state


def test_a_gradient_that_is_zero_but_for_rounding_is_no_finding(check):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))  # the bias has no effect
    result = check(model, torch.randn(9, 6))
    assert by_path(result)["grad(0.bias)"].verdict is Verdict.PASS


# ---------------------------------------------------------------------------------------------------- changed inputs


def test_in_place_results_are_judged_where_they_are(check):
    def right(x):
        x[:, :2] += x[:, 4:]

    def on_a_copy(x):
        (x.clone() if here(x) else x)[:, :2] += 1

    x = torch.randn(3, 6)
    before = x.clone()
    result = check(right, x)
    assert result.verdict is Verdict.PASS
    assert "mutated(args[0])" in by_path(result)
    wrong = check(on_a_copy, x)
    assert wrong.kind is Kind.mutation
    assert "the CPU changed it, the target did not" in wrong.reason
    assert torch.equal(x, before)


def test_an_argument_changed_by_the_target_alone(check):
    def fn(x):
        y = x * 2
        if here(x):
            x.add_(1)
        return y

    result = check(fn, torch.randn(4))
    assert result.kind is Kind.mutation
    assert by_path(result)["output"].verdict is Verdict.PASS


def test_memory_beside_a_view_is_watched(check):
    def spills(x):
        y = x + 1
        if here(x):
            x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(7)
        return y

    base = torch.randn(10)
    result = check(spills, base[2:6])
    assert result.kind is Kind.mutation
    assert "mutated(args[0] outside the view)" in by_path(result)
    assert check(spills, torch.randn(12)[2:6], options={"target": "cpu"}).verdict is Verdict.PASS


def test_aliasing_arguments_stay_aliased(check):
    base = torch.randn(6)
    result = check(lambda a, b: a.add_(1) + b, base[:4], base[2:])
    assert result.verdict is Verdict.PASS
    assert {"mutated(args[0])", "mutated(args[1])"} <= set(by_path(result))


def test_an_in_place_change_of_a_result(check):
    leaf = torch.randn(5, requires_grad=True)
    result = check(F.relu, leaf * 2, inplace=True)
    assert result.passed, result.reason
    assert "grad(args[0])" in by_path(result)


def test_batch_norm_statistics_are_judged(check):
    class Norm(nn.BatchNorm1d):
        def forward(self, x):
            y = super().forward(x)
            if here(x) and self.momentum == 0.3:
                self.running_mean.mul_(1.5)
            return y

    good, bad = Norm(4), Norm(4, momentum=0.3)
    x = torch.randn(8, 4)
    result = check(good, x)
    assert result.verdict is Verdict.PASS
    assert {"mutated(module.running_mean)", "mutated(module.num_batches_tracked)"} <= set(by_path(result))
    wrong = by_path(check(bad, x))
    assert wrong["mutated(module.running_mean)"].verdict is Verdict.FAIL
    assert wrong["mutated(module.running_var)"].verdict is Verdict.PASS
    assert not good.running_mean.any()
    assert good.num_batches_tracked == 0
    assert not any("running" in path for path in by_path(check(good.eval(), x)))


def test_a_buffer_replaced_by_a_new_tensor_is_seen(check):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen = self.seen + x.sum() * (2 if here(x) else 1)
            return x * 1

    assert by_path(check(Counter(), torch.ones(3)))["mutated(module.seen)"].verdict is Verdict.FAIL


def test_elements_of_out_that_were_never_written(check):
    def half_written(x, *, out):
        if here(x):
            out[: len(out) // 2] = x[: len(x) // 2] * 2
        else:
            torch.mul(x, 2, out=out)
        return out

    result = check(half_written, torch.rand(8) + 1, out=torch.zeros(8))
    assert result.kind is Kind.unwritten
    assert "4 of 8 elements of out were never written" in result.reason
    assert check(torch.add, torch.rand(4), 1, out=torch.zeros(4)).verdict is Verdict.PASS


# ---------------------------------------------------------------------------------------------------- no comparison


def test_nothing_to_compare_is_vacuous(check):
    result = check(lambda x: None, torch.ones(2))
    assert result.verdict is Verdict.VACUOUS
    assert "nothing was compared" in result.reason
    assert check(lambda x: "text", torch.ones(2)).verdict is Verdict.VACUOUS
    assert check(lambda x: x.add_(1) and None, torch.ones(1)).verdict is Verdict.PASS


def test_a_target_that_did_nothing_is_not_exercised(check):
    x = torch.randn(3)
    assert check(lambda x: x.cpu() + 1, x).verdict is Verdict.NOT_EXERCISED
    assert check(lambda x: (x.cpu() + 1).to(x.device), x).verdict is Verdict.NOT_EXERCISED
    assert check(torch.ones, 3).verdict is Verdict.NOT_EXERCISED
    assert check(torch.ones, 3, device="npu").verdict is Verdict.PASS
    assert check(torch.ones, 3, device=torch.device("cpu")).verdict is Verdict.PASS  # follows the run
    assert check(torch.t, torch.randn(2, 3)).verdict is Verdict.PASS  # a view runs no kernel
    assert check(torch.clone, x).verdict is Verdict.PASS
    assert check(lambda x: x.cpu() + 1, x, options={"target": "cpu"}).verdict is Verdict.PASS


def test_a_wrong_result_stays_a_failure_whoever_made_it(check):
    assert check(lambda x: x.cpu() + (2 if here(x) else 1), torch.ones(3)).verdict is Verdict.FAIL


MESSAGE = (
    "CAUTION: The operator 'aten::foo' is not currently supported on the NPU backend and will fall back to run on the "
    "CPU."
)


def test_an_announced_fallback_is_believed(check):
    def fn(x):
        if here(x):
            warnings.warn(MESSAGE, stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        return x + 1

    with pytest.warns(UserWarning, match="something else"):
        result = check(fn, torch.ones(3))
    assert result.verdict is Verdict.NOT_EXERCISED
    assert "aten::foo" in result.reason

    class Model(nn.Module):
        def forward(self, x):
            return fn(x)

    with pytest.warns(UserWarning, match="something else"):
        model = check(Model(), torch.ones(3))
    assert model.verdict is Verdict.PASS
    assert any("aten::foo" in note for note in model.notes)


# ---------------------------------------------------------------------------------------------------- exceptions


def raising(error):
    def fn(x):
        if here(x):
            raise error
        return x + 1

    return fn


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("Could not run 'aten::cumsum' with arguments from the 'npu' backend."),
        RuntimeError("aten::cumsum: unsupported dtype Half"),
        RuntimeError("call aclnnCumsum failed: dtype DT_FLOAT16 not supported"),
        RuntimeError("\"cumsum\" not implemented for 'Half'"),
    ],
)
def test_a_missing_kernel_is_unsupported_and_names_operator_and_dtype(check, error):
    result = check(raising(error), torch.ones(3).half())
    assert result.verdict is Verdict.UNSUPPORTED
    assert "umsum" in result.reason.split(" is not supported")[0]
    assert "float16" in result.reason
    assert any(str(error) in note for note in result.notes)


def test_any_other_error_of_the_target_alone_is_a_crash(check):
    result = check(raising(RuntimeError("aicore exception 507018\nlong story")), torch.ones(3))
    assert result.verdict is Verdict.CRASH
    assert "507018" in result.reason
    assert "\n" not in result.reason
    assert any("long story" in note for note in result.notes)


def test_want_of_memory_is_the_machine_s(check):
    result = check(raising(torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2 GiB")), torch.ones(3))
    assert result.verdict is Verdict.INFRA
    assert any("device memory" in note for note in result.notes)


def test_an_error_of_the_callable_itself_is_the_caller_s(check):
    def broken(x):
        raise KeyError("labels")

    with pytest.raises(KeyError, match="labels") as caught:
        check(broken, torch.ones(3))
    assert any("raised this on the CPU" in note for note in caught.value.__notes__)


def test_an_operator_that_only_the_npu_has_asks_for_a_reference(check):
    def npu_only(x):
        if not here(x):
            raise NotImplementedError("npu::rms is not available for the CPU backend")
        return x * 2

    with pytest.raises(NotImplementedError) as caught:
        check(npu_only, torch.ones(3))
    assert any("reference=" in note for note in caught.value.__notes__)
    assert check(npu_only, torch.ones(3), options={"reference": lambda x: x + x}).verdict is Verdict.PASS
    assert check(npu_only, torch.ones(3), options={"reference": lambda x: x + 2}).verdict is Verdict.FAIL


def test_skipping_inside_the_callable_still_skips(check):
    with pytest.raises(pytest.skip.Exception):
        check(lambda x: pytest.skip("no"), torch.ones(1))


def test_a_backward_pass_that_raises_on_the_target_alone(check):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if here(grad):
                raise RuntimeError("broken in backward")
            return grad * 2

    result = check(Fails.apply, torch.ones(3, requires_grad=True))
    assert result.verdict is Verdict.CRASH
    assert "backward pass" in result.reason
    assert by_path(result)["output"].verdict is Verdict.PASS


def test_a_backward_pass_that_raises_everywhere_is_a_note_unless_asked_for(check):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no such derivative")

    x = torch.ones(3, requires_grad=True)
    result = check(Fails.apply, x)
    assert result.verdict is Verdict.PASS
    assert any("no such derivative" in note for note in result.notes)
    with pytest.raises(RuntimeError, match="no such derivative"):
        check(Fails.apply, x, options={"backward": True})


def test_a_backward_pass_that_neither_side_has_in_this_dtype_is_a_note(check):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if grad.dtype == torch.float16:
                raise NotImplementedError("not implemented for 'Half'")
            return grad * 2

    result = check(Fails.apply, torch.ones(3).half().requires_grad_())
    assert result.verdict is Verdict.PASS
    assert any("neither side has them in float16" in note for note in result.notes)


def test_a_tensor_that_module_to_leaves_behind_is_named(check):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.ones(3)

        def forward(self, x):
            return x * self.scale

    result = check(Scaled(), torch.randn(3))
    assert result.verdict is Verdict.CRASH
    assert any("scale is no parameter or buffer" in note for note in result.notes)


def test_no_float64_kernel_falls_back_and_says_so(check):
    def no_double(x):
        if x.dtype == torch.float64:
            raise RuntimeError("not implemented for 'Double'")
        return x * 3

    half = check(no_double, torch.randn(5).half())
    assert half.verdict is Verdict.PASS
    assert any("no float64 reference" in note for note in half.notes)
    assert check(no_double, torch.randn(5)).verdict is Verdict.PASS
    bad = check(lambda x: no_double(x) + 1 * here(x), torch.randn(5))
    assert bad.verdict is Verdict.FAIL


def test_no_cpu_kernel_in_the_case_s_dtype(check):
    def no_half(x):
        if x.dtype == torch.float16 and not here(x):
            raise RuntimeError("\"foo\" not implemented for 'Half'")
        return x * 3

    result = check(no_half, torch.randn(9).half().requires_grad_())
    assert result.passed, result.reason
    assert any("no result in float16" in note for note in result.notes)
    assert "grad(args[0])" in by_path(result)
    assert check(lambda x: no_half(x) * (1.5 if here(x) else 1), torch.randn(9).half()).verdict is Verdict.FAIL
