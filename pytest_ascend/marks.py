"""The ``ascend`` marker: its help, its options, and whose options win. Imported only where there is a marker."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_ascend.options import CheckOptions

# The criterion that a threshold belongs to.
_CRITERION_OF = {"cosine": "cosine", "max_abs": "cosine", "rtol": "close", "atol": "close"}


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Options with those of ``upper`` winning: its criterion, named or implied by a threshold, ousts the other's."""
    named = upper.get("criterion", "auto")
    wanted = {named} if named != "auto" else {_CRITERION_OF[name] for name in upper if name in _CRITERION_OF}
    ousted = {name for name, criterion in _CRITERION_OF.items() if criterion not in wanted} if wanted else set()
    if wanted and lower.get("criterion") not in wanted:
        ousted.add("criterion")
    return {**{name: value for name, value in lower.items() if name not in ousted}, **upper}


def marker_options(item: pytest.Item) -> dict[str, Any]:
    """The options in an item's ``ascend`` markers, the closest one winning. Bad ones fail the item, in one sentence."""
    merged: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("ascend"))):
        if marker.args:
            pytest.fail(f"@pytest.mark.ascend takes keywords only, not {marker.args[0]!r}: {_known()}", pytrace=False)
        for name in marker.kwargs:
            if name not in CheckOptions.names():
                near = difflib.get_close_matches(name, CheckOptions.names(), n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                pytest.fail(f"@pytest.mark.ascend has no keyword {name!r}{hint}: {_known()}", pytrace=False)
        merged = merge(merged, marker.kwargs)
    try:
        if merged:
            CheckOptions(**merged)
    except (TypeError, ValueError) as error:
        pytest.fail(f"@pytest.mark.ascend: {error}", pytrace=False)
    return merged


def _known() -> str:
    return f"it knows {', '.join(CheckOptions.names())}"


def marker_help() -> str:
    """The line for ``pytest --markers``, out of the fields of ``CheckOptions`` so that it can't drift."""
    fields = ", ".join(f"{field.name}={field.default!r}" for field in dataclasses.fields(CheckOptions))
    return (
        f"ascend({fields}): options of every ascend_compare in the test; they win over the command line and yield to "
        "ascend_compare.using(...)."
    )
