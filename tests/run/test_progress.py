"""Progress is said to people who watch, and to nobody else."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from pytest_ascend.progress import Progress, pace, watched


@pytest.mark.parametrize(
    ("done", "whole", "seconds", "said"),
    [(0, 10, 3.0, "0 of 10"), (120, 1000, 5.0, "120 of 1000, 24/s, 0:37 left"), (3, 9, 2.0, "3 of 9, 1.5/s, 0:04 left"),
     (1, 500, 30.0, "1 of 500, 30.0 s each, 4:09:30 left"), (10, 10, 1.0, "10 of 10, 10/s, 0:00 left")],
)  # fmt: skip
def test_pace(done, whole, seconds, said) -> None:
    assert pace(done, whole, seconds) == said


def test_who_watches() -> None:
    assert watched(True, {})
    assert watched(True, {"CI": "false"})
    assert not watched(True, {"CI": "true"})
    assert not watched(True, {"TERM": "dumb"})
    assert not watched(False, {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_written_over_itself_and_wiped(monkeypatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    clock = iter([0.0, 1.0, 4.0, 4.1, 5.0])
    out = Terminal()
    progress = Progress("calls compared", out, now=lambda: next(clock))
    for done in (1, 40, 41, 50):  # too early, shown, too soon, shown
        progress(done, 100)
    progress.done()
    first, second, *wiped = out.getvalue().lstrip("\r").split("\r")
    assert first == "calls compared: 40 of 100, 10/s, 0:06 left"
    assert second.rstrip() == "calls compared: 50 of 100, 10/s, 0:05 left"
    assert [part.strip() for part in wiped] == ["", ""]
    quiet = io.StringIO()
    Progress("calls", quiet)(1, 2)
    assert quiet.getvalue() == ""


TESTS = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    pass
"""
SOON = "from pytest_ascend.run import progress\nprogress.EVERY_S = 0.0\n"


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [([], {}, True), (["-n1", "-p", "xdist"], {}, True), (["-q"], {}, False), ([], {"CI": "true"}, False)],
)
def test_a_run_says_how_long_it_takes(tmp_path, options, variables, said) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(SOON)
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    asked = ["--ascend-golden=nothing", "-p", "no:hypothesispytest"]  # one of ours, and nothing that loads torch
    command = [sys.executable, "-m", "pytest", *asked, *options]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**environment, "TERM": "xterm", **variables}, stdout=theirs, stderr=theirs
    ) as running:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            shown += part
        os.close(ours)
        assert running.wait() == 0, shown
    lines = re.findall(rb"ascend: \d of 6, [\d.]+(?:/s| s each), \d+:\d\d left", shown)
    assert bool(lines) == said, shown.decode()
