"""Mutate profiles many times, read each, and report what went wrong: see test_fuzz_profiles.py.

    python fuzz_worker.py FOLDER COUNT SEED

What a mutated CSV file holds is worked out again here without the csv module, cell by cell: a reader that gives rows
has to give these sums, unless the mutation made a line that splits in more than one way.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_ascend.perf import profiles
from pytest_ascend.perf.tabular import ProfileError

FOLDER, COUNT, SEED = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
RNG = random.Random(SEED)
LIMIT = 10  # seconds that one mutation may take on a busy machine

NUMBERS = ["nan", "inf", "-inf", "1e999", "-1", "-0.0", "1e308", "1_0", "0x1F", "1e-320", "", " ", "N/A", "NA", "٣",
           "9" * 400, "1e11", "+5", "5.", ".5", "1,5", "1;5", "00012", "1 2", "True", "None"]  # fmt: skip
PIECES = [
    *(
        b"",
        b'"',
        b'""',
        b'"""',
        b",",
        b",,",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b";",
        b"N/A",
    ),
    *(b"\\", b"x" * 70_000, b"\x1b[2J", b"=cmd()", b"../../etc/passwd", b"\xe2\x80\xae", b"1" * 5000),
]


def mutated(raw: bytes, kinds: Sequence[Callable[[bytes], bytes]]) -> bytes:
    """The file with one to three things changed."""
    for _ in range(RNG.choice((1, 1, 1, 2, 3))):
        raw = RNG.choice(kinds)(raw or b"\n")
    return raw


def cell(raw: bytes) -> bytes:
    """Another value in one cell."""
    lines = raw.split(b"\n")
    at = RNG.randrange(len(lines))
    cells = lines[at].split(b",")
    cells[RNG.randrange(len(cells))] = RNG.choice(NUMBERS).encode()
    lines[at] = b",".join(cells)
    return b"\n".join(lines)


def digit(raw: bytes) -> bytes:
    """One byte replaced."""
    at = RNG.randrange(len(raw))
    return raw[:at] + bytes([RNG.randrange(256)]) + raw[at + 1 :]


def insertion(raw: bytes) -> bytes:
    """Something put somewhere."""
    at = RNG.randrange(len(raw) + 1)
    return raw[:at] + RNG.choice(PIECES) + raw[at:]


def deletion(raw: bytes) -> bytes:
    """Some bytes gone."""
    at = RNG.randrange(len(raw))
    return raw[:at] + raw[at + RNG.choice((1, 1, 2, 30, 300)) :]


def cut(raw: bytes) -> bytes:
    """The end is missing."""
    return raw[: RNG.randrange(len(raw))]


def quotes(raw: bytes) -> bytes:
    """One quote less."""
    places = [i for i, byte in enumerate(raw) if byte == 34]
    if not places:
        return insertion(raw)
    at = RNG.choice(places)
    return raw[:at] + raw[at + 1 :]


def line(raw: bytes) -> bytes:
    """A line repeated, swapped with another, or gone."""
    lines = raw.split(b"\n")
    one, other = RNG.randrange(len(lines)), RNG.randrange(len(lines))
    what = RNG.randrange(3)
    if what == 0:
        lines.insert(one, lines[other])
    elif what == 1:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        del lines[one]
    return b"\n".join(lines)


def column(raw: bytes) -> bytes:
    """A column gone from the header, or from all lines, or renamed."""
    lines = raw.split(b"\n")
    at = RNG.randrange(lines[0].count(b",") + 1)
    what = RNG.randrange(3)
    for i, text in enumerate(lines if what == 0 else lines[:1]):
        cells = text.split(b",")
        if at < len(cells):
            if what == 2:
                cells[at] = cells[RNG.randrange(len(cells))]
            else:
                del cells[at]
        lines[i] = b",".join(cells)
    return b"\n".join(lines)


#: what is done to JSON and databases
BYTES = (digit, digit, digit, insertion, deletion, cut)
KINDS = (cell, cell, cell, digit, digit, insertion, insertion, deletion, cut, quotes, quotes, line, column)

# What has to come out of each kind of file: the column whose sum is the table's total.
TOTALS = {"Duration(us)", "Task Duration(us)", "Total Time(us)", "Time(us)", "running_time(us)"}


def total_of(raw: bytes) -> float | None:
    """The sum of the file's times, found by splitting at commas outside of quotes; ``None`` where that isn't plain."""
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\r\n", "\n")
    if "\r" in text:
        return None
    lines = text.split("\n")
    names = [" ".join(name.split()) for name in plain(lines[0])]
    places = [i for i, name in enumerate(names) if name in TOTALS]
    if len(places) != 1:
        return None
    total = 0.0
    for one in lines[1:]:
        if one:
            cells = plain(one)
            if len(cells) != len(names):
                return None
            try:
                total += float(cells[places[0]])
            except ValueError:
                return None
    return total


def plain(text: str) -> list[str]:
    """The cells of a line, a quote opening and closing wherever it stands."""
    cells, inside = [""], False
    for letter in text:
        if letter == '"':
            inside = not inside
        elif letter == "," and not inside:
            cells.append("")
        else:
            cells[-1] += letter
    return cells


def main() -> None:
    """Read ``COUNT`` mutated CSV files, and databases and JSON besides, and print the report."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    warnings.simplefilter("error")

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    readable = [path for path in sorted(FOLDER.rglob("*.csv")) if opens(path)]
    others = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in (".db", ".json") and opens(path)]
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        for i in range(COUNT * 8 // 7):
            csv = i % 8 != 7
            source = RNG.choice(readable if csv else others)
            original = source.read_bytes()
            raw = mutated(original, KINDS if csv else BYTES)
            path = Path(place, source.name)
            path.write_bytes(raw)
            start = time.monotonic()
            signal.alarm(LIMIT)
            try:
                table = profiles.open(path)
            except ProfileError as error:
                seen["refused"] += 1
                text = str(error)
                if not text.startswith(f"{path}") or "\n" in text or "\x1b" in text or len(text) > 700:
                    wrong.append(f"{i} {source.name}: not one clear sentence: {text[:300]!r}")
                elif csv and f"{path}, line " not in text and "header and no operator" not in text:
                    wrong.append(f"{i} {source.name}: no line: {text[:300]!r}")
            except BaseException as error:
                wrong.append(f"{i} {source.name}: {type(error).__name__}: {error}"[:300])
                shutil.copy(path, Path(tempfile.gettempdir(), f"fuzz-{i}-{source.name}"))
            else:
                seen["read"] += 1
                expected = total_of(raw) if csv else None
                if expected is not None:
                    seen["summed"] += 1
                    if abs(table.total_us - expected) > 1e-9 * max(expected, 1.0):
                        wrong.append(f"{i} {source.name}: total {table.total_us!r}, not {expected!r}")
                        shutil.copy(path, Path(tempfile.gettempdir(), f"fuzz-{i}-{source.name}"))
                for row in table.rows:
                    if not 0 <= row.total_us < 1e15 or row.calls < 0 or row.total_us != row.total_us:
                        wrong.append(f"{i} {source.name}: a row of {row.total_us!r} us, {row.calls} calls")
            finally:
                signal.alarm(0)
            slowest = max(slowest, time.monotonic() - start)
    print(
        json.dumps(
            {
                "mutations": COUNT,
                "files": len(readable),
                "others": len(others),
                **seen,
                "wrong": wrong[:20],
                "slowest": slowest,
            }
        )
    )


def opens(path: Path) -> bool:
    """Whether the unchanged file is a profile of its own."""
    try:
        profiles.open(path)
    except ProfileError:
        return False
    return True


if __name__ == "__main__":
    main()
