"""Reading what pytest-benchmark saved in ``.benchmarks/``, as sessions of wall time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ascend.dumps.text import DumpError, parse
from pytest_ascend.perf.baseline import BaselineError, Session, Timings

__all__ = ["Imported", "benchmark_files", "read_benchmarks"]


class Imported(NamedTuple):
    """A benchmark of such a file: its test, the environment that the file tells of, and the session."""

    test: str
    environment: dict[str, Any]
    session: Session


def benchmark_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file, or the JSON files below a folder such as ``.benchmarks``. Raises ``BaselineError`` without any."""
    path = Path(path)
    found = [path] if path.is_file() else sorted(path.rglob("*.json"))
    if not found:
        raise BaselineError(f"{path}: there is no JSON file of pytest-benchmark; make one with --benchmark-autosave")
    return found


def read_benchmarks(path: str | os.PathLike[str]) -> Iterator[Imported]:
    """Every benchmark of one file; raises ``BaselineError`` before the first where the file is none of its.

    The median and the minimum over its rounds stand for the one process there was. The environment holds Python and
    the CPU's model: pytest-benchmark knows nothing of torch, and its ``hz_actual`` is a live clock.
    """
    name = os.fspath(path)
    try:
        plain = parse(name)
    except DumpError as error:
        raise BaselineError(str(error)) from None
    try:
        found = list(_benchmarks(plain))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise BaselineError(f"{name}: it is no file of pytest-benchmark: {what}") from None
    yield from found


def _benchmarks(plain: Any) -> Iterator[Imported]:
    if not isinstance(plain, dict):
        raise TypeError("it holds no object")
    machine, date = plain["machine_info"], str(plain["datetime"])
    if "+" not in date[10:] and not date.endswith("Z"):
        date += "+00:00"  # older releases of it wrote UTC without saying so
    commit = str(plain.get("commit_info", {}).get("id") or "")
    commit = "" if commit == "unversioned" else commit
    cpu = machine.get("cpu") or {}
    environment = {
        "device": "cpu",
        "python": str(machine["python_version"]),
        "cpu": str(cpu.get("brand_raw") or machine.get("machine") or ""),
    }
    digest = hashlib.sha256(f"{machine.get('node')} {date} {commit}".encode()).hexdigest()[:12]
    for benchmark in plain["benchmarks"]:
        stats = benchmark["stats"]
        timings = Timings((stats["median"],), (stats["min"],))
        session = Session(f"pytest-benchmark-{digest}", date, commit[:300], {"wall": timings})
        yield Imported(str(benchmark["fullname"]), environment, session)
