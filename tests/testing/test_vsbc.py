"""`vsbc`: its test of symmetry against enumeration, and approximations with and without a bias."""

import itertools

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError
from probtorch.infer import SVI, AutoNormal, LaplaceApproximation
from probtorch.infer.calibration.vsbc import symmetry_pvalue
from probtorch.optim import Adam
from probtorch.testing import vsbc


@pytest.mark.parametrize("size", [1, 4, 7])
def test_the_chance_is_that_of_all_signs(size):
    """Distances from the middle that all differ: each pattern of signs is as likely."""
    distances = np.arange(1, 2 * size, 2)
    patterns = np.array(list(itertools.product([-1, 1], repeat=size)))

    def farthest(signs):
        return np.abs(np.cumsum(signs[::-1])).max()

    each = np.array([farthest(signs) for signs in patterns])
    for signs in patterns:
        ranks = (31 + signs * distances) // 2
        expected = (each >= farthest(signs)).mean()
        assert symmetry_pvalue(ranks, 31) == pytest.approx(expected, abs=1e-12)


def test_false_alarms_are_as_rare_as_stated_whatever_the_width():
    """Of 2000 symmetric samples 5 % are below 0.05, and four standard errors are 0.02."""
    rng = np.random.default_rng(0)
    for wide in (0.3, 1.0, 3.0):
        draws = rng.normal(scale=wide, size=(2000, 60))
        ranks = np.clip(np.round(128 + 60 * draws), 0, 255).astype(int)
        # The middle, 127.5, is between two ranks: a shift of half a rank is not seen in 60.
        alarms = np.mean([symmetry_pvalue(x, 255) <= 0.05 for x in ranks])
        assert alarms < 0.07, wide


def test_ranks_on_one_side_are_told():
    rng = np.random.default_rng(1)
    assert symmetry_pvalue(rng.integers(128, 256, 40), 255) < 1e-9
    assert symmetry_pvalue(np.full(10, 8), 16) == 1.0


X = probtorch.tensor(np.linspace(-1.0, 1.0, 8))


def slope(x, y=None):
    a = probtorch.sample("a", dist.Normal(0.0, 1.0))
    b = probtorch.sample("b", dist.Normal(0.0, 1.0))
    with probtorch.plate("row", len(x)):
        probtorch.sample("y", dist.Normal(a + b * (x + 1.0), 0.5), obs=y)


class Shifted:
    """The Laplace approximation, moved up by half a standard deviation."""

    def __init__(self, model):
        self.inner = LaplaceApproximation(model)

    def run(self, *args, **kwargs):
        found = self.inner.run(*args, **kwargs)
        scale = np.sqrt(np.diag(found.covariance))
        found.normal.mean[...] += 0.5 * scale
        return found


def test_a_guide_that_is_too_narrow_passes_and_one_that_is_moved_does_not():
    """Mean-field normals of correlated coefficients: half as wide, and in the right place."""

    def guide(model):
        return SVI(model, AutoNormal(model), Adam, lr=0.05)

    found = vsbc(slope, guide, 60, args=(X,), num_steps=300, progress_bar=False)
    assert found.unbiased, found
    assert set(found.below) == {"a", "b"} and "symmetric" in str(found)
    moved = vsbc(slope, Shifted, 60, args=(X,), progress_bar=False)
    assert not moved.unbiased and "too high" in str(moved), moved
    assert max(moved.below.values()) < 0.45


def test_names_of_other_libraries_are_told():
    with pytest.raises(ArgumentError, match="replications"):
        vsbc(slope, LaplaceApproximation, num_simulations=3)
