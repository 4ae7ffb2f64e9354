"""Copy a tree of tensors to a device, in any precision, without changing what it is.

``clone()`` and ``.to()`` keep an argument's values and lose part of what it is: a stride of 0 becomes memory, a view
with an offset becomes a tensor of its own, two views of one storage become two storages. Kernels go wrong exactly
there. So whole storages are copied, once each, and every view is rebuilt over its copy: strides, storage offset,
overlap between arguments, channels_last, conjugate and negative bits survive, the same object passed twice stays one
object, and memory outside a view is there to be checked afterwards.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from pytest_ascend.cases.tree import Rebuilder, reach

__all__ = ["Copier", "Entry", "Room", "flat_storage", "same_bits"]

_ACCELERATOR = re.compile(r"(npu|cuda|xpu|mps|privateuseone)(:\d+)?")


@dataclasses.dataclass
class Entry:
    """One tensor of a case and its copy.

    Attributes:
        path: where it stands: ``args[0]``, ``x`` (a keyword or a closed-over variable), ``module.running_mean``.
        role: ``argument``, ``parameter`` or ``buffer``.
        source: what was copied; for an argument in another layout, the re-laid tensor.
        copy: what the callable gets.
        leaf: the tensor whose ``.grad`` is this entry's gradient, or None when it needs none.
        owner: for a parameter or buffer, the copied module it belongs to and its name there.
        version: autograd's count of in-place changes when the copy was made, or None when it isn't counted.
    """

    path: str
    role: str
    source: torch.Tensor
    copy: torch.Tensor
    leaf: torch.Tensor | None = None
    owner: tuple[nn.Module, str] | None = None
    version: int | None = None

    def current(self) -> torch.Tensor:
        """The tensor that stands there now: a module may have put another one in its place."""
        if self.owner is None:
            return self.copy
        module, name = self.owner
        return getattr(module, name)  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Room:
    """A storage that was copied between two guard bands.

    Attributes:
        path: the first tensor that lies in it.
        whole: the memory with its bands, in one dimension.
        before, after: where the storage itself begins and ends.
        band: what the bands hold, as one element on the CPU.
    """

    path: str
    whole: torch.Tensor
    before: int
    after: int
    band: torch.Tensor


#: Bytes on either side of a guarded storage: what accelerators align memory to, so that the copy keeps its alignment.
_GUARD = 512


class _Fork(torch.autograd.Function):
    """The identity, into memory of its own: makes a non-leaf out of a leaf, so that it may be changed in place."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return _relocate(leaf, leaf.device, leaf.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is memory with strides, so that its storage can be copied and its view rebuilt."""
    return value.layout is torch.strided and not value.is_quantized and not value.is_nested and _has_storage(value)


def _has_storage(value: torch.Tensor) -> bool:
    if value.device.type == "meta" or type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    try:
        value.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _flat(value: torch.Tensor) -> torch.Tensor:
    """A tensor's whole storage as one dimension of its own dtype, sharing memory; the bits as they lie there."""
    plain = value.detach()
    if plain.is_conj():
        plain = plain.conj()
    if plain.is_neg():
        plain = torch._neg_view(plain)
    return plain.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)


def flat_storage(value: torch.Tensor) -> tuple[int, torch.Tensor] | None:
    """A tensor's whole storage: what tells it from others, and its elements in one dimension, sharing memory.

    None for tensors without a storage of their own dtype (sparse, quantised, subclasses).
    """
    return (value.untyped_storage()._cdata, _flat(value)) if _is_plain(value) else None


def _in_dtype(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A flat storage seen in another dtype, the memory shared."""
    if base.dtype == dtype:
        return base
    if base.is_complex() and not dtype.is_complex and base.dtype.to_real() == dtype:
        return torch.view_as_real(base).view(-1)
    if dtype.is_complex and dtype.to_real() == base.dtype:
        return torch.view_as_complex(base[: base.numel() // 2 * 2].view(-1, 2))
    data = base.view(torch.uint8)
    size = torch.empty(0, dtype=dtype).element_size()
    return data[: data.numel() // size * size].view(dtype)


def _view_like(base: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The view of a flat storage that ``like`` is of its own."""
    view = base.as_strided(like.size(), like.stride(), base.storage_offset() + like.storage_offset())
    if like.is_conj():
        view = view.conj()
    if like.is_neg():
        view = torch._neg_view(view)
    return view.detach()


def _relocate(value: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """One tensor copied with its whole storage, view rebuilt."""
    with torch.no_grad():
        return _view_like(_flat(value).to(device=device, dtype=dtype, copy=True), value)


class Copier(Rebuilder):
    """One copy of a case on a device.

    Args:
        device: where tensors go.
        floating: precision of the copy: every floating dtype is promoted with it (``torch.float64`` makes float16
            float64 and complex64 complex128; integers stay). None keeps each tensor's own.
        keep_cpu: leave tensors that lie on the CPU there; for cases whose arguments mix devices on purpose.
        relaid: for tensors to be given in another layout, ``id(tensor)`` to the re-laid tensor.
        guard: copy storages between guard bands (:attr:`rooms`); storage offsets grow by the band.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        floating: torch.dtype | None = None,
        keep_cpu: bool = False,
        relaid: Mapping[int, torch.Tensor] | None = None,
        guard: bool = False,
    ) -> None:
        super().__init__()
        self.rooms: list[Room] = []
        self._guard = guard
        self.device = device
        self.floating = floating
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        self._keep_cpu = keep_cpu
        self._relaid = relaid or {}
        self._bases: dict[tuple[Any, ...], torch.Tensor] = {}
        self._sources: list[torch.Tensor] = []  # keeps storages alive while their addresses are keys

    def precision(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype a tensor of ``dtype`` has in this copy."""
        if self.floating is None or not (dtype.is_floating_point or dtype.is_complex):
            return dtype
        try:
            return torch.promote_types(dtype, self.floating)
        except RuntimeError:  # the 8-bit floating types promote with nothing
            return self.floating

    def tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        """An argument's copy."""
        device = value.device if self._keep_cpu and value.device.type == "cpu" else self.device
        return self._copy(value, path, "argument", device)

    def _copy(
        self,
        value: torch.Tensor,
        path: str,
        role: str,
        device: torch.device,
        owner: tuple[nn.Module, str] | None = None,
    ) -> torch.Tensor:
        source = self._relaid.get(id(value), value)
        with torch.no_grad():
            new = self._move(source, device, path)
        leaf = None
        if isinstance(value, nn.Parameter):
            new = leaf = _as_parameter(value, new)
        elif value.requires_grad:
            leaf = new.requires_grad_()
            if not value.is_leaf:
                with torch.enable_grad():
                    new = _Fork.apply(leaf)  # type: ignore[no-untyped-call]
        entry = Entry(path, role, source, new, leaf if leaf is not None and leaf.requires_grad else None, owner)
        entry.version = None if new.is_inference() else new._version
        self.entries.append(entry)
        return new

    def _move_alone(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor that stays on its own device."""
        with torch.no_grad():
            new = self._move(value, value.device)
        if isinstance(value, nn.Parameter):
            return _as_parameter(value, new)
        return new.requires_grad_(value.requires_grad and value.is_leaf)

    def _move(self, value: torch.Tensor, device: torch.device, path: str = "") -> torch.Tensor:
        dtype = self.precision(value.dtype)
        if not _is_plain(value):
            return value.detach().clone().to(device=device, dtype=dtype)
        # One base per storage and device; with promotion only dtypes of one width can share it, as real and complex do.
        promoted = None if dtype == value.dtype else value.dtype.to_real() if value.is_complex() else value.dtype
        key = (value.untyped_storage()._cdata, device, promoted)
        base = self._bases.get(key)
        if base is None:
            flat = _flat(value)
            if promoted is None and value.untyped_storage().nbytes() % value.element_size():  # an odd end: take bytes
                flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            dtype_of_base = self.precision(flat.dtype)
            if self._guard and path and flat.numel():
                base = self._between_bands(flat, device, dtype_of_base, path)
            else:
                base = flat.to(device=device, dtype=dtype_of_base, copy=True)
            self._bases[key] = base
            self._sources.append(value)
        return _view_like(_in_dtype(base, dtype), value)

    def _between_bands(self, flat: torch.Tensor, device: torch.device, dtype: torch.dtype, path: str) -> torch.Tensor:
        """A storage's copy in the middle of a larger one."""
        band = torch.full((), 90, dtype=torch.float32).to(dtype)
        wide, n = max(_GUARD // flat.element_size(), 1), flat.numel()
        whole = band.expand(n + 2 * wide).contiguous().to(device)
        whole[wide : wide + n].copy_(flat)
        self.rooms.append(Room(path, whole, wide, wide + n, band))
        return whole[wide : wide + n]

    def module(self, value: nn.Module, path: str) -> nn.Module:
        """A module's copy: parameters and buffers move, as ``Module.to`` moves them; the original is left alone.

        Tensors that are neither (``self.scale = torch.tensor(2.)``) stay where they are, because ``Module.to`` leaves
        them too and the card would raise; in a promoted copy they are promoted, so that the golden is one.

        Raises:
            ValueError: the module can't be copied; the message names the reason.
        """
        if isinstance(value, torch.jit.ScriptModule):
            return copy.deepcopy(value).to(self.device, self.floating)
        memo: dict[int, Any] = {}
        pending: list[tuple[Entry, str]] = []
        for role, named in (
            ("parameter", value.named_parameters(remove_duplicate=False)),
            ("buffer", value.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in named:
                if isinstance(tensor, UninitializedTensorMixin):
                    raise ValueError(
                        f"{path}.{name} is not initialised yet (a lazy module): call the module once first"
                    )
                if id(tensor) in memo:  # a tied weight
                    continue
                new = self.known(tensor)  # an argument too, or another module's
                if new is None:
                    new = self.remember(tensor, self._copy(tensor, f"{path}.{name}", role, self.device))
                    pending.append((self.entries[-1], name))
                memo[id(tensor)] = new
        self._take_along(value, memo)
        try:
            twin = copy.deepcopy(value, memo)
        except Exception as error:
            raise ValueError(f"{type(value).__name__} can't be copied, so it can't be compared: {error}") from error
        for entry, name in pending:
            owner, _, last = name.rpartition(".")
            entry.owner = (twin.get_submodule(owner), last)
        return twin

    def _take_along(self, module: nn.Module, memo: dict[int, Any]) -> None:
        """Copy the tensors a module holds without having registered them, and enter them in a deepcopy's memo."""
        inside = {id(inner) for inner in module.modules()}
        todo: list[Any] = []
        for inner in module.modules():
            todo.extend(v for k, v in vars(inner).items() if k not in ("_parameters", "_buffers", "_modules"))
        while todo:
            for found in reach(todo.pop()):
                if isinstance(found, nn.Module):  # kept in a plain list, where Module.to doesn't find it either
                    if id(found) not in inside:
                        inside.add(id(found))
                        todo.append(vars(found))
                elif id(found) not in memo:
                    twin = self._move_alone(found)
                    memo[id(found)] = self.remember(found, twin)

    def atom(self, value: Any, name: str) -> Any:
        """Devices follow the copy, floating dtypes its precision, generators are copied so that none is advanced."""
        if isinstance(value, torch.device):
            return self.device
        if isinstance(value, str):
            if _ACCELERATOR.fullmatch(value) or (name == "device" and value == "cpu"):
                return str(self.device)
            return value
        if isinstance(value, torch.dtype):
            return self.precision(value)
        if isinstance(value, torch.Generator):
            return self._generator(value)
        return value

    def _generator(self, value: torch.Generator) -> torch.Generator | None:
        try:
            new = torch.Generator(device=self.device)
        except RuntimeError:  # the emulated device has no generators of its own
            self.notes.append(f"{self.device.type} can't make a generator: its default one was used instead")
            return None
        if value.device.type == self.device.type:
            new.set_state(value.get_state())
        else:
            new.manual_seed(value.initial_seed())
        return new


def _as_parameter(value: nn.Parameter, new: torch.Tensor) -> torch.Tensor:
    """A parameter of the same class and with the same attributes as ``value`` over the memory of ``new``."""
    if type(value) is nn.Parameter:
        parameter: torch.Tensor = nn.Parameter(new, requires_grad=value.requires_grad)
    else:
        parameter = torch.Tensor._make_subclass(type(value), new, value.requires_grad)
    parameter.__dict__.update(value.__dict__)
    return parameter


_WORDS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors on one device have the same dtype, shape and bits; a NaN equals itself, 0.0 isn't -0.0."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.layout != right.layout:
        return False
    if left.layout is not torch.strided:
        left, right = left.to_dense(), right.to_dense()
    if not _is_plain(left) or not _is_plain(right):
        return bool(torch.equal(left, right))
    left, right = left.detach().resolve_conj().resolve_neg(), right.detach().resolve_conj().resolve_neg()
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    if left.dtype.is_floating_point:
        word = _WORDS[left.element_size()]
        left, right = left.contiguous().view(word), right.contiguous().view(word)
    return bool(torch.equal(left, right))
