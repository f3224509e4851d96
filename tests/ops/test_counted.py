"""Kernels that take short ways through arrays: the same bits as the formulas."""

import numpy as np
import pytest

from probtorch.config import configure
from probtorch.core.dtype import float32, float64
from probtorch.ops import exponentials, special
from probtorch.ops.scalar import numpy_algebra
from probtorch.ops.special.counted import by_counts
from probtorch.tensor import tensor

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["lgamma", "lgamma_difference", "digamma_difference"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_many_counts_are_those_of_each(name, dtype):
    fn = getattr(special, name)
    before = () if name == "lgamma" else (tensor(np.asarray(2.3, dtype)),)
    for counts in (RNG.poisson(4.0, (60, 100)), 7 + RNG.poisson(9.0, 5000), np.full(5000, 512)):
        x = counts.astype(dtype)
        at_once = fn(*before, tensor(x)).numpy()
        each = {k: fn(*before, tensor(np.array([k]))).numpy()[0] for k in np.unique(x)}
        assert at_once.dtype == dtype and at_once.shape == x.shape
        np.testing.assert_array_equal(at_once, np.vectorize(each.get)(x))


@pytest.mark.parametrize(
    "x",
    [
        np.full(5000, 2.5),
        np.r_[np.zeros(4999), 0.5],
        np.r_[np.zeros(4999), -1.0],
        np.r_[np.zeros(4999), np.nan],
        np.r_[np.zeros(4999), 513.0],
        np.zeros(0),
    ],
    ids=["no counts", "one is none", "negative", "nan", "large", "empty"],
)
def test_what_is_no_count_takes_the_kernel(x):
    seen = []
    by_counts(lambda y: seen.append(y) or y)(x)
    assert [y is x for y in seen] == [True]


def test_differences_with_an_element_each_take_the_kernel():
    seen = []
    k = np.zeros(5000)
    by_counts(lambda a, y: seen.append(y) or y)(np.ones(5000), k)
    assert seen[0] is k


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "log_sigmoid"])
@pytest.mark.parametrize("dtype", [float32, float64])
def test_kernels_in_few_temporaries_have_the_bits_of_the_formula(name, dtype):
    op = getattr(exponentials, name)
    x = np.r_[RNG.normal(0.0, 20.0, 2000), 0.0, -0.0, np.inf, -np.inf, np.nan, 800.0, -800.0]
    x = tensor(x, dtype=dtype)
    formula = getattr(exponentials, "_" + name)(numpy_algebra, x.numpy())
    with configure(jit=False):  # native code has a test of its own
        got = op(x).numpy()
    assert got.dtype == formula.dtype
    # Signs of zeros too; signs of nan mean nothing.
    same = (got.view(f"u{got.itemsize}") == formula.view(f"u{got.itemsize}")) | np.isnan(formula)
    assert same.all()
