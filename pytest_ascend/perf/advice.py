"""What kind of work each operator is, and what to do about the expensive ones: numbers in, sentences out.

The rules are those of the usual hand analysis of a profile on the card: format conversions that surround an operator
can be removed, chains of small element-wise operators can be fused, copies between host and device in a loop can be
moved out of it, a device that waits is fed too slowly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_ascend.judge.verdict import Word

from .operators import OperatorRow, OperatorTable


class OperatorClass(Word):
    """What limits an operator, or what it is there for."""

    COMPUTE = "compute"
    MEMORY = "memory-bound"
    LAYOUT = "layout conversion"
    COPY = "copy"
    COMMUNICATION = "communication"
    SCALAR = "scalar-bound"
    AI_CPU = "AI CPU"
    HOST = "host-bound"
    OTHER = "other"


@dataclass(frozen=True)
class ClassShare:
    """All operators of one class together; times in microseconds, ratio 0 to 1."""

    operators: OperatorClass
    calls: int
    total_us: float
    wait_us: float
    ratio: float


@dataclass(frozen=True)
class Advice:
    """One thing to do, with the time that it is about (microseconds) and that time's part of the whole, 0 to 1."""

    about: OperatorClass
    sentence: str
    total_us: float
    ratio: float


_LAYOUT = re.compile(r"TransData|^Transpose|format_?cast|^aten::(contiguous|permute_copy)$", re.I)
_COPY = re.compile(
    r"TensorMove|memcpy|^ViewCopy$|InplaceCopy|^Identity$|^aten::(copy_|_to_copy|to|clone|_local_scalar_dense|item)$",
    re.I,
)
_COMMUNICATION = re.compile(r"^(hcom_|hccl|nccl|c10d::|allreduce|allgather|reducescatter|broadcast_)", re.I)
_COMPUTE = re.compile(
    r"MatMul|(^|aten::|aclnn)(convolution|conv\d|mm|addmm|bmm|baddbmm|linear|mv|dot)|Conv[23]D|FlashAttention|_attention"
    r"|Gemm|convolution",
    re.I,
)
#: what reads or writes memory and hardly computes, whatever core it runs on
_MOVING = re.compile(
    r"^(ZerosLike|OnesLike|Fill|MemSet|Slice|StridedSlice\w*|Gather\w*|Scatter\w*|Index\w*|Concat\w*|Split\w*|Pack|Pad\w*|Tile"
    r"|BroadcastTo|aten::(zero_|fill_|cat|index\w*|gather|embedding))$",
    re.I,
)
#: the types of small element-wise operators, of which a chain can be one operator
_ELEMENTWISE = re.compile(
    r"^(aten::)?(Add|Sub|Mul|Div|RealDiv|Muls|Adds|Cast|Relu|Gelu|Sigmoid|Tanh|Exp|Log|Sqrt|Rsqrt|Neg|Abs|Pow|Square|Sign"
    r"|Maximum|Minimum|Silu|Swish|Axpy|Select|Where|ReluGrad|ThresholdGrad\w*|Reciprocal|Erf)(V\d)?_?$",
    re.I,
)


def classify(row: OperatorRow) -> OperatorClass:
    """The class of one operator.

    What it is for comes first (communication, copies, conversions of the format); then the counters of the core's units
    where the profile has them: the busiest unit is what limits it; then what its type and its core are known for.
    Vector operators without counters count as memory-bound, because they read each value for very few operations.
    """
    names = (row.kind, row.name)
    core = row.core.upper()
    if core == "COMMUNICATION" or any(_COMMUNICATION.search(name) for name in names):
        return OperatorClass.COMMUNICATION
    if any(_LAYOUT.search(name) for name in names):
        return OperatorClass.LAYOUT
    if any(_COPY.search(name) for name in names):
        return OperatorClass.COPY
    if "AI_CPU" in core or core == "AICPU":
        return OperatorClass.AI_CPU
    if row.host_us is not None and row.device_us is not None and row.host_us > row.device_us:
        return OperatorClass.HOST
    if row.busy:
        return _busiest(row)
    if _MOVING.search(row.kind) or row.name.endswith("_MemSet"):
        return OperatorClass.MEMORY
    if any(_COMPUTE.search(name) for name in names) or core in ("AI_CORE", "MIX_AIC", "CUBE", "MIX"):
        return OperatorClass.COMPUTE
    if core in ("AI_VECTOR_CORE", "MIX_AIV", "VECTOR") or any(_ELEMENTWISE.search(name) for name in names):
        return OperatorClass.MEMORY
    return OperatorClass.OTHER


def _busiest(row: OperatorRow) -> OperatorClass:
    busy = row.busy
    computing = max(busy.get("cube", 0.0), busy.get("vector", 0.0))
    moving = max(busy.get(unit, 0.0) for unit in ("mte1", "mte2", "mte3", "fixpipe"))
    deciding = busy.get("scalar", 0.0)
    if deciding > max(computing, moving):
        return OperatorClass.SCALAR
    return OperatorClass.COMPUTE if computing >= moving else OperatorClass.MEMORY


def classes(table: OperatorTable) -> tuple[ClassShare, ...]:
    """How the table's time is shared among the classes, largest first."""
    whole = table.total_us
    shares = [
        ClassShare(
            kind,
            sum(row.calls for row in rows),
            (time := sum(row.total_us for row in rows)),
            sum(row.wait_us or 0.0 for row in rows),
            time / whole if whole else 0.0,
        )
        for kind, rows in _by_class(table).items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.total_us, share.operators.value)))


def _by_class(table: OperatorTable) -> dict[OperatorClass, list[OperatorRow]]:
    groups: dict[OperatorClass, list[OperatorRow]] = {}
    for row in table.rows:
        groups.setdefault(classify(row), []).append(row)
    return groups


#: A class has to take this part of the time before anything is said about it.
WORTH_SAYING = 0.02
#: ... and waiting this part of the time that the device has.
WORTH_WAITING = 0.2
#: An element-wise operator this short costs more to start than to run.
SHORT_US = 20.0
#: So many calls per step are a loop.
LOOP = 3


def advice(table: OperatorTable) -> tuple[Advice, ...]:
    """What to do about this profile, the largest part of the time first; nothing where nothing is worth saying.

    Tables of steps and of a simulator get none: their rows are no operators.
    """
    if table.level not in ("kernel", "operator"):
        return ()
    by_class = _by_class(table)
    said = [
        *_conversions(table, by_class.get(OperatorClass.LAYOUT, [])),
        *_copies(table, by_class.get(OperatorClass.COPY, [])),
        *_chains(table),
        *_waiting(table, by_class),
        *(one for about in _PLAIN for one in _plain(table, about, by_class.get(about, []))),
        *_communication(table, by_class.get(OperatorClass.COMMUNICATION, [])),
    ]
    return tuple(sorted(said, key=lambda one: (-one.total_us, one.about.value)))


def _many(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _worth(table: OperatorTable, rows: Iterable[OperatorRow]) -> tuple[float, float, int, str] | None:
    """Time, its part of the whole, calls and the largest operator of the rows, where they are worth a sentence."""
    rows = list(rows)
    time = sum(row.total_us for row in rows)
    ratio = time / table.total_us if table.total_us else 0.0
    if not rows or ratio < WORTH_SAYING:
        return None
    largest = max(rows, key=lambda row: row.total_us)
    where = f"{largest.kind}" + (f" of {largest.shapes}" if largest.shapes else "")
    return time, ratio, sum(row.calls for row in rows), where


def _conversions(table: OperatorTable, rows: list[OperatorRow]) -> list[Advice]:
    worth = _worth(table, rows)
    if worth is None:
        return []
    time, ratio, calls, where = worth
    formats = {row.formats.split(";")[0].split(":")[0].removeprefix("FORMAT_") for row in rows if row.formats}
    between = f" (from {', '.join(sorted(formats))})" if formats else ""
    many = _many(calls, "conversion of the layout", "conversions of the layout")
    sentence = (
        f"{many}{between} cost {time:,.0f} us, most in {where}: keep one format through the chain "
        "(torch.npu.config.allow_internal_format = False, or npu_format_cast of weights once, at load)"
    )
    return [Advice(OperatorClass.LAYOUT, sentence, time, ratio)]


def _copies(table: OperatorTable, rows: list[OperatorRow]) -> list[Advice]:
    worth = _worth(table, rows)
    if worth is None:
        return []
    time, ratio, calls, where = worth
    often = calls / table.steps
    loop = f", {often:,.0f} per step: move them out of the loop," if often >= LOOP else ":"
    sentence = (
        f"{_many(calls, 'copy', 'copies')} cost {time:,.0f} us, most in {where}{loop} keep tensors on one device and "
        "in one dtype, and call .item() and .cpu() once, at the end"
    )
    return [Advice(OperatorClass.COPY, sentence, time, ratio)]


def _chains(table: OperatorTable) -> list[Advice]:
    short = [
        row for row in table.rows
        if _ELEMENTWISE.search(row.kind) and row.calls and row.total_us / row.calls < SHORT_US
    ]  # fmt: skip
    worth = _worth(table, short)
    if worth is None or worth[2] < LOOP or len({row.kind for row in short}) < 2:
        return []
    time, ratio, calls, _ = worth
    kinds: dict[str, float] = {}
    for row in short:
        kinds[row.kind] = kinds.get(row.kind, 0.0) + row.total_us
    first = ", ".join(sorted(kinds, key=lambda kind: -kinds[kind])[:4])
    sentence = (
        f"{calls} element-wise operators ({first}) take under {SHORT_US:.0f} us each, {time:,.0f} us together: fuse "
        "chains of them (torch_npu's npu_rms_norm, npu_swiglu, npu_rotary_mul, fused optimizers, or torch.compile)"
    )
    return [Advice(OperatorClass.MEMORY, sentence, time, ratio)]


def _waiting(table: OperatorTable, by_class: Mapping[OperatorClass, list[OperatorRow]]) -> list[Advice]:
    if table.level != "kernel":
        return []
    rows = [row for about, some in by_class.items() if about is not OperatorClass.COMMUNICATION for row in some]
    wait, busy = sum(row.wait_us or 0.0 for row in rows), sum(row.total_us for row in rows)
    if not wait or wait < WORTH_WAITING * (wait + busy):
        return []
    sentence = (
        f"the device waited {wait:,.0f} us for {busy:,.0f} us of work: the host feeds it too slowly; use larger "
        "batches, TASK_QUEUE_ENABLE=2, fewer synchronisations (.item(), print), or a captured graph"
    )
    return [Advice(OperatorClass.HOST, sentence, wait, wait / (wait + busy))]


#: What is said of a class whose operators need no closer look: how they are counted, and what to do.
_PLAIN = {
    OperatorClass.HOST: (
        "in {many} the host took longer than the device, {time:,.0f} us, most in {where}: "
        "use larger batches, fuse small operators, or set TASK_QUEUE_ENABLE=2"
    ),
    OperatorClass.AI_CPU: (
        "{many} ran on the AI CPU and not on an AI core, {time:,.0f} us, most in {where}: "
        "give them a dtype that the AI core takes (int32 or float32 in place of int64 or float64)"
    ),
    OperatorClass.SCALAR: (
        "{many} kept the scalar unit busiest, {time:,.0f} us, most in {where}: small or badly aligned shapes leave the "
        "cube and the vector unit idle; make the last dimension a multiple of 16, or the batch larger"
    ),
}


def _plain(table: OperatorTable, about: OperatorClass, rows: list[OperatorRow]) -> list[Advice]:
    worth = _worth(table, rows)
    if worth is None:
        return []
    time, ratio, calls, where = worth
    sentence = _PLAIN[about].format(many=_many(calls, "call", "calls"), time=time, where=where)
    return [Advice(about, sentence, time, ratio)]


def _communication(table: OperatorTable, rows: list[OperatorRow]) -> list[Advice]:
    worth = _worth(table, rows)
    if worth is None or worth[1] < WORTH_WAITING:
        return []
    time, ratio, calls, where = worth
    sentence = (
        f"{_many(calls, 'collective call', 'collective calls')} cost {time:,.0f} us, most in {where}: look at "
        "step_trace_time.csv for the part that computing doesn't hide, and whether one rank comes late"
    )
    return [Advice(OperatorClass.COMMUNICATION, sentence, time, ratio)]
