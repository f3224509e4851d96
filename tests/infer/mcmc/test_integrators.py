"""Laws of the leapfrog integrator and of the metrics."""

import numpy as np
import pytest

from probtorch.core.dispatch import wrap
from probtorch.errors import DomainError
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.metrics import DenseMetric, DiagonalMetric, kinetic_energy
from probtorch.testing.compare import assert_close
from tests.infer.mcmc.targets import banana, eager, funnel, gaussian, number

COVARIANCE = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.2], [0.1, -0.2, 0.5]])
METRICS = {
    "unit": DiagonalMetric.unit(3),
    "diagonal": DiagonalMetric.from_inverse_mass([0.3, 2.0, 1.1]),
    "dense": DenseMetric.from_inverse_mass(COVARIANCE),
}
DENSITIES = {"funnel": funnel, "gaussian": gaussian(COVARIANCE)}
START = np.array([0.4, -0.7, 0.9]), np.array([0.2, 1.1, -0.5])


def walk(value_and_grad, metric, position, momentum, step_size, steps):
    value, grad = value_and_grad(position)
    point = PhasePoint(wrap(position), wrap(momentum), number(value), wrap(grad))
    for _ in range(steps):
        point = leapfrog(eager(value_and_grad), metric, point, number(step_size))
    return point


def energy(point):
    return float(kinetic_energy(point.momentum).array - point.logdensity.array)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("density", DENSITIES)
def test_leapfrog_returns_along_its_path(density, metric):
    fn, m = DENSITIES[density], METRICS[metric]
    there = walk(fn, m, *START, 0.05, 30)
    back = walk(fn, m, there.position.array, there.momentum.array, -0.05, 30)
    np.testing.assert_allclose(back.position.array, START[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(back.momentum.array, START[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("metric", METRICS)
def test_leapfrog_preserves_volume(metric):
    def flow(z):
        end = walk(funnel, METRICS[metric], z[:3], z[3:], 0.1, 5)
        return np.concatenate([end.position.array, end.momentum.array])

    z, h = np.concatenate(START), 1e-5
    jacobian = np.stack(
        [(flow(z + h * e) - flow(z - h * e)) / (2.0 * h) for e in np.eye(6)], axis=1
    )
    assert abs(np.linalg.det(jacobian) - 1.0) < 1e-6


@pytest.mark.parametrize("metric", METRICS)
def test_energy_error_falls_with_the_square_of_the_step_size(metric):
    sizes = np.array([0.04, 0.02, 0.01, 0.005])
    begin = energy(walk(funnel, METRICS[metric], *START, 0.01, 0))
    errors = [
        abs(energy(walk(funnel, METRICS[metric], *START, s, round(0.4 / s))) - begin) for s in sizes
    ]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope - 2.0) < 0.1


@pytest.mark.parametrize("metric", METRICS)
def test_whitened_trajectory_is_the_plain_one(metric):
    """Plain leapfrog with an explicit inverse mass matrix, momentum p_plain = F^-T p."""
    m = METRICS[metric]
    inverse_mass = m.inverse_mass() if metric == "dense" else np.diag(m.inverse_mass())
    factor = np.linalg.cholesky(inverse_mass)
    q, p = START[0].copy(), np.linalg.solve(factor.T, START[1])
    for _ in range(7):
        p = p + 0.05 * banana_and_one(q)[1]
        q = q + 0.1 * inverse_mass @ p
        p = p + 0.05 * banana_and_one(q)[1]
    end = walk(banana_and_one, m, *START, 0.1, 7)
    assert_close(end.position, q)
    assert_close(end.momentum, factor.T @ p)
    assert_close(kinetic_energy(end.momentum), 0.5 * p @ inverse_mass @ p)


def banana_and_one(q):
    value, grad = banana(q[:2])
    return value - 0.5 * q[2] ** 2, np.append(grad, -q[2])


@pytest.mark.parametrize(
    "make, matrix, got",
    [
        (DiagonalMetric.from_inverse_mass, [1.0, 0.0], "0.0 at index 1"),
        (DiagonalMetric.from_inverse_mass, [np.nan, 1.0], "nan at index 0"),
        (DenseMetric.from_inverse_mass, [[1.0, 2.0], [2.0, 1.0]], "smallest eigenvalue -1"),
        (DenseMetric.from_inverse_mass, [[1.0, 0.5], [0.0, 1.0]], "an asymmetric one"),
    ],
)
def test_impossible_mass_matrix_is_refused(make, matrix, got):
    with pytest.raises(DomainError, match="inverse mass matrix") as error:
        make(matrix)
    assert got in str(error.value) and "fix:" in str(error.value)
