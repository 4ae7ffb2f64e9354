"""Baselines on disk: no save is lost and no file is broken, whoever writes at once and whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_ascend.perf.baseline import Baseline, BaselineError
from pytest_ascend.perf.fingerprint import fingerprint
from pytest_ascend.perf.store import Store, load, write

from .saver import ENVIRONMENT as SAVERS
from .saver import TEST
from .stored import ENVIRONMENT, make_session

SAVER = Path(__file__).parent / "saver.py"
KILLS = int(os.environ.get("ASCEND_KILLS", "25"))  # `make fuzz` kills 200 times


def start(root: Path, name: str, count: int, *step: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", str(SAVER), str(root), name, str(count), *step]
    package = str(Path(load.__code__.co_filename).parents[2])
    environment = {**os.environ, "PYTHONPATH": package}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def stored(root: Path) -> set[str]:
    found = Store(root).load(SAVERS, TEST)
    return {session.id for session in found.sessions} if found else set()


class TestSaving:
    def test_a_session_is_added_to_those_before(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        assert store.load(ENVIRONMENT, "t") is None
        for number in range(3):
            now = store.save(ENVIRONMENT, "t", make_session(number))
        assert [s.id for s in now.sessions] == ["s0", "s1", "s2"]
        assert store.load(ENVIRONMENT, "t") == now
        assert store.load(ENVIRONMENT, "u") is None
        assert store.load({"device": "cpu"}, "t") is None
        assert [path for path, _ in store.all()] == [store.path(ENVIRONMENT, "t")]
        assert store.path(ENVIRONMENT, "t").parent == tmp_path / fingerprint(ENVIRONMENT)

    def test_a_save_outlasts_a_power_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file is synchronised before it takes its name, and the folder, which holds the name, after that."""
        done: list[str] = []
        fsync, rename = os.fsync, os.replace

        def synchronised(handle: int) -> None:
            done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
            fsync(handle)

        def renamed(*paths: str) -> None:
            done.append("name")
            rename(*paths)

        store = Store(tmp_path)
        store.save(ENVIRONMENT, "t", make_session(0))
        monkeypatch.setattr(os, "fsync", synchronised)
        monkeypatch.setattr(os, "replace", renamed)
        store.save(ENVIRONMENT, "t", make_session(1))
        assert done == ["file", "name", "folder"]

    def test_files_of_other_conditions_are_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(tmp_path)
        for conditions in (ENVIRONMENT, {"device": "cpu"}):
            store.save(conditions, "t", make_session(0))
        read: list[Path] = []
        monkeypatch.setattr("pytest_ascend.perf.store.load", read.append)
        assert [path for path, _ in store.all("cpu-*")] == read == [store.path({"device": "cpu"}, "t")]

    def test_an_accepted_change_forgets_what_was_before(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        for number in range(3):
            store.save(ENVIRONMENT, "t", make_session(number))
        now = store.save(ENVIRONMENT, "t", make_session(9), replace=True)
        assert [s.id for s in now.sessions] == ["s9"]

    def test_an_unreadable_file_is_left_as_it_is(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        store.save(ENVIRONMENT, "t", make_session(1))
        path = store.path(ENVIRONMENT, "t")
        path.write_text(path.read_text()[:100])
        before = path.read_bytes()
        with pytest.raises(BaselineError, match=r"so it was cut off; restore it from version control"):
            store.save(ENVIRONMENT, "t", make_session(2))
        assert path.read_bytes() == before
        assert isinstance(next(iter(store.all()))[1], BaselineError)

    def test_a_file_in_a_wrong_place_is_refused(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        write(store.path(ENVIRONMENT, "t"), Baseline("u", ENVIRONMENT))
        with pytest.raises(BaselineError, match="it is the baseline of 'u' and not of 't'"):
            store.load(ENVIRONMENT, "t")
        write(store.path(ENVIRONMENT, "t"), Baseline("t", {"device": "cpu"}))
        with pytest.raises(BaselineError, match="it is a baseline of cpu-"):
            store.load(ENVIRONMENT, "t")

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "the file is empty"),
            (b"\xff\xfe", "byte 0 is no UTF-8 text"),
            (b"[" * 100_000, "nested more than 64 deep"),
            (b"<<<<<<< HEAD\n{}", "line 1, column 1"),
            (b'{"schema": 1, "schema": 1}', "the key 'schema' occurs twice"),
            (b"{} {}", "there is more after its end"),
            (b'{"schema": ' + b"9" * 5000 + b"}", "f.json: "),
        ],
    )
    def test_a_file_of_anything_is_one_clear_error(self, tmp_path: Path, content: bytes, said: str) -> None:
        path = tmp_path / "f.json"
        path.write_bytes(content)
        with pytest.raises(BaselineError, match=r"f\.json: ") as error:
            load(path)
        assert said in str(error.value)
        assert "\n" not in str(error.value)

    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(BaselineError, match="is no regular file"):
            load(tmp_path / "pipe.json")
        with pytest.raises(BaselineError, match="can't be read"):
            load(tmp_path / "missing.json")

    def test_a_lock_that_points_elsewhere_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / ".lock").symlink_to(tmp_path / "made")
        with pytest.raises(OSError, match=r"\.lock"):
            Store(tmp_path / "b").save(ENVIRONMENT, "t", make_session(1))
        assert not (tmp_path / "made").exists()

    def test_git_is_told_what_is_no_baseline(self, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
        store = Store(tmp_path / "baselines")
        store.save(ENVIRONMENT, "t", make_session(1))
        (store.path(ENVIRONMENT, "t").parent / ".ascend-left.json").write_text("{")
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        listed = subprocess.run(["git", "ls-files"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        assert [Path(line).name for line in listed.split()] == [".gitignore", store.path(ENVIRONMENT, "t").name]


class TestAtOnce:
    def test_two_processes_lose_nothing(self, tmp_path: Path) -> None:
        savers = [start(tmp_path, name, 30) for name in ("one", "two", "three")]
        for saver in savers:
            saver.communicate(timeout=60)
            assert saver.returncode == 0
        assert stored(tmp_path) == {f"{name}-{n}" for name in ("one", "two", "three") for n in range(30)}

    def test_a_reader_never_sees_half_a_file(self, tmp_path: Path) -> None:
        saver = start(tmp_path, "one", 60)
        seen = 0
        while saver.poll() is None:
            now = len(stored(tmp_path))  # raises when it isn't whole
            assert now >= seen
            seen = now
        saver.communicate()
        assert len(stored(tmp_path)) == 60


class TestKilled:
    @pytest.mark.parametrize(("step", "there"), [("fsync", False), ("replace", False), ("replaced", True)])
    def test_in_the_middle_of_a_save(self, tmp_path: Path, step: str, there: bool) -> None:
        saver = start(tmp_path, "one", 3, step)
        said, _ = saver.communicate(timeout=60)
        assert saver.returncode == -signal.SIGKILL
        assert said.split() == ["one-0", "one-1"]
        assert stored(tmp_path) == {"one-0", "one-1", *(["one-2"] if there else [])}
        folder = Store(tmp_path).path(SAVERS, TEST).parent
        assert len(list(folder.glob(".ascend-*"))) == (0 if there else 1)
        done = start(tmp_path, "two", 1)  # the lock went with the process, and what it left is cleared away
        done.communicate(timeout=60)
        assert "two-0" in stored(tmp_path)
        assert not list(folder.glob(".ascend-*"))

    def test_at_any_moment(self, tmp_path: Path) -> None:
        """Each kill comes at another moment of another save. What was said to be stored is stored."""
        draw = random.Random(7)
        said: set[str] = set()
        for kill in range(KILLS):
            saver = start(tmp_path, f"k{kill}", 100_000)
            assert saver.stdout is not None
            said.add(saver.stdout.readline().strip())
            time.sleep(draw.random() * 0.02)
            saver.kill()
            rest, _ = saver.communicate()
            said.update(rest.split())
            assert saver.returncode == -signal.SIGKILL
            now = stored(tmp_path)  # raises when it can't be read
            assert said <= now
            assert len(now - said) <= 1 + kill  # one that was stored, and not said, for each kill
            if len(now) > 300:
                Store(tmp_path).path(SAVERS, TEST).unlink()
                said.clear()
        assert len(said) >= 2 or KILLS < 2


def test_the_saver_writes_what_a_baseline_is(tmp_path: Path) -> None:
    saver = start(tmp_path, "one", 1)
    saver.communicate(timeout=60)
    plain = json.loads(Store(tmp_path).path(SAVERS, TEST).read_text())
    assert plain["schema"] == 1
    assert plain["sessions"][0]["timings"]["wall"]["medians"] == [1.0] * 40
