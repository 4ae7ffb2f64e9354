"""The same values in another memory layout.

A kernel that ignores strides, an offset or a stride of 0 is right on contiguous arguments and wrong on these. The
functions here make a new tensor with the argument's values and the named layout; memory that doesn't belong to the
values is filled so that reading it shows (NaN for floating dtypes, else the smallest value there is in the tensor,
which keeps an index legal).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pytest_ascend.options import LAYOUTS

__all__ = ["is_plain_layout", "relay", "relay_all"]


def relay(value: torch.Tensor, layout: str) -> torch.Tensor | None:
    """The values of a tensor in the named layout.

    Args:
        value: a strided tensor of any shape, dtype and device.
        layout: one of :data:`pytest_ascend.options.LAYOUTS`.

    Returns:
        A tensor with equal shape, dtype and values: ``contiguous`` (offset 0, memory of its own), ``transposed`` (the
        last two dimensions swapped in memory), ``sliced`` (a storage offset, gaps between rows), ``expanded`` (stride 0
        along every dimension whose values repeat) or ``channels_last``. None where the layout can't hold the tensor:
        too few dimensions, no repeated values, nothing but memory to describe. ``as_given`` returns the tensor itself.

    Raises:
        ValueError: the layout isn't known.
    """
    if layout == "as_given":
        return value
    if layout not in _MAKERS:
        raise ValueError(f"layout {layout!r} is not known: it is one of {', '.join(LAYOUTS)}")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return None
    with torch.no_grad():
        return _MAKERS[layout](value.detach())


def relay_all(tensors: Iterable[torch.Tensor], layout: str) -> dict[int, torch.Tensor]:
    """The tensors that can take a layout: ``id(tensor)`` to the re-laid one. Empty for ``as_given``."""
    if layout == "as_given":
        return {}
    found = {id(tensor): relay(tensor, layout) for tensor in tensors}
    return {key: new for key, new in found.items() if new is not None}


def is_plain_layout(value: torch.Tensor) -> bool:
    """Whether a tensor is what ``contiguous`` makes: row-major, offset 0, alone in its storage."""
    if value.layout is not torch.strided:
        return True
    size = value.numel() * value.element_size()
    alone = value.storage_offset() == 0 and value.untyped_storage().nbytes() == size
    return value.is_contiguous() and alone and not value.is_conj() and not value.is_neg()


def _contiguous(value: torch.Tensor) -> torch.Tensor:
    return value.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()


def _transposed(value: torch.Tensor) -> torch.Tensor | None:
    if value.dim() < 2:
        return None
    return _contiguous(value.transpose(-1, -2)).transpose(-1, -2)


def _sliced(value: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0:
        room = _filler(value, (3,))
        view = room[1]
    else:
        shape = list(value.shape)
        shape[0] += 1
        shape[-1] += 3
        view = _filler(value, tuple(shape))[1:] if value.dim() > 1 else _filler(value, tuple(shape))
        view = view[..., 1 : 1 + value.shape[-1]]
    view.copy_(value)
    return view


def _filler(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Memory that betrays a kernel which reads it."""
    if value.dtype.is_floating_point or value.dtype.is_complex:
        try:
            return torch.full(shape, float("nan"), dtype=value.dtype, device=value.device)
        except (RuntimeError, NotImplementedError):  # an 8-bit floating type without a fill kernel
            return torch.zeros(shape, dtype=torch.float32, device=value.device).to(value.dtype)
    room = torch.zeros(shape, dtype=value.dtype, device=value.device)
    if value.numel():
        room.copy_(value.min() if value.dtype is not torch.bool else value.any())
    return room


def _expanded(value: torch.Tensor) -> torch.Tensor | None:
    small = value
    for dim, size in enumerate(value.shape):
        if size > 1 and _repeats(small.narrow(dim, 0, 1), small):
            small = small.narrow(dim, 0, 1)
    return _contiguous(small).expand(value.shape) if small.shape != value.shape else None


def _repeats(first: torch.Tensor, whole: torch.Tensor) -> bool:
    same = first.eq(whole) | (first.ne(first) & whole.ne(whole))
    return bool(same.all())


def _channels_last(value: torch.Tensor) -> torch.Tensor | None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if value.dim() not in formats:
        return None
    return value.clone(memory_format=formats[value.dim()])


_MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "contiguous": _contiguous,
    "transposed": _transposed,
    "sliced": _sliced,
    "expanded": _expanded,
    "channels_last": _channels_last,
}
