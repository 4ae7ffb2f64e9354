"""torch's public functions and methods, to say of which of them there is no case."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

__all__ = ["public_functions", "without_cases"]

_HOMES = {
    "torch": "torch",
    "torch.functional": "torch",
    "torch.nn.functional": "torch.nn.functional",
    "torch.linalg": "torch.linalg",
    "torch.fft": "torch.fft",
    "torch.special": "torch.special",
    "Tensor": "torch.Tensor",
}


def public_functions() -> set[str]:
    """Names of the functions and methods of Tensor that ``torch.overrides`` lists, without private ones."""
    found = set()
    for home, functions in torch.overrides.get_overridable_functions().items():
        prefix = _HOMES.get(getattr(home, "__name__", ""))
        if prefix is None:
            continue
        for fn in functions:
            name = getattr(fn, "__name__", "_")
            if not name.startswith("_") and hasattr(_owner(prefix), name):
                found.add(f"{prefix}.{name}")
    return found


def _owner(prefix: str) -> object:
    from pytest_ascend.cases.catalogue.names import resolve

    return resolve(prefix)


def without_cases(covered: Collection[str], left_out: Mapping[str, str]) -> dict[str, str]:
    """Public functions without a case, each with the reason.

    Args:
        covered: names that have cases.
        left_out: operators that the list's maker left out, and why.
    """
    reasons = {_public(name): reason for name, reason in left_out.items()}
    rest = sorted(public_functions() - set(covered))
    return {name: reasons.get(name, "the case list has no sample of it") for name in rest}


def _public(name: str) -> str:
    name = name.replace("nn_functional_", "nn.functional.").replace("linalg_", "linalg.")
    return name if name.startswith("torch.") else f"torch.{name}"
