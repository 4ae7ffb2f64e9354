"""A failure becomes a small file that fails alone, and passes where the fault isn't."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend import reproduce
from pytest_ascend.cases.case import Case
from pytest_ascend.cases.references import lookup
from pytest_ascend.cases.shrink import shrink
from pytest_ascend.check import check_case
from pytest_ascend.options import CheckOptions

pa.emulator.install()
import torch_npu  # noqa: E402 - importable once the emulated device is installed


def half(fn: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        small = [x.half() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
        return fn(*small, **kwargs).float()

    return kernel


def from_41(x, dim, half_to_float):
    y = torch.softmax(x, dim)
    y[..., 40:] *= 1.01
    return y


def strided_only(x):
    return torch.relu(x) if x.is_contiguous() else torch.relu(x) * 1.5


def with_gaps(x):
    return torch.sigmoid(x) * (1 if x.is_contiguous() else 1.25)


def negative_only(x):
    return torch.where(x < -1.5, torch.exp(x) * 1.01, torch.exp(x))


def tail(x, y, *, alpha=1):
    z = x + alpha * y
    if x.dim() and x.shape[-1] % 16:
        z[..., -1] += 1
    return z


def no_bool(x):
    raise RuntimeError("an exception of the kernel's own")


def wrong_index(x, dim, keepdim=False):
    return torch.argmax(x, dim, keepdim).clamp(min=1)


def rms(x, gamma, epsilon=1e-6):
    y, r = lookup("npu::npu_rms_norm")(x, gamma, epsilon)
    return torch.cat([y[..., :-1], y[..., -1:] * 2], -1), r


FAULTS = [
    ("aten::cumsum", lambda x, dim, *, dtype=None: torch.cumsum(x.half(), dim).float(), torch.cumsum,
     lambda: ((torch.randn(3000),), {"dim": 0}), {}),
    ("aten::_softmax", from_41, torch.softmax, lambda: ((torch.randn(5, 100),), {"dim": -1}), {}),
    ("aten::relu", strided_only, torch.relu, lambda: ((torch.randn(30, 50),), {}),
     {"layouts": ("as_given", "transposed")}),
    ("aten::sigmoid", with_gaps, torch.sigmoid, lambda: ((torch.randn(40, 30)[3:, 2:20],), {}), {}),
    ("aten::exp", negative_only, torch.exp, lambda: ((torch.randn(1000),), {}), {}),
    ("aten::add.Tensor", tail, torch.add, lambda: ((torch.randn(20, 131), torch.randn(131)), {}), {}),
    ("aten::argmax", wrong_index, torch.argmax, lambda: ((torch.randn(40, 30),), {"dim": 1}), {}),
    ("aten::mm", half(torch.mm), torch.mm, lambda: ((torch.randn(40, 70), torch.randn(70, 30)), {}), {}),
    ("aten::erf", no_bool, torch.erf, lambda: ((torch.randn(64, 64),), {}), {}),
    ("npu::npu_rms_norm", rms, torch_npu.npu_rms_norm,
     lambda: ((torch.randn(4, 300).half(), torch.randn(300).half()), {}), {}),
    ("aten::sort.stable", lambda x, *, stable=None, dim=-1, descending=False:
     torch.sort(x, stable=True, dim=dim, descending=not descending), torch.sort,
     lambda: ((torch.randint(0, 90, (3, 200)),), {}), {}),
]  # fmt: skip


def made(case: Case, **options: Any) -> tuple[str, Any]:
    given = CheckOptions(target="emulated", **options)
    result = check_case(case, given)
    return reproduce.script(case, given, result, "test_x.py::test_y", __file__), result


def elements(text: str) -> int:
    shapes = re.findall(r"x\d+ = laid\(.*?, torch\.\w+, (\([\d, ]*\)),", text)
    assert shapes
    return sum(torch.Size(eval(shape)).numel() for shape in shapes)


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("op", "kernel", "fn", "inputs", "options"), FAULTS, ids=lambda x: x if type(x) is str else "")
def test_a_fault_in_the_device_becomes_a_small_file(op, kernel, fn, inputs, options) -> None:
    torch.manual_seed(3)
    args, kwargs = inputs()
    with pa.emulator.override(op, kernel):
        text, result = made(Case(fn, args, kwargs), **options)
        names = reproduce._loaded(text)
        assert names["main"]() == 1
    assert elements(text) <= 64, text
    assert str(result.verdict) in text.splitlines()[0]
    assert names["main"]() == 0  # without the fault it passes: the limits are no tighter than the CPU's own rounding


def test_a_fault_of_a_gradient(check) -> None:
    with pa.emulator.override("aten::threshold_backward", lambda g, x, t: g * (x > 0.5)):
        text, result = made(Case(torch.relu, (torch.randn(300, requires_grad=True),)))
        assert reproduce._loaded(text)["main"]() == 1
    assert result.kind == "gradient"
    assert elements(text) <= 4
    assert "grad=True" in text
    assert reproduce._loaded(text)["main"]() == 0


def test_the_file_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """An operator whose emulated form differs from its reference for good: nothing has to be planted."""
    text, _ = made(Case(op_of_this_file, (torch.randn(4, 50), 2.0)))
    path = tmp_path / "alone.py"
    path.write_text(text)
    done = run(path)
    assert done.returncode == 1, done
    assert "FAIL" in done.stdout
    assert "output:\n  CPU    tensor(" in done.stdout
    assert f'_load("{__file__}")' in text
    assert elements(text) == 1


def op_of_this_file(x, factor, where=None):
    return x * factor * (1.1 if x.device.type == "npu" else 1.0)


def reference_of_this_file(x, factor=2.0, where=None):
    return x * factor


@pytest.mark.parametrize(
    "call",
    [
        lambda x: Case(functools.partial(op_of_this_file, factor=2.0), (x,), {"where": None}),
        lambda x: Case(op_of_this_file, (x, 2.0), {"where": torch.device("cpu")}),
        lambda x: Case(op_of_this_file, (x, 2.0), {"where": float("inf")}),
        lambda x: Case(op_of_this_file, (x.to(torch.bfloat16), 2.0), {"where": -0.0}),
    ],
)
def test_ways_to_call(call) -> None:
    case = call(torch.randn(30) + 3)
    assert not check_case(case, CheckOptions(target="emulated", reference=reference_of_this_file)).passed
    text, _ = made(case, reference=reference_of_this_file)
    assert "reference_of_this_file" in text


def test_more_elements_than_are_written_out_are_packed() -> None:
    x = torch.randn(300)
    case = Case(sum_of_this_file, (x,))
    given = CheckOptions(target="emulated")
    result = check_case(case, given)
    text = reproduce._tried(case, given.replace(seed=1), result, "here", "")
    assert "zlib.decompress" in text
    assert len(text) < 9000


def sum_of_this_file(x):
    return x.sum() + (x.device.type == "npu")


def test_no_file_for_a_local_function() -> None:
    def local(x):
        return x * (2 if x.device.type == "npu" else 1)

    with pytest.raises(reproduce.NoScript, match="made inside a function"):
        made(Case(local, (torch.ones(3),)))


def test_no_file_for_a_model() -> None:
    with (
        pa.emulator.override("aten::addmm", lambda b, x, w, **k: torch.addmm(b, x, w, **k) * 2),
        pytest.raises(reproduce.NoScript, match="model"),
    ):
        made(Case(torch.nn.Linear(3, 3), (torch.ones(2, 3),)))


def test_no_file_for_a_pass() -> None:
    with pytest.raises(reproduce.NoScript, match="PASS"):
        made(Case(torch.relu, (torch.ones(3),)))


def test_registered_references_are_written_into_the_file(tmp_path: Path) -> None:
    with pa.emulator.override("npu::npu_rms_norm", rms):
        text, _ = made(Case(torch_npu.npu_rms_norm, (torch.randn(4, 32), torch.randn(32))))
    assert "def npu_rms_norm(self" in text
    assert "import pytest_ascend\n" in text
    path = tmp_path / "alone.py"
    path.write_text(text)
    done = run(path)  # no fault there
    assert done.returncode == 0, done
    assert done.stdout.endswith("PASS\n")


# ------------------------------------------------------------------------------------------------ shrinking


def test_dimensions_that_belong_together_are_cut_together() -> None:
    def fails(case: Case) -> bool:
        x, w = case.args
        return (x @ w).shape[-1] >= 3 and x.shape[-1] > 5

    found = shrink(Case(torch.mm, (torch.randn(40, 90), torch.randn(90, 70))), fails)
    assert [tuple(x.shape) for x in found.args] == [(1, 6), (6, 3)]
    assert all(bool((x == 1).all()) for x in found.args)


def test_layouts_survive_where_they_matter() -> None:
    for x in (torch.randn(30, 40).t(), torch.randn(9, 8)[2:, 1:5], torch.randn(1, 7).expand(6, 7)):
        found = shrink(Case(torch.relu, (x,)), lambda case: not case.args[0].is_contiguous())
        assert not found.args[0].is_contiguous()
        assert found.args[0].numel() <= 4
        plain = shrink(Case(torch.relu, (x,)), lambda case: case.args[0].numel() > 2)
        assert plain.args[0].is_contiguous()


def test_a_single_value_is_kept() -> None:
    x = torch.randn(500)
    x[321] = 77.7
    found = shrink(Case(torch.relu, (x,)), lambda case: bool((case.args[0] > 50).any()))
    assert found.args[0].tolist() == [78.0]
    where = shrink(Case(torch.relu, (x,)), lambda case: case.args[0].numel() > 3 and bool((case.args[0] > 50).any()))
    assert sorted(where.args[0].tolist()) == [1.0, 1.0, 1.0, 78.0]


def test_time_is_bounded() -> None:
    import time

    def slow(case: Case) -> bool:
        time.sleep(0.05)
        return True

    begun = time.monotonic()
    shrink(Case(torch.relu, (torch.randn(50, 50, 50),)), slow, seconds=0.3)
    assert time.monotonic() - begun < 1.0
