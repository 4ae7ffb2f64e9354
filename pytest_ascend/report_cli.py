"""``pytest-ascend report``: what is made of results files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_commands", "run"]


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The command's own commands."""
    commands = parser.add_subparsers(dest="report_command", required=True, metavar="COMMAND")
    merge = commands.add_parser("merge", help="put the results files of a run's parts (--ascend-shard) together")
    merge.add_argument("parts", nargs="+", metavar="RESULTS.json", help="one results file of each part")
    merge.add_argument("-o", "--output", required=True, metavar="FILE", help="the results file to write")


def run(arguments: argparse.Namespace) -> int:
    """Run a command; the exit status is 0, or 2 with one sentence on what is wrong."""
    try:
        return _merge(arguments)
    except (ValueError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        print(f"pytest-ascend report {arguments.report_command}: {text}", file=sys.stderr)
        return 2


def _merge(arguments: argparse.Namespace) -> int:
    from pytest_ascend.report import merging, results_json

    parts = {}
    for name in dict.fromkeys(arguments.parts):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name} is no results file of --ascend-json: it is no text") from None
        parts[name] = merging.parsed(text, name)
    for line in merging.check(parts):
        print(f"note: {line}")
    content = merging.merged(parts)
    results_json.write(arguments.output, content)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in content["summary"].items()) or "no result"
    print(f"{arguments.output}: {len(content['results'])} results of {len(parts)} files: {counts}")
    return 0
