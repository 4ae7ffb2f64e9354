"""Import torch, torch_npu and the emulator, and ask each device something, in a process that may die of it.

The process prints a line of JSON before and after each step, so that its parent knows how far it came.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["STEPS", "main", "probe"]

STEPS = ("torch", "torch_npu", "devices", "emulated")
MARK = "pytest-ascend-probe "
SECONDS = 120.0
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_ascend.health import probe; probe.main(sys.argv[2:])"
)


def probe(steps: tuple[str, ...], environment: Mapping[str, str], seconds: float = SECONDS) -> dict[str, Any]:
    """Run steps in a process of their own.

    Args:
        steps: names out of :data:`STEPS`.
        environment: environment variables of the process.
        seconds: after so long it is ended.

    Returns:
        What each step found, as a mapping; of ``devices`` a list, and their number under ``count``. A step that failed
        has ``error``: one sentence or so.
    """
    command = [sys.executable, "-c", _CODE, json.dumps(sys.path), *steps]
    process = subprocess.Popen(
        command,
        env={**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        out, err = process.communicate(timeout=seconds)
        ended = ""
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        ended = f"no answer in {seconds:g} s"
    return _read(out, ended or _end(process.returncode, err))


def _read(out: str, ended: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    begun: dict[str, Any] | None = None
    for line in out.splitlines():
        if not line.startswith(MARK):
            continue
        message = json.loads(line[len(MARK) :])
        if "begin" in message:
            begun = message
            continue
        begun = None
        _keep(found, message["step"], message["found"])
    if begun is not None:
        _keep(found, begun["begin"], {**begun["about"], "error": ended})
    return found


def _keep(found: dict[str, Any], step: str, what: dict[str, Any]) -> None:
    if step == "devices":
        found.setdefault(step, []).append(what)
    else:
        found[step] = what


def _end(status: int, err: str) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"the process died of {signal.Signals(-status).name}"
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"the process ended with status {status}"


def main(steps: list[str]) -> None:
    """Run the steps, in this process, and print what each found."""
    for step in steps:
        if step == "devices":
            with _told("count") as found:
                found["number"] = _count()
            for index in range(found.get("number", 0)):
                with _told(step, index=index) as device:
                    device.update(_device(index))
        else:
            with _told(step) as found:
                found.update({"torch": _torch, "torch_npu": _torch_npu, "emulated": _emulated}[step]())
            if "error" in found:
                return


@contextlib.contextmanager
def _told(step: str, **about: Any) -> Iterator[dict[str, Any]]:
    """Print that a step begins, then what it found; an exception becomes its ``error``."""
    _print({"begin": step, "about": about})
    found: dict[str, Any] = dict(about)
    try:
        yield found
    except Exception as error:
        found["error"] = _sentence(error)
    _print({"step": step, "found": found})


def _print(message: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def _sentence(error: Exception) -> str:
    from pytest_ascend.targets import TargetUnavailable, explain_import_failure

    plain = str(error) if isinstance(error, TargetUnavailable) else explain_import_failure(error)
    return plain or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _torch() -> dict[str, Any]:
    import torch

    return {"version": str(torch.__version__)}


def _torch_npu() -> dict[str, Any]:
    import importlib

    module = importlib.import_module("torch_npu")
    return {"version": str(getattr(module, "__version__", ""))}


def _count() -> int:
    import torch

    return int(torch.npu.device_count())  # type: ignore[attr-defined]


def _device(index: int) -> dict[str, Any]:
    """Name, memory and modes of a device, and whether it adds up correctly."""
    import torch

    from pytest_ascend.targets.npu import NpuTarget

    npu, target = torch.npu, NpuTarget(index)  # type: ignore[attr-defined]
    npu.set_device(index)
    free, total = npu.mem_get_info(index)
    total_of_ones = float(torch.ones(1000, device=f"npu:{index}").sum().cpu())
    if total_of_ones != 1000.0:
        raise RuntimeError(f"a thousand ones add up to {total_of_ones:g}")
    described = {"soc": target.soc(True), "modes": target.modes(True)}
    return {"name": str(npu.get_device_name(index)), "free": int(free), "total": int(total), **described}


def _emulated() -> dict[str, Any]:
    from pytest_ascend.targets import resolve

    target = resolve("emulated")
    return {"title": target.title(), "modes": target.modes()}
