"""``@pytest.mark.ascend_leaks(steps=200)``: the test's body is called so many times, and memory must not grow."""

from __future__ import annotations

import gc
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ascend.judge.verdict import CheckResult, Verdict
from pytest_ascend.session import AscendSession, ComparisonFailed, Record

if TYPE_CHECKING:
    from pytest_ascend.health.leaks import Leak, Looked

__all__ = ["CRITERION", "MARKER", "call", "ended", "steps_of"]

CRITERION = "leaks"
MARKER = "ascend_leaks"
STEPS = 200
_GREW = pytest.StashKey[dict[str, int]]()
_SHARE = 0.1  # of what grew may be left when it counts as freed


class Leaked(ComparisonFailed):
    """Memory that grows from call to call; its text says how fast, from which line, and who holds it."""

    __module__ = "builtins"
    bare = True

    def __init__(self, result: CheckResult, record: Record) -> None:
        super().__init__(result, record)
        lines = [f"{record['verdict']}: {record['reason']}"]
        for found in record["memory_faults"]:
            lines += found["lines"]
        lines += [f"note: {note}" for note in record["notes"]]
        self.args = ("\n".join([*lines, f"reproduce: {record['reproducer']}"]),)


def steps_of(item: pytest.Item) -> int | None:
    """How often the test is called; None for one without the marker. A bad marker fails it, in one sentence."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return None
    from pytest_ascend.health.leaks import LEAST

    strange = [*map(repr, marker.args), *(name for name in marker.kwargs if name != "steps")]
    if strange:
        pytest.fail(f"@pytest.mark.{MARKER} knows steps=, not {strange[0]}", pytrace=False)
    steps = marker.kwargs.get("steps", STEPS)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < LEAST:
        pytest.fail(
            f"@pytest.mark.{MARKER}: steps={steps!r}: give a whole number, {LEAST} or more: a trend needs as many",
            pytrace=False,
        )
    return steps


def call(session: AscendSession, item: pytest.Function) -> bool | None:
    """Call a marked test's body again and again and judge its memory; None: it isn't marked."""
    __tracebackhide__ = True
    steps = steps_of(item)
    if steps is None or session.child is not None:
        return None
    if inspect.iscoroutinefunction(item.obj):
        pytest.fail(f"@pytest.mark.{MARKER} can't repeat a coroutine: call it in a plain function", pytrace=False)
    from pytest_ascend.health.leaks import look

    names = inspect.signature(item.obj).parameters
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name in names}
    target = session.target() if session.on or session.watches or session.sanitizes else None
    if target is not None and target.name == "cpu":
        target = None  # its memory is the host's
    looked = look(lambda: item.obj(**arguments), steps, target, heap=not session.sanitizes)
    result, record = _recorded(session, item, looked)
    arguments.clear()  # or the traceback would hold them
    grows = any(leak.what == "device" for leak in looked.leaks)
    if grows and looked.before is not None and looked.after is not None:
        item.stash[_GREW] = {"before": looked.before, "grew": looked.after - looked.before}
    if session.outcome(record) in ("failed", "error"):
        raise Leaked(result, record)
    return True


def _recorded(session: AscendSession, item: pytest.Function, looked: Looked) -> tuple[CheckResult, Record]:
    verdict, reason = Verdict.PASS, f"no memory grew in {looked.calls} calls"
    if looked.leaks:
        verdict, reason = Verdict.MEMORY_FAULT, looked.leaks[0].line()
    known = session.on or session.watches or session.sanitizes
    result = CheckResult(
        verdict,
        reason=reason,
        api=item.originalname or item.name,
        criterion=CRITERION,
        target=session.target().title() if known else "host",
        notes=looked.notes,
        reproducer=session.reproduce(item) if known else f"pytest {session.argument(item)}",
    )
    record = session.record(item, result, None)
    record.update(tools=[CRITERION], memory_faults=[_fault(leak) for leak in looked.leaks])
    return result, record


def _fault(leak: Leak) -> dict[str, Any]:
    """A leak as a results file has memory faults."""
    lines = [leak.line(), *(f"  made by {place}" for place in leak.places)]
    lines += [f"  held by {owner}" for owner in leak.owners]
    return {
        **dict.fromkeys(("op_type", "direction", "block", "suspected"), ""),
        **dict.fromkeys(("address", "region", "device"), None),
        "kind": "leak",
        "severity": "error",
        "op": leak.places[0].partition(",")[0] if leak.places and "::" in leak.places[0] else "",
        "size": round(leak.growth.rate) if leak.what != "python" else None,
        "memory": "GM" if leak.what == "device" else "host",
        "frames": list(leak.places),
        "allocated": leak.places[0] if leak.places else "",
        "detail": "; ".join(leak.owners),
        "line": leak.line(),
        "lines": lines,
    }


def ended(session: AscendSession, item: pytest.Item) -> str:
    """After a test's fixtures are gone: whether what grew was freed with them; ``""`` where nothing grew."""
    grew = item.stash.get(_GREW, None)
    if grew is None:
        return ""
    vars(item).get("funcargs", {}).clear()  # pytest drops them a little later
    gc.collect()
    left = session.target().allocated() - grew["before"]
    if left <= _SHARE * grew["grew"]:
        return "what grew was freed when the test ended: the test or its fixtures held it"
    return f"{left:,} bytes of it are still held after the test has ended"
