"""mindspore.mint on MindSpore itself: its CPU kernels, or its Ascend device where there is one. ``make test-mint``."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.mint.bridge import Counterpart, MintFunction
from pytest_ascend.check import check_case
from pytest_ascend.targets.mindspore import MindsporeDied, server

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mindspore") is None, reason="needs MindSpore: make test-mint")

NOT_JUDGED = {"UNSUPPORTED", "CRASH", "INFRA", "VACUOUS", "NOT_EXERCISED"}
DUMPS = Path(__file__).parent.parent.parent.parent / "shared" / "samples" / "msprobe-dumps"


def run(folder: Path, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """What a pytest of its own prints, and the results it writes."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--ascend-json={report}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--ascend-compare=mindspore", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, json.loads(report.read_text())["results"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """All of mint, with one of torch's samples for each dtype and layout, special values and infinities."""
    options = (
        "--ascend-samples=1",
        "--ascend-layouts=as_given,transposed,empty",
        "--ascend-dtypes=float32,bfloat16,int64",
    )
    some = ("-k", "not size and not every and not ties and not mean", "-n", "2")
    return run(tmp_path_factory.mktemp("mint"), "--ascend-api=mint.*", *options, *some)


@pytest.fixture(scope="module")
def by_api(everything: tuple[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for record in everything[1]:
        found[record["api"]].append(record)
    return found


def test_at_least_150_functions_are_judged(by_api: dict[str, list[dict[str, Any]]]) -> None:
    judged = [api for api, records in by_api.items() if any(r["verdict"] not in NOT_JUDGED for r in records)]
    right = [api for api in judged if all(r["outcome"] in ("passed", "skipped", "noted") for r in by_api[api])]
    print(f"{len(by_api)} functions, {len(judged)} judged, {len(right)} of these without a difference")
    assert len(judged) >= 150
    assert len(right) >= 90


def test_what_has_no_kernel_is_unsupported_by_name_and_dtype(by_api: dict[str, list[dict[str, Any]]]) -> None:
    unsupported = [r for records in by_api.values() for r in records if r["verdict"] == "UNSUPPORTED"]
    assert len({r["api"] for r in unsupported}) >= 100
    for record in unsupported:
        assert record["api"] in record["reason"]
        assert record["dtype"] in record["reason"] or "for this case" in record["reason"]
    assert any("GeluExt unregistered" in r["reason"] for r in by_api["mint.nn.functional.gelu"])


def test_a_kernel_that_ends_the_process_costs_one_case(everything: tuple[str, list[dict[str, Any]]]) -> None:
    """``mint.flip`` of an empty tensor divides by zero in MindSpore 2.10's CPU kernel."""
    output, results = everything
    assert "worker 'gw" not in output
    assert "mint.unsqueeze" in {r["api"] for r in results}
    if server("").hello["device"] == "CPU":
        [flip] = [r for r in results if "::mint.flip[float32-empty" in r["nodeid"]]
        assert flip["verdict"] == "CRASH"
        assert "MindSpore's process was ended by SIGFPE in mindspore.mint.flip" in flip["reason"]


def test_no_error_is_our_own(everything: tuple[str, list[dict[str, Any]]]) -> None:
    ours = re.compile(r"didn't answer|Refused|AttributeError|KeyError|takes no |unexpected keyword|positional argument")
    reasons = [r["reason"] for r in everything[1] if r["verdict"] in ("CRASH", "INFRA")]
    assert not [reason for reason in reasons if ours.search(reason)]
    assert not [r["nodeid"] for r in everything[1] if r["verdict"] == "INFRA"]


def test_the_table_names_what_was_not_run(everything: tuple[str, list[dict[str, Any]]]) -> None:
    output, _ = everything
    assert re.search(r"coverage of \d{3} APIs", output)
    assert "a collective call needs the other processes of the run" in output
    assert "mindspore:CPU" in output or "mindspore:Ascend" in output


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("mint.amax[float32-nonfinite", "non_finite"),  # NaN among the values is passed over
        ("mint.nn.functional.relu[float32-special", "non_finite"),  # NaN becomes a number
        ("mint.max[float32-nonfinite", "non_finite"),
        ("mint.atanh[float32-special", "overflow"),
        ("mint.tanh[float32-as_given", "bias"),
        ("mint.nn.functional.hardsigmoid[float32-special", "gradient"),
    ],
)
def test_known_differences_of_the_cpu_kernels(
    everything: tuple[str, list[dict[str, Any]]], case: str, kind: str
) -> None:
    if server("").hello["device"] != "CPU":
        pytest.skip("known of the CPU kernels")
    found = [r for r in everything[1] if f"::{case}" in r["nodeid"]]
    assert found
    assert "FAIL" in {r["verdict"] for r in found}
    assert kind in {r["kind"] for r in found}


@pytest.mark.parametrize("name", ["tanh", "erfinv"])
def test_coarse_approximations_are_found(by_api: dict[str, list[dict[str, Any]]], name: str) -> None:
    """MindSpore's CPU kernels take float32 from polynomials: relative errors of 1e-6 to 1e-4."""
    if server("").hello["device"] != "CPU":
        pytest.skip("known of the CPU kernels")
    assert "FAIL" in {r["verdict"] for r in by_api[f"mint.{name}"] if r["dtype"] == "float32"}


def judge(name: str, fn: Any, *args: Any, **kwargs: Any) -> pa.CheckResult:
    options = pa.CheckOptions(target="mindspore", reference=Counterpart(fn))
    return check_case(Case(MintFunction(f"mindspore.mint.{name}"), args, kwargs, f"mint.{name}"), options)


def test_the_mean_of_nothing_is_infinite() -> None:
    """torch's is NaN. MindSpore divides by zero what the memory of the result held before, which is seldom zero."""
    if server("").hello["device"] != "CPU":
        pytest.skip("known of the CPU kernels")
    for shape in ((0, 5), (2, 0, 4, 5, 6)):
        results = []
        for _ in range(8):
            judge("add", torch.add, torch.ones(3, 5), torch.ones(5))  # leaves its memory behind
            results.append(judge("mean", torch.mean, torch.zeros(shape)))
        wrong = [result for result in results if result.verdict.name != "PASS"]
        assert wrong
        for result in wrong:
            assert result.verdict.name in ("FAIL", "NONDETERMINISTIC")
            if result.verdict.name == "FAIL":
                assert result.kind is not None
                assert result.kind.value == "non_finite"
                assert "Inf where the golden is NaN" in result.reason


def test_a_matrix_product_that_differs_by_rounding_passes() -> None:
    torch.manual_seed(0)
    for _ in range(5):
        result = judge("matmul", torch.matmul, torch.randn(2, 5, requires_grad=True), torch.randn(5, 2))
        assert result.verdict.name == "PASS", result.reason


def test_bfloat16_and_views_arrive_as_they_are() -> None:
    base = torch.randn(6, 8).to(torch.bfloat16)
    for x in (base, base.t(), base[1:, ::2], base[:1].expand(4, 8), torch.tensor(1.5, dtype=torch.bfloat16)):
        result = judge("add", torch.add, x, torch.zeros((), dtype=torch.bfloat16))
        assert result.verdict.name == "PASS", result.reason


def test_a_process_that_dies_costs_one_call() -> None:
    here = server("")
    assert judge("add", torch.add, torch.ones(3), torch.ones(3)).verdict.name == "PASS"
    process = here._process
    assert process is not None
    process.send_signal(signal.SIGSEGV)
    process.wait(60)
    with pytest.raises(MindsporeDied, match="SIGSEGV"):
        here.ask({"do": "hello"})
    assert judge("add", torch.add, torch.ones(3), torch.ones(3)).verdict.name == "PASS"


@pytest.mark.skipif(not DUMPS.exists(), reason="the recorded dumps aren't here")
def test_recorded_calls_are_judged(tmp_path: Path) -> None:
    folders = [str(path) for path in sorted(DUMPS.glob("ms_*"))]
    _, results = run(tmp_path, *folders)
    assert len(results) >= 40
    assert not [r for r in results if r["verdict"] in NOT_JUDGED]
    passed = {r["api"] for r in results if r["verdict"] == "PASS"}
    assert {f"mindspore.mint.{name}" for name in ("add", "matmul", "mean", "mul", "nn.functional.relu")} <= passed
