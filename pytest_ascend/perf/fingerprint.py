"""Which timings may be compared: the name of what a run depends on, and of the file a test's baseline is kept in."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["FIELDS", "environment", "file_name", "fingerprint"]

FIELDS = ("device", "soc", "cann", "driver", "torch", "torch_npu", "python", "cpu", "threads", "modes", "config")
"""What timings depend on for as long as nobody changes it. A clock, a temperature or a load isn't among them: they
change from one minute to the next, and a machine would no longer equal itself."""
_NAMED = {"soc": "", "cann": "cann", "torch": "torch", "python": "py"}
_DRIVER = Path("/usr/local/Ascend/driver/version.info")
_CPUS = Path("/proc/cpuinfo")


def fingerprint(environment: Mapping[str, Any]) -> str:
    """A name for these conditions, such as ``ascend910b-cann8.0.0-torch2.5.1-py3.11.7-1f0c9a2b4d``.

    It is fit for a folder on any file system: lower case letters, digits, dots and dashes, at most 71 characters.

    Args:
        environment: values of :data:`FIELDS`, of JSON's types; ``None`` and empty ones count as absent.

    Raises:
        ValueError: a name that isn't among FIELDS (so that no live clock gets in), or a value JSON can't hold.
    """
    for name in environment:
        if name not in FIELDS:
            raise ValueError(f"the environment has {name!r}, which is no part of a fingerprint: {', '.join(FIELDS)}")
    present = {name: value for name, value in environment.items() if value not in (None, "", {}, [], ())}
    try:
        canonical = json.dumps(present, sort_keys=True, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the environment holds what JSON can't: {error}") from None
    first = present.get("soc") or present.get("device") or "machine"
    words = [f"{prefix}{present.get(name, '')}" for name, prefix in _NAMED.items() if present.get(name)]
    readable = _plain("-".join(map(str, words if present.get("soc") else [first, *words])), 60)
    return f"{readable}-{hashlib.sha256(canonical.encode()).hexdigest()[:10]}"


def file_name(test: str) -> str:
    """The file that a test's baseline is kept in: readable, and different for any two tests.

    Lower case letters, digits, dots, dashes and underscores, at most 98 characters: two ids that differ in case only,
    or in what a file name can't hold, differ in the hash.
    """
    if not test:
        raise ValueError("a test without an id has no baseline")
    digest = hashlib.sha256(test.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_plain(test.replace('::', '--').replace('.py', ''), 80)}-{digest}.json"


def _plain(text: str, limit: int) -> str:
    """At most so many characters of the text, each fit for a file name, neither first nor last a dot."""
    return re.sub(r"[^a-z0-9._-]+", "_", text.lower())[:limit].strip("._-") or "x"


def environment(
    described: Mapping[str, Any], *, threads: int, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What :func:`fingerprint` needs, of this machine.

    Args:
        described: what ``Target.describe(initialised=True)`` says of the device.
        threads: how many threads torch computes with.
        config: options that change how operators run (compiled or not, NZ format allowed, ...).
    """
    versions = described.get("versions") or {}
    device = str(described.get("device") or "cpu").partition(":")[0]
    return {
        "device": f"emulated {device}" if described.get("emulated") else device,
        "soc": described.get("soc"),
        "cann": versions.get("cann"),
        "driver": _driver() if versions.get("torch_npu") else None,
        "torch": versions.get("torch"),
        "torch_npu": versions.get("torch_npu"),
        "python": versions.get("python") or platform.python_version(),
        "cpu": _cpu(),
        "threads": threads,
        "modes": dict(described.get("modes") or {}),
        "config": dict(config or {}),
    }


def _driver() -> str | None:
    return _after(_DRIVER, r"^Version\s*=\s*(.+?)\s*$")


def _cpu() -> str:
    """The CPU's model. Arm's /proc/cpuinfo has none, but numbers for implementer and part."""
    model = _after(_CPUS, r"^model name\s*:\s*(.+?)\s*$")
    if model is None:
        numbers = [_after(_CPUS, rf"^CPU {name}\s*:\s*(\S+)") for name in ("implementer", "part", "variant")]
        model = " ".join(number for number in numbers if number)
    return model or platform.processor() or platform.machine()


def _after(path: Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None
