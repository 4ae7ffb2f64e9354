"""The inner pytest runs of the plugin's own tests."""

from __future__ import annotations

import pytest
import torch  # noqa: F401  # pytester drops what an inner run imports, and torch can't be imported twice


@pytest.fixture
def run(pytester: pytest.Pytester):
    """``run(source, *args, subprocess=True)``: a pytest run over one test file, in a process of its own."""

    def run(source: str, *args: str, subprocess: bool = True) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *args)

    return run
