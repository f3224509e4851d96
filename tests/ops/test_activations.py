"""Activations as one operation: what their compositions give, natively and on arrays."""

import numpy as np
import pytest

import probtorch as pt
from probtorch.compiler.native import elf
from probtorch.config import configure
from probtorch.nn import functional as F
from probtorch.ops.native_rows import native_elements

ACTIVATIONS = {
    "elu": lambda x: F.elu(x, 1.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.5),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "huber": lambda x: F.huber_loss(x, 0.25 * x.detach(), "none", 0.7),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, 0.25 * x.detach(), reduction="none", beta=0.7),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
}
RNG = np.random.default_rng(3)
KINKS = [0.0, -0.0, -3.0, 3.0, -0.5, 0.5, 1.5, 6.0, np.nan, np.inf, -np.inf, 1e-30, -90.0, 800.0]
X = np.concatenate([RNG.standard_normal(301) * 3.0, KINKS])


def both(fn, x):
    """Value and slope."""
    t = pt.tensor(x, requires_grad=True)
    y = fn(t)
    y.backward(pt.tensor(np.linspace(-1.0, 2.0, y.numel()).reshape(y.shape), dtype=y.dtype))
    return y.detach().numpy(), t.grad.numpy()


@pytest.mark.parametrize("jit", [True, False], ids=["native", "arrays"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_one_operation_gives_what_the_composition_gives(name, dtype, jit):
    fn = ACTIVATIONS[name]
    with pt.autograd.detect_anomaly(check_nan=False), np.errstate(all="ignore"):
        want = both(fn, X.astype(dtype))
    with configure(jit=jit):
        found = both(fn, X.astype(dtype))
    # The slope of expm1 in the composition, the value plus 1, loses what is small beside 1.
    eps = np.finfo(dtype).eps
    for a, b, beside in zip(found, want, (0.0, 1.0), strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=4 * eps, atol=4 * eps * beside + 1e-37)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_derivatives_are_those_of_the_composition(name):
    x = X[:50]

    def twice(fn):
        t = pt.tensor(x, requires_grad=True)
        (g,) = pt.autograd.grad((fn(t) ** 2).sum(), [t], create_graph=True)
        g.sum().backward()
        return t.grad.numpy()

    found = twice(ACTIVATIONS[name])
    with pt.autograd.detect_anomaly():
        want = twice(ACTIVATIONS[name])
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-14)


@pytest.mark.skipif(not elf.is_usable(), reason="NumPy serves on this machine")
def test_elements_are_found_wherever_they_lie():
    x, g = X[:300].copy(), X[:300][::-1].copy()
    slope = native_elements("elu_slope", x)
    want = slope(g, x, 0.5)
    for a in (np.repeat(x, 2)[::2], x[::-1].copy()[::-1], np.asfortranarray(x)):
        np.testing.assert_array_equal(slope(g, a, 0.5), want)
    rows = slope(g.reshape(30, 10).T, x.reshape(30, 10).T, 0.5)
    np.testing.assert_array_equal(rows.T.reshape(-1), want)
    of_each = slope(g, x, np.where(np.arange(300) < 150, 0.5, 2.0))
    np.testing.assert_array_equal(of_each[:150], want[:150])
    np.testing.assert_array_equal(of_each[150:], slope(g, x, 2.0)[150:])
    apart = np.full(600, 7.0)
    slope(g, x, 0.5, out=apart[::2])
    np.testing.assert_array_equal(apart[::2], want)
    assert (apart[1::2] == 7.0).all()


def test_other_operands_keep_their_ways():
    assert F.hardtanh(pt.tensor([-3, 3])).dtype == pt.int64
    alpha = pt.tensor(2.0, requires_grad=True)
    F.elu(pt.tensor([-1.0]), alpha).sum().backward()
    assert alpha.grad.item() == pytest.approx(np.expm1(-1.0))
    x = pt.tensor([-2.0, 1.0])
    assert F.elu_(x) is x
    assert x.tolist() == pytest.approx([np.expm1(-2.0), 1.0])
    assert F.elu(pt.tensor([-1.0], dtype=pt.float16)).dtype == pt.float16
