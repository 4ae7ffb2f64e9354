"""The command pytest-ascend."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_ascend import cli, targets


def test_doctor_says_one_line_each(capsys, monkeypatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [
        *("python", "pytest", "torch", "numba", "torch_npu", "CANN", "npu", "emulated")
    ]
    assert all(line.startswith(("ok ", "-- ")) for line in lines)
    assert "use --ascend-compare=emulated" in lines[-1]


def test_doctor_fails_where_there_is_no_target(capsys, monkeypatch) -> None:
    def resolve(spec: str) -> None:
        raise targets.TargetUnavailable(f"no {spec} here: do this")

    monkeypatch.setattr(targets, "resolve", resolve)
    assert cli.main(["doctor"]) == 1
    assert "no emulated here: do this" in capsys.readouterr().out


def test_doctor_without_torch(capsys, monkeypatch) -> None:
    monkeypatch.setattr(cli, "_version", lambda package: None if package == "torch" else "1.0")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/opt/cann")
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "pip install 'pytest-ascend[torch]'" in out
    assert "/opt/cann" in out


@pytest.mark.parametrize("arguments", [[], ["heal"]])
def test_unknown_commands_are_usage_errors(arguments, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_ascend.cli", "schema"], capture_output=True, text=True, check=True
    )
    assert '"pytest-ascend results"' in done.stdout
