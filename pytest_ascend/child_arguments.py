"""The command line of a process that times, out of this run's own: the same tests and options, but nothing written."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["command", "selection"]

# Options that name a file to write, start workers, or select by what an earlier run left.
_WITH_VALUE = {
    *("--ascend-json", "--ascend-html", "--ascend-github"),
    *("--ascend-ab", "--ascend-ab-python", "--ascend-perf-time", "--ascend-perf-child"),
    *("--ascend-timeout", "--ascend-isolate-memory", "--ascend-shard", "--ascend-sanitize-args"),
    *("--junitxml", "--junit-xml", "--html", "--report-log", "--log-file", "--basetemp", "--maxfail", "--rootdir"),
    *("--benchmark-json", "--benchmark-save", "--benchmark-compare-fail"),
    *("-n", "--numprocesses", "--maxprocesses", "--max-worker-restart", "--dist", "--tx"),
}
_MAYBE_VALUE = {"--ascend-perf", "--ascend-sanitize", "--benchmark-compare", "--benchmark-histogram"}
_SWITCHES = {
    *("--ascend-isolate", "--ascend-resume"),
    *("--ascend-save", "--ascend-update", "--benchmark-autosave", "--pdb", "--trace", "--collect-only", "--co"),
    *("--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first", "--cache-clear"),
    *("--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--sw-reset", "--stepwise-reset", "-x", "--exitfirst"),
}
_WORKERS = re.compile(r"-n(\d+|auto|logical)")


def command(config: pytest.Config, python: str = sys.executable) -> tuple[str, ...]:
    """Program and options, without tests, for a process that starts in this run's own folder.

    Args:
        config: of this run.
        python: the interpreter.
    """
    here = os.fspath(config.invocation_params.dir)
    # -m puts the current folder first on the path; a process of plain `pytest` hasn't it there.
    if any(os.path.abspath(entry or ".") == here for entry in sys.path):
        program = [python, "-m", "pytest"]
    else:
        program = [python, "-c", "import sys; del sys.path[0]; import pytest; sys.exit(pytest.console_main())"]
    added = [f"--rootdir={config.rootpath}", "--maxfail=0"]
    if config.inipath is not None:
        added += ["-c", os.fspath(config.inipath)]
    if config.pluginmanager.hasplugin("xdist"):
        added += ["-n0", "--dist=no"]
    if config.pluginmanager.hasplugin("pytest_cov"):
        added.append("--no-cov")
    return (*program, *_kept(_given(config), selection(config)), *added)


def selection(config: pytest.Config) -> list[str]:
    """The files, folders and node ids of this run's command line."""
    return [os.fspath(one) for one in getattr(config.option, "file_or_dir", None) or ()]


def _given(config: pytest.Config) -> list[str]:
    """The command line, files of arguments spread out."""
    found: list[str] = []
    for token in map(os.fspath, config.invocation_params.args):
        if token.startswith("@"):
            with contextlib.suppress(OSError):
                lines = Path(config.invocation_params.dir, token[1:]).read_text(encoding="utf-8").splitlines()
                found += [line for line in lines if line]
                continue
        found.append(token)
    return found


def _kept(given: list[str], tests: list[str]) -> Iterator[str]:
    doubtful = {token for token in tests if given.count(token) > tests.count(token)}
    following = iter([*given[1:], ""])
    skip, before = False, ""
    for token in given:
        after = next(following)
        if skip:
            skip, before = False, ""
            continue
        name, equals, _ = token.partition("=")
        if name in _WITH_VALUE:
            skip = not equals
        elif token in _MAYBE_VALUE:
            skip = not after.startswith("-") and after not in tests
        elif name in _MAYBE_VALUE or token in _SWITCHES or _WORKERS.fullmatch(token):
            pass
        # The same word may be a test and the value of an option: `-k unit unit`.
        elif token not in tests or (token in doubtful and before.startswith("-") and "=" not in before):
            yield token
        before = token
