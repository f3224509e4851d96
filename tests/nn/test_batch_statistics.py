"""Batch normalisation as one operation, held against the operations by themselves."""

import numpy as np
import pytest

import probtorch as pt
from probtorch import nn
from probtorch.nn import functional as F

RNG = np.random.default_rng(5)
SHAPES = [(7, 19), (5, 3, 4), (4, 18, 5, 7), (2, 3, 1, 1)]


def made(shape, dtype, watched):
    pt.manual_seed(0)
    layer = getattr(nn, f"BatchNorm{max(len(shape) - 2, 1)}d")(shape[1], dtype=dtype)
    x = pt.tensor(np.random.default_rng(1).standard_normal(shape) * 3.0 + 50.0, dtype=dtype)
    with pt.no_grad():
        layer.weight.copy_(pt.linspace(0.5, 2.0, shape[1]))
        layer.bias.copy_(pt.linspace(-1.0, 1.0, shape[1]))
    x.requires_grad_()
    with pt.autograd.set_detect_anomaly(watched, check_nan=False):
        y = layer(x)
        g = pt.tensor(np.random.default_rng(2).standard_normal(shape), dtype=dtype)
        (y * g).sum().backward()
        with pt.no_grad():
            alone = F.batch_norm(x.detach(), None, None, layer.weight, layer.bias, True)
    assert y.is_contiguous()
    found = [y, alone, x.grad, layer.weight.grad, layer.bias.grad]
    return [t.detach().numpy() for t in (*found, layer.running_mean, layer.running_var)]


@pytest.mark.parametrize("dtype", [pt.float64, pt.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_operation_gives_what_the_operations_give(shape, dtype):
    whole, parts = made(shape, dtype, False), made(shape, dtype, True)
    limit = 2e-4 if dtype == pt.float32 else 1e-11
    for a, b in zip(whole, parts, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)


def test_derivatives_of_derivatives_are_right():
    x = pt.tensor(RNG.standard_normal((4, 2, 3)), requires_grad=True)
    w, b = (pt.tensor(RNG.standard_normal(2), requires_grad=True) for _ in range(2))
    normalised = lambda x, w, b: F.batch_norm(x, None, None, w, b, True)
    assert pt.testing.gradcheck(normalised, (x, w, b))
    assert pt.testing.gradgradcheck(normalised, (x, w, b))


def test_inputs_that_are_no_rows_are_taken_as_they_are():
    x = pt.tensor(RNG.standard_normal((6, 6, 4)))
    ones, zeros = pt.ones(6, dtype=pt.float64), pt.zeros(6, dtype=pt.float64)
    turned = F.batch_norm(x.permute(1, 0, 2), None, None, ones, zeros, True)
    copied = F.batch_norm(x.permute(1, 0, 2).contiguous(), None, None, ones, zeros, True)
    np.testing.assert_array_equal(turned.numpy(), copied.numpy())
    y = F.batch_norm(x[:1].expand(6, 6, 4), None, None, ones, zeros, True)
    assert abs(float(y.mean())) < 1e-12


def test_a_result_that_changes_in_place_leaves_the_gradient_alone():
    x = pt.tensor(RNG.standard_normal((6, 3)), requires_grad=True)
    layer = nn.BatchNorm1d(3, dtype=pt.float64)
    layer(x).pow(2).sum().backward()
    want = x.grad.clone()
    x.grad = None
    F.relu(layer(x).pow(2), inplace=True).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), want.numpy(), atol=1e-12)
