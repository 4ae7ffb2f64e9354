"""What msSanitizer says: its log as findings, and what these mean for a test. Pure: a text in, a verdict out.

The tool exits with 0 whatever it found, and when the program crashed or its own arguments were wrong. So its log is
read whole, and **a log without a kernel's frame is no clean log: nothing was checked**. A frame is::

    [mssanitizer] Start memcheck sanitizer on kernel "add_custom"
    ====== ERROR: illegal write of size 224
    ======    at 0x12c0c0025000 on GM in "add_custom"
    ======    in block aiv(0-3,7) on device 0
    ======    code in pc current 0x77c (serialNo:10)
    ======    #0 /home/user/op/add_custom.cpp:18:5

    [mssanitizer] Sanitizer finished on kernel "add_custom". See all detected errors above.

What isn't known is kept as a finding with its own words, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pytest_ascend.judge.verdict import Verdict

__all__ = ["TOOLS", "Access", "Answer", "Finding", "KernelFrame", "Log", "judge", "parse", "suspect", "violations"]

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
"""The tools of msSanitizer: bounds and leaks, unwritten memory, hazards between pipes, synchronisation."""

_LONGEST_LINE = 4000  # characters of a line that are looked at
_MOST_TEXT = 60  # lines of a block that are kept
_MOST_DIGITS = 30

_HEX = r"(0x[0-9a-fA-F]{1,30})"
_START = re.compile(r"\[mssanitizer\]\s+Start\s+([\w,|+ ]+?)\s+sanitizer\s+on\s+kernel\s+(.+)$")
_FINISH = re.compile(r"\[mssanitizer\]\s+Sanitizer finished on kernel\s+(.+?)\.\s*(No error detected|See all detected)")
_IGNORED = re.compile(r"\[mssanitizer\]\s+WARN\w*:\s*(\w+) is not supported on the kernel(.*)$")
_EXITED = re.compile(r"\[mssanitizer\]\s+user program (.+?) exited (abnormally|by signal\s*\(?(\d{1,9})\)?)")
_COMPLAINT = re.compile(r"\[mssanitizer\]\s+ERROR:\s*(.+)$")
_HEAD = re.compile(r"={6}\s+(ERROR|WARNING|WARN):\s*(.*?)\s*$")
_BODY = re.compile(r"={6}(?:\s+(.*?))?\s*$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

_SIZED = re.compile(
    r"(illegal (?:read|write)|misaligned access|uninitiali[sz]ed read|out of bounds)(?: of size (\d{1,30}))?"
)
_UNUSED = re.compile(r"unused memory(?: of (\d{1,30}) ?byte)?", re.IGNORECASE)
_HAZARD = re.compile(r"Potential (RAW|WAR|WAW) hazard detected(?: at (\w+))?(?: in (.+?))?(?: on device (\d{1,9}))?:?$")
_LEAK = re.compile(r"(?:Direct|Indirect) leak of (\d{1,30}) ?byte")
_AT = re.compile(_HEX + r" on (\w+)(?: when (reading|writing) data)?")
_KERNEL = re.compile(r" in (\"[^\"]*\"|(?!block )[^\s\"][^\"]*?)(?: on device \d+)?:?$")
_MODULE = re.compile(r"by module (\d+)")
_ALLOCATED = re.compile(r"allocated in (.+?)(?: \(serialNo:(\d{1,30})\))?$")
_BLOCK = re.compile(r"in block (\w+\([\d,\- ]*\)|\d{1,9} ?\(\w+\)|\d{1,9})")
_DEVICE = re.compile(r"on device (\d{1,9})")
_THREAD = re.compile(r"by thread (\([\d, ]*\))")
_CODE = re.compile(r"code in (?:pc current " + _HEX + r"|(.+?))(?: \(serialNo:(\d{1,30})\))?$")
_FRAME = re.compile(r"#\d{1,4} (.+)$")
_PIPES = re.compile(r"from (PIPE_\w+) to (PIPE_\w+)")
_WAITS = re.compile(r"by (PIPE_\w+)")
_ACCESS = re.compile(
    r"(PIPE_\w+) (Read|Write) at (?:\w+\(\)\+)?"
    + _HEX
    + r"(?: in block (\d{1,9}) ?\((\w+)\))?(?:.*? on device (\d{1,9}))?"
    r"(?:.*? at pc current " + _HEX + r")?(?:.*?\(serialNo:(\d{1,30})\))?"
)
_VIOLATION = re.compile(r"\[ERROR\].*Device memory access violation", re.IGNORECASE)
_FIELD = re.compile(r"(address|op_name|op_type|access_size|memory_region|memory_range)\s*[:=]\s*(.*?)\s*,?$")
_RANGE = re.compile(r"\[?\s*" + _HEX + r"\s*[-,]\s*" + _HEX)


@dataclass(frozen=True)
class Access:
    """One side of a hazard: which pipe read or wrote what, where.

    Attributes:
        pipe: such as ``PIPE_MTE2``.
        direction: ``read`` or ``write``.
        offset: in bytes, from the start of the memory in question.
        block: such as ``aiv(0)``.
        frames: its source lines, the innermost first.
    """

    pipe: str
    direction: str
    offset: int
    block: str = ""
    device: int | None = None
    pc: int | None = None
    serial: int | None = None
    frames: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" ({self.frames[0]})" if self.frames else ""
        return f"{self.pipe} {self.direction}s at +{self.offset:#x} in block {self.block or '?'}{where}"


@dataclass(frozen=True)
class Finding:
    """One fault of memory or synchronisation.

    Attributes:
        kind: ``illegal read``, ``illegal write``, ``out of bounds``, ``misaligned access``, ``illegal free``,
            ``uninitialized read``, ``leak``, ``RAW hazard``, ``WAR hazard``, ``WAW hazard``, ``deadlock``,
            ``unpaired set_flag``, ``redundant wait_flag``, ``unused memory``, ``access violation``; else the tool's
            own words.
        severity: ``error`` or ``warning``, as the tool says.
        op: the kernel, or operator.
        address, size: bytes; None where unknown.
        direction: ``read``, ``write`` or ``""``.
        memory: ``GM``, ``UB``, ``L1``, ...
        region: the first address of the memory that may be used and the one behind its last.
        block: the cores, such as ``aiv(0-3,7)``. device: its number.
        pc, serial: the place in the kernel's program, and the number of the operation.
        frames: source lines ``file:line:column``, the innermost first.
        allocated: where the memory was allocated.
        accesses: the two sides of a hazard.
        detail: whatever else is said in a few words.
        suspected: why it may be a false alarm; ``""``: it isn't suspected.
        text: the block as the tool wrote it.
    """

    kind: str
    severity: str = "error"
    op: str = ""
    op_type: str = ""
    address: int | None = None
    size: int | None = None
    direction: str = ""
    memory: str = ""
    region: tuple[int, int] | None = None
    block: str = ""
    device: int | None = None
    thread: str = ""
    pc: int | None = None
    serial: int | None = None
    frames: tuple[str, ...] = ()
    allocated: str = ""
    accesses: tuple[Access, ...] = ()
    detail: str = ""
    suspected: str = ""
    text: str = field(default="", compare=False)

    @property
    def serious(self) -> bool:
        """Whether it is a fault: memory that nobody uses is none, and what may be a false alarm isn't proven."""
        return self.kind != "unused memory" and not self.suspected

    def line(self) -> str:
        """One line: what, how large, where, by whom."""
        size = f" of {self.size} bytes" if self.size is not None else ""
        where = f" at {self.address:#x}" if self.address is not None else ""
        where += f" on {self.memory}" if self.memory else ""
        by = f" in {self.op}" if self.op else ""
        by += f", block {self.block}" if self.block else ""
        by += f", device {self.device}" if self.device is not None else ""
        way = {"read": " when reading", "write": " when writing"}.get(self.direction, "")
        way = "" if self.direction in self.kind.split() else way
        return f"{self.kind}{size}{where}{way}{by}"

    def lines(self) -> Iterator[str]:
        """The finding for a report: its line, then what it is known by."""
        yield self.line()
        if self.region is not None:
            yield f"  memory: [{self.region[0]:#x}, {self.region[1]:#x}), {self.region[1] - self.region[0]} bytes"
        if self.detail:
            yield f"  {self.detail}"
        yield from (f"  {access}" for access in self.accesses)
        if self.allocated:
            yield f"  allocated: {self.allocated}"
        yield from (f"  #{number} {frame}" for number, frame in enumerate(self.frames))
        if self.suspected:
            yield f"  suspected only: {self.suspected}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; addresses as text in hexadecimal."""
        found: dict[str, Any] = {"kind": self.kind, "severity": self.severity, "op": self.op, "op_type": self.op_type}
        found["address"] = None if self.address is None else hex(self.address)
        found.update(size=self.size, direction=self.direction, memory=self.memory)
        found["region"] = None if self.region is None else [hex(one) for one in self.region]
        found.update(block=self.block, device=self.device, frames=list(self.frames), allocated=self.allocated)
        found.update(detail="; ".join([*filter(None, [self.detail]), *map(str, self.accesses)]))
        found.update(suspected=self.suspected, line=self.line(), lines=list(self.lines()))
        return found


class KernelFrame(NamedTuple):
    """What was checked: one kernel under some tools; ``outcome``: ``clean``, ``errors``, or ``""`` without an end.

    ``ignored``: tools that the tool itself left out.
    """

    tools: tuple[str, ...]
    kernel: str
    outcome: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Log:
    """A log that was read.

    Attributes:
        kernels: the frames, in order.
        findings: in order.
        complaints: what the tool says about its own call.
        exited: how the program ended, where the tool remarks on it: ``abnormally`` or ``by signal N``.
        notes: remarks.
    """

    kernels: tuple[KernelFrame, ...] = ()
    findings: tuple[Finding, ...] = ()
    complaints: tuple[str, ...] = ()
    exited: str = ""
    notes: tuple[str, ...] = ()

    @property
    def signal(self) -> int | None:
        """The signal that ended the program, as the tool says."""
        found = re.fullmatch(r"by signal (\d+)", self.exited)
        return int(found[1]) if found else None

    @property
    def checked(self) -> bool:
        """Whether a kernel was checked to its end."""
        return any(frame.outcome for frame in self.kernels)


class Answer(NamedTuple):
    """What a log means: the verdict, why in one sentence, and remarks."""

    verdict: Verdict
    reason: str
    notes: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------ reading


def parse(text: str) -> Log:
    """Read a log, however broken; never raises.

    Args:
        text: what the tool wrote to ``--log-file`` or to its output.
    """
    reader = _Reader()
    for line in text.splitlines():
        reader.feed(_ANSI.sub("", line[:_LONGEST_LINE]).rstrip())
    reader.end()
    return Log(
        tuple(reader.kernels), tuple(reader.findings), tuple(reader.complaints), reader.exited, tuple(reader.notes)
    )


def violations(text: str) -> list[Finding]:
    """The blocks ``[ERROR] Device memory access violation detected`` of the runtime itself, in any output."""
    return [found for found in parse(text).findings if found.kind == "access violation"]


class _Reader:
    """Lines in, frames and findings out."""

    def __init__(self) -> None:
        self.kernels: list[KernelFrame] = []
        self.findings: list[Finding] = []
        self.complaints: list[str] = []
        self.exited = ""
        self.notes: list[str] = []
        self._open: list[int] = []  # frames without an end, by number
        self._block: list[str] | None = None  # of the tool, its head first
        self._severity = "error"
        self._violation: list[str] | None = None

    def feed(self, line: str) -> None:
        """Take one line."""
        if self._violation is not None:
            bare = line.strip().lstrip("=").strip()
            if _FIELD.match(bare):
                self._violation.append(bare)
                return
            self._end_violation()
        if _VIOLATION.search(line):
            self._end_block()
            rest = line.partition("detected")[2].strip(" :")
            self._violation = [line, *(part.strip() for part in re.split(r"[,;]\s*(?=\w+\s*:)", rest) if part.strip())]
            return
        place = line.find("======")
        if (head := _HEAD.match(line, max(place, 0))) is not None:
            self._end_block()
            self._severity = "error" if head[1] == "ERROR" else "warning"
            self._block = [head[2]]
        elif self._block is not None and (body := _BODY.match(line, max(place, 0))) is not None:
            said = body[1] or ""
            if said.startswith("SUMMARY"):
                self._end_block()
            elif len(self._block) < _MOST_TEXT:
                self._block.append(said)
        elif "[mssanitizer]" in line:
            self._end_block()
            self._remark(line)
        elif line and self._block is not None:
            self._end_block()  # a blank line is part of a list of leaks

    def end(self) -> None:
        """The text is over."""
        self._end_violation()
        self._end_block()

    def _remark(self, line: str) -> None:
        if (start := _START.search(line)) is not None:
            tools = tuple(word for word in re.split(r"[,|+ ]+", start[1]) if word)
            self._open.append(len(self.kernels))
            self.kernels.append(KernelFrame(tools, _bare(start[2])))
        elif (finish := _FINISH.search(line)) is not None:
            self._finish(_bare(finish[1]), "clean" if finish[2].startswith("No") else "errors")
        elif (ignored := _IGNORED.search(line)) is not None:
            self.notes.append(f"{ignored[1]} is not supported on the kernel{ignored[2]}")
            if self._open:
                number = self._open[-1]
                frame = self.kernels[number]
                self.kernels[number] = frame._replace(ignored=(*frame.ignored, ignored[1]))
        elif (exited := _EXITED.search(line)) is not None:
            self.exited = f"by signal {exited[3]}" if exited[3] else exited[2]
        elif (complaint := _COMPLAINT.search(line)) is not None:
            self.complaints.append(complaint[1])

    def _finish(self, kernel: str, outcome: str) -> None:
        """The last frame of this kernel that is open ends; an end without a beginning proves nothing."""
        for number in reversed(self._open):
            if self.kernels[number].kernel == kernel:
                self._open.remove(number)
                self.kernels[number] = self.kernels[number]._replace(outcome=outcome)
                return
        self.notes.append(f"the log has an end of kernel {kernel} without its beginning")

    def _end_violation(self) -> None:
        lines, self._violation = self._violation, None
        if lines is None:
            return
        known = {match[1]: match[2] for line in lines[1:] if (match := _FIELD.match(line)) is not None}
        span = _RANGE.search(known.get("memory_range", ""))
        self.findings.append(
            Finding(
                "access violation",
                op=known.get("op_name", ""),
                op_type=known.get("op_type", ""),
                address=_number(known.get("address", "")),
                size=_number(known.get("access_size", "")),
                memory=known.get("memory_region", ""),
                region=(int(span[1], 16), int(span[2], 16)) if span else None,
                text="\n".join(lines),
            )
        )

    def _end_block(self) -> None:
        lines, self._block = self._block, None
        if lines is None:
            return
        found = _finding(lines, self._severity)
        frame = self.kernels[self._open[-1]].kernel if self._open else ""
        self.findings += [one if one.op or one.kind == "leak" else replace(one, op=frame) for one in found]


def _bare(kernel: str) -> str:
    return kernel.strip().strip('"')


def _number(text: str) -> int | None:
    found = re.match(r"\s*(?:0[xX]([0-9a-fA-F]{1,30})|(\d{1,30}))", text)
    return None if found is None else int(found[1], 16) if found[1] else int(found[2])


def _kind(title: str, severity: str) -> Finding:
    """The finding that a block's first line announces."""
    if (sized := _SIZED.match(title)) is not None:
        kind = sized[1].replace("initialised", "initialized")
        direction = kind.rpartition(" ")[2]
        size = int(sized[2]) if sized[2] else None
        return Finding(kind, severity, size=size, direction=direction if direction in ("read", "write") else "")
    if title.startswith("illegal free"):
        return Finding("illegal free", severity)
    if (hazard := _HAZARD.match(title)) is not None:
        device = int(hazard[4]) if hazard[4] else None
        return Finding(
            f"{hazard[1]} hazard", severity, op=_bare(hazard[3] or ""), memory=hazard[2] or "", device=device
        )
    if title.startswith("Sync error"):
        return Finding("deadlock", severity)
    if (unused := _UNUSED.match(title)) is not None:
        return Finding("unused memory", severity, size=int(unused[1]) if unused[1] else None)
    lowered = title.lower()
    for kind in ("unpaired set_flag", "redundant wait_flag", "unpaired wait_flag", "redundant set_flag"):
        if lowered.startswith(kind):
            return Finding(kind, severity)
    return Finding(title[:200] or "something", severity)


def _finding(lines: Sequence[str], severity: str) -> Iterator[Finding]:
    """The findings of one block; a list of leaks is one for each."""
    title = lines[0]
    if not title.startswith("LeakCheck"):
        yield _filled(_kind(title, severity), lines)
        return
    parts: list[list[str]] = []
    for line in lines[1:]:
        if _LEAK.search(line):
            parts.append([line])
        elif parts and line:
            parts[-1].append(line)
    for part in parts:
        size = _LEAK.search(part[0])
        yield _filled(Finding("leak", severity, size=int(size[1]) if size else None), part)
    if not parts:
        yield Finding("leak", severity, text="\n".join(lines))


def _filled(found: Finding, lines: Sequence[str]) -> Finding:
    """A finding with what the other lines of its block say."""
    more: dict[str, Any] = {}
    frames: list[str] = []
    accesses: list[Access] = []
    details: list[str] = []
    for line in lines[1:]:
        line = line.strip()
        if (frame := _FRAME.match(line)) is not None:
            if accesses:
                accesses[-1] = replace(accesses[-1], frames=(*accesses[-1].frames, frame[1]))
            else:
                frames.append(frame[1])
            continue
        if (access := _ACCESS.match(line)) is not None:
            accesses.append(_access(access))
            continue
        if (at := _AT.search(line)) is not None and "address" not in more:
            more.update(address=int(at[1], 16), memory=at[2])
            if at[3]:
                more["direction"] = {"reading": "read", "writing": "write"}[at[3]]
        if (code := _CODE.match(line)) is not None:
            more.update(pc=int(code[1], 16) if code[1] else None, serial=int(code[3]) if code[3] else None)
            if code[2] and code[2] != "<unknown>":
                frames.append(code[2])
            continue
        if (allocated := _ALLOCATED.search(line)) is not None:
            more.update(allocated=allocated[1], serial=int(allocated[2]) if allocated[2] else None)
            line = line[: allocated.start()].rstrip()
        if (kernel := _KERNEL.search(line)) is not None:
            more["op"] = _bare(kernel[1])
        for name, pattern in (("block", _BLOCK), ("thread", _THREAD)):
            if (part := pattern.search(line)) is not None:
                more[name] = part[1]
        if (device := _DEVICE.search(line)) is not None:
            more["device"] = int(device[1])
        if (module := _MODULE.search(line)) is not None:
            details.append(f"by module {module[1]}")
        if (pipes := _PIPES.search(line)) is not None:
            details.append(f"from {pipes[1]} to {pipes[2]}")
        elif (waits := _WAITS.search(line)) is not None:
            details.append(f"waits: {waits[1]}")
    if accesses:
        more.setdefault("device", found.device if found.device is not None else accesses[0].device)
    more.update(frames=tuple(frames), accesses=tuple(accesses), detail="; ".join(details), text="\n".join(lines))
    return replace(found, **more)


def _access(match: re.Match[str]) -> Access:
    pipe, way, offset, number, core, device, pc, serial = match.groups()
    return Access(
        pipe,
        way.lower(),
        int(offset, 16),
        f"{core}({number})" if number else "",
        int(device) if device else None,
        int(pc, 16) if pc else None,
        int(serial) if serial else None,
    )


# ------------------------------------------------------------------------------------------------ judging


def suspect(findings: Iterable[Finding], nodes: Sequence[tuple[int, int]]) -> list[Finding]:
    """The findings, those marked that a memory pool explains.

    A pool hands a block of the device out again without the runtime's knowledge, so that using it looks like using
    memory that was freed. An access on GM that lies within one node of the pool that is in use before and after the
    test may be that.

    Args:
        findings: of a log.
        nodes: address and bytes of the pool's nodes in use, between operators.
    """
    ordered = sorted(nodes)
    return [_suspected(found, ordered) for found in findings]


def _suspected(found: Finding, nodes: Sequence[tuple[int, int]]) -> Finding:
    from bisect import bisect_right

    of_access = found.kind in ("illegal read", "illegal write", "out of bounds", "access violation")
    if found.address is None or not of_access or found.memory not in ("GM", "", "HBM", "DDR"):
        return found
    at = bisect_right(nodes, (found.address, 1 << 200)) - 1
    if at < 0:
        return found
    start, size = nodes[at]
    if found.address + max(found.size or 1, 1) > start + size:
        return found
    return replace(
        found,
        suspected=f"the address lies in a node of torch_npu's memory pool that is in use ({start:#x}, {size} bytes); "
        "run with PYTORCH_NO_NPU_MEMORY_CACHING=1 to be sure",
    )


def judge(
    log: Log,
    *,
    tools: Sequence[str] = (),
    exit_code: int | None = None,
    names: Mapping[int, str] | None = None,
) -> Answer:
    """What a log means for the test that ran.

    Args:
        log: what was read.
        tools: those that were asked for; none: any frame will do.
        exit_code: the program's own, as the one that started it saw it, negative for a signal; None: nobody saw it.
        names: of signals.

    Returns:
        MEMORY_FAULT where something was found; INFRA where nothing, or not all that was asked for, was checked to its
        end; CRASH where the program died of something else; NOT_COMPARABLE where all that was found is suspected to be
        a false alarm; else PASS.
    """
    notes = tuple(dict.fromkeys(log.notes))
    serious = [found for found in log.findings if found.serious]
    if serious:
        more = f" (and {len(serious) - 1} more)" if len(serious) > 1 else ""
        return Answer(Verdict.MEMORY_FAULT, serious[0].line() + more, notes)
    if any(frame.outcome == "errors" for frame in log.kernels) and not log.findings:
        kernel = next(frame.kernel for frame in log.kernels if frame.outcome == "errors")
        return Answer(
            Verdict.MEMORY_FAULT, f"errors were detected on kernel {kernel}, in words that can't be read", notes
        )
    signal = -exit_code if exit_code is not None and exit_code < 0 else log.signal
    if signal is not None:
        name = (names or {}).get(signal, f"signal {signal}")
        return Answer(Verdict.CRASH, f"the program was ended by {name}", notes)
    missing = _unchecked(log, tools)
    if missing:
        return Answer(Verdict.INFRA, missing, notes)
    if log.exited and exit_code is None:
        return Answer(Verdict.CRASH, f"the program exited {log.exited}", notes)
    suspected = [found for found in log.findings if found.suspected]
    if suspected:
        return Answer(Verdict.NOT_COMPARABLE, f"suspected: {suspected[0].line()}: {suspected[0].suspected}", notes)
    notes += tuple(found.line() for found in log.findings)
    kernels = len({frame.kernel for frame in log.kernels})
    return Answer(Verdict.PASS, f"no memory fault in {kernels} kernel{'s' * (kernels != 1)}", notes)


def _unchecked(log: Log, tools: Sequence[str]) -> str:
    """Why not all that was asked for was checked; ``""`` where it was."""
    if log.complaints and not log.checked:
        return f"mssanitizer refused its arguments: {log.complaints[0]}"
    if not log.checked and not log.kernels:
        return (
            "nothing was checked: mssanitizer reports no kernel (was one launched, and is it compiled for the chip's "
            "sanitizer?)"
        )
    endless = [frame for frame in log.kernels if not frame.outcome]
    if endless:
        return f"the log ends within kernel {endless[0].kernel}: it wasn't checked to its end"
    for tool in tools:
        left_out = [frame for frame in log.kernels if tool in frame.ignored]
        if left_out:
            return (
                f"{tool} didn't check kernel {left_out[0].kernel}: compile it with --cce-enable-sanitizer, or ask for "
                "other tools"
            )
        if not any(tool in frame.tools for frame in log.kernels):
            return f"{tool} checked no kernel, though it was asked for"
    return ""
