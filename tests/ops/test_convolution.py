"""Convolutions against SciPy and written-out sums, and as transposes of each other."""

import itertools

import numpy as np
import pytest
from scipy import signal

from probtorch.autograd.tape import grad
from probtorch.compiler.compile import compile
from probtorch.core.dispatch import wrap
from probtorch.errors import ArgumentError, ShapeError
from probtorch.func import jvp
from probtorch.ops import convolution
from probtorch.ops.windows import fold, unfold
from probtorch.testing import assert_close
from tests.derivatives import gradcheck, gradgradcheck

SPATIAL = {1: (9,), 2: (7, 8), 3: (5, 6, 4)}


def conv(n):
    return getattr(convolution, f"conv{n}d")


def transposed(n):
    return getattr(convolution, f"conv_transpose{n}d")


def normal(*shape, seed=0, grad=False):
    t = wrap(np.random.default_rng(seed).standard_normal(shape))
    return t.requires_grad_() if grad else t


def written_out(x, w, b, stride, padding, dilation, groups):
    """The sum over every tap of the kernel, one output element after the other."""
    n = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0)] + [(padding, padding)] * n)
    sizes, per_group = w.shape[2:], w.shape[0] // groups
    out = [
        (m - dilation * (k - 1) - 1) // stride + 1 for m, k in zip(x.shape[2:], sizes, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for o, place in itertools.product(range(w.shape[0]), np.ndindex(*out)):
        start = (o // per_group) * w.shape[1]
        window = tuple(
            slice(i * stride, i * stride + dilation * (k - 1) + 1, dilation)
            for i, k in zip(place, sizes)
        )
        seen = x[(slice(None), slice(start, start + w.shape[1]), *window)]
        y[(slice(None), o, *place)] = (seen * w[o]).sum(axis=tuple(range(1, n + 2))) + b[o]
    return y


@pytest.mark.parametrize("n", [1, 2, 3])
def test_convolution_is_scipys_correlation(n):
    x, w = normal(2, 3, *SPATIAL[n]), normal(4, 3, *(3,) * n, seed=1)
    expected = [
        [
            sum(signal.correlate(a, k, "valid") for a, k in zip(image, kernel))
            for kernel in w.numpy()
        ]
        for image in x.numpy()
    ]
    assert_close(conv(n)(x, w), np.array(expected), rtol=1e-11)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (3, 0, 1, 2), (2, 1, 2, 4)],
    ids=str,
)
def test_convolution_is_the_written_out_sum(n, stride, padding, dilation, groups):
    x, w, b = (
        normal(2, 4, *SPATIAL[n]),
        normal(8, 4 // groups, *(2,) * n, seed=1),
        normal(8, seed=2),
    )
    expected = written_out(x.numpy(), w.numpy(), b.numpy(), stride, padding, dilation, groups)
    got = conv(n)(x, w, b, stride, padding, dilation, groups)
    assert_close(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (2, 1), (4, 2)], ids=str)
def test_same_padding_keeps_the_size_with_the_larger_border_on_the_right(kernel, dilation):
    x, w = normal(1, 1, 9), normal(1, 1, kernel, seed=1)
    got = convolution.conv1d(x, w, padding="same", dilation=dilation)
    total = dilation * (kernel - 1)
    wide = wrap(np.pad(x.numpy(), [(0, 0), (0, 0), (total // 2, total - total // 2)]))
    assert got.shape == (1, 1, 9)
    assert_close(got, convolution.conv1d(wide, w, padding="valid", dilation=dilation))


def test_unbatched_input_is_a_batch_of_one():
    x, w = normal(2, 5, 5), normal(3, 2, 2, 2, seed=1)
    assert_close(convolution.conv2d(x, w), convolution.conv2d(x.unsqueeze(0), w)[0], rtol=0, atol=0)
    y, v = normal(3, 2, 2), normal(3, 2, 2, 2, seed=1)
    assert_close(
        convolution.conv_transpose2d(y, v), convolution.conv_transpose2d(y.unsqueeze(0), v)[0]
    )


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 2), (2, 0, 2, 1), (3, 1, 1, 1)],
    ids=str,
)
def test_transposed_convolution_is_the_transpose(n, stride, padding, dilation, groups):
    """<conv(x), y> = <x, conv_transpose(y)>, for the size of x chosen by output_padding."""
    x = normal(2, 4, *SPATIAL[n])
    w = normal(6, 4 // groups, *(2,) * n, seed=1)
    there = conv(n)(x, w, None, stride, padding, dilation, groups)
    y = normal(*there.shape, seed=2)
    least = [(m - 1) * stride - 2 * padding + dilation + 1 for m in there.shape[2:]]
    extra = tuple(s - m for s, m in zip(SPATIAL[n], least))
    back = transposed(n)(y, w, None, stride, padding, extra, groups, dilation)
    assert back.shape == x.shape
    left, right = (there * y).sum().item(), (x * back).sum().item()
    assert left == pytest.approx(right, rel=1e-12)


def test_transposed_convolution_adds_its_bias():
    x, w, b = normal(1, 2, 3), normal(2, 3, 2, seed=1), normal(3, seed=2)
    plain = convolution.conv_transpose1d(x, w, stride=2)
    assert_close(
        convolution.conv_transpose1d(x, w, b, stride=2), plain.numpy() + b.numpy()[:, None]
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_derivatives_of_first_and_second_order(groups):
    x, w = normal(2, 2, 4, 3, grad=True), normal(2, 2 // groups, 2, 2, seed=1, grad=True)
    b = normal(2, seed=2, grad=True)

    def forward(x, w, b):
        return convolution.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=groups)

    def backward(x, w, b):
        return convolution.conv_transpose2d(x, w, b, stride=2, groups=groups)

    assert gradcheck(forward, (x, w, b))
    assert gradgradcheck(forward, (x, w, b), fast_mode=True)
    assert gradgradcheck(
        backward, (x, w, normal(2 // groups * groups, seed=3, grad=True)), fast_mode=True
    )


def test_forward_mode_agrees_with_reverse_mode():
    x, w, v = normal(1, 2, 6), normal(3, 2, 3, seed=1), normal(1, 2, 6, seed=2)
    y, tangent = jvp(lambda x: convolution.conv1d(x, w, padding=1), (x,), (v,))
    g = normal(*y.shape, seed=3)
    x.requires_grad_()
    (gx,) = grad(convolution.conv1d(x, w, padding=1), x, g)
    assert (gx * v).sum().item() == pytest.approx((g * tangent).sum().item(), rel=1e-12)


def test_compiled_convolution_is_the_eager_one():
    def fn(x, w):
        y = convolution.conv2d(x, w, stride=2, padding=1)
        return convolution.conv_transpose2d(y, w, stride=2, padding=1)

    x, w = normal(2, 3, 7, 7), normal(4, 3, 3, 3, seed=1)
    native = compile(fn)
    native(x, w)
    assert native.reason is None
    assert_close(native(x, w), fn(x, w), rtol=1e-11, atol=1e-12)


def test_single_precision_stays_single():
    x, w = wrap(np.ones((1, 1, 3), np.float32)), wrap(np.ones((1, 1, 2), np.float32))
    assert convolution.conv1d(x, w).dtype == np.float32
    assert convolution.conv1d(x, w.double()).dtype == np.float64


def test_fold_undoes_unfold_up_to_the_number_of_windows():
    x = normal(2, 3, 5, 6)
    ones = wrap(np.ones((2, 3, 5, 6)))
    settings = {"kernel_size": (2, 3), "padding": (1, 0), "stride": (1, 2)}
    there, counts = unfold(x, **settings), unfold(ones, **settings)
    back = fold(there, (5, 6), **settings).numpy()
    np.testing.assert_allclose(back, x.numpy() * fold(counts, (5, 6), **settings).numpy())


def test_unfold_lists_windows_as_columns():
    x = wrap(np.arange(12.0).reshape(1, 1, 3, 4))
    assert unfold(x, 2).numpy()[0, :, 1].tolist() == [1.0, 2.0, 5.0, 6.0]
    assert unfold(x[0], 2).shape == (4, 6)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: c(normal(5), normal(1, 1, 2)), "an input of shape"),
        (lambda c: c(normal(1, 2, 5), normal(1, 2)), "a weight with 3 dims"),
        (lambda c: c(normal(1, 2, 5), normal(1, 3, 2)), "3 channels"),
        (lambda c: c(normal(1, 2, 5), normal(3, 1, 2), groups=2), "2 channels"),
        (lambda c: c(normal(1, 2, 5), normal(3, 2, 2), normal(2)), "a bias of shape"),
        (lambda c: c(normal(1, 2, 5), normal(3, 2, 7)), "at least as large as the kernel"),
    ],
    ids=["ndim", "weight", "channels", "groups", "bias", "kernel"],
)
def test_shapes_that_do_not_go_together_are_named(call, match):
    with pytest.raises(ShapeError, match=match) as e:
        call(convolution.conv1d)
    assert e.value.fix


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"stride": 0}, "stride: an integer >= 1"),
        ({"stride": (1, 2)}, "or 1 of them"),
        ({"padding": "full"}, "'valid', 'same'"),
        ({"padding": "same", "stride": 2}, "stride 1 with padding='same'"),
        ({"dilation": 1.5}, "dilation: an integer"),
    ],
    ids=str,
)
def test_numbers_of_the_wrong_kind_are_named(settings, match):
    with pytest.raises(ArgumentError, match=match):
        convolution.conv1d(normal(1, 1, 5), normal(1, 1, 2), **settings)


def test_output_padding_must_be_smaller_than_the_stride():
    with pytest.raises(ArgumentError, match="output_padding smaller than stride"):
        convolution.conv_transpose1d(normal(1, 1, 5), normal(1, 1, 2), output_padding=1)
    with pytest.raises(ShapeError, match="leaves an output"):
        convolution.conv_transpose1d(normal(1, 1, 1), normal(1, 1, 2), padding=1)


def test_fold_and_unfold_refuse_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"shape \(N, C \* 4, 4\)"):
        fold(normal(1, 4, 5), (3, 3), 2)
    with pytest.raises(ShapeError, match="at least as large as the window"):
        unfold(normal(1, 1, 2, 2), 3)
    with pytest.raises(ShapeError, match="images of shape"):
        unfold(normal(2, 2), 1)
