"""A machine made of fake packages, files and commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# A stand-in for torch_npu: `torch.npu` appears with it, as it does for the real one.
TORCH_NPU = """
import types, torch

class Ones:
    def sum(self): return self
    def cpu(self): return 1000.0

torch.ones = lambda *a, **k: Ones()
torch.npu = types.SimpleNamespace(
    device_count=lambda: 1, set_device=lambda i: None, mem_get_info=lambda i: (60 << 30, 64 << 30),
    get_device_name=lambda i: "Ascend910B3", get_soc_version=lambda: 222, is_initialized=lambda: True,
    matmul=types.SimpleNamespace(allow_hf32=False), conv=types.SimpleNamespace(allow_hf32=True),
    utils=types.SimpleNamespace(is_support_inf_nan=lambda: True))
"""
NO_CANN = "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')"
NO_DRIVER = "raise ImportError('libascend_hal.so: cannot open shared object file: No such file or directory')"
SMI = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | HEALTH        | 98.1        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3389 / 65536         |
+===========================+===============+====================================================+
"""


class Patient:
    """A machine made of fake packages, files and commands, and the doctor's real command on it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.packages = folder / "packages"
        self.commands = folder / "bin"
        for made in (self.root / "dev", self.packages, self.commands):
            made.mkdir(parents=True)
        self.environment = {"PATH": str(self.commands), "PYTHONPATH": f"{ROOT}{os.pathsep}{self.packages}"}

    def package(self, name: str, version: str, code: str = "") -> None:
        """Install a package that isn't the real one."""
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text(f"__version__ = {version!r}\n{code}")
        (self.packages / f"{name}-{version}.dist-info").mkdir()
        (self.packages / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")

    def cann(self, version: str) -> None:
        arch = self.root / f"cann/{os.uname().machine}-linux"
        arch.mkdir(parents=True)
        (arch / "ascend_toolkit_install.info").write_text(f"package_name=Ascend-cann-toolkit\nversion={version}\n")
        self.environment["ASCEND_HOME_PATH"] = str(self.root / "cann")

    def driver(self, version: str = "24.1.0") -> None:
        (self.root / "usr/local/Ascend/driver").mkdir(parents=True)
        (self.root / "usr/local/Ascend/driver/version.info").write_text(f"Version={version}\nfirmware_version=1.0\n")

    def command(self, name: str, text: str, status: int = 0) -> None:
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\nexit {status}\n")
        path.chmod(0o755)

    def card(self, torch: str = "2.7.1", torch_npu: str = "2.7.1.post2", cann: str = "8.5.0") -> None:
        self.package("torch", torch)
        self.package("torch_npu", torch_npu, TORCH_NPU)
        self.cann(cann)
        self.driver()
        self.command("npu-smi", SMI.replace("HEALTH", "OK    "))

    def seen(self) -> tuple[int, str, list[str]]:
        """The exit status, the screen, and the sentences about what is wrong."""
        code = (
            "import sys; from pathlib import Path; from pytest_ascend import doctor_cli; "
            "from pytest_ascend.health.machine import Machine; "
            f"sys.exit(doctor_cli.run(Machine(root=Path({str(self.root)!r}))))"
        )
        # -S: the packages of this environment, torch among them, aren't there.
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], env=self.environment, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, [x for x in done.stdout.splitlines() if x.startswith("wrong: ")]
