"""Public bug reports of people who compare devices for a living: which are shown here, and why the others aren't.

Each report is a minimal case with its fault planted, and the answer it deserves: ``test_a02_…`` is row A02. Rows A are
about Ascend devices, B about other back ends, C about checkers, D about time, E about processes.
"""

from __future__ import annotations

import re
from pathlib import Path

LIST = """
A02 A03 A05 A09 A10 A11 A13 A14 A15 A17 A18 A19 A21 A22 A23 A25 A26 A27 A29 A30 A31 A33 A34 A35 A38 A39 A41 A42 A43 A45
B01 B02 B03 B05 B07 B09 B10 B11 B13 B14 B15 B18 B19 B22 B25 B26 B27 B29 B30 B31 B33 B34 B35 B37
C01 C02 C03 C05 C06 C09 C10 C11 C13 C14 C15
D02 D03 D05 D06 D07 D09 D10 D11 D13
E01 E02 E03 E06 E07 E09 E10 E11 E13
"""
IDS = LIST.split()

MEMORY = "memory that belongs to no tensor is read and the values are right: only the card's own sanitizer sees reads"
ISOLATION = "the process dies or is poisoned: needs cases in supervised workers of their own"
TIME = "a matter of time, not of values: belongs to the performance road"
NOT_HERE = {
    "A05": MEMORY,  # triton-lang/triton-ascend#2332: masked-out lanes read below the base pointer
    "A17": "a benchmark score of 30 questions is no evidence about an operator: there is nothing to compare",
    "A18": ISOLATION,  # flagos-ai/Torch-FL#64: a sweep in which one operator aborts
    "A21": ISOLATION,  # triton-lang/triton-ascend#984: aborts only after another case, so their order must be kept
    "A23": "the error surfaces at a later call: needs a device that runs behind, and a second run in blocking mode",
    "A38": "a sticky overflow flag of the chip, which the emulated device hasn't",
    "B10": ISOLATION,  # pytorch/pytorch#187105: SIGABRT for rank > 4
    **{row: TIME for row in IDS if row[0] == "D"},
    **{row: ISOLATION for row in IDS if row[0] == "E"},
    "E01": "the device may not be touched at collection: shown by running pytest, not by a comparison",
    "E11": "several workers and cards: belongs to device pinning",
}
# What of a report that is shown isn't, yet.
PARTLY = {
    "A19": f"it is slow as well as wrong; {TIME}",
    "A30": "operators are not run alone with equal inputs: needs isolation of each one",
    "A41": "the private format is in the error's words only: the emulated device keeps none",
    "C09": "the permutation that would explain the difference is not suggested",
}


def test_every_report_is_shown_or_listed_with_a_reason():
    """A row can't be forgotten, and none is both shown and excused."""
    files = sorted(Path(__file__).parent.glob("test_bug_reports*.py"))
    shown = {name.upper() for file in files for name in re.findall(r"^def test_([a-e]\d\d)_", file.read_text(), re.M)}
    assert len(IDS) == len(set(IDS)) == 83
    assert shown | NOT_HERE.keys() == set(IDS)
    assert not shown & NOT_HERE.keys()
    assert shown >= PARTLY.keys()
