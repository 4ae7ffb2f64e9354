"""What msit writes while a language model generates: a folder for each process, a round in it for each token.

Layouts, as msit's documents describe them::

    msit_dump_{time}/tensors/{device}_{pid}/{round}/{n}_{Layer}/{n}_{Operation}/.../before|after/intensor0.bin   (ATB)
    msit_dump_{time}/torch_tensors/{npu|cuda|cpu}{device}_{pid}/{round}/{path.of.the.layer}/input|output.pth     (torch)

A server warms up before the first prompt. That run is round 0 of the process and the prompt is round 1; or it is a
process or a ``msit_dump_{time}`` of its own; or there was none, and round 0 is the prompt. Folders don't say which, but
a warm-up's tensors have other sizes than the prompt's: :func:`aligned` finds the rounds of both sides that have the
same ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from pytest_ascend.dumps.common import Broken, Call, Part, Side, Stored, Unit
from pytest_ascend.dumps.loose import tensors_in, walked
from pytest_ascend.dumps.text import DumpError, numeric

__all__ = ["MsitUnit", "aligned", "open_dump", "token_ranges"]

_PROCESS = re.compile(r"(?:npu|cuda|cpu)?(\d{1,4})_(\d{1,10})")
_TENSOR = re.compile(r"(in|out)(?:put|tensor)s?(?:_exec\d+)?[_.]?(\d*)((?:[._]\w+)*)", re.IGNORECASE)
_KINDS = {"tensors": "atb", "torch_tensors": "torch"}


class MsitUnit:
    """One round of one process."""

    broken: Sequence[Broken] = ()

    def __init__(self, path: str, kind: str, device: int, process: str, number: int) -> None:
        self.path, self.framework = path, f"msit {kind}"
        self.step, self.rank, self.process = number, device, process

    @cached_property
    def _files(self) -> dict[str, dict[str, str]]:
        """Files by call and label. A call's folder comes after those inside it, as it ended after them."""
        found: dict[str, dict[str, str]] = {}
        for file in walked(self.path):
            folder, _, name = file.rpartition("/")
            side = os.path.basename(folder)
            if side in ("before", "after"):
                folder = os.path.dirname(folder)
            label = _label(os.path.splitext(name)[0], side)
            calls = found.setdefault(folder or ".", {})
            calls[label if label not in calls else f"{label}.{os.path.splitext(name)[0]}"] = file
        return {name: found[name] for name in sorted(found, key=_ended)}

    def names(self) -> list[str]:
        """Of the operations, in the order they ended; ``0_Layer/1_Operation`` or a layer's path."""
        return list(self._files)

    def call(self, name: str) -> Call:
        """An operation's tensors. Raises ``DumpError``."""
        parts = []
        for label, file in self._files[name].items():
            role = "input" if label.startswith("input") else "output"
            for inner, one in tensors_in(os.path.join(self.path, file), file).items():
                parts.append(Part(f"{label}.{inner}" if inner else label, role, one))
        return Call(name, None, tuple(parts))

    def parents(self) -> Mapping[str, str | None]:
        """The operation that each one was called in."""
        names = set(self._files)
        above: dict[str, str | None] = {}
        for name in names:
            outer = name
            while outer:
                outer = outer.rpartition("/" if "/" in outer else ".")[0]
                if outer in names:
                    break
            above[name] = outer or None
        return above

    def stack(self) -> Mapping[str, list[str]]:
        """msit writes none."""
        return {}

    def rest(self) -> None:
        """It holds names alone."""

    @cached_property
    def size(self) -> tuple[int, ...]:
        """How many elements the first tensors have that can be read: what tells a prompt's round from a warm-up's."""
        for name in sorted(self._files, key=numeric):
            try:
                stored = [part.value for part in self.call(name).parts if isinstance(part.value, Stored)]
            except DumpError:
                continue
            if stored:
                return tuple(one.spec.numel for one in stored)
        return ()


def _label(stem: str, side: str) -> str:
    match = _TENSOR.fullmatch(stem)
    if match is None:
        return f"{'input' if side == 'before' else 'output'}.{stem}"
    return f"{match[1].lower()}put.{match[2] or 0}{match[3].replace('_', '.')}"


def _ended(name: str) -> tuple[object, ...]:
    """Sorts operations after those inside them: ``0_A/1_B``, ``0_A``, ``1_C``."""
    separator = "/" if "/" in name or re.match(r"\d+_", name) else "."
    return (*((0, numeric(part)) for part in name.split(separator)), (1, ()))


def open_dump(path: str, tokens: str | None) -> Side | None:
    """The rounds at or below a path; None where nothing of msit's is there.

    Raises:
        DumpError: ``tokens`` are no ranges, or none of the rounds is among them.
    """
    rounds = _found(path)
    if not rounds:
        return None
    wanted = token_ranges(tokens) if tokens is not None else None
    chosen: list[Unit] = [u for u in rounds if wanted is None or any(a <= u.step <= b for a, b in wanted)]
    if not chosen:
        there = ", ".join(str(n) for n in sorted({u.step for u in rounds})[:8])
        raise DumpError(f"{path}: has the rounds {there} and none of {tokens}")
    return Side(path, "msit", chosen)


def token_ranges(text: str) -> list[tuple[int, int]]:
    """msit's ``-er``: from and to, both included, as often as one likes; one number alone is that round.

    Raises ``DumpError`` for anything else.
    """
    numbers = text.split(",")
    if not all(re.fullmatch(r"\s*\d{1,9}\s*", n) for n in numbers) or (len(numbers) > 1 and len(numbers) % 2):
        raise DumpError(f"tokens {text!r} are no ranges: give from,to pairs, such as 0,0 or 1,3,5,7")
    found = [int(n) for n in numbers]
    pairs = list(zip(found[::2], found[1::2] or found, strict=True))
    if any(a > b for a, b in pairs):
        raise DumpError(f"tokens {text!r} are no ranges: one begins after its end")
    return pairs


def _found(path: str) -> list[MsitUnit]:
    found: list[MsitUnit] = []
    for kind_folder, kind in _kind_folders(path):
        for process in sorted(_folders(kind_folder), key=numeric):
            match = _PROCESS.fullmatch(process)
            if match is None:
                continue
            inside = os.path.join(kind_folder, process)
            for number in sorted((n for n in _folders(inside) if n.isdigit() and len(n) < 10), key=int):
                found.append(MsitUnit(os.path.join(inside, number), kind, int(match[1]), inside, int(number)))
    if found:
        return found
    parts = os.path.abspath(path).split(os.sep)  # the path of a process, or of a round in one
    for depth in (1, 2):
        if len(parts) > depth + 1 and parts[-depth - 1] in _KINDS and (match := _PROCESS.fullmatch(parts[-depth])):
            kind, process = _KINDS[parts[-depth - 1]], os.sep.join(parts[: len(parts) - depth + 1])
            numbers = [parts[-1]] if depth == 2 else sorted((n for n in _folders(path) if n.isdigit()), key=int)
            found = [
                MsitUnit(os.path.join(process, n), kind, int(match[1]), process, int(n)) for n in numbers if n.isdigit()
            ]
    return found


def _kind_folders(path: str) -> list[tuple[str, str]]:
    """The folders ``tensors`` and ``torch_tensors`` of a dump, or of several beside each other in the order of time."""
    if (kind := _KINDS.get(os.path.basename(os.path.abspath(path)))) is not None:
        return [(path, kind)]
    places = [path, *(os.path.join(path, f) for f in sorted(_folders(path)) if f.startswith("msit_dump"))]
    return [
        (os.path.join(place, name), kind)
        for place in places
        for name, kind in _KINDS.items()
        if name in _folders(place)
    ]


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def aligned(golden: Sequence[MsitUnit], target: Sequence[MsitUnit]) -> tuple[list[tuple[MsitUnit, MsitUnit]], int, int]:
    """Rounds of both sides that belong together, and how many at the beginning of each side are a warm-up.

    The rounds are shifted against each other so that as many as possible have tensors of the same sizes; of equally
    good shifts, the smallest.
    """
    best, shift = -1, 0
    for candidate in sorted(range(1 - len(golden), len(target)), key=abs):
        pairs = _shifted(golden, target, candidate)
        agree = sum(a.size == b.size != () for a, b in pairs)
        if agree > best:
            best, shift = agree, candidate
    if best == 0:
        shift = 0
    return list(_shifted(golden, target, shift)), max(0, -shift), max(0, shift)


def _shifted(golden: Sequence[MsitUnit], target: Sequence[MsitUnit], shift: int) -> list[tuple[MsitUnit, MsitUnit]]:
    return list(zip(golden[max(0, -shift) :], target[max(0, shift) :], strict=False))
