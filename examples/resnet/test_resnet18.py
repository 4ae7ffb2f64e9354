"""ResNet-18 with four named checkpoints, and the same with a fault planted in one of them."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from resnet18 import ResNet18  # noqa: E402

import pytest_ascend as pa  # noqa: E402

CHECKPOINTS = ["conv1", "layer1.0.conv1", "layer2.0.conv1", "fc"]
# Convolution runs in HF32 (11 mantissa bits) by default on this chip, hence thresholds of the model as a whole.
pytestmark = pytest.mark.ascend(criterion="cosine", cosine=0.999, max_abs=1e-2, backward=False, checkpoints=CHECKPOINTS)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(images) -> torch.nn.Module:
    net = ResNet18().train()
    with torch.no_grad():
        for _ in range(3):
            net(images)  # lets the batch norms learn their statistics
    return net.eval()


def test_resnet18(ascend_compare, model, images):
    result = ascend_compare(model, images)
    assert list(result.checkpoints) == CHECKPOINTS
    assert result.first_divergence is None


def last_channel_is_stale(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """A convolution kernel that forgets its last output channel for one shape: 64 channels in, 128 out, 3 x 3."""
    y = torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if tuple(weight.shape) == (128, 64, 3, 3):
        y[:, -1] = y[:, -2]
    return y


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the fault is planted: the comparison has to fail")
def test_resnet18_with_a_planted_fault(ascend_compare, ascend_device, model, images):
    """Passes only if the comparison fails and names the layer: `first divergence: layer2.0.conv1`."""
    if not pa.emulator.is_installed():
        pytest.skip("faults can be planted on the emulated device only: pytest --ascend-compare=emulated")
    with pa.emulator.override("aten::convolution", last_channel_is_stale):
        seen = ascend_compare.check(model, images)
        if seen.first_divergence != "layer2.0.conv1":
            raise RuntimeError(f"the report names {seen.first_divergence}, not layer2.0.conv1")
        assert seen.passed, seen.reason
