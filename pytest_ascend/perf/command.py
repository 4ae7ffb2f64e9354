"""``pytest-ascend perf``: a profile as a table, worst first, with what to do about it; and two profiles compared."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator

from . import profiles
from .advice import classify
from .operators import OperatorDiff, OperatorRow, OperatorTable

#: width of the column with the operator's name
_NAME = 44


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``pytest-ascend perf``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    read = actions.add_parser(
        "read",
        help="print a profile as a table: which operators take the time, and what to do about it",
        description="Reads what torch_npu.profiler, msprof, msOpProf and torch.profiler write: a file or a folder.",
    )
    read.add_argument(
        "path", help="a file (kernel_details.csv, op_summary_*.csv, *.db, trace_view.json, ...) or a folder"
    )
    read.add_argument("--by-type", action="store_true", help="one line per operator type, without its shapes")
    _common(read)
    diff = actions.add_parser("diff", help="which operators take longer in the second of two profiles, worst first")
    diff.add_argument("before", help="the profile to compare with")
    diff.add_argument("after", help="the newer profile")
    _common(diff)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top", type=_positive, default=20, metavar="N", help="how many operators to print; default 20"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, times in microseconds")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of operators")
    return number


def run(arguments: argparse.Namespace) -> str:
    """What the command prints.

    Raises:
        ValueError: a profile can't be read, or the two can't be compared; one sentence.
        OSError: a file can't be opened.
    """
    if arguments.action == "diff":
        before, after = profiles.open(arguments.before), profiles.open(arguments.after)
        diff = before.diff(after)
        return _json(_diff_dict(diff)) if arguments.json else "\n".join(diff_lines(diff, arguments.top))
    table = profiles.open(arguments.path)
    if arguments.json:
        return _json(_table_dict(table))
    return "\n".join(table_lines(table, arguments.top, by_type=arguments.by_type))


def _json(content: object) -> str:
    return json.dumps(content, indent=2, allow_nan=False)


def _table_dict(table: OperatorTable) -> dict[str, object]:
    plain = table.to_dict()
    return {
        **plain,
        "rows": [
            {**row, "class": str(classify(known))} for row, known in zip(plain["rows"], table.rows, strict=True)
        ],
        "classes": [
            {"class": str(share.operators), "calls": share.calls, "total_us": share.total_us, "wait_us": share.wait_us,
             "ratio": share.ratio}
            for share in table.classes()
        ],
        "advice": [
            {"about": str(one.about), "sentence": one.sentence, "total_us": one.total_us, "ratio": one.ratio}
            for one in table.advice()
        ],
    }  # fmt: skip


def _diff_dict(diff: OperatorDiff) -> dict[str, object]:
    return {
        "unit": "us per step",
        "before_us": diff.before_us,
        "after_us": diff.after_us,
        "unusable": list(diff.unusable),
        "rows": [
            {"name": row.name, "kind": row.kind, "core": row.core, "shapes": row.shapes, "before_us": row.before_us,
             "after_us": row.after_us, "grew_us": row.grew_us, "before_calls": row.before_calls,
             "after_calls": row.after_calls, "why": row.why}
            for row in diff.rows
        ],
    }  # fmt: skip


_WHAT = {"kernel": "operators on the device", "operator": "operators", "api": "calls of the runtime",
         "step": "parts of a step", "instruction": "simulated instructions"}  # fmt: skip


def table_lines(table: OperatorTable, top: int = 20, *, by_type: bool = False) -> Iterator[str]:
    """The table for a terminal: summary, classes, the operators that take most, advice."""
    rows = table.by_kind() if by_type else table.rows
    steps = f" in {table.steps} steps" if table.steps > 1 else ""
    yield f"{table.source}"
    calls = "1 call" if table.calls == 1 else f"{table.calls:,} calls"
    yield f"{_WHAT[table.level]}: {len(rows)}, {calls}, {_time(table.total_us)}{steps}"
    for reason in table.unusable:
        yield f"NO EVIDENCE: {reason}"
    for note in table.notes:
        yield f"note: {note}"
    if table.level in ("kernel", "operator"):
        yield ""
        shares = (f"{share.operators} {share.ratio:.0%}" for share in table.classes())
        yield "time: " + ", ".join(shares)
    yield ""
    columns = _columns(rows)
    yield _line("operator", "time", "%", "calls", "per call", *(name for name, _ in columns), "class", "shapes")
    for row in rows[:top]:
        extra = (_time(value) if (value := getattr(row, name)) is not None else "" for _, name in columns)
        kind = str(classify(row)) if table.level in ("kernel", "operator") else row.kind
        per_call = _time(row.total_us / row.calls) if row.calls else ""
        yield _line(_printable(row.name), _time(row.total_us), f"{row.ratio:.1%}", f"{row.calls:,}", per_call, *extra,
                    kind, _cut(_printable(row.shapes), 40))  # fmt: skip
    if len(rows) > top:
        rest = rows[top:]
        time, share = sum(row.total_us for row in rest), sum(row.ratio for row in rest)
        yield _line(f"... {len(rest)} more", _time(time), f"{share:.1%}", f"{sum(row.calls for row in rest):,}", "")
    if said := table.advice():
        yield ""
        for one in said:
            yield f"- {one.sentence} ({one.ratio:.0%})"


def _columns(rows: Iterable[OperatorRow]) -> list[tuple[str, str]]:
    """Which further times are worth a column: those that differ from the total."""
    rows = list(rows)
    found = []
    for title, name in (("device", "device_us"), ("host", "host_us"), ("waited", "wait_us")):
        values = [(getattr(row, name), row.total_us) for row in rows]
        if any(value not in (None, 0.0, total) for value, total in values):
            found.append((title, name))
    return found


def diff_lines(diff: OperatorDiff, top: int = 20) -> Iterator[str]:
    """The comparison for a terminal: the whole, then the operators that grew."""
    grown = diff.grown()
    change = f", {diff.after_us / diff.before_us - 1:+.1%}" if diff.before_us else ""
    yield f"per step: {_time(diff.before_us)} -> {_time(diff.after_us)}{change}"
    for reason in diff.unusable:
        yield f"NO EVIDENCE: {reason}"
    if not grown:
        yield "no operator takes longer"
        return
    yield ""
    yield f"{'operator':<{_NAME}} {'before':>10} {'after':>10} {'grew':>10} {'calls':>13}  why, shapes"
    for row in grown[:top]:
        calls = f"{row.before_calls:g} -> {row.after_calls:g}"
        yield (
            f"{_cut(_printable(row.name), _NAME):<{_NAME}} {_time(row.before_us):>10} {_time(row.after_us):>10} "
            f"{_time(row.grew_us):>10} {calls:>13}  {row.why} {_cut(_printable(row.shapes), 40)}".rstrip()
        )
    if len(grown) > top:
        yield f"... {len(grown) - top} more"


def _line(name: str, *cells: str) -> str:
    numbers, texts = cells[: len(cells) - 2] if len(cells) > 4 else cells, cells[-2:] if len(cells) > 4 else ()
    return " ".join(
        [f"{_cut(name, _NAME):<{_NAME}}", *(f"{cell:>10}" for cell in numbers), "", *(f"{text:<17}" for text in texts)]
    ).rstrip()


def _cut(text: str, width: int) -> str:
    """A text of at most so many characters; the end tells operators apart, so the middle goes."""
    if len(text) <= width:
        return text
    half = (width - 3) // 2
    return f"{text[: width - 3 - half]}...{text[-half:]}"


def _printable(text: str) -> str:
    """A name from an untrusted file, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _time(us: float) -> str:
    """Microseconds for people: three or more digits, never more than they are worth."""
    for limit, unit, scale in ((1e3, "us", 1.0), (1e6, "ms", 1e3)):
        if abs(us) < limit:
            return f"{us / scale:.3g} {unit}" if abs(us / scale) < 100 else f"{us / scale:.0f} {unit}"
    return f"{us / 1e6:,.2f} s"
