"""The roads between the rooms run one way; docs/structure.md draws them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pytest_ascend"

# Ground floor first: a room may use rooms of its own floor and below.
FLOORS = (
    {"options", "files", "progress", "judge", "dumps"},
    {"targets", "observe", "cases", "strategies"},
    {"check", "reproduce", "compiled", "perf", "health"},
    {"settings", "session", "marks", "comparison", "examples", "timing", "perf_child", "benchmark_storage"}
    | {"perf_run", "child_arguments", "error_baselines", "compared_dumps", "overflow_run", "recorded_tests"}
    | {"distributed"}
    | {"published"}
    | {"sanitize_run", "sanitize_emulated", "leaks_run"}
    | {"fixtures", "collect", "run", "report"},
    {"plugin", "cli", "baseline_cli", "compare_cli", "report_cli", "doctor_cli"},
)
KNOWS_PYTEST = {
    *("settings", "session", "marks", "comparison", "fixtures", "collect", "plugin"),
    *("timing", "perf_child", "benchmark_storage", "perf_run", "child_arguments", "error_baselines", "compared_dumps"),
    "overflow_run",
    *("sanitize_run", "sanitize_emulated", "leaks_run"),
    "recorded_tests",
    "distributed",
    "published",
    "run",
}
PURE = {"judge", "dumps"}
PURE_FILES = {
    *("perf/decide.py", "perf/drift.py", "perf/history.py", "perf/result.py", "perf/samples.py", "perf/student.py"),
    *("perf/operators.py", "perf/advice.py", "perf/blocks.py", "perf/options.py"),
}
HEAVY = {"torch", "numpy", "mindspore", "torch_npu", "transformers", "hypothesis"}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, anywhere in it."""
    parents = ["pytest_ascend", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_used(path: Path) -> set[str]:
    """Rooms a file imports from; `pytest_ascend.check.check` is the room `check`."""
    names = [name.split(".") for name in imported(path)]
    return {parts[1] for parts in names if parts[0] == "pytest_ascend" and len(parts) > 1}


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in FILES} <= set().union(*FLOORS)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_roads_run_down(path: Path) -> None:
    above = {used for used in rooms_used(path) if used != "__version__" and floor(used) > floor(room(path))}
    assert not above, f"{ids(path)} imports from {above}, which are above it"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_pytest_is_known_upstairs_only(path: Path) -> None:
    packages = {name.split(".")[0] for name in imported(path)}
    assert room(path) in KNOWS_PYTEST or not packages & {"pytest", "_pytest", "pluggy"}
    assert "_pytest" not in packages


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in PURE or ids(p) in PURE_FILES], ids=ids)
def test_the_ground_floor_is_pure(path: Path) -> None:
    names = set(imported(path))
    beside = {f"pytest_ascend.{file.removesuffix('.py').replace('/', '.')}" for file in PURE_FILES}
    within = {name for name in names if name.startswith("pytest_ascend.perf")}
    assert all(name.rsplit(".", 1)[0] in beside for name in within)
    assert rooms_used(path) <= {*PURE, "options", "files", "progress", *(["perf"] if within else [])}
    assert not {name for name in names if name.split(".")[0] in ("torch_npu", "subprocess", "socket")}


@pytest.mark.parametrize("path", [p for p in FILES if room(p) == "report"], ids=ids)
def test_report_reads_and_never_computes(path: Path) -> None:
    assert rooms_used(path) <= {"judge", "report", "files"}
    judged = {name for name in imported(path) if name.startswith("pytest_ascend.judge.")}
    assert all(name.startswith(("pytest_ascend.judge.verdict", "pytest_ascend.judge.culprit")) for name in judged)


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('loaded', *{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.rsplit("loaded", 1)[1].split())


@pytest.mark.parametrize(
    "module",
    ["", ".plugin", ".settings", ".session", ".fixtures", ".options", ".cli", ".targets", ".report.terminal",
     ".report.results_json", ".judge.verdict", ".perf", ".collect", ".doctor_cli", ".cases.pending",
     ".cases.references"],
)  # fmt: skip
def test_loading_is_light(module: str) -> None:
    assert not loaded_by(f"import pytest_ascend{module}") & HEAVY


def test_an_unused_plugin_is_light(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    arguments = ["-p", "no:hypothesispytest", "-p", "no:cacheprovider", str(tmp_path)]
    none_times = "assert not [name for name in sys.modules if name.startswith('pytest_ascend.perf')]"
    loaded = loaded_by(f"import pytest\nassert pytest.main({arguments!r}) == 0\n{none_times}")
    assert "pytest_ascend" in loaded
    assert not loaded & HEAVY


def test_the_facade_offers_what_it_lists() -> None:
    import pytest_ascend as pa

    for name in pa.__all__:
        assert getattr(pa, name) is not None
        assert name in dir(pa)
    assert pa.check.__name__ == "check"
    with pytest.raises(AttributeError, match="'pytest_ascend' has no attribute 'chek'"):
        pa.chek  # noqa: B018


def test_the_function_check_outlives_the_import_of_its_module() -> None:
    loaded = "import pytest_ascend as pa, pytest_ascend.check\nassert callable(pa.check), pa.check"
    loaded_by(loaded)
    loaded_by("import pytest_ascend as pa\nfrom pytest_ascend.check import check\nassert pa.check is check")
