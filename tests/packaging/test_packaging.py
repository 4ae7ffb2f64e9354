"""What a stranger installs: wheel and source distribution are built, installed into clean environments and used there.

It installs packages, which takes minutes: only under ``make test-packaging``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from ..health.patient import NO_CANN, Patient

ROOT = Path(__file__).parent.parent.parent
TORCH = "torch==2.13.0"  # what CI runs on; the extra takes the newest, gigabytes of it with the libraries of a GPU

pytestmark = pytest.mark.skipif("ASCEND_PACKAGING" not in os.environ, reason="installs packages: make test-packaging")


class Clean:
    """A virtual environment with nothing but pip."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        ours = ("PYTHON", "VIRTUAL")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.variables["PATH"] = f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def __call__(
        self, *command: object, cwd: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        first, *rest = map(str, command)
        environment = {**self.variables, **(variables or {})}
        return subprocess.run(
            [str(self.bin / first), *rest], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )

    def pip(self, *arguments: object) -> str:
        done = self("python", "-m", "pip", "--disable-pip-version-check", *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel, built from the source distribution, and that."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def clean(tmp_path_factory, built) -> Clean:
    """An environment with the wheel and what it needs."""
    made = Clean(tmp_path_factory.mktemp("clean") / "venv")
    made.pip("install", "--quiet", built[0])
    return made


def names(archive: Path) -> list[PurePosixPath]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return [PurePosixPath(name) for name in wheel.namelist()]
    with tarfile.open(archive) as source:
        return [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in source.getnames()]


def requirements(wheel: Path) -> dict[str, set[str]]:
    """The names that each extra requires; ``""``: those without an extra."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [one for one in opened.namelist() if one.endswith(".dist-info/METADATA")]
        text = opened.read(name).decode()
    found: dict[str, set[str]] = {}
    for line in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE):
        extra = re.search(r"extra == '([^']+)'", line.replace('"', "'"))
        found.setdefault(extra[1] if extra else "", set()).add(re.match(r"[\w.-]+", line)[0].lower())
    return found


def test_the_wheel_holds_the_package_alone(built) -> None:
    inside = names(built[0])
    assert {path.parts[0].partition("-")[0] for path in inside} == {"pytest_ascend"}
    tracked = subprocess.run(
        ["git", "ls-files", "pytest_ascend"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(map(PurePosixPath, tracked)) <= set(inside)
    assert PurePosixPath("pytest_ascend/py.typed") in inside
    assert [path.name for path in inside if "licenses" in path.parts] == ["LICENSE"]


def test_the_source_holds_what_its_tests_need(built) -> None:
    inside = set(names(built[1]))
    for name in ("tests/conftest.py", "examples/conftest.py", "docs/structure.md", "Makefile", "CHANGELOG.md",
                 "CONTRIBUTING.md", "LICENSE", "README.zh-CN.md", "conftest.py", "mkdocs.yml"):  # fmt: skip
        assert PurePosixPath(name) in inside
    assert not [path for path in inside if path.suffix == ".pyc" or "shared" in path.parts]


def test_a_minimal_installation_is_minimal(built, clean) -> None:
    assert requirements(built[0])[""] == {"pytest", "numpy", "pytest-benchmark", "hypothesis"}
    installed = {one["name"].lower() for one in json.loads(clean.pip("list", "--format=json"))}
    assert {"pytest-ascend", "pytest", "numpy", "pytest-benchmark", "hypothesis"} <= installed
    assert not installed & {"torch", "torch-npu", "mindspore", "numba", "jinja2", "pyyaml", "pytest-xdist", "scipy"}


def test_without_torch_both_commands_say_so(clean, tmp_path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert True\n")
    assert clean("pytest", cwd=tmp_path).returncode == 0
    asked = clean("pytest", "--ascend-compare", cwd=tmp_path)
    assert asked.returncode == 4
    assert "torch is not installed: pip install 'pytest-ascend[torch]'" in asked.stderr
    doctor = clean("pytest-ascend", "doctor", cwd=tmp_path)
    assert (doctor.returncode, doctor.stdout.count("\nwrong: ")) == (1, 1)


def no_torch(patient: Patient) -> str:
    return "torch is not installed"


def no_cann(patient: Patient) -> str:
    patient.package("torch", "2.13.0")
    patient.package("torch_npu", "2.13.0", NO_CANN)
    return "CANN is missing (libhccl.so can't be loaded)"


def mismatched(patient: Patient) -> str:
    patient.package("torch", "2.13.0")
    patient.package("torch_npu", "2.7.1.post2", "raise ImportError('_C.so: undefined symbol: _ZN2at')")
    patient.cann("8.5.0")
    return "torch_npu 2.7.1.post2 is made for torch 2.7.1, and this is torch 2.13.0"


def unreadable(patient: Patient) -> str:
    patient.card()
    said = "dcmi model initialized failed, because the device is used. ret is -8020"
    patient.command("npu-smi", said, status=255)
    code = "\ndef fail(i): raise RuntimeError('open device 0 failed, error 507033')\ntorch.npu.set_device = fail\n"
    with (patient.packages / "torch_npu/__init__.py").open("a") as file:
        file.write(code)
    return said


@pytest.mark.parametrize("broken", [no_torch, no_cann, mismatched, unreadable], ids=lambda broken: broken.__name__)
def test_the_doctor_says_one_sentence(clean, tmp_path, broken) -> None:
    patient = Patient(tmp_path)
    said = broken(patient)
    path = f"{patient.commands}{os.pathsep}{clean.variables['PATH']}"
    variables = {**patient.environment, "PATH": path, "PYTHONPATH": str(patient.packages)}
    done = clean("pytest-ascend", "doctor", cwd=tmp_path, variables=variables)
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert done.returncode == 1
    assert len(wrong) == 1, done.stdout
    assert said in wrong[0]


@pytest.mark.parametrize("extras", ["torch", "fast", "html", "yaml", "html,fast,mindspore"])
def test_extras_resolve(built, clean, extras) -> None:
    if "mindspore" in extras and sys.version_info >= (3, 13):
        pytest.skip("MindSpore 2.10 has wheels for Python 3.10 to 3.12")
    options = ["--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = clean.pip("install", *options, f"{built[0]}[{extras}]")
    chosen = {one["metadata"]["name"].lower() for one in json.loads(report)["install"]}
    wanted = requirements(built[0])
    assert set().union(*(wanted[extra] for extra in ["", *extras.split(",")])) <= chosen


def run_three_lines(clean: Clean, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "test_three.py").write_text(
        "import torch\n"
        "def test_softmax(ascend_compare):\n"
        "    ascend_compare(torch.softmax, torch.randn(4, 1024, dtype=torch.float16), dim=-1)\n"
    )
    return clean("pytest", "--ascend-compare", "--ascend-json=results.json", cwd=folder)


def test_three_lines_in_a_fresh_environment(built, tmp_path) -> None:
    fresh = Clean(tmp_path / "venv")
    fresh.pip("install", "--quiet", f"{built[0]}[torch]", TORCH)
    done = run_three_lines(fresh, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "ascend: 1 compared on npu:0 (emulated Ascend910B): 1 PASS" in done.stdout
    assert json.loads((tmp_path / "results.json").read_text())["summary"] == {"PASS": 1}
    doctor = fresh("pytest-ascend", "doctor", cwd=tmp_path)
    assert doctor.returncode == 0, doctor.stdout
    assert doctor.stdout.endswith("nothing is wrong\n")
    schema = fresh("pytest-ascend", "schema").stdout
    assert json.loads(schema)["title"] == "pytest-ascend results"


def test_the_source_distribution_makes_the_same_package(built, tmp_path) -> None:
    again = Clean(tmp_path / "venv")
    again.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, built[1])
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built[0]) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {i.filename: i.CRC for i in other.infolist()}
