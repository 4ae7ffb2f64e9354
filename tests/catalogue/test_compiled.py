"""`--ascend-modes=eager,compile`: each case both ways, each against the CPU and both against each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pytest_ascend as pa
import pytest_ascend.compiled
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.catalogue import compiled
from pytest_ascend.cases.catalogue.compiled import Compiled, Eager
from pytest_ascend.check import check_case
from pytest_ascend.compiled import beside_eager

pytestmark = pytest.mark.usefixtures("_emulated")
NO_COMPILER = "compiled with aot_eager: npu:0 (emulated Ascend910B) has no compiler of its own"


def compare(fn: Callable[..., Any], *args: Any) -> pa.CheckResult:
    case = Case(Compiled(fn), args, {}, "torch.it")
    options = pa.CheckOptions(target="emulated", seed=3, reference=Eager(fn))
    return beside_eager(case, options, check_case(case, options))


@pytest.fixture
def miscompile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Any]], None]]:
    """Let the compiler change what a graph returns."""

    def install(change: Callable[[torch.Tensor], Any]) -> None:
        def compiler(graph: Any, inputs: Any, **options: Any) -> Any:
            compiled.log.graphs += 1
            return lambda *args: [change(one) if one.is_floating_point() else one for one in graph(*args)]

        monkeypatch.setattr(compiled, "_counting", lambda name: compiler)

    yield install
    torch._dynamo.reset()


def test_alike_to_the_bit() -> None:
    result = compare(lambda x: torch.softmax(x, -1) * 2, torch.randn(4, 8, requires_grad=True))
    assert result.verdict is pa.Verdict.PASS
    assert NO_COMPILER in result.notes[-2]
    assert result.notes[-1] == "it is the eager result to the bit"
    assert any(output.path == "grad(args[0])" for output in result.outputs)


def test_a_difference_within_the_budget_is_told(miscompile: Any) -> None:
    miscompile(lambda x: x * (1 + 2**-23))
    result = compare(lambda x: torch.exp(x), torch.linspace(0.1, 1, 9))
    assert result.verdict is pa.Verdict.PASS
    assert result.notes[-1].startswith("it differs from the eager result (at most ")
    assert result.notes[-1].endswith("e-07 apart), and each is within its budget")


def test_a_wrong_compiled_result_is_torch_compiles_doing(miscompile: Any) -> None:
    miscompile(lambda x: x * 1.1)
    result = compare(lambda x: torch.exp(x), torch.linspace(0.1, 1, 9))
    assert result.verdict is pa.Verdict.FAIL
    assert result.notes[-1].startswith("the eager result isn't as wrong: torch.compile's doing")


def test_a_broken_kernel_is_none_of_its_doing() -> None:
    with pa.emulator.override("aten::exp", lambda x: x.exp() * 1.1):
        result = compare(lambda x: torch.exp(x), torch.linspace(0.1, 1, 9))
    assert result.verdict is pa.Verdict.FAIL
    assert result.notes[-1] == "it is the eager result to the bit, so the failure is none of torch.compile's"


def test_another_dtype_or_shape_fails_by_itself(miscompile: Any) -> None:
    miscompile(lambda x: x.double())
    case = Case(Compiled(torch.exp), (torch.ones(3),), {}, "torch.exp")
    options = pa.CheckOptions(target="emulated", seed=3, reference=Eager(torch.exp))
    passed = dataclasses.replace(check_case(Case(torch.exp, (torch.ones(3),)), options.replace(reference=None)))
    assert passed.passed
    result = beside_eager(case, options, passed)
    assert (result.verdict, result.kind) == (pa.Verdict.FAIL, "dtype")
    assert result.reason.startswith("compiled and eager differ: ")


def test_what_was_not_compiled_is_not_exercised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
    result = compare(lambda x: x + 1, torch.ones(3))
    assert result.verdict is pa.Verdict.NOT_EXERCISED
    assert result.reason == "torch.compile compiled nothing of it: what ran was the eager call"


def test_other_random_numbers_are_no_difference(miscompile: Any) -> None:
    miscompile(lambda x: x.flip(0))
    result = compare(lambda x: torch.nn.functional.dropout(x, 0.5), torch.ones(4000))
    assert result.verdict.outcome != "failed"
    assert result.notes[-1] == "random numbers differ from the eager call's: each was compared with the CPU"


@pytest.mark.whole
def test_a_module_and_an_operator_in_place(pytester: pytest.Pytester) -> None:
    options = ("--ascend-dtypes=float32", "--ascend-layouts=as_given", "--ascend-samples=1", "--ascend-json=r.json")
    apis = "--ascend-api=torch.nn.Linear,torch.Tensor.mul_,torch.linspace,torch.sort"
    result = pytester.runpytest_subprocess(
        "--ascend-compare=emulated", apis, *options, "--ascend-modes=eager,compile", "-k", "as_given-0"
    )
    assert result.ret == 0
    found = json.loads((pytester.path / "r.json").read_text())["results"]
    both = [one for one in found if one["mode"] == "compile"]
    assert len(both) == len(found) / 2 >= 4
    for one in both:
        assert one["verdict"] == "PASS"
        assert NO_COMPILER in "".join(one["notes"])
