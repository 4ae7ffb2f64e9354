"""Memory beside what the code under test was given: whatever is written there is a fault, however right the values are.

The emulated device watches its own memory (``Target.watch``): every fresh block lies between guard bands that the code
can't see, so each run is guarded at no cost worth naming. On a card nothing can be hidden: there arguments are copied
into larger storages for a run of its own, which shows to code that asks for ``storage_offset``. That run happens after
a failure, and always for a callable that isn't torch's own, because hand-written kernels are where it happens and
torch's are the vendor's to guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pytest_ascend.cases.transfer import Entry, Room
from pytest_ascend.judge.structure import flatten
from pytest_ascend.judge.verdict import Kind, OutputResult, Verdict
from pytest_ascend.targets.base import Trespass

__all__ = ["found_in_rooms", "named", "results"]


def named(found: Iterable[Trespass], entries: Sequence[Entry], output: Any) -> list[tuple[str, str]]:
    """What was written beside blocks of device memory: whose memory it lies beside, and what to say of it."""
    said = []
    owners: dict[int, tuple[str, torch.Tensor]] = {}
    for leaf in flatten(output, "output"):
        if isinstance(leaf.value, torch.Tensor):
            _own(owners, leaf.path, leaf.value)
    for entry in entries:
        _own(owners, entry.path, entry.copy)
    for trespass in found:
        path, tensor = owners.get(trespass.address, ("a tensor that the callable made", None))
        size = tensor.element_size() if tensor is not None else 1
        said.append((path, _reason(path, trespass, size)))
    return said


def _own(owners: dict[int, tuple[str, torch.Tensor]], path: str, tensor: torch.Tensor) -> None:
    if tensor.layout is torch.strided and tensor.device.type != "cpu":
        owners.setdefault(tensor.untyped_storage().data_ptr(), (path, tensor))


def _reason(path: str, trespass: Trespass, size: int) -> str:
    what = "element" if size > 1 else "byte"
    if trespass.first < 0:
        near, far, side = -trespass.last, -trespass.first, "before"
    else:
        near, far, side = trespass.first - trespass.size + 1, trespass.last - trespass.size + 1, "after"
    first, last = (near - 1) // size + 1, (far - 1) // size + 1
    span = f"{what} {first}" if first == last else f"{what}s {first} to {last}"
    count = last - first + 1
    plural = "s" if count != 1 else ""
    return f"memory outside {path} was written: {count} {what}{plural} {side} {path} ({span} {side} it)"


def found_in_rooms(rooms: Iterable[Room]) -> list[tuple[str, str]]:
    """The same for arguments that were copied into larger storages."""
    said = []
    for room in rooms:
        size = room.band.element_size()
        wanted = room.band.reshape(1).view(torch.uint8)
        for side, values in (("before", room.whole[: room.before]), ("after", room.whole[room.after :])):
            now = (
                values.detach()
                .to("cpu")
                .clone(memory_format=torch.contiguous_format)
                .reshape(-1)
                .view(torch.uint8)
                .view(-1, size)
            )
            bad = (now != wanted).any(-1).nonzero().reshape(-1)
            if not bad.numel():
                continue
            length = room.after - room.before
            start = -room.before if side == "before" else length
            first, last = (start + int(bad[0])) * size, (start + int(bad[-1])) * size + size - 1
            trespass = Trespass(0, length * size, first, last)
            said.append((room.path, _reason(room.path, trespass, size)))
    return said


def results(found: Iterable[tuple[str, str]]) -> list[OutputResult]:
    """A result for each place beside which something was written."""
    return [
        OutputResult(f"beside {path}", Verdict.MEMORY_FAULT, Kind.mutation, reason, "fail") for path, reason in found
    ]
