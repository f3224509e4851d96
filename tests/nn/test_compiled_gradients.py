"""Gradients of compiled layers are those of eager ones, at the sizes where loops and BLAS change
places and where a window, a stride or a group leaves nothing to do.
"""

import itertools

import numpy as np
import pytest

from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.tree import leaves
from probtorch.func import grad
from probtorch.nn import functional as F

# window, stride, padding, groups
WINDOWS = [
    (window, stride, padding, groups)
    for window, stride, padding, groups in itertools.product((1, 2, 3), (1, 2), (0, 1), (1, 2))
    if padding < window
]


def check(fn, *arrays):
    """Hold the compiled gradient in all arguments against the eager one."""
    args = tuple(wrap(np.array(a)) for a in arrays)
    gradient = grad(lambda *a: (fn(*a) ** 2).sum(), argnums=tuple(range(len(args))))
    program = NativeProgram(lambda t: gradient(*t), args)
    for ours, theirs in zip(leaves(program(args)), leaves(gradient(*args)), strict=True):
        np.testing.assert_allclose(ours.array, theirs.array, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_convolutions(window, transposed):
    size, stride, padding, groups = window
    rng = np.random.default_rng(0)
    # What is summed over has eight channels, which are more than come out: then the product that
    # makes the gradient of the input is larger than what it is made of.
    rows, channels = (8, 2 // groups) if transposed else (2, 8 // groups)
    x, weight = rng.standard_normal((3, 8, 6, 6)), rng.standard_normal((rows, channels, size, size))
    scale = rng.standard_normal((3, 8))
    conv = F.conv_transpose2d if transposed else F.conv2d

    def fn(x, weight, scale):
        moved = x + scale[:, :, None, None]
        return conv(moved, weight, stride=stride, padding=padding, groups=groups)

    check(fn, x, weight, scale)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.pad(x, (0, 0, 0, 0)),
        lambda x: F.pad(x, (1, 0)),
        lambda x: F.unfold(x, 1),
        lambda x: F.unfold(x, 2, stride=2),
        lambda x: F.avg_pool2d(x, 1),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 1),
        lambda x: F.max_pool2d(x, 2, 1),
        lambda x: F.interpolate(x, size=(4, 4), mode="bilinear"),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.adaptive_avg_pool2d(x, 4),
    ],
)
def test_windows_over_products(fn):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 4, 4)), rng.standard_normal((4, 4))
    check(lambda x, w: fn((x @ w).sin()), x, w)
