"""Real timings the whole way: workers, a commit with a slowdown, a throttled clock. Only gross changes are asserted.

Two of them time for a minute: `make test-perf`, and every night. tests/plugin/test_perf_ab.py shows the same with
timings that are dictated.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

long = pytest.mark.skipif("ASCEND_TIMINGS" not in os.environ, reason="times for a minute: make test-perf")

SUITE = """
import pytest
import torch
from shop import slow, steady

pytestmark = pytest.mark.ascend_perf(max_time=0.05, warmup_time=0.05, rotate=4, target="cpu")

def test_slow(ascend_perf):
    ascend_perf(slow, torch.linspace(-1, 1, 1 << 15))

def test_steady(ascend_perf):
    ascend_perf(steady, torch.linspace(-1, 1, 1 << 15))

def test_untimed(): pass
"""
SHOP = """
import torch

def slow(x, times={times}):
    for _ in range(times):
        x = torch.sin(x)
    return x

def steady(x):
    return torch.tanh(x)
"""


@pytest.fixture
def shop(pytester):
    """A project in a src layout, a git repository; ``shop(times)`` makes its function so many times as slow."""
    package = pytester.mkdir("src").joinpath("shop")
    package.mkdir()
    tests = pytester.mkdir("tests")
    (tests / "test_shop.py").write_text(SUITE)
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\npythonpath = ["src"]\ntestpaths = ["tests"]\n')

    def make(times: int) -> None:
        (package / "__init__.py").write_text(SHOP.format(times=times))

    def git(*args: str) -> str:
        who = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *who, *args], cwd=pytester.path, capture_output=True, text=True, check=True
        ).stdout

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *args)

    make(2)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    make.git, make.run, make.path = git, run, pytester.path  # type: ignore[attr-defined]
    return make


@long
def test_a_slowdown_is_found_against_a_commit_and_only_that(shop) -> None:
    shop(4)
    done = shop.run("--ascend-ab=main", "--ascend-json=r.json")
    done.assert_outcomes(failed=1, passed=2)
    results = {r["nodeid"].partition("::")[2]: r for r in json.loads((shop.path / "r.json").read_text())["results"]}
    assert results["test_slow"]["verdict"] == "regressed"
    assert results["test_steady"]["verdict"] in ("ok", "inconclusive")
    grown = results["test_slow"]["perf"]["operators"][0]
    assert grown["name"] == "aten::sin"
    assert (grown["before_calls"], grown["after_calls"]) == (2, 4)
    assert shop.git("worktree", "list").count("\n") == 1
    assert "same as in main" not in done.stdout.str()


@pytest.mark.whole
def test_a_slowdown_is_found_by_workers_against_what_is_stored(shop) -> None:
    shop.run("--ascend-perf=2", "--ascend-save", "-n2").assert_outcomes(passed=3)
    assert len(list(shop.path.glob("baselines/*/*.json"))) == 2
    shop(8)  # four times as slow
    done = shop.run("--ascend-perf=2", "-n2")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(failed=1, passed=2)
    done.stdout.fnmatch_lines(["regressed  tests/test_shop.py::test_slow *"])


def test_a_throttled_clock_is_inconclusive(shop) -> None:
    (shop.path / "tests" / "conftest.py").write_text(
        "import itertools\nfrom pytest_ascend.perf import measure\nmeasure.throttled = itertools.count().__next__\n"
    )
    done = shop.run("--ascend-perf=1", "-k", "slow")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["inconclusive  tests/test_shop.py::test_slow", "*slowed down for its heat*"])


@long
def test_code_that_both_sides_share_is_an_error(shop, monkeypatch) -> None:
    here = f"import sys\nsys.path.insert(0, {str(shop.path / 'src')!r})\n"
    (shop.path / "tests" / "conftest.py").write_text(here)
    shop.git("add", "-A")
    shop.git("commit", "-q", "-m", "an absolute path")
    done = shop.run("--ascend-ab=main", "-k", "slow")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["error  tests/test_shop.py::test_slow", "*processes of main (*) import shop from *"])
