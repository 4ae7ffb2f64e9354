"""Where code runs. :func:`resolve` turns a target's spec into a :class:`~pytest_ascend.targets.base.Target`.

Importing this package imports no torch; resolving a spec does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

from pytest_ascend.targets.base import Target, TargetUnavailable

if TYPE_CHECKING:
    from pytest_ascend.targets.npu import NpuTarget

__all__ = [
    "Spec",
    "Target",
    "TargetUnavailable",
    "emulator_is_there",
    "explain_import_failure",
    "import_torch",
    "parse",
    "resolve",
    "torch_npu_installed",
]

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_SPEC = re.compile(r"(?P<kind>auto|npu|emulated|cuda|cpu|mindspore)(:(?P<detail>[A-Za-z]\w*))?(:(?P<index>\d+))?")
EMULATOR_NEEDS = (2, 13)
"""Oldest torch the emulated NPU works with."""


@dataclass(frozen=True)
class Spec:
    """A target's spec, taken apart: its kind, the device's index and, for the emulator, the SoC; for MindSpore, the
    kind of device.
    """

    kind: str
    index: int = 0
    soc: str | None = None


def parse(spec: str) -> Spec:
    """Take a target's spec apart.

    Args:
        spec: ``auto``, ``npu[:1]``, ``emulated[:Ascend910A][:1]``, ``cuda[:1]``, ``cpu`` or ``mindspore[:CPU][:1]``.

    Raises:
        ValueError: the spec isn't one of these.
    """
    match = _SPEC.fullmatch(spec.strip())
    if match is not None:
        kind, soc, index = match["kind"], match["detail"], match["index"]
        if (soc is None or kind in ("emulated", "mindspore")) and (index is None or kind not in ("auto", "cpu")):
            return Spec(kind, int(index or 0), soc)
    raise ValueError(
        f"{spec!r} is not a target: give auto, npu, npu:1, emulated, emulated:Ascend910A, cuda, cuda:0, cpu or "
        "mindspore"
    )


def resolve(spec: str = "auto") -> Target:
    """The target a spec names.

    ``auto`` is the NPU when torch_npu is installed, else the emulated one. A torch_npu that is installed but can't be
    used is reported rather than passed over, so that a broken machine never looks like a tested one; and ``npu`` never
    means anything but a card.

    Raises:
        TargetUnavailable: this machine hasn't the target; one sentence says why and what to do.
        ValueError: the spec isn't a target's.
    """
    wanted = parse(spec)
    if wanted.kind == "emulated":
        return _emulated(wanted)
    import_torch()
    if wanted.kind == "cpu":
        from pytest_ascend.targets.cpu import CpuTarget

        return CpuTarget()
    if wanted.kind == "cuda":
        return _cuda(wanted)
    if wanted.kind == "mindspore":
        from pytest_ascend.targets import mindspore

        if not mindspore.installed():
            raise TargetUnavailable(mindspore.MISSING)
        return mindspore.MindsporeTarget(wanted.soc or "", wanted.index)
    if wanted.kind == "npu":
        return _card(wanted)
    if not _emulator_runs() and torch_npu_installed():
        return _card(wanted)
    return _emulated(wanted)


@contextlib.contextmanager
def _objects_to_keep(module: str) -> Iterator[None]:
    """While a large module is imported, don't look for garbage among its objects, and never again afterwards.

    torch makes a million objects that live as long as the process. Walking through them takes a third of the time that
    importing it does, then as long again for each later collection and when the process ends.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()


def import_torch() -> ModuleType:
    """Import torch, turning a failing device backend into one plain sentence.

    torch loads every installed backend while it is imported, so a torch_npu without CANN makes ``import torch`` itself
    fail.

    Raises:
        TargetUnavailable: a backend failed; the message says what is missing and what to set.
    """
    try:
        with _objects_to_keep("torch"):
            return importlib.import_module("torch")
    except (ImportError, RuntimeError, OSError) as error:
        message = explain_import_failure(error)
        if message is None:
            raise
        raise TargetUnavailable(message) from error


def explain_import_failure(error: BaseException) -> str | None:
    """What a failed ``import torch`` or ``import torch_npu`` means to a user; None when torch_npu isn't the cause."""
    texts = [str(error)]
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    whole = " ".join(texts)
    if "torch_npu" not in whole and not re.search(r"lib(hccl|ascend\w*|acl\w*|ge_\w*|runtime)\.so", whole):
        return None
    return _broken(whole, texts[-1])


def _broken(whole: str, root: str) -> str:
    library = re.search(r"lib\w+\.so(\.\d+)*", whole)
    if library and "libascend_hal" in library[0]:
        missing = f"the Ascend driver is missing ({library[0]} can't be loaded): install the driver and firmware"
    elif library:
        missing = f"CANN is missing ({library[0]} can't be loaded): install CANN and run 'source <CANN>/set_env.sh'"
    else:
        missing = f"loading it failed ({_one_line(root)})"
    return (
        f"torch_npu {_torch_npu_version()}is installed but {missing}, or do without an NPU: set {_AUTOLOAD}=0 and give "
        "--ascend-compare=cpu, or uninstall torch_npu to get the emulated one"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _torch_npu_version() -> str:
    try:
        return metadata.version("torch_npu") + " "
    except metadata.PackageNotFoundError:
        return ""


def torch_npu_installed() -> bool:
    """Whether torch_npu lies on the path; the emulator's stand-in in ``sys.modules`` isn't it."""
    return PathFinder.find_spec("torch_npu") is not None


def emulator_is_there() -> bool:
    """Whether the emulated NPU can be had, as far as package metadata tell: nothing is imported."""
    if torch_npu_installed():
        return False
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= EMULATOR_NEEDS


def _emulator_runs() -> bool:
    emulator = sys.modules.get("pytest_ascend.targets.emulator")
    return emulator is not None and bool(emulator.is_installed())


def _card(wanted: Spec) -> NpuTarget:
    """The real NPU, or the reason why not."""
    if _emulator_runs():
        raise TargetUnavailable("the emulated NPU already runs in this process, so a card can't: start another process")
    if not torch_npu_installed():
        raise TargetUnavailable(
            "torch_npu is not installed, so there is no NPU here: install torch_npu and CANN, or give "
            "--ascend-compare=emulated for the emulated one"
        )
    try:
        torch_npu = importlib.import_module("torch_npu")
    except Exception as error:
        message = explain_import_failure(error)
        raise TargetUnavailable(message or _broken("", f"{type(error).__name__}: {error}")) from error
    if not torch_npu.npu.is_available():
        raise TargetUnavailable(
            f"torch_npu {_torch_npu_version()}finds no NPU: look at 'npu-smi info' and ASCEND_RT_VISIBLE_DEVICES, or "
            "uninstall torch_npu to get the emulated one"
        )
    count = int(torch_npu.npu.device_count())
    if wanted.index >= count:
        raise TargetUnavailable(
            f"npu:{wanted.index} does not exist: {_devices(count)} visible (ASCEND_RT_VISIBLE_DEVICES)"
        )
    from pytest_ascend.targets.npu import NpuTarget

    return NpuTarget(wanted.index, spec=f"npu:{wanted.index}")


def _emulated(wanted: Spec) -> NpuTarget:
    """The emulated NPU, installed when it isn't yet."""
    torch = _import_torch_alone()
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < EMULATOR_NEEDS:
        least = ".".join(map(str, EMULATOR_NEEDS))
        raise TargetUnavailable(
            f"the emulated NPU needs torch >= {least} and this is {torch.__version__}: upgrade torch, or run on a card"
        )
    if "torch_npu" in sys.modules and not _emulator_runs():
        raise TargetUnavailable(
            "torch_npu is loaded, so the emulated NPU can't take its place: use the card, or uninstall torch_npu"
        )
    from pytest_ascend.targets import emulator
    from pytest_ascend.targets.npu import NpuTarget

    try:
        if not emulator.is_installed():
            emulator.install(wanted.soc) if wanted.soc else emulator.install()
        elif wanted.soc and wanted.soc.lower() != emulator.profile().name.lower():
            emulator.install(soc=wanted.soc)  # another chip; the same one keeps the modes the program has set
    except emulator.EmulatorUnavailable as error:
        raise TargetUnavailable(str(error)) from error
    count = int(torch.npu.device_count())
    if wanted.index >= count:
        raise TargetUnavailable(f"npu:{wanted.index} does not exist: {_devices(count)} emulated")
    name = ":".join(["emulated", *([wanted.soc] if wanted.soc else []), *([str(wanted.index)] if wanted.index else [])])
    return NpuTarget(
        wanted.index,
        emulated=True,
        kernels=emulator.kernel_count,
        downloads=emulator.downloaded,
        watching=emulator.watching,
        spec=name,
    )


def _import_torch_alone() -> ModuleType:
    """Import torch without its backends: the emulated NPU needs no card, so a broken one must not get in its way."""
    if "torch" in sys.modules:
        return sys.modules["torch"]
    before = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        return import_torch()
    finally:
        if before is None:
            del os.environ[_AUTOLOAD]
        else:
            os.environ[_AUTOLOAD] = before


def _cuda(wanted: Spec) -> Target:
    import torch

    if not torch.cuda.is_available():
        raise TargetUnavailable("torch finds no CUDA device: check the driver and CUDA_VISIBLE_DEVICES")
    if wanted.index >= torch.cuda.device_count():
        raise TargetUnavailable(f"cuda:{wanted.index} does not exist: {_devices(torch.cuda.device_count())} visible")
    from pytest_ascend.targets.cuda import CudaTarget

    return CudaTarget(wanted.index)


def _devices(count: int) -> str:
    return f"{count} device is" if count == 1 else f"{count} devices are"
