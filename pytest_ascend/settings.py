"""Every ``--ascend-*`` option and its ``ascend_*`` ini twin, resolved once into one frozen :class:`Settings`.

An option is a row of :data:`OPTIONS`; registering, resolving and repeating it on a command line are all driven by the
row, so that a new option is one row and one field.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

COMPARE = "--ascend-compare"
PERF = "--ascend-perf"
PERF_CHILD = "--ascend-perf-child"
PERF_PROFILE = "--ascend-perf-profile"
SANITIZE = "--ascend-sanitize"
SANITIZE_CHILD = "--ascend-sanitize-child"
TARGETS = (
    "auto (a real NPU, else the emulated one)",
    "npu or npu:N",
    "emulated or emulated:SOC, such as emulated:Ascend910A",
    "cuda or cuda:N",
    "cpu",
)
CHECKPOINTS: dict[str, Any] = {"sample": None, "all": True, "none": ()}
"""Words of ``--ascend-checkpoints`` → value of ``CheckOptions.checkpoints``."""
DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
LAYOUTS = ("as_given", "transposed", "sliced", "expanded", "channels_last", "scalar", "empty")
MODES = ("eager", "compile")


def target(value: str) -> str:
    """A target's spec, as it is. Raises ``argparse.ArgumentTypeError`` naming the targets there are."""
    from pytest_ascend.targets import parse

    try:
        parse(value)
    except ValueError:
        known = f"{', '.join(TARGETS[:-1])} or {TARGETS[-1]}"
        raise argparse.ArgumentTypeError(f"{value!r} is no target: give {known}") from None
    return value


def criterion(value: str) -> str:
    """The name of a criterion. Raises ``argparse.ArgumentTypeError`` naming the criteria there are."""
    from pytest_ascend.options import CRITERIA

    if value not in CRITERIA:
        raise argparse.ArgumentTypeError(f"{value!r} is no criterion: give one of {', '.join(CRITERIA)}")
    return value


def cosine(value: str) -> float:
    """A cosine similarity in [-1, 1]. Raises ``argparse.ArgumentTypeError`` naming the value."""
    return _number(value, -1.0, 1.0, "a cosine similarity: give a number from -1 to 1, such as 0.999")


def max_abs(value: str) -> float:
    """An absolute error, finite and not negative. Raises ``argparse.ArgumentTypeError`` naming the value."""
    return _number(value, 0.0, math.inf, "a largest absolute error: give a finite number, 0 or more, such as 1e-3")


def checkpoints(value: str) -> str:
    """Which layers to compare, a key of :data:`CHECKPOINTS`. Raises ``argparse.ArgumentTypeError`` otherwise."""
    if value not in CHECKPOINTS:
        raise argparse.ArgumentTypeError(f"{value!r} is no choice of checkpoints: give {', '.join(CHECKPOINTS)}")
    return value


def patterns(value: str) -> tuple[str, ...]:
    """Names or globs of APIs, split at commas outside of brackets. Raises ``argparse.ArgumentTypeError`` for none."""
    found = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", value) if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            f"{value!r} names no API: give names or globs, such as 'torch.nn.functional.*'"
        )
    return found


def api(value: str) -> str:
    """The value of ``--ascend-api``, as it is. Raises ``argparse.ArgumentTypeError`` when it names nothing."""
    patterns(value)
    return value


def numbers(value: str) -> frozenset[int]:
    """Whole numbers and ranges, such as ``0,2-4``. Raises ``argparse.ArgumentTypeError`` naming the value."""
    found: set[int] = set()
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            raise argparse.ArgumentTypeError(f"{value!r} is no list of numbers: give some such as 0 or 0,2-4")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def listed(value: str) -> str:
    """A list of numbers, as it is. Raises ``argparse.ArgumentTypeError`` naming the value."""
    numbers(value)
    return value


def words(value: str) -> tuple[str, ...]:
    """Words separated by commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def dtypes(value: str) -> str:
    """Names of dtypes, as they are. Raises ``argparse.ArgumentTypeError`` naming one that is none."""
    return _some_of(value, DTYPES, "dtype")


def layouts(value: str) -> str:
    """Names of layouts, as they are. Raises ``argparse.ArgumentTypeError`` naming one that is none."""
    return _some_of(value, LAYOUTS, "layout")


def modes(value: str) -> str:
    """``eager``, ``compile`` or both, as it is. Raises ``argparse.ArgumentTypeError`` naming another."""
    return _some_of(value, MODES, "mode")


def samples(value: str) -> int:
    """How many samples, 1 or more. Raises ``argparse.ArgumentTypeError`` naming the value."""
    if not re.fullmatch(r"\d{1,4}", value.strip()) or not int(value):
        raise argparse.ArgumentTypeError(f"{value!r} is no number of samples: give a whole number from 1 on, such as 3")
    return int(value)


def processes(value: str) -> int:
    """How many processes, 1 to 100. Raises ``argparse.ArgumentTypeError`` naming the value."""
    if not re.fullmatch(r"\d{1,3}", value.strip()) or not 1 <= int(value) <= 100:
        raise argparse.ArgumentTypeError(f"{value!r} is no number of processes: give a whole number from 1 to 100")
    return int(value)


def seconds(value: str) -> float:
    """A time in seconds, finite and above 0. Raises ``argparse.ArgumentTypeError`` naming the value."""
    wanted = "a time: give seconds, such as 600"
    if _number(value, 0.0, math.inf, wanted) == 0.0:
        raise argparse.ArgumentTypeError(f"{value!r} can't be {wanted}")
    return float(value)


def shard(value: str) -> str:
    """A part of a run, such as ``2/8``, as it is. Raises ``argparse.ArgumentTypeError`` naming the value."""
    from pytest_ascend.run.shard import parse

    try:
        return str(parse(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


SANITIZER_TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")


def sanitizer_tools(value: str) -> str:
    """Tools of msSanitizer, as they are. Raises ``argparse.ArgumentTypeError`` naming one that is none."""
    return _some_of(value, SANITIZER_TOOLS, "tool of msSanitizer")


def shell_words(value: str) -> str:
    """Options of another program, quoted as a shell would have them, as they are."""
    try:
        shlex.split(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value!r} can't be split into options: {error}") from None
    return value


RECORD_LEVELS = ("L0", "L1", "mix")
RECORD_TASKS = ("tensor", "statistics", "md5")
RECORD_FORMATS = ("pt", "safetensors")


def record_level(value: str) -> str:
    """A level of recording, as it is. Raises ``argparse.ArgumentTypeError`` naming the levels there are."""
    return _one_of(value, RECORD_LEVELS, "level of recording")


def record_task(value: str) -> str:
    """What is recorded of a tensor, as it is. Raises ``argparse.ArgumentTypeError`` naming what there is."""
    return _one_of(value, RECORD_TASKS, "task of recording")


def record_format(value: str) -> str:
    """The format of tensors' files, as it is. Raises ``argparse.ArgumentTypeError`` naming those there are."""
    return _one_of(value, RECORD_FORMATS, "format of tensors' files")


def rounds(value: str) -> str:
    """Rounds of a generation loop, as they are. Raises ``argparse.ArgumentTypeError`` naming the value."""
    for part in value.split(","):
        if part.strip() not in ("all", "prefill", "decode") and not re.fullmatch(r"\s*\d{1,9}(-(\d{1,9})?)?\s*", part):
            raise argparse.ArgumentTypeError(
                f"{value!r} names no rounds: give all, prefill, decode, or numbers and ranges such as 0,2-4"
            )
    return value


def count(value: str) -> int:
    """How many, 0 or more. Raises ``argparse.ArgumentTypeError`` naming the value."""
    if not re.fullmatch(r"\s*\d{1,9}\s*", value):
        raise argparse.ArgumentTypeError(f"{value!r} is no count: give a whole number, 0 or more")
    return int(value)


def every(value: str) -> int:
    """One in how many, 1 or more. Raises ``argparse.ArgumentTypeError`` naming the value."""
    if not re.fullmatch(r"\s*\d{1,9}\s*", value) or not int(value):
        raise argparse.ArgumentTypeError(f"{value!r} is no share: give N to keep one element in N, such as 100")
    return int(value)


def size(value: str) -> int:
    """Bytes, such as ``500000``, ``64MB`` or ``2GB``. Raises ``argparse.ArgumentTypeError`` naming the value."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*([KMGT]?)B?\s*", value, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{value!r} is no size: give bytes, or such as 64MB or 2GB")
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


class Limits(NamedTuple):
    """What fails. None: not asked for.

    Attributes:
        perf: the slowdown that must be caught, as a fraction.
        error: how many times as large an error may become.
    """

    perf: float | None = None
    error: float | None = None


def limits(value: str) -> Limits:
    """``perf:3%,error:2x``, in any order. Raises ``argparse.ArgumentTypeError``: one sentence about the wrong part."""
    found: dict[str, float] = {}
    for part in value.split(","):
        match = re.fullmatch(r"\s*(?:(perf):(\d+(?:\.\d*)?|\.\d+)%|(error):(\d+(?:\.\d*)?|\.\d+)x)\s*", part)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is no limit: give perf:NUMBER% or error:NUMBERx, such as perf:3%,error:2x"
            )
        name, number = match[1] or match[3], float(match[2] or match[4])
        if name in found:
            raise argparse.ArgumentTypeError(f"{value!r} has {name} twice: give one limit for it")
        if name == "perf" and not 0 < number <= 100:
            raise argparse.ArgumentTypeError(f"{part.strip()!r}: a slowdown to catch lies above 0 % and up to 100 %")
        if name == "error" and not (1 < number < math.inf):
            raise argparse.ArgumentTypeError(f"{part.strip()!r}: an error may grow more than 1 times, such as error:2x")
        found[name] = number / 100 if name == "perf" else number
    return Limits(**found)


def fail(value: str) -> str:
    """The value of ``--ascend-fail``, as it is. Raises ``argparse.ArgumentTypeError`` where it has no limits."""
    limits(value)
    return value


def results_file(value: str) -> str:
    """A path that ends in ``.json``, as it is: a test's file that slipped in here would be overwritten."""
    if not value.endswith(".json"):
        raise argparse.ArgumentTypeError(f"{value!r} can't hold timings: give a path that ends in .json")
    return value


def page(value: str) -> str:
    """A path that ends in ``.html``, as it is: a test's file that slipped in here would be overwritten."""
    if not value.lower().endswith((".html", ".htm")):
        raise argparse.ArgumentTypeError(f"{value!r} can't hold a page: give a path that ends in .html")
    return value


def when(value: str) -> str:
    """``auto``, ``on`` or ``off``. Raises ``argparse.ArgumentTypeError`` naming the value."""
    return _one_of(value, ("auto", "on", "off"), "choice of when")


def _some_of(value: str, known: tuple[str, ...], what: str) -> str:
    given = words(value)
    strange = [word for word in given if word not in known]
    if strange or not given:
        name = strange[0] if strange else value
        raise argparse.ArgumentTypeError(f"{name!r} is no {what}: give some of {', '.join(known)}, separated by commas")
    return value


def _one_of(value: str, known: tuple[str, ...], what: str) -> str:
    if value not in known:
        raise argparse.ArgumentTypeError(f"{value!r} is no {what}: give one of {', '.join(known)}")
    return value


def _number(value: str, low: float, high: float, wanted: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (low <= number <= high and math.isfinite(number)):  # NaN is never within bounds
        raise argparse.ArgumentTypeError(f"{value!r} can't be {wanted}")
    return number


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: ``--ascend-<name>`` on the command line, ``ascend_<name>`` in an ini file."""

    name: str
    help: str
    metavar: str | None = None  # None: a switch
    parse: Callable[[str], Any] = str
    const: str | None = None  # the value when the option is given without one

    @property
    def flag(self) -> str:
        return f"--ascend-{self.name}"

    @property
    def ini(self) -> str:
        return "ascend_" + self.field

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    def register(self, group: pytest.OptionGroup, parser: pytest.Parser) -> None:
        """Add the option and its ini twin; both default to ``None``, "not given"."""
        text = f"{self.help} (ini: {self.ini})"
        if self.metavar is None:
            group.addoption(self.flag, action="store_true", default=None, dest=self.ini, help=text)
            parser.addini(self.ini, f"Default of {self.flag}", type="bool", default=None)
            return
        if self.const is None:
            group.addoption(self.flag, metavar=self.metavar, dest=self.ini, type=self.parse, default=None, help=text)
        else:  # no type=: what follows may be a test's path, see give_back_paths; resolve() checks the value
            group.addoption(
                self.flag, metavar=self.metavar, dest=self.ini, nargs="?", const=self.const, default=None, help=text
            )
        parser.addini(self.ini, f"Default of {self.flag}", default=None)

    def resolve(self, config: pytest.Config) -> Any:
        """The value: command line, else ini, else ``None``. Raises ``pytest.UsageError`` for a bad one."""
        given, where = config.getoption(self.ini), f"argument {self.flag}"
        if given is None:
            given, where = config.getini(self.ini), f"ini option {self.ini}"
        if isinstance(given, str):
            if given == "" and where.startswith("ini"):  # `ascend_compare =` switches a default off
                return None
            try:
                return self.parse(given)
            except argparse.ArgumentTypeError as error:
                raise pytest.UsageError(f"{where}: {error}") from None
        return given


OPTIONS: tuple[Option, ...] = (
    Option(
        "compare",
        "Run what tests hand to the ascend_compare fixture on TARGET and compare it with a CPU reference. TARGET: "
        f"{', '.join(TARGETS)}. Without TARGET: auto",
        metavar="TARGET",
        parse=target,
        const="auto",
    ),
    Option(
        "criterion",
        "The rule that judges, where a test names none: auto (the default; exact for integers and data movement, a "
        "tolerance fit for the dtype otherwise), cosine (cosine similarity and largest absolute error), exact, "
        "close (torch.testing.assert_close's tolerances), or one of Ascend's acceptance standards: binary, absolute, "
        "ulp, thousandth, mixed, benchmark (level L1; or benchmark:L0, benchmark:L2)",
        metavar="NAME",
        parse=criterion,
    ),
    Option(
        "cosine",
        "Smallest cosine similarity that passes, from -1 to 1, e.g. 0.999",
        metavar="MIN",
        parse=cosine,
    ),
    Option(
        "max-abs",
        "Largest absolute error that passes, in the output's own unit, e.g. 1e-3",
        metavar="MAX",
        parse=max_abs,
    ),
    Option(
        "checkpoints",
        "Which layers of a model are compared, where a test names none: sample (the default: a few spread over the "
        "depth), all (every named layer) or none (only the outputs)",
        metavar="WHICH",
        parse=checkpoints,
    ),
    Option(
        "strict",
        "Fail also on what passes with a note: MODE_DIFF, AMPLIFIED, REFERENCE_SUSPECT, UNDEFINED, NOT_COMPARABLE and "
        f"MARGINAL; and fail a run given {COMPARE} in which nothing was compared",
    ),
    Option(
        "api",
        "Compare the APIs that PATTERN names, without a test file: names or globs separated by commas, such as "
        "torch.softmax or 'torch.nn.functional.*'; or a case by its id, such as 'torch.softmax[float16-transposed-7]'",
        metavar="PATTERN",
        parse=api,
    ),
    Option(
        "dtypes",
        "Dtypes that --ascend-api takes, separated by commas. Without it: float32,float16,bfloat16, and one other for "
        "an API that has none of these",
        metavar="LIST",
        parse=dtypes,
    ),
    Option(
        "layouts",
        f"Memory layouts of the arguments that --ascend-api takes, separated by commas, out of {', '.join(LAYOUTS)} "
        "(no dimension, no element). Without it: all, each where an argument can take it",
        metavar="LIST",
        parse=layouts,
    ),
    Option(
        "samples",
        "How many of torch's own samples --ascend-api takes for each API and dtype (3 without it), beside those made "
        "for sizes, special values and layouts",
        metavar="N",
        parse=samples,
    ),
    Option(
        "modes",
        "How --ascend-api runs each sample: eager (without it), compile (under torch.compile, held against "
        "the CPU and against the eager call), or eager,compile",
        metavar="LIST",
        parse=modes,
    ),
    Option(
        "live",
        "Take the cases of --ascend-api from the test samples of the installed torch, rather than from the list "
        "that ships with pytest-ascend",
    ),
    Option(
        "no-fold",
        "Run every call of a dump, also those with the same API, structure, shapes and dtypes as an earlier one",
    ),
    Option(
        "golden",
        "Compare the dumps among pytest's arguments with the recorded dump PATH, a dump.json or a folder of them, and "
        "don't run their calls again: pytest TARGET/dump.json --ascend-golden=GOLDEN/dump.json",
        metavar="PATH",
    ),
    Option(
        "mapping",
        "With --ascend-golden: a file that says which layers, APIs and arguments belong together where their names "
        "differ, in YAML or JSON",
        metavar="FILE",
    ),
    Option(
        "step",
        "Of a folder of dumps take these steps only: numbers and ranges, such as 0 or 0,2-4",
        metavar="LIST",
        parse=listed,
    ),
    Option(
        "rank",
        "Of a folder of dumps take these ranks only: numbers and ranges, such as 0 or 0-7",
        metavar="LIST",
        parse=listed,
    ),
    Option(
        "reproducers",
        "Write a Python file that fails alone for each failed call into DIR (default: .ascend/reproducers in the root "
        "folder; none: write none)",
        metavar="DIR",
    ),
    Option(
        "perf",
        "Time what tests give to ascend_perf, in PROCESSES fresh processes (5 when none is named), and compare it with "
        "the stored baseline",
        metavar="PROCESSES",
        parse=processes,
        const="5",
    ),
    Option("baseline", "The folder of stored baselines (default: baselines in the root folder)", metavar="DIR"),
    Option(
        "save",
        "Store this run in the baselines, as one session more: its timings, and the errors of its comparisons. What "
        "regressed is not stored",
    ),
    Option(
        "update",
        "Accept this run as the new baseline: it is stored, older sessions are forgotten, and no regression fails",
    ),
    Option(
        "fail",
        "What must be caught: a slowdown, as perf:3%% (which it is without this option), and errors that grew while "
        "within their tolerance, as error:2x; separated by commas",
        metavar="LIMITS",
        parse=fail,
    ),
    Option(
        "ab",
        "Time the tests of --ascend-perf against those of REV, a branch, tag or commit, in turns on this machine; "
        "no baseline is needed",
        metavar="REV",
    ),
    Option(
        "ab-python",
        "As --ascend-ab, but the other side is another interpreter: one with another wheel or other packages; with "
        "--ascend-ab both",
        metavar="PATH",
    ),
    Option(
        "perf-time",
        "The most seconds that --ascend-perf and --ascend-ab measure (1800 without it); what isn't settled then is "
        "inconclusive",
        metavar="SECONDS",
        parse=seconds,
    ),
    Option(
        "overflow",
        "Watch every operator on the target for results that leave the range of their dtype (Inf, NaN, saturation, "
        "underflow): around each test, and in what is compared. A test that overflows fails; one that the CPU's run "
        "has at the same place too is a note",
    ),
    Option(
        "sanitize",
        "Look for memory faults of the marked tests (those that use the device, or have the marker ascend or "
        "ascend_sanitize): on a card each runs in a process of its own under msSanitizer, on the emulated NPU memory "
        f"watches itself. TOOLS: some of {', '.join(SANITIZER_TOOLS)}, separated by commas. Without TOOLS: memcheck",
        metavar="TOOLS",
        parse=sanitizer_tools,
        const="memcheck",
    ),
    Option(
        "sanitize-args",
        "With --ascend-sanitize on a card: more options for mssanitizer, such as '--leak-check=yes'",
        metavar="OPTIONS",
        parse=shell_words,
    ),
    Option(
        "record",
        "Record what each test calls into a folder of its own below DIR, in msprobe's layout. `pytest DIR` then runs "
        "the recorded calls",
        metavar="DIR",
    ),
    Option(
        "record-level",
        "What --ascend-record records: L0 (calls of layers), L1 (calls of torch's API; without it) or mix (both)",
        metavar="LEVEL",
        parse=record_level,
    ),
    Option(
        "record-task",
        "What --ascend-record keeps of a tensor: tensor (its values; without it), statistics (largest, smallest, mean "
        "and norm) or md5 (statistics and a checksum)",
        metavar="TASK",
        parse=record_task,
    ),
    Option(
        "record-apis",
        "Which APIs --ascend-record records: names or globs separated by commas, such as 'Functional.*' or "
        "torch.softmax",
        metavar="PATTERN",
        parse=api,
    ),
    Option(
        "record-modules",
        "Which layers --ascend-record records, and the calls inside of them alone: names or globs separated by commas, "
        "such as 'encoder.layer.0.**', or sample (a few, evenly over the depth)",
        metavar="PATTERN",
        parse=api,
    ),
    Option(
        "record-ranks",
        "Which ranks of a distributed run record: numbers and ranges, such as 0 or 0-7. Without it: all",
        metavar="LIST",
        parse=listed,
    ),
    Option(
        "record-rounds",
        "Make each call of a model in a generation loop a step of its own, and record these: all, prefill, decode, or "
        "numbers and ranges such as 0,2-4",
        metavar="LIST",
        parse=rounds,
    ),
    Option(
        "record-tokens",
        "As --ascend-record-rounds, by the positions in the sequence that a round computes, such as 0-15,100",
        metavar="LIST",
        parse=listed,
    ),
    Option(
        "record-warmup",
        "With --ascend-record-rounds or --ascend-record-tokens: so many calls of the model at the beginning of a test "
        "are neither recorded nor counted",
        metavar="N",
        parse=count,
    ),
    Option(
        "record-format",
        "What --ascend-record writes tensors as: pt (which msprobe opens; without it) or safetensors",
        metavar="FORMAT",
        parse=record_format,
    ),
    Option(
        "record-every",
        "Keep one element in N of the tensors that --ascend-record records (those of more than 1024 elements)",
        metavar="N",
        parse=every,
    ),
    Option(
        "record-largest",
        "Of a tensor larger than SIZE, such as 64MB, --ascend-record keeps the statistics alone",
        metavar="SIZE",
        parse=size,
    ),
    Option(
        "record-total",
        "After SIZE of tensors in one step, such as 2GB, --ascend-record keeps the statistics alone",
        metavar="SIZE",
        parse=size,
    ),
    Option(
        "isolate",
        "Run tests in supervised processes of their own (as many as -n says, else one): a crash, a sick device, a hang "
        "or a memory hog costs one test, and the rest of the run goes on",
    ),
    Option(
        "timeout",
        "With --ascend-isolate: the seconds that one test may take, fixtures included, before its process is killed "
        "(600 without it); @pytest.mark.ascend(timeout=...) wins for its test",
        metavar="SECONDS",
        parse=seconds,
    ),
    Option(
        "isolate-memory",
        "With --ascend-isolate: the host memory that one process may take, such as 16GB, before it is killed (without "
        "it: its part of nine tenths of what is free when the run begins)",
        metavar="SIZE",
        parse=size,
    ),
    Option(
        "resume",
        "Go on with the --ascend-isolate run that was interrupted last: what it has judged is taken over and not run "
        "again. Without an interrupted run it begins a new one",
    ),
    Option(
        "shard",
        "Run one part of the tests only, PART/PARTS such as 2/8, for a run that is spread over machines; "
        "`pytest-ascend report merge` puts the parts' --ascend-json files together",
        metavar="PART",
        parse=shard,
    ),
    Option(
        "json",
        "Write all results to PATH as strict JSON when the run ends; `pytest-ascend schema` prints its schema",
        metavar="PATH",
    ),
    Option(
        "html",
        "Write all results to PATH as one page to look at when the run ends: it needs no network, and can be sent "
        "around; `pytest-ascend report html` makes it from a results file (needs pip install 'pytest-ascend[html]')",
        metavar="PATH",
        parse=page,
    ),
    Option(
        "github",
        "Whether the run's summary goes to $GITHUB_STEP_SUMMARY and its 10 worst failures become annotations: on, off "
        "or auto (the default: where GITHUB_ACTIONS is true)",
        metavar="WHEN",
        parse=when,
    ),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the command line and the ini file ask for; ``None`` where neither does.

    Attributes:
        compare: spec of the target (``"auto"``, ``"npu:1"``, ``"emulated:Ascend910A"``, ...); ``None``: the plugin is
            off and tests that ask for ``ascend_compare`` are skipped.
        criterion, cosine, max_abs: as in ``CheckOptions``.
        checkpoints: a key of :data:`CHECKPOINTS`.
        strict: noted verdicts fail too.
        api: names and globs of APIs to compare without a test file.
        dtypes, layouts, modes: words separated by commas, as :func:`words` reads them.
        samples: of torch's own, for each API and dtype.
        live: cases from the installed torch's samples.
        no_fold: run every recorded call, also those like an earlier one.
        golden: the dump that dumps are compared with; ``None``: their calls run again. mapping: names that differ.
        step, rank: which of the dumps in a folder, as :func:`numbers` reads it.
        reproducers: the folder for files that fail alone, or ``none``; ``None``: the usual one.
        perf: how many processes time each test; ``None``: none does, unless ``ab`` or ``ab_python`` is given.
        baseline: the folder of baselines; ``None``: the usual one.
        save, update: store this run; as the only one.
        fail: as :func:`limits` reads it.
        ab: a revision to compare with.
        ab_python: an interpreter to compare with.
        perf_time: seconds for all measuring.
        overflow: watch operators for overflows.
        sanitize: tools of msSanitizer, separated by commas; ``None``: no memory faults are looked for.
        sanitize_args: more options of it.
        record: the folder for what tests call; ``None``: nothing is recorded.
        record_level, record_task, record_format: words that ``pytest_ascend.record`` takes.
        record_apis, record_modules: names and globs, as :func:`patterns` reads them.
        record_ranks, record_rounds, record_tokens: as ``pytest_ascend.record`` takes them.
        record_warmup, record_every: whole numbers.
        record_largest, record_total: bytes.
        isolate: run tests in supervised processes.
        timeout: seconds for one test; ``None``: the usual.
        isolate_memory: bytes of host memory for one process; ``None``: its part of what is free.
        resume: go on with an interrupted run.
        shard: which part of the tests runs, as ``run.shard.parse`` reads it.
        json, html: where the results file and the page go.
        github: ``auto``, ``on`` or ``off``; ``None``: auto.
    """

    compare: str | None = None
    criterion: str | None = None
    cosine: float | None = None
    max_abs: float | None = None
    checkpoints: str | None = None
    strict: bool | None = None
    api: str | None = None
    dtypes: str | None = None
    layouts: str | None = None
    samples: int | None = None
    modes: str | None = None
    live: bool | None = None
    no_fold: bool | None = None
    golden: str | None = None
    mapping: str | None = None
    step: str | None = None
    rank: str | None = None
    reproducers: str | None = None
    perf: int | None = None
    baseline: str | None = None
    save: bool | None = None
    update: bool | None = None
    fail: str | None = None
    ab: str | None = None
    ab_python: str | None = None
    perf_time: float | None = None
    overflow: bool | None = None
    sanitize: str | None = None
    sanitize_args: str | None = None
    record: str | None = None
    record_level: str | None = None
    record_task: str | None = None
    record_apis: str | None = None
    record_modules: str | None = None
    record_ranks: str | None = None
    record_rounds: str | None = None
    record_tokens: str | None = None
    record_warmup: int | None = None
    record_format: str | None = None
    record_every: int | None = None
    record_largest: int | None = None
    record_total: int | None = None
    isolate: bool | None = None
    timeout: float | None = None
    isolate_memory: int | None = None
    resume: bool | None = None
    shard: str | None = None
    json: str | None = None
    html: str | None = None
    github: str | None = None

    @classmethod
    def from_config(cls, config: pytest.Config) -> Settings:
        """Resolve every option. Raises ``pytest.UsageError`` naming the option and its bad value."""
        return cls(**{option.field: option.resolve(config) for option in OPTIONS})

    @property
    def limits(self) -> Limits:
        """What must be caught."""
        return Limits() if self.fail is None else limits(self.fail)

    @property
    def isolates(self) -> bool:
        """Whether tests run in supervised processes."""
        return bool(self.isolate or self.resume)

    @property
    def times(self) -> bool:
        """Whether tests are timed."""
        return self.perf is not None or self.has_other_side

    @property
    def has_other_side(self) -> bool:
        """Whether tests are timed against another side on this machine, not against stored timings."""
        return self.ab is not None or self.ab_python is not None

    def check_options(self) -> dict[str, Any]:
        """The keywords of ``CheckOptions`` that are set here."""
        chosen: dict[str, Any] = {
            name: getattr(self, name) for name in ("criterion", "cosine", "max_abs") if getattr(self, name) is not None
        }
        if self.compare is not None:
            chosen["target"] = self.compare
        if self.checkpoints is not None:
            chosen["checkpoints"] = CHECKPOINTS[self.checkpoints]
        if self.overflow:
            chosen["overflow"] = True
        return chosen

    def record_options(self) -> dict[str, Any]:
        """The keywords of ``pytest_ascend.record`` that are set here."""
        names = ("level", "task", "apis", "modules", "ranks", "rounds", "tokens", "warmup", "format", "every")
        found = {name: getattr(self, f"record_{name}") for name in (*names, "largest", "total")}
        for name in ("apis", "modules"):
            if found[name] is not None:
                found[name] = "sample" if found[name] == "sample" else patterns(found[name])
        return {name: value for name, value in found.items() if value is not None}

    def perf_options(self) -> dict[str, Any]:
        """The keywords of ``PerfOptions`` that are set here."""
        return {} if self.compare is None else {"target": self.compare}


def resolved(config: pytest.Config, field: str) -> Any:
    """One setting, before there are all. Raises ``pytest.UsageError`` naming the option and its bad value."""
    return next(option for option in OPTIONS if option.field == field).resolve(config)


def add_options(parser: pytest.Parser) -> None:
    """Register every option and its ini twin."""
    group = parser.getgroup("ascend", "comparing with an Ascend NPU (pytest-ascend)")
    for option in OPTIONS:
        option.register(group, parser)
    # What processes that time or sanitize tests are started with. It isn't for people: no help and no ini twin.
    group.addoption(PERF_CHILD, metavar="PATH", type=results_file, default=None, help=argparse.SUPPRESS)
    group.addoption(SANITIZE_CHILD, metavar="PATH", default=None, help=argparse.SUPPRESS)
    group.addoption(PERF_PROFILE, action="store_true", default=False, help=argparse.SUPPRESS)


# What an option of the same meaning, or none at all, takes the place of in a command that runs one test again.
_ELSEWHERE = (
    *("compare", "api", "json", "reproducers", "perf", "save", "update", "ab", "ab_python", "perf_time"),
    *("isolate", "timeout", "isolate_memory", "resume", "shard", "html", "github"),
)


def repeat(config: pytest.Config) -> Iterator[str]:
    """The judging options given on the command line, as arguments that give them again."""
    for option in OPTIONS:
        given = config.getoption(option.ini)
        if given is None or option.field in _ELSEWHERE or option.field.startswith("record"):
            continue
        yield option.flag if option.metavar is None else f"{option.flag}={given}"


def give_back_paths(args: list[str]) -> bool:
    """Let ``--ascend-compare tests/test_x.py`` mean what it looks like: argparse would take the path for TARGET.

    The same for ``--ascend-perf tests``. Rewrites ``args`` in place and says whether it had to.
    """
    changed = False
    for i, arg in enumerate(args[:-1]):
        following = args[i + 1]
        option = next((one for one in OPTIONS if one.const is not None and arg == one.flag), None)
        if option is None or following.startswith("-"):
            continue
        if _is_tests(following, option.parse, "--pyargs" in args):
            args[i] = f"{option.flag}={option.const}"
            changed = True
    return changed


def _is_tests(arg: str, parse: Callable[[str], Any], pyargs: bool) -> bool:
    """Whether an argument names tests rather than a value of its option; a valid value is never a path."""
    try:
        parse(arg)
    except argparse.ArgumentTypeError:
        return "::" in arg or os.sep in arg or arg.endswith(".py") or os.path.exists(arg) or pyargs
    return False


_MEMORY_MARKERS = (
    "ascend_sanitize(*tools): the test runs under --ascend-sanitize, with these tools in place of the option's: "
    f"{', '.join(SANITIZER_TOOLS)}",
    "ascend_leaks(steps=200): the test's body is called so many times, and fails if the memory of device or host keeps "
    "growing",
)


def marker_help(config: pytest.Config) -> Iterator[str]:
    """The markers' lines in the ini settings; in full for ``pytest --markers``, which alone prints them."""
    if not config.getoption("markers"):
        yield "ascend(**options): options of every ascend_compare in the test"
        yield "ascend_perf(**options): options of every ascend_perf in the test"
        yield from _MEMORY_MARKERS
        return
    from pytest_ascend import marks

    yield from map(marks.marker_help, marks.MARKERS)
    yield from _MEMORY_MARKERS
