"""Which callable judges an operator that has none on the CPU: torch_npu's own operators, and those that users register.

A reference takes the operator's arguments as CPU tensors, in the case's own dtype and in float64, and computes the same
from torch's operators. This module imports no torch, so that a ``conftest.py`` can register without paying for it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from pytest_ascend.cases.case import Case

__all__ = ["built_in", "lookup", "name_of", "of_case", "register_reference"]

Function = TypeVar("Function", bound=Callable[..., Any])

#: Homes of the references that come with the package: operators of torch_npu by the module that has their formula.
_BUILT_IN: dict[str, tuple[str, ...]] = {
    "activations": (
        *("fast_gelu", "npu_fast_gelu", "npu_fast_gelu_backward", "npu_gelu", "npu_geglu", "npu_mish"),
        *("npu_silu", "npu_silu_", "npu_swiglu"),
    ),
    "norms": (
        *("npu_rms_norm", "npu_gemma_rms_norm", "npu_add_rms_norm", "npu_layer_norm_eval", "npu_deep_norm"),
        "npu_group_norm_silu",
    ),
    "attention": (
        *("npu_fusion_attention", "npu_prompt_flash_attention", "npu_incre_flash_attention"),
        *("npu_scaled_masked_softmax", "npu_rotary_mul", "npu_apply_rotary_pos_emb", "npu_interleave_rope"),
    ),
    "moving": (
        *("npu_confusion_transpose", "npu_transpose", "npu_reshape", "npu_broadcast", "npu_slice", "npu_pad"),
        *("npu_dtype_cast", "npu_dtype_cast_", "npu_format_cast", "npu_format_cast_", "npu_one_hot", "npu_sort_v2"),
        *("npu_max", "npu_min", "npu_scatter", "npu_scatter_nd_update", "npu_scatter_nd_update_"),
    ),
    "products": ("npu_linear", "npu_bmmV2", "npu_conv2d", "npu_conv3d", "npu_convolution", "npu_grouped_matmul"),
    "experts": ("npu_moe_gating_top_k_softmax", "npu_quantize", "npu_dynamic_quant"),
}
_HOME = {f"npu.{name}": module for module, names in _BUILT_IN.items() for name in names}
_registered: dict[str, Callable[..., Any]] = {}

_TORCH_OPS = "torch.ops."
_NAME = re.compile(r"[A-Za-z_]\w*((\.|::)[A-Za-z_]\w*)+", re.ASCII)


@overload
def register_reference(name: str) -> Callable[[Function], Function]: ...
@overload
def register_reference(name: str, fn: Function) -> Function: ...
def register_reference(name: str, fn: Any = None) -> Any:
    """Judge an operator by a callable on the CPU, wherever it is compared: in tests, in dumps, from the catalogue.

    ``register_reference("my_ops.fused_mlp", fn)``, or as a decorator: ``@register_reference("my_ops.fused_mlp")``. The
    right place is a ``conftest.py``.

    Args:
        name: what the operator is called. ``my_ops.fused_mlp``, ``my_ops::fused_mlp`` and
            ``torch.ops.my_ops.fused_mlp`` all mean the operator of torch's dispatcher with all its overloads, the first
            also a Python function of that module. ``torch_npu.npu_x`` and ``npu::npu_x`` are one.
        fn: takes the operator's arguments and returns what it returns, from CPU tensors in the case's own dtype and in
            float64. 16-bit results should be computed in float32 and rounded once where the operator does that.

    Returns:
        ``fn``.

    A later registration of a name replaces an earlier one, and either replaces the reference that comes with
    pytest-ascend. ``reference=`` of a check wins over all.

    Raises:
        TypeError: ``fn`` can't be called.
        ValueError: ``name`` is no dotted name.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        example = "such as 'my_ops.fused_mlp' or 'my_ops::fused_mlp'"
        raise ValueError(f"{name!r} is no operator's name: give its library and its own name, {example}")
    if fn is None:
        return lambda decorated: register_reference(name, decorated)
    if not callable(fn):
        raise TypeError(
            f"the reference of {name} can't be called: {fn!r}; give a function with the operator's arguments"
        )
    _registered[next(_keys(name))] = fn
    return fn


def lookup(name: str) -> Callable[..., Any] | None:
    """The reference registered for an operator, or the one that comes with the package, or None.

    Args:
        name: in any of the forms that :func:`register_reference` takes, also with an overload
            (``torch.ops.npu.npu_max.dim``), and as msprobe writes it (``NPU.npu_rms_norm``).
    """
    for key in _keys(name):
        if key in _registered:
            return _registered[key]
    return next((found for key in _keys(name) if (found := built_in(key)) is not None), None)


def built_in(key: str) -> Callable[..., Any] | None:
    """The reference that comes with the package for ``npu.<operator>``, or None."""
    if key not in _HOME:
        return None
    module = importlib.import_module(f"pytest_ascend.cases.npu_ops.{_HOME[key]}")
    found: Callable[..., Any] = getattr(module, key.removeprefix("npu."))
    return found


def of_case(case: Case) -> Callable[..., Any] | None:
    """The reference of the operator that a case calls, or None."""
    for name in (*_names(case.fn), case.api):
        if name and (found := lookup(name)) is not None and found is not case.fn:
            return found
    return None


def name_of(fn: Callable[..., Any]) -> str:
    """What a reference is called in a result: where it was registered, else its own name."""
    for key, found in _registered.items():
        if found is fn:
            return f"the one registered for {key}"
    home = getattr(fn, "__module__", "") or ""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    if home.startswith("pytest_ascend.cases.npu_ops"):
        return f"the composition of torch_npu.{name} that comes with pytest-ascend"
    return f"{home}.{name}" if home and home not in ("builtins", "__main__") else str(name)


def _keys(name: str) -> Iterator[str]:
    """An operator's name in the one form that is stored, without its overload last."""
    of_torch = name.startswith(_TORCH_OPS) or "::" in name
    name = name.removeprefix(_TORCH_OPS).replace("::", ".")
    for prefix in ("torch_npu._C._VariableFunctions.", "torch_npu.", "NPU."):
        if name.startswith(prefix):
            name, of_torch = "npu." + name.removeprefix(prefix), True
            break
    parts = name.split(".")
    yield ".".join(parts[:2]) if of_torch and parts[0] == "npu" else name
    if of_torch and len(parts) > 2:
        yield ".".join(parts[:2])


def _names(fn: Any) -> Iterator[str]:
    """What an operator of torch's dispatcher is called there; nothing for any other callable."""
    qualified = getattr(fn, "_qualname", None)  # of torch.library.custom_op
    if isinstance(qualified, str) and "::" in qualified:
        yield qualified
    packet = getattr(fn, "_qualified_op_name", None)
    if isinstance(packet, str):
        yield packet
    schema = getattr(fn, "_schema", None)
    if isinstance(getattr(schema, "name", None), str):
        yield f"{schema.name}.{schema.overload_name or 'default'}"  # type: ignore[union-attr]
