"""The command line of a process that times: this run's tests and options, and nothing that it would write."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ascend import child_arguments


def config(given: list[str], tests: list[str], plugins: tuple[str, ...] = (), here: str = "/nowhere"):
    return SimpleNamespace(
        invocation_params=SimpleNamespace(args=tuple(given), dir=Path(here)),
        option=SimpleNamespace(file_or_dir=tests),
        rootpath=Path("/nowhere"),
        inipath=None,
        pluginmanager=SimpleNamespace(hasplugin=lambda name: name in plugins),
    )


def kept(given: list[str], tests: list[str]) -> list[str]:
    command = list(child_arguments.command(config(given, tests)))
    assert command[-2:] == ["--rootdir=/nowhere", "--maxfail=0"]
    return command[3:-2]


@pytest.mark.parametrize(
    ("given", "tests", "left"),
    [
        (["tests", "-k", "fast", "-p", "no:x"], ["tests"], ["-k", "fast", "-p", "no:x"]),
        (["--ascend-perf", "tests"], ["tests"], []),
        (["--ascend-perf", "7", "tests"], ["tests"], []),
        (["--ascend-perf=7", "--ascend-compare=cpu", "t.py::a"], ["t.py::a"], ["--ascend-compare=cpu"]),
        (["-n", "4", "-n2", "-nauto", "--dist=loadfile", "-v"], [], ["-v"]),
        (["--junitxml=j.xml", "--junit-xml", "k.xml", "--ascend-json=r.json", "-q"], [], ["-q"]),
        (["--benchmark-compare", "--benchmark-json", "b.json", "--co"], [], []),
        (["-x", "--lf", "--pdb", "--ascend-save", "--ascend-ab=main", "--ascend-strict"], [], ["--ascend-strict"]),
        (["unit", "-k", "unit"], ["unit"], ["-k", "unit"]),
    ],
)
def test_what_is_left(given, tests, left) -> None:
    assert kept(given, tests) == left


def test_workers_coverage_and_the_ini_file_are_settled(tmp_path) -> None:
    made = config(["--cov"], [], ("xdist", "pytest_cov"))
    made.inipath = tmp_path / "tox.ini"
    command = child_arguments.command(made, "python3")
    assert command[0] == "python3"
    assert command[-5:] == ("-c", str(tmp_path / "tox.ini"), "-n0", "--dist=no", "--no-cov")


def test_a_file_of_arguments_is_spread_out(tmp_path) -> None:
    (tmp_path / "tests.txt").write_text("-k\nfast\nt.py::a\n")
    made = config(["@tests.txt", "-q"], ["t.py::a"], here=str(tmp_path))
    assert list(child_arguments.command(made))[3:-2] == ["-k", "fast", "-q"]


def test_the_current_folder_is_on_the_path_where_it_is_here(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert child_arguments.command(config([], []))[1] == "-c"
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    assert child_arguments.command(config([], []))[1:3] == ("-m", "pytest")
