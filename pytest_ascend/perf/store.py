"""Baselines in files: ``<root>/<fingerprint>/<test>.json``, written whole or not at all, by one process at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_ascend.dumps.text import DumpError, parse
from pytest_ascend.files import write_text
from pytest_ascend.perf.baseline import KEEP, Baseline, BaselineError, Session
from pytest_ascend.perf.fingerprint import file_name, fingerprint

__all__ = ["LARGEST", "Store", "load", "write"]

LARGEST = 16 << 20
"""Bytes of the largest file that is read: 50 sessions of 40 processes are a fifth of a megabyte."""
_LOCK = ".lock"
_IGNORED = f"# Of pytest-ascend: what is no baseline.\n/{_LOCK}\n.ascend-*\n"


class Store:
    """The baselines below a folder.

    A save reads, joins and replaces under a lock that ends with its process, however that ends. A reader needs no
    lock: it sees the old file or the new one.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def path(self, environment: Mapping[str, Any], test: str) -> Path:
        """The file of a test's baseline, whether there is one or not."""
        return self.root / fingerprint(environment) / file_name(test)

    def load(self, environment: Mapping[str, Any], test: str) -> Baseline | None:
        """A test's baseline, or None where there is none. Raises ``BaselineError``."""
        path = self.path(environment, test)
        if not os.path.lexists(path):
            return None
        found = load(path)
        if found.test != test:
            raise BaselineError(f"{path}: it is the baseline of {found.test!r} and not of {test!r}: delete it")
        if found.fingerprint != path.parent.name:
            raise BaselineError(f"{path}: it is a baseline of {found.fingerprint}, so it belongs into that folder")
        return found

    def save(
        self, environment: Mapping[str, Any], test: str, session: Session, *, keep: int = KEEP, replace: bool = False
    ) -> Baseline:
        """Add a session and return what is stored now.

        Args:
            environment: values of :data:`~pytest_ascend.perf.fingerprint.FIELDS`.
            test: the test's id.
            session: what is added; joined with the stored one of the same id, if any.
            keep: how many sessions are kept, the latest.
            replace: forget the sessions with other ids: a change of speed was accepted, so they are no measure any
                more.

        Raises:
            BaselineError: the stored file can't be read; it is left as it is.
            OSError: it can't be written; the stored file is still whole.
        """
        path = self.path(environment, test)
        with self.locked():
            known = self.load(environment, test) or Baseline(test, dict(environment))
            if replace:
                known = Baseline(test, known.environment, tuple(s for s in known.sessions if s.id == session.id))
            now = known.with_session(session, keep)
            for left in path.parent.glob(".ascend-*"):  # of a save that was killed: nobody else writes now
                left.unlink(missing_ok=True)
            write(path, now)
        return now

    def all(self) -> Iterator[tuple[Path, Baseline | BaselineError]]:
        """Every file with its baseline, or with what is wrong with it, in the order of their names."""
        for path in sorted(self.root.glob("*/*.json")):
            if not path.name.startswith("."):
                try:
                    yield path, load(path)
                except BaselineError as error:
                    yield path, error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing below this folder. Raises ``OSError`` where it can't be locked."""
        import fcntl

        self.root.mkdir(parents=True, exist_ok=True)
        if not (self.root / ".gitignore").exists():
            write_text(self.root / ".gitignore", _IGNORED)
        handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def load(path: str | os.PathLike[str]) -> Baseline:
    """Read one file, which may hold anything. Raises ``BaselineError``."""
    name = os.fspath(path)
    try:
        plain = parse(name, LARGEST)
    except DumpError as error:
        raise BaselineError(f"{error}; restore it from version control, or delete it and save a new one") from None
    return Baseline.from_plain(plain, name)


def write(path: str | os.PathLike[str], baseline: Baseline) -> None:
    """Write one file, and make sure that it is there after a power cut. Raises ``OSError``."""
    write_text(path, baseline.to_text())
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
