"""Single APIs: one line each, in several types; layouts, gradients and in-place changes are compared too."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d).split(".")[1]
)


@DTYPES
@pytest.mark.parametrize(
    ("api", "shapes", "options"),
    [
        (torch.softmax, [(8, 1000)], {"dim": -1}),
        (F.layer_norm, [(8, 256)], {"normalized_shape": (256,)}),
        (torch.matmul, [(32, 200), (200, 16)], {}),
        (torch.cumsum, [(16, 100)], {"dim": 1}),
        (torch.sum, [(64, 1000)], {"dim": 1}),
        (F.silu, [(1000,)], {}),
        (F.scaled_dot_product_attention, [(1, 4, 32, 16)] * 3, {}),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_api(ascend_compare, api, shapes, options, dtype):
    ascend_compare(api, *[torch.randn(s).to(dtype).requires_grad_() for s in shapes], **options)


def test_a_transposed_argument_with_an_offset(ascend_compare):
    base = torch.randn(40, 30)
    ascend_compare(torch.matmul, base[3:].t(), base[3:])


def test_integers_are_exact(ascend_compare):
    ascend_compare(torch.cumsum, torch.arange(2**53, 2**53 + 9), dim=0)


def test_data_movement_is_exact(ascend_compare):
    ascend_compare(torch.gather, torch.randn(5, 7), 1, torch.randint(7, (5, 3)))


def test_an_in_place_change_is_judged_on_the_whole_storage(ascend_compare):
    ascend_compare(lambda x: x[:, :2].add_(x[:, 4:]), torch.randn(3, 6))


def test_nested_outputs(ascend_compare):
    ascend_compare(lambda x: {"top": torch.topk(x, 3), "norms": [x.norm(), (x.abs().amax(), None)]}, torch.randn(50))
