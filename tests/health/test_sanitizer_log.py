"""msSanitizer's log: what each sample says, and that nothing broken ever passes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from pytest_ascend.health.sanitizer import TOOLS, judge, parse, suspect, violations
from pytest_ascend.judge.verdict import Verdict

SAMPLES = Path(__file__).parent.parent / "data" / "mssanitizer"
ADD = "add_custom(unsigned char*, unsigned char*, unsigned char*)"
CPP = "/home/user/op/add_custom.cpp"
FAULT, INFRA, CRASH, PASS = Verdict.MEMORY_FAULT, Verdict.INFRA, Verdict.CRASH, Verdict.PASS

# name → verdict, findings as (kind, size, address, memory, op, block, device, frames, direction)
EXPECTED = {
    "memcheck_clean": (PASS, []),
    "memcheck_errors": (
        FAULT,
        [
            ("illegal read", 224, 0x12C0C0025000, "GM", ADD, "aiv(0-3,7)", 0, (f"{CPP}:18:5", f"{CPP}:52:8"), "read"),
            ("illegal write", 768, 0, "UB", ADD, "aiv(0)", 0, (f"{CPP}:33:9",), "write"),
            ("out of bounds", 256, 0x12C0C00250FC, "GM", ADD, "aiv(9)", 0, (f"{CPP}:21:5",), "write"),
            ("misaligned access", 13, 6, "UB", ADD, "aiv(0)", 0, (), ""),
            ("illegal free", None, 0x124080023000, "GM", ADD, "", None, ("add_custom.cpp:84",), ""),
        ],
    ),
    "memcheck_leak_doc_format": (
        FAULT,
        [
            ("leak", 96, 0x124080023000, "GM", "", "", None, (), ""),
            ("leak", 1024, 0x124080024000, "GM", "", "", None, (), ""),
        ],
    ),
    "memcheck_leak_head_2026": (
        FAULT,
        [
            ("leak", 96, 0x124080023000, "GM", "", "", None, (), ""),
            ("leak", 1024, 0x124080024000, "GM", "", "", None, (), ""),
        ],
    ),
    "memcheck_simt_ascend950": (
        FAULT,
        [
            ("illegal read", 4, 0x300000028FFC, "GM", "vec_add", "aiv(0-1)", 0, ("/home/user/simt/kernel.cpp:16:21",),
             "read"),
        ],
    ),
    "memcheck_unused": (
        INFRA,
        [("unused memory", 1024, 0x1240C0026000, "GM", "", "", None, ("add_custom.cpp:2",), "")],
    ),
    "initcheck_errors": (
        FAULT,
        [("uninitialized read", 256, 0x400, "UB", ADD, "aiv(0-7)", 3, (f"{CPP}:126:9",), "read")],
    ),
    "racecheck_errors": (
        FAULT,
        [
            ("RAW hazard", None, None, "GM", ADD, "", 0, (), ""),
            ("WAR hazard", None, None, "UB", ADD, "", 0, (), ""),
        ],
    ),
    "synccheck_errors": (
        FAULT,
        [
            ("unpaired set_flag", None, None, "", ADD, "aiv(0)", 0, (f"{CPP}:36:9",), ""),
            ("redundant wait_flag", None, None, "", ADD, "aiv(0)", 0, (f"{CPP}:41:5",), ""),
        ],
    ),
    "synccheck_locked_up": (
        FAULT,
        [("deadlock", None, None, "", "kernel", "aiv(0)", 1, ("/home/user/op/kernel.cpp:9:5",), "")],
    ),
    "bad_args": (INFRA, []),
    "dbi_ignored_tool": (PASS, []),
    "user_program_failed": (CRASH, []),
}  # fmt: skip


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.log").read_text()


def test_every_sample_is_expected() -> None:
    assert {path.stem for path in SAMPLES.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_samples(name, newline) -> None:
    log = parse(sample(name).replace("\n", newline))
    verdict, findings = EXPECTED[name]
    found = [
        (f.kind, f.size, f.address, f.memory, f.op, f.block, f.device, f.frames, f.direction) for f in log.findings
    ]
    assert found == findings
    assert judge(log).verdict is verdict


def test_what_else_the_samples_say() -> None:
    leaks = [parse(sample(name)).findings for name in ("memcheck_leak_doc_format", "memcheck_leak_head_2026")]
    assert [[leak.allocated for leak in each] for each in leaks] == [
        ["add_custom.cpp:14", "<unknown>:0"],
        ["add_custom.cpp:14", "<unknown>"],
    ]
    assert [leak.serial for leak in leaks[1]] == [37, 55]
    assert leaks[1][1].detail == "by module 7"
    first, second = parse(sample("racecheck_errors")).findings
    assert [(a.pipe, a.direction, a.offset, a.block, a.pc, a.serial, a.frames) for a in first.accesses] == [
        ("PIPE_MTE2", "write", 0, "aiv(0)", 0xA98, 14, (f"{CPP}:17:5",)),
        ("PIPE_MTE3", "read", 0, "aiv(0)", 0xAD4, 17, (f"{CPP}:22:5",)),
    ]
    assert [a.block for a in second.accesses] == ["aiv(0)", "aiv(1)"]
    assert parse(sample("memcheck_simt_ascend950")).findings[0].thread == "(1,0,0)"
    assert [f.detail for f in parse(sample("synccheck_errors")).findings] == ["from PIPE_V to PIPE_MTE2"] * 2
    log = parse(sample("synccheck_locked_up"))
    assert (log.signal, log.findings[0].detail) == (2, "waits: PIPE_V")
    assert judge(parse(sample("bad_args"))).reason.endswith("both --check-cann-heap and --check-device-heap")


VIOLATION = """some output
[ERROR] Device memory access violation detected
  address: 0x12c041200400
  op_name: add_custom_0
  op_type: AddCustom
  access_size: 64
  memory_region: GM
  memory_range: [0x12c041200000 - 0x12c041200400)
more output
"""


def test_the_block_of_the_runtime() -> None:
    (found,) = violations(VIOLATION)
    assert (found.kind, found.op, found.op_type, found.address, found.size, found.memory, found.region) == (
        "access violation",
        "add_custom_0",
        "AddCustom",
        0x12C041200400,
        64,
        "GM",
        (0x12C041200000, 0x12C041200400),
    )
    assert judge(parse(VIOLATION)).verdict is FAULT
    assert violations(sample("memcheck_errors")) == []


@pytest.mark.parametrize(
    ("text", "verdict", "why"),
    [
        ("", INFRA, "nothing was checked"),
        ("Traceback (most recent call last):\nOSError: no\n", INFRA, "nothing was checked"),
        ("===== 3 passed in 0.1s =====\n", INFRA, "nothing was checked"),
        ("".join(sample("memcheck_clean").splitlines(True)[:1]), INFRA, "ends within kernel add_custom"),
        ("".join(sample("memcheck_clean").splitlines(True)[1:]), INFRA, "nothing was checked"),
        ("".join(sample("memcheck_errors").splitlines(True)[:2]), FAULT, "illegal read"),
        (
            sample("memcheck_clean").replace("No error detected.", "See all detected errors above."),
            FAULT,
            "can't be read",
        ),
        (sample("memcheck_clean") * 2 + sample("initcheck_errors"), FAULT, "uninitialized read"),
        ("====== ERROR: something new of size 4\n", FAULT, "something new"),
    ],
)
def test_broken_logs(text, verdict, why) -> None:
    answer = judge(parse(text))
    assert answer.verdict is verdict
    assert why in answer.reason


def test_a_tool_that_checked_nothing_is_an_error() -> None:
    log = parse(sample("dbi_ignored_tool"))
    assert judge(log, tools=["memcheck"]).verdict is PASS
    assert "--cce-enable-sanitizer" in judge(log, tools=["memcheck", "racecheck"]).reason
    assert judge(log, tools=["memcheck", "racecheck"]).verdict is INFRA
    assert judge(parse(sample("memcheck_clean")), tools=["synccheck"]).verdict is INFRA


def test_exit_codes_are_the_programs_own() -> None:
    clean, failed = parse(sample("memcheck_clean")), parse(sample("user_program_failed"))
    assert judge(clean, exit_code=1).verdict is PASS  # the test says itself that it failed
    assert judge(failed, exit_code=1).verdict is PASS
    crashed = judge(clean, exit_code=-11, names={11: "SIGSEGV"})
    assert (crashed.verdict, "SIGSEGV" in crashed.reason) == (CRASH, True)
    assert judge(parse(sample("memcheck_errors")), exit_code=-11).verdict is FAULT


def test_a_live_node_of_the_pool_makes_it_suspected() -> None:
    log = parse(sample("memcheck_errors"))
    around = suspect(log.findings, [(0x12C0C0025000 - 512, 4096), (0x10, 8)])
    assert [bool(found.suspected) for found in around] == [True, False, True, False, False]
    beyond = suspect(log.findings, [(0x12C0C0025000 - 512, 600)])  # it runs over the node's end
    assert not beyond[0].suspected
    import dataclasses

    only = dataclasses.replace(log, findings=(around[0],))
    assert judge(only).verdict is Verdict.NOT_COMPARABLE
    assert "PYTORCH_NO_NPU_MEMORY_CACHING=1" in judge(only).reason


def test_fuzzed_logs_never_pass_without_a_frame() -> None:
    """Samples cut, spliced and with bytes and lines exchanged: no crash, and no pass without a whole frame."""
    random_ = random.Random(8)
    texts = [path.read_text() for path in sorted(SAMPLES.glob("*.log"))] + [VIOLATION]
    words = ["======", "[mssanitizer]", "0x" + "f" * 40, "(" * 50, "on GM", "PIPE_V", "\x00", "\x1b[31m", "é" * 9, "\n"]
    passes = 0
    for _ in range(int(os.environ.get("ASCEND_FUZZ", "2000"))):
        text = "".join(random_.choice(texts) for _ in range(random_.randint(1, 3)))
        for _ in range(random_.randint(0, 8)):
            i, j = sorted(random_.randint(0, len(text)) for _ in range(2))
            j = min(j, i + random_.choice([1, 5, 80, 400]))
            what = random_.random()
            if what < 0.4:
                text = text[:i] + text[j:]
            elif what < 0.7:
                text = text[:i] + random_.choice(words) + text[i:]
            elif what < 0.9:
                lines = text.splitlines(True)
                random_.shuffle(lines)
                text = "".join(lines)
            else:
                text = text[: random_.randint(0, len(text))]
        log = parse(text)
        tools = random_.sample(TOOLS, random_.randint(0, 2))
        answer = judge(log, tools=tools, exit_code=random_.choice([None, 0, 1, -6]))
        for found in log.findings:
            assert "".join(found.lines())
            found.to_dict()
        if answer.verdict is PASS:
            passes += 1
            assert "Sanitizer finished on kernel" in text
            assert any(frame.outcome == "clean" for frame in log.kernels)
            assert not any(found.serious for found in log.findings)
    assert passes > 5  # or the fuzz shows nothing
