"""``pytest-ascend report``: what is made of results files."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["add_commands", "run"]


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The command's own commands."""
    commands = parser.add_subparsers(dest="report_command", required=True, metavar="COMMAND")
    merge = commands.add_parser("merge", help="put the results files of a run's parts (--ascend-shard) together")
    merge.add_argument("parts", nargs="+", metavar="RESULTS.json", help="one results file of each part")
    merge.add_argument("-o", "--output", required=True, metavar="FILE", help="the results file to write")
    page = commands.add_parser("html", help="make one page to look at of a results file (as --ascend-html does)")
    page.add_argument("results", metavar="RESULTS.json", help="the results file")
    page.add_argument("-o", "--output", metavar="FILE", help="the page (default: RESULTS.html beside it)")
    github = commands.add_parser(
        "github", help="add a results file to $GITHUB_STEP_SUMMARY and print its worst failures as annotations"
    )
    github.add_argument("results", metavar="RESULTS.json", help="the results file")


def run(arguments: argparse.Namespace) -> int:
    """Run a command; the exit status is 0, or 2 with one sentence on what is wrong."""
    try:
        return {"merge": _merge, "html": _html, "github": _github}[arguments.report_command](arguments)
    except (ValueError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        print(f"pytest-ascend report {arguments.report_command}: {text}", file=sys.stderr)
        return 2


def _merge(arguments: argparse.Namespace) -> int:
    from pytest_ascend.report import merging, results_json

    parts = {}
    for name in dict.fromkeys(arguments.parts):
        parts[name] = _read(name)
    for line in merging.check(parts):
        print(f"note: {line}")
    content = merging.merged(parts)
    results_json.write(arguments.output, content)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in content["summary"].items()) or "no result"
    print(f"{arguments.output}: {len(content['results'])} results of {len(parts)} files: {counts}")
    return 0


def _read(name: str) -> dict[str, Any]:
    from pytest_ascend.report import merging

    try:
        text = Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{name} is no results file of --ascend-json: it is no text") from None
    return merging.parsed(text, name)


@contextlib.contextmanager
def _as_its_schema(name: str) -> Iterator[None]:
    """Whoever wrote the file: what isn't where the schema has it is one sentence."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"[:120]
        raise ValueError(f"{name} isn't as `pytest-ascend schema` says ({said})") from None


def _html(arguments: argparse.Namespace) -> int:
    from pytest_ascend.files import write_text
    from pytest_ascend.report import html, worst

    content = _read(arguments.results)
    output = arguments.output or str(Path(arguments.results).with_suffix(".html"))
    with _as_its_schema(arguments.results):
        text = html.page(content)
    write_text(output, text)
    print(f"{output}: {worst.headline(content['results'])}")
    return 0


def _github(arguments: argparse.Namespace) -> int:
    from pytest_ascend.report import github

    content = _read(arguments.results)
    with _as_its_schema(arguments.results):
        lines = list(github.error_commands(content["results"]))
        github.add_summary(content, os.environ)
    for line in lines:
        print(line)
    return 0
