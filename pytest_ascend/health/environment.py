"""``pytest-ascend doctor``: what this machine has, what of it doesn't fit together, and what to do about each.

A fault is said once, where it comes from: what only follows from it is a note that points there.
"""

from __future__ import annotations

import concurrent.futures
import os
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.machinery import PathFinder
from typing import Any

from pytest_ascend.health import probe, variables, versions
from pytest_ascend.health.finding import Finding, Level
from pytest_ascend.health.machine import Chip, Machine, NpuSmi

__all__ = ["Examination", "examine"]

TOOLS = ("msprof", "msopprof", "mssanitizer")
"""Commands of CANN that the performance and memory checks call."""
OLDEST_TORCH = (2, 4)
Sections = list[tuple[str, list[Finding]]]


def examine(machine: Machine | None = None) -> Sections:
    """Look at everything; the sections of the screen, each with its findings."""
    return Examination(machine or Machine()).sections()


class Examination:
    """One look at a machine.

    Args:
        machine: where to look.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.torch = _version("torch")
        self.torch_npu = _version("torch_npu", "torch-npu")
        self.no_torch = PathFinder.find_spec("torch") is None
        self._probed: Mapping[str, Any] = {}
        self._emulated: Mapping[str, Any] = {}
        self._smi: NpuSmi | None = None
        self._why_no_card = ""
        self._torch_is_wrong = self.no_torch

    def sections(self) -> Sections:
        """What was found, in the order of the screen."""
        self._ask()
        return [
            ("software", [*self._python(), *self._torch(), *self._torch_npu(), *self._cann()]),
            ("devices", [*self._driver(), *self._devices()]),
            ("numerics", [*self._modes(), *variables.findings(self.machine.environment)]),
            ("tools", list(self._tools())),
            ("targets", list(self._targets())),
        ]

    def _ask(self) -> None:
        """Start everything that takes a while at once: torch, its devices, the emulator and npu-smi."""
        environment = self.machine.environment
        card: tuple[str, ...] = ("torch",)
        if self.torch_npu is not None:
            card = ("torch", "torch_npu", "devices")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            smi = pool.submit(self.machine.npu_smi)
            if not self.no_torch:
                probed = pool.submit(probe.probe, card, environment)
                emulated = pool.submit(probe.probe, ("emulated",), environment)
                self._probed, self._emulated = probed.result(), emulated.result().get("emulated", {})
            self._smi = smi.result()

    # -- software -----------------------------------------------------------------------------------------------------

    def _python(self) -> Iterator[Finding]:
        ours = [f"{name} {_version(name) or '(not installed)'}" for name in ("pytest", "pytest-ascend")]
        yield Finding("python", ", ".join([platform.python_version(), *ours]))

    def _torch(self) -> Iterator[Finding]:
        found = self._probed.get("torch", {})
        if self.no_torch:
            sentence = "torch is not installed, so nothing can be compared: pip install 'pytest-ascend[torch]'"
            yield Finding("torch", "not installed", "wrong", sentence)
        elif "error" in found or not found:
            self._torch_is_wrong = True
            sentence = f"torch can't be imported ({found.get('error', 'no answer')}): install it anew"
            yield Finding("torch", f"{self.torch or 'installed'}, can't be imported", "wrong", sentence)
        else:
            version = found["version"]
            self.torch = version
            old = self._torch_is_wrong = (
                tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit()) < OLDEST_TORCH
            )
            sentence = f"torch {version} is too old: pytest-ascend needs 2.4, the emulated NPU 2.13" if old else ""
            numba = _version("numba")
            more = f", numba {numba}" if numba else ", no numba (pytest-ascend[fast]: large tensors ten times as fast)"
            yield Finding("torch", version + more, "wrong" if old else "ok", sentence)

    def _torch_npu(self) -> Iterator[Finding]:
        if self.torch_npu is None:
            here = self.machine.nodes() or self._smi is not None
            sentence = "an NPU is here, and without torch_npu tests run on the emulated one: pip install torch_npu"
            if here:
                yield Finding("torch_npu", "not installed", "note", sentence)
            else:
                yield Finding("torch_npu", "not installed; needed with a card only", "absent")
            return
        level, sentence = versions.torch_fits(self.torch, self.torch_npu) if self.torch else ("ok", "")
        found = self.torch_npu
        if level == "wrong":
            self._why_no_card = "torch_npu and torch don't fit together"
        elif self._import_error and not self.no_torch:
            found += ", can't be imported"
            level = "absent" if level == "ok" else level
        yield Finding("torch_npu", found, level, sentence)

    @property
    def _import_error(self) -> str:
        """Why torch_npu can't be imported; empty where it can, or was never tried."""
        return str(self._probed.get("torch_npu", {}).get("error", ""))

    @property
    def _driver_is_missing(self) -> bool:
        return "driver is missing" in self._import_error

    def _cann(self) -> Iterator[Finding]:
        home, version = self.machine.cann()
        if self.torch_npu is None:
            if home is None:
                yield Finding("CANN", "none; needed with a card only", "absent")
            else:
                yield Finding("CANN", f"{version or 'version unknown'}, {home}")
            return
        if home is not None and version is not None and os.path.isdir(home):
            level, sentence = versions.cann_fits(self.torch_npu, version)
            if level == "wrong" and not self._why_no_card:
                self._why_no_card = "torch_npu and CANN don't fit together"
            if level != "wrong" and self._import_error and not self._why_no_card and not self._driver_is_missing:
                self._why_no_card = "torch_npu can't be imported"
                level, sentence = "wrong", self._import_error
            yield Finding("CANN", f"{version}, {home}", level, sentence)
            return
        found = "ASCEND_HOME_PATH is not set" if home is None else f"no CANN in {home} (ASCEND_HOME_PATH)"
        if not self._import_error and self._probed.get("torch_npu"):
            yield Finding("CANN", f"{found}, yet torch_npu finds it")
        elif self._why_no_card or self.no_torch or self._driver_is_missing:
            yield Finding("CANN", found, "absent")
        else:
            self._why_no_card = "CANN is missing"
            script = self.machine.unsourced()
            sentence = self._import_error or f"{found}, so torch_npu can't run: source CANN's set_env.sh"
            if script is not None:
                sentence = f"CANN is installed and not set up, so torch_npu can't be imported: run 'source {script}'"
            yield Finding("CANN", found, "wrong", sentence)

    # -- devices ------------------------------------------------------------------------------------------------------

    def _driver(self) -> Iterator[Finding]:
        version = self.machine.driver() or (self._smi.version if self._smi is not None else "")
        if self._driver_is_missing and not self._why_no_card:
            self._why_no_card = "the driver is missing"
            yield Finding("driver", version or "none", "wrong", self._import_error)
        elif version:
            yield Finding("driver", version)
        elif self.torch_npu is None:
            yield Finding("driver", "none; needed with a card only", "absent")
        elif self._why_no_card or self.no_torch or self._working() or self._smi is not None or self.machine.nodes():
            yield Finding("driver", "version unknown", "absent")
        else:
            self._why_no_card = "the driver is missing"
            sentence = "no Ascend driver is here: install driver and firmware, or mount the host's into the container"
            yield Finding("driver", "none", "wrong", sentence)

    def _devices(self) -> Iterator[Finding]:
        fault = self._fault()
        if fault is not None:
            yield fault
        chips = self._smi.chips if self._smi is not None else ()
        yield from map(_chip, chips)
        known = fault is not None or any(map(_sick, chips))
        for device in self._probed.get("devices", []):
            name = f"npu:{device['index']}"
            if "error" not in device:
                free, total = device["free"] >> 20, device["total"] >> 20
                yield Finding(name, f"{device['name']} ({device['soc']}), adds up, {free} of {total} MB free")
            elif known:
                yield Finding(name, device["error"], "absent")
            else:
                sentence = f"{name} doesn't work ({device['error']}): look at 'npu-smi info', and at who else uses it"
                yield Finding(name, "doesn't work", "wrong", sentence)
            if "error" in device:
                self._why_no_card = self._why_no_card or f"{name} doesn't work"
        if not known and not self._probed.get("devices"):
            yield from self._no_device(bool(chips))

    def _working(self) -> list[Mapping[str, Any]]:
        """The devices that answered, and rightly."""
        return [device for device in self._probed.get("devices", []) if "error" not in device]

    def _fault(self) -> Finding | None:
        """What keeps this user from the devices."""
        level: Level = "note" if self._working() else "wrong"
        closed = self.machine.closed()
        if closed:
            node = closed[0]
            more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
            shown = f"/{node.relative_to(self.machine.root)}{more}"
            found = f"{shown}: no permission"
            sentence = (
                f"{shown} can't be opened by this user: join the group {_group(node)} that owns it, or give the "
                "container the device"
            )
        elif self._smi is not None and self._smi.error:
            found = "npu-smi fails"
            held = "-8020" in self._smi.error
            todo = "another container holds the device: stop it, or give each its own" if held else "look at the driver"
            sentence = f"npu-smi info says {self._smi.error!r}, so it can't read the devices: {todo}"
        else:
            return None
        if level == "wrong":
            self._why_no_card = self._why_no_card or "no device can be read"
        return Finding("access", found, level, sentence)

    def _no_device(self, chips: bool) -> Iterator[Finding]:
        """Where torch has no device to show: whether that is as it should be."""
        if self.torch_npu is None or self._why_no_card or self.no_torch:
            if not chips:
                yield Finding("NPU", "none", "absent")
            return
        self._why_no_card = "no device is visible"
        error = self._probed.get("count", {}).get("error")
        found = f"finds no device ({error})" if error else "finds no device"
        sentence = f"torch_npu {found}: look at ASCEND_RT_VISIBLE_DEVICES, or give the container /dev/davinci0"
        yield Finding("visible", "none", "wrong", sentence)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _modes(self) -> Iterator[Finding]:
        devices = self._working()
        modes = devices[0]["modes"] if devices else self._emulated.get("modes")
        if not modes:
            return
        of = f"npu:{devices[0]['index']}" if devices else "emulated"
        switches = " / ".join(f"{what} {'on' if modes.get(f'hf32_{what}') else 'off'}" for what in ("conv", "matmul"))
        yield Finding("HF32", f"{switches} ({of}; torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32)")
        if "overflow_mode" in modes:
            yield Finding("overflow", f"{modes['overflow_mode']} ({of})")

    def _tools(self) -> Iterator[Finding]:
        places = {tool: self.machine.tool(tool) for tool in TOOLS}
        for tool, place in places.items():
            if place:
                yield Finding(tool, place)
        missing = ", ".join(tool for tool, place in places.items() if not place)
        if missing and (self.torch_npu is None or self._why_no_card):
            yield Finding("not on PATH", f"{missing}; needed with a card only", "absent")
        elif missing:
            sentence = f"profiles of kernels and memory checks need {missing}: source CANN's set_env.sh"
            yield Finding("not on PATH", missing, "note", sentence)

    def _targets(self) -> Iterator[Finding]:
        working = self._working()
        if working:
            yield Finding("npu", f"{len(working)} to compare on: --ascend-compare=npu")
        else:
            why = self._why_no_card or ("torch is missing" if self.no_torch else "torch_npu is not installed")
            yield Finding("npu", f"unavailable: {why}", "absent")
        if "title" in self._emulated:
            yield Finding("emulated", f"{self._emulated['title']}: --ascend-compare=emulated")
            return
        why = "torch is missing" if self.no_torch else str(self._emulated.get("error", "torch can't be imported"))
        if self.torch_npu is not None and not self.no_torch:
            yield Finding("emulated", "unavailable: never beside torch_npu", "absent")
        elif self._torch_is_wrong:
            yield Finding("emulated", f"unavailable: {why}", "absent")
        else:
            yield Finding("emulated", "unavailable", "wrong", f"there is no device to compare on: {why}")


def _sick(chip: Chip) -> bool:
    return chip.health not in ("OK", "Warning")


def _chip(chip: Chip) -> Finding:
    memory = f", {chip.used} of {chip.total} MB used" if chip.total else ""
    level: Level = "wrong" if _sick(chip) else "ok" if chip.health == "OK" else "note"
    sentence = (
        f"NPU {chip.number} is in health {chip.health}: leave it out of ASCEND_RT_VISIBLE_DEVICES, and look at "
        "'npu-smi info -t health'"
    )
    return Finding(f"NPU {chip.number}", f"{chip.name}, {chip.health}{memory}", level, sentence * (level != "ok"))


def _version(*names: str) -> str | None:
    """The version of an installed package; ``unknown`` where it has none, ``None`` where it isn't there."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown" if PathFinder.find_spec(names[0]) is not None else None


def _group(node: os.PathLike[str]) -> str:
    import grp

    try:
        return grp.getgrgid(os.stat(node).st_gid).gr_name
    except (KeyError, OSError):
        return "HwHiAiUser"
