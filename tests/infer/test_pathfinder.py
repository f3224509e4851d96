"""Pathfinder: exact on Gaussians, and starts that are draws of the posterior."""

import numpy as np
import pytest
from scipy.stats import kstest, norm

from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import NUTS, Target, init_to_pathfinder, init_to_typical_set
from probtorch.infer.mcmc.starts import new_chains
from probtorch.infer.starts.initialization import starting_points
from probtorch.infer.starts.lbfgs_paths import InverseHessian
from probtorch.infer.starts.path_starts import Evaluations
from probtorch.infer.starts.pathfinder import _log_ratios, _resampled, gaussian_draws
from probtorch.ops.exponentials import log, logaddexp
from probtorch.tensor import tensor

PRECISION = np.array([[4.0, 1.0, 0.0], [1.0, 9.0, 2.0], [0.0, 2.0, 1.0]])
LOC = np.array([1.0, -2.0, 3.0])


def gaussian():
    """A normal density in 3 dims without its constant."""

    def fn(q):
        r = q - tensor(LOC)
        return -0.5 * (r * (tensor(PRECISION) @ r)).sum()

    return Target.from_density(fn, 3)


def exact_estimate():
    """The covariance as an estimate: three conjugate steps make it, whatever the diagonal."""
    steps = np.linalg.inv(np.linalg.cholesky(PRECISION).T).T[None]
    pairs = np.stack([steps, steps @ PRECISION], 1)
    return InverseHessian(np.array([[0.1, 7.0, 1.0]]), pairs, np.array([[2, 3, 1]]))


def test_approximation_of_a_gaussian_is_the_gaussian():
    target, estimate = gaussian(), exact_estimate()
    point = np.array([[5.0, 0.0, -4.0]])
    _, gradient = target.value_and_grad(point[0])
    (mean,) = gaussian_draws(point, gradient[None], estimate, np.zeros((1, 1, 3)))
    np.testing.assert_allclose(mean[0], LOC, atol=1e-10)
    # Target over proposal is the normalising constant at every draw: its log is the ELBO.
    _, ratios = _log_ratios(
        Evaluations(target),
        point,
        gradient[None],
        estimate,
        estimate.log_det(),
        Generator(0),
        50,
    )
    constant = 1.5 * np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(PRECISION)[1]
    np.testing.assert_allclose(ratios, constant, atol=1e-9)


def test_starts_on_a_gaussian_are_draws_of_it():
    target = gaussian()
    points = np.concatenate(
        [target.initial(4, Generator(seed), init_to_pathfinder) for seed in range(100)]
    )
    sd = np.sqrt(np.diag(np.linalg.inv(PRECISION)))
    for i in range(3):
        # Weighted draws without replacement, four of 800: as good as independent. False alarm of
        # each 1e-3, and a spread 20 % off is found in nine cases of ten.
        assert kstest((points[:, i] - LOC[i]) / sd[i], norm.cdf).pvalue > 1e-3


def test_weights_prefer_the_heavier_mode():
    def fn(q):
        left, right = -0.5 * ((q + 8.0) ** 2).sum(), -0.5 * ((q - 8.0) ** 2).sum()
        return logaddexp(left + np.log(0.999), right + np.log(0.001))

    points = np.concatenate(
        [
            Target.from_density(fn, 1).initial(4, Generator(seed), init_to_pathfinder)
            for seed in range(10)
        ]
    )
    assert (points < 0.0).mean() > 0.9


def test_draws_are_without_replacement_and_by_weight():
    log_weights = np.full(30, -np.inf)
    log_weights[[4, 17]] = 0.0
    np.testing.assert_array_equal(np.sort(_resampled(log_weights, Generator(0), 2)), [4, 17])
    assert _resampled(log_weights, Generator(0), 3) is None


@pytest.mark.parametrize("strategy", [init_to_pathfinder, init_to_typical_set])
def test_covariances_come_with_the_starts(strategy):
    found = starting_points(gaussian(), 4, Generator(0), strategy)
    columns = [found.covariances.apply(np.tile(e, (4, 1))) for e in np.eye(3)]
    matrices, exact = np.stack(columns, -1), np.linalg.inv(PRECISION)
    # Paths end within a few hundredths of a nat of the top: the estimates are near, not equal.
    assert np.abs(np.linalg.slogdet(matrices @ PRECISION)[1]).max() < 2.0
    assert (np.abs(matrices - exact) < 1.5 * np.abs(np.diag(exact)).max()).all()


def test_starts_are_finite_and_reproducible_where_the_density_is_unbounded():
    target = Target.from_density(lambda q: -0.4 * log(q * q).sum() - 0.5 * (q * q).sum(), 2)
    found = starting_points(target, 4, Generator(3), init_to_pathfinder)
    assert all(np.isfinite(target.value_and_grad(q)[0]) for q in found.positions)
    again = starting_points(target, 4, Generator(3), init_to_pathfinder)
    np.testing.assert_array_equal(found.positions, again.positions)
    assert found.gradients == again.gradients > 800  # draws for the weights are among them


def test_kernel_takes_it():
    target = gaussian()
    kernel = NUTS(target, init_strategy=init_to_pathfinder(num_paths=4, num_draws=20))
    started = new_chains(kernel, target, None, 3, Generator(0))
    positions = np.stack([chain.state.position.array for chain, _ in started])
    assert len(np.unique(positions[:, 0])) == 3 and np.abs(positions - LOC).max() < 8.0


def test_too_few_draws_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)num_draws.*25 draws of all paths.*got: +4 paths"):
        gaussian().initial(4, Generator(0), init_to_pathfinder(num_paths=4, num_draws=5))


def test_no_point_is_an_error_as_for_other_strategies():
    target = Target.from_density(lambda q: log(-1.0 - q * q).sum(), 2)
    with pytest.raises(InferenceError, match="no starting point"):
        target.initial(4, Generator(0), init_to_pathfinder)
