"""The small profiles that the tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

PROFILES = Path(__file__).parent.parent / "data" / "profiles"


@pytest.fixture
def profiles() -> Path:
    """Profiles in every version's form; see the README there."""
    return PROFILES
