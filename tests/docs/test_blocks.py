"""The code in README and docs: Python runs, commands parse; with ASCEND_DOCS the commands run as well (test-docs)."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_ascend import cli

from . import stock

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = "ASCEND_DOCS" in os.environ


class Block(NamedTuple):
    """A fenced block of a page: where it begins, its language, its text, and whether it takes long."""

    page: str
    line: int
    language: str
    text: str
    heavy: bool


def blocks() -> Iterator[Block]:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"^(<!-- heavy -->\n)?```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            yield Block(path.name, text[: found.start(3)].count("\n"), found[2], found[3], bool(found[1]))


BLOCKS = list(blocks())


def of(*languages: str) -> list[pytest.ParameterSet]:
    return [
        pytest.param(block, id=f"{block.page}-{block.line}")
        for block in BLOCKS
        if block.language in languages and block.page != "README.zh-CN.md"  # its code is README.md's: test_readme.py
    ]


def commands(block: Block) -> Iterator[list[str]]:
    for line in re.findall(r"^\$ (.*)$", block.text, re.MULTILINE):
        yield shlex.split(line, comments=True)


def test_every_block_has_a_language() -> None:
    known = {"python", "console", "yaml", "json", "text"}
    assert not [block for block in BLOCKS if block.language not in known]
    assert not [block for block in BLOCKS if block.language == "console" and not list(commands(block))]


@pytest.mark.parametrize("block", of("python"))
def test_python_runs(block: Block, pytester: pytest.Pytester) -> None:
    if block.heavy and not SLOW:
        pytest.skip("heavy: make test-docs")
    if "def test_" not in block.text:
        names = stock.names(block.page)
        exec(compile(block.text, f"{block.page}:{block.line}", "exec"), names)
        assert "result" not in names or names["result"].passed
        return
    pytester.makeconftest(stock.FIXTURES)
    pytester.makepyfile(stock.HEADER + block.text)
    timed = ["--ascend-perf-child=timings.json"] if "ascend_perf" in block.text else []
    plugins = [] if "ascend_cases" in block.text else ["-p", "no:hypothesispytest"]
    done = pytester.runpytest_inprocess("--ascend-compare=emulated", *timed, *plugins, "-p", "no:cacheprovider")
    done.assert_outcomes(passed=block.text.count("def test_"))
    for call in json.loads(Path(pytester.path, "timings.json").read_text())["calls"] if timed else ():
        assert (call["unusable"], call["outcome"]) == ("", "")


class Parsed(Exception):
    """A command was understood."""


def parse(words: list[str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a command has words that the command of that name doesn't know."""
    name, *arguments = words
    if name == "pytest":
        pytester.parseconfig(*arguments)
    elif name == "pytest-ascend":
        understand = argparse.ArgumentParser.parse_args

        def parse_args(parser: argparse.ArgumentParser, *args: object, **kwargs: object) -> None:
            understand(parser, *args, **kwargs)  # type: ignore[call-overload]
            raise Parsed

        with monkeypatch.context() as patched:
            patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
            with pytest.raises(Parsed):
                cli.main(arguments)
    elif name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif arguments[:1] == ["install"] or arguments[:3] == ["-m", "pip", "install"]:
        extras = set(re.findall(r"\[([\w,]+)\]", " ".join(arguments)))
        known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
        assert set(",".join(extras).split(",")) - {""} <= known
    else:
        assert name in ("git", "echo", "python"), words
        assert all((ROOT / word).exists() for word in arguments if word.endswith(".py"))


@pytest.mark.parametrize("block", of("console"))
def test_commands_parse(block, pytester, monkeypatch) -> None:
    for words in commands(block):
        parse(words, pytester, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_in_the_text_parse(page, pytester, monkeypatch) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"(?<!`)`((?:pytest|pytest-ascend|make) [^`…]+)`", text):
        words = shlex.split(command.replace("\n", " "))
        if "|" in words or "*" in command:
            continue
        if words[0] == "pytest-ascend" and not re.search(r"[-A-Z]", " ".join(words[1:])):
            with pytest.raises(SystemExit, match="0"):  # a command by its name alone
                cli.main([*words[1:], "--help"])
        else:
            parse(words, pytester, monkeypatch)


@pytest.mark.parametrize("block", of("json"))
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_what_its_reader_takes(block, pytester, monkeypatch, tmp_path) -> None:
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load(block.text)
    for command in re.findall(r"^ +- (pytest.*)$", block.text, re.MULTILINE):
        parse(shlex.split(re.sub(r"\$\{?\w+(:-[^}]*)?\}?", "REV", command)), pytester, monkeypatch)
    if "layers" in content:
        from pytest_ascend.dumps import mapping

        (tmp_path / "mapping.yaml").write_text(block.text)
        mapping.read_mapping(tmp_path / "mapping.yaml")
    elif "jobs" in content and (checker := shutil.which("actionlint")):
        text = block.text.replace("OWNER/", "owner/")
        done = subprocess.run([checker, "-"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        given = content["jobs"]["gate"]["steps"][-1]["with"]
        assert set(given) <= set(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"])


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project like those that the commands are for: tests, dumps, profiles, and a commit before this one."""
    import torch

    import pytest_ascend as pa

    folder = tmp_path_factory.mktemp("project")
    for name in ("tests", "GOLDEN", "TARGET"):
        (folder / name).mkdir()
    (folder / "tests/conftest.py").write_text(stock.FIXTURES)
    for name in ("test_ops", "test_perf", "test_encoder"):
        (folder / f"tests/{name}.py").write_text(
            "import torch\n"
            "\ndef test_work(ascend_compare):\n    ascend_compare(torch.softmax, torch.randn(4, 64), dim=-1)\n"
            "\ndef test_time(ascend_perf):\n    ascend_perf(torch.softmax, torch.randn(16, 64), dim=-1)\n"
            "\ndef test_plain():\n    assert torch.ones(2, device='cpu').sum() == 2\n"
        )
    (folder / "mapping.yaml").write_text("layers: {}\n")
    torch.manual_seed(0)
    model, batch = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1)), torch.randn(4, 8)
    for name in ("dumps", "GOLDEN", "TARGET"):
        with pa.record(model, folder / name, level="mix" if name == "dumps" else "L1", progress=False):
            model(batch).sum().backward()
    for side in ("GOLDEN", "TARGET"):  # a dump.json by itself, too
        shutil.copytree(folder / side / "step0/rank0", folder / side, dirs_exist_ok=True)
        shutil.rmtree(folder / side / "step0")
    profile = next((ROOT / "tests/data/profiles/torch_npu_profiler").glob("v1_level2*/*_ascend_pt"))
    for name in ("host_4242_ascend_pt", "before_ascend_pt", "after_ascend_pt"):
        shutil.copytree(profile, folder / name)
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com"]
    for command in (["init", "-q", "-b", "main"], ["add", "tests"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    parts = [[f"--ascend-shard={n}/2", f"--ascend-json=part-{n}.json"] for n in (1, 2)]
    for options in (*parts, ["--ascend-json=results.json"]):
        command = [sys.executable, "-m", "pytest", "-q", "--ascend-compare", *options]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return folder


@pytest.mark.skipif(not SLOW, reason="runs every command: make test-docs")
@pytest.mark.parametrize("block", of("console"))
def test_commands_run(block: Block, project: Path) -> None:
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for words in commands(block):
        if words[0] in ("make", "pip", "git", "echo") or "pip" in words or words[0] == "python":
            continue  # make's targets are CI's own jobs, pip is tests/packaging; the rest parses
        done = subprocess.run(words, cwd=project, env=variables, capture_output=True, text=True, check=False)
        wrong = "compare" in words or "FAIL" in block.text or "regressed" in block.text
        assert done.returncode in ((0, 1) if wrong else (0,)), f"{words}\n{done.stdout[-3000:]}{done.stderr[-2000:]}"


def test_every_verdict_is_explained() -> None:
    from pytest_ascend.judge.verdict import Kind, Verdict

    text = (ROOT / "docs/verdicts.md").read_text(encoding="utf-8")
    for word in (*Verdict, *Kind):
        assert f"| `{word.value}` |" in text


def test_the_tables_of_the_criteria_are_those_of_the_code() -> None:
    from pytest_ascend.judge import ascend_standards as standards
    from pytest_ascend.judge import budget
    from pytest_ascend.judge.standards import TABLE

    text = (ROOT / "docs/criteria.md").read_text(encoding="utf-8")
    rows = {cells[0]: cells[1:] for cells in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|", text, re.MULTILINE)}

    def plain(value: float) -> str:
        power = next((n for n in range(40) if value == 2.0**-n), 0)
        return f"2^-{power}" if power else f"{value:.0e}".replace("e-0", "e-")

    absolute = list(zip(*standards.ABSOLUTE.values(), strict=True))
    assert re.search(r"\| rtol \| 1e-6 \| 1e-3 \| 4e-3 \|", text)
    assert [plain(value) for value in absolute[0]] == ["1e-6", "1e-3", "4e-3"]
    assert list(rows["small value"]) == [plain(value) for value in absolute[1]]
    mixed = list(zip(*list(standards.MIXED.values())[:3], strict=True))
    assert list(rows["rtol = atol"]) == [plain(value) for value in mixed[0]]
    assert list(rows["cap"]) == [plain(value) for value in mixed[1]]
    for level, limits in standards.LEVELS.items():
        assert re.search(
            rf"`benchmark:{level}`.* {' [|] '.join(f'{limit:g}' for limit in limits)} \|$", text, re.MULTILINE
        )
    assert [f"{TABLE[dtype][0]:g}" for dtype in TABLE][:3] == ["0.001", "0.016", "1.3e-06"]
    assert list(rows["local"]) == [
        f"{budget.LOCAL:g}",
        f"{budget.WIDE_LOCAL:g}",
        f"{budget.LOCAL_RATIO:g}, of at most {budget.LOCAL_CAP:g}",
    ]
    assert rows["spread"][1:] == (
        f"{budget.WIDE_SPREAD:g}",
        f"{budget.SPREAD_RATIO:g}, of at most {budget.SPREAD_CAP:g}",
    )
    assert rows["bias"][1:] == (f"{budget.WIDE_BIAS:g}", f"{budget.BIAS_RATIO:g}")


def test_each_option_has_a_place_in_the_reference() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs_pages
    finally:
        sys.path.pop(0)
    from pytest_ascend.settings import OPTIONS

    made = docs_pages.on_page_markdown("{{ options }}\n\n{{ check_options }}\n\n{{ perf_options }}\n")
    for option in OPTIONS:
        assert made.count(f"| `{option.ini}` |") == 1
    assert "### Others" not in made  # a new option goes into a group of docs_pages.GROUPS
    assert "`criterion='auto'`" in made
    assert "`threshold=None`" in made
    commands = docs_pages.commands()
    for name in ("doctor", "compare", "perf read", "baseline merge", "generate", "schema"):
        assert f"### pytest-ascend {name}\n" in commands
