"""Fused optimiser steps: they write parameters and moments in place and return them. Computed in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .registry import op, python_api, wide

__all__: list[str] = []

_Step = tuple[Tensor, Tensor, Tensor]
_OUT = "*, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) -> (Tensor(a!), Tensor(b!), Tensor(c!))"


def _divide(a: float, b: float) -> float:
    """Floating-point division as a device does it: by zero gives infinity or NaN, no exception."""
    if b:
        return a / b
    return math.nan if not a or math.isnan(a) else math.copysign(math.inf, a)


@op(
    "npu_apply_adam.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar beta1, Scalar beta2, Scalar epsilon, "
    f"Tensor grad, bool? use_locking, bool? use_nesterov, {_OUT}"
)
def _npu_apply_adam_out(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    var: Tensor,
    m: Tensor,
    v: Tensor,
) -> _Step:
    with torch.no_grad():
        g, wm, wv = wide(grad, m, v)
        new_m = wm * beta1 + (1 - beta1) * g
        new_v = wv * beta2 + (1 - beta2) * g * g
        step = _divide(lr * math.sqrt(1 - beta2_power), 1 - beta1_power)
        direction = new_m * beta1 + (1 - beta1) * g if use_nesterov else new_m
        var.copy_(wide(var)[0] - step * direction / (epsilon + new_v.sqrt()))
        m.copy_(new_m)
        v.copy_(new_v)
    return var, m, v


@python_api("npu_apply_adam")
def npu_apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    out: _Step,
) -> _Step:
    """One Adam step on `out = (var, m, v)`, in place.

    `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `var ← var − lr √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)`; with
    `use_nesterov` the numerator is `β₁ m + (1 − β₁) g`. `beta1_power` and `beta2_power` are β₁ᵗ and β₂ᵗ.
    """
    var, m, v = out
    result: _Step = torch.ops.npu.npu_apply_adam.out(
        beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_locking, use_nesterov, var=var, m=m, v=v
    )
    return result


@op(
    "npu_apply_adam_w.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, Scalar beta1, "
    "Scalar beta2, "
    f"Scalar epsilon, Tensor grad, Tensor? max_grad_norm, bool? amsgrad, bool? maximize, {_OUT}"
)
def _npu_apply_adam_w_out(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    var: Tensor,
    m: Tensor,
    v: Tensor,
) -> _Step:
    with torch.no_grad():
        g, wm, wv = wide(-grad if maximize else grad, m, v)
        new_m = wm * beta1 + (1 - beta1) * g
        new_v = wv * beta2 + (1 - beta2) * g * g
        second = new_v
        if amsgrad:
            if max_grad_norm is None:
                raise RuntimeError("npu_apply_adam_w: amsgrad needs max_grad_norm, the largest second moments so far")
            second = torch.maximum(wide(max_grad_norm)[0], new_v)
            max_grad_norm.copy_(second)
        correction1, correction2 = 1 - beta1_power * beta1, 1 - beta2_power * beta2
        decayed = wide(var)[0] * (1 - lr * weight_decay)
        var.copy_(decayed - _divide(lr, correction1) * new_m / ((second / correction2).sqrt() + epsilon))
        m.copy_(new_m)
        v.copy_(new_v)
    return var, m, v


@python_api("npu_apply_adam_w")
def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: _Step,
) -> _Step:
    """One AdamW step on `out = (var, m, v)`, in place.

    Weight decay first (`var · (1 − lr · weight_decay)`), then `var − lr · m̂ / (√v̂ + ε)` with the moments corrected by
    `1 − β₁ᵗ⁺¹` and `1 − β₂ᵗ⁺¹`; `beta1_power` and `beta2_power` are β₁ᵗ and β₂ᵗ before the step. `amsgrad` takes the
    largest second moments so far from `max_grad_norm` and keeps them there; `maximize` climbs instead of descending.
    """
    var, m, v = out
    result: _Step = torch.ops.npu.npu_apply_adam_w.out(
        beta1_power,
        beta2_power,
        lr,
        weight_decay,
        beta1,
        beta2,
        epsilon,
        grad,
        max_grad_norm,
        amsgrad,
        maximize,
        var=var,
        m=m,
        v=v,
    )
    return result


@op(
    "npu_bert_apply_adam.out(Scalar lr, Scalar beta1, Scalar beta2, Scalar epsilon, Tensor grad, Scalar max_grad_norm, "
    f"Scalar global_grad_norm, Scalar weight_decay, Scalar? step_size=None, int adam_mode=0, {_OUT}"
)
def _npu_bert_apply_adam_out(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None = None,
    adam_mode: int = 0,
    *,
    var: Tensor,
    m: Tensor,
    v: Tensor,
) -> _Step:
    with torch.no_grad():
        g, wm, wv = wide(grad, m, v)
        if max_grad_norm > 0 and global_grad_norm > max_grad_norm:
            g = g * (max_grad_norm / global_grad_norm)
        new_m = wm * beta1 + (1 - beta1) * g
        new_v = wv * beta2 + (1 - beta2) * g * g
        update = new_m / (new_v.sqrt() + epsilon) + weight_decay * wide(var)[0]
        var.copy_(wide(var)[0] - lr * update)
        m.copy_(new_m)
        v.copy_(new_v)
    return var, m, v


@python_api("npu_bert_apply_adam")
def npu_bert_apply_adam(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None = None,
    adam_mode: int = 0,
    *,
    out: _Step,
) -> _Step:
    """One step of BERT's Adam on `out = (var, m, v)`, in place: no bias correction, weight decay inside the update.

    `var ← var − lr · (m / (√v + ε) + weight_decay · var)`; a gradient whose `global_grad_norm` exceeds a positive
    `max_grad_norm` is scaled down to it first. `step_size` and `adam_mode` are accepted; both modes compute this.
    """
    var, m, v = out
    result: _Step = torch.ops.npu.npu_bert_apply_adam.out(
        lr,
        beta1,
        beta2,
        epsilon,
        grad,
        max_grad_norm,
        global_grad_norm,
        weight_decay,
        step_size,
        adam_mode,
        var=var,
        m=m,
        v=v,
    )
    return result
