"""Processes in time as state space models: against the dense normal distributions that they are."""

import numpy as np
import pytest
from scipy import linalg, stats

import probtorch
from probtorch.contrib.timeseries import IndependentMaternGP, LinearlyCoupledMaternGP, MaternKernel
from probtorch.errors import ArgumentError, ShapeError, UnknownNameError
from probtorch.testing import assert_close

RNG = np.random.default_rng(0)
T, DT = 7, 0.4
TIMES = DT * np.arange(T)
LATER = np.array([0.3, 1.1])


def start(*values):
    return probtorch.tensor(values, dtype=probtorch.float64)


def matern(nu, times, scale, size):
    r = np.sqrt(2.0 * nu) * abs(times[:, None] - times[None]) / scale
    polynomial = {0.5: 1.0, 1.5: 1.0 + r, 2.5: 1.0 + r + r**2 / 3.0}[nu]
    return size**2 * polynomial * np.exp(-r)


def conditional(covariance, y, n):
    """Mean and covariance of what comes after the first n numbers, given these."""
    weights = np.linalg.solve(covariance[:n, :n], covariance[:n, n:])
    return weights.T @ y, covariance[n:, n:] - covariance[n:, :n] @ weights


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_independent_series_are_dense_processes(nu):
    gp = IndependentMaternGP(nu, DT, 2, start(0.7, 2.0), start(1.3, 0.5), start(0.3, 0.1))
    y = RNG.normal(size=(T, 2))
    targets = probtorch.tensor(y)
    found, later = gp.log_prob(targets), gp.forecast(targets, probtorch.tensor(LATER))
    assert later.batch_shape == (2, 2)
    everywhere = np.concatenate([TIMES, TIMES[-1] + LATER])
    for i, (scale, size, noise) in enumerate([(0.7, 1.3, 0.3), (2.0, 0.5, 0.1)]):
        dense = matern(nu, everywhere, scale, size) + noise**2 * np.eye(T + 2)
        expected = stats.multivariate_normal(np.zeros(T), dense[:T, :T]).logpdf(y[:, i])
        assert float(found[i].detach()) == pytest.approx(expected, rel=1e-9)
        loc, covariance = conditional(dense, y[:, i], T)
        assert_close(later.loc[:, i], loc, rtol=1e-8)
        assert_close(later.scale[:, i], np.sqrt(np.diag(covariance)), rtol=1e-8)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_coupled_series_are_a_dense_process(nu):
    gp = LinearlyCoupledMaternGP(
        nu, DT, 3, 2, start(0.7, 2.0), start(1.3, 0.5), start(0.3, 0.1, 0.2)
    )
    y, mixed = RNG.normal(size=(T, 3)), gp.A.detach().numpy()
    everywhere = np.concatenate([TIMES, TIMES[-1] + LATER])
    dense = np.kron(np.eye(T + 2), np.diag([0.09, 0.01, 0.04]))
    for j, (scale, size) in enumerate([(0.7, 1.3), (2.0, 0.5)]):
        shared = np.outer(mixed[j], mixed[j])
        dense += np.kron(matern(nu, everywhere, scale, size), shared)
    n = 3 * T
    expected = stats.multivariate_normal(np.zeros(n), dense[:n, :n]).logpdf(y.ravel())
    targets = probtorch.tensor(y)
    assert float(gp.log_prob(targets).detach()) == pytest.approx(expected, rel=1e-9)
    later = gp.forecast(targets, probtorch.tensor(LATER))
    loc, covariance = conditional(dense, y.ravel(), n)
    assert_close(later.loc, loc.reshape(2, 3), rtol=1e-7)
    blocks = np.stack([covariance[:3, :3], covariance[3:, 3:]])
    assert_close(later.covariance_matrix, blocks, rtol=1e-7)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_the_transition_is_an_exponential_and_keeps_the_stationary_covariance(nu):
    kernel = MaternKernel(nu, 1, start(0.7), start(1.3))
    dt = 1e-4
    slope = (kernel.transition_matrix(dt) - kernel.transition_matrix(-dt)).detach().numpy()[0]
    generator = slope / (2.0 * dt)
    assert_close(kernel.transition_matrix(0.9)[0], linalg.expm(0.9 * generator), rtol=1e-4)
    long = kernel.process_covariance(kernel.transition_matrix(60.0))
    assert_close(long, kernel.stationary_covariance(), rtol=1e-9, atol=1e-12)


def test_a_process_is_fitted_by_gradients():
    gp = IndependentMaternGP(1.5, DT, 1)
    targets = probtorch.tensor(np.sin(TIMES)[:, None], dtype=probtorch.float32)
    optimizer = probtorch.optim.Adam(gp.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -gp.log_prob(targets).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1.0
    assert gp.get_dist(duration=5).sample().shape == (1, 5, 1)


def test_what_does_not_fit_is_refused():
    gp = IndependentMaternGP(obs_dim=2)
    for wrong, error, message in [
        (lambda: MaternKernel(1.0), ArgumentError, "0.5, 1.5 or 2.5"),
        (lambda: LinearlyCoupledMaternGP(obs_dim=1), ArgumentError, "at least 2"),
        (lambda: IndependentMaternGP(length_scale_init=start(1.0, 2.0)), ShapeError, r"\(1,\)"),
        (lambda: gp.log_prob(start(1.0, 2.0)), ShapeError, r"\(steps, 2\)"),
        (lambda: gp.forecast(probtorch.zeros(3, 2), probtorch.zeros(2, 2)), ShapeError, "one dim"),
        (lambda: probtorch.contrib.timeseries.GenericLGSSM, UnknownNameError, "GaussianHMM"),
    ]:
        with pytest.raises(error, match=message):
            wrong()
