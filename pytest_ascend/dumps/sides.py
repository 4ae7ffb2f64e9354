"""What kind of dump lies at a path, and which units of two dumps belong together."""

from __future__ import annotations

import os

from pytest_ascend.dumps.common import Side, Unit
from pytest_ascend.dumps.text import DumpError

__all__ = ["open_side", "paired_units"]


def open_side(path: str | os.PathLike[str], tokens: str | None = None) -> Side:
    """The dump at a path, of whatever kind.

    Args:
        path: a file or a folder.
        tokens: rounds to read of a dump of msit, as its ``-er`` names them.

    Raises:
        DumpError: there is none.
    """
    from pytest_ascend import dumps
    from pytest_ascend.dumps import loose, msit
    from pytest_ascend.dumps.msprobe_units import MsprobeUnit

    path = os.fspath(path)
    if not os.path.lexists(path):
        raise DumpError(f"{path}: there is no such file or folder")
    if not os.path.isdir(path):
        if path.endswith(".json"):
            return Side(path, "msprobe", [MsprobeUnit(path)])
        return loose.open_files(path)
    if (side := msit.open_dump(path, tokens)) is not None:
        return side
    found = list(dumps.find(path))
    if not found:
        return loose.open_files(path)
    units: list[Unit] = []
    notes = []
    for one in found:
        try:
            units.append(unit := MsprobeUnit(one))
            if len(found) > 1:
                unit.rest()
        except DumpError as error:
            if len(found) == 1:
                raise
            notes.append(str(error))
    if not units:
        raise DumpError(f"{path}: none of the {len(found)} dumps below it can be read; the first: {notes[0]}")
    return Side(path, "msprobe", units, notes)


def paired_units(golden: Side, target: Side) -> tuple[list[tuple[str, Unit, Unit]], list[str], list[str], list[str]]:
    """Units that belong together, by step and rank; those of one side alone; and what was assumed.

    Where a side doesn't say its ranks (folders named after processes), they are taken in their order.
    """
    notes: list[str] = []
    if len(golden.units) == len(target.units) == 1:
        a, b = golden.units[0], target.units[0]
        for word, x, y in (("step", a.step, b.step), ("rank", a.rank, b.rank)):
            if None not in (x, y) and x != y:
                notes.append(f"{word} {x} of the golden is compared with {word} {y} of the target")
        return [(_name(a), a, b)], [], [], notes
    if golden.kind == target.kind == "msit":
        return _paired_rounds(golden, target)
    left, right = _by_place(golden.units), _by_place(target.units)
    pairs = [(_name(left[key]), left[key], right[key]) for key in left if key in right]
    golden_only = [unit.path for key, unit in left.items() if key not in right]
    target_only = [unit.path for key, unit in right.items() if key not in left]
    if not pairs:
        raise DumpError(f"{golden.path} and {target.path} have no step and rank in common: name the dump.json of each")
    return pairs, golden_only, target_only, notes


def _paired_rounds(golden: Side, target: Side) -> tuple[list[tuple[str, Unit, Unit]], list[str], list[str], list[str]]:
    """Rounds of msit's dumps: those of a device, in the order of its processes, warm-ups left out on both sides."""
    from pytest_ascend.dumps.msit import MsitUnit, aligned

    sides = [[unit for unit in side.units if isinstance(unit, MsitUnit)] for side in (golden, target)]
    devices = [list(dict.fromkeys(unit.rank for unit in side)) for side in sides]
    if not set(devices[0]) & set(devices[1]) and len(devices[0]) == len(devices[1]):
        partners = dict(zip(*devices, strict=True))  # other cards, as many of them
    else:
        partners = {device: device for device in devices[0] if device in devices[1]}
    pairs: list[tuple[str, Unit, Unit]] = []
    notes: list[str] = []
    paired: set[int] = set()
    for device, other in partners.items():
        left = [unit for unit in sides[0] if unit.rank == device]
        right = [unit for unit in sides[1] if unit.rank == other]
        found, *warm = aligned(left, right)
        for a, b in found:
            pairs.append((f"device{device}/round{a.step}" + (f" - {b.step}" if a.step != b.step else ""), a, b))
            paired.update((id(a), id(b)))
        for word, units, count in (("golden", left, warm[0]), ("target", right, warm[1])):
            for unit in units[:count]:
                paired.add(id(unit))
                notes.append(f"{unit.path} is taken for a warm-up of the {word}: its tensors have other sizes")
    alone = [[unit.path for unit in side if id(unit) not in paired] for side in sides]
    if not pairs:
        raise DumpError(f"{golden.path} and {target.path} have no device in common: name a process's folder of each")
    return pairs, alone[0], alone[1], notes


def _by_place(units: list[Unit]) -> dict[tuple[int | None, int | str, str], Unit]:
    """Units by step and rank; unnamed ranks are counted within their step, beside the kind of file."""
    found: dict[tuple[int | None, int | str, str], Unit] = {}
    for unit in units:
        kind = os.path.basename(unit.path) if unit.path.endswith(".json") else ""
        if unit.rank is not None:
            key: tuple[int | None, int | str, str] = (unit.step, unit.rank, kind)
        else:
            number = sum(1 for k in found if k[0] == unit.step and k[2] == kind)
            key = (unit.step, number, kind)
        found[key] = unit
    return found


def _name(unit: Unit) -> str:
    parts = [f"step{unit.step}" if unit.step is not None else "", f"rank{unit.rank}" if unit.rank is not None else ""]
    return "/".join(part for part in parts if part)
