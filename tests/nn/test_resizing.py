"""Resizing and sampling by grids, against formulas in NumPy and interpolation in SciPy."""

import numpy as np
import pytest
import scipy.ndimage

import probtorch
import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.factories import ones, zeros
from probtorch.func import grad, vmap
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.derivatives import gradcheck

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape)


def keys(x, a):
    """The cubic convolution kernel, as its article writes it."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def matrix(size, out, kernel, reach, stretch=1.0):
    """Weights of a kernel around the centre of each output element; the border is repeated."""
    m = np.zeros((out, size))
    for j in range(out):
        centre = (j + 0.5) * size / out - 0.5
        for i in range(int(np.floor(centre - reach)), int(np.ceil(centre + reach)) + 1):
            m[j, min(max(i, 0), size - 1)] += kernel((i - centre) / stretch)
    return m


@pytest.mark.parametrize(("size", "out"), [(5, 5), (5, 11), (7, 3), (1, 4), (4, 1)])
def test_linear_is_interpolation_between_centres(size, out):
    x = normal(1, 2, size)
    at = (np.arange(out) + 0.5) * size / out - 0.5
    expected = np.stack([np.interp(at, np.arange(size), row) for row in x[0]])
    assert_close(F.interpolate(tensor(x), out, mode="linear")[0], expected, rtol=1e-12)
    at = np.linspace(0, size - 1, out) if out > 1 else np.zeros(1)
    expected = np.stack([np.interp(at, np.arange(size), row) for row in x[0]])
    found = F.interpolate(tensor(x), out, mode="linear", align_corners=True)
    assert_close(found[0], expected, rtol=1e-12, atol=1e-12)


def test_bicubic_weighs_four_neighbours_per_dim_by_the_kernel():
    x = normal(1, 1, 5, 4)
    rows, cols = (matrix(*s, lambda d: keys(d, -0.75), 2) for s in ((5, 8), (4, 3)))
    found = F.interpolate(tensor(x), (8, 3), mode="bicubic")
    assert_close(found[0, 0], rows @ x[0, 0] @ cols.T, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("mode", "kernel", "reach"),
    [("bilinear", lambda d: max(1 - abs(d), 0.0), 1), ("bicubic", lambda d: keys(d, -0.5), 2)],
    ids=["bilinear", "bicubic"],
)
def test_antialiasing_averages_over_what_an_element_stands_for(mode, kernel, reach):
    x = normal(1, 1, 9, 4)
    m = np.zeros((3, 9))
    for j in range(3):
        for i in range(9):
            m[j, i] = kernel((i - ((j + 0.5) * 3.0 - 0.5)) / 3.0)
    m /= m.sum(1, keepdims=True)
    found = F.interpolate(tensor(x), (3, 4), mode=mode, antialias=True)
    assert_close(found[0, 0], m @ x[0, 0], rtol=1e-11, atol=1e-12)


def test_nearest_rounds_down_and_nearest_exact_to_the_nearest():
    x = tensor([[[0.0, 1.0, 2.0, 3.0, 4.0]]])
    assert F.interpolate(x, 3).tolist() == [[[0.0, 1.0, 3.0]]]
    assert F.interpolate(x, 3, mode="nearest-exact").tolist() == [[[0.0, 2.0, 4.0]]]
    assert F.interpolate(x.long(), scale_factor=2).tolist()[0][0] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_elements_that_are_not_read_may_be_infinite():
    x = tensor([[[1.0, np.inf, 3.0, 4.0]]], requires_grad=True)
    y = F.interpolate(x, 2, mode="nearest")
    y.sum().backward()
    assert y.tolist() == [[[1.0, 3.0]]]
    assert x.grad.tolist() == [[[1.0, 0.0, 1.0, 0.0]]]


def test_interpolate_says_what_does_not_go_together():
    x = ones(1, 1, 4, 4)
    for arguments, message in [
        ({}, "neither"),
        ({"size": 2, "scale_factor": 2}, "both"),
        ({"size": 2, "mode": "cubic"}, "mode among 'nearest'"),
        ({"size": 2, "align_corners": True}, "align_corners only"),
        ({"size": 2, "antialias": True}, "antialias with 'bilinear'"),
        ({"scale_factor": (2, 2, 2)}, "scale_factor: a number, or 2"),
        ({"scale_factor": 0.1}, "sizes of at least 1"),
        ({"size": 2, "recompute_scale_factor": True}, "together with scale_factor"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            F.interpolate(x, **arguments)
    with pytest.raises(ShapeError, match="3 dims in mode 'linear'"):
        F.interpolate(x, 2, mode="linear")
    with pytest.raises(DTypeError, match="floats in mode 'bilinear'"):
        F.interpolate(x.long(), 2, mode="bilinear")
    assert repr(nn.Upsample(scale_factor=2)) == "Upsample(scale_factor=2, mode='nearest')"


# -------------------------------------------------------------------------------------- grid_sample


@pytest.mark.parametrize(("mode", "order"), [("bilinear", 1), ("nearest", 0)])
@pytest.mark.parametrize("n", [2, 3])
def test_grid_sample_is_interpolation_at_the_places(mode, order, n):
    spatial = (5, 4, 3)[:n]
    x, at = normal(1, 2, *spatial), RNG.uniform(-1.7, 1.7, (1, 6, *(1,) * (n - 1), n))
    for ends, edge in ((True, "mirror"), (False, "reflect")):
        sizes = np.array(spatial[::-1])
        places = (at + 1) / 2 * (sizes - 1) if ends else ((at + 1) * sizes - 1) / 2
        for padding, border in (("border", "nearest"), ("reflection", edge)):
            expected = [
                scipy.ndimage.map_coordinates(
                    c, np.moveaxis(places[0, ..., ::-1], -1, 0), order=order, mode=border
                )
                for c in x[0]
            ]
            found = F.grid_sample(tensor(x), tensor(at), mode, padding, ends)
            assert_close(found[0], np.stack(expected), rtol=1e-11, atol=1e-12)


def test_outside_of_the_input_there_are_zeros():
    x = tensor([[[[1.0, np.inf], [3.0, 4.0]]]])
    at = tensor([[[[-1.0, 1.0], [-2.0, 1.0], [-3.0, 0.0]]]])
    found = F.grid_sample(x, at, padding_mode="zeros", align_corners=True)
    assert found.tolist() == [[[[3.0, 1.5, 0.0]]]]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_grid_sample_has_the_gradients_of_its_differences(mode, padding):
    inputs = [normal(1, 2, 4, 3), RNG.uniform(-1.4, 1.4, (1, 2, 2, 2))]
    # Small steps: the second derivative of the cubic pieces jumps where they meet.
    assert gradcheck(
        lambda x, at: F.grid_sample(x, at, mode, padding),
        tuple(tensor(a, requires_grad=True) for a in inputs),
        fast_mode=True,
        eps=1e-5,
    )


def test_grid_sample_is_mapped_and_compiled():
    def total(x, at):
        return (F.grid_sample(x, at, padding_mode="reflection") ** 2).sum()

    x, at = tensor(normal(3, 1, 1, 4, 3)), tensor(RNG.uniform(-1.4, 1.4, (3, 1, 2, 2, 2)))
    expected = [grad(total, (0, 1))(*pair) for pair in zip(x, at)]
    for i, found in enumerate(probtorch.compile(vmap(grad(total, (0, 1))))(x, at)):
        assert_close(found, probtorch.stack([e[i] for e in expected]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (1, 2, 2, 3, 1)], ids=str)
def test_the_identity_reads_the_input_itself(size, ends):
    n = len(size) - 2
    theta = tensor(np.broadcast_to(np.eye(n, n + 1), (size[0], n, n + 1)).copy())
    x, at = normal(*size), F.affine_grid(theta, size, ends)
    assert at.shape == (size[0], *size[2:], n)
    assert_close(F.grid_sample(tensor(x), at, align_corners=ends), x, rtol=1e-12, atol=1e-12)


def test_grids_that_do_not_fit_are_refused():
    x = zeros(2, 1, 3, 3)
    with pytest.raises(ShapeError, match=r"\(N, H', W', 2\)"):
        F.grid_sample(x, zeros(2, 4, 4, 3))
    with pytest.raises(ArgumentError, match="mode 'bilinear'"):
        F.grid_sample(x, zeros(2, 4, 4, 2), "linear")
    with pytest.raises(ShapeError, match=r"theta \(N, 2, 3\)"):
        F.affine_grid(zeros(2, 3, 2), (2, 1, 3, 3))
