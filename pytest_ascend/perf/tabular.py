"""Reading a profiler's CSV files, which are untrusted input: by column names, line by line, one clear error.

A profile may come from another machine, another version or a disk that was full. Whatever is in it, reading gives rows
or a :class:`ProfileError` that names the file and the line; a cell that isn't a plain number is never counted as one.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import BinaryIO, NoReturn

#: 11.6 days in microseconds: no operator of a profile takes longer, so a larger time is a broken cell.
LONGEST_US = 1e12
#: calls of one operator; beyond this a float no longer counts exactly
MOST_CALLS = 1e15
#: bytes of a line, and characters of a cell
LONGEST_LINE = 1 << 20
#: different operators in one profile: a model has hundreds, so more than this means that the names are no names
MOST_OPERATORS = 200_000

EMPTY = frozenset({"", "N/A", "NA", "n/a", "na"})


class ProfileError(ValueError):
    """A profile can't be read; the message is one sentence: file, line, what is wrong and what to do."""


def refuse(path: str | os.PathLike[str], line: int | None, what: str, todo: str) -> NoReturn:
    """Raise the error."""
    where = f"{os.fspath(path)}, line {line}" if line is not None else os.fspath(path)
    raise ProfileError(f"{where}: {what}; {todo}")


def plain_number(text: str) -> float | None:
    """The number that a cell holds, or ``None``: `nan`, `inf`, `1_000` and digits of other scripts are none."""
    text = text.strip()
    if not text.isascii() or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def checked_time(path: str | os.PathLike[str], line: int | None, column: str, text: str) -> float:
    """A time in microseconds, or the error that says which cell isn't one."""
    number = plain_number(text)
    if number is None:
        refuse(path, line, f"{column} is {shown(text)}, not a number", "profile again, or correct the line")
    if number < 0:
        refuse(path, line, f"{column} is negative ({shown(text)})", "profile again, or correct the line")
    if number >= LONGEST_US:
        refuse(path, line, f"{column} is {shown(text)} us, more than 11 days", "profile again, or correct the line")
    return number


def checked_count(path: str | os.PathLike[str], line: int | None, column: str, text: str) -> int:
    """A number of calls, or the error that says which cell isn't one."""
    number = plain_number(text)
    if number is None or number < 0 or number != int(number) or number > MOST_CALLS:
        refuse(path, line, f"{column} is {shown(text)}, not a number of calls", "profile again, or correct the line")
    return int(number)


def shown(text: str) -> str:
    """A cell in an error message: quoted, and short whatever it holds."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


@lru_cache(maxsize=512)
def column_key(name: str) -> str:
    """How columns are matched: versions differ in case and blanks (`OP Type`, `Op Type`)."""
    return " ".join(name.split()).casefold()


@dataclass(frozen=True)
class Header:
    """The first line of a CSV file: where each column is."""

    path: str
    names: tuple[str, ...]
    index: dict[str, int]

    def has(self, *names: str) -> bool:
        """Whether all of these columns are there."""
        return all(column_key(name) in self.index for name in names)

    def label(self, place: int) -> str:
        """A column's name in an error message: as it stands where it is harmless, else quoted; short in any case."""
        name = self.names[place]
        return name if len(name) <= 60 and name.isprintable() else shown(name)

    def find(self, *names: str) -> int | None:
        """The place of the first of these columns that is there."""
        for name in names:
            place = self.index.get(column_key(name))
            if place is not None:
                return place
        return None

    def need(self, *names: str) -> int:
        """The place of the first of these columns that is there; without any, the error."""
        place = self.find(*names)
        if place is None:
            refuse(
                self.path, 1, f"there is no column {' or '.join(map(repr, names))}",
                "give the file as the profiler wrote it",
            )  # fmt: skip
        return place


def header_of(path: str | os.PathLike[str], line: bytes) -> Header:
    """The header in the first line of a file."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in line:
        refuse(path, 1, "this isn't UTF-8 text", "save it as UTF-8, or profile again")
    names = tuple(name.strip() for name in cells_of(path, 1, line.removeprefix(b"\xef\xbb\xbf")))
    index: dict[str, int] = {}
    for place, name in enumerate(names):
        if column_key(name) in index and name:
            refuse(path, 1, f"the column {shown(name)} is there twice", "give the file as the profiler wrote it")
        index[column_key(name)] = place
    if len(names) < 2:
        refuse(path, 1, "the first line isn't a header with columns", "give the file as the profiler wrote it")
    return Header(os.fspath(path), names, index)


def text_of(path: str | os.PathLike[str], line: int, raw: bytes) -> str:
    """A line as text."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        refuse(path, line, "this isn't UTF-8 text", "profile again, or correct the line")
    if "\x00" in text:
        refuse(path, line, "there is a NUL character", "profile again, or correct the line")
    return text


def cells_of(path: str | os.PathLike[str], line: int, raw: bytes) -> list[str]:
    """The cells of a row that is one line of the file."""
    text = text_of(path, line, raw).rstrip("\r\n")
    if "\r" in text:
        refuse(path, line, "there is a line break inside the row", "profile again, or correct the line")
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        refuse(path, line, f"the quotes don't match ({error})", "profile again, or correct the line")
    return rows[0] if rows else []


def lines_of(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, each bounded."""
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1):
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            refuse(path, number, "the line is longer than 1 MiB", "give the file as the profiler wrote it")
        yield line


def blocks_of(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a file from its second on, without line ends, many at a time, which is faster than one by one."""
    rest, number = b"", 1
    while block := file.read(LONGEST_LINE):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        number += len(lines)
        if len(rest) > LONGEST_LINE:
            refuse(path, number + 1, "the line is longer than 1 MiB", "give the file as the profiler wrote it")
        yield lines
    if rest:
        yield [rest]


def ends_well(file: BinaryIO) -> bool:
    """Whether the last line of a file has its line end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    return file.read(1) in (b"\n", b"")


@dataclass(frozen=True)
class Cells:
    """One row of a CSV file."""

    header: Header
    line: int
    values: Sequence[str]

    def text(self, *names: str) -> str:
        """The cell of the first of these columns that is there; `""` without one and for `N/A` and `NA`."""
        place = self.header.find(*names)
        return "" if place is None else told(self.values[place])

    def time(self, *names: str) -> float:
        """A time in microseconds that has to be there."""
        place = self.header.need(*names)
        return checked_time(self.header.path, self.line, self.header.label(place), self.values[place])

    def optional_time(self, *names: str) -> float | None:
        """A time in microseconds, or ``None`` where the column is missing or says `N/A`."""
        return self.time(*names) if self.text(*names) else None

    def count(self, *names: str) -> int:
        """A number of calls that has to be there."""
        place = self.header.need(*names)
        return checked_count(self.header.path, self.line, self.header.label(place), self.values[place])


def told(text: str) -> str:
    """What a cell says: without blanks, tabs and the profilers' ways to say nothing."""
    text = text.strip()
    return "" if text in EMPTY else text


class _Counted:
    """Text lines for the csv module, each bounded and decoded with its own line number in errors."""

    def __init__(self, path: str, lines: Iterator[bytes], first: int) -> None:
        self.path, self.lines, self.at = path, lines, first
        self.ended = True

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> str:
        raw = next(self.lines)
        self.at += 1
        self.ended = raw.endswith(b"\n")
        return text_of(self.path, self.at, raw)


def read_rows(path: str | os.PathLike[str], *, multiline: Sequence[str] = (), notes: list[str]) -> Iterator[Cells]:
    """The rows of a CSV file, after its header.

    Args:
        path: the file.
        multiline: columns whose cells may hold line breaks; one elsewhere means that a quote was lost, and that the
            next row with its times would vanish in a cell.
        notes: what a reader of the table should know is added here.

    Raises:
        ProfileError: at the first line that can't be read.
        OSError: the file can't be opened.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        lines = lines_of(path, file)
        header = header_of(path, next(lines, b""))
        allowed = {header.index[column_key(name)] for name in multiline if column_key(name) in header.index}
        source = _Counted(path, lines, 1)
        rows = csv.reader(source, strict=True)
        while True:
            start = source.at + 1
            try:
                values = next(rows)
            except StopIteration:
                break
            except csv.Error as error:
                refuse(path, start, f"the quotes don't match ({error})", "profile again, or correct the line")
            if not values:
                continue
            check_width(path, start, len(values), len(header.names))
            for place, value in enumerate(values):
                broken = "\n" in value or "\r" in value
                if broken and (place not in allowed or _END_OF_ROW.search(value)):
                    refuse(
                        path, start, f"there is a line break inside {header.label(place)}",
                        "profile again, or correct the line",
                    )  # fmt: skip
            yield Cells(header, start, values)
        if not source.ended:
            notes.append(CUT_OFF)


# What the end of a row looks like; a call stack's lines end in names.
_END_OF_ROW = re.compile(r",[-+.\d eE]+,[-+.\d eE]+\s*$", re.M)

#: The last number of a file that was cut off may be short of digits, and nothing else shows it.
CUT_OFF = "the file's last line has no line end: if the profiler was stopped, its last number may be cut off"


def check_width(path: str | os.PathLike[str], line: int, found: int, wanted: int) -> None:
    """Every row has as many cells as the header."""
    if found != wanted:
        what = f"there are {found} cells and the header has {wanted} columns"
        refuse(path, line, what, "the file may be cut off: profile again, or remove the line")
