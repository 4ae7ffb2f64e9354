"""Recognising a profile: any file or folder of the profilers, by what is in it, becomes the one table."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path

from .json_profiles import read_json
from .npu_database import MAGIC, read_database
from .operators import OperatorTable
from .opprof import is_basic_info, read_opprof, read_simulated
from .summaries import read_api_statistic, read_op_statistic, read_operator_details, read_step_trace
from .tabular import LONGEST_LINE, Header, header_of, refuse
from .task_rows import is_task_file, read_tasks

#: Where in a profile's folder the table is looked for, the best first: tasks, then sums, then the host's view.
_PREFERRED = (
    "kernel_details.csv",
    "op_summary_*.csv",
    "op_summary*.csv",
    "ascend_pytorch_profiler*.db",
    "msprof_*.db",
    "op_statistic*.csv",
    "operator_details.csv",
    "aicore_*.json",
    "trace_view.json",
    "msprof_*.json",
    "step_trace_time.csv",
    "analysis.db",
)
_INSIDE = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")
_FOLDERS = ("*_ascend_pt", "PROF_*", "OPPROF_*")
_TRY = (
    "give kernel_details.csv, op_summary_*.csv, op_statistic.csv, operator_details.csv, trace_view.json, a profiler's "
    ".db, or a folder *_ascend_pt, PROF_* or OPPROF_*"
)


def open(path: str | os.PathLike[str]) -> OperatorTable:
    """Read a profile, whatever it is: a file or a folder of torch_npu.profiler, msprof, msOpProf or torch.profiler.

    A file is recognised by its columns or its first bytes, never by its name alone. In a folder the most detailed file
    is taken, once; files beside it hold the same times in other forms.

    Raises:
        ProfileError: it is none of these, or can't be read: one sentence with file, line and what to do.
        OSError: the file can't be opened.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return _folder(Path(path))
    if not os.path.exists(path):
        refuse(path, None, "there is no such file", _TRY)
    if not os.path.isfile(path):
        refuse(path, None, "this is neither a file nor a folder", _TRY)
    return _file(path)


def _file(path: str) -> OperatorTable:
    with builtins.open(path, "rb") as file:
        first = file.readline(LONGEST_LINE)
    if not first.strip():
        refuse(path, 1, "the file is empty" if not first else "the first line is empty", "profile again")
    if first.startswith(MAGIC):
        return read_database(path)
    if first.lstrip().startswith((b"[", b"{")):
        return read_json(path)
    return _csv_reader(path, first)(path)


def _csv_reader(path: str, first: bytes) -> Callable[[str], OperatorTable]:
    header = header_of(path, first)
    for fits, reader in _FORMS:
        if fits(header):
            return reader
    if header.find("aic_time(us)") is not None:
        refuse(path, 1, "it holds counters of one operator's cores, and its time is in OpBasicInfo beside it",
               "give the folder")  # fmt: skip
    columns = ", ".join(header.names[:4])
    return refuse(path, 1, f"the columns ({columns[:80]!a}, ...) are of no profile known here", _TRY)


_FORMS: tuple[tuple[Callable[[Header], bool], Callable[[str], OperatorTable]], ...] = (
    (lambda header: header.has("Op Name", "Task Duration(us)", "Rated Freq"), read_opprof),
    (is_task_file, read_tasks),
    (lambda header: header.has("OP Type", "Count", "Total Time(us)"), read_op_statistic),
    (lambda header: header.has("API Name", "Time(us)", "Count"), read_api_statistic),
    (lambda header: header.has("Name", "Host Self Duration(us)"), read_operator_details),
    (lambda header: header.has("Computing", "Free", "Overlapped"), read_step_trace),
    (lambda header: header.has("instr", "running_time(us)"), read_simulated),
    (lambda header: header.has("code", "call_count", "running_time(us)"), read_simulated),
)


def _folder(folder: Path) -> OperatorTable:
    for pattern in _PREFERRED:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:4])
            refuse(folder, None, f"it holds several profiles ({names})", "give one of them")
        if found:
            return _file(os.fspath(found[0]))
    inside = [folder / name for name in _INSIDE if (folder / name).is_dir()]
    if inside:
        return _folder(inside[0])
    profiles = sorted({path for pattern in _FOLDERS for path in folder.glob(pattern) if path.is_dir()})
    if len(profiles) > 1:
        names = ", ".join(path.name for path in profiles[:4])
        refuse(folder, None, f"it holds several profiles ({names})", "give one of them")
    if profiles:
        return _folder(profiles[0])
    if _of_msopprof(folder):
        return read_opprof(folder)
    return refuse(folder, None, "there is no profile in it", _TRY)


def _of_msopprof(folder: Path) -> bool:
    """Whether msOpProf or its simulator wrote into this folder, at most five levels down."""
    top = len(folder.parts)
    for where, below, names in os.walk(folder):
        if len(Path(where).parts) - top >= 5:
            below.clear()
        if any(is_basic_info(name) or name.endswith(("_instr_exe.csv", "_code_exe.csv")) for name in names):
            return True
    return folder.name.startswith("OPPROF_")
