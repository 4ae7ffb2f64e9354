"""Is this device well? A small computation whose answer is known, waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ascend.targets.base import Target

__all__ = ["pulse"]

_SIZE = 64


def pulse(target: Target) -> str:
    """Compute on a device and look at the answer.

    A device that hangs lets this hang: whoever asks does so in a process that can be killed.

    Returns:
        ``""`` for a device that is well, else one line on what is wrong with it.
    """
    import torch

    try:
        with torch.no_grad():
            one = torch.ones(_SIZE, _SIZE, device=target.device())
            total = (one @ one + one).sum()
            target.synchronize()
            found = float(total.cpu())
    except Exception as error:  # whatever a sick device raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    wanted = float(_SIZE * _SIZE * (_SIZE + 1))
    return "" if found == wanted else f"it computed {found:g} where {wanted:g} is right"
