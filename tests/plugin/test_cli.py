"""The command pytest-ascend."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_ascend import cli


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
