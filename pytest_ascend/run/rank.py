"""The process of one rank: it finds the body by its name, joins the others, runs it, and leaves what came of it."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import importlib.util
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from pytest_ascend.run import channel
from pytest_ascend.run.process import ASK, FOLDER

__all__ = ["main", "on_cpu"]

_RESULT = "result.pt"


def main(path: str) -> int:
    """Run one rank; ``path`` holds what it is told. The exit status is 0 also where the body raised, which is said."""
    hello = json.loads(Path(path).read_text(encoding="utf-8"))
    folder = Path(os.environ[FOLDER])
    stack = open(folder / "stack", "w", encoding="utf-8")  # noqa: SIM115  faulthandler writes to it until the end
    faulthandler.register(ASK, stack, all_threads=True, chain=False)
    faulthandler.enable(stack)
    out = socket.socket(fileno=hello["socket"])

    def say(**message: Any) -> None:
        channel.send(out, message)

    say(state="started")
    try:
        found = _run(hello, say)
    except Exception as error:
        frames = [
            one
            for one in traceback.extract_tb(error.__traceback__)
            if os.sep + "pytest_ascend" + os.sep not in one.filename
        ]
        at = f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        say(state="raised", error=f"{type(error).__name__}: {error}"[:2000], at=at, text=traceback.format_exc()[-8000:])
        return 0
    import torch

    torch.save(found, folder / _RESULT)
    say(state="done")
    # Threads of a process group abort a process that ends in the usual way while its peers do.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run(hello: dict[str, Any], say: Any) -> dict[str, Any]:
    import datetime

    import torch
    import torch.distributed as dist

    from pytest_ascend.observe.collectives import Collectives
    from pytest_ascend.run.ranks import Rank

    body = _found(hello["body"])
    given = torch.load(hello["given"], weights_only=False)  # this run's own file
    rank, size, kind = hello["rank"], hello["world_size"], hello["device"]
    device = torch.device(kind, rank) if kind != "cpu" else torch.device("cpu")
    if kind == "npu":
        import torch_npu  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401

        torch.npu.set_device(device)  # type: ignore[attr-defined]
    torch.manual_seed(hello["seed"])
    wait = datetime.timedelta(seconds=hello["timeout"] + 60)  # who hangs is found out from outside, before that
    dist.init_process_group(
        hello["backend"], init_method=f"file://{hello['store']}", rank=rank, world_size=size, timeout=wait
    )
    say(state="running")
    seen = Collectives(
        lambda number, what, entered: say(state="inside" if entered else "between", number=number, what=what)
    )
    args, kwargs = given
    with seen:
        returned = body(Rank(rank, size, device), *args, **kwargs)
    found = {"returned": on_cpu(returned), "calls": seen.calls}
    del returned
    say(state="returned")
    return found


def _found(where: dict[str, str]) -> Any:
    """The function of a module, which is imported as the test's was, or from its file."""
    known = sys.modules.get(where["module"])
    if known is None:
        try:
            known = importlib.import_module(where["module"])
            if os.path.realpath(getattr(known, "__file__", "") or "") != os.path.realpath(where["file"]):
                raise ImportError
        except ImportError:
            spec = importlib.util.spec_from_file_location(where["module"], where["file"])
            assert spec is not None
            assert spec.loader is not None
            known = sys.modules[where["module"]] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(known)
    found: Any = known
    for name in where["name"].split("."):
        found = getattr(found, name)
    return found


def on_cpu(value: Any, depth: int = 0) -> Any:
    """What a body returned as it is brought back: tensors on the CPU, tuples as lists, the rest by its type."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict) and depth < 32:
        return {key: on_cpu(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and depth < 32:
        return [on_cpu(one, depth + 1) for one in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(type(value))
