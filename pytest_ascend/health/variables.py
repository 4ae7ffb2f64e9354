"""Environment variables that change what an NPU computes, or how long it takes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

from pytest_ascend.health.finding import Finding, Level

__all__ = ["NUMERIC", "findings"]


@dataclasses.dataclass(frozen=True)
class Variable:
    """One variable.

    Attributes:
        name: its name.
        means: for values other than the default, what each does: a value, or a function of it, to a sentence.
        silent: values that change nothing.
    """

    name: str
    means: Callable[[str], str]
    silent: tuple[str, ...] = ()


def _always(sentence: str) -> Callable[[str], str]:
    return lambda value: sentence


def _autoload(value: str) -> str:
    return "import torch leaves torch_npu out: unset it to run on a card" if value == "0" else ""


NUMERIC: tuple[Variable, ...] = (
    Variable(
        "INF_NAN_MODE_ENABLE",
        _always("what overflows saturates at the largest number, where it would be Inf: unset it, as in production"),
        ("1",),
    ),
    Variable(
        "INF_NAN_MODE_FORCE_DISABLE",
        _always("what overflows saturates at the largest number, where it would be Inf: unset it"),
        ("0",),
    ),
    Variable(
        "TORCH_NPU_USE_COMPATIBLE_IMPL",
        _always("gelu and others compute torch's own formula; the chip's fast form isn't tested: unset it if that is"
                " what you ship"),
        ("0",),
    ),
    Variable(
        "HCCL_DETERMINISTIC",
        _always("collectives add in a fixed order: the same results each time, but slower"),
        ("false", "False", "0"),
    ),
    Variable(
        "LCCL_DETERMINISTIC",
        _always("collectives inside of a server add in a fixed order: the same results each time, but slower"),
        ("0",),
    ),
    Variable(
        "CLOSE_MATMUL_K_SHIFT",
        _always("matmul adds along K in one order on all cores: the same results each time, but slower"),
        ("0",),
    ),
    Variable(
        "ATB_MATMUL_SHUFFLE_K_ENABLE",
        _always("ATB's matmul adds along K in one order on all cores: the same results each time, but slower"),
        ("1",),
    ),
    Variable(
        "ASCEND_LAUNCH_BLOCKING",
        _always("each operator is waited for: errors name the right line, but timings mean nothing: unset it to time"),
        ("0",),
    ),
    Variable(
        "TASK_QUEUE_ENABLE",
        lambda value: (
            "operators are launched without the queue: timings are longer than in production: unset it to time"
            if value == "0"
            else "the queue also prepares workspaces: faster launches, more memory; baselines are of this setting"
        ),
        ("1",),
    ),
    Variable(
        "PYTORCH_NO_NPU_MEMORY_CACHING",
        _always("every tensor is allocated anew: as mssanitizer wants it, but slow: unset it to time"),
        ("0", ""),
    ),
    Variable("TORCH_DEVICE_BACKEND_AUTOLOAD", _autoload, ("1",)),
)  # fmt: skip
"""What is looked at, after the torch_npu documentation's reference of environment variables and CANN's."""


def findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each variable that is set, then one that counts those which aren't."""
    given = [variable.name for variable in NUMERIC if variable.name in environment]
    for variable in NUMERIC:
        value = environment.get(variable.name)
        if value is None:
            continue
        sentence = "" if value in variable.silent else variable.means(value)
        level: Level = "note" if sentence else "ok"
        yield Finding(variable.name, _shown(value), level, sentence and f"{variable.name}={_shown(value)}: {sentence}")
    visible = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is not None:
        yield _visible(visible)
    unset = f"{len(NUMERIC) - len(given)} others" if given else f"all {len(NUMERIC)} variables"
    yield Finding("not set", f"{unset} that change numerics or timings")


def _visible(value: str) -> Finding:
    name = "ASCEND_RT_VISIBLE_DEVICES"
    numbers = [part.strip() for part in value.split(",")]
    if not value.strip():
        return Finding(name, "empty", "wrong", f"{name} is empty, which hides every device: unset it, or list some")
    if any(not re.fullmatch(r"\d{1,4}", number) for number in numbers) or len(set(numbers)) < len(numbers):
        sentence = f"{name}={_shown(value)} is no list of different device numbers: give some such as 0 or 0,2"
        return Finding(name, _shown(value), "wrong", sentence)
    return Finding(name, _shown(value))


def _shown(value: str) -> str:
    return re.sub(r"[^ -~]", "?", value)[:60] or "empty"
