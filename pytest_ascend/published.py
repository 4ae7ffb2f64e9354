"""What a run leaves behind when it ends: the results file, the page, and what GitHub shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ascend.session import AscendSession

__all__ = ["check", "error_commands", "publish"]


def check(session: AscendSession) -> None:
    """Raise ``pytest.UsageError`` where the page can't be made: before the run, not after it."""
    from pytest_ascend.report import html

    if not html.available():
        raise pytest.UsageError(f"--ascend-html={session.settings.html}: {html.MISSING}")


def publish(session: AscendSession) -> Iterator[str]:
    """Write all that was asked for; yields a sentence for what can't be written."""
    settings = session.settings
    summary = _on_github(session) and bool(session.results) and "GITHUB_STEP_SUMMARY" in os.environ
    if settings.json is None and settings.html is None and not summary:
        return
    content = session.content()
    if settings.json is not None:
        from pytest_ascend.report import results_json

        path = session.place(settings.json)
        try:
            results_json.write(path, content)
        except OSError as error:
            yield f"--ascend-json: can't write {path}: {error.strerror or error}"
    if settings.html is not None:
        from pytest_ascend.files import write_text
        from pytest_ascend.report import html

        path = session.place(settings.html)
        try:
            write_text(path, html.page(content))
        except OSError as error:
            yield f"--ascend-html: can't write {path}: {error.strerror or error}"
    if summary:
        from pytest_ascend.report import github

        try:
            github.add_summary(content, os.environ)
        except OSError as error:
            yield f"--ascend-github: can't write {error.filename}: {error.strerror or error}"


def error_commands(session: AscendSession) -> Iterator[str]:
    """GitHub's commands that mark the worst failures beside their tests."""
    if _on_github(session):
        from pytest_ascend.report import github

        yield from github.error_commands(session.results, _root(session.config.rootpath))


def _on_github(session: AscendSession) -> bool:
    if session.config.getoption("ascend_sanitize_child") is not None:
        return False  # whoever started this process says what came of it
    wanted = session.settings.github or "auto"
    return wanted == "on" or (wanted == "auto" and os.environ.get("GITHUB_ACTIONS") == "true")


def _root(root: Path) -> str:
    """The folder of the tests within the repository."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if not workspace:
        return ""
    inside = os.path.relpath(root, workspace).replace(os.sep, "/")
    return "" if inside == "." or inside.startswith("..") else inside
