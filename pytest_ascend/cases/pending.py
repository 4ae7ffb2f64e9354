"""Cases that haven't been built yet: what a dump or a catalogue lists, for pytest to choose from before anything runs.

This module imports no torch: listing ten thousand cases must cost nothing but their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ascend.cases.case import Case

__all__ = ["Absent", "CaseUnavailable", "Pending"]


class CaseUnavailable(Exception):
    """A listed case can't be built. The message is one sentence: what is wrong, where, what to do.

    Args:
        message: the sentence.
        unsupported: the case is in order and this installation can't run it; else the case itself is broken.
    """

    def __init__(self, message: str, unsupported: bool = False) -> None:
        super().__init__(message)
        self.unsupported = unsupported


@dataclass(frozen=True)
class Pending:
    """One case that hasn't been built.

    Attributes:
        id: what pytest calls it, readable and stable: ``torch.softmax[float16-transposed-7]``. Ids that occur twice in
            one source get a number.
        api: the API it calls: ``torch.softmax``.
        dtype: dtype of the case, or ``""`` where it has none.
        build: makes the case and the keywords of ``CheckOptions`` that it wants changed. Called only when the item
            runs. Raises :class:`CaseUnavailable`.
        origin: file and place it comes from, for error texts: ``step0/rank1/dump.json: Functional.softmax.3.forward``.
        count: how many recorded calls it stands for.
        not_runnable: why it can't run here, as a sentence; it is then reported as UNSUPPORTED, never dropped.
        detail: plain values for the results file.
        keywords: more words that ``pytest -k`` finds it by, beside the parts of its id.
    """

    id: str
    api: str
    dtype: str
    build: Callable[[], tuple[Case, dict[str, Any]]]
    origin: str
    count: int = 1
    not_runnable: str = ""
    detail: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True)
class Absent:
    """Something that a source knows and has no case for: it is counted as not exercised.

    Attributes:
        api: what it is called.
        reason: why there is no case, as a sentence.
    """

    api: str
    reason: str
