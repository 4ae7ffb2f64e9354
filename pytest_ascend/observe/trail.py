"""A trail that outlives its process: what a test was doing, in a file that another process reads after a crash.

One write of a few hundred bytes for each call that is compared, and only where somebody follows the trail. With
:func:`operators` every operator is written down as well, which is for a process that runs one test again to find the
operator that ends it. This module imports no torch before that.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

__all__ = ["follow", "note", "operators", "read"]

_SIZE = 4096  # of the file; one write of so many bytes is never seen half done by who reads after the process's end
_file = -1
_facts: dict[str, Any] = {}


def follow(path: str | os.PathLike[str]) -> None:
    """Leave the trail of this process in a file."""
    global _file
    _file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    clear()


def clear() -> None:
    """Forget what was noted; another test begins."""
    _facts.clear()
    _write()


def note(**facts: Any) -> None:
    """Note plain values, beside those noted before. Without a follower nothing happens."""
    if _file >= 0:
        _facts.update(facts)
        _write()


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The facts of a trail; {} where there are none."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_SIZE).rstrip(b"\0 ") or b"{}")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write() -> None:
    if _file < 0:
        return
    data = json.dumps(_facts).encode()
    if len(data) > _SIZE:
        data = json.dumps({name: str(value)[:200] for name, value in _facts.items()}).encode()[:_SIZE]
    os.pwrite(_file, data.ljust(_SIZE), 0)


@contextlib.contextmanager
def operators() -> Iterator[None]:
    """Note each operator before it runs, and when it has run: its name, inputs, layer, line and pass."""
    if _file < 0:
        yield
        return
    import torch
    from torch.utils import _python_dispatch

    from pytest_ascend.observe.op_places import Places

    base: Any = _python_dispatch.TorchDispatchMode

    class Marking(base):  # type: ignore[misc]  # made here, where torch is loaded
        def __init__(self) -> None:
            super().__init__()
            self.number = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.number += 1
            place = places.here(func)
            inputs = [_brief(one) for one in (*args, *(kwargs or {}).values())]
            devices = sorted({one.device.type for one in _tensors((args, kwargs or {}))})
            _facts["op"] = {
                "op": str(func),
                "inputs": inputs[:12],
                "phase": "backward" if place.backward else "forward",
                "module": place.module,
                "source": f"{place.source} in {place.function}" if place.file else "",
                "number": self.number,
                "device": "/".join(devices),
            }
            _facts["running"] = True
            _write()
            try:
                result = func(*args, **(kwargs or {}))
            except BaseException as error:
                if "raised" not in _facts or type(error).__name__ != "NotImplementedError":
                    _facts["raised"] = {**_facts["op"], "error": f"{type(error).__name__}: {error}"[:300]}
                raise
            finally:
                _facts["running"] = False
                _write()
            return result

    def _tensors(value: Any) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for one in value:
                yield from _tensors(one)
        elif isinstance(value, dict):
            yield from _tensors(list(value.values()))

    def _brief(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(_brief, value[:4]))}{', ...' if len(value) > 4 else ''}]"
        return str(value)[:40]

    with Places() as places, Marking():
        yield
