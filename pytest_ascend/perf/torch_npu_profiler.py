"""Profiling a Python script on the card with torch_npu.profiler, and reading what it writes.

The profiler runs in a process of its own: its analysis forks and refuses daemon processes, and most of its methods
swallow their exceptions, so only what it wrote says whether it worked. The readers are :mod:`.task_rows`,
:mod:`.summaries`, :mod:`.json_profiles` and :mod:`.npu_database`; :func:`pytest_ascend.perf.profiles.open` picks one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import profiles
from .child import ProfilerFailed, run
from .json_profiles import read_json
from .npu_database import read_communication, read_database
from .operators import OperatorTable
from .summaries import read_api_statistic, read_op_statistic, read_operator_details, read_step_times
from .tabular import ProfileError
from .task_rows import read_tasks

__all__ = [
    "collect",
    "read_api_statistic",
    "read_communication",
    "read_database",
    "read_json",
    "read_op_statistic",
    "read_operator_details",
    "read_step_times",
    "read_tasks",
]

LEVELS = ("Level0", "Level1", "Level2")
METRICS = ("PipeUtilization", "ArithmeticUtilization", "Memory", "MemoryL0", "MemoryUB", "ResourceConflictRatio",
           "L2Cache", "MemoryAccess", "AiCoreNone")  # fmt: skip
EXPORTS = ("Text", "Db")


def collect(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    output: str | os.PathLike[str],
    level: str = "Level1",
    metrics: str = "PipeUtilization",
    export: str = "Text",
    timeout_s: float = 600.0,
    environment: Mapping[str, str] | None = None,
    emulated: bool = False,
) -> OperatorTable:
    """Run a Python script under torch_npu.profiler and give the table of its operators.

    Args:
        script: a Python file that does the work; it runs as `__main__`, with its folder on the path.
        arguments: its command line.
        output: an empty or new folder for the profile.
        level, metrics, export: names of `ProfilerLevel`, `AiCMetrics` and `ExportType`. Level0 has no types and shapes.
        timeout_s: seconds that script and analysis may take together.
        environment: the whole environment; ``None`` takes this process's own.
        emulated: use the emulated NPU, which has no profiler: this says so at once.

    Raises:
        ProfilerFailed: there is no profiler, the script failed or took too long, or the profiler wrote nothing.
        ProfileError: what it wrote can't be read.
        ValueError: an unknown level, metric or export, or an output folder that isn't empty.
    """
    for name, value, known in (("level", level, LEVELS), ("metrics", metrics, METRICS), ("export", export, EXPORTS)):
        if value not in known:
            raise ValueError(f"{name}={value!r}: torch_npu.profiler has {', '.join(known)}")
    script = Path(script).absolute()
    if not script.is_file():
        raise ValueError(f"{script} isn't there: give a Python file")
    folder = Path(output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} isn't empty, and an older profile could be read for this one: give a new folder")
    with tempfile.TemporaryDirectory(prefix="ascend-profile-") as place:
        answer = Path(place, "answer.json")
        order = {
            "script": os.fspath(script), "arguments": list(arguments), "output": os.fspath(folder), "level": level,
            "metrics": metrics, "export": export, "emulated": emulated, "answer": os.fspath(answer),
        }  # fmt: skip
        Path(place, "order.json").write_text(json.dumps(order))
        command = [sys.executable, "-m", "pytest_ascend.perf.npu_profile_worker", os.path.join(place, "order.json")]
        finished = run(command, timeout_s=timeout_s, environment=environment)
        told = json.loads(answer.read_text()) if answer.exists() else {"done": False}
    if "unavailable" in told:
        raise ProfilerFailed(
            f"{told['unavailable']}: profile on a machine with a card and CANN, or with torch.profiler on the CPU"
        )
    if "failed" in told:
        raise ProfilerFailed(f"{script.name} failed under the profiler ({told['failed']}): run it alone first")
    if not told["done"]:
        raise ProfilerFailed(
            f"the profiled process ended with status {finished.status} before the script did: {finished.last_lines()}"
        )
    written = sorted(folder.glob("*_ascend_pt"))
    if not written:
        raise ProfilerFailed(
            f"torch_npu.profiler wrote nothing to {folder} ({finished.last_lines()}): does the script run on the NPU?"
        )
    if len(written) > 1:
        raise ProfilerFailed(f"the script wrote {len(written)} profiles of its own to {folder}: let it write elsewhere")
    if not (written[0] / "ASCEND_PROFILER_OUTPUT").is_dir():
        raise ProfilerFailed(
            f"torch_npu.profiler wrote raw data to {written[0]} and didn't analyse it ({finished.last_lines()}): "
            "call torch_npu.profiler.profiler.analyse on that folder"
        )
    try:
        return profiles.open(written[0])
    except ProfileError as error:
        raise ProfileError(f"{error} (the profiler's own output: {finished.last_lines()})") from None
