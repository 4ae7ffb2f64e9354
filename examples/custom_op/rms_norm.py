"""A custom operator, `example::rms_norm`, as an operator author would register it: forward, backward, shapes."""

import torch


@torch.library.custom_op("example::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; float32 inside, the input's type outside."""
    wide = x.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx, inputs, output) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    x, weight = ctx.saved_tensors
    wide, up = x.float(), grad.float() * weight.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + ctx.eps)
    normal = wide * scale
    dx = scale * (up - normal * (up * normal).mean(-1, keepdim=True))
    dw = (grad.float() * normal).flatten(0, -2).sum(0)
    return dx.to(x.dtype), dw.to(weight.dtype), None


rms_norm.register_autograd(_backward, setup_context=_setup)


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in plain torch, one step at a time."""
    mean_square = x.pow(2).mean(dim=-1, keepdim=True)
    return x / torch.sqrt(mean_square + eps) * weight
