"""The small profiles that the tests read, and conditions that timings are stored under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .stored import ENVIRONMENT

PROFILES = Path(__file__).parent.parent / "data" / "profiles"


@pytest.fixture
def profiles() -> Path:
    """Profiles in every version's form; see the README there."""
    return PROFILES


@pytest.fixture
def environment() -> dict[str, Any]:
    """Conditions on a card."""
    return dict(ENVIRONMENT)
