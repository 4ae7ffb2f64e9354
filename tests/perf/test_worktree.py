"""A commit's files beside the working tree's, and whose modules a process imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ascend.perf import worktree
from pytest_ascend.perf.worktree import Base, BaseError


@pytest.fixture
def base(tmp_path: Path) -> Base:
    top = tmp_path / "repo"
    for name in ("src/shop/__init__.py", "lib.py", "tests/test_a.py", "setup.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(f"WHERE = {name!r}\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=top, check=True)
    return worktree.resolve("main", top)


def test_a_tree_is_removed_however_it_ends(base, tmp_path) -> None:
    def broken_off() -> None:
        with worktree.checked_out(base, tmp_path) as tree:
            assert (tree / "lib.py").read_text() == "WHERE = 'lib.py'\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert not (tmp_path / "base").exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=base.top, capture_output=True, text=True, check=True)
    assert listed.stdout.count("\n") == 1


def test_files_that_the_commit_hasnt_are_brought(base, tmp_path) -> None:
    (base.top / "tests" / "conftest.py").write_text("")
    (base.top / "tests" / "test_b.py").write_text("")
    (base.top / "tests" / "test_a.py").write_text("changed")
    with worktree.checked_out(base, tmp_path) as tree:
        said = worktree.bring(base, tree, [base.top / "tests" / "test_a.py", base.top / "tests" / "test_b.py"])
        assert (tree / "tests" / "conftest.py").exists()
        assert (tree / "tests" / "test_b.py").exists()
        assert (tree / "tests" / "test_a.py").read_text().startswith("WHERE")
    assert said == [
        f"{base} hasn't tests/conftest.py, tests/test_b.py: both sides run this tree's",
        f"tests/test_a.py differs from {base}'s: each side runs its own",
    ]


def test_the_bases_modules_win_over_an_editable_install(base, tmp_path) -> None:
    sources = {"shop": str(base.top / "src/shop/__init__.py"), "lib": str(base.top / "lib.py"), "numpy": np_file()}
    with worktree.checked_out(base, tmp_path) as tree:
        environment = worktree.environment(base, tree, sources, [str(base.top / "src"), "/usr/lib"])
        roots = environment["PYTHONPATH"].split(os.pathsep)
        assert roots[:2] == [str(tree / "src"), str(tree)]
        program = "import shop, lib; print(shop.__file__); print(lib.__file__)"
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert all(line.startswith(str(tree)) for line in ran.stdout.split())


def np_file() -> str:
    import numpy

    return numpy.__file__


def test_a_namespaces_root_is_above_it(base, tmp_path) -> None:
    (base.top / "src" / "acme" / "core").mkdir(parents=True)
    with worktree.checked_out(base, tmp_path) as tree:
        file = str(base.top / "src/acme/core/__init__.py")
        environment = worktree.environment(base, tree, {"acme.core": file}, [])
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(tree / "src")


def test_sides_that_import_the_same_file_are_refused(base, tmp_path) -> None:
    tree = tmp_path / "base"
    mine, theirs = str(base.top / "src/shop/__init__.py"), str(tree / "src/shop/__init__.py")
    installed = "/usr/lib/python3/site-packages/shop/__init__.py"
    assert worktree.imports(base, tree, {"shop": mine}, {"shop": theirs}) == []
    with pytest.raises(BaseError, match=r"import shop from .*this tree's"):
        worktree.imports(base, tree, {"shop": mine}, {"shop": mine})
    with pytest.raises(BaseError, match=r"both sides import shop from /usr/lib.*pip install -e"):
        worktree.imports(base, tree, {"shop": installed}, {"shop": installed})
    (said,) = worktree.imports(base, tree, {"test_a": str(base.top / "tests/test_a.py")}, {})
    assert said.startswith("no module of this repository but its tests")
    # An environment inside the repository isn't the repository's code.
    within = str(base.top / ".venv/lib/site-packages/numpy/__init__.py")
    worktree.imports(base, tree, {"numpy": within}, {"numpy": within})


def test_a_hooks_variables_dont_lead_git_astray(base, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert worktree.head(base.top) == base.commit
    (base.top / "lib.py").write_text("")
    assert worktree.head(base.top) == f"{base.commit}-dirty"
    assert not worktree.unchanged(base)


def test_without_git_there_is_no_commit(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert worktree.head(tmp_path) == ""
    with pytest.raises(BaseError, match="git isn't installed"):
        worktree.resolve("main", tmp_path)
