"""Calls of the catalogue that are right in ways which a judge may easily take for wrong."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

# Recurrent cells round at every gate; layers without a kernel of 16 bits on the CPU; modes beside infinities; gradients
# that cancel; windows chosen at random; numbers that an in-place operator rounds.
APIS = (
    "torch.nn.GRUCell",
    "torch.nn.LocalResponseNorm",
    "torch.nn.functional.binary_cross_entropy_with_logits",
    "torch.nn.functional.conv1d",
    "torch.nn.functional.fractional_max_pool3d",
    "torch.nn.functional.gelu",
    "torch.Tensor.logit_",
)


def test_nothing_right_is_blamed(pytester: pytest.Pytester) -> None:
    options = f"--ascend-api={','.join(APIS)}", "--ascend-dtypes=float32,float16,bfloat16"
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "--ascend-compare=emulated", *options)
    assert result.ret == 0, result.stdout.str()[-3000:]
    assert result.parseoutcomes()["passed"] > 200
