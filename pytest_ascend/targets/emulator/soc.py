"""The chips that can be emulated: one table of what sets their results apart.

Sources: the torch_npu documentation for overflow modes (`INF_NAN_MODE_ENABLE`: the 910A and 310P families know
saturation only, A2/A3 default to INF/NAN mode, Ascend 950 knows INF/NAN mode only), for `torch.npu.matmul.allow_hf32`
(default False) and `torch.npu.conv.allow_hf32` (default True), for bfloat16 (SoC version 220 and later) and for
`gelu` (the `approximate` argument is ignored, in favour of the tanh form, before Ascend 950); the SoC version numbers
are torch_npu's own enumeration. Memory sizes and core counts are those of the common boards; they only feed
`get_device_properties`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT", "PROFILES", "SoC", "profile"]

GIB = 1 << 30


@dataclass(frozen=True)
class SoC:
    """What one chip family computes, and how.

    Attributes:
        name: marketing name of the family, as users write it.
        device_name: what `torch.npu.get_device_name()` answers.
        version: torch_npu's integer SoC version (`torch.npu.get_soc_version()`).
        bf16: whether bfloat16 is a compute type.
        hf32: whether the cube unit has HF32 (1 sign, 8 exponent, 11 mantissa bits).
        overflow_modes: `("saturation",)`, `("inf_nan",)` or both; the first is the default.
        flush_subnormals: whether subnormal inputs and results become zero of the same sign.
        tanh_gelu: whether `gelu` computes the tanh form whatever `approximate` says.
        total_memory: device memory in bytes.
        cube_cores, vector_cores: number of AI cores of each kind.
        l2_cache: size of the shared L2 cache in bytes.
    """

    name: str
    device_name: str
    version: int
    bf16: bool
    hf32: bool
    overflow_modes: tuple[str, ...]
    flush_subnormals: bool
    tanh_gelu: bool
    total_memory: int
    cube_cores: int
    vector_cores: int
    l2_cache: int


PROFILES: dict[str, SoC] = {
    soc.name: soc
    for soc in (
        # name, device name, version, bf16, hf32, overflow modes, flush, tanh gelu, memory, cube and vector cores, L2
        SoC("Ascend910A", "Ascend910A", 101, False, False, ("saturation",), False, True, 32 * GIB, 32, 32, 32 << 20),
        SoC("Ascend310P", "Ascend310P3", 202, False, False, ("saturation",), False, True, 24 * GIB, 8, 7, 16 << 20),
        SoC(
            "Ascend910B",
            "Ascend910B3",
            222,
            True,
            True,
            ("inf_nan", "saturation"),
            False,
            True,
            64 * GIB,
            20,
            40,
            192 << 20,
        ),
        SoC("Ascend950", "Ascend950", 260, True, True, ("inf_nan",), True, False, 128 * GIB, 32, 64, 128 << 20),
    )
}
DEFAULT = "Ascend910B"


def profile(name: str) -> SoC:
    """Return the profile called `name`, whatever its case.

    Raises:
        ValueError: no such profile; the message lists those there are.
    """
    for soc in PROFILES.values():
        if name.lower() in (soc.name.lower(), soc.device_name.lower()):
            return soc
    raise ValueError(f"no emulated SoC is called {name!r}: choose one of {', '.join(PROFILES)}")
