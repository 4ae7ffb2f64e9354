"""What the READMEs say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ascend.judge.verdict import Verdict
from pytest_ascend.perf.options import PerfOptions
from pytest_ascend.settings import OPTIONS

ROOT = Path(__file__).parent.parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]

pytestmark = pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)


def code(readme: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example_and_the_planted_fault_run(readme, run) -> None:
    first, _, _, _, planted, _, _ = code(readme)
    run(first + planted, "--ascend-compare").assert_outcomes(passed=2)


def test_the_way_without_pytest_runs(readme) -> None:
    import torch

    x = torch.randn(10)
    names = {"torch": torch, "x": x, "golden": {"y": [x.double()]}, "actual": {"y": [x]}}
    exec(code(readme)[-1], names)
    assert names["result"].passed


def test_the_recording_becomes_tests(readme, pytester) -> None:
    import torch

    block = next(block for block in code(readme) if "pa.record" in block)
    exec(block, {"model": torch.nn.Linear(4, 2), "batch": torch.randn(3, 4)})
    done = pytester.runpytest_inprocess("dumps", "--ascend-compare", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=4)  # linear and sum, forward and backward
    done.stdout.fnmatch_lines(["coverage of 2 APIs, 4 cases:", "*failed * 0"])


def test_every_option_is_described(readme) -> None:
    text = readme.read_text(encoding="utf-8")
    for option in OPTIONS:
        assert re.search(rf"\| `{option.flag}\b[^|]*` \| `{option.ini}` \|", text)


def test_every_option_of_a_timing_is_described(readme) -> None:
    text = readme.read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)=([^`]*)` \|", text, re.MULTILINE)
    assert dict(shown) == {name: repr(getattr(PerfOptions(), name)) for name in PerfOptions.names()}


def test_every_verdict_is_described(readme) -> None:
    text = readme.read_text(encoding="utf-8")
    for verdict in Verdict:
        assert verdict.value in text


def test_both_languages_have_the_same_code(readme) -> None:
    def bare(path: Path) -> list[str]:
        return [re.sub(r"\s*#.*", "", block) for block in code(path)]

    assert bare(readme) == bare(READMES[0])
