"""`pytest-ascend generate --api`: a file whose cases are those of `--ascend-api`, to the bit and to the verdict."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ascend as pa
from pytest_ascend import cli
from pytest_ascend.cases.catalogue import choose, source
from pytest_ascend.cases.catalogue.caselist import load
from pytest_ascend.cases.catalogue.laid import Maker, tensors_of
from pytest_ascend.settings import Settings

#: layouts, special and listed values, indices, keywords, a lazy module, no tensor at all, a property, in place
VERDICTS = "torch.softmax,torch.gather,torch.linspace,torch.Tensor.mT,torch.Tensor.add_,torch.nn.LazyConv1d,torch.div"
WHOLE = os.environ.get("ASCEND_WHOLE") == "1"  # of what takes longer than a change should wait for
INPUTS = (
    *("torch.nn.functional.conv2d", "torch.nn.Linear", "torch.nn.LSTM", "torch.einsum", "torch.linalg.cholesky"),
    *("torch.complex", "torch.bucketize", "torch.exp", "torch.nn.functional.embedding", "torch.arange", "torch.where"),
    *(
        "torch.index_put",
        "torch.as_strided",
        "torch.nn.LazyConv1d",
        "torch.clamp",
        "torch.logspace",
        "torch.block_diag",
    ),
)


def run(folder: Path, *arguments: str) -> dict[str, str]:
    """Verdict by node id."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ascend-json=r.json", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (folder / "r.json").exists(), done.stdout + done.stderr
    return {one["nodeid"]: one["verdict"] for one in json.loads((folder / "r.json").read_text())["results"]}


def name_of(case: str) -> str:
    """The test of a case: that of `torch.softmax[float16-transposed-3]` is `test_softmax_transposed_3[float16]`."""
    api, _, inside = case.rstrip("]").partition("[")
    dtype, _, rest = inside.partition("-")
    words = re.sub(r"[\W_]+", "_", f"{api.removeprefix('torch.')}_{rest}".lower())
    return f"test_{words}[{dtype}]"


@pytest.mark.whole
def test_the_file_gives_the_same_verdicts(tmp_path: Path) -> None:
    with_fault = tmp_path / "conftest.py"
    with_fault.write_text(
        "import torch, pytest_ascend as pa\n"
        "def broken(x, dim, half_to_float):\n"
        "    y = torch.softmax(x, dim)\n"
        "    return y.roll(1, -1) if x.dim() and not x.is_contiguous() else y\n"
        "planted = pa.emulator.override('aten::_softmax', broken)\n"
        "planted.__enter__()\n"
    )
    collected = run(tmp_path, "--ascend-compare=emulated", f"--ascend-api={VERDICTS}", "--ascend-reproducers=none", ".")
    assert cli.main(["generate", "--api", VERDICTS, "-o", str(tmp_path / "test_it.py")]) == 0
    generated = run(tmp_path, "--ascend-compare=emulated", "--ascend-reproducers=none", "test_it.py")
    expected = {name_of(nodeid.partition("::")[2]): verdict for nodeid, verdict in collected.items()}
    assert {nodeid.partition("::")[2]: verdict for nodeid, verdict in generated.items()} == expected
    assert len(expected) > 200
    assert "FAIL" in {verdict for name, verdict in expected.items() if "transposed" in name}


class Seen(Exception):
    """Carries what a test would have compared."""


class Catcher:
    """Stands in for ascend_compare, and keeps what it is given."""

    def using(self, **options: Any) -> Catcher:
        self.options = options
        return self

    def __call__(self, fn: Any, *args: Any, **kwargs: Any) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs


def caught(module: Any) -> dict[str, Catcher]:
    """Each test of a generated file, run with a catcher."""
    found = {}
    for name, test in vars(module).items():
        if not name.startswith("test_"):
            continue
        for parameters in test.pytestmark[0].args[1]:
            catcher = Catcher()
            test(catcher, *parameters.values)
            found[f"{name}[{parameters.id}]"] = catcher
    return found


@pytest.mark.parametrize("api", INPUTS)
def test_the_inputs_are_the_same_to_the_bit(api: str, tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text(source(api))
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = caught(module)
    pendings = [one for entry in load().entries if entry.api == api for one in choose.cases(entry, choose.Wish())]
    assert {name_of(pending.id) for pending in pendings} == set(tests)
    for pending in pendings:
        case, options = pending.build()
        test = tests[name_of(pending.id)]
        mine, own = tensors_of((test.args, test.kwargs)), tensors_of((case.args, case.kwargs))
        assert len(mine) == len(own)
        for a, b in zip(mine, own, strict=True):
            assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
            assert torch.equal(a.detach().nan_to_num(7), b.detach().nan_to_num(7))
        if isinstance(case.fn, Maker):
            assert torch.equal(test.fn(*test.args, **test.kwargs), case.fn(*case.args, **case.kwargs))
            continue
        assert repr([x for x in test.args if not tensors_of(x)]) == repr([x for x in case.args if not tensors_of(x)])
        assert set(test.kwargs) == set(case.kwargs)
        if isinstance(case.fn, torch.nn.Module):
            theirs = dict(case.fn.state_dict())
            assert all(torch.equal(value, theirs[name]) for name, value in test.fn.state_dict().items())
            assert test.fn.training == case.fn.training
            assert test.options["checkpoints"] == options["checkpoints"] == ()


def test_every_api_of_the_list_can_be_written() -> None:
    text = source("*" if WHOLE else "torch.nn.*")
    ast.parse(text)
    assert len(text) > (10_000_000 / 4 if WHOLE else 100_000)
    assert max(map(len, text.splitlines()[5:])) < 400


def test_what_it_cannot_write_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "t.py")
    assert cli.main(["generate", "--api", "mint.*", "-o", out]) == 2
    assert "tests are written for torch's APIs only" in capsys.readouterr().err
    assert cli.main(["generate", "--api", "torch.sofmax", "-o", out]) == 2
    assert "the nearest there is: 'torch.softmax'" in capsys.readouterr().err
    assert cli.main(["generate", "--api", "torch.softm*", "-o", out]) == 0
    assert "# left out" not in Path(out).read_text()
    assert cli.main(["generate", "--api", "torch.Tensor.a*", "-o", out, "--force"]) == 0
    assert "# left out: torch.Tensor.apply_: " in Path(out).read_text()


def test_settings_have_their_defaults() -> None:
    assert choose.Wish.of(Settings()) == choose.Wish()  # what the file holds is what the command runs


def test_draw_refuses_what_there_is_not() -> None:
    with pytest.raises(ValueError, match="no dtype is called 'flaot32'"):
        pa.Draw("flaot32", 0)
    with pytest.raises(ValueError, match="no kind of values is called 'odd': give one of special, nonfinite"):
        pa.Draw("float32", 0).kind("odd", (2,))
