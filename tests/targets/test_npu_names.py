"""Device code and the emulated device use and offer nothing that the real torch_npu lacks."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pytest_ascend.targets import npu as npu_module
from pytest_ascend.targets.npu import SOC_FAMILIES, soc_family

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "data" / "torch_npu_names.txt"
# torch_npu's own suite (test/test_npu.py) uses these, though its Python sources bind no such name.
TESTED_UPSTREAM = {"OutOfMemoryError"}


def known_names() -> set[str]:
    return {line for line in LIST.read_text().splitlines() if line and not line.startswith("#")}


def used_names(source: str) -> set[str]:
    """Names under torch.npu and torch_npu that a source uses; ``_npu()`` is this package's way to say torch.npu."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "_npu":
            parts = ["torch", "npu", *parts]
        elif isinstance(inner, ast.Name):
            parts = [inner.id, *parts]
        name = ".".join(parts)
        if name.startswith(("torch.npu.", "torch_npu.")):
            found.add(name)
    return found


def test_the_scan_sees_a_name_that_does_not_exist():
    assert used_names("_npu().no_such_call(1)") == {"torch.npu.no_such_call"}
    assert used_names("import torch\ntorch.npu.x.y()") == {"torch.npu.x", "torch.npu.x.y"}
    assert not used_names("_npu().no_such_call(1)") <= known_names()


def test_npu_py_uses_only_names_of_torch_npu():
    used = used_names(inspect.getsource(npu_module))
    assert len(used) >= 15  # the scan still finds them
    assert used - known_names() == set()


def test_resolve_uses_only_names_of_torch_npu():
    import pytest_ascend.targets as targets

    used = used_names(inspect.getsource(targets))
    assert used
    assert used - known_names() == set()


def test_the_emulated_module_offers_only_names_of_torch_npu():
    import torch

    from pytest_ascend.targets import resolve

    resolve("emulated")
    known = known_names()
    offered = {name for name in dir(torch.npu) if name.isidentifier() and not name.startswith("_")} - TESTED_UPSTREAM
    assert len(offered) >= 20
    assert {f"torch.npu.{name}" for name in offered} - known == set()
    for name in ("Event", "Stream"):
        members = {m for m in vars(getattr(torch.npu, name)) if not m.startswith("_")}
        assert {f"torch.npu.{name}.{m}" for m in members} - known == set()


def test_the_list_holds_the_names_the_project_depends_on():
    known = known_names()
    for name in (
        "torch_npu.npu.Event.elapsed_time",
        "torch_npu.npu.get_soc_version",
        "torch_npu.npu.matmul.allow_hf32",
        "torch_npu.npu.utils.get_cann_version",
        "torch_npu.profiler._ExperimentalConfig",
        "torch_npu.npu_rms_norm",
        "torch.npu.amp.GradScaler",
    ):
        assert name in known
    assert "torch_npu.npu.os" not in known  # a module's own imports are not its interface


def test_the_script_follows_exports_stars_and_classes(tmp_path):
    wheel = tmp_path / "torch_npu-9.9.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch_npu/__init__.py", "from . import npu\nimport os\n")
        archive.writestr(
            "torch_npu/npu/__init__.py",
            "from .part import *\nfrom .part import Base as Alias\nswitch = part._Switch()\n"
            "if True:\n    def inner(): ...\ndef _private(): ...\n",
        )
        archive.writestr(
            "torch_npu/npu/part.py",
            "__all__ = ['star', 'Child']\ndef star(): ...\ndef hidden(): ...\nimport torch_npu\n"
            "class Base:\n    def method(self): self.field = 1\n"
            "class Child(Base):\n    def own(self): return torch_npu._C._native()\n"
            "class _Switch:\n    def __getattr__(self, name):\n        if name == 'lever': return 1\n",
        )
        archive.writestr("torch_npu/ops.py", "import torch_npu\ntorch_npu.npu_thing = 1\n")
    output = tmp_path / "names.txt"
    script = ROOT / "scripts" / "torch_npu_names.py"
    subprocess.run([sys.executable, str(script), str(wheel), "-o", str(output)], check=True, capture_output=True)
    names = set(output.read_text().splitlines())
    for name in (
        "torch_npu.npu.star",
        "torch.npu.star",
        "torch_npu.npu.Child.method",
        "torch_npu.npu.Child.own",
        "torch_npu.npu.Alias.field",
        "torch_npu.npu.switch.lever",
        "torch_npu.npu.inner",
        "torch_npu.npu_thing",
        "torch_npu._C._native",
    ):
        assert name in names
    for name in ("torch_npu.npu.hidden", "torch_npu.os", "torch_npu.npu._private"):
        assert name not in names


@pytest.mark.parametrize(
    ("version", "family"),
    [
        (100, "Ascend910A"),
        (104, "Ascend910A"),
        (202, "Ascend310P"),
        (220, "Ascend910B"),
        (225, "Ascend910B"),
        (240, "Ascend310B"),
        (250, "Ascend910_93"),
        (256, "Ascend910_93"),
        (260, "Ascend950"),
        (999, "SoC 999"),
    ],
)
def test_soc_versions_name_their_family(version, family):
    assert soc_family(version) == family


def test_soc_families_do_not_overlap():
    versions = [version for span, _ in SOC_FAMILIES for version in span]
    assert len(versions) == len(set(versions))
