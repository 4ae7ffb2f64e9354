"""Which operator did it? Forty wrong kernels, planted one at a time below four models; each must be found by name.

    python benchmarks/culprits/faults.py [--models minilm,lstm] [--dtype bfloat16] [--verbose]

A kernel of the emulated device is replaced by one that is wrong: wherever it is called, or for the weights of one layer
alone, forward or backward. Then the model is checked with every layer a checkpoint. Found means: the culprit is that
operator, in that layer and pass, and the first divergence is that layer or, where it is no checkpoint, one around it.
A victim is a layer that fails although no wrong kernel ran in it, nor between it and the layer before.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pytest_ascend as pa

Args = tuple[Any, ...]
Model = tuple[nn.Module, dict[str, Any]]


@dataclass(frozen=True)
class Fault:
    """A wrong kernel.

    Attributes:
        op: the operator, without ``aten::``.
        damage: gets the right result, returns a wrong one; of several results, the one at ``result``.
        module: the layer in which it is wrong first.
        weight: the parameter of the model that an argument must hold for it to be wrong; always without it.
        backward: whether it belongs to the backward pass.
        others: layers in which it is wrong, too, as a part of their names.
        result: which of several results is wrong.
        first: the layer that must be named where the operator is called outside of all of them, in the model's own
            forward: the next one, which it reaches.
    """

    op: str
    damage: Callable[[torch.Tensor], torch.Tensor]
    module: str
    weight: str = ""
    backward: bool = False
    others: tuple[str, ...] = ()
    result: int = 0
    first: str = ""

    def kernel(self, model: nn.Module) -> Callable[..., Any]:
        """The kernel for a model's check."""
        right: Any = getattr(torch.ops.aten, self.op)
        weight = model.get_parameter(self.weight).detach() if self.weight else None

        def wrong(*args: Any, **kwargs: Any) -> Any:
            found = right(*args, **kwargs)
            if weight is not None and not any(
                _holds(arg, weight, self.backward or self.op == "embedding") for arg in args
            ):
                return found
            if isinstance(found, torch.Tensor):
                return self.damage(found)
            return tuple(self.damage(one) if i == self.result else one for i, one in enumerate(found))

        return wrong

    def is_guilty(self, layer: str) -> bool:
        """Whether the kernel is wrong in a layer, or in one that it holds."""
        names = (self.module, *self.others)
        return any(f"{name}.".startswith(f"{layer}.") or name in layer for name in names if name)


def _holds(arg: object, weight: torch.Tensor, backward: bool) -> bool:
    """Whether an argument is the weight: of a product transposed in the forward pass, as it is in the backward pass."""
    if not isinstance(arg, torch.Tensor) or arg.numel() != weight.numel() or arg.dtype != weight.dtype:
        return False
    plain = arg.t() if arg.dim() == 2 and not backward else arg
    return plain.shape == weight.shape and torch.equal(plain, weight)


# -------------------------------------------------------------------------------------------------------- what is wrong


def larger(y: torch.Tensor) -> torch.Tensor:
    return y * 1.01


def stale(y: torch.Tensor) -> torch.Tensor:
    """The last channel holds the one before."""
    y = y.clone()
    channels = y if y.dim() == 4 else y.transpose(min(1, y.dim() - 1), -1)
    channels.select(min(1, y.dim() - 1), -1).copy_(channels.select(min(1, y.dim() - 1), -2))
    return y


def tail(y: torch.Tensor) -> torch.Tensor:
    """The last elements were never computed."""
    y = y.contiguous().clone()
    y.view(-1)[-7:] = 0
    return y


def coarse(y: torch.Tensor) -> torch.Tensor:
    """Rounded to four bits on the way."""
    return y.to(torch.float8_e4m3fn).to(y.dtype)


def row(y: torch.Tensor) -> torch.Tensor:
    """The last row is the one before."""
    y = y.contiguous().clone()
    rows = y.view(-1, y.shape[-1])
    rows[-1] = rows[-2]
    return y


def shifted(y: torch.Tensor) -> torch.Tensor:
    return y + 1e-2 * y.abs().mean()


# --------------------------------------------------------------------------------------------------------------- models


def _judgement() -> Any:
    path = Path(__file__).parent.parent / "judgement" / "models.py"
    spec = importlib.util.spec_from_file_location("judgement_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _minilm() -> Model:
    return _judgement().minilm(small=True).make()


def _llama() -> Model:
    return _judgement().llama(small=True).make()


def _resnet18() -> Model:
    return _judgement().resnet18(small=True).make()


class Tagger(nn.Module):
    """Two LSTM layers over an embedding, a norm and a head, with their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.norm(self.lstm(self.embed(ids))[0]))
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def _lstm() -> Model:
    torch.manual_seed(0)
    return Tagger(), {"ids": torch.randint(50, (4, 12)), "labels": torch.randint(10, (4, 12))}


L = "encoder.layer"
M = "model.layers"
MODELS: dict[str, tuple[Callable[[], Model], tuple[Fault, ...]]] = {
    "minilm": (
        _minilm,
        (
            Fault("addmm", tail, f"{L}.1.attention.self.query", f"{L}.1.attention.self.query.weight"),
            Fault("addmm", stale, f"{L}.1.intermediate.dense", f"{L}.1.intermediate.dense.weight"),
            Fault("native_layer_norm", larger, f"{L}.1.output.LayerNorm", f"{L}.1.output.LayerNorm.weight"),
            Fault("gelu", coarse, f"{L}.0.intermediate.intermediate_act_fn", others=("intermediate",)),
            Fault("embedding", row, "embeddings.position_embeddings", "embeddings.position_embeddings.weight"),
            Fault("tanh", shifted, "pooler.activation"),
            Fault("_safe_softmax", larger, f"{L}.0.attention.self", others=("attention.self",)),
            Fault("native_layer_norm_backward", larger, f"{L}.1.attention.output.LayerNorm",
                  f"{L}.1.attention.output.LayerNorm.weight", backward=True),
            Fault("gelu_backward", stale, f"{L}.2.intermediate.intermediate_act_fn", backward=True),
            Fault("mm", row, f"{L}.1.output.dense", f"{L}.1.output.dense.weight", backward=True),
        ),
    ),
    "llama": (
        _llama,
        (
            Fault("mm", tail, f"{M}.1.self_attn.q_proj", f"{M}.1.self_attn.q_proj.weight"),
            Fault("silu", larger, f"{M}.0.mlp.act_fn", others=("mlp.act_fn",)),
            Fault("rsqrt", shifted, f"{M}.0.input_layernorm", others=("norm",)),
            Fault("_safe_softmax", coarse, f"{M}.0.self_attn", others=("self_attn",)),
            Fault("neg", tail, f"{M}.0.self_attn", others=("self_attn",)),
            Fault("embedding", row, "model.embed_tokens"),
            Fault("cos", shifted, "model.rotary_emb"),
            Fault("silu_backward", stale, f"{M}.2.mlp.act_fn", backward=True),
            Fault("_softmax_backward_data", larger, f"{M}.2.self_attn", backward=True),
            Fault("mm", row, f"{M}.1.mlp.down_proj", f"{M}.1.mlp.down_proj.weight", backward=True),
        ),
    ),
    "resnet18": (
        _resnet18,
        (
            Fault("convolution", stale, "layer2.0.conv1", "layer2.0.conv1.weight"),
            Fault("convolution", coarse, "conv1", "conv1.weight"),
            Fault("native_batch_norm", larger, "layer3.1.bn1", "layer3.1.bn1.weight"),
            Fault("max_pool2d_with_indices", larger, "", first="layer1", others=("layer1",)),
            Fault("addmm", shifted, "fc", "fc.weight"),
            Fault("mean", larger, "", first="fc", others=("fc",)),
            Fault("relu", larger, "", first="layer1", others=("layer",)),
            Fault("threshold_backward", tail, "layer4.1", backward=True),
            Fault("native_batch_norm_backward", larger, "layer2.1.bn2", "layer2.1.bn2.weight", backward=True),
            Fault("convolution_backward", stale, "layer3.0.conv2", "layer3.0.conv2.weight", backward=True),
        ),
    ),
    "lstm": (
        _lstm,
        (
            Fault("embedding", row, "embed"),
            Fault("mm", tail, "lstm", "lstm.weight_ih_l0"),
            Fault("sigmoid", larger, "lstm"),
            Fault("tanh", coarse, "lstm"),
            Fault("native_layer_norm", shifted, "norm"),
            Fault("addmm", stale, "head"),
            Fault("_log_softmax", larger, ""),
            Fault("_log_softmax_backward_data", row, "", backward=True),
            Fault("sigmoid_backward", larger, "lstm", backward=True),
            Fault("native_layer_norm_backward", larger, "norm", backward=True),
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a check said of a fault."""

    op: bool
    module: bool
    divergence: bool
    victims: tuple[str, ...]
    result: pa.CheckResult


def examine(name: str, fault: Fault, dtype: torch.dtype = torch.float32) -> Outcome:
    """Check a model with a fault planted."""
    model, inputs = MODELS[name][0]()
    model = (model.train() if name == "resnet18" else model.eval()).to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    options = pa.CheckOptions(target="emulated", backward=True, checkpoints=True)
    with pa.emulator.override(f"aten::{fault.op}", fault.kernel(model)):
        result = pa.check(model, options=options, **inputs)
    culprit = result.culprit
    op = culprit is not None and culprit.op.split(".")[1].rstrip("_") == fault.op and culprit.confirmed
    right_pass = culprit is not None and (culprit.phase == "backward") == fault.backward
    module = culprit is not None and right_pass and culprit.module == fault.module
    first = result.first_divergence
    divergence = (
        f"{fault.module}.".startswith(f"{first}.") if fault.module else (first is None or fault.is_guilty(first))
    )
    blamed = [layer for layer, found in result.checkpoints.items() if found.verdict is pa.Verdict.FAIL]
    victims = tuple(layer for layer in blamed if fault.backward or not fault.is_guilty(layer.partition("#")[0]))
    return Outcome(op, module, divergence, victims, result)


def main() -> int:
    """Print a row for each fault, and how many were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--only", default="", help="operators, divided by commas")
    parser.add_argument("--dtype", default="float32", help="float32, float16 or bfloat16")
    parser.add_argument("--verbose", action="store_true", help="print each result that isn't as it should be")
    options = parser.parse_args()
    pa.emulator.install()
    wanted = set(filter(None, options.only.split(",")))
    total = found = blamed = 0
    print(f"{'model':<10} {'operator':<28} {'layer':<40} {'op':>3} {'layer':>6} {'first':>6} {'victims':>8} {'s':>6}")
    for name in options.models.split(","):
        for fault in MODELS[name][1]:
            if wanted and fault.op not in wanted:
                continue
            begin = time.perf_counter()
            one = examine(name, fault, getattr(torch, options.dtype))
            took = time.perf_counter() - begin
            total, good = total + 1, one.op and one.module and one.divergence
            found, blamed = found + good, blamed + bool(one.victims)
            marks = ["yes" if it else "NO" for it in (one.op, one.module, one.divergence)]
            layer = fault.module + " (backward)" * fault.backward
            print(
                f"{name:<10} {fault.op:<28} {layer:<40} {marks[0]:>3} {marks[1]:>6} {marks[2]:>6} "
                f"{len(one.victims):>8} {took:>6.1f}", flush=True
            )  # fmt: skip
            if options.verbose and (not good or one.victims):
                print(f"    victims: {', '.join(one.victims)}\n    culprit: {one.result.culprit}")
                print(f"    first divergence: {one.result.first_divergence}, {one.result.verdict}: {one.result.reason}")
    print(f"{found} of {total} found, layer and operator; layers that were blamed without being guilty: in {blamed}")
    return int(found < 0.95 * total or bool(blamed))


if __name__ == "__main__":
    sys.exit(main())
