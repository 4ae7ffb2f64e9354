"""Which versions of torch, torch_npu and CANN belong together."""

from __future__ import annotations

import re

from pytest_ascend.health.finding import Level

__all__ = ["MADE_WITH", "cann_fits", "torch_fits"]

MADE_WITH: dict[str, str] = {
    "2.4.0": "8.0.RC3",
    "2.4.0.post2": "8.0.0",
    "2.4.0.post4": "8.1.RC1",
    "2.5.1": "8.1.RC1",
    "2.5.1.post1": "8.2.RC1",
    "2.6.0": "8.2.RC1",
    "2.6.0.post3": "8.3.RC1",
    "2.6.0.post5": "8.5.0",
    "2.7.1": "8.3.RC1",
    "2.7.1.post2": "8.5.0",
    "2.7.1.post4": "9.0.0",
    "2.7.1.post5": "9.1.0",
    "2.8.0": "8.3.RC1",
    "2.8.0.post2": "8.5.0",
    "2.8.0.post4": "9.0.0",
    "2.9.0": "8.5.0",
    "2.9.0.post2": "9.0.0",
    "2.9.0.post3": "9.1.0",
    "2.10.0": "9.1.0",
    "2.11.0": "9.1.0",
    "2.12.0": "9.1.0",
}
"""Releases of torch_npu, and the CANN each goes with: the table in COMPATIBILITY.md of the repository Ascend/pytorch,
without what is older than torch 2.4. A release that isn't here is held against torch alone."""


def torch_fits(torch: str, torch_npu: str) -> tuple[Level, str]:
    """Whether a torch_npu is made for this torch, and one sentence where it isn't.

    The first three numbers of a torch_npu are those of the torch that it is built against. A torch whose first two are
    others has another binary interface; another third one mostly works.
    """
    have, wanted = _numbers(torch), _numbers(torch_npu)
    if not have or not wanted or have[:3] == wanted[:3]:
        return "ok", ""
    release = ".".join(map(str, wanted[:3]))
    sentence = f"torch_npu {torch_npu} is made for torch {release}, and this is torch {torch}: pip install "
    if have[:2] == wanted[:2]:
        return "note", f"{sentence}torch=={release} if it misbehaves"
    mine = ".".join(map(str, have[:2]))
    return "wrong", f"{sentence}torch=={release}, or a torch_npu for torch {mine} ('torch_npu=={mine}.*')"


def cann_fits(torch_npu: str, cann: str) -> tuple[Level, str]:
    """Whether a torch_npu goes with this CANN, and one sentence where it doesn't.

    An older CANN lacks what torch_npu was built against; a newer one mostly works.
    """
    made = MADE_WITH.get(_public(torch_npu))
    have, wanted = _order(cann), _order(made or "")
    if made is None or have is None or wanted is None or have == wanted:
        return "ok", ""
    sentence = f"torch_npu {torch_npu} goes with CANN {made}, and this is CANN {cann}"
    if have > wanted:
        return "note", f"{sentence}, which is newer: take that one if operators are missing or wrong"
    series = ".".join(map(str, _numbers(torch_npu)[:2]))
    others = [npu for npu, with_cann in MADE_WITH.items() if with_cann == cann and npu.startswith(f"{series}.")]
    other = f", or torch_npu {others[-1]}" if others else ""
    return "wrong", f"{sentence}, which is older: install CANN {made}{other}"


def _public(version: str) -> str:
    """A version without what follows a plus: ``2.7.1.post2`` of ``2.7.1.post2+gitabc``."""
    return version.strip().partition("+")[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", _public(version), maxsplit=1)[0]))


def _order(version: str) -> tuple[int, ...] | None:
    """What CANN's versions sort by: 8.0.RC3 comes before 8.0.0, an alpha or a beta before what it is one of."""
    match = re.match(
        r"\s*(\d+)\.(\d+)(?:\.(\d+))?(?:\.RC(\d+))?(?:[.-]?(?:alpha|beta)\.?(\d+))?", version, re.IGNORECASE
    )
    if match is None:
        return None
    major, minor, patch, candidate, draft = (None if part is None else int(part) for part in match.groups())
    # Without an RC a release comes after all of its candidates, without a draft after all drafts.
    return (major or 0, minor or 0, patch or 0, 999 if candidate is None else candidate, 999 if draft is None else 0)
