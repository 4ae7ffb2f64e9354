"""``pytest-ascend compare GOLDEN TARGET``: two dumps, the verdict first. 1: they differ; 2: they can't be compared."""

from __future__ import annotations

import argparse
import gc
import math
import os
import shlex
import sys
from typing import TextIO

from pytest_ascend.dumps import DumpError
from pytest_ascend.files import write_pieces
from pytest_ascend.options import CRITERIA
from pytest_ascend.progress import Progress

__all__ = ["add_arguments", "run"]

_COLOURS = {"red": "31", "green": "32", "yellow": "33"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser of ``pytest-ascend compare`` its arguments."""
    parser.add_argument("golden", metavar="GOLDEN", help="a dump.json, or a folder of msprobe, msit or tensors' files")
    parser.add_argument("target", metavar="TARGET", help="the other one")
    parser.add_argument(
        "--mapping", metavar="FILE", help="names that differ: YAML or JSON with layers, apis, arguments"
    )
    parser.add_argument("--json", metavar="PATH", help="write the comparison as JSON")
    parser.add_argument("--html", metavar="PATH", help="write it as one page")
    parser.add_argument("--all", action="store_true", help="print every row, also those that agree")
    parser.add_argument("--strict", action="store_true", help="fail also on what passes with a note")
    parser.add_argument("--criterion", choices=CRITERIA, default="auto", help="the rule that judges (default: auto)")
    parser.add_argument("--cosine", type=_number, metavar="MIN", help="smallest cosine similarity that passes")
    parser.add_argument("--max-abs", type=_number, metavar="MAX", help="largest absolute error that passes")
    parser.add_argument(
        "-er",
        "--tokens",
        metavar="RANGES",
        help="rounds of a dump of msit, as its -er has them: 0,0 or 1,3,5,7 (from 1 to 3, from 5 to 7)",
    )
    parser.add_argument("--golden-tokens", metavar="RANGES", help="the golden's rounds, where they are others")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return value


def run(arguments: argparse.Namespace, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Compare, print, write; the exit status: 0, 1 for a failing comparison, 2 for one that can't be made."""
    out, err = out or sys.stdout, err or sys.stderr
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products of a few thousand numbers: other threads only spin
    from pytest_ascend.dumps.comparing import compare
    from pytest_ascend.dumps.rows import json_pieces
    from pytest_ascend.report.compared import as_html, lines

    progress = Progress("calls compared", err)
    gc.set_threshold(100_000)  # rows and calls hold no cycles to look for
    try:
        found = compare(
            arguments.golden,
            arguments.target,
            arguments.mapping,
            criterion=arguments.criterion,
            cosine=arguments.cosine,
            max_abs=arguments.max_abs,
            tokens=arguments.tokens,
            golden_tokens=arguments.golden_tokens,
            progress=progress,
        )
        progress.done()
        content = found.view()
        if arguments.json:
            write_pieces(arguments.json, json_pieces(content))
        if arguments.html:
            write_pieces(arguments.html, (f"{line}\n" for line in as_html(content)))
    except (DumpError, ValueError) as error:
        progress.done()
        print(f"pytest-ascend compare: {error}", file=err)
        return 2
    except OSError as error:
        progress.done()
        print(f"pytest-ascend compare: {error.filename}: {error.strerror or error}", file=err)
        return 2
    command = ["pytest-ascend", "compare", arguments.golden, arguments.target]
    command += ["--mapping", arguments.mapping] if arguments.mapping else []
    try:
        for line in lines(content, everything=arguments.all, more=shlex.join([*command, "--all"])):
            print(_coloured(line.text, line.colour, out), file=out)
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    outcome = found.verdict.outcome
    return 0 if outcome == "passed" or (outcome == "noted" and not arguments.strict) else 1


def _coloured(text: str, colour: str, out: TextIO) -> str:
    if not colour or not out.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"
