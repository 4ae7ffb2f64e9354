"""``--ascend-live``: cases from the samples of the installed torch rather than from the list that ships."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import torch

from pytest_ascend.cases.catalogue.caselist import CaseList

__all__ = ["case_list"]


def case_list(patterns: Sequence[str]) -> CaseList:
    """The entries of the operators that the patterns may mean, made now; some seconds for all of torch.

    Raises:
        ValueError: this torch comes without its test samples.
    """

    def wanted(name: str) -> bool:
        names = (f"torch.{name}", f"torch.Tensor.{name}", f"torch.Tensor.{name}_")
        return any(fnmatch.fnmatchcase(one, pattern) for one in names for pattern in patterns)

    try:
        from pytest_ascend.cases.catalogue import record
        from pytest_ascend.cases.catalogue.families import widen

        entries = {(entry.api, entry.variant): entry for entry in record.entries(wanted)}
    except ImportError as error:
        raise ValueError(f"--ascend-live: torch {torch.__version__} has no samples to offer ({error})") from None
    made = tuple(widen(entry, values=entry.kind != "binary") for _, entry in sorted(entries.items()))
    return CaseList(torch.__version__, made, dict(record.left_out))
