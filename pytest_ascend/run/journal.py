"""What a run has judged so far, on disk, so that an interrupted run can go on: ``--ascend-resume``.

A folder with one file of JSON lines for each process that writes, and one that says what run it is. A line is written
at once and whole, when its test has ended; the last line of a process that was killed may be torn and is not believed.
What is on disk was written by us, yet it is read as data only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ascend.files import write_text

__all__ = ["Journal", "NotTheSame", "append", "last"]

_HEAD = "run.json"
_LINES = ".jsonl"


class NotTheSame(ValueError):
    """The interrupted run was another one; the message says in what."""


def append(path: str | os.PathLike[str], nodeid: str, reports: Sequence[Mapping[str, Any]]) -> None:
    """Write down that a test has ended, with its reports. Raises ``OSError``."""
    line = json.dumps({"nodeid": nodeid, "reports": list(reports)}).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        while line:
            line = line[os.write(handle, line) :]
    finally:
        os.close(handle)


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    try:
        data = path.read_bytes()
    except OSError:
        return []
    for line in data.split(b"\n")[:-1]:  # what follows the last line's end is torn
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("nodeid"), str) and _reports(entry.get("reports")):
                found.append(entry)
    return found


def _reports(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def last(path: str | os.PathLike[str], nodeid: str) -> list[dict[str, Any]] | None:
    """The reports of a test, if it is the last that a process wrote down; else None."""
    lines = _lines(Path(path))
    return lines[-1]["reports"] if lines and lines[-1]["nodeid"] == nodeid else None


class Journal:
    """The journal of a run.

    Args:
        folder: where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = 0

    def begin(self, about: Mapping[str, Any], resume: bool) -> dict[str, list[dict[str, Any]]]:
        """Begin a run, or go on with the last one.

        Args:
            about: what the run is; a run that goes on must be the same.
            resume: whether to go on.

        Returns:
            The reports of each test that has ended before, by node id, in the order in which they were judged.

        Raises:
            NotTheSame: the interrupted run was another one.
            OSError: the folder can't be written.
        """
        finished: dict[str, list[dict[str, Any]]] = {}
        if resume and (before := self._interrupted()) is not None:
            differing = sorted(name for name in {**before, **about} if before.get(name) != about.get(name))
            if differing:
                name = differing[0]
                raise NotTheSame(
                    f"the interrupted run can't go on, for its {name} was {before.get(name)!r} and is now "
                    f"{about.get(name)!r}: leave --ascend-resume out to begin a new one"
                )
            for path in sorted(self.folder.glob(f"*{_LINES}"), key=lambda one: (len(one.stem), one.stem)):
                self._files = max(self._files, int(path.stem) if path.stem.isdigit() else 0)
                for entry in _lines(path):
                    finished.setdefault(entry["nodeid"], entry["reports"])
            return finished
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._write({"run": dict(about), "over": False})
        return finished

    def _interrupted(self) -> dict[str, Any] | None:
        try:
            head = json.loads((self.folder / _HEAD).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(head, dict) or head.get("over") or not isinstance(head.get("run"), dict):
            return None
        return dict(head["run"])

    def file(self) -> str:
        """The path of a file that one more process may write."""
        self._files += 1
        return os.fspath(self.folder / f"{self._files}{_LINES}")

    def end(self) -> None:
        """The run is over: there is nothing to go on with."""
        with contextlib.suppress(OSError):
            self._write({"run": {}, "over": True})
            for path in self.folder.glob(f"*{_LINES}"):
                path.unlink()

    def _write(self, head: Mapping[str, Any]) -> None:
        write_text(self.folder / _HEAD, json.dumps(head) + "\n")
