"""Samples for functions of mint whose torch function has none in the case list. Torch-free at import."""

from __future__ import annotations

from typing import Any

from pytest_ascend.cases.catalogue.entries import Entry, Sample

__all__ = ["entry"]

_FLOATS = ("float32", "float16", "bfloat16", "float64")


def _t(*shape: int, grad: bool = True) -> dict[str, Any]:
    """A tensor's spec: values in [-4, 4]."""
    return {"T": {"s": list(shape), "d": "*", "v": ["u", -4.0, 4.0], **({"g": 1} if grad else {})}}


def _module(args: list[Any], made: list[Any], **kwargs: Any) -> Sample:
    return Sample(args, {}, "float", made={"a": made, "k": kwargs, "t": 0})


#: by the name of the torch function, or by mint's where the case list's samples don't do
_SAMPLES: dict[str, list[Sample]] = {
    # mint broadcasts neither of these arguments
    "mint.polar": [Sample([_t(4, 5, grad=False), _t(4, 5, grad=False)], {}, "float")],
    "mint.nn.functional.prelu": [Sample([_t(4, 5), _t(1)], {}, "float"), Sample([_t(2, 3, 5), _t(3)], {}, "float")],
    # torch also takes no steps
    "mint.linspace": [Sample([-1.0, 3.0, 5], {"dtype": {"dt": "*"}}, "float")],
    "torch.conv_tbc": [
        Sample([_t(7, 2, 3), _t(3, 3, 5), _t(5)], {}, "float"),
        Sample([_t(7, 2, 3), _t(2, 3, 4), _t(4), 1], {}, "float"),
    ],
    "torch.rand": [Sample([4, 5], {}, "float")],
    "torch.rand_like": [Sample([_t(4, 5, grad=False)], {}, "float")],
    "torch.randperm": [Sample([100], {}, "float")],
    "torch.nn.functional.fold": [
        Sample([_t(2, 12, 12)], {"output_size": [4, 5], "kernel_size": [2, 2]}, "float"),
        Sample(
            [_t(1, 27, 4)], {"output_size": [4, 4], "kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]}, "float"
        ),
    ],
    "torch.nn.Flatten": [_module([_t(2, 3, 4)], []), _module([_t(2, 3, 4, 5)], [2, 3])],
    "torch.nn.Fold": [_module([_t(2, 12, 12)], [[4, 5], [2, 2]])],
    "torch.nn.Unfold": [_module([_t(2, 3, 4, 5)], [[2, 3]]), _module([_t(1, 2, 6, 6)], [[3, 3]], padding=1, stride=2)],
    "torch.nn.Hardsigmoid": [_module([_t(4, 5)], []), _module([_t()], [])],
    "torch.nn.Identity": [_module([_t(4, 5)], [])],
    "torch.nn.PixelShuffle": [_module([_t(1, 8, 3, 4)], [2]), _module([_t(2, 9, 2, 2)], [3])],
    "torch.nn.Upsample": [
        _module([_t(1, 2, 3, 4)], [], scale_factor=2.0),
        _module([_t(1, 2, 3, 4)], [], size=[5, 7], mode="bilinear"),
    ],
    "torch.nn.UpsamplingBilinear2d": [_module([_t(1, 2, 3, 4)], [], size=[6, 8])],
    "torch.nn.UpsamplingNearest2d": [_module([_t(1, 2, 3, 4)], [], size=[6, 8])],
    "torch.nn.MaxUnpool2d": [
        Sample(
            [_t(1, 1, 2, 2), {"T": {"s": [1, 1, 2, 2], "d": "int64", "v": ["x", [5, 7, 13, 15]]}}],
            {},
            "float",
            made={"a": [2], "k": {"stride": 2}, "t": 0},
        )
    ],
}


def entry(name: str, torch_name: str) -> Entry | None:
    """The entry of a function that the case list has none for, or none that mint takes."""
    samples = _SAMPLES.get(name) or _SAMPLES.get(torch_name)
    return None if samples is None else Entry(torch_name, "", "other", _FLOATS, samples)
