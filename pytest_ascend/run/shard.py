"""One run's tests spread over several machines: ``--ascend-shard=2/8``.

Each machine collects everything and keeps its part. Tests are dealt out in the order of a checksum of their node ids:
neighbours (one API's dtypes, the tests of one slow file) come to different machines, parts differ by one test at most,
and every machine comes to the same answer by itself, as long as all collect the same. A digest of what was collected
goes into the results, so that merging them can tell.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Shard", "digest", "mine", "parse"]


class Shard(NamedTuple):
    """Part ``part`` (from 1) of ``parts``."""

    part: int
    parts: int

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}"


def parse(value: str) -> Shard:
    """``2/8``. Raises ``ValueError`` naming the value."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{value!r} is no part of a run: give PART/PARTS, such as 2/8 for the second of eight")
    return Shard(int(match[1]), int(match[2]))


def mine(nodeids: Sequence[str], shard: Shard) -> list[bool]:
    """Which of the tests belong to a part, in the order given."""
    order = sorted(range(len(nodeids)), key=lambda i: (zlib.crc32(nodeids[i].encode()), nodeids[i]))
    kept = [False] * len(nodeids)
    for place in order[shard.part - 1 :: shard.parts]:
        kept[place] = True
    return kept


def digest(nodeids: Iterable[str]) -> str:
    """A checksum of a set of node ids, whatever their order."""
    return hashlib.sha256("\0".join(sorted(nodeids)).encode()).hexdigest()[:16]
