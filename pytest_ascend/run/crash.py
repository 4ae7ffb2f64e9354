"""What is said of a test whose process didn't survive it: from exit status, stack and trail to a record. No pytest."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ascend.judge.culprit import Culprit

__all__ = ["Crash", "End", "Frame", "frames"]

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_MOST_LINES = 12  # of what the process wrote
_NOT_THE_USERS = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@dataclass(frozen=True)
class Frame:
    """A line of code that was at work."""

    file: str
    line: int
    function: str

    @property
    def of_the_user(self) -> bool:
        """Whether it is nobody's package."""
        return not self.file.startswith((*_NOT_THE_USERS, _OWN, "<"))

    def __str__(self) -> str:
        here = os.path.join(os.getcwd(), "")
        return f"{self.file.removeprefix(here)}:{self.line} in {self.function}"


def frames(stack: str) -> list[Frame]:
    """The frames of the thread that ran the test, the innermost first, out of what :mod:`faulthandler` wrote last."""
    threads: list[list[Frame]] = []
    for line in stack.splitlines():
        if line.startswith(("Thread ", "Current thread ", "Stack ")):
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append(Frame(match[1], int(match[2]), match[3]))
    tests = [one for one in threads if any(f"{os.sep}_pytest{os.sep}" in frame.file for frame in one)]
    return next(iter(reversed(tests or threads)), [])


@dataclass(frozen=True)
class End:
    """One process's end, or a device's.

    Attributes:
        what: how it ended, for people: ``died of SIGSEGV (segmentation fault)``.
        stack: what faulthandler wrote.
        trail: the facts of its trail.
        output: what the process wrote past pytest.
        timed_out: whether it was ended for taking too long.
        why: what the device said, in full.
    """

    what: str
    stack: str = ""
    trail: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    timed_out: bool = False
    why: str = ""

    @property
    def operator(self) -> Mapping[str, Any] | None:
        """The operator that raised or was at work, where operators were noted."""
        if isinstance(raised := self.trail.get("raised"), Mapping):
            return raised
        running = self.trail.get("op") if self.trail.get("running") else None
        return running if isinstance(running, Mapping) else None

    @property
    def line(self) -> Frame | None:
        """The innermost line of the user's code."""
        return next((frame for frame in frames(self.stack) if frame.of_the_user), None)


@dataclass
class Crash:
    """A test that ended its process, or left its device unusable.

    Attributes:
        nodeid: the test's.
        first: how it ended among other tests.
        preceding: the tests that ran before it in the same process.
        again: how it ended alone and in blocking mode; None where it was not run again, or didn't crash then.
        alone: its outcome alone, where it didn't crash: ``passed``, ``failed``, ``skipped``; else ``""``.
        infra: why the device is to blame and not the test, or ``""``.
    """

    nodeid: str
    first: End
    preceding: Sequence[str] = ()
    again: End | None = None
    alone: str = ""
    infra: str = ""

    @property
    def verdict(self) -> str:
        """``CRASH``, or ``INFRA`` where the device is to blame."""
        return "INFRA" if self.infra else "CRASH"

    @property
    def culprit(self) -> Culprit | None:
        """The operator to blame, where it is known."""
        found = None if self.again is None else self.again.operator
        if found is None:
            return None
        return Culprit(
            op=str(found.get("op", "")),
            inputs=tuple(map(str, found.get("inputs") or ())),
            phase="backward" if found.get("phase") == "backward" else "forward",
            module=re.sub(r"#\d+", "", str(found.get("module", ""))),  # the how manieth copy of a model means nothing
            source=str(found.get("source", "")),
            number=int(found.get("number") or 0),
            total=int(found.get("number") or 0),
            reason=self.first.what,
            confirmed=True,
        )

    def reason(self, api: str) -> str:
        """One sentence: what ended how, and where."""
        if self.infra:
            return self.infra
        subject = api or "the test"
        where, culprit = "", self.culprit
        line = self.first.line or (None if self.again is None else self.again.line)
        if culprit is not None:
            where = f", in {culprit.op}({', '.join(culprit.inputs)})"
            where += " of the backward pass" if culprit.phase == "backward" else ""
            where += f", layer {culprit.module}" if culprit.module else ""
            where += f", {culprit.source}" if culprit.source else ""
        elif line is not None:
            where = f", at {line}"
        return f"{subject} {self.first.what}{where}"

    def notes(self) -> Iterator[str]:
        """What else a person should know."""
        if self.again is not None:
            same = self.again.what == self.first.what
            yield "alone and in blocking mode " + ("it does so again" if same else f"it {self.again.what}")
        elif self.alone == "passed":
            count = len(self.preceding)
            yield (
                f"alone and in blocking mode it passes: what ran before it in the same process matters, {count} tests"
                if count
                else "alone and in blocking mode it passes, and nothing ran before it: it does not always crash"
            )
        elif self.alone:
            yield f"alone and in blocking mode it doesn't crash; its outcome is: {self.alone}"
        if self.first.why:
            yield f"the device said: {self.first.why}"
        if said := (self._said(self.again) or self._said(self.first)):
            yield f"the process wrote: {said}"

    def stack(self) -> list[Frame]:
        """The innermost line and the user's own, down to the test; [] where that isn't known."""
        for end in (self.first, self.again):
            if end is not None and (found := frames(end.stack)):
                return [*found[:1], *(frame for frame in found[1:] if frame.of_the_user)]
        return []

    def record(self, api: str, dtype: str, **more: Any) -> dict[str, Any]:
        """The result, as the results file has it."""
        trail = self.first.trail or {}
        api, dtype = str(trail.get("api") or api), str(trail.get("dtype") or dtype)
        culprit = self.culprit
        return {
            "nodeid": self.nodeid,
            "api": api or (culprit.op if culprit is not None else ""),
            "dtype": dtype,
            "verdict": self.verdict,
            "kind": None,
            "reason": self.reason(api),
            "criterion": "none",
            "metrics": {},
            "checkpoints": {},
            "first_divergence": None,
            "culprit": None if culprit is None or self.infra else culprit.to_dict(),
            "outputs": [],
            "notes": list(self.notes()),
            "script": None,
            "crash": {
                "ending": self.first.what,
                "again": "" if self.again is None else self.again.what,
                "alone": self.alone,
                "stack": [str(frame) for frame in self.stack()][:40],
            },
            **({"preceding": list(self.preceding)} if self.alone == "passed" else {}),
            **more,
        }

    def render(self, record: Mapping[str, Any]) -> Iterator[str]:
        """The record for a terminal."""
        head = ", ".join(str(record[name]) for name in ("api", "dtype", "target") if record.get(name))
        yield f"{self.verdict}: {head}" if head else self.verdict
        yield f"  {record['reason']}"
        for note in record["notes"]:
            yield f"  note: {note}"
        if stack := self.stack():
            yield "  the innermost line first:"
            yield from (f"    {frame}" for frame in stack[:10])
        if record.get("reproducer"):
            yield f"  reproduce: {record['reproducer']}"

    @staticmethod
    def _said(end: End | None) -> str:
        if end is None:
            return ""
        lines = [line.strip() for line in end.output.splitlines() if line.strip()]
        return " | ".join(lines[-_MOST_LINES:])[-600:]
