"""How long three operators take, against the baseline that is stored for this machine (`pytest --ascend-perf`)."""

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("operator", [torch.softmax, torch.cumsum], ids=lambda operator: operator.__name__)
def test_along_the_last_dimension(ascend_perf, operator):
    ascend_perf(operator, torch.randn(64, 1024), dim=-1)


def test_matmul(ascend_perf):
    ascend_perf(torch.matmul, torch.randn(128, 256), torch.randn(256, 128))
