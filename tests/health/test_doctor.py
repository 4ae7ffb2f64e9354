"""`pytest-ascend doctor` on machines that are well, and on machines that are broken: one sentence for each fault."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ascend.health import probe, variables, versions
from pytest_ascend.health.machine import Chip, Machine, parse_npu_smi

from .patient import NO_CANN, NO_DRIVER, SMI, Patient


@pytest.fixture
def patient(tmp_path) -> Patient:
    return Patient(tmp_path)


def the_fault(patient: Patient, *words: str) -> str:
    status, screen, sentences = patient.seen()
    assert status == 1, screen
    assert len(sentences) == 1, screen
    assert len(screen.splitlines()) <= 30
    for word in words:
        assert word in sentences[0], screen
    return screen


def test_a_card_that_is_well(patient) -> None:
    patient.card()
    for tool in ("msprof", "msopprof", "mssanitizer"):
        patient.command(tool, "")
    status, screen, sentences = patient.seen()
    assert (status, sentences) == (0, []), screen
    assert "1 to compare on: --ascend-compare=npu" in screen
    assert "910B3, OK, 3389 of 65536 MB used" in screen
    assert "Ascend910B3 (Ascend910B), adds up, 61440 of 65536 MB free" in screen
    assert "conv on / matmul off (npu:0" in screen
    assert screen.endswith("nothing is wrong\n")


def test_no_torch(patient) -> None:
    the_fault(patient, "torch is not installed", "pip install 'pytest-ascend[torch]'")


def test_torch_that_cannot_be_imported(patient) -> None:
    patient.package("torch", "2.13.0", "import os; os.abort()")
    the_fault(patient, "torch can't be imported (the process died of SIGABRT)")


def test_torch_npu_without_cann(patient) -> None:
    patient.package("torch", "2.13.0")
    patient.package("torch_npu", "2.13.0", NO_CANN)
    the_fault(patient, "torch_npu 2.13.0 is installed but CANN is missing (libhccl.so", "set_env.sh")


def test_cann_that_nobody_sourced(patient) -> None:
    patient.package("torch", "2.13.0")
    patient.package("torch_npu", "2.13.0", NO_CANN)
    script = patient.root / "usr/local/Ascend/ascend-toolkit/set_env.sh"
    script.parent.mkdir(parents=True)
    script.touch()
    the_fault(patient, f"run 'source {script}'")


def test_no_driver(patient) -> None:
    patient.package("torch", "2.13.0")
    patient.package("torch_npu", "2.13.0", NO_DRIVER)
    patient.cann("9.1.0")
    the_fault(patient, "the Ascend driver is missing (libascend_hal.so")


def test_torch_of_another_release(patient) -> None:
    patient.package("torch", "2.13.0+cpu")
    patient.package("torch_npu", "2.7.1.post2", "raise ImportError('torch_npu/_C.so: undefined symbol: _ZN2at')")
    patient.cann("8.5.0")
    patient.driver()
    the_fault(patient, "torch_npu 2.7.1.post2 is made for torch 2.7.1, and this is torch 2.13.0+cpu", "torch==2.7.1")


def test_cann_of_another_release(patient) -> None:
    patient.card(cann="8.3.RC1")
    the_fault(patient, "goes with CANN 8.5.0, and this is CANN 8.3.RC1, which is older", "or torch_npu 2.7.1")


def test_a_device_that_cannot_be_read(patient) -> None:
    patient.card()
    said = "dcmi model initialized failed, because the device is used. ret is -8020"
    patient.command("npu-smi", said, status=255)
    fails = "\ntorch.npu.set_device = lambda i: exec('raise RuntimeError(\"open device 0 failed, error 507033\")')\n"
    with (patient.packages / "torch_npu/__init__.py").open("a") as file:
        file.write(fails)
    screen = the_fault(patient, said, "another container holds the device")
    assert "507033" in screen


def test_a_device_that_never_answers_or_adds_wrongly(patient) -> None:
    patient.card()
    source = patient.packages / "torch_npu/__init__.py"
    well = source.read_text()
    source.write_text(well.replace("return 1000.0", "return 999.0"))
    the_fault(patient, "npu:0 doesn't work (RuntimeError: a thousand ones add up to 999)")
    source.write_text(well.replace("set_device=lambda i: None", "set_device=lambda i: __import__('time').sleep(60)"))
    code = (
        "import json, os; from pytest_ascend.health.probe import probe; "
        "print(json.dumps(probe(('torch', 'torch_npu', 'devices'), os.environ, seconds=1)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=patient.environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["devices"] == [{"index": 0, "error": "no answer in 1 s"}]


def test_devices_that_torch_does_not_see(patient) -> None:
    patient.card()
    source = patient.packages / "torch_npu/__init__.py"
    well = source.read_text()
    source.write_text(well.replace("device_count=lambda: 1", "device_count=lambda: 0"))
    screen = the_fault(patient, "torch_npu finds no device: look at ASCEND_RT_VISIBLE_DEVICES")
    assert "unavailable: no device is visible" in screen
    source.write_text(well.replace("device_count=lambda: 1", "device_count=lambda: 1 / 0"))
    the_fault(patient, "torch_npu finds no device (ZeroDivisionError: division by zero)")


def test_a_sick_chip(patient) -> None:
    patient.card()
    patient.command("npu-smi", SMI.replace("HEALTH", "Alarm "))
    the_fault(patient, "NPU 0 is in health Alarm", "ASCEND_RT_VISIBLE_DEVICES")


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_node_without_permission() -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders aren't open to another user
    try:
        (folder / "dev").mkdir()
        folder.chmod(0o755)
        node = folder / "dev/davinci0"
        node.touch(0o000)
        node.chmod(0o000)
        machine = Machine(environment={}, root=folder)
        with as_nobody():
            assert machine.closed() == [node]
        node.chmod(0o666)
        with as_nobody():
            assert machine.closed() == []
    finally:
        shutil.rmtree(folder)


def test_npu_smi_of_a_card_with_two_chips() -> None:
    text = """
| npu-smi 24.1.rc3.3               Version: 24.1.rc3.3                                           |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 0     910C1               | OK            | 198.7       43                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          56844/ 65536         |
| 0     910C1               | Warning       | -           43                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3012 / 65536         |
"""
    found = parse_npu_smi(text)
    assert found.version == "24.1.rc3.3"
    assert found.chips == (Chip(0, "910C1", "OK", 56844, 65536), Chip(1, "910C1", "Warning", 3012, 65536))


@pytest.mark.parametrize("text", ["", "|||", "| 0 x | OK | |\n| 0 | :: | / |", "\x00| 1 | 2 | 3 |" * 100])
def test_npu_smi_of_nonsense(text) -> None:
    assert all(chip.total == 0 for chip in parse_npu_smi(text).chips)


@pytest.mark.parametrize(
    ("torch", "torch_npu", "level"),
    [("2.7.1", "2.7.1.post2", "ok"), ("2.7.1+cpu", "2.7.1+gitabc", "ok"), ("2.14.1", "2.14.0", "note"),
     ("2.8.0", "2.7.1", "wrong"), ("unknown", "2.7.1", "ok")],
)  # fmt: skip
def test_which_torch_fits(torch, torch_npu, level) -> None:
    found, sentence = versions.torch_fits(torch, torch_npu)
    assert (found, bool(sentence)) == (level, level != "ok")


@pytest.mark.parametrize(
    ("torch_npu", "cann", "level"),
    [("2.7.1.post2", "8.5.0", "ok"), ("2.4.0", "8.0.RC2", "wrong"), ("2.4.0", "8.0.0", "note"),
     ("2.4.0.post2", "8.0.RC3", "wrong"), ("2.4.0.post2", "8.0.0.alpha003", "wrong"), ("2.99.0", "8.0.0", "ok"),
     ("2.10.0", "9.1.0-beta1", "wrong"), ("2.9.0.post3", "9.0.0", "wrong"), ("2.9.0", "strange", "ok")],
)  # fmt: skip
def test_which_cann_fits(torch_npu, cann, level) -> None:
    found, sentence = versions.cann_fits(torch_npu, cann)
    assert (found, bool(sentence)) == (level, level != "ok")


def test_variables_that_change_numerics_are_explained() -> None:
    for variable in variables.NUMERIC:
        value = next(value for value in ("0", "1") if value not in variable.silent)
        first, last = variables.findings({variable.name: value})
        assert (first.name, first.level, bool(first.todo)) == (variable.name, "note", True)
        assert first.todo.startswith(f"{variable.name}={value}: ")
        assert last.found.startswith(f"{len(variables.NUMERIC) - 1} others")
    (only,) = variables.findings({})
    assert only.level == "ok"
    (wrong, _) = variables.findings({"ASCEND_RT_VISIBLE_DEVICES": "0,x"})
    assert wrong.level == "wrong"


def test_the_emulator_is_asked_in_a_process_of_its_own() -> None:
    found = probe.probe(("torch", "emulated"), os.environ)
    assert found["emulated"]["title"] == "npu:0 (emulated Ascend910B)"
