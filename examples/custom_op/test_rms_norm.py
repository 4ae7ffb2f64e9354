"""A custom operator against its composition in torch, forward and backward."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import rms_norm as ops  # noqa: E402

import pytest_ascend as pa  # noqa: E402
from pytest_ascend.strategies import dtype, tensors  # noqa: E402

KINDS = dtype("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("shape", [(4, 64), (2, 33, 1000)], ids=str)
def test_rms_norm(ascend_compare, shape, dtype):
    x = torch.randn(shape).to(dtype).requires_grad_()
    weight = torch.rand(shape[-1]).to(dtype).requires_grad_()
    ascend_compare.using(reference=ops.reference)(ops.rms_norm, x, weight, 1e-6)


def test_large_rows_do_not_overflow(ascend_compare):
    """The squares of 8,000 overflow float16: an operator that squares in float16 would silently answer zeros."""
    x = torch.full((2, 64), 8000.0, dtype=torch.float16)
    ascend_compare.using(reference=ops.reference)(ops.rms_norm, x, torch.ones(64, dtype=torch.float16), 1e-6)


@pa.ascend_cases(
    examples=15,
    x=tensors(("n", "d"), KINDS, special=("ordinary", "signed_zeros"), requires_grad=True),
    weight=tensors(("d",), KINDS, low=0.5, high=2, requires_grad=True),
)
def test_any_shape_and_layout(ascend_compare, x, weight):
    """Hypothesis draws sizes, layouts in memory and values; a failure shrinks and leaves a file that fails alone."""
    ascend_compare.using(reference=ops.reference)(ops.rms_norm, x, weight, 1e-3)
