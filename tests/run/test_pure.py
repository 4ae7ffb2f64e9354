"""What supervised processes write and say, without processes."""

from __future__ import annotations

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.run import channel, journal
from pytest_ascend.run.crash import Crash, End, frames
from pytest_ascend.run.process import describe_end
from pytest_ascend.run.slots import Slot, Work

REPORT = {"outcome": "passed", "when": "call"}
JSON = st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans()))


@given(st.lists(JSON, max_size=5), st.integers(1, 40))
def test_messages_survive_any_pieces(messages, size) -> None:
    data = b"".join(map(channel.packed, messages))
    inbox, found = channel.Inbox(), []
    for start in range(0, len(data), size):
        inbox.feed(data[start : start + size])
        found += inbox.messages()
    assert found == messages


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0" * 7 + b"\x02[]", b"\0" * 7 + b"\x03{]}", b"\0" * 7 + b"\x02ab"])
def test_what_is_no_message_is_refused(data) -> None:
    inbox = channel.Inbox()
    inbox.feed(data)
    with pytest.raises(channel.Broken):
        list(inbox.messages())


def test_a_torn_line_is_not_believed(tmp_path) -> None:
    kept = journal.Journal(tmp_path / "run")
    assert kept.begin({"target": "npu"}, resume=True) == {}
    for path, names in ((kept.file(), ("a", "b")), (kept.file(), ("c",))):
        for name in names:
            journal.append(path, name, [REPORT])
    assert journal.last(path, "c") == [REPORT]
    assert journal.last(path, "b") is None
    with open(path, "ab") as file:
        file.write(json.dumps({"nodeid": "d", "reports": [REPORT]}).encode())  # no end of line: torn
    again = journal.Journal(tmp_path / "run")
    assert list(again.begin({"target": "npu"}, resume=True)) == ["a", "b", "c"]
    assert again.file() == str(kept.folder / "3.jsonl")
    with pytest.raises(journal.NotTheSame, match="target was 'npu' and is now 'cpu'"):
        again.begin({"target": "cpu"}, resume=True)
    again.end()
    assert again.begin({"target": "cpu"}, resume=True) == {}


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"run": 3, "over": false}', b"\xff\xfe"])
def test_a_broken_journal_begins_a_new_run(tmp_path, content) -> None:
    (tmp_path / "run.json").write_bytes(content)
    (tmp_path / "1.jsonl").write_bytes(b'{"nodeid": 3}\nnot json\n')
    assert journal.Journal(tmp_path).begin({}, resume=True) == {}


STACK = """Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/home/user/threads.py", line 3 in wait

Current thread 0x00007f02 (most recent call first):
  File "/home/me/test_it.py", line 8 in kernel
  File "/venv/lib/_pytest/python.py", line 157 in pytest_pyfunc_call
"""


def test_the_line_of_the_thread_that_ran_the_test() -> None:
    assert str(frames(STACK)[0]) == "/home/me/test_it.py:8 in kernel"
    crash = Crash("t.py::a", End("died of SIGABRT (abort)", STACK))
    assert crash.reason("torch.relu") == "torch.relu died of SIGABRT (abort), at /home/me/test_it.py:8 in kernel"


def test_operators_notes_and_order() -> None:
    running = {
        "op": "aten.add.Tensor",
        "inputs": ["float32[2]"],
        "phase": "backward",
        "module": "Net#2.fc",
        "number": 3,
    }
    first, again = End("died of SIGSEGV"), End("died of SIGSEGV", trail={"op": running, "running": True})
    crash = Crash("t.py::a", first, ("t.py::before",), again=again)
    record = crash.record("", "")
    assert record["culprit"]["module"] == "Net.fc"
    assert record["api"] == "aten.add.Tensor"
    assert "of the backward pass, layer Net.fc" in record["reason"]
    assert "preceding" not in record
    alone = Crash("t.py::a", first, ("t.py::before",), alone="passed").record("", "")
    assert alone["preceding"] == ["t.py::before"]
    ended = End("died of SIGSEGV", trail={"op": running, "running": False})
    assert Crash("t.py::a", first, again=ended).culprit is None  # it was over when the process died
    bad = Crash("t.py::a", first, infra="card 1 is not well").record("", "")
    assert (bad["verdict"], bad["reason"], bad["culprit"]) == ("INFRA", "card 1 is not well", None)


def test_ends_in_words() -> None:
    assert describe_end(-signal.SIGSEGV) == "died of SIGSEGV (segmentation fault)"
    assert describe_end(3) == "ended its process with exit status 3"


def test_work_is_handed_out_in_order_in_blocks_and_stolen_at_the_end() -> None:
    work, slots = Work(map(str, range(16)), 2), [Slot(i, None) for i in range(2)]
    work.fill(slots[0], slots)
    assert list(slots[0].backlog) == ["0", "1"]
    slots[0].backlog.extend("abcd")
    work.waiting.clear()
    work.fill(slots[1], slots)
    assert list(slots[1].backlog) == ["b", "c", "d"]
    assert list(slots[0].backlog) == ["0", "1", "a"]
    work.take_back(["x", "y"])
    assert list(work.waiting) == ["x", "y"]
