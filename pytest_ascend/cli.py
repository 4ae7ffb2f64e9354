"""The command ``pytest-ascend``: what this machine can compare with, the schema, tests, profiles, baselines."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import util


def write_tests(arguments: argparse.Namespace) -> str:
    """``pytest-ascend generate``: write the file, and say what is in it and how to run it.

    Raises ``ValueError`` or ``OSError``, each with one sentence.
    """
    from pytest_ascend.files import write_text

    if (arguments.dump is None) is (arguments.api is None):
        raise ValueError("give a dump, or --api PATTERN, and not both")
    if os.path.exists(arguments.output) and not arguments.force:
        raise ValueError(f"{arguments.output} exists, and somebody may have edited it: give --force to replace it")
    if arguments.api is not None:
        if util.find_spec("pytest_ascend.cases.catalogue") is None:
            raise ValueError("this installation of pytest-ascend has no catalogue of APIs")
        catalogue = importlib.import_module("pytest_ascend.cases.catalogue")
        text = catalogue.source(arguments.api)
    else:
        from pytest_ascend import dumps
        from pytest_ascend.cases import as_code

        text = as_code.source(dumps.open(arguments.dump), arguments.output, fold=not arguments.no_fold)
    write_text(arguments.output, text)
    count = text.count("\ndef test_")
    return f"{arguments.output}: {count} tests. Run them: pytest --ascend-compare {arguments.output}"


def _printed(command: str, answer: Callable[[], str]) -> int:
    """Print the answer of a command, or the one sentence why there is none; the exit status."""
    try:
        print(answer())
    except ValueError as error:
        return _refused(command, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refused(command, f"{error.filename}: {error.strerror}" if error.strerror else str(error))
    return 0


def _refused(command: str, sentence: str) -> int:
    print(f"pytest-ascend {command}: {sentence}", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 1 when ``doctor`` finds a fault or ``compare`` a difference."""
    parser = argparse.ArgumentParser(prog="pytest-ascend", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "doctor",
        help="say what this machine has, what is wrong with it, and what to do",
        description="Looks at torch, torch_npu, CANN, driver, devices, tools and the variables that change numerics; "
        "each device computes something in a process of its own. Status 1: something is wrong; 0: nothing is.",
    )
    commands.add_parser("schema", help="print the JSON Schema of the --ascend-json file")
    generate = commands.add_parser(
        "generate", help="write a test file for the API calls of a dump, or for APIs of the catalogue"
    )
    generate.add_argument("dump", nargs="?", help="a dump.json, or a folder that holds one")
    generate.add_argument("-o", "--output", required=True, metavar="FILE", help="the test file to write")
    generate.add_argument("--api", metavar="PATTERN", help="APIs of the catalogue in place of a dump")
    generate.add_argument("--no-fold", action="store_true", help="a test for each call, also for those alike")
    generate.add_argument("--force", action="store_true", help="replace FILE where it exists")
    from pytest_ascend import compare_cli

    compare_cli.add_arguments(commands.add_parser("compare", help="compare two recorded dumps, call by call"))
    profiles = commands.add_parser("perf", help="print a profile, or which operators grew between two")
    baselines = commands.add_parser("baseline", help="list, show, compare, prune, merge and import stored baselines")
    reports = commands.add_parser(
        "report", help="make a page of a results file, or put those of a run's parts together"
    )
    given = list(sys.argv[1:] if argv is None else argv)
    if "report" in given[:1]:
        from pytest_ascend import report_cli

        report_cli.add_commands(reports)
    if "perf" in given[:1]:  # loaded for its own command only: it takes as long as a comparison of a small dump
        from pytest_ascend.perf import command as perf

        perf.add_arguments(profiles)
    elif "baseline" in given[:1]:
        from pytest_ascend import baseline_cli

        baseline_cli.add_commands(baselines)
    arguments = parser.parse_args(given)
    if arguments.command == "perf":
        return _printed("perf", lambda: perf.run(arguments))
    if arguments.command == "compare":
        return compare_cli.run(arguments)
    if arguments.command == "baseline":
        return baseline_cli.run(arguments)
    if arguments.command == "report":
        return report_cli.run(arguments)
    if arguments.command == "generate":
        return _printed("generate", lambda: write_tests(arguments))
    if arguments.command == "schema":
        from pytest_ascend.report.results_json import SCHEMA

        print(json.dumps(SCHEMA, indent=2))
        return 0
    from pytest_ascend import doctor_cli

    return doctor_cli.run()


if __name__ == "__main__":
    sys.exit(main())
