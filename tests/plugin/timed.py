"""A project whose timings are dictated: its processes that time are ``fake_timer.py``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).with_name("fake_timer.py")
CONFTEST = f"""
import sys
from pytest_ascend import child_arguments
child_arguments.command = lambda config, python=sys.executable: (python, {os.fspath(FAKE)!r})
"""
NAME = "test_timed.py"


class Project:
    """A folder with tests ``a``, ``b``, ... and what each takes: ``project.takes(a=1e-3)``."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.log = pytester.path.parent / f"{pytester.path.name}.log"
        monkeypatch.setenv("FAKE_LOG", os.fspath(self.log))
        pytester.makeconftest(CONFTEST)
        pytester.makeini("[pytest]\n")
        self.scenario: dict[str, Any] = {}

    def tests(self, **bodies: str) -> None:
        """Write the tests; a body is what comes before the call of ``ascend_perf``."""
        lines = ["import pytest"]
        for name, body in bodies.items():
            lines += [f"def test_{name}(ascend_perf):", f"    {body or 'pass'}", "    ascend_perf(abs, 1)"]
        (self.path / NAME).write_text("\n".join(lines) + "\ndef test_untimed(): pass\n")

    def takes(self, **tests: Any) -> None:
        """What the tests take, in seconds or as ``fake_timer.call`` reads it; also ``machine`` and ``file``."""
        for name, given in tests.items():
            key = name if name in ("machine", "file") else f"{NAME}::test_{name}"
            self.scenario[key] = given if isinstance(given, dict) else {"seconds": given}
        (self.path / "scenario.json").write_text(json.dumps(self.scenario))
        if not (self.path / NAME).exists():
            self.tests(**{name: "" for name in tests if name not in ("machine", "file")})

    def run(self, *args: str, subprocess: bool = False) -> pytest.RunResult:
        """Run the tests and time them."""
        runner = self.pytester.runpytest_subprocess if subprocess else self.pytester.runpytest_inprocess
        times = () if any(arg.startswith(("--ascend-perf=", "--ascend-ab")) for arg in args) else ("--ascend-perf",)
        return runner("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *times, *args)

    def starts(self) -> list[list[str]]:
        """What each process was asked: ``[mode, folder, test, ...]``; forgotten then."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.split(" ") for line in lines]

    def git(self, *args: str) -> str:
        """Run git in the project."""
        who = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *who, *args], cwd=self.path, capture_output=True, text=True, check=True)
        return done.stdout

    def commit(self) -> None:
        """Make the project a repository whose branch ``main`` is what it is now."""
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "all")


__all__ = ["NAME", "Project"]
