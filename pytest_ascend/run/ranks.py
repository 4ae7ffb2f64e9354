"""A function on several ranks: a fresh process for each, watched from outside, all gone at the end. No pytest."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ascend.run.crash import frames
from pytest_ascend.run.process import Supervised, describe_end

if TYPE_CHECKING:
    import torch

__all__ = ["Ended", "Rank", "name_of", "run"]

_PROGRAM = (
    "import json, sys\n"
    "with open(sys.argv[1]) as file: sys.path[:] = json.load(file)['path']\n"
    "from pytest_ascend.run.rank import main\n"
    "sys.exit(main(sys.argv[1]))\n"
)
_TO_START = 120.0  # seconds for all ranks to import what they need and to meet
_GRACE = 3.0  # seconds that the others have when one is gone: they wait for it, and would for ever


@dataclass(frozen=True)
class Rank:
    """What a body is told: its number, how many ranks there are, and the device that is its own.

    ``cpu`` where the ranks talk over gloo, ``npu:0``, ``npu:1``, ... on cards.
    """

    rank: int
    world_size: int
    device: torch.device


@dataclass
class Ended:
    """How a rank ended.

    Attributes:
        state: ``done``; ``raised``; ``died``, of which ``error`` says how; ``hung``; ``waited``: for a rank that hung,
            died or left.
        error: the exception's or the end's text.
        at: the line it was at.
        number, what: of the last collective it entered; ``inside``: whether it was in it.
        output: the end of what it wrote.
    """

    state: str
    error: str = ""
    at: str = ""
    number: int = -1
    what: str = ""
    inside: bool = False
    output: str = ""
    result: dict[str, Any] | None = field(default=None, repr=False)


def name_of(body: Callable[..., Any]) -> dict[str, str]:
    """Where other processes find a function: ``module``, ``file`` and ``name``.

    Raises:
        ValueError: they can't.
    """
    name, module = getattr(body, "__qualname__", ""), sys.modules.get(getattr(body, "__module__", ""))
    file = getattr(module, "__file__", None)
    if not name or "<" in name or file is None:
        shown = name or repr(body)
        raise ValueError(
            f"{shown} runs in processes of its own, which find it by its name: define it at the top of a module"
        )
    return {"module": str(body.__module__), "file": os.path.abspath(file), "name": name}


def run(
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    world_size: int,
    timeout: float,
    seed: int = 0,
    backend: str = "gloo",
    device: str = "cpu",
) -> list[Ended]:
    """Run ``body(rank, *args, **kwargs)`` on so many ranks; how each ended.

    Args:
        body: a function of a module, not one within another.
        args, kwargs: what it gets beside its :class:`Rank`; tensors and what else can be pickled.
        world_size: at least 1.
        timeout: seconds from when all have met until all have returned.
        seed: of torch's generator, on every rank.
        backend, device: ``gloo`` and ``cpu``, or ``hccl`` and ``npu``.

    Raises:
        ValueError: other processes can't find the function.
        OSError: they can't be started.
    """
    import torch

    where = name_of(body)
    with tempfile.TemporaryDirectory(prefix="ascend-ranks-") as place:
        folder = Path(place)
        torch.save((args, dict(kwargs)), folder / "given.pt")
        hello = {
            "body": where,
            "given": os.fspath(folder / "given.pt"),
            "store": os.fspath(folder / "store"),
            "world_size": world_size,
            "timeout": timeout,
            "seed": seed,
            "backend": backend,
            "device": device,
        }
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // world_size)), **os.environ}
        watched: list[_Watched] = []
        try:
            for rank in range(world_size):
                process = Supervised({**hello, "rank": rank}, environment, folder / f"rank{rank}", program=_PROGRAM)
                watched.append(_Watched(process))
            return _Watch(watched, timeout).until_the_end()
        finally:
            for one in watched:
                one.process.kill()


class _Watched:
    """A rank's process, and what it said last."""

    def __init__(self, process: Supervised) -> None:
        self.process = process
        self.state = "starting"
        self.number, self.what, self.inside = -1, "", False
        self.error = self.at = self.text = ""
        self.gone: int | None = None

    def listen(self) -> bool:
        """Take in what it says; whether that changed anything."""
        messages, _ = self.process.received()
        for message in messages:
            self.state = message["state"]
            if self.state in ("inside", "between"):
                self.number, self.inside = message["number"], self.state == "inside"
                self.what = message["what"] if self.inside else self.what
            elif self.state == "raised":
                self.error, self.at, self.text = message["error"], message["at"], message["text"]
        status = self.process.wait(0)
        if status is not None and self.gone is None:
            self.gone = status
            return True
        return bool(messages)

    @property
    def over(self) -> bool:
        return self.gone is not None

    @property
    def well(self) -> bool:
        """Whether it did all it should."""
        return self.over and self.state == "done" and self.gone == 0

    def ended(self, state: str) -> Ended:
        return Ended(
            state,
            self.error,
            self.at,
            self.number,
            self.what,
            self.inside,
            self.text or self.process.text("output", 4000),
        )


class _Watch:
    """Waits for ranks, and says who kept the others waiting."""

    def __init__(self, ranks: list[_Watched], timeout: float) -> None:
        self.ranks = ranks
        self.timeout = timeout

    def until_the_end(self) -> list[Ended]:
        begun = time.monotonic()
        limit = begun + _TO_START
        met = False
        while not all(rank.over for rank in self.ranks):
            moved = sum(rank.listen() for rank in self.ranks) > 0
            now = time.monotonic()
            if not met and all(rank.state not in ("starting", "started") for rank in self.ranks):
                met, limit = True, now + self.timeout
            lost = any(rank.over and not rank.well for rank in self.ranks)
            if lost:
                limit = min(limit, now + _GRACE) if not hasattr(self, "_lost") else limit
                self._lost = True
            if now > limit:
                break
            if not moved:
                time.sleep(0.02)
        for rank in self.ranks:
            rank.listen()
        return self._told()

    def _told(self) -> list[Ended]:
        import torch

        left = [rank for rank in self.ranks if not rank.over]
        lost = any(rank.over and not rank.well for rank in self.ranks)
        outside = [rank for rank in left if not rank.inside]
        found = []
        for rank in self.ranks:
            if rank.well:
                ended = rank.ended("done")
                ended.result = torch.load(rank.process.folder / "result.pt", weights_only=False)
            elif rank.over:
                ended = rank.ended("raised" if rank.state == "raised" else "died")
                if ended.state == "died":
                    ended.error = describe_end(rank.gone)
            else:
                rank.process.ask_where()
                users = [frame for frame in frames(rank.process.text("stack")) if frame.of_the_user]
                rank.at = str(users[0]) if users else ""
                # Who is in no collective keeps the others waiting; where all are in one, nobody's alone is the fault.
                hangs = not lost and (rank in outside or not outside)
                ended = rank.ended("hung" if hangs else "waited")
            found.append(ended)
        return found
