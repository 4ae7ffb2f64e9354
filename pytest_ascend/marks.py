"""The ``ascend`` and ``ascend_perf`` markers: help, options, and whose options win. Imported where there is one."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_ascend.options import CheckOptions
from pytest_ascend.perf.options import PerfOptions

_OPTIONS: dict[str, type[CheckOptions] | type[PerfOptions]] = {"ascend": CheckOptions, "ascend_perf": PerfOptions}
MARKERS = tuple(_OPTIONS)
"""Names of the plugin's markers; each holds the options of the fixture that does what it is about."""

TIMEOUT = "timeout"
"""A keyword of the marker ``ascend`` that isn't about comparing: the seconds that the test may take."""

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


def marker_options(item: pytest.Item, marker_name: str = "ascend") -> dict[str, Any]:
    """The options in an item's markers, the closest one winning. Bad ones fail the item, in one sentence.

    Args:
        item: the test.
        marker_name: one of :data:`MARKERS`.
    """
    merged = _merged(item, marker_name)
    if marker_name == "ascend" and TIMEOUT in merged:
        _seconds(merged.pop(TIMEOUT))
    options, title = _OPTIONS[marker_name], f"@pytest.mark.{marker_name}"
    try:
        if merged:
            options(**merged)
    except (TypeError, ValueError) as error:
        pytest.fail(f"{title}: {error}", pytrace=False)
    return merged


def timeout_of(item: pytest.Item) -> float | None:
    """The seconds that an item's marker gives it; None where it says nothing, or nothing sensible."""
    for marker in item.iter_markers("ascend"):
        value = marker.kwargs.get(TIMEOUT)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
    return None


def _seconds(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        pytest.fail(f"@pytest.mark.ascend: timeout={value!r} is no time: give seconds, such as 60", pytrace=False)


def _merged(item: pytest.Item, marker_name: str) -> dict[str, Any]:
    options, title = _OPTIONS[marker_name], f"@pytest.mark.{marker_name}"
    names = (*options.names(), *([TIMEOUT] if marker_name == "ascend" else []))
    known = f"it knows {', '.join(names)}"
    merged: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(marker_name))):
        if marker.args:
            pytest.fail(f"{title} takes keywords only, not {marker.args[0]!r}: {known}", pytrace=False)
        for name in marker.kwargs:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                pytest.fail(f"{title} has no keyword {name!r}{hint}: {known}", pytrace=False)
        merged = merge(merged, marker.kwargs)
    return merged


def marker_help(marker_name: str = "ascend") -> str:
    """The line for ``pytest --markers``, out of the fields of the options so that it can't drift."""
    options, fixture = _OPTIONS[marker_name], {"ascend": "ascend_compare"}.get(marker_name, marker_name)
    fields = ", ".join(f"{field.name}={field.default!r}" for field in dataclasses.fields(options))
    fields += f", {TIMEOUT}=None" if marker_name == "ascend" else ""
    return (
        f"{marker_name}({fields}): options of every {fixture} in the test; they win over the command line and yield to "
        f"{fixture}.using(...)."
    )
