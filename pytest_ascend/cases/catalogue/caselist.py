"""The case list that ships with the package, and choosing from it. Torch-free at import."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ascend.cases.catalogue.entries import Entry

__all__ = ["VERSION", "CaseList", "load", "save"]

#: of the file's form; a list of another version isn't read
VERSION = 1
SHIPPED = Path(__file__).parent.parent / "data" / "torch_cases.json.gz"


@dataclass(frozen=True)
class CaseList:
    """Entries, the torch they were made with, and what is known to have none.

    Attributes:
        torch: version of torch that the samples come from.
        entries: in the order of their names.
        left_out: operators of that torch without an entry, and why.
    """

    torch: str
    entries: tuple[Entry, ...]
    left_out: dict[str, str]


@functools.lru_cache(maxsize=1)
def load(path: Path = SHIPPED) -> CaseList:
    """Read a case list.

    Raises:
        ValueError: it is no case list, or one of another version.
        OSError: it can't be read.
    """
    try:
        document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        version = document["version"]
    except (gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no case list of pytest-ascend") from None
    if version != VERSION:
        raise ValueError(f"{path} is a case list of version {version}, and this pytest-ascend reads {VERSION}")
    entries = tuple(Entry.from_json(row) for row in document["entries"])
    return CaseList(document["torch"], entries, document["left_out"])


def save(path: Path, torch_version: str, entries: Iterable[Entry], left_out: dict[str, str]) -> int:
    """Write a case list, an entry a line, the same bytes for the same entries; returns its size in bytes."""
    rows = sorted(entries, key=lambda entry: (entry.api, entry.variant))
    head = json.dumps({"version": VERSION, "torch": torch_version, "left_out": dict(sorted(left_out.items()))})
    lines = ",\n".join(json.dumps(row.to_json(), separators=(",", ":")) for row in rows)
    text = f'{head[:-1]}, "entries": [\n{lines}\n]}}\n'
    json.loads(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = gzip.compress(text.encode(), 9, mtime=0)
    path.write_bytes(content)
    return len(content)
