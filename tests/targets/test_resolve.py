"""Specs, and what a user reads when a target isn't there. Each case runs in a process of its own, as imports stick."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ascend.targets import Spec, TargetUnavailable, explain_import_failure, parse, resolve

CARD = """
import sys, types, torch
calls = []
npu = types.ModuleType("torch_npu.npu")
npu.is_available = lambda: {available}
npu.device_count = lambda: 2
npu.is_initialized = lambda: False
npu.get_soc_version = lambda: calls.append("get_soc_version") or 223
npu.matmul = types.SimpleNamespace(allow_hf32=False)
npu.conv = types.SimpleNamespace(allow_hf32=True)
npu.utils = types.SimpleNamespace(
    is_support_inf_nan=lambda: calls.append("is_support_inf_nan") or True, get_cann_version=lambda m: "8.5.0"
)
torch.npu = npu
def _autoload(): pass
"""
BROKEN = (
    'raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")\ndef _autoload(): ...'
)


def fake_torch_npu(folder: Path, source: str) -> Path:
    """A torch_npu distribution in a folder of its own, with the entry point torch loads backends by."""
    (folder / "torch_npu").mkdir()
    (folder / "torch_npu" / "__init__.py").write_text(source)
    info = folder / "torch_npu-2.14.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.14.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    return folder


def python(code: str, folder: Path, **environment: str) -> str:
    """What a fresh interpreter prints."""
    env = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    env.update(environment, PYTHONPATH=os.pathsep.join([str(folder), str(Path(__file__).parents[2])]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


REFUSAL = """
from pytest_ascend.targets import TargetUnavailable, resolve
try:
    target = resolve({spec!r})
except TargetUnavailable as error:
    print(error)
else:
    print("RESOLVED", target.title())
"""


@pytest.mark.parametrize(
    ("spec", "parsed"),
    [
        ("auto", Spec("auto")),
        ("npu", Spec("npu")),
        ("npu:1", Spec("npu", 1)),
        ("emulated", Spec("emulated")),
        ("emulated:Ascend910A", Spec("emulated", 0, "Ascend910A")),
        ("emulated:1", Spec("emulated", 1)),
        ("emulated:Ascend910A:1", Spec("emulated", 1, "Ascend910A")),
        ("cuda", Spec("cuda")),
        ("cuda:3", Spec("cuda", 3)),
        ("cpu", Spec("cpu")),
    ],
)
def test_specs_are_taken_apart(spec, parsed):
    assert parse(spec) == parsed


@pytest.mark.parametrize("spec", ["", "gpu", "npu:one", "npu:-1", "cpu:0", "auto:1", "cuda:Ascend910A", "npu:", "NPU"])
def test_what_is_no_spec_is_refused_with_the_known_ones(spec):
    with pytest.raises(ValueError, match="emulated:Ascend910A"):
        parse(spec)


@pytest.mark.parametrize("spec", ["auto", "npu", "cpu"])
def test_torch_npu_without_cann_gets_one_sentence_naming_the_library_and_the_setting(tmp_path, spec):
    printed = python(REFUSAL.format(spec=spec), fake_torch_npu(tmp_path, BROKEN))
    assert len(printed.splitlines()) == 1
    for word in ("torch_npu 2.14.0", "CANN is missing", "libhccl.so", "set_env.sh", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"):
        assert word in printed


def test_a_broken_torch_npu_is_not_passed_over_when_torch_itself_loads(tmp_path):
    folder = fake_torch_npu(tmp_path, BROKEN)
    printed = python(REFUSAL.format(spec="auto"), folder, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "libhccl.so" in printed
    assert "--ascend-compare=cpu, or uninstall torch_npu" in printed


def test_beside_an_installed_torch_npu_there_is_no_emulated_device_and_what_is_advised_works(tmp_path):
    folder = fake_torch_npu(tmp_path, BROKEN)
    refused = python(REFUSAL.format(spec="emulated"), folder)
    assert len(refused.splitlines()) == 1
    assert "uninstall torch_npu" in refused
    assert python(REFUSAL.format(spec="cpu"), folder, TORCH_DEVICE_BACKEND_AUTOLOAD="0").startswith("RESOLVED cpu")


def test_importing_torch_for_the_emulated_device_leaves_the_environment_alone(tmp_path):
    code = """
import os
from pytest_ascend.targets import resolve
try:
    resolve("emulated")
except RuntimeError:
    pass
print(os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
"""
    assert python(code, fake_torch_npu(tmp_path, BROKEN)) == "None"
    assert python(code, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="1") == "1"


def test_asking_again_keeps_the_modes_a_program_has_set():
    resolve("emulated")
    import torch

    from pytest_ascend.targets import emulator

    name = emulator.profile().name
    torch.npu.matmul.allow_hf32 = True
    try:
        target = resolve(f"emulated:{name}")
        assert torch.npu.matmul.allow_hf32 is True
        assert target.modes()["hf32_matmul"] is True
        with target.without(*target.switches()):
            assert torch.npu.matmul.allow_hf32 is False
            assert torch.npu.conv.allow_hf32 is False
        assert torch.npu.matmul.allow_hf32 is True
    finally:
        torch.npu.matmul.allow_hf32 = False


def test_the_emulated_device_counts_what_it_does():
    import torch

    target = resolve("emulated")
    kernels, copied = target.kernel_count(), target.downloads()
    x = torch.ones(4, device="npu") + 1
    assert target.kernel_count() > kernels
    assert target.downloads() == copied
    x.cpu()
    assert target.downloads() == copied + 16
    assert target.memory()["total"] > 0
    target.reset_peak_memory()
    state = target.rng_state()
    first = torch.rand(3, device="npu").cpu()
    target.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="npu").cpu(), first)


def test_a_missing_driver_is_told_from_a_missing_toolkit(tmp_path):
    folder = fake_torch_npu(tmp_path, BROKEN.replace("libhccl", "libascend_hal"))
    assert "driver is missing" in python(REFUSAL.format(spec="npu"), folder, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_another_cause_is_quoted(tmp_path):
    folder = fake_torch_npu(tmp_path, "raise RuntimeError('built for another torch')")
    printed = python(REFUSAL.format(spec="auto"), folder, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "built for another torch" in printed


@pytest.mark.parametrize("spec", ["auto", "npu"])
def test_torch_npu_without_a_card_names_where_to_look(tmp_path, spec):
    printed = python(REFUSAL.format(spec=spec), fake_torch_npu(tmp_path, CARD.format(available=False)))
    assert "finds no NPU" in printed
    assert "npu-smi" in printed


def test_a_device_beyond_the_visible_ones_is_refused(tmp_path):
    printed = python(REFUSAL.format(spec="npu:2"), fake_torch_npu(tmp_path, CARD.format(available=True)))
    assert printed.startswith("npu:2 does not exist: 2 devices are visible")


def test_describing_a_card_does_not_start_it_unless_allowed(tmp_path):
    code = """
from pytest_ascend.targets import resolve
target = resolve("npu:1")
import torch_npu
before = (target.describe(), target.title(), list(torch_npu.calls))
after = (target.describe(initialised=True), target.title(initialised=True), list(torch_npu.calls))
print(before); print(after)
"""
    before, after = python(code, fake_torch_npu(tmp_path, CARD.format(available=True))).splitlines()
    assert "'npu:1'" in before
    assert before.endswith("[])")
    assert "'soc': None" in before
    assert "'cann': '8.5.0'" in before
    assert "'torch_npu': '2.14.0'" in before
    assert "'soc': 'Ascend910B'" in after
    assert "'hf32_conv': True" in after
    assert "'overflow_mode': 'inf_nan'" in after
    assert "npu:1 (Ascend910B)" in after


def test_auto_takes_the_card_when_there_is_one(tmp_path):
    assert (
        python(REFUSAL.format(spec="auto"), fake_torch_npu(tmp_path, CARD.format(available=True))) == "RESOLVED npu:0"
    )


def test_npu_without_torch_npu_is_refused_and_never_emulated():
    with pytest.raises(TargetUnavailable) as caught:
        resolve("npu")
    assert "emulated" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cuda_without_a_device_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(TargetUnavailable, match="CUDA"):
        resolve("cuda")


def test_an_import_failure_of_something_else_is_left_alone():
    assert explain_import_failure(ImportError("No module named 'scipy'")) is None


def test_the_cpu_describes_itself():
    target = resolve("cpu")
    description = target.describe()
    assert description["device"] == "cpu"
    assert description["emulated"] is False
    assert description["versions"]["torch"]
    assert target.title().startswith("cpu")
    assert target.kernel_count() is None
