"""What of Ascend is on this machine: driver, CANN, device nodes, npu-smi's answer and the tools, without torch."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Chip", "Machine", "NpuSmi", "parse_npu_smi"]

_SMI_SECONDS = 30.0
_LARGEST = 1 << 20  # of a file that says a version
_SMI_PLACES = ("usr/local/sbin", "usr/local/bin", "usr/local/Ascend/driver/tools")


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip of ``npu-smi info``: its number, name, health (``OK``, ``Warning``, ``Alarm``, ``Critical`` or
    ``UNKNOWN``), and used and whole memory in MB.
    """

    number: int
    name: str
    health: str
    used: int
    total: int


@dataclasses.dataclass(frozen=True)
class NpuSmi:
    """What ``npu-smi info`` answered: the driver's version and the chips; or why it gave no answer."""

    version: str = ""
    chips: tuple[Chip, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine.

    Args:
        environment: environment variables.
        root: the folder that paths such as ``/dev`` start in.
    """

    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")

    def driver(self) -> str | None:
        """The driver's version; ``None``: there is none."""
        installed = _value(self.root / "etc/ascend_install.info", "Driver_Install_Path_Param")
        places = [self.root / (installed or "usr/local/Ascend").lstrip("/"), self.root / "usr/local/Ascend"]
        found = (_value(place / "driver/version.info", "Version") for place in places)
        return next((version for version in found if version), None)

    def cann(self) -> tuple[Path | None, str | None]:
        """The folder that ``set_env.sh`` has named, and the version that lies there; ``None`` for what isn't there."""
        given = self.environment.get("ASCEND_HOME_PATH") or self.environment.get("ASCEND_TOOLKIT_HOME")
        if not given:
            return None, None
        home = Path(given)
        arch = home / f"{platform.machine()}-linux"
        files = [arch / "ascend_toolkit_install.info", home / "version.info", home / "compiler/version.info"]
        files += [home / "runtime/version.info", home / "version.cfg"]
        found = (_value(path, "version") for path in files)
        return home, next((version for version in found if version), None)

    def unsourced(self) -> Path | None:
        """A ``set_env.sh`` of CANN that lies where CANN is installed by default."""
        ascend = self.root / "usr/local/Ascend"
        places = [ascend / "ascend-toolkit/set_env.sh", ascend / "cann/set_env.sh", *ascend.glob("cann-*/set_env.sh")]
        return next((place for place in places if place.is_file()), None)

    def nodes(self) -> list[Path]:
        """The device nodes, ``/dev/davinci0`` and so on."""
        found = [path for path in self.root.glob("dev/davinci*") if re.fullmatch(r"davinci\d+", path.name)]
        return sorted(found, key=lambda path: int(path.name[7:]))

    def closed(self) -> list[Path]:
        """Of the nodes and of those that all devices share, the ones that this user may not open."""
        shared = [self.root / "dev" / name for name in ("davinci_manager", "devmm_svm", "hisi_hdc")]
        found = [*self.nodes(), *(path for path in shared if path.exists())]
        return [path for path in found if not os.access(path, os.R_OK | os.W_OK, effective_ids=True)]

    def tool(self, name: str) -> str | None:
        """Where a command lies on PATH."""
        return shutil.which(name, path=self.environment.get("PATH", os.defpath))

    def npu_smi(self) -> NpuSmi | None:
        """What ``npu-smi info`` says; ``None``: there is no npu-smi."""
        command = self.tool("npu-smi")
        for place in _SMI_PLACES if command is None else ():
            command = command or shutil.which("npu-smi", path=str(self.root / place))
        if command is None:
            return None
        try:
            done = subprocess.run(
                [command, "info"],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_SMI_SECONDS,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return NpuSmi(error=f"no answer in {_SMI_SECONDS:.0f} s")
        except OSError as error:
            return NpuSmi(error=error.strerror or str(error))
        found = parse_npu_smi(done.stdout)
        if done.returncode or not found.chips:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip(" |+-=")]
            return NpuSmi(found.version, error=(lines[-1][:200] if lines else f"exit status {done.returncode}"))
        return found


def parse_npu_smi(text: str) -> NpuSmi:
    """Read the table of ``npu-smi info``.

    A chip has two rows: ``| 0  910B1 | OK | 101.0 49 0 / 0 |`` with its name and health, then
    ``| 0 | 0000:C1:00.0 | 0 0 / 0 3405 / 65536 |`` with its bus, load and memory, the HBM's last.
    """
    version = re.search(r"npu-smi\s+\S+\s+Version:\s*(\S+)", text)
    chips: list[Chip] = []
    head: tuple[int, str, str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3:
            continue
        first = re.fullmatch(r"(\d{1,4})\s+([\w-]*[A-Za-z][\w-]*)", cells[0])
        if first is not None and re.fullmatch(r"[A-Za-z]+", cells[1]):
            head = int(first[1]), first[2], cells[1]
        elif head is not None and re.fullmatch(r"\d{1,4}(\s+\d{1,4})?", cells[0]) and ":" in cells[1]:
            pairs = re.findall(r"(\d{1,9})\s*/\s*(\d{1,9})", cells[2])
            used, total = map(int, pairs[-1]) if pairs else (0, 0)
            ids = cells[0].split()  # the chip's number on its card, and where cards have several, the device's
            chips.append(Chip(int(ids[1]) if len(ids) > 1 else head[0], head[1], head[2], used, total))
    return NpuSmi(version[1] if version else "", tuple(chips))


def _value(path: Path, key: str) -> str | None:
    """The value of a line ``KEY=value`` in a file, whatever the key's case; ``None`` where there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.search(rf"^\s*{re.escape(key)}\s*=\s*\[?\s*([^\s:\[\]]+)", text, re.IGNORECASE | re.MULTILINE)
    return found[1][:60] if found else None
