"""From a recorded call's name to the function it called.

The name is untrusted: it must not reach anything but operators. ``torch.load``, ``torch.from_file``, a module that
torch happens to import, or a private attribute are no operators, whatever a file says.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

from pytest_ascend.cases.pending import CaseUnavailable

__all__ = ["OTHER", "display", "function", "is_mint", "name_of", "not_runnable"]

_HOMES = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "VF": "torch._VF",
    "NPU": "torch_npu",
    "Aten": "torch.ops.aten",
    "Distributed": "torch.distributed",
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "MintDistributed": "mindspore.mint.distributed",
}
OTHER = "Other"
"""Prefix of what was called and is no operator; its name is then a whole one."""
_DISTRIBUTED = {"Distributed", "MintDistributed"}
_MINT = {"Mint", "MintFunctional"}

#: What a dump's call can't be: it reads or writes files, changes this process, or takes functions.
_REFUSED = {
    *("from_file", "load", "save", "compile", "import_ir_module", "set_default_device", "set_default_dtype"),
    *("apply_", "map_", "map2_", "backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
    *("share_memory_", "module_load", "pin_memory", "record_stream", "storage", "untyped_storage", "data_ptr"),
    *("set_", "resize_", "resize_as_", "numpy", "tolist", "requires_grad_", "as_subclass", "is_shared"),
    *("rename", "rename_", "align_to", "refine_names", "unflatten_names", "cuda", "npu", "xpu", "ipu", "hpu", "mtia"),
    *("__new__", "__init__", "__class__", "__reduce__", "__reduce_ex__", "__setstate__", "__getstate__", "__del__"),
    *("__deepcopy__", "__copy__", "__dir__", "__format__", "__repr__", "__str__", "__hash__", "__init_subclass__"),
    *("__subclasshook__", "__torch_function__", "__torch_dispatch__", "__setattr__", "__getattribute__", "__delattr__"),
    *("__dlpack__", "__dlpack_device__", "__array__", "__array_wrap__", "__iter__", "__sizeof__", "__delitem__"),
}
_TORCH_FILES = {"torch.functional", "torch.nn.functional", "torch._tensor", "torch._linalg_utils", "torch._lowrank"}
_COMPILED = ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested")
_SUBMODULES = {"linalg", "fft", "special", "sparse", "nested"}


def display(prefix: str, api: str) -> str:
    """What an API is called in reports: ``torch.nn.functional.softmax``."""
    return api if prefix == OTHER else f"{_HOMES.get(prefix, prefix)}.{api}"


def is_mint(prefix: str) -> bool:
    """Whether calls of that kind are MindSpore's (cases/mint replays them)."""
    return prefix in _MINT


def not_runnable(prefix: str, api: str) -> str:
    """Why calls of an API can't be replayed here, as a sentence; ``""`` where they can."""
    if prefix in _DISTRIBUTED:
        return "a collective call needs the other processes of the run"
    if is_mint(prefix):
        from importlib import util

        if util.find_spec("mindspore") is None:
            return "it needs MindSpore: pip install 'pytest-ascend[mindspore]' in an environment of its own"
        return ""
    if prefix == OTHER:
        return "it is no operator of torch's but a function that takes part in torch's overrides"
    if prefix not in _HOMES:
        return f"{prefix} is a library that pytest-ascend doesn't know"
    return ""


def function(prefix: str, api: str) -> Callable[..., Any]:
    """The function of a recorded call.

    Raises:
        CaseUnavailable: this torch has no such operator, or the name is that of something else.
    """
    import torch

    name = display(prefix, api)
    if api.rpartition(".")[2] in _REFUSED or api in _REFUSED:
        raise CaseUnavailable(f"{name} is no operator that can be replayed from a dump")
    found: Any = None
    if prefix == "Functional" and "." not in api:
        found = getattr(torch.nn.functional, api, None) or getattr(torch._C._nn, api, None)
    elif prefix == "Tensor" and "." not in api:
        found = getattr(torch.Tensor, api, None)
    elif prefix == "VF" and "." not in api:
        found = getattr(torch._VF, api, None)
    elif prefix == "Torch":
        found = _of_torch(api)
    elif prefix == "Aten":
        found = _of_aten(api)
    elif prefix == "NPU":
        return _of_torch_npu(api)
    elif is_mint(prefix):
        raise CaseUnavailable(f"{name} is MindSpore's and no function of torch's")
    if found is None:
        raise CaseUnavailable(f"{name} isn't in torch {torch.__version__}")
    if not _is_operator(found):
        raise CaseUnavailable(f"{name} is no operator that can be replayed from a dump")
    return found  # type: ignore[no-any-return]


def name_of(fn: Callable[..., Any]) -> tuple[str, str] | None:
    """Kind and name under which a call of a function is recorded, so that :func:`function` finds it again.

    None for what is no call to compare: an attribute that is read (``x.shape``), a method that moves a tensor to a
    device, hands it to numpy, hooks into autograd and the like. What torch's overrides know and :func:`function`
    doesn't is ``("Other", its whole name)``; an operator of a library is ``(library, name)``.
    """
    import torch

    if getattr(fn, "__name__", "") in ("__get__", "__set__", "__delete__"):
        return None
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        library, _, rest = str(fn).partition(".")
        name, _, overload = rest.partition(".")
        if library == "npu":
            return "NPU", name
        return ("Aten" if library == "aten" else library), f"{name}.{overload}" if overload else name
    home = getattr(fn, "__module__", None) or ""
    whole = torch.overrides.resolve_name(fn) or f"{home}.{getattr(fn, '__qualname__', repr(fn))}"
    whole = whole.replace("torch.functional.", "torch.")
    if home.startswith("torch_npu"):
        return "NPU", whole.rpartition(".")[2]
    for prefix in ("Functional", "Tensor", "Torch", "VF"):
        start = f"{_HOMES[prefix]}."
        if not whole.startswith(start):
            continue
        api = whole.removeprefix(start)
        if api.rpartition(".")[2] in _REFUSED:
            return None
        try:
            function(prefix, api)
        except CaseUnavailable:
            continue
        return prefix, api
    return OTHER, whole


def _of_torch(api: str) -> Any:
    import torch

    home, _, last = api.rpartition(".")
    if home and home not in _SUBMODULES:
        return None
    return getattr(getattr(torch, home) if home else torch, last, None)


def _of_aten(api: str) -> Any:
    import torch

    name, _, overload = api.partition(".")
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    return getattr(packet, overload, None) if packet is not None and overload else packet


def _of_torch_npu(api: str) -> Callable[..., Any]:
    """An operator of torch_npu's own, on a card or emulated."""
    import importlib

    if not api.isidentifier() or api.startswith("__"):
        raise CaseUnavailable(f"torch_npu.{api} is no operator that can be replayed from a dump")
    try:
        module = importlib.import_module("torch_npu")
    except Exception as error:
        raise CaseUnavailable(f"torch_npu.{api} needs torch_npu, which can't be imported: {error}") from None
    found = getattr(module, api, None)
    if not callable(found) or isinstance(found, (type, types.ModuleType)) or not re.match("_?npu_|fast_gelu$", api):
        raise CaseUnavailable(f"torch_npu has no operator {api}")
    return found  # type: ignore[no-any-return]


def _is_operator(found: Any) -> bool:
    """Whether an attribute of torch is one of its operators."""
    import torch

    if isinstance(found, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return found.__objclass__ is torch._C.TensorBase
    if isinstance(found, types.BuiltinFunctionType):
        compiled = [getattr(torch._C, name, None) for name in _COMPILED]
        return found.__self__ is None or isinstance(found.__self__, type) or found.__self__ in compiled
    if isinstance(found, types.FunctionType):
        return found.__module__ in _TORCH_FILES or found.__module__.startswith("torch._jit_internal")
    return False
