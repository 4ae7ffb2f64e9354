"""The base of a comparison: a commit's files in a folder of their own, and what makes a process import them.

Test files and ``conftest.py`` that the commit hasn't are copied there, so that a new test can time the old code. What
the commit has stays as it is. Submodules aren't checked out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ascend.perf.child import NoProgram, ProfilerFailed, run

__all__ = ["Base", "BaseError", "bring", "checked_out", "environment", "head", "imports", "resolve"]

_TIME_S = 600.0


class BaseError(RuntimeError):
    """There is no base to compare with. The message is one sentence: what, why and what to do."""


@dataclass(frozen=True)
class Base:
    """A commit of a repository: ``rev`` as it was asked for, its full ``commit``, and the repository's ``top``."""

    rev: str
    commit: str
    top: Path

    def __str__(self) -> str:
        return f"{self.rev} ({self.commit[:9]})" if not self.commit.startswith(self.rev) else self.commit[:9]


def resolve(rev: str, root: str | os.PathLike[str]) -> Base:
    """The commit that a revision names in the repository that ``root`` is in. Raises ``BaseError``."""
    if rev.startswith("-"):
        raise BaseError(f"{rev!r} is no revision: give a branch, a tag or a commit")
    try:
        top = Path(_git(["rev-parse", "--show-toplevel"], root).strip())
    except BaseError as error:
        raise BaseError(f"{os.fspath(root)} is in no git repository, so there is no base: {error}") from None
    try:
        commit = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}"], root).split()[-1]
    except (BaseError, IndexError):
        raise BaseError(
            f"git knows no commit {rev!r} in {top}: give a branch, a tag or a commit, or fetch it"
        ) from None
    return Base(rev, commit, top.resolve())


def head(root: str | os.PathLike[str]) -> str:
    """The commit of the code under test, with ``-dirty`` where tracked files were changed; empty without git."""
    try:
        commit = _git(["rev-parse", "HEAD"], root).strip()
        changed = _git(["status", "--porcelain", "--untracked-files=no"], root).strip()
    except BaseError:
        return ""
    return f"{commit}-dirty" if changed else commit


@contextlib.contextmanager
def checked_out(base: Base, folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A git worktree of the commit below ``folder``; it is removed at the end, however that comes.

    Raises:
        BaseError: git can't make it.
    """
    tree = Path(folder, "base").resolve()
    try:
        _git(["worktree", "add", "--detach", "--quiet", os.fspath(tree), base.commit], base.top)
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)
        with contextlib.suppress(BaseError):
            _git(["worktree", "prune"], base.top)


def unchanged(base: Base) -> bool:
    """Whether the working tree is what the commit has, untracked files aside."""
    try:
        _git(["diff", "--quiet", base.commit, "--"], base.top)
    except BaseError:
        return False
    return True


def bring(base: Base, tree: Path, files: Iterable[Path]) -> list[str]:
    """Copy test files, and each ``conftest.py`` above them, that the commit hasn't. Returns what a reader should know.

    Args:
        files: of the working tree, in ``base.top``.
    """
    wanted: dict[Path, None] = {}
    for file in files:
        inside = _inside(base.top, file)
        if inside is None:
            continue
        wanted[inside] = None
        for above in inside.parents:
            wanted[above / "conftest.py"] = None
    copied, differ = [], []
    for inside in sorted(wanted):
        source, target = base.top / inside, tree / inside
        if not source.is_file():
            continue
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            copied.append(os.fspath(inside))
        elif source.read_bytes() != target.read_bytes():
            differ.append(os.fspath(inside))
    said = []
    if copied:
        said.append(f"{base} hasn't {_names(copied)}: both sides run this tree's")
    if differ:
        said.append(f"{_names(differ)} differs from {base}'s: each side runs its own")
    return said


def mapped(path: str | os.PathLike[str], base: Base, tree: Path) -> str:
    """A path of the working tree as one of the base's tree; any other as it is."""
    inside = _inside(base.top, Path(path)) if os.path.isabs(path) else None
    return os.fspath(path) if inside is None else os.fspath(tree / inside)


def environment(base: Base, tree: Path, sources: Mapping[str, str], path: Sequence[str]) -> dict[str, str]:
    """This process's environment, with ``PYTHONPATH`` such that the base's modules win over installed ones.

    Args:
        sources: where each module came from in a process of the working tree: its roots in there are the base's roots.
        path: ``sys.path`` of this process.
    """
    roots: dict[str, None] = {}
    for name, file in sources.items():
        if _own(base.top, file) is not None:
            parent = Path(file).parent
            if parent.name == name.rpartition(".")[2] and Path(file).name == "__init__.py":
                parent = parent.parent
            for _ in range(name.count(".")):
                parent = parent.parent
            roots[mapped(parent, base, tree)] = None
    given = os.environ.get("PYTHONPATH", "")
    for entry in (*path, *given.split(os.pathsep)):
        if entry and _own(base.top, entry) is not None:
            roots[mapped(os.path.abspath(entry), base, tree)] = None
    others = [entry for entry in given.split(os.pathsep) if entry and _own(base.top, entry) is None]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*(root for root in roots if os.path.isdir(root)), *others])}


def imports(base: Base, tree: Path, ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What a reader should know about where the two sides' modules came from.

    Args:
        ours, theirs: the modules of a process of the working tree, and of one of the base's, by name.

    Raises:
        BaseError: the base's process ran code of the working tree, or both ran the same installed copy of what this
            repository holds; then nothing would be compared.
    """
    for name, file in theirs.items():
        if _own(base.top, file) is not None and _inside(tree, Path(file)) is None:
            raise BaseError(
                f"the processes of {base} import {name} from {file}, which is this tree's, so that both sides would "
                "run the same code: import it by its place on sys.path, not by an absolute path"
            )
    held = _holds(base.top)
    for name in sorted(held & ours.keys() & theirs.keys()):
        if os.path.realpath(ours[name]) == os.path.realpath(theirs[name]):
            raise BaseError(
                f"both sides import {name} from {ours[name]}, a copy that is installed, so that they would run the "
                "same code: install this tree as editable (pip install -e .), or put it on PYTHONPATH"
            )
    own = [name for name, file in ours.items() if _own(base.top, file) is not None and not _is_test(file)]
    if not own:
        return ["no module of this repository but its tests is imported: only the tests' own code is compared"]
    return []


def _holds(top: Path) -> set[str]:
    """Names of the packages and modules that the repository's tracked files hold, at its top and in src."""
    try:
        listed = _git(["ls-files", "-z", "*.py"], top).split("\0")
    except BaseError:
        return set()
    found = set()
    for line in listed:
        parts = Path(line).parts[1:] if Path(line).parts[:1] == ("src",) else Path(line).parts
        if len(parts) == 1 and parts[0] not in ("setup.py", "conftest.py"):
            found.add(parts[0].removesuffix(".py"))
        elif len(parts) == 2 and parts[1] == "__init__.py":
            found.add(parts[0])
    return found


def _is_test(file: str) -> bool:
    name = Path(file).name
    return name == "conftest.py" or name.startswith("test_") or name.endswith("_test.py") or "tests" in Path(file).parts


def _own(top: Path, file: str | os.PathLike[str]) -> Path | None:
    """A path's place in the repository; None for others, and for what is installed in an environment in there."""
    inside = _inside(top, Path(file))
    return None if inside is None or "site-packages" in inside.parts else inside


def _inside(folder: Path, path: Path) -> Path | None:
    for one in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        with contextlib.suppress(ValueError):
            return one.relative_to(folder)
    return None


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _git(arguments: Sequence[str], where: str | os.PathLike[str]) -> str:
    """What git prints. Raises ``BaseError`` with its last words."""
    # A hook that runs pytest has set variables that name the index and folder it works on.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        ended = run(
            ["git", *arguments], timeout_s=_TIME_S, environment={**clean, "LC_ALL": "C"}, where=os.fspath(where)
        )
    except NoProgram:
        raise BaseError("git isn't installed") from None
    except ProfilerFailed as failed:
        raise BaseError(str(failed)) from None
    if ended.status:
        raise BaseError(f"git {arguments[0]}: {ended.last_lines()}")
    return ended.output
