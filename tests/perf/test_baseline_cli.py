"""`pytest-ascend baseline`: lists, compares, tidies, merges branches as git's driver, imports pytest-benchmark's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pytest_ascend import cli
from pytest_ascend.perf.baseline import Baseline, BaselineError, Timings
from pytest_ascend.perf.benchmark_files import benchmark_files, read_benchmarks
from pytest_ascend.perf.store import Store, load, write

from .stored import ENVIRONMENT, make_session

CPU = {"device": "cpu", "python": "3.11"}
HEAD = '{"machine_info": {"python_version": "3"}, '
ONE = '{"fullname": "t", "stats": {"median": %d, "min": %d}}'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two tests on a card and one on the CPU, below ``baselines``, which is where the command looks."""
    monkeypatch.chdir(tmp_path)
    made = Store("baselines")
    for number in range(3):
        made.save(ENVIRONMENT, "tests/test_a.py::test_a[X]", make_session(number, 1e-3 * (1 + number)))
        made.save(ENVIRONMENT, "tests/test_a.py::test_b", make_session(number, errors={}))
    wall = {"wall": Timings((0.25,), (0.2,))}
    made.save(CPU, "tests/test_c.py::test_c", make_session(1, timings=wall, errors={}, commit=""))
    return made


def run(*arguments: str) -> int:
    return cli.main(["baseline", *arguments])


def test_ls(store: Store, capsys) -> None:
    assert run("ls") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ascend910b-cann8.0.0-torch2.5.1-py3.11.7-")
    assert lines[1:3] == [
        "  tests/test_a.py::test_a[X]  3 sessions, last 2026-01-03T12:00:00+00:00, device 3.006 ms",
        "  tests/test_a.py::test_b  3 sessions, last 2026-01-03T12:00:00+00:00, device 1.002 ms",
    ]
    assert lines[3].startswith("cpu-py3.11-")
    assert lines[4].endswith("1 session, last 2026-01-02T12:00:00+00:00, wall 250 ms")


@pytest.mark.parametrize(("arguments", "count"), [(["tests/test_a.py::test_a[X]"], 1), (["*test_a.py*"], 2),
                                                  (["--fingerprint", "cpu*"], 1), (["nothing"], 0)])  # fmt: skip
def test_tests_are_chosen(store: Store, capsys, arguments: list[str], count: int) -> None:
    assert run("ls", *arguments) == 0
    out = capsys.readouterr().out
    assert out.count("::") == count
    assert ("no baseline fits" in out) == (count == 0)


def test_show(store: Store, capsys) -> None:
    assert run("show", "*test_a[[]X]") == 0
    out = capsys.readouterr().out
    assert "  soc: Ascend910B\n" in out
    assert "  s2  2026-01-03T12:00:00+00:00  000000000000\n" in out
    assert "    device: median 3.006 ms, minimum 2.97 ms, 5 processes\n" in out
    assert "    torch.softmax/float16: max_abs_error 0.001, relative_euclidean_distance 0.0002\n" in out


def test_diff(store: Store, tmp_path: Path, capsys) -> None:
    other = Store("other")
    other.save(ENVIRONMENT, "tests/test_a.py::test_a[X]", make_session(5, 3.3e-3))
    other.save(ENVIRONMENT, "tests/test_d.py::test_d", make_session(5))
    old = str(store.path(ENVIRONMENT, "x").parent)
    assert run("diff", old, "other") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tests/test_a.py::test_a[X]  device: 3.006 ms → 3.307 ms, +10.0%"
    assert lines[1].endswith("test_b: only in " + old)
    assert lines[2] == "tests/test_d.py::test_d: only in other"
    files = [str(store.path(ENVIRONMENT, f"tests/test_a.py::test_{name}")) for name in ("a[X]", "b")]
    assert run("diff", *files) == 0
    assert "3.006 ms → 1.002 ms, -66.7%" in capsys.readouterr().out
    assert run("diff", "baselines", "other") == 1
    assert "baselines: it holds 2 fingerprints; give the folder of one: ascend910b-" in capsys.readouterr().err
    assert run("diff", "missing", "other") == 1
    assert "missing: can't be read" in capsys.readouterr().err


def test_prune_keeps_the_last(store: Store, capsys) -> None:
    path = store.path(ENVIRONMENT, "tests/test_a.py::test_b")
    assert run("prune", "--keep", "1", "--dry-run") == 0
    assert "4 sessions would be forgotten" in capsys.readouterr().out
    assert len(load(path).sessions) == 3
    assert run("prune", "--keep", "1", "*test_b") == 0
    assert "test_b: 2 sessions forgotten, 1 kept" in capsys.readouterr().out
    assert [s.id for s in load(path).sessions] == ["s2"]
    assert run("prune", "--keep", "0", "*test_b") == 0
    assert not path.exists()
    assert len(list(store.all())) == 2


def test_prune_sees_what_was_stored_before_its_turn_came(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    test, locked = "tests/test_a.py::test_b", Store.locked

    @contextlib.contextmanager
    def waits(self: Store) -> Iterator[None]:
        monkeypatch.setattr(Store, "locked", locked)
        store.save(ENVIRONMENT, test, make_session(7))  # by another process, which had the lock
        with locked(self):
            yield

    monkeypatch.setattr(Store, "locked", waits)
    assert run("prune", "--keep", "2", test) == 0
    assert [s.id for s in load(store.path(ENVIRONMENT, test)).sessions] == ["s2", "s7"]


def test_prune_by_age(store: Store, capsys) -> None:
    fresh = make_session(9, date=datetime.now(timezone.utc).isoformat())
    store.save(CPU, "tests/test_c.py::test_c", fresh)
    assert run("prune", "--days", "2") == 0
    assert [(found.test, len(found.sessions)) for _, found in store.all()] == [("tests/test_c.py::test_c", 1)]  # type: ignore[union-attr]
    assert run("prune") == 1
    assert "say what is kept: --keep N sessions" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_listed(store: Store, capsys) -> None:
    path = store.path(ENVIRONMENT, "tests/test_a.py::test_b")
    path.write_text("<<<<<<< ours\n")
    assert run("ls") == 1
    captured = capsys.readouterr()
    assert captured.out.count("::") == 2
    assert captured.err.startswith(f"pytest-ascend baseline: {path}: line 1, column 1")


def test_what_a_file_holds_cannot_move_the_cursor(store: Store, capsys) -> None:
    store.save(CPU, "\x1b[2J\ntest", make_session(1, commit="\x07"))
    assert run("show") == 0
    out = capsys.readouterr().out
    assert r"\x1b[2J\ntest" in out
    assert not set(out) & {"\x1b", "\x07"}


def test_a_missing_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("ls") == 1
    assert capsys.readouterr().err == (
        "pytest-ascend baseline ls: baselines: there is no such folder: give --dir, or store with --ascend-save\n"
    )


@pytest.mark.parametrize("arguments", [["prune", "--keep", "-1"], ["prune", "--keep", "x"], [], ["forget"]])
def test_usage_errors(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as error:
        run(*arguments)
    assert error.value.code == 2


class TestMerge:
    def files(self, folder: Path, *sides: list[int] | None) -> list[str]:
        names = []
        for name, numbers in zip(("base", "ours", "theirs"), sides, strict=True):
            path = folder / f"{name}.json"
            names.append(str(path))
            if numbers is None:
                path.write_text("")
            else:
                write(path, Baseline("t", ENVIRONMENT, tuple(make_session(n) for n in numbers)))
        return names

    @pytest.mark.parametrize(
        ("base", "ours", "theirs", "result"),
        [([1], [1, 2], [1, 3], [1, 2, 3]), (None, [1], [2], [1, 2]), ([1, 2], [2], [1, 2, 3], [2, 3])],
    )
    def test_sessions_of_both_sides(self, tmp_path: Path, base, ours, theirs, result) -> None:
        files = self.files(tmp_path, base, ours, theirs)
        assert run("merge", *files) == 0
        assert [s.id for s in load(files[1]).sessions] == [f"s{n}" for n in result]

    def test_what_is_no_baseline_is_left_to_people(self, tmp_path: Path, capsys) -> None:
        files = self.files(tmp_path, [1], [1], [1])
        Path(files[2]).write_text("{}")
        before = Path(files[1]).read_bytes()
        assert run("merge", *files) == 1
        assert "theirs.json: it is no baseline" in capsys.readouterr().err
        assert Path(files[1]).read_bytes() == before
        write(files[2], Baseline("u", ENVIRONMENT))
        assert run("merge", *files) == 1
        assert "they are of different tests or environments: t and u" in capsys.readouterr().err

    def test_git_merges_two_branches_that_stored_sessions(self, tmp_path: Path) -> None:
        def git(*arguments: str) -> None:
            who = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
            subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

        def save(number: int, test: str) -> None:
            store.save(ENVIRONMENT, test, make_session(number))
            git("add", "-A")
            git("commit", "-q", "-m", str(number))

        git("init", "-q", "-b", "main")
        (tmp_path / ".gitattributes").write_text("baselines/**/*.json merge=ascend-baseline\n")
        program = f"'{sys.executable}' -m pytest_ascend.cli"
        git("config", "merge.ascend-baseline.driver", f"{program} baseline merge %O %A %B")
        store = Store(tmp_path / "baselines")
        save(1, "t")
        git("switch", "-q", "-c", "side")
        save(2, "t")
        save(3, "both new")
        git("switch", "-q", "main")
        save(4, "t")
        save(5, "both new")
        git("merge", "-q", "--no-edit", "side")
        for test, numbers in (("t", [1, 2, 4]), ("both new", [3, 5])):
            found = store.load(ENVIRONMENT, test)
            assert found is not None
            assert [s.id for s in found.sessions] == [f"s{n}" for n in numbers]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pytest-benchmark saves in two runs."""
    folder = tmp_path_factory.mktemp("benchmarked")
    (folder / "test_sum.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', [10, 1000])\ndef test_sum(benchmark, n):\n"
        "    benchmark(sum, range(n))\n"
    )
    # A run inside a worker of xdist takes itself for one, and then measures nothing.
    alone = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:ascend",
             "--benchmark-autosave", "--benchmark-max-time=0.02", "--benchmark-min-rounds=2"],
            cwd=folder, check=True, capture_output=True, env=alone,
        )  # fmt: skip
    return folder / ".benchmarks"


class TestImport:
    @pytest.mark.parametrize(
        ("written", "date"),
        [
            ("2020-05-01T10:00:00", "2020-05-01T10:00:00+00:00"),
            ("2020-05-01T10:00:00Z", "2020-05-01T10:00:00Z"),
            ("2020-05-01T10:00:00+08:00", "2020-05-01T10:00:00+08:00"),
        ],
    )
    def test_a_date_without_a_zone_is_utc(self, tmp_path: Path, written: str, date: str) -> None:
        path = tmp_path / "0001.json"
        path.write_text(f'{HEAD}"datetime": "{written}", "benchmarks": [{ONE % (2, 1)}]}}')
        assert [one.session.date for one in read_benchmarks(path)] == [date]

    def test_real_files(self, saved: Path, tmp_path: Path, monkeypatch, capsys) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("import", str(saved)) == 0
        assert "4 benchmarks stored in baselines/cpu-py" in capsys.readouterr().out
        found = {b.test: b for _, b in Store("baselines").all() if isinstance(b, Baseline)}
        assert sorted(found) == ["test_sum.py::test_sum[1000]", "test_sum.py::test_sum[10]"]
        files = benchmark_files(saved)
        plain = json.loads(files[0].read_text())
        for baseline in found.values():
            assert len(baseline.timed("wall")) == 2
            assert baseline.timed("device") == ()
        for benchmark in plain["benchmarks"]:
            one = found[benchmark["fullname"]].sessions[0].timings["wall"]
            assert (one.medians, one.minima) == ((benchmark["stats"]["median"],), (benchmark["stats"]["min"],))
        assert run("import", str(saved)) == 0  # again: nothing is there twice
        again = [b for _, b in Store("baselines").all()]
        assert again == list(found.values())

    def test_into_conditions_that_exist(self, saved: Path, store: Store, capsys) -> None:
        name = store.path(ENVIRONMENT, "x").parent.name
        assert run("import", str(benchmark_files(saved)[0]), "--into", name) == 0
        assert f"2 benchmarks stored in baselines/{name}" in capsys.readouterr().out
        found = store.load(ENVIRONMENT, "test_sum.py::test_sum[10]")
        assert found is not None
        assert run("import", str(saved), "--into", "elsewhere") == 1
        assert "baselines/elsewhere: there is no baseline whose conditions could be taken" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("[]", "it holds no object"),
            ("{}", "it has no 'machine_info'"),
            ("{", "the file ends there, so it was cut off"),
            (HEAD + '"datetime": "2026-01-01T00:00:00", "benchmarks": [{"fullname": "t"}]}', "it has no 'stats'"),
            (HEAD + '"datetime": "today", "benchmarks": [' + ONE % (1, 1) + "]}", "date 'today"),
            (HEAD + '"datetime": "2026-01-01T00:00:00", "benchmarks": [' + ONE % (0, 0) + "]}", "a timing of 0 s"),
            (HEAD + '"datetime": "2026-01-01T00:00:00", "benchmarks": 5}', "is not iterable"),
        ],
    )
    def test_other_files_are_refused(self, tmp_path: Path, content: str, said: str) -> None:
        path = tmp_path / "0001_x.json"
        path.write_text(content)
        with pytest.raises(BaselineError, match=r"0001_x\.json: ") as error:
            list(read_benchmarks(path))
        assert said in str(error.value)

    def test_nothing_to_import(self, tmp_path: Path, monkeypatch, capsys) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("import") == 1
        assert ".benchmarks: there is no JSON file of pytest-benchmark" in capsys.readouterr().err
