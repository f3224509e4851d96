"""Pooling against loops over windows, and padding against NumPy's."""

import itertools

import numpy as np
import pytest

import probtorch
import probtorch.nn.functional as F
from probtorch.core.dispatch import wrap
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.padding import pad
from probtorch.testing import assert_close
from tests.derivatives import gradgradcheck

SPATIAL = {1: (9,), 2: (7, 8), 3: (5, 6, 5)}


def distinct(*shape, seed=0):
    """Numbers 0.1 apart in random order: maxima without ties."""
    return wrap(np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape) * 0.1)


def windows(spatial, kernel, stride, padding, dilation=1, ceil_mode=False):
    """Per place of the output: the places of its window inside the padded input, as index lists."""
    per_dim = []
    for m in spatial:
        starts, at = [], -padding
        while at + dilation * (kernel - 1) < m + padding:
            starts.append(at)
            at += stride
        # A window may hang over on the right if it starts inside the input or left padding.
        if (
            ceil_mode
            and starts
            and starts[-1] + dilation * (kernel - 1) < m + padding - 1
            and at < m
        ):
            starts.append(at)
        per_dim.append([[s + dilation * i for i in range(kernel)] for s in starts])
    return per_dim


SETTINGS = [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 0, 2), (2, 3, 1, 1)]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pool_is_the_largest_of_each_window_and_says_where(n, settings, ceil_mode):
    kernel, stride, padding, dilation = settings
    x, spatial = distinct(2, *SPATIAL[n]), SPATIAL[n]
    values, where = getattr(F, f"max_pool{n}d")(
        x, kernel, stride, padding, dilation, ceil_mode, True
    )
    places = windows(spatial, kernel, stride, padding, dilation, ceil_mode)
    assert values.shape[1:] == tuple(map(len, places))
    array = x.numpy()
    for out in itertools.product(*(range(len(p)) for p in places)):
        inside = [
            [i for i in p[o] if 0 <= i < m] for p, o, m in zip(places, out, spatial, strict=True)
        ]
        expected = array[np.ix_(range(2), *inside)].reshape(2, -1).max(1)
        np.testing.assert_array_equal(values.numpy()[(slice(None), *out)], expected)
    flat = array.reshape(2, -1)
    for c in range(2):
        np.testing.assert_array_equal(flat[c][where.numpy()[c]], values.numpy()[c])
    plain = getattr(F, f"max_pool{n}d")(x, kernel, stride, padding, dilation, ceil_mode)
    assert_close(plain, values, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("settings", SETTINGS[:2], ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_avg_pool_is_the_mean_of_each_window(n, settings, ceil_mode, count_include_pad):
    kernel, stride, padding, _ = settings
    x, spatial = distinct(2, *SPATIAL[n]), SPATIAL[n]
    got = getattr(F, f"avg_pool{n}d")(x, kernel, stride, padding, ceil_mode, count_include_pad)
    places = windows(spatial, kernel, stride, padding, 1, ceil_mode)
    for out in itertools.product(*(range(len(p)) for p in places)):
        chosen = [p[o] for p, o in zip(places, out)]
        inside = [[i for i in c if 0 <= i < m] for c, m in zip(chosen, spatial)]
        border = [[i for i in c if -padding <= i < m + padding] for c, m in zip(chosen, spatial)]
        counted = border if count_include_pad else inside
        expected = x.numpy()[np.ix_(range(2), *inside)].reshape(2, -1).sum(1)
        expected = expected / np.prod([len(c) for c in counted])
        np.testing.assert_allclose(got.numpy()[(slice(None), *out)], expected, rtol=1e-12)


def test_divisor_can_be_given():
    x = wrap(np.ones((1, 4, 4)))
    assert F.avg_pool2d(x, 2, divisor_override=3).tolist() == [[[4 / 3, 4 / 3], [4 / 3, 4 / 3]]]


def test_lp_pool_is_the_norm_of_each_window():
    x = np.random.default_rng(0).random((2, 6))
    got = F.lp_pool1d(wrap(x), 3.0, 2)
    expected = (x.reshape(2, 3, 2) ** 3).sum(-1) ** (1 / 3)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("size", "count"), [(6, 3), (7, 3), (5, 5), (3, 5), (9, 1)], ids=str)
def test_adaptive_windows_cover_the_input_evenly(size, count):
    x = distinct(2, size)
    bins = [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    means, (values, where) = (
        F.adaptive_avg_pool1d(x, count),
        F.adaptive_max_pool1d(x, count, True),
    )
    array = x.numpy()
    np.testing.assert_allclose(means.numpy(), np.stack([array[:, b].mean(1) for b in bins], 1))
    np.testing.assert_array_equal(values.numpy(), np.stack([array[:, b].max(1) for b in bins], 1))
    np.testing.assert_array_equal(np.take_along_axis(array, where.numpy(), 1), values.numpy())
    assert_close(F.adaptive_max_pool1d(x, count), values, rtol=0, atol=0)


def test_adaptive_windows_of_images_are_products():
    x = distinct(2, 5, 7)
    got = F.adaptive_avg_pool2d(x, (2, None))
    assert got.shape == (2, 2, 7)
    np.testing.assert_allclose(got.numpy()[:, 1], x.numpy()[:, 2:].mean(1))
    top = F.adaptive_max_pool2d(x, (1, 3))
    np.testing.assert_array_equal(top.numpy()[:, 0, 1], x.numpy()[:, :, 2:5].max((1, 2)))


@pytest.mark.parametrize("count", [2, 3, 4], ids=str)
def test_adaptive_maxima_have_the_gradient_that_is_recorded_for_them(count):
    x = wrap(np.random.default_rng(1).integers(0, 3, (2, 7, 4)).astype(float)).requires_grad_()
    weights = wrap(np.random.default_rng(2).random((2, count, 2)))

    def loss(x):
        return (F.adaptive_max_pool2d(x, (count, 2)) * weights).sum()

    (eager,) = probtorch.autograd.grad(loss(x), [x])
    compiled = probtorch.compile(lambda x: probtorch.autograd.grad(loss(x), [x])[0])
    assert_close(compiled(x), eager)
    assert_close(compiled(x), eager)  # the second call is native


def test_ties_share_the_gradient_of_a_maximum():
    x = wrap(np.array([[1.0, 1.0, 0.0, 2.0]])).requires_grad_()
    F.max_pool1d(x, 2).sum().backward()
    assert x.grad.tolist() == [[0.5, 0.5, 0.0, 1.0]]


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
def test_second_derivatives(name):
    x = distinct(1, 4, 5).requires_grad_()
    assert gradgradcheck(lambda x: getattr(F, name)(x * x, 2), x, eps=1e-4, fast_mode=True)


def test_errors_of_pooling():
    x = distinct(1, 5)
    with pytest.raises(ArgumentError, match="at most half the kernel size"):
        F.max_pool1d(x, 2, padding=2)
    with pytest.raises(ShapeError, match="at least as large as the window"):
        F.avg_pool1d(x, 6)
    with pytest.raises(ShapeError, match=r"\(N, C, H, W\)"):
        F.max_pool2d(x, 2)
    with pytest.raises(ArgumentError, match="kernel_size: an integer"):
        F.max_pool1d(x, 0)


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("widths", [(1, 2), (2, 0, 1, 3), (0, 0, 2, 1)], ids=str)
def test_padding_is_numpys(mode, widths):
    x = distinct(2, 4, 5)
    pairs = [widths[i : i + 2] for i in range(0, len(widths), 2)][::-1]
    expected = np.pad(x.numpy(), [(0, 0)] * (3 - len(pairs)) + pairs, mode=MODES[mode])
    assert_close(pad(x, widths, mode), expected, rtol=0, atol=0)


def test_padding_takes_values_cuts_off_and_keeps_dtypes():
    x = wrap(np.arange(6).reshape(2, 3))
    assert pad(x, (1, -1), value=7).tolist() == [[7, 0, 1], [7, 3, 4]]
    assert pad(x, (-1, -1, 1, 0)).tolist() == [[0], [1], [4]]
    assert pad(x, (0, 0)) is x
    assert pad(x, (1, 0)).dtype == np.int64
    assert pad(wrap(np.zeros(1)), (1, 0), value=-np.inf).tolist() == [-np.inf, 0.0]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_differentiates_twice(mode):
    x = distinct(3, 4).requires_grad_()
    assert gradgradcheck(lambda x: pad(x * x, (2, 1), mode) ** 2, x, fast_mode=True)


@pytest.mark.parametrize(
    ("widths", "mode", "error", "match"),
    [
        ((1,), "constant", ArgumentError, "pairs"),
        ((1, 1), "mirror", ArgumentError, "a mode among"),
        ((1, 1, 1, 1), "constant", ShapeError, "widths that go with shape"),
        ((3, 0), "reflect", ShapeError, "at most 2 in mode 'reflect'"),
        ((4, 0), "circular", ShapeError, "at most 3 in mode 'circular'"),
        ((-1, 0), "replicate", ShapeError, "widths that go with"),
        ((-2, -2), "constant", ShapeError, "widths that go with"),
    ],
    ids=str,
)
def test_padding_that_is_not_possible_is_refused(widths, mode, error, match):
    with pytest.raises(error, match=match):
        pad(wrap(np.zeros(3)), widths, mode)
