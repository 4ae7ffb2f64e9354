"""Which device each worker owns, taken from the caller's own list and never renumbered onto someone else's card.

Nothing here touches a device: the cards are counted by the caller's list, or else by the driver's files. A worker's
share is put into its environment before its interpreter starts, because a runtime reads it once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ascend import targets
from pytest_ascend.targets.visible import emulated_cards, listed

__all__ = ["DEVICE", "MEMORY_SHARE", "Place", "Plan", "environment", "plan", "visible"]

DEVICE = "PYTEST_ASCEND_DEVICE"
"""What a worker finds the name of its card in, as the caller's list has it."""
MEMORY_SHARE = "PYTEST_ASCEND_MEMORY_SHARE"
"""What a worker finds the share of its card's memory in that it may take, where it isn't alone there."""
_LISTS = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "emulated": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
_FILES = {"npu": ("/dev", r"davinci\d+"), "cuda": ("/dev", r"nvidia\d+")}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_LEFT_FREE = 0.05  # of a shared card's memory, for what its runtime takes itself


@dataclass(frozen=True)
class Plan:
    """How workers are spread over devices.

    Attributes:
        variable: the environment variable that says which devices a process sees; ``""`` where there is none to say it.
        cards: what it says for each worker, in the workers' order; ``""`` where every worker sees all.
        names: the distinct devices, for people.
        visible: all that the caller may use.
    """

    variable: str
    cards: tuple[str, ...]
    names: tuple[str, ...]
    visible: tuple[str, ...] = ()

    def place(self, worker: int) -> Place:
        """Where a worker runs, counted from 0."""
        card = self.cards[worker % len(self.cards)] if self.cards else ""
        sharers = self.cards.count(card) if self.cards else 0
        return Place(self.variable, card, sharers, len(self.cards))


@dataclass(frozen=True)
class Place:
    """One worker's place: its card, and how many workers share it."""

    variable: str
    card: str
    sharers: int
    workers: int


def visible(kind: str, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The devices of a kind that this process may use, as its own list names them; () where there are none.

    Args:
        kind: ``npu``, ``emulated`` or ``cuda``.
        environ: the environment.
    """
    given = environ.get(_LISTS.get(kind, ""))
    if kind == "emulated":
        return emulated_cards(given)
    if given is not None:
        return listed(given)
    folder, name = _FILES.get(kind, ("", ""))
    try:
        found = sum(1 for entry in os.listdir(folder) if re.fullmatch(name, entry)) if folder else 0
    except OSError:
        found = 0
    return tuple(map(str, range(found)))


def kind_of(spec: str) -> str:
    """The kind of device a target's spec means here, without loading torch: ``npu``, ``emulated``, ``cuda`` or ``cpu``.

    Raises ``ValueError`` for what is no spec.
    """
    kind = targets.parse(spec).kind
    if kind == "auto":
        return "npu" if targets.torch_npu_installed() else "emulated"
    return kind


def plan(spec: str, workers: int, environ: Mapping[str, str] = os.environ) -> Plan:
    """Spread workers over the devices that the caller may use, evenly.

    A spec that names a device by number (``npu:1``) means that one for all workers.

    Args:
        spec: the target's.
        workers: how many there are, >= 1.
        environ: the caller's environment.

    Raises:
        ValueError: what is no spec.
    """
    kind, variable = kind_of(spec), _LISTS.get(kind_of(spec), "")
    devices = visible(kind, environ)
    if not variable or not devices:
        return Plan("", ("",) * workers, ())
    if re.search(r":\d+$", spec.strip()):
        index = targets.parse(spec).index
        name = devices[index] if index < len(devices) else ""
        return Plan("", ("",) * workers, (name,) if name else ())
    cards = tuple(devices[worker % len(devices)] for worker in range(workers))
    return Plan(variable, cards, tuple(dict.fromkeys(cards)), devices)


def count(spec: str, environ: Mapping[str, str] = os.environ) -> int | None:
    """How many workers ``-n auto`` means: one for each device; None for a target without devices."""
    kind = kind_of(spec)
    return len(visible(kind, environ)) or None if kind in _LISTS else None


def environment(place: Place, environ: Mapping[str, str] = os.environ, cores: int | None = None) -> dict[str, str]:
    """What a worker's environment has beside its caller's: its card, its share of memory and of threads.

    Thread counts that the caller has set stay.

    Args:
        place: the worker's.
        environ: the caller's environment.
        cores: of this machine; None: those this process may use.
    """
    found: dict[str, str] = {}
    if place.variable and place.card:
        found = {place.variable: place.card, DEVICE: place.card}
        if place.sharers > 1:
            found[MEMORY_SHARE] = f"{(1 - _LEFT_FREE) / place.sharers:.4f}"
    each = str(max(1, (cores or _cores()) // max(1, place.workers)))
    if not any(name in environ for name in _THREADS):
        found.update(dict.fromkeys(_THREADS, each))
    return found


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe(made: Plan) -> str:
    """For people: ``3 workers on 2 cards (0, 1)``."""
    workers = f"{len(made.cards)} worker{'s' * (len(made.cards) != 1)}"
    if not made.names:
        return workers
    return f"{workers} on card{'s' * (len(made.names) != 1)} {', '.join(made.names)}"


def memory_share(environ: Mapping[str, str] = os.environ) -> float | None:
    """The share of its card's memory that this worker may take; None where it may take all."""
    given = environ.get(MEMORY_SHARE, "")
    return float(given) if re.fullmatch(r"0\.\d+", given) else None
